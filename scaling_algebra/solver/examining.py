"""All demands at one point: those that fail, and the sizes that stay undecided, with the cheap means first.

Read next: ``demands.py`` (one demand), ``search.py`` (asks).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from scaling_algebra.dynamics.analysis import WORK, Analysis, lead_within
from scaling_algebra.dynamics.budgets import AHEAD, CLOSELY, LITTLE, PIECE, QUICK, SHOWN
from scaling_algebra.spec.desiderata import Demand
from scaling_algebra.spec.level import Open
from scaling_algebra.spec.networks.sums import experts
from scaling_algebra.waiting import each

from .demands import (
    Failure,
    Infeasible,
    below,
    causes_first,
    check,
    concerns,
    dwindles,
    look_ahead,
    met,
    unfaithful,
    violation,
)
from .points import Points

_AHEAD = lead_within(AHEAD)
"""For the update after the horizon."""
_SHARED = 3
"""Sizes that may stay undecided before the others climb one rung alone."""


def left_open(at: Points, demands: Iterable[Demand], look: Analysis) -> tuple[Open, ...]:
    """The sizes that stay undecided, of demands of which none is seen to fail.

    A demand is met where bound and witness meet; the others are examined step by step. Behind one that stays
    undecided on the closer rungs the others climb the first two alone, and behind a few the first: unless effort is
    asked for.

    Raises:
        Infeasible: a demand does not hold.
    """
    demands = list(demands)
    for one, every in SHOWN:
        if one is None:
            check(demands, look)
        with at.within(every):
            demands = [*(d for d in each("deriving", "demands", demands) if not _met(at, d, look, one))]
    ahead = at.fresh(look.point)
    for demand in demands:
        if failure := look_ahead(demand, ahead, _AHEAD):
            raise Infeasible(failure)
    left: list[Open] = []
    closer, quick = look.closely(() if at.effort else CLOSELY), look.closely(QUICK[:1])
    for demand in each("certifying", "demands left", demands):
        failure = violation(demand, quick if len(left) >= _SHARED and not at.effort else look)
        if failure and failure.undecided and (at.effort or not left):
            failure = violation(demand, look, closer=closer)
        if failure and failure.open is None:
            raise Infeasible(failure, demand=demand)
        left += [failure.open] if failure and failure.open else []
    return tuple(replace(x, why=look.bounds.why or x.why) if x.why in ("", WORK) else x for x in left)


def _met(at: Points, demand: Demand, look: Analysis, work: int | None) -> bool:
    with at.within(work):
        return met(demand, look)


def unmet(
    at: Points, demands: Iterable[Demand], look: Analysis, work: int | None = None
) -> tuple[tuple[tuple[Demand, str], ...], tuple[Open, ...]]:
    """The demands that fail, in order of update and signal; and the sizes that are undecided of those that neither
    bound and witness nor a certificate show.

    Args:
        work: for all demands; then what diverges after one update, which takes the least, is looked for first.
    """
    ahead = at.fresh(look.point)
    failures: dict[Demand, Failure | None] = {}
    demands = [d for d in demands if concerns(d, at.optimizer)]

    def failure(d: Demand, first: bool) -> Failure | None:
        if first and not met(d, look):
            early = violation(d, look, horizon=1)
            return early if early and early.step <= 1 else Failure("", undecided=True)
        return None if met(d, look) else violation(d, look) or unfaithful(d, look) or look_ahead(d, ahead, _AHEAD)

    with at.within(work):
        for one in (None,) if work is None else (LITTLE, work // 4, None):
            for d in each("certifying", "demands", demands):
                with at.within(one):
                    failures[d] = failure(d, one is not None)
            demands = [d for d in demands if (left := failures[d]) and left.undecided]
    if work is None and demands:  # work that is not shared goes further
        alone = Analysis(at.ray, look.point, at.optimizer, at.network)
        failures |= {d: violation(d, alone) or unfaithful(d, alone) for d in demands}
    closer = look.but(ladder=())
    with at.within(PIECE):
        failures |= {d: dwindles(d, look, closer) or x for d, x in failures.items() if x and x.undecided}
    found = causes_first(failures, at.network)
    return tuple((d, x.reason) for d, x in found if not x.undecided), tuple(x.open for _, x in found if x.open)


def not_below(demands: Iterable[Demand], look: Analysis) -> None:
    """Examines what bounds alone show.

    Raises:
        Infeasible: something is bounded by less than it must be.
    """
    for d in demands:
        if failure := below(d, look):
            raise Infeasible(failure, demand=d)


def pieces(at: Points, demands: Sequence[Demand], look: Analysis) -> None:
    """Examines the pieces of sums over experts that one tensor makes, or none.

    Raises:
        Infeasible: there are no bounds, something is bounded by less than it must be, or a piece is undecided.
    """
    if look.bounds.why:
        raise Infeasible(look.bounds.why, undecided=True)
    not_below(demands, look)
    names = {f"{e.out}.{k}" for e in experts(at.network) for k, x in e.pieces.items() if x not in e.entering}
    for d in (d for d in demands if names.intersection(d.quantities)):
        with at.within(PIECE):
            if failure := violation(d, look.closely(QUICK[:1])):
                raise Infeasible(failure, demand=d)
