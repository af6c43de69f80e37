"""The size of every quantity at every ray and every parameter: formulas, and the proof that they are complete."""

from . import presentation as presentation  # registers documents
