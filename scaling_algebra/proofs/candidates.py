"""A candidate of z3, examined by the engine: which demand fails there, and by which monomial."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction

from scaling_algebra.dynamics.analysis import CERTIFIED, LEAD, Analysis, Means, lead_within
from scaling_algebra.linear.clauses import Undecided
from scaling_algebra.solver.demands import concerns, violation
from scaling_algebra.spec.desiderata import HORIZON, Demand
from scaling_algebra.spec.powers import Form

_LITTLE = lead_within(20_000, gap=Fraction(0))
"""For the search for a violated demand at a candidate, before a closer look."""

Unmet = tuple[Demand, Form | None, str]
"""A demand that fails at a point, a form of it that must not exceed O(1), if there is one, and the reason."""


def broken(demands: Sequence[Demand], look: Callable[[], Analysis]) -> Unmet | None:
    """A demand that fails at a point: first with little work, then with all of it, then as is certified.

    Raises:
        Undecided: no certificate, or the engine cannot express the point.
    """
    with expressible():
        failed = unmet(demands, look(), _LITTLE)
        if failed is None:
            whole = look()
            failed = unmet(demands, whole, LEAD) or unmet(demands, whole)
    return failed


def unmet(demands: Sequence[Demand], look: Analysis, means: Means = CERTIFIED) -> Unmet | None:
    """A demand that fails at a point. Only what is certified shows that none does.

    Raises:
        Undecided: no certificate, where one is asked for.
    """
    certified = means is CERTIFIED
    for t in range(max((d.horizon for d in demands), default=HORIZON) + 2):
        for demand in demands:
            for q in demand.quantities if demand.kind in ("theta", "bounded") else ():
                answer = look(q, t, means)
                if certified and not answer.decided:
                    raise Undecided(f"{q} at t={t} is undecided at a candidate")
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
    """A fraction too fine for the engine leaves a question undecided."""
    try:
        yield
    except ValueError as reason:
        raise Undecided(f"a candidate is beyond the engine: {reason}") from None
