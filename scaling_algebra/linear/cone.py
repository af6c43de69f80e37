"""Cones of rays, given by their sides or by the rays that span them. A single ray is a cone of one dimension."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

from .linear import Linear, Vector, direction, dot

_WEIGHTS = ((3, 5, 7, 11, 13, 17, 19, 23), (13, 7, 11, 3, 5, 23, 17, 19))
"""Weights of the spanning rays in an interior ray. They are chosen so that the ray lies on no plane with
small coefficients."""

Sides = tuple[Linear, ...]


@dataclass(frozen=True)
class Cone:
    """A closed cone of rays. A ray is the vector of the rates at which the axes grow, up to a constant.

    Attributes:
        axes: the axes that grow, in the order in which vectors list their rates.
        sides: linear inequalities between the rates that bound the cone; none for the cone of all rays.
        spanning: the rays that span the cone, if they are known; otherwise they are computed from `sides`.
    """

    axes: tuple[str, ...]
    sides: Sides = ()
    spanning: tuple[Vector, ...] = field(default=(), compare=False)

    @cached_property
    def rays(self) -> tuple[Vector, ...]:
        """The rays that span the cone, as vectors of coprime integers."""
        if self.spanning:
            return self.spanning
        walls = [tuple({"K": -1, "M": 1}.get(x, 0) for x in self.axes)] if "K" in self.axes else []
        for side in self.sides:
            turned = side.over(self.axes)
            walls += [turned] if side.sense in (">", ">=", "=") else []
            walls += [tuple(-x for x in turned)] if side.sense in ("<", "<=", "=") else []
        return tuple(corners(orthant(self.axes), walls))

    @property
    def inequalities(self) -> tuple[str, ...]:
        """The sides as text, for example ``N_e + M >= N``."""
        return tuple(map(str, self.sides))

    def contains(self, rates: Sequence[Fraction | int]) -> bool:
        """Returns whether the cone, boundary included, contains the ray with these rates, which must not be
        negative."""
        sizes = ((side.sense, dot(side.over(self.axes), rates)) for side in self.sides)
        return all(x == 0 if sense == "=" else x >= 0 if sense in (">", ">=") else x <= 0 for sense, x in sizes)

    def between(self, *sides: Linear) -> Cone:
        """Returns the part of the cone that satisfies more inequalities, ``sides``."""
        return Cone(self.axes, (*self.sides, *sides))

    def inside(self) -> Iterator[Vector]:
        """Yields several rays in the interior of the cone, on which every rate is positive and every inequality among
        ``sides`` holds strictly; none if there is no such ray. Equations among ``sides`` hold on these rays, too.
        """
        for weights in _WEIGHTS if self.rays else ():
            pairs = zip((weights[k % len(weights)] for k in range(len(self.rays))), self.rays, strict=True)
            middle = tuple(map(sum, zip(*([w * x for x in r] for w, r in pairs), strict=True)))
            if all(middle) and all(s.sense == "=" or dot(s.over(self.axes), middle) for s in self.sides):
                yield middle

    @property
    def open(self) -> bool:
        """True if the cone has an interior: a ray on which all rates are positive and all inequalities strict."""
        return next(self.inside(), None) is not None

    def without_redundant_sides(self) -> Cone:
        """Returns the same cone without inequalities that follow from others, and without those which only say that a
        rate is not negative."""
        senses = {side.wall_of: side for side in self.sides}
        return Cone(self.axes, tuple(senses[w] for w in bounding(senses, self.axes, self.rays)))

    def without(self, other: Cone) -> list[Cone]:
        """Returns those rays of this cone that do not belong to the cone ``other``, as a list of cones with disjoint
        interiors. Parts without an interior are dropped.
        """
        if not self.between(*other.sides).open:
            return [self]
        pieces, kept = [], self
        for side in other.sides:
            if side in self.sides:
                continue
            beyond = kept.between(side.beyond)
            pieces += [beyond] if beyond.open else []
            kept = kept.between(side)
        return pieces

    def __str__(self) -> str:
        return ", ".join(self.inequalities) or "every ray"


def bounding(walls: Collection[Linear], axes: Sequence[str], rays: Sequence[Sequence[int | Fraction]]) -> list[Linear]:
    """Returns the planes that bound a cone, as equations, chosen from ``walls``: those that contain the whole cone, and
    one for each facet. Facets on which a rate is 0 are left out.

    Law: a facet is a maximal set of spanning rays, not all of them, that lie on one plane.

    Args:
        walls: the planes to choose from, as equations.
        axes: the axes.
        rays: the rays that span the cone.
    """
    if not rays:
        return []
    ends = [tuple(r) for r in rays]
    simple = sorted(set(walls), key=lambda w: simplicity(w, axes))
    on = {w: frozenset(r for r in ends if not dot(w.over(axes), r)) for w in simple}
    zero = [frozenset(r for r in ends if not r[k]) for k in range(len(axes))]
    whole = frozenset(ends)
    parts = {x for x in (*on.values(), *zero) if x != whole}
    taken = {x for x in parts if any(x < y for y in parts)} | set(zero)
    kept = [w for w in simple if on[w] == whole]
    for w in simple:
        if on[w] != whole and on[w] not in taken:
            taken.add(on[w])
            kept.append(w)
    return kept


def simplicity(wall: Linear, axes: Sequence[str]) -> tuple[int, Vector]:
    """Returns a sort key for planes, by which the one with the smallest coefficients comes first. Results do not depend
    on the order in which planes were found if they are sorted by it."""
    values = wall.over(axes)
    return sum(map(abs, values)), values


def orthant(axes: Sequence[str]) -> list[Vector]:
    """Returns the rays that span the cone of all rays: the unit vectors, on each of which a single axis grows."""
    return [tuple(1 if x == axis else 0 for x in axes) for axis in axes]


def corners(spanning: Sequence[Vector], inequalities: Iterable[Vector]) -> list[Vector]:
    """Returns the extreme rays of a part of a cone: the part where ``h . r >= 0`` for every given vector ``h``. The
    whole cone is spanned by linearly independent rays.

    Method: double description. Two rays are adjacent if no third ray lies on all faces that they share.

    Args:
        spanning: the rays that span the whole cone, as many as there are dimensions.
        inequalities: normal vectors ``h``.

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
