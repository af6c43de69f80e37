"""The published tables again, every cell derived."""
