"""The map of rays: cells on which one closed formula holds, as exact polyhedra, and what happens on their walls.

A formula is in powers of the axes, and the cone of rays on which it meets every demand is proved. The walls of these
cones cut the plane into polygons and themselves into edges. Where a polygon or edge lies in no such cone, the solver
has looked at a ray inside it. Read next: ``all_rays/covering.py`` (finds the cones), ``plane.py`` (cuts the plane),
``presentation.py`` (what the map says),
``picture.py`` (draws it), ``families.py`` (where models lie).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from scaling_algebra.all_rays.covering import Face, Piece, covering
from scaling_algebra.documents import Rendered
from scaling_algebra.errors import UsageError
from scaling_algebra.linear.cone import simplicity
from scaling_algebra.linear.linear import Linear
from scaling_algebra.proofs.prover import Prover, provable
from scaling_algebra.solver.cones import rays_of
from scaling_algebra.solver.convexity import Looks, cone_holds
from scaling_algebra.solver.demands import Infeasible
from scaling_algebra.solver.newton import Solver
from scaling_algebra.spec.axes import REGIMES, Ray
from scaling_algebra.spec.configuration import DEFAULT_OPTIMIZER, DEFAULT_PARAMETERIZATION
from scaling_algebra.spec.networks.library import MOE_BLOCK
from scaling_algebra.spec.optimizers import Optimizer
from scaling_algebra.spec.parameterizations import Parameterization
from scaling_algebra.spec.parameterizations import parameterization as _parameterization
from scaling_algebra.spec.powers import Power
from scaling_algebra.spec.scaling import Scaling
from scaling_algebra.spec.trained import OptimizerInput, single

from .plane import PLANE_AXES, Corners, Plane, Point2, inside


@dataclass(frozen=True)
class MapCell:
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

    wall: Linear
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
    walls: tuple[Linear, ...]
    cells: tuple[MapCell, ...]
    edges: tuple[Edge, ...]

    def point(self, ray: Ray) -> Point2 | None:
        """Where a ray lies in the plane; None if the axis of rate 1 does not grow on it."""
        return Plane(self.plane).point(ray)

    def walls_of(self, ray: Ray) -> tuple[Linear, ...]:
        """The walls a ray lies on."""
        return tuple(w for w in self.walls if w.at({axis: ray[axis] for axis in PLANE_AXES}) == 0)

    @property
    def about(self) -> str:
        epsilon = "" if self.optimizer.regime is None else f", epsilon {self.optimizer.regime}"
        who = f"{self.parameterization.name}, {self.optimizer.name}{epsilon}"
        return f"{who}: rates of {self.plane[0]} and {self.plane[1]} where {Plane(self.plane).third} = 1 and K = M"


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
    return replace(
        found, cells=tuple(c if c.scaling else replace(c, proved=_impossible(found, c)) for c in found.cells)
    )


def chart(rule: Parameterization, optimizer: Optimizer, plane: tuple[str, str]) -> Phases:
    """The map, made anew."""
    where, face, looks = Plane(plane), Face(MOE_BLOCK, optimizer, rule), Looks()
    pieces = [p for p in covering(face) if p.scaling is not None]
    proved = [p for p in pieces if _holds(p, face, looks)]
    # What interventions allow is looked for on the walls of muP, too: the cells and edges say where it is.
    walls = set(_phases(_parameterization("mup"), optimizer, plane).walls) if rule.structural else set()
    walls |= {side.wall_of for p in proved if p.cone.open for side in p.cone.sides if side.sense != "="}
    ordered = sorted(walls, key=lambda w: (-simplicity(w, PLANE_AXES)[0], w.over(PLANE_AXES)))

    def holding(corners: Corners, among: Sequence[Shown]) -> list[Shown]:
        """What is found on all of a polygon or segment."""
        rates = [tuple(where.rates(p).values()) for p in corners]
        return [x for x in among if x.piece and all(x.piece.cone.contains(r) for r in rates)]

    shown = [Shown(p.scaling, str(p.structure), "", p) for p in pieces]
    sure = [x for x in shown if x.piece in proved]
    polygons = where.polygons(ordered)
    on = [(corners, (holding(corners, [*sure, *shown]) or [_look(face, where, corners)])[0]) for corners in polygons]
    names = dict[object, str]()
    for _, x in on:
        names.setdefault(x.key, chr(ord("A") + len(names)))
    cells = []
    for corners, x in on:
        at, own = inside(corners), names[x.key]
        sides = tuple(str(w.facing(where.size(w, at))) for w in ordered)
        others = [names[y.key] for y in holding(corners, sure) if y.key in names]
        also = tuple(dict.fromkeys(name for name in others if name != own))
        cells.append(MapCell(own, corners, sides, x.scaling, x.structure, x.why, where.ray(at), x in sure, also))
    edges = []
    for w in ordered:
        for ends in where.ends(w, polygons):
            x = min(holding(ends, sure), key=lambda x: x.length, default=None) or _look(face, where, ends)
            edges.append(Edge(w, ends, where.ray(inside(ends)), x.scaling, x.structure, x.why, x in sure))
    return Phases(rule, optimizer, plane, tuple(ordered), tuple(cells), tuple(edges))


_phases = lru_cache(maxsize=16)(chart)


@dataclass(frozen=True)
class Shown:
    """What is found on a polygon or an edge.

    Attributes:
        scaling: the formula; None where there is none, and then ``why`` says what failed without interventions.
        piece: the piece of the covering that it belongs to, if there is one.
    """

    scaling: Scaling | None
    structure: str
    why: str = ""
    piece: Piece | None = None

    @property
    def powers(self) -> list[Power | None]:
        """Every power of the formula, in one order."""
        return [] if self.scaling is None else powers_of(self.scaling)

    @property
    def key(self) -> object:
        """What tells it from other formulas."""
        return None if self.scaling is None else (tuple(self.powers), self.scaling.tied, self.structure)

    @property
    def length(self) -> int:
        return sum(len(x.terms) for x in self.powers if x is not None)


def powers_of(s: Scaling) -> list[Power | None]:
    """Every power of a formula, in one order."""
    return [s.alpha, *(power for t in s.tensors.values() for power in (t.init_std, t.lr, t.eps))]


def _holds(p: Piece, face: Face, looks: Looks) -> bool:
    """Is a formula proved on all of its cone?"""
    assert p.scaling is not None
    return not cone_holds(p.scaling, face.optimizer, face.rule, rays_of(p.cone), p.structure, looks=looks)


def _look(face: Face, where: Plane, corners: Corners) -> Shown:
    """What the search finds on a ray inside a polygon or an edge."""
    try:
        s = Solver(face.network, where.ray(inside(corners)), face.optimizer).solve(face.rule)
    except Infeasible as failure:
        return Shown(None, "", str(failure))
    return Shown(s.scaling, str(s.structure))


def _impossible(p: Phases, cell: MapCell) -> Ray | None:
    """The ray of a cell, if it is proved that nothing meets the demands there."""
    base = p.parameterization.base_structure(p.parameterization.readout_init)
    attempts = Prover(MOE_BLOCK, cell.ray, p.optimizer).attempts(p.parameterization, base)
    return cell.ray if attempts[-1].verdict == "impossible" else None
