"""The verbs ``table``, ``audit`` and ``errata``."""
