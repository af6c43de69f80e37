"""Recognises elementwise functions by their values: which function of the language is the given one?

The engine treats a function as the generic polynomial with the same powers, so its class (``FunctionKind``) is all
that matters. For example, ``x (1 + tanh(c x))`` has the class of GELU: an odd part that is linear, and an even part.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from scaling_algebra.spec.networks.functions import FUNCTIONS, FunctionKind
from scaling_algebra.verify.networks.torch_network import find_torch_function

_GRID = torch.linspace(-6, 6, 121, dtype=torch.float64)
"""Arguments at which functions are evaluated; the middle one is 0."""
_TOLERANCE = 1e-6
"""Relative size below which a value counts as zero."""
MAX_FUNCTION_DIFFERENCE = 1e-3
"""Maximum difference of values up to which two functions count as the same (such as approximations of GELU)."""
ELEMENTWISE_FUNCTIONS = tuple(name for name, f in FUNCTIONS.items() if f.kind == "entrywise" and not f.selects)
"""Elementwise functions of one tensor that the language has."""


def is_generic_activation(f: Callable[[Tensor], Tensor]) -> bool:
    """Tests whether a function can stand for silu(u) + tanh(u), since it has the same powers, sign and growth.

    Minus its value at zero, the function must have an even part, a linear and a nonlinear odd part, and the sign of
    its argument (or the opposite sign), and must grow at most linearly.

    Args:
        f: the function, of a tensor of any shape.

    Examples:
        >>> is_generic_activation(torch.nn.functional.elu), is_generic_activation(torch.exp)
        (True, False)
    """
    u, middle = _GRID, f(0 * _GRID)
    values = [measure_properties(lambda u, sign=sign: sign * (f(u) - f(0 * u))) for sign in (1, -1)]  # type: ignore[misc]
    fits = any(x and x["signed"] and x["powers"] == {1, 2, 3} for x in values)
    return fits and float((f(4 * u) - middle).abs().max()) < 5 * float((f(u) - middle).abs().max())


def measure_properties(f: Callable[[Tensor], Tensor]) -> dict[str, object]:
    """Determines from the values of a function the properties that ``functions.toml`` declares for known functions.

    Args:
        f: the function, of a tensor of any shape.

    Returns:
        The properties by name; an empty dict if values are not finite, all zero, or of another shape.

    Examples:
        >>> {key: x for key, x in measure_properties(torch.nn.functional.softplus).items() if x}
        {'powers': frozenset({0, 1, 2}), 'positive': True, 'rising': True}
    """
    u, middle = _GRID, len(_GRID) // 2
    y, near, far = f(u), f(u / 6e4), f(u * 1e3)
    if not bool(torch.isfinite(far).all()) and float((again := f(u * 100)).abs().max()) < 1e5:
        far = 10 * again  # it overflows only because of an exp inside, so it is extrapolated
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


def matches_class(kind: FunctionKind, values: dict[str, object]) -> bool:
    """Tests whether the measured properties of a function agree with those declared for a known function.

    Powers, boundedness, steepness and homogeneity must be equal; positivity, monotonicity and sign must hold where
    they are declared.

    Args:
        kind: the declaration of the known function.
        values: the properties of the measured function, as ``measure_properties`` returns them.
    """
    same = values and all(getattr(kind, key) == values[key] for key in ("powers", "bounded", "steep", "homogeneous"))
    return bool(same) and all(values[key] for key in ("positive", "rising", "signed") if getattr(kind, key))


def find_function_of_class(f: Callable[[Tensor], Tensor], name: str = "") -> str:
    """Returns the name of a function of the equations that has the same properties as f or -f; "" if there is none.

    The engine gives equal exponents for functions with equal properties (powers, boundedness, ...).

    Args:
        f: the function.
        name: the function that is preferred if there are several.

    Examples:
        >>> find_function_of_class(lambda x: 0.5 * x * (1 + torch.tanh(0.8 * (x + 0.045 * x**3))))
        'silu'
        >>> [find_function_of_class(f) for f in (torch.exp, lambda x: 1 + torch.tanh(x), lambda x: 3 * x)]
        ['exp', 'sigmoid', '']
    """
    both = (measure_properties(f), measure_properties(lambda u: -f(u)))
    names = sorted(ELEMENTWISE_FUNCTIONS, key=lambda x: x != name)
    return next((x for x in names if any(matches_class(FUNCTIONS[x], values) for values in both)), "")


def fit_function(f: Callable[[Tensor], Tensor]) -> tuple[str, float, float] | None:
    """Finds a function k of the network language, a factor c and a constant b such that f(u) = c k(u) + b.

    The values must agree up to ``MAX_FUNCTION_DIFFERENCE`` (so that approximations of GELU are accepted), also far from
    zero.

    Returns:
        The name of k, c and b; None if there is no such function.

    Examples:
        >>> fit_function(lambda x: -2 * x.clamp(min=0)), fit_function(lambda x: 1 + torch.tanh(x))
        (('relu', -2.0, 0.0), ('tanh', 1.0, 1.0))
        >>> fit_function(lambda x: 3 * x), fit_function(lambda x: x.clamp(0, 50))
        (None, None)
    """
    at, y = _GRID / 2, f(_GRID / 2)
    for name in ELEMENTWISE_FUNCTIONS:
        k = find_torch_function(FUNCTIONS[name])
        z = k(at)
        slope = float(((y - y.mean()) * (z - z.mean())).sum() / (z - z.mean()).square().sum())
        middle = float(y.mean() - slope * z.mean())
        if abs(slope) < MAX_FUNCTION_DIFFERENCE or not torch.allclose(
            y, slope * z + middle, rtol=0, atol=MAX_FUNCTION_DIFFERENCE * abs(slope)
        ):
            continue
        far = (_GRID * 10, _GRID * 1e3)
        if matches_class(FUNCTIONS[name], measure_properties(k)) and all(
            torch.allclose(
                f(u), slope * k(u) + middle, rtol=MAX_FUNCTION_DIFFERENCE, atol=MAX_FUNCTION_DIFFERENCE * abs(slope)
            )
            for u in far
        ):
            return name, _round_near_integer(slope), _round_near_integer(middle)
    return None


def _round_near_integer(number: float) -> float:
    """Returns the number, rounded to the nearest integer if it is within 1e-4 of it."""
    return float(round(number)) if abs(number - round(number)) < MAX_FUNCTION_DIFFERENCE * 1e-1 else number


def determine_sign(f: Callable[[Tensor], Tensor]) -> int:
    """Returns the sign of the even part of f(u) - f(0); for an odd function, that of f at u > 0.

    It tells whether f or -f is to be replaced by a function such as relu.

    Examples:
        >>> [determine_sign(f) for f in (torch.relu, lambda x: x.clamp(max=0), torch.tanh, lambda x: -x)]
        [1, -1, 1, -1]
    """
    off = f(_GRID) - f(0 * _GRID)
    even, odd = float((off + off.flip(0)).sum()), float((off * _GRID.sign()).sum())
    return -1 if (even if abs(even) > _TOLERANCE * float(off.abs().sum()) else odd) < 0 else 1
