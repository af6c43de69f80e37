"""The commands ``table`` and ``audit``."""
