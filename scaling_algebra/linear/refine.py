"""Counterexample-guided search: propose a candidate, examine it, learn a clause, repeat."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from .clauses import Clause, Undecided

ROUNDS = 60
"""Number of candidates after which a question counts as undecided."""
SINGLE_POINTS = 8
"""Number of points that may be ruled out one by one before the search counts as endless."""

Candidate = TypeVar("Candidate")


def refine(
    propose: Callable[[], Candidate | None],
    examine: Callable[[Candidate], Clause | None],
    learn: Callable[[Clause], None],
) -> Candidate | None:
    """Returns a candidate that passes examination, or None if none is left.

    Args:
        propose: returns a candidate that satisfies all clauses learned so far, or None.
        examine: returns a clause that rules the candidate out, or None if it passes.
        learn: adds a clause.

    Raises:
        Undecided: the limits above were reached.
    """
    single = 0
    for _ in range(ROUNDS):
        candidate = propose()
        if candidate is None:
            return None
        clause = examine(candidate)
        if clause is None:
            return candidate
        single += 1 if clause.atoms[0].sense == "!=" else 0
        if single > SINGLE_POINTS:
            raise Undecided(f"{clause.because}, at one candidate after the other")
        learn(clause)
    raise Undecided(f"the search did not end after {ROUNDS} counterexamples")
