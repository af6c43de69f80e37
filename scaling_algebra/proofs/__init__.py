"""That the exponents are the only ones, or that there are none."""

from . import presentation as presentation  # registers documents
