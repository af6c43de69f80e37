"""Proves that a parameterization is the only one that meets the desiderata, or that none does."""

from . import presentation as presentation  # registers documents
