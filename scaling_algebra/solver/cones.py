"""Finds the cone of rays on which one formula meets every demand: by cutting planes, proved by convexity.

All settings are powers of the axes, so the exponent of every size is a maximum of linear functions of the rates of
the axes. So the rays on which nothing exceeds O(1) form a convex cone, and it suffices to check the rays that span
it.
Read next: ``convexity.py`` (the proof), ``scaling_algebra/all_rays`` (all cones), ``search.py`` (a formula on one ray).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import prod

from scaling_algebra.dynamics.analysis import Analysis, limit_lead
from scaling_algebra.linear.cone import Cone, bounding, simplicity
from scaling_algebra.linear.linear import Linear, Vector, dot
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.desiderata import HORIZON, Demand, Structure
from scaling_algebra.spec.optimizers import OPTIMIZERS, Optimizer
from scaling_algebra.spec.parameterizations import Parameterization
from scaling_algebra.spec.powers import Power
from scaling_algebra.spec.scaling import Scaling

from .convexity import Looks, growing, normalises, open_axes, ray_along

_LITTLE = limit_lead(5_000)
"""Budget for a corner of the region, which may lie outside the cone."""


def reach(
    scaling: Scaling,
    optimizer: Optimizer,
    parameterization: Parameterization,
    structure: Structure,
    ray: Ray,
    looks: Looks,
    fixed: frozenset[str] = frozenset(),
) -> Cone | None:
    """Finds the cone of rays on which a formula meets every demand, as far as lower bounds on sizes show.

    Returns None if the formula meets them on no ray. ``convexity.cone_holds`` proves the result, upper bounds included.

    Method: start with the cone of all rays, and treat the optimizer as gradient descent (``descent``). While a ray at
    an edge of the cone violates a demand, intersect the cone with the half-space on which the monomial that is too
    large there is O(1).

    Args:
        scaling: the formula: init stds, learning rates and epsilons as powers of the axes.
        optimizer: the optimizer that it is for.
        parameterization: the source of the demands.
        structure: which tensors start at zero, and which have the same initial values in all experts.
        ray: the ray on which the formula was found.
        looks: computes sizes on single rays; its cache is shared with the cones of other formulas.
        fixed: axes that do not grow.
    """
    plain = descent(scaling)
    if normalises(optimizer):
        plain = _absorb_normalisers(scaling, looks.at(scaling, ray, optimizer, growing([ray])))
    axes = open_axes(looks.network, fixed, looks.routed)
    demands = parameterization.list_demands(looks.network, structure)
    region = Cone(axes)
    done: set[tuple[Vector, frozenset[str]]] = set()
    while True:
        grown = growing([ray_along(axes, r, fixed) for r in region.rays])
        corner = next((r for r in region.rays if (r, grown) not in done), None)
        if corner is None:
            break
        look = looks.at(plain, _make_ray(axes, corner, fixed), OPTIMIZERS["sgd"], grown)
        wall = _find_wall(plain, demands, look, axes)
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
    simple = [w if w in flat else _simplify_wall(w, flat, axes) for w in walls]
    return Cone(axes, tuple(w.facing(dot(w.over(axes), middle)) for w in simple), region.rays)


def descent(scaling: Scaling) -> Scaling:
    """Converts settings for an optimizer with an epsilon to those with which gradient descent trains alike.

    Learning rates are divided by epsilons.

    Law: by demand mu-3 epsilon is as large as the gradient. So what the optimizer divides the gradient by has the
    size of epsilon, and a step has the size of a step of gradient descent with the learning rate divided by epsilon.
    """
    tensors = {
        role: t if t.lr is None or t.eps is None else replace(t, lr=t.lr / t.eps, eps=None)
        for role, t in scaling.tensors.items()
    }
    return replace(scaling, tensors=tensors)


# inside ------------------------------------------------------------------------------------------------------------


def _simplify_wall(wall: Linear, flat: Sequence[Linear], axes: tuple[str, ...]) -> Linear:
    """Returns the simplest linear equation that has the same solutions in a cone as ``wall``, one of its boundaries.

    The cone may lie in a subspace, given by the equations ``flat``: where N_e = 0, ``M = N + N_e`` becomes M = N.
    """
    coefficients = wall.over(axes)
    sums = ([a + k * b for a, b in zip(coefficients, w.over(axes), strict=True)] for w in flat for k in (-1, 1))
    same = [wall, *(Linear.wall(axes, values) for values in sums)]
    return min(same, key=lambda w: simplicity(w, axes)[0])


def _make_ray(axes: Sequence[str], rates: Vector, fixed: frozenset[str]) -> Ray:
    """Returns the ray along a vector of integer rates, which are divided by their sum."""
    return ray_along(axes, [Fraction(x, sum(rates)) for x in rates], fixed)


def _absorb_normalisers(scaling: Scaling, look: Analysis) -> Scaling:
    """Returns the formula with which gradient descent trains like a normalising optimizer.

    Every learning rate is divided by the normaliser (what the optimizer divides the gradient by). This is valid
    wherever the normalisers are the same powers of the axes as on the ray of ``look``.

    Args:
        scaling: the formula for the normalising optimizer.
        look: its analysis on a ray; the normalisers are those of its last step.
    """
    forms_of = {
        role: [x.form for x in look.runs.list_step_factors(role, HORIZON - 1) if x.form] for role in scaling.tensors
    }
    rates = {role: prod(map(scaling.size, forms), start=Power()) for role, forms in forms_of.items()}
    return replace(scaling, tensors={role: replace(t, lr=rates[role]) for role, t in scaling.tensors.items()})


def _find_wall(scaling: Scaling, demands: Sequence[Demand], look: Analysis, axes: tuple[str, ...]) -> Linear | None:
    """Finds the half-space of rays on which a monomial that is too large on the ray of ``look`` is O(1).

    The monomial is the largest one of all demanded quantities after the first number of updates at which any of them
    exceeds O(1). The half-space is returned as the linear equation of its boundary; None if no quantity exceeds O(1).

    Args:
        scaling: the formula.
        demands: the demands on the quantities.
        look: the analysis of the formula on a ray.
        axes: the axes that may grow.
    """
    demands = [d for d in demands if d.kind in ("theta", "bounded")]
    for t in range(max((d.horizon for d in demands), default=0) + 2):
        answers = (look(name, t, _LITTLE) for demand in demands for name in demand.quantities)
        grown = [(a.lead, a.form) for a in answers if a.lead is not None and a.form is not None]
        worst = max(grown, key=lambda x: x[0], default=None)
        if worst is not None and worst[0] > 0:
            power = scaling.size(worst[1])
            return Linear.wall(axes, [power[axis] for axis in axes])
    return None
