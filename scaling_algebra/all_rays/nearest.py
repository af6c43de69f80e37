"""The rays next to a ray on which the map has a parameterization, by exact projection.

Rates count relative to the axis that the map holds at 1, so that a ray is a point of the plane. A cell or a piece of a
wall is a cone. Read next: ``phases.py`` (the map).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction

from scaling_algebra.documents import Rendered
from scaling_algebra.errors import UsageError
from scaling_algebra.linear.cone import Cone
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.networks.library import MOE_BLOCK

from .covering import Face
from .phases import Phases, Point2


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
        ray: the one asked about, the map's third axis at rate 1. why: what fails there; empty if nothing does.
        rays: the nearest, and the nearest by each axis of the plane alone; the ray itself if nothing fails there.
    """

    map: Phases
    ray: Ray
    why: str
    rays: tuple[Near, ...]

    @property
    def about(self) -> str:
        return f"{self.map.parameterization.title}, {self.map.optimizer.name}, {self.ray}"


def nearest(p: Phases, ray: Ray) -> Nearest:
    """The rays next to a ray that have a parameterization, each solved with certificates.

    Raises:
        UsageError: K < M, or the axis that the map holds at 1 does not grow.
    """
    at, axes = p.point(ray), (*p.plane, p.third)
    if at is None or ray["K"] != ray["M"]:
        raise UsageError(f"{ray} is not on this map, which is for K = M and growing {p.third}")
    face, start = Face(MOE_BLOCK, p.optimizer, p.parameterization), p.at(at)
    solution, why = face.solve(start)
    if solution is not None:
        return Nearest(p, start, "", (Near(start, (), "", Fraction(0), str(solution.structure)),))
    by_moved: dict[tuple[str, ...], Near] = {}
    for cell in (c for c in (*p.cells, *p.edges) if c.scaling is not None):
        region = Cone(axes, cell.sides)
        for q in (x for x in _candidates(at, region) if min(x) >= 0 and region.contains((*x, 1))):
            moved = tuple(axis for axis, old, new in zip(p.plane, at, q, strict=True) if old != new)
            distance = (q[0] - at[0]) ** 2 + (q[1] - at[1]) ** 2
            if moved not in by_moved or distance < by_moved[moved].distance:
                by_moved[moved] = Near(p.at(q), moved, cell.title, distance)
    rays = []
    for k, x in enumerate(sorted(by_moved.values(), key=lambda x: x.distance)):
        # A ray that moves two axes is worth naming where it is nearer than those that move one.
        solution = face.solve(x.ray)[0] if len(x.moved) == 1 or not k else None
        rays += [] if solution is None else [replace(x, structure=str(solution.structure))]
    return Nearest(p, start, why, tuple(rays))


def _candidates(at: Point2, region: Cone) -> Iterable[Point2]:
    """The nearest point of a region, and the nearest along each axis, are among these; so are points outside of it."""
    yield at
    for a, b, c in (*(side.over(region.axes) for side in region.sides), *((1, 0, 0), (0, 1, 0))):
        size = a * at[0] + b * at[1] + c
        yield at[0] - a * size / (a * a + b * b), at[1] - b * size / (a * a + b * b)
        if a:
            yield -(b * at[1] + c) / a, at[1]
        if b:
            yield at[0], -(a * at[0] + c) / b
    yield from ((Fraction(x, one), Fraction(y, one)) for x, y, one in region.rays if one)
