"""The verbs ``verify``, ``check-model`` and ``study``."""
