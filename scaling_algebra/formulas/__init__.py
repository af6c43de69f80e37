"""The size of every quantity on every ray at every parameter: formulas, with a proof that they are complete."""

from . import presentation as presentation  # registers documents
