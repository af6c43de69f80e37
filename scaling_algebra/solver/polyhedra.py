"""Cones with exact corners: what linear inequalities leave of the cone that some rays span.

Read next: ``cones.py`` and ``formulas/search.py`` (ask the engine at the corners).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from math import gcd, lcm

Vector = tuple[int, ...]
"""Coprime integers: a direction."""


def direction(values: Iterable[Fraction | int]) -> Vector:
    """The coprime integers along a vector.

    Examples:
        >>> direction([Fraction(1, 2), 0, Fraction(-1, 3)])
        (3, 0, -2)
    """
    exact = [Fraction(x) for x in values]
    scale = lcm(*(x.denominator for x in exact))
    whole = [int(x * scale) for x in exact]
    common = gcd(*whole) or 1
    return tuple(x // common for x in whole)


def dot(a: Sequence[Fraction | int], b: Sequence[Fraction | int]) -> Fraction | int:
    return sum(x * y for x, y in zip(a, b, strict=True))


def corners(spanning: Sequence[Vector], inequalities: Iterable[Vector]) -> list[Vector]:
    """The extreme rays of what inequalities ``h . r >= 0`` leave of a simplicial cone.

    Method: double description; two rays of a cone are neighbours if no third one lies on every face that they share.

    Args:
        spanning: linearly independent rays, as many as there are dimensions.

    Examples:
        >>> corners([(1, 0), (0, 1)], [(1, -1)])
        [(1, 0), (1, 1)]
    """
    faces: Mapping[Vector, frozenset[int]] = {
        ray: frozenset(-1 - k for k in range(len(spanning)) if k != j) for j, ray in enumerate(spanning)
    }
    for number, h in enumerate(inequalities):
        at = {ray: dot(h, ray) for ray in faces}
        left = {ray: held | {number} if not at[ray] else held for ray, held in faces.items() if at[ray] >= 0}
        for p in [ray for ray in faces if at[ray] > 0]:
            for q in [ray for ray in faces if at[ray] < 0]:
                shared = faces[p] & faces[q]
                if not any(ray not in (p, q) and shared <= held for ray, held in faces.items()):
                    between = direction([at[p] * y - at[q] * x for x, y in zip(p, q, strict=True)])
                    left[between] = shared | {number}
        faces = left
    return list(faces)
