"""Cones of rays on which one formula meets every demand: found by cutting, proved by convexity.

At a scaling that is linear in the rates every size is a maximum of linear functions of the rates, so that the rays on
which nothing exceeds O(1) are a cone, and its spanning rays are enough to check it.
Read next: ``phases.py`` (the map of all cells), ``newton.py`` (a formula on one ray).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from math import gcd, lcm

from scaling_algebra.dynamics.analysis import Analysis
from scaling_algebra.errors import UsageError
from scaling_algebra.spec.axes import AXES, Ray
from scaling_algebra.spec.desiderata import Demand, Structure
from scaling_algebra.spec.networks.library import MOE_BLOCK
from scaling_algebra.spec.optimizers import OPTIMIZERS, Optimizer
from scaling_algebra.spec.parameterizations import Parameterization
from scaling_algebra.spec.powers import Power
from scaling_algebra.spec.scaling import Scaling

from .demands import HORIZON, violation

PLANE_AXES = ("N", "N_e", "M")
"""The axes of rays with K = M."""
_WORK = 5_000
"""Nodes of matching searches spent on a corner that may lie outside."""
Rates = tuple[Fraction, ...]


@dataclass(frozen=True)
class Wall:
    """A linear equation ``sum of coefficient * rate = 0``: coprime integers in the order of ``PLANE_AXES``."""

    coefficients: tuple[int, ...]

    @classmethod
    def of(cls, coefficients: Sequence[Fraction]) -> Wall:
        scale = lcm(*(c.denominator for c in coefficients))
        whole = [int(c * scale) for c in coefficients]
        common = gcd(*whole)
        sign = 1 if next(c for c in reversed(whole) if c) > 0 else -1
        return cls(tuple(sign * c // common for c in whole))

    def at(self, rates: Sequence[Fraction | int]) -> Fraction:
        return sum((Fraction(a) * r for a, r in zip(self.coefficients, rates, strict=True)), Fraction(0))

    def side(self, rates: Sequence[Fraction]) -> str:
        """The inequality that holds at these rates: ``N_e + M >= N``."""
        size = self.at(rates)
        return str(self) if not size else str(self).replace(" = ", " >= " if size > 0 else " <= ")

    def __str__(self) -> str:
        sides = []
        for sign in (1, -1):
            terms = [(abs(a), axis) for a, axis in zip(self.coefficients, PLANE_AXES, strict=True) if a * sign > 0]
            sides.append(" + ".join(axis if a == 1 else f"{a} {axis}" for a, axis in terms) or "0")
        return " = ".join(sides)


@dataclass(frozen=True)
class Cone:
    """All rays (with K = M) on which a formula meets every demand.

    Attributes:
        inequalities: what bounds it, e.g. ``N_e + M >= N``; empty if it is every ray.
        rays: what spans it.
    """

    inequalities: tuple[str, ...]
    rays: tuple[Ray, ...]

    def __str__(self) -> str:
        return ", ".join(self.inequalities) or "every ray"


def cone(
    scaling: Scaling, optimizer: Optimizer, parameterization: Parameterization, structure: Structure
) -> Cone | None:
    """The cone of a formula, proved for t = 0 .. 2; None if there is no ray, or no proof on the rays that span it.

    Method: of all rays, cut off a corner that breaks a demand, by the monomial that breaks it, until no corner breaks
    any; then ``cone_holds`` proves it.
    """
    plain = descent(scaling) if optimizer.epsilon else scaling
    unit = [tuple(Fraction(int(i == j)) for j in range(3)) for i in range(3)]
    corners: list[Rates] = list(unit)
    walls: list[Wall] = []
    done: set[Rates] = set()
    while corners and (left := [c for c in corners if c not in done]):
        wall = _broken(plain, parameterization, structure, left[0])
        if wall is None:
            done.add(left[0])
            continue
        walls.append(wall)
        sign = -1 if wall.at(left[0]) > 0 else 1
        corners = _cut(corners, wall, sign)
    rays = tuple(_ray(c) for c in corners)
    if not rays or cone_holds(scaling, optimizer, parameterization, rays, structure):
        return None
    middle = [sum((c[k] for c in corners), Fraction(0)) for k in range(3)]
    return Cone(tuple(w.side(middle) for w in _bounding(corners, walls)), rays)


def _bounding(corners: Sequence[Rates], walls: Sequence[Wall]) -> list[Wall]:
    """Of the walls around a polygon those along its sides; of a segment those it lies on and one for each end."""
    simple = sorted(dict.fromkeys(walls), key=lambda w: sum(map(abs, w.coefficients)))
    found = [w for w in simple if sum(not w.at(c) for c in corners) >= 2]
    if len(corners) == 2:
        for end, other in (corners, corners[::-1]):
            if not any(x == 0 < y for x, y in zip(end, other, strict=True)):  # else a rate ends there, being >= 0
                found += [w for w in simple if w not in found and not w.at(end)][:1]
    return found


def descent(scaling: Scaling) -> Scaling:
    """Gradient descent with learning rate over epsilon, which is what mu-3 makes of an optimizer with an epsilon."""
    tensors = {
        role: t if t.eps is None else replace(t, lr=t.lr + -t.eps, eps=None) for role, t in scaling.tensors.items()
    }
    return replace(scaling, tensors=tensors)


def _broken(scaling: Scaling, parameterization: Parameterization, structure: Structure, rates: Rates) -> Wall | None:
    """Where a formula for gradient descent first breaks a demand on a ray: the wall of the size that grows most."""
    ray = _ray(rates)
    look = Analysis(ray, scaling.point(ray), OPTIMIZERS["sgd"], MOE_BLOCK).limited(_WORK)
    demands = parameterization.demanded(MOE_BLOCK, structure)
    demands = [d for d in demands if d.kind in ("theta", "bounded")]
    for t in range(HORIZON + 2):
        answers = (look.lower(name, t) for demand in demands for name in demand.quantities)
        grown = [(a.size, a.form) for a in answers if a.size is not None and a.form is not None]
        worst = max(grown, key=lambda x: x[0], default=None)
        if worst is not None and worst[0] > 0:
            power = scaling.size(worst[1])
            return Wall.of([power[axis] for axis in PLANE_AXES])
    return None


def _ray(rates: Rates) -> Ray:
    return Ray(dict(zip(PLANE_AXES, rates, strict=True)))


def _cut(corners: Sequence[Rates], wall: Wall, sign: int) -> list[Rates]:
    """What is left of a convex polygon (in order; two corners are a segment) on one side of a wall."""
    kept: list[Rates] = []
    for p, q in pairwise((*corners, corners[0])):
        u, v = sign * wall.at(p), sign * wall.at(q)
        if u >= 0:
            kept.append(p)
        if u * v < 0:
            share = u / (u - v)
            kept.append(tuple(x + share * (y - x) for x, y in zip(p, q, strict=True)))
    return list(dict.fromkeys(kept))


def cone_holds(
    scaling: Scaling,
    optimizer: Optimizer,
    parameterization: Parameterization,
    rays: Sequence[Ray],
    structure: Structure,
    ahead: int = 0,
) -> str:
    """Why a formula fails somewhere in the cone spanned by some rays, or an empty string if it holds on all of it.

    Law: at a scaling that is linear in the rates, every size is a maximum of linear functions of the rates. So it is
    O(1) on the cone if it is on the spanning rays, and it is one of these functions on all of it if it is on the
    spanning rays: 0 for what is Theta(1), the same for what is balanced. A normaliser must not exceed its epsilon on
    the spanning rays, so that it is linear, too, and epsilon must be the size of a monomial of the gradient. On a
    spanning ray an axis that grows inside the cone counts as growing. Demands and gradients are examined at
    t = 0 .. 2; the gradient at t = 2 is what the third update takes.

    Args:
        ahead: so many updates later O(1) is examined, too.

    Raises:
        UsageError: an optimizer that normalises without an epsilon: its normaliser is not linear in the rates.
    """
    if optimizer.normalises and not optimizer.epsilon:
        raise UsageError(f"{optimizer.name} normalises without an epsilon: its sizes are not convex in the rates")
    demands = parameterization.demanded(MOE_BLOCK, structure)
    total = [sum((r[axis] for r in rays), Fraction(0)) for axis in PLANE_AXES]
    inner = Ray({axis: rate / max(total) for axis, rate in zip(PLANE_AXES, total, strict=True)})
    growing = frozenset(axis for axis in AXES if inner[axis])
    looks = [Analysis(r, scaling.point(r), optimizer, MOE_BLOCK, growing=growing) for r in (*rays, inner)]
    for ray, look in zip(rays, looks[:-1], strict=True):
        if failure := _broken_at(scaling, ray, look, demands, ahead):
            return f"on {ray}: {failure}"
    for demand in demands:
        if failure := _other_size(scaling, rays, looks, demand):
            return f"on {inner}: {demand.name}: {demand.because}, but {failure}"
    return ""


def _broken_at(scaling: Scaling, ray: Ray, look: Analysis, demands: Sequence[Demand], ahead: int) -> str:
    """What exceeds O(1), or its epsilon, on a spanning ray."""
    limited = [replace(demand, kind="bounded") for demand in demands if demand.kind in ("theta", "bounded")]
    failures = [failure for demand in limited if (failure := violation(demand, look, horizon=HORIZON + ahead))]
    if failures:  # what is undecided is a failure, too, but says less than what diverges
        return min(failures, key=lambda x: x.endswith("undecided"))
    for role, tensor in MOE_BLOCK.tensors.items() if look.optimizer.epsilon else ():
        eps = scaling.tensors[role].eps
        for answer in (look(f"g{tensor.symbol}", t) for t in range(HORIZON + max(1, ahead))):
            above = answer.size is not None and eps is not None and answer.size > eps.on(ray)
            if eps is None or not answer.decided or above:
                return f"the gradient of {role} exceeds its epsilon, or is undecided"
    return ""


def _other_size(scaling: Scaling, rays: Sequence[Ray], looks: Sequence[Analysis], demand: Demand) -> str:
    """Where a demanded size is not that of one monomial on the whole cone. ``looks``: at the rays, and inside."""
    *corners, inside = looks
    if demand.kind == "balanced":
        known = {name: inside(name, HORIZON) for name in demand.quantities}
        powers = []
        for name, answer in known.items():
            power = None if answer.form is None else scaling.size(answer.form)
            powers += [] if power is None else [power]
            for ray, look in zip(rays, corners, strict=True):
                here = look(name, HORIZON)
                if not (answer.decided and here.decided) or here.size != (None if power is None else power.on(ray)):
                    return f"{name} is undecided, or not of one size, on {ray}"
        apart = any(a.on(ray) != b.on(ray) for ray in rays for a, b in pairwise(powers))
        return "their sizes differ" if apart else ""
    eps = scaling.tensors[demand.fixes.removeprefix("d.")].eps if demand.kind == "scale" else Power()
    if demand.kind == "bounded" or eps is None:
        return ""
    first = 1 if demand.kind == "scale" else 0
    answers = (inside(name, t) for name in demand.quantities for t in range(first, HORIZON + 1))
    sizes = (scaling.size(a.form) + -eps for a in answers if a.form is not None)
    reached = any(all(not power.on(ray) for ray in rays) for power in sizes)
    return "" if reached else "no monomial of it is Theta(1) on all rays"
