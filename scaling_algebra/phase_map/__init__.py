"""Where in the space of rays each formula holds."""

from . import presentation as presentation  # registers documents
