"""The map of rays: cells on which one closed formula holds, as exact polyhedra, and what happens on their walls.

At a generic ray the axes can be told apart, so a solution there is a formula in powers of the axes. Two neighbouring
formulas agree on a wall, a linear equation between the rates; the walls cut the plane into polygons and themselves into
edges, and each is solved once more at an interior point. Read next: ``presentation.py`` (what the map says),
``picture.py`` (draws it), ``families.py`` (where models lie).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

from scaling_algebra.documents import Document, Rendered
from scaling_algebra.dynamics.analysis import Analysis
from scaling_algebra.errors import UsageError
from scaling_algebra.proofs.prover import Prover, provable
from scaling_algebra.solver.cones import PLANE_AXES, Wall
from scaling_algebra.solver.demands import HORIZON, Infeasible
from scaling_algebra.solver.newton import Solver
from scaling_algebra.spec.axes import REGIMES, Ray
from scaling_algebra.spec.configuration import DEFAULT_OPTIMIZER, DEFAULT_PARAMETERIZATION
from scaling_algebra.spec.desiderata import Structure
from scaling_algebra.spec.networks.library import MOE_BLOCK
from scaling_algebra.spec.optimizers import Optimizer
from scaling_algebra.spec.optimizers import optimizer as _optimizer
from scaling_algebra.spec.parameterizations import Parameterization
from scaling_algebra.spec.parameterizations import parameterization as _parameterization
from scaling_algebra.spec.powers import Power
from scaling_algebra.spec.scaling import Scaling

if TYPE_CHECKING:
    from .nearest import Nearest

SIDE = Fraction(2)
"""The map shows rates from 0 to this."""
_GRID = 9
Point2 = tuple[Fraction, Fraction]


@dataclass(frozen=True)
class Cell:
    """A polygon of the map, and the formula that holds on it.

    Attributes:
        name: A, B, ...; polygons with one formula share it.
        corners: vertices in the plane, in order.
        inequalities: the walls around it with the side it lies on, e.g. ``M + N_e >= N``.
        scaling: the formula; None where the search found none, and then ``why`` says what failed without interventions.
        structure: interventions of the parameterization there.
        found: at how many of the sampled rays inside the search found a parameterization.
        proved: a ray inside it on which it is proved that no parameterization exists; None where that is open.
    """

    name: str
    corners: tuple[Point2, ...]
    inequalities: tuple[str, ...]
    scaling: Scaling | None
    structure: str
    why: str
    found: tuple[int, int]
    proved: Ray | None = None


@dataclass(frozen=True)
class Edge:
    """A piece of a wall between other walls: a parameterization may exist there and on neither side.

    Attributes:
        ends: its end points in the plane. ``ray``: a ray inside it, where ``scaling`` was solved.
    """

    wall: Wall
    ends: tuple[Point2, Point2]
    ray: Ray
    scaling: Scaling | None
    structure: str
    why: str


@dataclass(frozen=True, repr=False)
class Phases(Rendered):
    """The map of one parameterization and optimizer.

    Attributes:
        plane: horizontal and vertical axis; the remaining axis has rate 1.
        walls: every wall that separates two formulas.
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
    optimizer: str = DEFAULT_OPTIMIZER,
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
    rule, stepper = _parameterization(parameterization), _optimizer(optimizer)
    stepper = stepper if epsilon is None else stepper.with_epsilon(epsilon)
    rule.check_derived(MOE_BLOCK)
    if len(set(plane)) != 2 or not set(plane) <= set(PLANE_AXES):
        raise UsageError(f"the plane is {','.join(plane)}; give two of {', '.join(PLANE_AXES)}, for example N_e,M")
    if prove and (reason := provable(MOE_BLOCK, REGIMES["III"], stepper)):
        raise UsageError(f"cannot prove: {reason}")
    found = _phases(rule, stepper, plane)
    if not prove:
        return found
    where = _Plane(rule, stepper, plane)
    cells = [c if c.scaling else replace(c, proved=where.impossible(_inside(c.corners))) for c in found.cells]
    return replace(found, cells=tuple(cells))


@lru_cache(maxsize=16)
def _phases(rule: Parameterization, optimizer: Optimizer, plane: tuple[str, str]) -> Phases:
    where = _Plane(rule, optimizer, plane)
    if rule.structural:  # on walls of muP, if anywhere: the cells and edges say where
        walls = _phases(_parameterization("mup"), optimizer, plane).walls
    else:
        crossed = (where.wall(left, right) for left, right in _neighbours())
        walls = tuple(dict.fromkeys(w for w in crossed if w is not None))
    square: tuple[Point2, ...] = ((Fraction(0), Fraction(0)), (SIDE, Fraction(0)), (SIDE, SIDE), (Fraction(0), SIDE))
    polygons = [square]
    for w in walls:
        polygons = [part for p in polygons for part in _cut(p, w, where)]
    names: dict[object, str] = {}
    cells = []
    for corners in sorted(polygons, key=_inside):
        inside = [p for p in (_inside(corners), *where.known()) if _contains(corners, p, where, walls)]
        solved = [p for p in inside if where.solve(p)[0] is not None]
        scaling, structure, why = where.solve(solved[0] if solved else inside[0])
        name = names.setdefault((_key(scaling), structure), chr(ord("A") + len(names)))
        sides = tuple(w.side(where.rates(inside[0])) for w in walls)
        cells.append(Cell(name, corners, sides, scaling, structure, why, (len(solved), len(inside))))
    edges = [Edge(w, ends, *where.on(ends)) for w in walls for ends in _edges(w, cells, where)]
    return Phases(rule, optimizer, plane, walls, tuple(cells), tuple(edges))


class _Plane:
    """Solves at points of the plane."""

    def __init__(self, rule: Parameterization, optimizer: Optimizer, plane: tuple[str, str]) -> None:
        self.rule, self.optimizer, self.plane = rule, optimizer, plane
        self._known: dict[Point2, tuple[Scaling | None, str, str]] = {}

    def rates(self, p: Point2) -> list[Fraction]:
        """Rates of N, N_e, M."""
        found = dict(zip(self.plane, p, strict=True))
        return [found.get(axis, Fraction(1)) for axis in PLANE_AXES]

    def solve(self, p: Point2) -> tuple[Scaling | None, str, str]:
        if p not in self._known:
            ray = Ray(dict(zip(PLANE_AXES, self.rates(p), strict=True)))
            try:
                s = Solver(MOE_BLOCK, ray, self.optimizer).solve(self.rule)
                self._known[p] = (s.scaling, str(s.structure), "")
            except Infeasible as failure:
                self._known[p] = (None, "", str(failure))
        return self._known[p]

    def impossible(self, p: Point2) -> Ray | None:
        """The ray of a point, if it is proved that nothing meets the demands there."""
        ray = Ray(dict(zip(PLANE_AXES, self.rates(p), strict=True)))
        base = self.rule.base_structure(self.rule.readout_init)
        attempts = Prover(MOE_BLOCK, ray, self.optimizer).attempts(self.rule, base)
        return ray if attempts[-1].verdict == "impossible" else None

    def known(self) -> list[Point2]:
        """Points solved so far."""
        return list(self._known)

    def on(self, ends: tuple[Point2, Point2]) -> tuple[Ray, Scaling | None, str, str]:
        """The ray at an interior point of an edge, and what is found there."""
        middle = _inside(ends)
        ray = Ray(dict(zip(PLANE_AXES, self.rates(middle), strict=True)))
        return (ray, *self.solve(middle))

    def wall(self, left: Point2, right: Point2) -> Wall | None:
        """Where the formulas of two points agree, if that lies between them."""
        a, b = self.solve(left)[0], self.solve(right)[0]
        if a is None or b is None:
            inside, outside = (left, right) if b is None else (right, left)
            formula = a or b
            return None if formula is None else self._border(formula, inside, outside)
        if _key(a) == _key(b):
            return None
        for x, y in zip(_powers(a), _powers(b), strict=True):
            if x is None or y is None or x == y:
                continue
            difference = [(x + -y)[axis] for axis in PLANE_AXES]
            wall = Wall.of(difference)
            if wall.at(self.rates(left)) * wall.at(self.rates(right)) < 0:
                return wall
        return None

    def _border(self, formula: Scaling, inside: Point2, outside: Point2) -> Wall | None:
        """Where a formula ends and none begins: of the demands it breaks outside, the one it breaks first.

        Law: at a formula every size is a maximum of linear functions of the rates (``cone_holds``).
        """
        ray = Ray(dict(zip(PLANE_AXES, self.rates(outside), strict=True)))
        look = Analysis(ray, formula.point(ray), self.optimizer, MOE_BLOCK)
        found: list[tuple[Fraction, Wall]] = []
        for demand in self.rule.demanded(MOE_BLOCK, Structure()):
            for name in demand.quantities if demand.kind in ("theta", "bounded") else ():
                for answer in (look.lower(name, t) for t in range(HORIZON + 2)):
                    if answer.size is None or answer.form is None or answer.size <= 0:
                        continue
                    wall = Wall.of([formula.size(answer.form)[axis] for axis in PLANE_AXES])
                    near, far = (abs(wall.at(self.rates(p))) for p in (inside, outside))
                    if wall.at(self.rates(inside)) * wall.at(self.rates(outside)) < 0:
                        found.append((near / (near + far), wall))
        return min(found, key=lambda x: x[0])[1] if found else None


def _neighbours() -> Iterable[tuple[Point2, Point2]]:
    """Pairs of neighbouring points of a grid that lies on no simple line."""
    step = SIDE / _GRID
    points = [
        [(step * i + step * Fraction(3, 7), step * j + step * Fraction(5, 11)) for j in range(_GRID)]
        for i in range(_GRID)
    ]
    for row in points:
        yield from pairwise(row)
    for row, following in pairwise(points):
        yield from zip(row, following, strict=True)


def _powers(s: Scaling) -> list[Power | None]:
    found: list[Power | None] = [s.alpha]
    for t in s.tensors.values():
        found += [t.init_std, t.lr, t.eps]
    return found


def _key(s: Scaling | None) -> object:
    return None if s is None else (tuple(_powers(s)), s.tied)


def _cut(corners: tuple[Point2, ...], wall: Wall, where: _Plane) -> list[tuple[Point2, ...]]:
    """A convex polygon cut along a wall: one or two polygons."""
    parts = []
    for sign in (1, -1):
        kept: list[Point2] = []
        for p, q in pairwise((*corners, corners[0])):
            u, v = sign * wall.at(where.rates(p)), sign * wall.at(where.rates(q))
            if u >= 0:
                kept.append(p)
            if u * v < 0:
                share = u / (u - v)
                kept.append((p[0] + share * (q[0] - p[0]), p[1] + share * (q[1] - p[1])))
        if len(set(kept)) > 2:
            parts.append(tuple(dict.fromkeys(kept)))
    return parts


def _inside(corners: Sequence[Point2]) -> Point2:
    """A point inside a convex polygon or on an edge, off every simple line: a weighted mean of the corners."""
    weights = [Fraction(1, k + 7) for k in range(len(corners))]
    total = sum(weights)
    x = sum((w * c[0] for w, c in zip(weights, corners, strict=True)), Fraction(0)) / total
    y = sum((w * c[1] for w, c in zip(weights, corners, strict=True)), Fraction(0)) / total
    return x, y


def _contains(corners: Sequence[Point2], p: Point2, where: _Plane, walls: Iterable[Wall]) -> bool:
    """Is p on the same side of every wall as the polygon?"""
    mine, its = where.rates(_inside(corners)), where.rates(p)
    return all(w.at(mine) * w.at(its) > 0 for w in walls)


def _edges(wall: Wall, cells: Sequence[Cell], where: _Plane) -> list[tuple[Point2, Point2]]:
    """The sides of cells that lie on a wall, each once."""
    found = {}
    for cell in cells:
        for p, q in pairwise((*cell.corners, cell.corners[0])):
            if wall.at(where.rates(p)) == wall.at(where.rates(q)) == 0:
                found[frozenset((p, q))] = (min(p, q), max(p, q))
    return sorted(found.values())
