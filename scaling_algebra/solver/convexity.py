"""Proves that a formula holds on a cone of rays if it holds on the rays that span it: sizes are convex in the rates."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

from scaling_algebra.counting.algebra import Algebra
from scaling_algebra.counting.signals import Budget
from scaling_algebra.dynamics.analysis import Analysis
from scaling_algebra.errors import UsageError
from scaling_algebra.spec.axes import AXES, Ray
from scaling_algebra.spec.desiderata import HORIZON, Demand, Structure
from scaling_algebra.spec.networks.indices import nonlinear_functions
from scaling_algebra.spec.networks.language import Network
from scaling_algebra.spec.networks.library import MOE_BLOCK
from scaling_algebra.spec.optimizers import Optimizer
from scaling_algebra.spec.parameterizations import Parameterization
from scaling_algebra.spec.powers import Power
from scaling_algebra.spec.scaling import Scaling

from .demands import Failure, violation


class Looks:
    """A cache of analyses of one network, by formula and ray.

    So cones that share a ray are analysed there once, and all formulas on a ray share products of kernels.

    Args:
        network: the network.
        routed: include rays with K < M, and their limits.

    Raises:
        UsageError: the network has divisors or gates of unknown size; these are not linear in the rates.
    """

    def __init__(self, network: Network = MOE_BLOCK, routed: bool = False) -> None:
        if nonlinear_functions(network):
            raise UsageError(
                f"{network.name} has divisors or gates of unknown size, so that its sizes are not convex in the "
                "rates; use scalecalc derive on single rays"
            )
        self.network, self.routed = network, routed
        self._analyses: dict[Hashable, Analysis] = {}
        self._algebras: dict[Hashable, dict[Budget, Algebra]] = {}

    def at(self, scaling: Scaling, ray: Ray, optimizer: Optimizer, grown: frozenset[str]) -> Analysis:
        """Returns the analysis on a ray. The axes in ``grown`` count as growing even if their rate there is 0."""
        point = scaling.point(ray)
        numbers = [tuple(x.items()) for x in (point.b, point.c, point.d, point.multipliers)]
        key = ray, grown, optimizer.name, optimizer.regime, *numbers, point.tied
        if key not in self._analyses:
            algebras = self._algebras.setdefault((ray, grown), {})
            self._analyses[key] = Analysis(ray, point, optimizer, self.network, algebras, grown, self.routed)
        return self._analyses[key]


def open_axes(network: Network, fixed: Collection[str] = (), routed: bool = False) -> tuple[str, ...]:
    """Returns the axes of a network that may grow. K grows as M, or is an axis of its own if ``routed``."""
    grown = {*network.axes.values(), *(("K",) if routed else ())}
    return tuple(axis for axis in AXES if axis in grown and axis not in fixed)


def ray_along(axes: Sequence[str], rates: Sequence[int | Fraction], fixed: Collection[str] = ()) -> Ray:
    """Returns the ray with these rates of these axes; fixed axes have rate 0."""
    grown = {axis: Fraction(rate) for axis, rate in zip(axes, rates, strict=True)}
    return Ray({axis: grown.get(axis, Fraction(0)) for axis in AXES if axis in grown or axis in fixed})


def growing(rays: Sequence[Ray]) -> frozenset[str]:
    """Returns the axes that grow inside the cone spanned by some rays."""
    return frozenset(axis for axis in AXES if any(ray[axis] for ray in rays))


def normalises(optimizer: Optimizer) -> bool:
    """Tests whether an optimizer divides by sizes that no epsilon bounds from below."""
    return bool(optimizer.normalises) and not optimizer.epsilon


def cone_holds(
    scaling: Scaling,
    optimizer: Optimizer,
    parameterization: Parameterization,
    rays: Sequence[Ray],
    structure: Structure,
    ahead: int = 0,
    looks: Looks | None = None,
    network: Network = MOE_BLOCK,
) -> Failure | None:
    """Explains why a formula fails somewhere in the cone spanned by some rays; None if it holds on the whole cone.

    Law: at a scaling that is linear in the rates every size is a maximum of linear functions of the rates, provided
    that the factors on the gradients before it are linear. So a size is O(1) on the cone if it is on the spanning rays.
    It equals one of these functions on the whole cone if it does on the spanning rays: 0 for a size that must be
    Theta(1), a common one for sizes that must be balanced. The divisor of a gradient is such a maximum, too; it is
    linear on the cone if it equals one function at a ray inside and on the spanning rays. If there is an epsilon, the
    gradient must not exceed it on the spanning rays, and epsilon must be the size of a monomial of the gradient. On a
    spanning ray, an axis that grows inside the cone counts as growing. Demands and gradients are examined up to the
    horizon of the demands, t = 2; the third update uses the gradient at t = 2.

    Args:
        scaling: the formula.
        optimizer: the optimizer.
        parameterization: the source of the demands.
        rays: the rays that span the cone.
        structure: the discrete choices of the formula.
        ahead: number of further updates for which O(1) is examined, too.
        looks: a cache of analyses to share; it determines the network.
        network: the network, if there is no ``looks``.

    Raises:
        UsageError: the network divides or gates by sizes.
    """
    looks = looks or Looks(network)
    demands = parameterization.list_demands(looks.network, structure)
    axes = [axis for axis in AXES if axis in rays[0].rates]
    total = [sum((r[axis] for r in rays), Fraction(0)) for axis in axes]
    inner, grown = ray_along(axes, [rate / max(total) for rate in total]), growing(rays)
    *corners, inside = [looks.at(scaling, ray, optimizer, grown) for ray in (*rays, inner)]
    limited = [replace(demand, kind="bounded") for demand in demands if demand.kind in ("theta", "bounded")]
    for look in corners:  # lower bounds are quick and mostly enough to reject
        for demand in limited:
            if failure := violation(demand, look, certified=False, horizon=demand.horizon + ahead):
                return Failure(f"on {look.ray}: {failure}", failure.undecided)
    for look in corners:
        if failure := _broken_at(scaling, look, demands, ahead):
            return Failure(f"on {look.ray}: {failure}", failure.undecided)
    last = max((demand.horizon for demand in demands), default=HORIZON) + ahead
    if normalises(optimizer) and (failure := _bent(scaling, corners, inside, last)):
        return failure
    for demand in demands:
        if failure := _other_size(scaling, corners, inside, demand):
            return Failure(f"on {inner}: {demand.label}, but {failure}", failure.undecided)
    return None


# inside ------------------------------------------------------------------------------------------------------------


def _broken_at(scaling: Scaling, look: Analysis, demands: Sequence[Demand], ahead: int) -> Failure | None:
    """Reports a size that exceeds O(1), or a gradient that exceeds its epsilon, on a spanning ray; None if there is
    none.
    """
    limited = [replace(demand, kind="bounded") for demand in demands if demand.kind in ("theta", "bounded")]
    failures = [failure for demand in limited if (failure := violation(demand, look, horizon=demand.horizon + ahead))]
    if failures:  # report a divergence rather than an undecided size
        return min(failures, key=lambda x: x.undecided)
    last = max((demand.horizon for demand in demands), default=HORIZON)
    for role, tensor in look.network.tensors.items():
        if not look.optimizer.of(role).epsilon:
            continue
        eps = scaling.tensors[role].eps
        for answer in (look(f"g{tensor.symbol}", t) for t in range(last + max(1, ahead))):
            above = answer.size is not None and eps is not None and answer.size > eps.on(look.ray)
            if eps is None or not answer.decided or above:
                return Failure(f"the gradient of {role} exceeds its epsilon, or is undecided", undecided=True)
    return None


def _bent(scaling: Scaling, corners: Sequence[Analysis], inside: Analysis, last: int) -> Failure | None:
    """Reports an update whose factor on the gradient (learning rate over normaliser) is not a single power of the axes
    on the cone. Sizes inside the cone are then undecided. None if there is no such update.
    """
    for role in inside.network.tensors:
        for t in range(last):
            middle = inside.runs.list_step_factors(role, t)
            for look in corners:
                steps = look.runs.list_step_factors(role, t)
                name = f"undecided: on {look.ray} the factor on the gradient of {role} at t={t}"
                if len(steps) != len(middle):
                    return Failure(f"{name} is not known", undecided=True)
                for answer, here in zip(middle, steps, strict=True):
                    if answer.form is None or not (answer.decided and here.decided):
                        return Failure(f"{name} is not known", undecided=True)
                    if scaling.size(answer.form).on(look.ray) != here.size:
                        return Failure(f"{name} is not one power of the axes on the cone", undecided=True)
    return None


def _other_size(scaling: Scaling, corners: Sequence[Analysis], inside: Analysis, demand: Demand) -> Failure | None:
    """Explains why a size that must be Theta(1) or balanced is not given by one monomial on the whole cone; None if
    it is."""
    if demand.kind == "balanced":
        middle = {name: inside(name, demand.horizon) for name in demand.quantities}
        powers = []
        for name, answer in middle.items():
            power = None if answer.form is None else scaling.size(answer.form)
            powers += [] if power is None else [power]
            for look in corners:
                here = look(name, demand.horizon)
                expected = None if power is None else power.on(look.ray)
                if not (answer.decided and here.decided) or here.size != expected:
                    return Failure(
                        f"the size of {name} is undecided on {look.ray}, or is not one power on the whole cone",
                        undecided=True,
                    )
        apart = any(a.on(look.ray) != b.on(look.ray) for look in corners for a, b in pairwise(powers))
        return Failure("their sizes differ") if apart else None
    eps = scaling.tensors[demand.fixes.removeprefix("d.")].eps if demand.kind == "scale" else Power()
    if demand.kind == "bounded" or eps is None:
        return None
    first = 1 if demand.kind == "scale" else 0
    answers = (inside(name, t) for name in demand.quantities for t in range(first, demand.horizon + 1))
    sizes = (scaling.size(a.form) / eps for a in answers if a.form is not None)
    reached = any(all(not power.on(look.ray) for look in corners) for power in sizes)
    return None if reached else Failure("none of its monomials is Theta(1) on all rays of the cone")
