"""Walls between cones of rays, and what a wall leaves of a cone.

Read next: ``cones.py`` (the cone of a formula).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import gcd, lcm

from scaling_algebra.spec.axes import Ray

PLANE_AXES = ("N", "N_e", "M")
"""The axes of rays with K = M."""
Rates = tuple[Fraction, ...]
"""Of ``PLANE_AXES``, in this order."""


@dataclass(frozen=True)
class Wall:
    """A linear equation ``sum of coefficient * rate = 0``: coprime integers in the order of ``PLANE_AXES``."""

    coefficients: tuple[int, ...]

    @classmethod
    def of(cls, coefficients: Sequence[Fraction]) -> Wall:
        scale = lcm(*(c.denominator for c in coefficients))
        whole = [int(c * scale) for c in coefficients]
        common = gcd(*whole)
        sign = 1 if next(c for c in reversed(whole) if c) > 0 else -1
        return cls(tuple(sign * c // common for c in whole))

    def at(self, rates: Sequence[Fraction | int]) -> Fraction:
        return sum((Fraction(a) * r for a, r in zip(self.coefficients, rates, strict=True)), Fraction(0))

    def side(self, rates: Sequence[Fraction]) -> str:
        """The inequality that holds at these rates: ``N_e + M >= N``."""
        size = self.at(rates)
        return str(self) if not size else str(self).replace(" = ", " >= " if size > 0 else " <= ")

    def __str__(self) -> str:
        sides = []
        for sign in (1, -1):
            terms = [(abs(a), axis) for a, axis in zip(self.coefficients, PLANE_AXES, strict=True) if a * sign > 0]
            sides.append(" + ".join(axis if a == 1 else f"{a} {axis}" for a, axis in terms) or "0")
        return " = ".join(sides)


def ray_of(rates: Sequence[Fraction]) -> Ray:
    return Ray(dict(zip(PLANE_AXES, rates, strict=True)))


def rates_of(ray: Ray) -> Rates:
    return tuple(ray[axis] for axis in PLANE_AXES)


def cut(corners: Sequence[Rates], wall: Wall, sign: int) -> list[Rates]:
    """What is left of a convex polygon (in order; two corners are a segment) on one side of a wall."""
    kept: list[Rates] = []
    for p, q in pairwise((*corners, corners[0])):
        u, v = sign * wall.at(p), sign * wall.at(q)
        if u >= 0:
            kept.append(p)
        if u * v < 0:
            share = u / (u - v)
            kept.append(tuple(x + share * (y - x) for x, y in zip(p, q, strict=True)))
    return list(dict.fromkeys(kept))
