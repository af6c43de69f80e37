"""Budgets: how precisely a computation represents signals, and how much work it may take.

A ``Budget`` limits one training run, for instance to the 12 largest monomials of each signal. Constants called
``..._WORK`` limit a whole search. Work is counted in nodes: a product of two signals is computed by a search that pairs
equal initial tensors, and every partial or complete pairing that it visits is a node. The count includes all training
runs that the search uses. A *query* is one request for the size of a quantity.
Read next: ``analysis.py`` (tries the budgets one after the other), ``scaling_algebra/solver/search.py`` (distributes
the work).
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from scaling_algebra.counting.signals import Budget

NEAR, FAR = Fraction(1, 2), Fraction(1)
BUDGETS = (
    Budget(NEAR, max_kernels=12, max_leaves=8, max_nodes=10_000, max_total_nodes=30_000),
    Budget(FAR, max_kernels=12, max_leaves=8, max_nodes=10_000, max_total_nodes=30_000),
    Budget(NEAR, max_kernels=40, max_leaves=12, max_nodes=25_000, max_total_nodes=75_000),
    Budget(NEAR, max_kernels=60, max_leaves=20, max_nodes=100_000, max_total_nodes=150_000),
    Budget(NEAR, max_nodes=200_000, max_total_nodes=200_000),
    Budget(FAR, max_nodes=25_000, max_total_nodes=50_000),
    Budget(NEAR + FAR, max_nodes=25_000, max_total_nodes=50_000),
)
"""Budgets that are tried in this order until an answer is certified; the cheap ones come first. The work of every
product and of every query is limited, and counted as if nothing were cached, so an answer depends on the query
alone."""
SEARCH_BUDGETS = (*BUDGETS[:4], BUDGETS[5])
"""Budgets for queries on whose answers other answers depend. They are some of ``BUDGETS``; the others take most of the
time of a search."""
QUICK_BUDGETS = (BUDGETS[0], BUDGETS[2])
"""Budgets for finding the largest monomial of a quantity, and for all queries about exponents that a search tries only
in between."""
INITIAL_BUDGET = Budget(NEAR, max_nodes=25_000, max_total_nodes=75_000, max_doubts=64, bounds_inner_products=True)
"""Additional budget for sizes before training. Few monomials are left after a norm has removed a direction, so all of
them are kept."""
SMALLEST_BUDGET = replace(BUDGETS[0], max_nodes=500, max_total_nodes=2_000)
"""Budget with little work that keeps more monomials than ``WITNESS_BUDGETS``."""
WITNESS_BUDGETS = (
    Budget(Fraction(0), max_kernels=12, max_leaves=6, max_nodes=500, max_total_nodes=10_000),
    Budget(Fraction(0), max_kernels=8, max_leaves=8, max_nodes=4_000, max_total_nodes=40_000),
)
"""Budgets for finding a lower bound, for which the largest monomials of each signal suffice."""
RESTRICTED_BUDGETS = (
    Budget(Fraction(1, 64), max_kernels=24, max_nodes=1_000, max_total_nodes=20_000, max_doubts=96),
    Budget(
        NEAR,
        max_kernels=24,
        max_nodes=1_000,
        max_total_nodes=20_000,
        max_doubts=96,
        bounds_inner_products=True,
    ),
    Budget(Fraction(1, 64), max_kernels=60, max_nodes=8_000, max_total_nodes=160_000, max_doubts=96),
)
"""Budgets for restricted runs (``parts.py``). They keep every monomial as large as the leading one. The first one uses
polynomials of degree one. The second one is for sizes up to the first update, which follow from gradients before
training; like ``INITIAL_BUDGET``, it only bounds the inner products that norms remove. The last one confirms sizes
that the first one found to be equal to their upper bounds."""

WORK_LIMIT_REASON = "adding up its terms takes more work than the limit for one size (derive --effort goes on)"
"""Reason for an undecided size if nothing but the limit prevents an answer, and no monomial of it was found."""
FOUND = "terms of size "
"""Beginning of the reason for an undecided size if monomials of the quantity were found."""
SINGLE_RUN_WORK = 60_000
"""Work for finding one training run that certifies an answer alone, if a restricted run has proved it already."""
DEMAND_WORK: tuple[tuple[int | None, int | None], ...] = ((8_000, None), (80_000, 160_000), (None, None))
"""Pairs (work for the upper and the lower bound of one demand, work for those of all demands), tried in this order;
None is no limit. Demands that remain undecided get the next, larger pair."""
PROPOSAL_WORK = 200_000
"""Work for showing that the powers that follow from the shapes of the tensors alone (the layer-wise law) meet all
demands except those that remain undecided."""
FIRST_DEMAND_WORK = 5_000
"""Work for one demand as long as some demands have not been examined at all."""
NEXT_UPDATE_WORK = 5_000
"""Maximum number of nodes of one product for the first update after those that the demands cover."""
INITIAL_SIZE_WORK = 20_000
"""Work for a size before training by which steps are divided."""
PIECE_WORK = 100_000
"""Work for computing the part of a sum over experts that is due to the change of one tensor."""
STRUCTURES_WORK = 1_200_000
"""Work for all structures (choices of tensors that start at zero or alike in all experts) together, if each is tried
only with the powers that follow from the shapes of the tensors (the layer-wise law)."""
