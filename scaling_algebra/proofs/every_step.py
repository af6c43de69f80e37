"""Proves that demands hold after any number of updates, by bounds that one more update maps into themselves.

A quantity that is Theta(1) at one step stays so, since no later term cancels it.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from scaling_algebra.counting.kernels import Exhausted
from scaling_algebra.dynamics.analysis import Analysis
from scaling_algebra.dynamics.run import BeyondPowerCounting
from scaling_algebra.solver.demands import concerns
from scaling_algebra.spec.desiderata import Demand


def open_later(look: Analysis, demands: Sequence[Demand], last: int) -> tuple[str, ...]:
    """Returns the demands that are not proved to hold at every step, one line for each.

    Law: O(1) holds by its bound, and Theta(1) by the last step examined; sizes that must agree there are bounded by
    their size there. Source: the norms of a spectral argument (Yang, Simon and Bernstein 2023); for a sum over experts
    the norm of all of them together.

    Args:
        look: the analysis at a point that meets the demands up to `last`, of a network that proofs cover.
        demands: the demands.
        last: the update by which Theta(1) must have been reached.
    """
    run, lines = look.bounds, list[str]()
    if run.why:
        return (run.why,)
    for demand in demands:
        for name in demand.quantities if concerns(demand, look.optimizer) else ():
            try:
                bound = run.bound_quantity(look.table[name])
            except (Exhausted, BeyondPowerCounting) as reason:
                return (f"undecided: {str(reason) or 'the bounds of a product exceed the work limit'}",)
            if bound is None:
                continue
            value, most = (
                run.algebra.exponent(bound),
                Fraction(0) if demand.kind != "balanced" else look(name, last).size,
            )
            most = -look.point.d[demand.fixes.removeprefix("d.")] if demand.kind == "scale" else most
            if most is None or value > most:
                lines.append(f"{demand.name}: {name} has only the upper bound n^({value}) at later steps")
    return tuple(dict.fromkeys(lines))
