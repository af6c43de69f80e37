"""Every step: bounds that one more update maps into themselves, so that they hold after any number of updates.

What is Theta(1) at one step stays so, since no later term takes it back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from scaling_algebra.counting.kernels import Exhausted
from scaling_algebra.dynamics.analysis import Analysis
from scaling_algebra.dynamics.bounds import BoundRun
from scaling_algebra.dynamics.quantities import quantity
from scaling_algebra.dynamics.run import BeyondPowerCounting
from scaling_algebra.spec.desiderata import Demand


@dataclass(frozen=True)
class EveryStep:
    """Facts after any number of updates.

    Attributes:
        bounds: exponent of the bound on every ``("change", signal)`` and ``("gradient", signal)`` that is not exactly
            zero; empty if none were found.
        open: demands that are not shown to hold at every step, a line each.
    """

    bounds: Mapping[tuple[str, str], Fraction]
    open: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Is every demand met at every step?"""
        return not self.open


def every_step(look: Analysis, demands: Sequence[Demand], last: int) -> EveryStep:
    """Do the demands hold at every step?

    Law: what must be O(1) is by its bound, and what must be Theta(1) besides is so at the last step examined; sizes
    that must agree there are bounded by what they are there. Source: the norms of a spectral argument (Yang, Simon and
    Bernstein 2023), of a sum over experts the norm of all of them together.

    Args:
        look: the engine at a point that meets the demands up to ``last``, of a network that proofs reach.
        last: the update by which what must be Theta(1) is.
    """
    run = look.bounds
    if run.why:
        return EveryStep({}, (run.why,))
    try:
        return EveryStep({k: run.algebra.value(x) for k, x in run.bounds.items()}, _open(run, look, demands, last))
    except (Exhausted, BeyondPowerCounting) as reason:
        return EveryStep({}, (f"undecided: {str(reason) or 'the bounds of a product take too much work'}",))


def _open(run: BoundRun, look: Analysis, demands: Sequence[Demand], last: int) -> tuple[str, ...]:
    """Demands whose quantities have a bound that is too large."""
    value, lines = run.algebra.value, []
    for demand in demands:
        for name in demand.quantities if demand.kind != "scale" else ():
            bound = run.algebra.bound(quantity(look.table, name).read(run, 1))
            most = look(name, last).size if demand.kind == "balanced" else Fraction(0)
            if bound is not None and (most is None or value(bound) > most):
                lines.append(f"{demand.name}: {name} is bounded by n^({value(bound)}) only")
    for role, d in look.point.d.items():
        if not look.optimizer.of(role).epsilon:
            continue
        bound = run.gradient_bound(role)
        if bound is not None and value(bound) > -d:
            lines.append(f"mu-3: the gradient of {role} is bounded by n^({value(bound)}) only")
    return tuple(dict.fromkeys(lines))
