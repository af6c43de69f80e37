"""Functions of one number, with their slopes, and the softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import erf, expit

from .vectors import Values


def _normal(x: Values) -> Values:
    density: Values = np.exp(-(x**2) / 2) / (2 * np.pi) ** 0.5
    return density


ENTRYWISE: dict[str, tuple[Callable[[Values], Any], Callable[[Values], Any]]] = {
    "gate": (expit, lambda x: expit(x) * expit(-x)),
    "sigmoid": (expit, lambda x: expit(x) * expit(-x)),
    "tanh": (np.tanh, lambda x: 1 - np.tanh(x) ** 2),
    "silu": (lambda x: x * expit(x), lambda x: expit(x) * (1 + x * expit(-x))),
    "gelu": (lambda x: x * (1 + erf(x / 2**0.5)) / 2, lambda x: (1 + erf(x / 2**0.5)) / 2 + x * _normal(x)),
    "relu": (lambda x: np.maximum(x, 0), lambda x: (x > 0) * 1.0),
}
"""By name: function and slope."""


def softmax(x: Values, axis: int) -> Values:
    """Positive shares with sum 1 along an axis."""
    e = np.exp(x - x.max(axis, keepdims=True))
    values: Values = e / e.sum(axis, keepdims=True)
    return values
