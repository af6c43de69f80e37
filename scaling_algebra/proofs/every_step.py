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
    """Returns lines that name the demands which are not proved to hold after any number of updates; empty if all are.
    If no upper bounds are known that hold at every step, the only line is the reason.

    Law: a demand O(1) is proved by an upper bound that holds at every step. For a demand Theta(1), the size was reached
    at a step already examined, and only this upper bound remains to be proved. Where two sizes must agree, each must
    not exceed the size that it has after the update ``last``. The bounds are those of the spectral argument of Yang,
    Simon and Bernstein (2023), with the operator norm of the matrices of all experts together for a sum over experts.

    Args:
        look: the analysis of the training run (it computes sizes), at exponents that meet the demands up to the update
            `last`.
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
