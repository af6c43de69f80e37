"""Covers the plane of rays with cones on which a formula is proved, and remembers where no formula was found.

Where a piece of the plane is in no cone yet, the solver is run on a ray inside it; the cone of what it finds
(``solver/cones.py``) brings its walls, and these cut the plane into smaller pieces, until each lies in a cone or has a
ray inside on which nothing was found. Read next: ``phases.py`` (the map).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

from scaling_algebra.proofs.prover import Prover
from scaling_algebra.solver.cones import Cone, cone
from scaling_algebra.solver.convexity import Looks
from scaling_algebra.solver.demands import Infeasible
from scaling_algebra.solver.newton import Solver
from scaling_algebra.solver.walls import PLANE_AXES, Rates, Wall, ray_along
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.networks.library import MOE_BLOCK
from scaling_algebra.spec.optimizers import Optimizer
from scaling_algebra.spec.parameterizations import Parameterization
from scaling_algebra.spec.powers import Power
from scaling_algebra.spec.scaling import Scaling

SIDE = Fraction(2)
"""The map shows rates from 0 to this."""
Point2 = tuple[Fraction, Fraction]
Corners = tuple[Point2, ...]
_ZERO = Fraction(0)
_SQUARE: Corners = ((_ZERO, _ZERO), (SIDE, _ZERO), (SIDE, SIDE), (_ZERO, SIDE))


@dataclass(frozen=True)
class Found:
    """What the solver found on one ray.

    Attributes:
        scaling: the formula; None where there is none, and then ``why`` says what failed without interventions.
        structure: interventions of the parameterization.
        cone: rays on which the formula is proved to meet every demand; None where that is proved of no cone.
    """

    ray: Ray
    scaling: Scaling | None
    structure: str
    why: str
    cone: Cone | None = None


class Covering:
    """What is known of the rays of a plane.

    Attributes:
        walls: every wall of a cone, and those that were given.
    """

    def __init__(
        self, rule: Parameterization, optimizer: Optimizer, plane: tuple[str, str], walls: Sequence[Wall] = ()
    ) -> None:
        self.rule, self.optimizer, self.plane, self.walls = rule, optimizer, plane, _sorted(walls)
        self._found: list[Found] = []
        self._looks = Looks()

    def rates(self, p: Point2) -> Rates:
        """Rates of N, N_e, M."""
        found = dict(zip(self.plane, p, strict=True))
        return tuple(found.get(axis, Fraction(1)) for axis in PLANE_AXES)

    def ray(self, p: Point2) -> Ray:
        return ray_along(PLANE_AXES, self.rates(p))

    def cells(self) -> list[tuple[Corners, Found]]:
        """Every polygon that the walls leave of the plane, and what is found there."""
        while True:
            polygons = sorted(self._polygons(), key=inside)
            known = [self._known(corners) for corners in polygons]
            if None not in known:
                return [(corners, x) for corners, x in zip(polygons, known, strict=True) if x is not None]
            self._look(inside(polygons[known.index(None)]))

    def on(self, ends: Corners) -> Found:
        """What is found on a piece of a wall: the simplest formula of the cones that hold it, else that of a ray."""
        return min(self.holding(ends), key=_length, default=None) or self._look(inside(ends))

    def holding(self, corners: Corners) -> list[Found]:
        """The formulas that are proved to hold on all of a polygon or segment."""
        return [x for x in self._found if x.cone and all(x.cone.contains(self.rates(p)) for p in corners)]

    def impossible(self, ray: Ray) -> Ray | None:
        """The ray, if it is proved that nothing meets the demands there."""
        base = self.rule.base_structure(self.rule.readout_init)
        attempts = Prover(MOE_BLOCK, ray, self.optimizer).attempts(self.rule, base)
        return ray if attempts[-1].verdict == "impossible" else None

    def _known(self, corners: Corners) -> Found | None:
        """What is known of a polygon: the formula of a cone that holds it, or what was found at a ray inside it."""
        known = (*self.holding(corners), *(x for x in self._found if self._contains(corners, x.ray)))
        return known[0] if known else None

    def _look(self, p: Point2) -> Found:
        ray = self.ray(p)
        try:
            s = Solver(MOE_BLOCK, ray, self.optimizer).solve(self.rule)
            holds = cone(s.scaling, self.optimizer, self.rule, s.structure, ray, self._looks)
            self._found.append(Found(ray, s.scaling, str(s.structure), "", holds))
            walls = holds.walls if holds and len(holds.rays) >= len(PLANE_AXES) else ()
            self.walls = _sorted((*self.walls, *walls))
        except Infeasible as failure:
            self._found.append(Found(ray, None, "", str(failure)))
        return self._found[-1]

    def _contains(self, corners: Corners, ray: Ray) -> bool:
        """Is a ray on the same side of every wall as a polygon?"""
        mine, its = self.rates(inside(corners)), [ray[axis] for axis in PLANE_AXES]
        return all(w.at(mine) * w.at(its) > 0 for w in self.walls)

    def _polygons(self) -> list[Corners]:
        polygons = [_SQUARE]
        for wall in self.walls:
            polygons = [part for p in polygons for part in self._cut(p, wall)]
        return polygons

    def _cut(self, corners: Corners, wall: Wall) -> list[Corners]:
        """A convex polygon cut along a wall: one or two polygons."""
        parts = []
        for sign in (1, -1):
            kept: list[Point2] = []
            for p, q in pairwise((*corners, corners[0])):
                u, v = sign * wall.at(self.rates(p)), sign * wall.at(self.rates(q))
                if u >= 0:
                    kept.append(p)
                if u * v < 0:
                    share = u / (u - v)
                    kept.append((p[0] + share * (q[0] - p[0]), p[1] + share * (q[1] - p[1])))
            if len(set(kept)) > 2:
                parts.append(tuple(dict.fromkeys(kept)))
        return parts


def _sorted(walls: Iterable[Wall]) -> tuple[Wall, ...]:
    """In an order that does not depend on which was found first."""
    return tuple(sorted(set(walls), key=lambda w: (-sum(map(abs, w.coefficients)), w.coefficients)))


def inside(corners: Sequence[Point2]) -> Point2:
    """A point inside a convex polygon or on an edge, off every simple line: a weighted mean of the corners."""
    weights = [Fraction(1, k + 7) for k in range(len(corners))]
    total = sum(weights)
    x = sum((w * c[0] for w, c in zip(weights, corners, strict=True)), _ZERO) / total
    y = sum((w * c[1] for w, c in zip(weights, corners, strict=True)), _ZERO) / total
    return x, y


def powers_of(s: Scaling) -> list[Power | None]:
    """Every power of a formula, in one order."""
    found: list[Power | None] = [s.alpha]
    for t in s.tensors.values():
        found += [t.init_std, t.lr, t.eps]
    return found


def _length(found: Found) -> int:
    return 0 if found.scaling is None else sum(len(x.terms) for x in powers_of(found.scaling) if x is not None)
