"""Finds the cone of rays on which one formula meets every demand: by cutting planes, proved by convexity.

At a scaling that is linear in the rates every size is a maximum of linear functions of the rates. So the rays on which
nothing exceeds O(1) form a cone, and it suffices to check the rays that span it.
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
    """Finds the cone of rays on which a formula meets every demand, as far as monomials show; None if there is no such
    ray.

    Method: start with all rays, and treat the optimizer as gradient descent (``descent``). While a spanning ray
    violates a demand, cut it off by the half-space on which the violating monomial is O(1).

    Args:
        scaling: the formula.
        optimizer: the optimizer that it is for.
        parameterization: the source of the demands.
        structure: tensors that start at zero or are shared by all experts.
        ray: the ray on which the formula was found.
        looks: analyses of the network; they are shared with the cones of other formulas.
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
    """Converts a scaling to the equivalent one for gradient descent: learning rates are divided by epsilons.

    Law: by mu-3 epsilon dominates the normaliser, so that an optimizer with an epsilon acts as gradient descent.
    """
    tensors = {
        role: t if t.lr is None or t.eps is None else replace(t, lr=t.lr / t.eps, eps=None)
        for role, t in scaling.tensors.items()
    }
    return replace(scaling, tensors=tensors)


# inside ------------------------------------------------------------------------------------------------------------


def _simplify_wall(wall: Linear, flat: Sequence[Linear], axes: tuple[str, ...]) -> Linear:
    """Returns the simplest linear equation that has the same solutions in the cone as ``wall``.

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
    """Returns a scaling of gradient descent whose learning rates are divided by the normalisers of the last step on a
    ray.

    With it, gradient descent trains like the normalising optimizer wherever the normalisers are these powers of the
    axes.
    """
    forms_of = {
        role: [x.form for x in look.runs.list_step_factors(role, HORIZON - 1) if x.form] for role in scaling.tensors
    }
    rates = {role: prod(map(scaling.size, forms), start=Power()) for role, forms in forms_of.items()}
    return replace(scaling, tensors={role: replace(t, lr=rates[role]) for role, t in scaling.tensors.items()})


def _find_wall(scaling: Scaling, demands: Sequence[Demand], look: Analysis, axes: tuple[str, ...]) -> Linear | None:
    """Finds the boundary beyond which a size exceeds O(1): that of the largest size at the earliest step where one
    does. None if no size exceeds O(1).
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
