"""The calculator in a browser: questions of the page, answers computed in advance, and assembly of its folder."""
