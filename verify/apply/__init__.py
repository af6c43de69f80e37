"""The numbers of a recipe on a live module: groups of an optimizer, initial values, exports, checks by training."""

from . import presentation as presentation  # registers documents
from .planning import plan
from .plans import Plan

__all__ = ["Plan", "plan"]
