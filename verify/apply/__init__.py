"""The numbers of a recipe on a live module: groups of an optimizer, initial values, exports, checks by training.

Read next: ``plans.py`` (roles and numbers), ``exports.py`` (formats of trainers), ``checking.py`` (training).
"""

from .plans import Plan, plan

__all__ = ["Plan", "plan"]
