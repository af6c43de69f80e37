"""Explains an exponent: the monomial, its matching, its mechanism."""

from . import presentation as presentation  # registers documents
