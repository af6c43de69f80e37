"""Counterexample-guided search: propose a candidate, examine it, learn a clause, repeat."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from .clauses import Clause, Undecided

ROUNDS = 60
"""Number of candidates after which the search gives up."""
SINGLE_POINTS = 8
"""Number of points that may be excluded one by one before the search gives up."""

Candidate = TypeVar("Candidate")


def refine(
    propose: Callable[[], Candidate | None],
    examine: Callable[[Candidate], Clause | None],
    learn: Callable[[Clause], None],
) -> Candidate | None:
    """Returns a candidate that passes examination; None if no candidate is left.

    Args:
        propose: returns a candidate that satisfies all clauses learned so far; None if there is none.
        examine: returns a clause that excludes the candidate; None if the candidate passes.
        learn: adds a clause to those that `propose` satisfies.

    Raises:
        Undecided: too many candidates were excluded (``ROUNDS``), or too many one by one (``SINGLE_POINTS``).
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
            raise Undecided(
                f"more than {SINGLE_POINTS} points had to be excluded one by one, the last of them because: "
                f"{clause.because}"
            )
        learn(clause)
    raise Undecided(f"the search did not end after {ROUNDS} candidates were excluded")
