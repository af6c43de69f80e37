"""Examines a point that z3 proposes as a solution: which demand fails there, and because of which monomial."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction

from scaling_algebra.dynamics.analysis import CERTIFIED, LEAD, Analysis, Method, limit_lead
from scaling_algebra.linear.clauses import Undecided
from scaling_algebra.solver.demands import concerns, violation
from scaling_algebra.spec.desiderata import HORIZON, Demand
from scaling_algebra.spec.powers import Form

_LITTLE = limit_lead(20_000, gap=Fraction(0))
"""Method of the first search for a violated demand at a point."""

Unmet = tuple[Demand, Form | None, str]
"""A demand that fails at a point, the monomial that exceeds O(1) (None if it fails otherwise), and the reason."""


def find_failure(demands: Sequence[Demand], look: Callable[[], Analysis]) -> Unmet | None:
    """Finds a demand that fails at a point. It looks first with little work, then with a full budget, and then with
    certificates.

    Args:
        demands: the demands.
        look: returns a new analysis of the training run at the point.

    Returns:
        The demand, and why it fails; None if it is certified that none fails.

    Raises:
        Undecided: a size has no certificate, or the exponents of the point cannot be represented.
    """
    with expressible():
        failed = find_unmet(demands, look(), _LITTLE)
        if failed is None:
            whole = look()
            failed = find_unmet(demands, whole, LEAD) or find_unmet(demands, whole)
    return failed


def find_unmet(demands: Sequence[Demand], look: Analysis, means: Method = CERTIFIED) -> Unmet | None:
    """Finds a demand that fails at a point.

    Args:
        demands: the demands.
        look: the analysis of the training run at the point.
        means: the method that computes sizes. Only certified sizes prove that no demand fails.

    Returns:
        The demand, and why it fails; None if no failure was found.

    Raises:
        Undecided: sizes are to be certified, and a size has no certificate.
    """
    certified = means is CERTIFIED
    for t in range(max((d.horizon for d in demands), default=HORIZON) + 2):
        for demand in demands:
            for q in demand.quantities if demand.kind in ("theta", "bounded") else ():
                answer = look(q, t, means)
                if certified and not answer.decided:
                    raise Undecided(f"the size of {q} at t={t} is undecided at a point that the proof must examine")
                if answer.lead is not None and answer.lead > 0:
                    return demand, answer.form, f"{q} at t={t} is O(1)"
    for demand in demands if certified else ():
        if not concerns(demand, look.optimizer):
            continue
        failure = violation(demand, look)
        if failure and failure.undecided:
            raise Undecided(failure.reason)
        if failure:
            return demand, None, failure.reason
    return None


@contextmanager
def expressible() -> Iterator[None]:
    """Context manager that raises ``Undecided`` if exponents inside it are fractions which the engine cannot represent
    exactly."""
    try:
        yield
    except ValueError as reason:
        raise Undecided(f"the proof needs exponents that cannot be represented exactly: {reason}") from None
