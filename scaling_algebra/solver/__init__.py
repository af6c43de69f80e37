"""Exponents that meet the desiderata: from demands to powers of the axes."""

from . import presentation as presentation  # registers documents
