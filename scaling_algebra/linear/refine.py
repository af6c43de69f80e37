"""Candidate, examine, clause, again: until no candidate is left, or one stands."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from .clauses import Clause, Undecided

ROUNDS = 60
"""Candidates that are examined before a question counts as undecided."""
SINGLE_POINTS = 8
"""Points that may be ruled out one by one, before the search counts as endless."""

Candidate = TypeVar("Candidate")


def refine(
    propose: Callable[[], Candidate | None],
    examine: Callable[[Candidate], Clause | None],
    learn: Callable[[Clause], None],
) -> Candidate | None:
    """A candidate that stands; None if there is none.

    Args:
        propose: a candidate that meets all clauses so far. examine: the clause that rules it out, if one does.

    Raises:
        Undecided: no end.
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
            raise Undecided(f"{clause.because}, at point after point")
        learn(clause)
    raise Undecided(f"no end after {ROUNDS} counterexamples")
