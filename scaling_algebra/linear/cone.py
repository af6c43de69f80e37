"""Cones of rays between some sides, with the rays that span them. A ray is a cone of one dimension."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

from .linear import Linear, Vector, direction, dot

_WEIGHTS = ((3, 5, 7, 11, 13, 17, 19, 23), (13, 7, 11, 3, 5, 23, 17, 19))
"""Of the spanning rays of a cone, for the rays inside it that are solved: they lie on no simple wall."""

Sides = tuple[Linear, ...]


@dataclass(frozen=True)
class Cone:
    """The rays between some sides, walls included.

    Attributes:
        axes: those that grow, in the order of the rates of ``rays``.
        sides: the walls around the cone; none for every ray.
        spanning: the rays that span the cone, where they are known.
    """

    axes: tuple[str, ...]
    sides: Sides = ()
    spanning: tuple[Vector, ...] = field(default=(), compare=False)

    @cached_property
    def rays(self) -> tuple[Vector, ...]:
        """The rays that span the cone."""
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
        """The sides as text, e.g. ``N_e + M >= N``."""
        return tuple(map(str, self.sides))

    def contains(self, rates: Sequence[Fraction | int]) -> bool:
        """Does a ray, by its rates >= 0, lie in the cone, walls included?"""
        sizes = ((side.sense, dot(side.over(self.axes), rates)) for side in self.sides)
        return all(x == 0 if sense == "=" else x >= 0 if sense in (">", ">=") else x <= 0 for sense, x in sizes)

    def between(self, *sides: Linear) -> Cone:
        """The part of the cone that more sides leave."""
        return Cone(self.axes, (*self.sides, *sides))

    def inside(self) -> Iterator[Vector]:
        """Rays inside; none if the whole cone lies on a wall that is not given as one."""
        for weights in _WEIGHTS if self.rays else ():
            pairs = zip((weights[k % len(weights)] for k in range(len(self.rays))), self.rays, strict=True)
            middle = tuple(map(sum, zip(*([w * x for x in r] for w, r in pairs), strict=True)))
            if all(middle) and all(s.sense == "=" or dot(s.over(self.axes), middle) for s in self.sides):
                yield middle

    @property
    def open(self) -> bool:
        """Has the cone an inside?"""
        return next(self.inside(), None) is not None

    def bounded(self) -> Cone:
        """The cone with the sides that bound it alone, without those where a rate is 0."""
        senses = {side.wall_of: side for side in self.sides}
        return Cone(self.axes, tuple(senses[w] for w in bounding(senses, self.axes, self.rays)))

    def without(self, other: Cone) -> list[Cone]:
        """The parts of the cone outside another one, as far as they have an inside, each inside once."""
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
    """Of the walls around a cone those that it lies in, and one along each side, sides where a rate is 0 left out.

    Law: a side is a largest set of spanning rays on one wall that are not all of them.
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
    """The key that walls are sorted by, so that an answer depends on no order of the search."""
    values = wall.over(axes)
    return sum(map(abs, values)), values


def orthant(axes: Sequence[str]) -> list[Vector]:
    """The rays that span all rays: on each, one axis grows."""
    return [tuple(1 if x == axis else 0 for x in axes) for axis in axes]


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
