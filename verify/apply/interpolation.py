"""Chooses the sizes between a base and a target at which a model is trained."""

from __future__ import annotations

import math
from itertools import pairwise

from scaling_algebra.errors import UsageError
from scaling_algebra.recipes.sizes import Sizes, way

OFF = 0.1
"""Largest deviation of a rounded size from its place, as a fraction of the (logarithmic) step between two sizes."""


def interpolate_sizes(base: Sizes, target: Sizes, points: int) -> list[Sizes]:
    """Returns as many sizes as ``points`` from a base to a target, evenly spaced on a logarithmic scale.

    Every size of an axis is a multiple of the greatest common divisor of its sizes at the base and at the target.

    Examples:
        >>> interpolate_sizes({"N": 32, "M": 4}, {"N": 128, "M": 16}, 3)[1]
        {'N': 64, 'M': 8}

    Raises:
        UsageError: fewer than two points, no ray leads from base to target, or no allowed size lies near one of the
            points.
    """
    whole = way(base, target)
    if whole.ray is None or not whole.exact:
        raise UsageError(
            "no ray leads from base to target: an axis shrinks, K grows faster than M, or the growth factors are not "
            "powers of one number; give for example N=32,M=4 and N=128,M=16"
        )
    if points < 2:
        raise UsageError(f"points is {points}; give two or more, three for a verdict")
    sizes: list[dict[str, int]] = [{} for _ in range(points)]
    for axis, n in base.items():
        grid, ratio = math.gcd(n, target[axis]), target[axis] / n
        places = [n * ratio ** (k / (points - 1)) for k in range(points)]
        for size, place in zip(sizes, places, strict=True):
            size[axis] = max(1, round(place / grid)) * grid
        apart = ratio ** (OFF / (points - 1))
        if any(max(s[axis] / x, x / s[axis]) > apart for s, x in zip(sizes, places, strict=True) if ratio > 1):
            steps, near = points - 1, n * max(2, round(ratio ** (1 / (points - 1)))) ** (points - 1)
            said = f"there are no {points} evenly spaced whole sizes from {axis}={n} to {axis}={target[axis]}"
            raise UsageError(
                f"{said}; {axis} is to grow {steps} times by one factor, as to {axis}={near}, or give other points"
            )
    if base == target:
        raise UsageError(
            f"base and target are the same, {', '.join(f'{k}={n}' for k, n in base.items())}; give a larger --target"
        )
    if any(a == b for a, b in pairwise(sizes)):
        raise UsageError(
            f"{points} points are more than there are whole sizes between base and target; give fewer points"
        )
    return list(sizes)
