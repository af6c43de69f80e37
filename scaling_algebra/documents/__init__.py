"""Blocks of text and tables, and one writer per format. Knows no result."""
