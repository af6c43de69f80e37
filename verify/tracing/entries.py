"""Functions that act entry by entry, told apart by their values: which of the language's is this one?

The engine counts a function as the generic polynomial of its parity class, so that class is all that matters:
``x (1 + tanh(c x))`` is x + x^2 with a linear odd part, as GELU is.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from scaling_algebra.spec.networks.functions import FUNCTIONS, FunctionKind
from scaling_algebra.verify.networks.torch_network import find_torch_function

_GRID = torch.linspace(-6, 6, 121, dtype=torch.float64)
_TOLERANCE = 1e-6
ALIKE = 1e-3
"""Difference of values up to which a function is the one that it is read as (approximations of GELU)."""
NAMES = tuple(name for name, f in FUNCTIONS.items() if f.kind == "entrywise" and not f.selects)
"""Functions of one tensor, entry by entry, that the language has."""


def generic(f: Callable[[Tensor], Tensor]) -> bool:
    """Is a function, less its value at zero, as silu(u) + tanh(u) is: with an even part and an odd one that is not
    linear, of the sign of its argument, and no faster than linear?

    Examples:
        >>> generic(torch.nn.functional.elu), generic(torch.exp), generic(torch.cos)
        (True, False, False)
    """
    u, middle = _GRID, f(0 * _GRID)
    values = [seen(lambda u, sign=sign: sign * (f(u) - f(0 * u))) for sign in (1, -1)]  # type: ignore[misc]
    fits = any(x and x["signed"] and x["powers"] == {1, 2, 3} for x in values)
    return fits and float((f(4 * u) - middle).abs().max()) < 5 * float((f(u) - middle).abs().max())


def seen(f: Callable[[Tensor], Tensor]) -> dict[str, object]:
    """What a table of ``functions.toml`` declares, as the values of a function have it; nothing where they are not
    finite.

    Examples:
        >>> {key: x for key, x in seen(torch.nn.functional.softplus).items() if x}
        {'powers': frozenset({0, 1, 2}), 'positive': True, 'rising': True}
    """
    u, middle = _GRID, len(_GRID) // 2
    y, near, far = f(u), f(u / 6e4), f(u * 1e3)
    if not bool(torch.isfinite(far).all()) and float((again := f(u * 100)).abs().max()) < 1e5:
        far = 10 * again  # exp within it is too large, it is not
    if y.shape != u.shape or not bool(torch.isfinite(y).all()) or not bool(y.any()):
        return {}
    odd, even, tiny = (y - y.flip(0)) / 2, (y + y.flip(0)) / 2, _TOLERANCE * float(y.abs().max())
    has = {
        0: abs(float(y[middle])) > tiny,
        1: abs(float(near[-1] - near[0])) > 1e-6,
        2: float((even - even[middle]).abs().max()) > tiny,
        3: float((odd - odd[-1] / u[-1] * u).abs().max()) > tiny,
    }
    inner, steps, signs = slice(middle - 10, middle + 11), y[1:] - y[:-1], y * torch.sign(u)
    return {
        "powers": frozenset(p for p, there in has.items() if there),
        "bounded": float(far.abs().max()) < 1.1 * float(f(u * 10).abs().max()),
        "steep": not bool(torch.isfinite(far).all()),
        "homogeneous": bool(torch.allclose(far, 1e3 * y, rtol=_TOLERANCE, atol=1e3 * tiny)),
        "positive": bool((y >= -tiny).all()) and float(y[inner].min()) > tiny,
        "rising": bool((steps >= -tiny).all()) and float(steps[middle - 10 : middle + 10].min()) > tiny,
        "signed": bool((signs >= -tiny).all()) and int((signs[inner] > tiny).sum()) == 20,
    }


def has_class(kind: FunctionKind, values: dict[str, object]) -> bool:
    """Have values, as ``seen`` tells them, the powers of a class, and all else that it declares?"""
    same = values and all(getattr(kind, key) == values[key] for key in ("powers", "bounded", "steep", "homogeneous"))
    return bool(same) and all(values[key] for key in ("positive", "rising", "signed") if getattr(kind, key))


def classified(f: Callable[[Tensor], Tensor], name: str = "") -> str:
    """The function of the language whose class the values have, up to a sign, ``name`` before others; or nothing.

    Examples:
        >>> classified(lambda x: 0.5 * x * (1 + torch.tanh(0.8 * (x + 0.045 * x**3))))
        'silu'
        >>> classified(lambda x: 1 + torch.tanh(x)), classified(torch.exp), classified(lambda x: 3 * x)
        ('sigmoid', 'exp', '')
    """
    both, names = (seen(f), seen(lambda u: -f(u))), sorted(NAMES, key=lambda x: x != name)
    return next((x for x in names if any(has_class(FUNCTIONS[x], values) for values in both)), "")


def fitted(f: Callable[[Tensor], Tensor]) -> tuple[str, float, float] | None:
    """The function of the language that has these values, the number that it is multiplied by, and what is added; None:
    there is none. Values are those of the function up to ``ALIKE`` (approximations of GELU), also far from zero.

    Examples:
        >>> fitted(lambda x: x.clamp(max=0)), fitted(lambda x: 1 + torch.tanh(x))
        (('relu', -1.0, 0.0), ('tanh', 1.0, 1.0))
        >>> fitted(lambda x: 3 * x), fitted(lambda x: x.clamp(0, 50))
        (None, None)
    """
    at, y = _GRID / 2, f(_GRID / 2)
    for name in NAMES:
        k = find_torch_function(FUNCTIONS[name])
        z = k(at)
        slope = float(((y - y.mean()) * (z - z.mean())).sum() / (z - z.mean()).square().sum())
        middle = float(y.mean() - slope * z.mean())
        if abs(slope) < ALIKE or not torch.allclose(y, slope * z + middle, rtol=0, atol=ALIKE * abs(slope)):
            continue
        far = (_GRID * 10, _GRID * 1e3)
        if has_class(FUNCTIONS[name], seen(k)) and all(
            torch.allclose(f(u), slope * k(u) + middle, rtol=ALIKE, atol=ALIKE * abs(slope)) for u in far
        ):
            return name, _whole(slope), _whole(middle)
    return None


def _whole(number: float) -> float:
    """A number without rounding."""
    return float(round(number)) if abs(number - round(number)) < ALIKE * 1e-1 else number


def sign_of(f: Callable[[Tensor], Tensor]) -> int:
    """The sign of the even part of a function, less its value at zero; of an odd function that above zero.

    Examples:
        >>> [sign_of(f) for f in (torch.relu, lambda x: x.clamp(max=0), torch.tanh, lambda x: -x)]
        [1, -1, 1, -1]
    """
    off = f(_GRID) - f(0 * _GRID)
    even, odd = float((off + off.flip(0)).sum()), float((off * _GRID.sign()).sum())
    return -1 if (even if abs(even) > _TOLERANCE * float(off.abs().sum()) else odd) < 0 else 1
