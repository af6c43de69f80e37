"""Budgets: how precisely a question keeps signals, and how much work it may take.

A ``Budget`` limits one run, for instance to the 12 largest kernels of each signal. Numbers called ``..._WORK`` limit a
whole search: they count nodes of matching searches, over all runs that the search uses.
Read next: ``analysis.py`` (tries the budgets one after the other), ``scaling_algebra/solver/search.py`` (shares out the
work).
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from scaling_algebra.counting.signals import Budget

NEAR, FAR = Fraction(1, 2), Fraction(1)
BUDGETS = (
    Budget(NEAR, most=12, leaves=8, work=10_000, total=30_000),
    Budget(FAR, most=12, leaves=8, work=10_000, total=30_000),
    Budget(NEAR, most=40, leaves=12, work=25_000, total=75_000),
    Budget(NEAR, most=60, leaves=20, work=100_000, total=150_000),
    Budget(NEAR, work=200_000, total=200_000),
    Budget(FAR, work=25_000, total=50_000),
    Budget(NEAR + FAR, work=25_000, total=50_000),
)
"""Budgets that are tried in this order until an answer is certified; the cheap ones come first. The work of every
product and of every question is limited, and counted as if nothing had been asked before, so an answer depends on the
question alone."""
SEARCH_BUDGETS = (*BUDGETS[:4], BUDGETS[5])
"""Budgets for questions on whose answer another answer depends; the remaining ones take most of the time of a
search."""
QUICK_BUDGETS = (BUDGETS[0], BUDGETS[2])
"""Budgets for a leading kernel, and for all questions at intermediate points of a search."""
INITIAL_BUDGET = Budget(NEAR, work=25_000, total=75_000, doubts=64, numbers=True)
"""Additional budget for sizes before training. Few kernels are left where a norm removes a direction, so all of them
are kept."""
SMALLEST_BUDGET = replace(BUDGETS[0], work=500, total=2_000)
"""Budget with little work that keeps more kernels than ``WITNESS_BUDGETS``."""
WITNESS_BUDGETS = (
    Budget(Fraction(0), most=12, leaves=6, work=500, total=10_000),
    Budget(Fraction(0), most=8, leaves=8, work=4_000, total=40_000),
)
"""Budgets for a lower bound, for which the leading kernels suffice."""
RESTRICTED_BUDGETS = (
    Budget(Fraction(1, 64), most=24, work=1_000, total=20_000, doubts=96),
    Budget(Fraction(1, 64), most=60, work=8_000, total=160_000, doubts=96),
)
"""Budgets for restricted runs (``parts.py``). They keep every kernel as large as the leading one. The first one uses
polynomials of degree one; the second one confirms what the first one found to be as large as its upper bound."""

WORK_LIMIT_REASON = "skipped terms may be as large; the work limit was reached (derive --effort goes on)"
"""Reason for an undecided size if nothing else prevents an answer."""
SINGLE_RUN_WORK = 60_000
"""Work for finding one run that certifies an answer by itself, if a restricted run has shown it already."""
DEMAND_WORK: tuple[tuple[int | None, int | None], ...] = ((8_000, None), (80_000, 160_000), (None, None))
"""Pairs (work for the upper bound and the witness of one demand, work for those of all demands), tried in this order;
None is no limit. Demands that remain open get more work."""
PROPOSAL_WORK = 200_000
"""Work for showing that the layer-wise law meets all demands except those that remain open."""
FIRST_DEMAND_WORK = 5_000
"""Work for one demand as long as some demands have not been examined at all."""
NEXT_UPDATE_WORK = 5_000
"""Maximum number of nodes of one product for the update after the horizon."""
PIECE_WORK = 100_000
"""Work for the piece of a sum over experts that is due to one tensor."""
STRUCTURES_WORK = 1_200_000
"""Work for all structures together if each is judged at the layer-wise law."""
