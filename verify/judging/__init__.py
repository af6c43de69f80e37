"""Slopes, verdicts and gates from recorded numbers. Needs no torch."""

from . import presentation as presentation  # registers documents
