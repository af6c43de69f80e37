"""Proves for whole cones of rays where a parameterization exists, where it is unique, and where there is none."""

from . import presentation as presentation  # registers documents
