"""Published against derived against measured, and the errata that follow."""

from . import presentation as presentation  # registers documents
