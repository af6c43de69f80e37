"""From a tuned small model to a large one: numbers for every tensor. Read next: ``recipe.py``."""

from . import presentation as presentation  # registers documents
