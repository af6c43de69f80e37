"""The calculator in a browser: the questions of the page, the answers computed in advance, and the assembly of its
folder."""
