"""The map of rays: cells on which one closed formula holds, as exact polyhedra, and what happens on their walls.

A formula is in powers of the axes, and the cone of rays on which it meets every demand is proved. The walls of these
cones cut the plane into polygons and themselves into edges. Where a polygon or edge lies in no such cone, the solver
has looked at a ray inside it. Read next: ``covering.py`` (finds the cones), ``presentation.py`` (what the map says),
``picture.py`` (draws it), ``families.py`` (where models lie).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

from scaling_algebra.documents import Document, Rendered
from scaling_algebra.errors import UsageError
from scaling_algebra.proofs.prover import provable
from scaling_algebra.solver.walls import PLANE_AXES, Wall
from scaling_algebra.spec.axes import REGIMES, Ray
from scaling_algebra.spec.configuration import DEFAULT_OPTIMIZER, DEFAULT_PARAMETERIZATION
from scaling_algebra.spec.networks.library import MOE_BLOCK
from scaling_algebra.spec.optimizers import Optimizer
from scaling_algebra.spec.parameterizations import Parameterization
from scaling_algebra.spec.parameterizations import parameterization as _parameterization
from scaling_algebra.spec.scaling import Scaling
from scaling_algebra.spec.trained import OptimizerInput, single

from .covering import SIDE as SIDE
from .covering import Corners, Covering, Found, inside, powers_of
from .covering import Point2 as Point2

if TYPE_CHECKING:
    from .nearest import Nearest


@dataclass(frozen=True)
class Cell:
    """A polygon of the map, and the formula that holds on it.

    Attributes:
        name: A, B, ...; polygons with one formula share it.
        corners: vertices in the plane, in order.
        inequalities: the walls around it with the side it lies on, e.g. ``M + N_e >= N``.
        scaling: the formula; None where the search found none, and then ``why`` says what failed without interventions.
        structure: interventions of the parameterization there.
        ray: a ray inside it, where the solver looked if ``holds`` is not true.
        holds: the formula is proved to meet every demand on all of it.
        also: names of cells whose formula is proved on all of it, too, and another one: there is more than one.
        proved: a ray inside it on which it is proved that no parameterization exists; None where that is open.
    """

    name: str
    corners: Corners
    inequalities: tuple[str, ...]
    scaling: Scaling | None
    structure: str
    why: str
    ray: Ray
    holds: bool
    also: tuple[str, ...] = ()
    proved: Ray | None = None


@dataclass(frozen=True)
class Edge:
    """A piece of a wall between other walls: a parameterization may exist there and on neither side.

    Attributes:
        ends: its end points in the plane. ``ray``: a ray inside it.
        scaling, structure, why, holds: as of a cell; where both its sides have a formula, one of them.
    """

    wall: Wall
    ends: tuple[Point2, Point2]
    ray: Ray
    scaling: Scaling | None
    structure: str
    why: str
    holds: bool


@dataclass(frozen=True, repr=False)
class Phases(Rendered):
    """The map of one parameterization and optimizer.

    Attributes:
        plane: horizontal and vertical axis; the remaining axis has rate 1.
        walls: of every cone on which a formula is proved; where interventions are allowed also those of muP.
        cells: every polygon.
        edges: every piece of a wall.
    """

    parameterization: Parameterization
    optimizer: Optimizer
    plane: tuple[str, str]
    walls: tuple[Wall, ...]
    cells: tuple[Cell, ...]
    edges: tuple[Edge, ...]

    def point(self, ray: Ray) -> Point2 | None:
        """Where a ray lies in the plane; None if the axis of rate 1 does not grow on it."""
        (third,) = (axis for axis in PLANE_AXES if axis not in self.plane)
        return None if not ray[third] else (ray[self.plane[0]] / ray[third], ray[self.plane[1]] / ray[third])

    def near(self, ray: Ray) -> Nearest:
        """Rays next to one that have a parameterization.

        Raises:
            UsageError: K < M, or the axis that the map holds at 1 does not grow.
        """
        from .nearest import nearest

        return nearest(self, ray)

    def walls_of(self, ray: Ray) -> tuple[Wall, ...]:
        """The walls a ray lies on."""
        return tuple(w for w in self.walls if w.at([ray[axis] for axis in PLANE_AXES]) == 0)

    @property
    def about(self) -> str:
        third = next(axis for axis in PLANE_AXES if axis not in self.plane)
        epsilon = "" if self.optimizer.regime is None else f", epsilon {self.optimizer.regime}"
        who = f"{self.parameterization.name}, {self.optimizer.name}{epsilon}"
        return f"{who}: rates of {self.plane[0]} and {self.plane[1]} where {third} = 1 and K = M"

    def document(self) -> Document:
        from .presentation import phases

        return phases(self)


def phases(
    optimizer: OptimizerInput = DEFAULT_OPTIMIZER,
    parameterization: str = DEFAULT_PARAMETERIZATION,
    *,
    plane: tuple[str, str] = ("N_e", "M"),
    prove: bool = False,
    epsilon: str | None = None,
) -> Phases:
    """Cut the plane of rays into cells on which one formula holds.

    Args:
        plane: two of N, N_e, M; the third has rate 1.
        prove: decide by proof, at a ray inside it, whether a cell without a formula has none.
        epsilon: regime of the optimizer's epsilon, ``derived`` (as by default) or ``negligible``.

    Raises:
        UsageError: an unknown name, or a plane that is not two of N, N_e, M.
    """
    rule, stepper = _parameterization(parameterization), single(optimizer, "the map of rays")
    stepper = stepper if epsilon is None else stepper.with_epsilon(epsilon)
    rule.check_derived(MOE_BLOCK)
    if len(set(plane)) != 2 or not set(plane) <= set(PLANE_AXES):
        raise UsageError(f"the plane is {','.join(plane)}; give two of {', '.join(PLANE_AXES)}, for example N_e,M")
    if prove and (reason := provable(MOE_BLOCK, REGIMES["III"], stepper)):
        raise UsageError(f"cannot prove: {reason}")
    found = _phases(rule, stepper, plane)
    if not prove:
        return found
    where = Covering(rule, stepper, plane)
    return replace(
        found, cells=tuple(c if c.scaling else replace(c, proved=where.impossible(c.ray)) for c in found.cells)
    )


def chart(rule: Parameterization, optimizer: Optimizer, plane: tuple[str, str]) -> Phases:
    """The map, made anew."""
    # What interventions allow is looked for on the walls of muP, too: the cells and edges say where it is.
    walls = _phases(_parameterization("mup"), optimizer, plane).walls if rule.structural else ()
    where = Covering(rule, optimizer, plane, walls)
    while True:
        pieces, walls = where.cells(), where.walls
        found = [(w, ends, where.on(ends)) for w in walls for ends in _ends(w, [x for x, _ in pieces], where)]
        if where.walls == walls:  # what is found on an edge may hold on cells, too
            break
    names, cells = dict[object, str](), []
    for _, x in pieces:
        names.setdefault(_key(x), chr(ord("A") + len(names)))
    for corners, x in pieces:
        sides = tuple(w.side(where.rates(inside(corners))) for w in where.walls)
        proved = [names[_key(y)] for y in where.holding(corners)]
        ray = where.ray(inside(corners)) if proved else x.ray
        also = tuple(dict.fromkeys(name for name in proved if name != names[_key(x)]))
        cells.append(Cell(names[_key(x)], corners, sides, x.scaling, x.structure, x.why, ray, bool(proved), also))
    edges = [_edge(w, ends, x, where) for w, ends, x in found]
    return Phases(rule, optimizer, plane, where.walls, tuple(cells), tuple(edges))


_phases = lru_cache(maxsize=16)(chart)


def _key(x: Found) -> object:
    return None if x.scaling is None else (tuple(powers_of(x.scaling)), x.scaling.tied, x.structure)


def _edge(wall: Wall, ends: tuple[Point2, Point2], x: Found, where: Covering) -> Edge:
    return Edge(wall, ends, where.ray(inside(ends)), x.scaling, x.structure, x.why, x in where.holding(ends))


def _ends(wall: Wall, polygons: Iterable[Corners], where: Covering) -> Sequence[tuple[Point2, Point2]]:
    """The sides of cells that lie on a wall, each once."""
    found = {}
    for corners in polygons:
        for p, q in pairwise((*corners, corners[0])):
            if wall.at(where.rates(p)) == wall.at(where.rates(q)) == 0:
                found[frozenset((p, q))] = (min(p, q), max(p, q))
    return sorted(found.values())
