"""The map of rays: exact polyhedral cells on which one closed formula holds, and the walls between them.

A map is a plane through the cones of a covering: the rays on which N has rate 1. The walls of the cones cut it into
polygons, and cut each other into edges. If a polygon or edge lies in no cone on which a formula is proved, the solver
is applied to one ray inside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

from scaling_algebra.documents import Rendered
from scaling_algebra.linear.cone import Cone, simplicity
from scaling_algebra.linear.linear import Linear
from scaling_algebra.solver.convexity import Looks
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.configuration import DEFAULT_OPTIMIZER, DEFAULT_PARAMETERIZATION
from scaling_algebra.spec.networks.library import MOE_BLOCK
from scaling_algebra.spec.optimizer_reading import OptimizerInput, require_single
from scaling_algebra.spec.optimizers import Optimizer
from scaling_algebra.spec.parameterizations import Parameterization
from scaling_algebra.spec.parameterizations import parameterization as _parameterization
from scaling_algebra.spec.scaling import Scaling

from .covering import Face, Piece, cover_rays

PLANE_AXES = ("N", "N_e", "M")
"""The axes of rays of the MoE block with K = M."""
PLANE = ("N_e", "M")
"""The horizontal and the vertical axis of the map; N has rate 1."""
SIDE = Fraction(2)
"""Largest rate on the map; the smallest is 0."""
Point2 = tuple[Fraction, Fraction]
Corners = tuple[Point2, ...]


@dataclass(frozen=True)
class MapCell:
    """A polygon of the map, or a segment of a wall, with the formula that is valid on it.

    Attributes:
        title: ``cell A``, ``cell B``, ... (polygons with the same formula have the same name), or ``wall M = N``.
        corners: vertices in the plane, in order; for a segment its two ends.
        sides: for every wall the side on which the cell lies, such as ``M + N_e >= N``.
        ray: a ray inside, for which the parameterization was derived if ``holds`` is false.
        scaling: the formula; None if the search found none.
        structure: interventions of the parameterization.
        why: the demand that fails without interventions, if there is no formula.
        holds: whether the formula is proved to meet every demand on the whole cell.
        also: names of cells with another formula that is proved on the whole cell, too.
    """

    title: str
    corners: Corners
    sides: tuple[Linear, ...]
    ray: Ray
    scaling: Scaling | None
    structure: str
    why: str
    holds: bool
    also: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The title without its first word: ``cell A`` -> ``A``, ``wall M = N`` -> ``M = N``."""
        return self.title.partition(" ")[2]

    @property
    def inequalities(self) -> tuple[str, ...]:
        return tuple(map(str, self.sides))


@dataclass(frozen=True, repr=False)
class Phases(Rendered):
    """The map of all rays for one parameterization and optimizer: which formula is valid where.

    It is a plane with the rates of N_e and M as coordinates, for N with rate 1 and K = M.

    Attributes:
        parameterization: the parameterization.
        optimizer: the optimizer.
        walls: lines that cut the plane into cells: the boundaries of all cones on which a formula is proved; if
            interventions are allowed, also those of muP.
        cells: all polygons.
        edges: all pieces of walls. A parameterization may exist on such a piece and on neither side of it.
    """

    parameterization: Parameterization
    optimizer: Optimizer
    walls: tuple[Linear, ...]
    cells: tuple[MapCell, ...]
    edges: tuple[MapCell, ...]

    def at(self, p: Point2) -> Ray:
        """Returns the ray at a point (rate of N_e, rate of M) of the map, where N has rate 1."""
        return Ray(_rates_at(p))

    def point(self, ray: Ray) -> Point2 | None:
        """Returns the point (rate of N_e, rate of M) at which a ray lies on the map; None if N does not grow on it."""
        return (ray["N_e"] / ray["N"], ray["M"] / ray["N"]) if ray["N"] else None

    def walls_of(self, ray: Ray) -> tuple[Linear, ...]:
        """Returns the walls (boundaries between cells) on which a ray lies."""
        return tuple(w for w in self.walls if w.at({axis: ray[axis] for axis in PLANE_AXES}) == 0)

    @property
    def about(self) -> str:
        """Title of the report."""
        epsilon = "" if self.optimizer.regime is None else f", epsilon {self.optimizer.regime}"
        who = f"{self.parameterization.name}, {self.optimizer.name}{epsilon}"
        return f"{who}: map of the rates of N_e and M, for rate 1 of N and K = M"


def phases(
    optimizer: OptimizerInput = DEFAULT_OPTIMIZER,
    parameterization: str = DEFAULT_PARAMETERIZATION,
    *,
    epsilon: str | None = None,
) -> Phases:
    """Cut the plane of rays into cells on which one formula holds.

    Args:
        optimizer: the optimizer.
        parameterization: name of the parameterization.
        epsilon: regime of the optimizer's epsilon, ``derived`` (the default) or ``negligible``.

    Raises:
        UsageError: an unknown name.
    """
    rule, stepper = _parameterization(parameterization), require_single(optimizer, "the map of rays")
    stepper = stepper if epsilon is None else stepper.with_epsilon(epsilon)
    rule.check_derived(MOE_BLOCK)
    return _phases(rule, stepper)


def compute_map(rule: Parameterization, optimizer: Optimizer) -> Phases:
    """Computes the map for a parameterization and optimizer; ``phases`` keeps the result in a cache."""
    face, looks = Face(MOE_BLOCK, optimizer, rule), Looks()
    pieces = [p for p in cover_rays(face) if p.scaling is not None]
    sure = [p for p in pieces if _is_proved(p, face, looks)]
    # With interventions, parameterizations may also exist on the walls of muP, so these are searched as well.
    walls = set(_phases(_parameterization("mup"), optimizer).walls) if rule.structural else set()
    walls |= {side.wall_of for p in sure if p.cone.open for side in p.cone.sides if side.sense != "="}
    ordered = sorted(walls, key=lambda w: (-simplicity(w, PLANE_AXES)[0], w.over(PLANE_AXES)))

    def holding(corners: Corners, among: Iterable[Piece]) -> list[Piece]:
        """Returns those pieces in ``among`` whose cone contains a whole polygon or segment, given by its corners."""
        rates = [tuple(_rates_at(p).values()) for p in corners]
        return [x for x in among if all(x.cone.contains(r) for r in rates)]

    def cell(title: str, corners: Corners, x: Piece, why: str, also: tuple[str, ...] = ()) -> MapCell:
        sizes = _rates_at(find_inner_point(corners))
        sides = tuple(w.facing(w.at(sizes)) for w in ordered)
        structure = "" if x.scaling is None else str(x.structure)
        return MapCell(title, corners, sides, Ray(sizes), x.scaling, structure, why, x in sure, also)

    def look(corners: Corners) -> tuple[Piece, str]:
        """Derives the parameterization on a ray inside a polygon or segment.

        Returns:
            The piece with the formula found there, and "". If none was found: the piece without a formula, and the
            reason.
        """
        solution, why = face.solve(Ray(_rates_at(find_inner_point(corners))))
        nothing = Cone(PLANE_AXES)
        return Piece(nothing) if solution is None else Piece(nothing, solution.scaling, solution.structure), why

    polygons = _cut_into_polygons(ordered)
    on = [(x, next(((p, "") for p in holding(x, [*sure, *pieces])), None) or look(x)) for x in polygons]
    keys = list(dict.fromkeys(_formula_key(x) for _, (x, _) in on))
    names = {key: chr(ord("A") + k) for k, key in enumerate(keys)}
    cells, edges = [], []
    for corners, (x, why) in on:
        others = (names.get(_formula_key(y), "") for y in holding(corners, sure) if _formula_key(y) != _formula_key(x))
        also = tuple(dict.fromkeys(filter(None, others)))
        cells.append(cell(f"cell {names[_formula_key(x)]}", corners, x, why, also))
    for w in ordered:
        for ends in _find_wall_segments(w, polygons):
            piece = min(holding(ends, sure), key=_count_powers, default=None)
            edges.append(cell(f"wall {w}", ends, *((piece, "") if piece else look(ends))))
    return Phases(rule, optimizer, tuple(ordered), tuple(cells), tuple(edges))


_phases = lru_cache(maxsize=16)(compute_map)


def find_inner_point(corners: Sequence[Point2]) -> Point2:
    """Returns a point inside a convex polygon or segment, given by its corners.

    It is a mean of the corners with unequal weights, so that it is unlikely to lie on a line on which the formulas
    change.
    """
    weights = [Fraction(1, k + 7) for k in range(len(corners))]
    x, y = (sum((w * c[k] for w, c in zip(weights, corners, strict=True)), Fraction(0)) / sum(weights) for k in (0, 1))
    return x, y


def mean_corner(corners: Sequence[Point2]) -> Point2:
    """Returns the mean of the corners."""
    x, y = (sum(values, Fraction(0)) / len(corners) for values in zip(*corners, strict=True))
    return x, y


# inside ------------------------------------------------------------------------------------------------------------


def _is_proved(p: Piece, face: Face, looks: Looks) -> bool:
    """Tests whether the formula of a piece is proved to meet every demand on the whole cone of this piece.

    Args:
        p: the cone with its formula.
        face: network, parameterization and optimizer.
        looks: computes sizes on single rays, with a cache.
    """
    assert p.scaling is not None
    return not face.fails(p.scaling, p.structure, p.cone.rays, looks=looks)


def _formula_key(x: Piece) -> str:
    """Returns a text that is equal for two pieces exactly if their formulas are equal."""
    return "" if x.scaling is None else f"{x.scaling} {x.structure}"


def _count_powers(x: Piece) -> int:
    """Counts the factors (powers of an axis) in the formula of a piece, a measure of its length."""
    assert x.scaling is not None
    powers = [x.scaling.alpha, *(p for t in x.scaling.tensors.values() for p in (t.init_std, t.lr, t.eps))]
    return sum(len(p.terms) for p in powers if p is not None)


def _rates_at(p: Point2) -> dict[str, Fraction]:
    """Returns the rates of N, N_e and M at a point of the plane, where N has rate 1."""
    return dict(zip(PLANE_AXES, (Fraction(1), *p), strict=True))


def _cut_into_polygons(walls: Iterable[Linear]) -> list[Corners]:
    """Cuts the square of the map along walls into convex polygons, and returns their corners, from left to right."""
    zero = Fraction(0)
    polygons: list[Corners] = [((zero, zero), (SIDE, zero), (SIDE, SIDE), (zero, SIDE))]
    for wall in walls:
        polygons = [part for p in polygons for part in _cut_polygon(p, wall)]
    return sorted(polygons, key=find_inner_point)


def _find_wall_segments(wall: Linear, polygons: Iterable[Corners]) -> list[Corners]:
    """Returns the ends of all sides of polygons that lie on a wall; a side of two polygons occurs once."""
    on = [[p for p in x if wall.at(_rates_at(p)) == 0] for x in polygons]
    return sorted({tuple(sorted(x)) for x in on if len(x) == 2})


def _cut_polygon(corners: Corners, wall: Linear) -> list[Corners]:
    """Cuts a convex polygon along a wall into one or two polygons."""
    sizes = [wall.at(_rates_at(p)) for p in corners]
    parts = []
    for sign in (1, -1):
        kept: list[Point2] = []
        for (p, u), (q, v) in pairwise([*zip(corners, sizes, strict=True), (corners[0], sizes[0])]):
            if sign * u >= 0:
                kept.append(p)
            if u * v < 0:
                share = u / (u - v)
                kept.append((p[0] + share * (q[0] - p[0]), p[1] + share * (q[1] - p[1])))
        if len(set(kept)) > 2:
            parts.append(tuple(dict.fromkeys(kept)))
    return parts
