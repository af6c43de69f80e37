"""The rays next to a ray on which the map has a parameterization, by exact projection.

Rates count relative to the axis that the map holds at 1, so that a ray is a point of the plane. A cell or a piece of a
wall is what some half-planes leave of it. Read next: ``phases.py`` (the map).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations
from typing import TYPE_CHECKING

from scaling_algebra.documents import Document, Rendered
from scaling_algebra.errors import UsageError
from scaling_algebra.solver.demands import Infeasible
from scaling_algebra.solver.newton import Solver
from scaling_algebra.solver.walls import PLANE_AXES, Wall
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.networks.library import MOE_BLOCK

if TYPE_CHECKING:
    from .phases import Phases, Point2

Line = tuple[Fraction, Fraction, Fraction]
"""``a x + b y + c``, in the plane."""


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

    def document(self) -> Document:
        from .presentation import nearest

        return nearest(self)


def nearest(p: Phases, ray: Ray) -> Nearest:
    """Where a parameterization is found next to a ray. Each is solved on its ray, with certificates.

    Raises:
        UsageError: K < M, or the axis that the map holds at 1 does not grow.
    """
    at = p.point(ray)
    if at is None or ray["K"] != ray["M"]:
        (third,) = (axis for axis in PLANE_AXES if axis not in p.plane)
        raise UsageError(f"{ray} is not on this map, which is for K = M and growing {third}")
    regions = [*_cells(p), *_edges(p)]
    found: dict[tuple[bool, bool], Near] = {}
    for where, equal, above in regions:
        for q in _candidates(at, equal, above):
            if any(_at(line, q) < 0 for line in above) or any(_at(line, q) for line in equal):
                continue
            moved = (q[0] != at[0], q[1] != at[1])
            distance = (q[0] - at[0]) ** 2 + (q[1] - at[1]) ** 2
            if moved not in found or distance < found[moved].distance:
                axes = tuple(axis for axis, x in zip(p.plane, moved, strict=True) if x)
                found[moved] = Near(_ray(p, q), axes, where, distance)
    asked = _ray(p, at)
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


def _cells(p: Phases) -> Iterable[tuple[str, list[Line], list[Line]]]:
    for cell in p.cells:
        if cell.scaling is not None:
            middle = _middle(cell.corners)
            sides = [_facing(_line(p, w), middle) for w in p.walls]
            yield f"cell {cell.name}", [], [*sides, *_QUADRANT]


def _edges(p: Phases) -> Iterable[tuple[str, list[Line], list[Line]]]:
    for e in p.edges:
        if e.scaling is not None:
            sides = [_facing(_line(p, w), _middle(e.ends)) for w in p.walls if w != e.wall]
            yield f"wall {e.wall}", [_line(p, e.wall)], [*sides, *_QUADRANT]


_QUADRANT: list[Line] = [(Fraction(1), Fraction(0), Fraction(0)), (Fraction(0), Fraction(1), Fraction(0))]


def _candidates(at: Point2, equal: Sequence[Line], above: Sequence[Line]) -> Iterable[Point2]:
    """The nearest point of a region, and the nearest along each axis, are among these."""
    lines = [*equal, *above]
    if not equal:
        yield at
    for a, b, c in lines:
        size = _at((a, b, c), at)
        yield at[0] - a * size / (a * a + b * b), at[1] - b * size / (a * a + b * b)
        if a:
            yield -(b * at[1] + c) / a, at[1]
        if b:
            yield at[0], -(a * at[0] + c) / b
    for (a, b, c), (d, e, f) in combinations(lines, 2):
        if det := a * e - b * d:
            yield (b * f - c * e) / det, (c * d - a * f) / det


def _at(line: Line, q: Point2) -> Fraction:
    return line[0] * q[0] + line[1] * q[1] + line[2]


def _line(p: Phases, wall: Wall) -> Line:
    found = dict(zip(PLANE_AXES, map(Fraction, wall.coefficients), strict=True))
    x, y = (found.pop(axis) for axis in p.plane)
    return x, y, next(iter(found.values()))


def _facing(line: Line, inside: Point2) -> Line:
    a, b, c = line
    return line if _at(line, inside) > 0 else (-a, -b, -c)


def _middle(points: Sequence[Point2]) -> Point2:
    n = len(points)
    return sum((x for x, _ in points), Fraction(0)) / n, sum((y for _, y in points), Fraction(0)) / n


def _ray(p: Phases, q: Point2) -> Ray:
    rates = dict(zip(p.plane, q, strict=True))
    return Ray({axis: rates.get(axis, Fraction(1)) for axis in PLANE_AXES})
