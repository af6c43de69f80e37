"""A plane of rays, in which one axis has rate 1: rays are points, cones are polygons, walls are lines.

Read next: ``phases.py`` (the map).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from scaling_algebra.linear.linear import Linear
from scaling_algebra.spec.axes import Ray

PLANE_AXES = ("N", "N_e", "M")
"""The axes of rays of the MoE block with K = M."""
SIDE = Fraction(2)
"""The map shows rates from 0 to this."""
Point2 = tuple[Fraction, Fraction]
Corners = tuple[Point2, ...]
_ZERO = Fraction(0)
_SQUARE: Corners = ((_ZERO, _ZERO), (SIDE, _ZERO), (SIDE, SIDE), (_ZERO, SIDE))


@dataclass(frozen=True)
class Plane:
    """Two axes, horizontal and vertical."""

    axes: tuple[str, str]

    @property
    def third(self) -> str:
        """The axis of rate 1."""
        return next(axis for axis in PLANE_AXES if axis not in self.axes)

    def rates(self, p: Point2) -> dict[str, Fraction]:
        """Rates of N, N_e, M."""
        return dict.fromkeys(PLANE_AXES, Fraction(1)) | dict(zip(self.axes, p, strict=True))

    def ray(self, p: Point2) -> Ray:
        return Ray(self.rates(p))

    def point(self, ray: Ray) -> Point2 | None:
        """Where a ray lies; None if the axis of rate 1 does not grow on it."""
        x, y = (ray[axis] for axis in self.axes)
        return (x / ray[self.third], y / ray[self.third]) if ray[self.third] else None

    def size(self, wall: Linear, p: Point2) -> Fraction:
        return wall.at(self.rates(p))

    def polygons(self, walls: Iterable[Linear]) -> list[Corners]:
        """What walls leave of the square that is shown, convex polygons, from left to right."""
        polygons = [_SQUARE]
        for wall in walls:
            polygons = [part for p in polygons for part in self._cut(p, wall)]
        return sorted(polygons, key=inside)

    def ends(self, wall: Linear, polygons: Iterable[Corners]) -> list[tuple[Point2, Point2]]:
        """The sides of polygons that lie on a wall, each once."""
        found = {}
        for corners in polygons:
            for p, q in pairwise((*corners, corners[0])):
                if self.size(wall, p) == self.size(wall, q) == 0:
                    found[frozenset((p, q))] = (min(p, q), max(p, q))
        return sorted(found.values())

    def _cut(self, corners: Corners, wall: Linear) -> list[Corners]:
        """A convex polygon cut along a wall: one or two polygons."""
        parts = []
        for sign in (1, -1):
            kept: list[Point2] = []
            for p, q in pairwise((*corners, corners[0])):
                u, v = sign * self.size(wall, p), sign * self.size(wall, q)
                if u >= 0:
                    kept.append(p)
                if u * v < 0:
                    share = u / (u - v)
                    kept.append((p[0] + share * (q[0] - p[0]), p[1] + share * (q[1] - p[1])))
            if len(set(kept)) > 2:
                parts.append(tuple(dict.fromkeys(kept)))
        return parts


def inside(corners: Sequence[Point2]) -> Point2:
    """A point inside a convex polygon or on an edge, off every simple line: a weighted mean of the corners."""
    weights = [Fraction(1, k + 7) for k in range(len(corners))]
    x, y = (sum((w * c[k] for w, c in zip(weights, corners, strict=True)), _ZERO) / sum(weights) for k in (0, 1))
    return x, y
