"""Explains an exponent: by its leading monomial, the matching of the factors, and the mechanism of this matching."""

from . import presentation as presentation  # registers documents
