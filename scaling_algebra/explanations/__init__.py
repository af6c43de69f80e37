"""Why an exponent is what it is: the monomial, its matching, its mechanism."""

from . import presentation as presentation  # registers documents
