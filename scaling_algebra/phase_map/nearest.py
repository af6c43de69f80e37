"""The rays next to a ray on which the map has a parameterization, by exact projection.

Rates count relative to the axis that the map holds at 1, so that a ray is a point of the plane. A cell or a piece of a
wall is what some half-planes leave of it. Read next: ``phases.py`` (the map).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations

from scaling_algebra.documents import Rendered
from scaling_algebra.errors import UsageError
from scaling_algebra.linear.linear import Linear
from scaling_algebra.solver.demands import Infeasible
from scaling_algebra.solver.newton import Solver
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.networks.library import MOE_BLOCK

from .phases import Phases
from .plane import Plane, Point2


@dataclass(frozen=True)
class Near:
    """A ray near another one that has a parameterization.

    Attributes:
        moved: the axes whose rates differ.
        where: the cell or wall that it belongs to.
        distance: squared, in the plane.
        structure: interventions of the parameterization that is found there.
    """

    ray: Ray
    moved: tuple[str, ...]
    where: str
    distance: Fraction
    structure: str = ""


@dataclass(frozen=True, repr=False)
class Nearest(Rendered):
    """The rays next to one that have a parameterization.

    Attributes:
        asked: the ray, the axis that the map holds at 1 at rate 1. ``why``: what fails there; empty if nothing does.
        rays: the nearest, and the nearest by each axis of the plane alone; the ray itself if nothing fails there.
    """

    map: Phases
    asked: Ray
    why: str
    rays: tuple[Near, ...]

    @property
    def about(self) -> str:
        return f"{self.map.parameterization.title}, {self.map.optimizer.name}, {self.asked}"


def nearest(p: Phases, ray: Ray) -> Nearest:
    """Where a parameterization is found next to a ray. Each is solved on its ray, with certificates.

    Raises:
        UsageError: K < M, or the axis that the map holds at 1 does not grow.
    """
    at, where = p.point(ray), Plane(p.plane)
    if at is None or ray["K"] != ray["M"]:
        raise UsageError(f"{ray} is not on this map, which is for K = M and growing {where.third}")
    found: dict[tuple[bool, bool], Near] = {}
    for name, sides in (*_cells(p, where), *_edges(p, where)):
        for q in _candidates(at, [side.over((*p.plane, where.third)) for side in sides], sides[0].sense == "="):
            if not all(side.holds(where.rates(q)) for side in sides):
                continue
            moved = (q[0] != at[0], q[1] != at[1])
            distance = (q[0] - at[0]) ** 2 + (q[1] - at[1]) ** 2
            if moved not in found or distance < found[moved].distance:
                axes = tuple(axis for axis, x in zip(p.plane, moved, strict=True) if x)
                found[moved] = Near(where.ray(q), axes, name, distance)
    asked = where.ray(at)
    structure, why = _solved(p, asked)
    if not why:
        return Nearest(p, asked, "", (Near(asked, (), "", Fraction(0), structure),))
    rays = []
    for x in _useful(sorted(found.values(), key=lambda x: x.distance)):
        structure, failure = _solved(p, x.ray)
        rays += [] if failure else [replace(x, structure=structure)]
    return Nearest(p, asked, why, tuple(rays))


# inside ------------------------------------------------------------------------------------------------------------


def _solved(p: Phases, ray: Ray) -> tuple[str, str]:
    """Interventions of the parameterization on a ray, and what fails if there is none."""
    try:
        return str(Solver(MOE_BLOCK, ray, p.optimizer).solve(p.parameterization).structure), ""
    except Infeasible as failure:
        return "", str(failure)


def _useful(rays: Iterable[Near]) -> Iterable[Near]:
    """A ray that moves two axes is worth naming where it is nearer than those that move one."""
    seen: list[Near] = []
    for x in rays:
        if len(x.moved) == 1 or not seen:
            seen.append(x)
            yield x


def _cells(p: Phases, where: Plane) -> Iterable[tuple[str, list[Linear]]]:
    for cell in p.cells:
        if cell.scaling is not None:
            yield f"cell {cell.name}", _around(p, where, cell.corners)


def _edges(p: Phases, where: Plane) -> Iterable[tuple[str, list[Linear]]]:
    for e in p.edges:
        if e.scaling is not None:
            others = [side for side in _around(p, where, e.ends) if side.wall_of != e.wall]
            yield f"wall {e.wall}", [e.wall, *others]


def _around(p: Phases, where: Plane, points: Sequence[Point2]) -> list[Linear]:
    """The sides of walls on which some points lie, and of the quadrant."""
    x, y = (sum((point[k] for point in points), Fraction(0)) / len(points) for k in (0, 1))
    sides = [w.facing(where.size(w, (x, y))) for w in p.walls]
    return [*sides, *(Linear(((axis, 1),), ">=") for axis in p.plane)]


def _candidates(at: Point2, lines: Sequence[tuple[int, ...]], flat: bool) -> Iterable[Point2]:
    """The nearest point of a region, and the nearest along each axis, are among these.

    Args:
        lines: coefficients of both axes, and a constant. flat: the region lies on the first.
    """
    if not flat:
        yield at
    for a, b, c in lines:
        size = a * at[0] + b * at[1] + c
        yield at[0] - a * size / (a * a + b * b), at[1] - b * size / (a * a + b * b)
        if a:
            yield -(b * at[1] + c) / a, at[1]
        if b:
            yield at[0], -(a * at[0] + c) / b
    for (a, b, c), (d, e, f) in combinations(lines, 2):
        if det := a * e - b * d:
            yield Fraction(b * f - c * e, det), Fraction(c * d - a * f, det)
