"""Applies the numbers of a recipe to a live module: optimizer groups, initial values, exports, checks by training."""

from . import presentation as presentation  # registers documents
from .planning import plan
from .plans import Plan

__all__ = ["Plan", "plan"]
