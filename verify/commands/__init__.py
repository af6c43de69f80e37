"""The commands ``verify``, ``check-model``, ``study`` and ``law --fit``."""
