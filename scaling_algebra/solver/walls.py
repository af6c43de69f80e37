"""Walls between cones of rays, and what a wall leaves of a cone.

Read next: ``cones.py`` (the cone of a formula).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm

from scaling_algebra.spec.axes import AXES, Ray
from scaling_algebra.spec.networks.language import Network

from .polyhedra import Vector

PLANE_AXES = ("N", "N_e", "M")
"""The axes of rays of the MoE block with K = M."""
Rates = tuple[Fraction, ...]
"""Of the axes that grow, in their order."""


@dataclass(frozen=True)
class Wall:
    """A linear equation ``sum of coefficient * rate = 0``: coprime integers in the order of the axes."""

    coefficients: tuple[int, ...]
    axes: tuple[str, ...] = PLANE_AXES

    @classmethod
    def of(cls, coefficients: Sequence[Fraction], axes: tuple[str, ...] = PLANE_AXES) -> Wall:
        scale = lcm(*(c.denominator for c in coefficients))
        whole = [int(c * scale) for c in coefficients]
        common = gcd(*whole)
        sign = 1 if next(c for c in reversed(whole) if c) > 0 else -1
        return cls(tuple(sign * c // common for c in whole), axes)

    def at(self, rates: Sequence[Fraction | int]) -> Fraction:
        return sum((Fraction(a) * r for a, r in zip(self.coefficients, rates, strict=True)), Fraction(0))

    def side(self, rates: Sequence[Fraction]) -> str:
        """The inequality that holds at these rates: ``N_e + M >= N``."""
        size = self.at(rates)
        return str(self) if not size else str(self).replace(" = ", " >= " if size > 0 else " <= ")

    def __str__(self) -> str:
        sides = []
        for sign in (1, -1):
            terms = [(abs(a), axis) for a, axis in zip(self.coefficients, self.axes, strict=True) if a * sign > 0]
            sides.append(" + ".join(axis if a == 1 else f"{a} {axis}" for a, axis in terms) or "0")
        return " = ".join(sides)


def open_axes(network: Network, fixed: Collection[str] = (), routed: bool = False) -> tuple[str, ...]:
    """The axes of a network that grow, K with M; ``routed``: K is an axis of its own."""
    own = {*network.axes.values(), *("K" for _ in range(routed))}
    return tuple(axis for axis in AXES if axis in own and axis not in fixed)


def routing(axes: Sequence[str]) -> list[Vector]:
    """Where K is an axis of its own: K <= M."""
    return [tuple((axis == "M") - (axis == "K") for axis in axes)] if "K" in axes else []


def orthant(axes: Sequence[str]) -> list[Vector]:
    """The rays that span all rays: on each, one axis grows."""
    return [tuple(int(i == j) for j in range(len(axes))) for i in range(len(axes))]


def ray_along(axes: Sequence[str], rates: Sequence[int | Fraction], fixed: Collection[str] = ()) -> Ray:
    """The ray of some rates."""
    grown = {axis: Fraction(rate) for axis, rate in zip(axes, rates, strict=True)}
    return Ray({axis: grown.get(axis, Fraction(0)) for axis in AXES if axis in grown or axis in fixed})


def bounding(walls: Collection[Wall], rays: Sequence[Sequence[int | Fraction]]) -> list[Wall]:
    """Of the walls around a cone those that it lies in, and one along each side, sides where a rate is 0 left out.

    Law: a side is a largest set of spanning rays on one wall that are not all of them.
    """
    if not rays:
        return []
    corners = [tuple(r) for r in rays]
    simple = sorted(set(walls), key=lambda w: (sum(map(abs, w.coefficients)), w.coefficients))
    on = {w: frozenset(r for r in corners if not w.at(r)) for w in simple}
    zero = [frozenset(r for r in corners if not r[k]) for k in range(len(corners[0]))]
    whole = frozenset(corners)
    parts = {x for x in (*on.values(), *zero) if x != whole}
    taken = {x for x in parts if any(x < y for y in parts)} | set(zero)
    found = [w for w in simple if on[w] == whole]
    for w in simple:
        if on[w] != whole and on[w] not in taken:
            taken.add(on[w])
            found.append(w)
    return found
