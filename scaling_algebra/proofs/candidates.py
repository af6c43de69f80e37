"""Examines a candidate of z3: which demand fails there, and because of which monomial."""

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
"""Budget of the first search for a violated demand at a candidate."""

Unmet = tuple[Demand, Form | None, str]
"""A demand that fails at a point, the monomial that exceeds O(1) (None if there is none), and the reason."""


def find_failure(demands: Sequence[Demand], look: Callable[[], Analysis]) -> Unmet | None:
    """Finds a demand that fails at a point: with a small budget, then a full one, then with certificates.

    Raises:
        Undecided: there is no certificate, or the engine cannot express the point.
    """
    with expressible():
        failed = find_unmet(demands, look(), _LITTLE)
        if failed is None:
            whole = look()
            failed = find_unmet(demands, whole, LEAD) or find_unmet(demands, whole)
    return failed


def find_unmet(demands: Sequence[Demand], look: Analysis, means: Method = CERTIFIED) -> Unmet | None:
    """Finds a demand that fails at a point. Only certified sizes prove that none does.

    Raises:
        Undecided: a certificate was asked for, and there is none.
    """
    certified = means is CERTIFIED
    for t in range(max((d.horizon for d in demands), default=HORIZON) + 2):
        for demand in demands:
            for q in demand.quantities if demand.kind in ("theta", "bounded") else ():
                answer = look(q, t, means)
                if certified and not answer.decided:
                    raise Undecided(f"the size of {q} at t={t} is undecided for a candidate of the proof")
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
    """Context manager that turns a fraction too fine for the engine into an undecided question."""
    try:
        yield
    except ValueError as reason:
        raise Undecided(f"a candidate of the proof has exponents that the engine cannot represent: {reason}") from None
