"""Functions that act entry by entry, told apart by their values: which of the language's is this one?

The engine counts a function as the generic polynomial of its parity class, so that class is all that matters:
``x (1 + tanh(c x))`` is x + x^2 with a linear odd part, as GELU is.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_GRID = torch.linspace(-6, 6, 121, dtype=torch.float64)
_TOLERANCE = 1e-6
NAMES = ("tanh", "relu", "silu", "gelu", "sigmoid")


def generic(f: Callable[[Tensor], Tensor]) -> bool:
    """Is a function, less its value at zero, as silu(u) + tanh(u) is: with an even part and an odd one that is not
    linear, of the sign of its argument, and no faster than linear?

    Examples:
        >>> generic(torch.nn.functional.elu), generic(torch.exp), generic(torch.cos)
        (True, False, False)
    """
    u = _GRID
    y, far = f(u) - f(torch.zeros_like(u)), f(4 * u) - f(torch.zeros_like(u))
    if y.shape != u.shape or not bool(torch.isfinite(far).all()):
        return False
    size, middle = float(y.abs().max()), len(u) // 2
    even = float((y + y.flip(0)).abs().max()) > _TOLERANCE * size
    signed = float((y * u)[[k for k in range(len(u)) if k != middle]].min()) * float(y[-1]) >= -_TOLERANCE * size**2
    return size > 0 and even and signed and float(far.abs().max()) < 5 * size


def classified(f: Callable[[Tensor], Tensor]) -> str:
    """``relu``, ``silu`` (odd part linear, an even part), ``tanh`` (odd, bounded, rising), ``sigmoid`` (that and a
    mean), or nothing.

    Examples:
        >>> classified(lambda x: 0.5 * x * (1 + torch.tanh(0.8 * (x + 0.045 * x**3))))
        'silu'
        >>> classified(lambda x: 1 + torch.tanh(x)), classified(torch.exp), classified(lambda x: 3 * x)
        ('sigmoid', '', '')
    """
    u = _GRID
    y = f(u)
    if y.shape != u.shape or not bool(torch.isfinite(y).all()):
        return ""
    odd, even, size = (y - y.flip(0)) / 2, (y + y.flip(0)) / 2, float(y.abs().max())
    if size == 0:
        return ""

    def zero(x: Tensor) -> bool:
        return float(x.abs().max()) <= _TOLERANCE * size

    middle = len(u) // 2
    linear = zero(odd - odd[-1] / u[-1] * u) and not zero(odd)
    if linear and not zero(even) and abs(float(y[middle])) <= _TOLERANCE * size:
        return "relu" if zero(even - even[-1] / u[-1] * u.abs()) else "silu"
    rising = (odd[1:] - odd[:-1]) * torch.sign(odd[-1])
    flat = abs(float(odd[-1] - odd[-11])) < 0.02 * abs(float(odd[-1]))
    if not linear and flat and bool((rising >= -_TOLERANCE * size).all()):
        if zero(even):
            return "tanh"
        if zero(even - even[0]) and float((y * torch.sign(even[0])).min()) >= -_TOLERANCE * size:
            return "sigmoid"
    return ""
