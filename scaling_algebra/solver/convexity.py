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
    """A cache of analyses of one network. An analysis computes sizes of quantities for one formula (the powers of all
    init stds, learning rates, ...) on one ray.

    A formula that is examined on several cones with a common ray is analysed on this ray once, and all formulas on a
    ray share intermediate results.

    Args:
        network: the network.
        routed: K is an axis of its own, so that rays with K < M are included; otherwise K = M.

    Raises:
        UsageError: the network has functions that may be nonlinear (``nonlinear_functions``), so that sizes are not
            convex in the rates.
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
        """Returns the analysis, which computes sizes of quantities, of a formula on a ray.

        Args:
            scaling: the formula.
            ray: the ray.
            optimizer: the optimizer.
            grown: axes that count as growing, even if their rate on the ray is 0.
        """
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
    """Returns the axes that grow inside the cone spanned by some rays: those that grow on at least one of these."""
    return frozenset(axis for axis in AXES if any(ray[axis] for ray in rays))


def normalises(optimizer: Optimizer) -> bool:
    """Tests whether an optimizer divides the gradient by its size without an epsilon of relevant size in the
    divisor.
    """
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

    Law: all settings are powers of the axes, so their exponents are linear in the rates of the axes. The exponent of
    every size is then a maximum of linear functions of the rates, provided that learning rate / normaliser (the
    number by which the optimizer divides the gradient) was linear in all earlier updates. So a size is O(1) on the
    cone if it is O(1) on the spanning rays. The size equals one of the linear functions on the whole cone if it
    equals this function on the spanning rays: the function 0 if the size must be Theta(1), and one common function if
    several sizes must be equal. The normaliser is such a maximum, too. It is linear on the cone if one function gives
    its value on a ray inside the cone and on the spanning rays. If there is an epsilon, the gradient must not exceed
    epsilon on the spanning rays, and epsilon must have the size of a monomial of the gradient. An axis that grows
    inside the cone counts as growing on the spanning rays, too. Demands and gradients are examined up to the last
    update of the demands, t = 2; the third update uses the gradient at t = 2.

    Args:
        scaling: the formula: init stds, learning rates and epsilons as powers of the axes.
        optimizer: the optimizer.
        parameterization: the source of the demands.
        rays: the rays that span the cone.
        structure: which tensors start at zero or alike in all experts, and which signals are not constrained.
        ahead: number of further updates for which O(1) is examined, too.
        looks: a cache of analyses to share; it determines the network.
        network: the network, if there is no ``looks``.

    Raises:
        UsageError: the network has functions that may be nonlinear (``nonlinear_functions``).
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
    """Reports a size that exceeds O(1), or a gradient that exceeds its epsilon, on one ray; None if there is none.

    Args:
        scaling: the formula.
        look: its analysis on the ray.
        demands: the demands on sizes.
        ahead: number of further updates for which O(1) is examined, too.
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
    on a cone. Sizes inside the cone are then undecided. Returns None if there is no such update.

    Args:
        scaling: the formula.
        corners: its analyses on the rays that span the cone.
        inside: its analysis on a ray inside the cone.
        last: number of updates that are examined.
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
    """Explains why a size for which a demand sets a lower bound is not given by one monomial on a whole cone.

    Such a size must be Theta(1), have the size of an epsilon, or equal other sizes.

    Args:
        scaling: the formula.
        corners: its analyses on the rays that span the cone.
        inside: its analysis on a ray inside the cone.
        demand: the demand on the size.

    Returns:
        The failure; None if one monomial gives the size, or if the demand requires an upper bound only.
    """
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
