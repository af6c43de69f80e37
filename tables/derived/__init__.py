"""The published tables again, every cell derived."""

from . import presentation as presentation  # registers documents
