"""Fits slopes to recorded numbers, judges them, and checks the run (gates). Needs no torch."""

from . import presentation as presentation  # registers documents
