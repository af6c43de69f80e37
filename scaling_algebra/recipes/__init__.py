"""From a tuned small model to a large one: numbers for every tensor."""

from . import presentation as presentation  # registers documents
