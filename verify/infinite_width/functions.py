"""Functions of one number, with their slopes, as torch has them; and the softmax."""

from __future__ import annotations

import numpy as np
import torch

from scaling_algebra.spec.networks.functions import FunctionKind
from scaling_algebra.verify.networks.torch_network import entrywise

from .vectors import Values


def value_of(kind: FunctionKind, x: Values) -> Values:
    """The function, entry by entry."""
    found: Values = entrywise(kind)(torch.tensor(np.asarray(x, np.float64))).numpy()
    return found


def slope_of(kind: FunctionKind, x: Values) -> Values:
    """Its slope, entry by entry."""
    with torch.enable_grad():
        at = torch.tensor(np.asarray(x, np.float64), requires_grad=True)
        (found,) = torch.autograd.grad(entrywise(kind)(at).sum(), at)
    slopes: Values = found.numpy()
    return slopes


def softmax(x: Values, axis: int) -> Values:
    """Positive shares with sum 1 along an axis."""
    e = np.exp(x - x.max(axis, keepdims=True))
    values: Values = e / e.sum(axis, keepdims=True)
    return values
