"""The verbs ``table`` and ``audit``."""
