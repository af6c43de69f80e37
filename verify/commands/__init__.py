"""The verbs ``verify``, ``report``, ``experiment`` and ``transfer``."""
