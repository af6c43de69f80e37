"""Recipes: from the tuned numbers of a small model to the numbers for every tensor of a large one."""

from . import presentation as presentation  # registers documents
