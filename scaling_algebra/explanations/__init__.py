"""Explains the exponent of a quantity by its largest monomial, a product of random initial tensors: which of the
factors are copies of each other, and why each sum in it is therefore coherent or random (mechanisms).
"""

from . import presentation as presentation  # registers documents
