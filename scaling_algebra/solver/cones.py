"""Cones of rays on which one formula meets every demand: found by cutting, proved by convexity.

At a scaling that is linear in the rates every size is a maximum of linear functions of the rates, so that the rays on
which nothing exceeds O(1) are a cone, and its spanning rays are enough to check it.
Read next: ``convexity.py`` (the proof), ``scaling_algebra/all_rays`` (all cones), ``search.py`` (a formula on one ray).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import prod

from scaling_algebra.dynamics.analysis import Analysis, lead_within
from scaling_algebra.linear.cone import Cone, bounding, simplicity
from scaling_algebra.linear.linear import Linear, Vector, dot
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.desiderata import HORIZON, Demand, Structure
from scaling_algebra.spec.optimizers import OPTIMIZERS, Optimizer
from scaling_algebra.spec.parameterizations import Parameterization
from scaling_algebra.spec.powers import Power
from scaling_algebra.spec.scaling import Scaling

from .convexity import Looks, growing, normalises, open_axes, ray_along

_LITTLE = lead_within(5_000)
"""For a corner that may lie outside."""


def reach(
    scaling: Scaling,
    optimizer: Optimizer,
    parameterization: Parameterization,
    structure: Structure,
    ray: Ray,
    looks: Looks,
    fixed: frozenset[str] = frozenset(),
) -> Cone | None:
    """The rays on which no monomial is seen to break a demand; None if there is none.

    Method: as gradient descent (``descent``), of all rays, cut off a corner that breaks a demand, by the monomial that
    breaks it, until no corner breaks any.

    Args:
        ray: where the formula was found. looks: whose network is meant; what is known at some rays is shared with the
            cones of other formulas. fixed: axes that do not grow.
    """
    plain = descent(scaling)
    if normalises(optimizer):
        plain = _multiplied(scaling, looks.at(scaling, ray, optimizer, growing([ray])))
    axes = open_axes(looks.network, fixed, looks.routed)
    demands = parameterization.demanded(looks.network, structure)
    region = Cone(axes)
    done: set[tuple[Vector, frozenset[str]]] = set()
    while True:
        grown = growing([ray_along(axes, r, fixed) for r in region.rays])
        corner = next((r for r in region.rays if (r, grown) not in done), None)
        if corner is None:
            break
        look = looks.at(plain, _scaled(axes, corner, fixed), OPTIMIZERS["sgd"], grown)
        wall = _broken(plain, demands, look, axes)
        size = 0 if wall is None else dot(wall.over(axes), corner)
        if wall is None or not size:
            done.add((corner, grown))
            continue
        region = region.between(wall.facing(-size))
    if not region.rays:
        return None
    walls = bounding([side.wall_of for side in region.sides], axes, region.rays)
    flat = [w for w in walls if not any(dot(w.over(axes), r) for r in region.rays)]
    middle = [sum(x) for x in zip(*region.rays, strict=True)]
    simple = [w if w in flat else _simplest(w, flat, axes) for w in walls]
    return Cone(axes, tuple(w.facing(dot(w.over(axes), middle)) for w in simple), region.rays)


def descent(scaling: Scaling) -> Scaling:
    """Gradient descent with learning rate over epsilon, which is what mu-3 makes of an optimizer with an epsilon."""
    tensors = {
        role: t if t.lr is None or t.eps is None else replace(t, lr=t.lr / t.eps, eps=None)
        for role, t in scaling.tensors.items()
    }
    return replace(scaling, tensors=tensors)


# inside ------------------------------------------------------------------------------------------------------------


def _simplest(wall: Linear, flat: Sequence[Linear], axes: tuple[str, ...]) -> Linear:
    """A wall as it meets the walls that a cone lies on: ``M = N + N_e`` is M = N where N_e = 0."""
    coefficients = wall.over(axes)
    sums = ([a + k * b for a, b in zip(coefficients, w.over(axes), strict=True)] for w in flat for k in (-1, 1))
    same = [wall, *(Linear.wall(axes, values) for values in sums)]
    return min(same, key=lambda w: simplicity(w, axes)[0])


def _scaled(axes: Sequence[str], rates: Vector, fixed: frozenset[str]) -> Ray:
    return ray_along(axes, [Fraction(x, sum(rates)) for x in rates], fixed)


def _multiplied(scaling: Scaling, look: Analysis) -> Scaling:
    """Gradient descent that multiplies gradients by what the last step of the horizon does on a ray, by its power of
    the axes: what an optimizer that normalises is where its normalisers are these powers."""
    forms_of = {role: [x.form for x in look.runs.step(role, HORIZON - 1) if x.form] for role in scaling.tensors}
    rates = {role: prod(map(scaling.size, forms), start=Power()) for role, forms in forms_of.items()}
    return replace(scaling, tensors={role: replace(t, lr=rates[role]) for role, t in scaling.tensors.items()})


def _broken(scaling: Scaling, demands: Sequence[Demand], look: Analysis, axes: tuple[str, ...]) -> Linear | None:
    """The first break of a demand by a formula for gradient descent: the wall of the size that grows most."""
    demands = [d for d in demands if d.kind in ("theta", "bounded")]
    for t in range(max((d.horizon for d in demands), default=0) + 2):
        answers = (look(name, t, _LITTLE) for demand in demands for name in demand.quantities)
        grown = [(a.lead, a.form) for a in answers if a.lead is not None and a.form is not None]
        worst = max(grown, key=lambda x: x[0], default=None)
        if worst is not None and worst[0] > 0:
            power = scaling.size(worst[1])
            return Linear.wall(axes, [power[axis] for axis in axes])
    return None
