"""The calculator as a web page: answers to its questions, answers computed in advance, and assembly of its files."""
