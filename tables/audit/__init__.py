"""Compares published, derived and measured exponents, and lists the errata that follow."""

from . import presentation as presentation  # registers documents
