"""Derives exponents from desiderata: from demands on sizes to powers of the axes."""

from . import presentation as presentation  # registers documents
