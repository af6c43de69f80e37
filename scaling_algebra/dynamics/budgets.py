"""The table of budgets: how precisely a question keeps signals, and how much work it may take.

A rung limits one run. The work of a search is in nodes of matching searches, over all the runs that it asks.
Read next: ``analysis.py`` (climbs the rungs), ``scaling_algebra/solver/search.py`` (shares out the work).
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from scaling_algebra.counting.signals import Budget

NEAR, FAR = Fraction(1, 2), Fraction(1)
LADDER = (
    Budget(NEAR, most=12, leaves=8, work=10_000, total=30_000),
    Budget(FAR, most=12, leaves=8, work=10_000, total=30_000),
    Budget(NEAR, most=40, leaves=12, work=25_000, total=75_000),
    Budget(NEAR, most=60, leaves=20, work=100_000, total=150_000),
    Budget(NEAR, work=200_000, total=200_000),
    Budget(FAR, work=25_000, total=50_000),
    Budget(NEAR + FAR, work=25_000, total=50_000),
)
"""Climbed until an answer is certified, the cheap rungs first. The work of every product and of every question is
limited, and counted as if nothing had been asked before, so that an answer depends on the question alone."""
CLOSELY = (*LADDER[:4], LADDER[5])
"""Rungs that a question may climb where an answer depends on it; the others cost most of the time of a search."""
QUICK = (LADDER[0], LADDER[2])
"""Rungs that the leading kernel may take, and every question at points on the way to an answer."""
BEGUN = Budget(NEAR, work=25_000, total=75_000, doubts=64, numbers=True)
"""That of sizes before training, beside the others: of what norms take away there are few kernels, so all are kept."""
SIMPLEST = replace(LADDER[0], work=500, total=2_000)
"""More kernels than a witness has, for little work."""
WITNESSES = (
    Budget(Fraction(0), most=12, leaves=6, work=500, total=10_000),
    Budget(Fraction(0), most=8, leaves=8, work=4_000, total=40_000),
)
"""Rungs that a witness may climb: the leading kernels are enough to show a size from below."""
PARTS = (
    Budget(Fraction(1, 64), most=24, work=1_000, total=20_000, doubts=96),
    Budget(NEAR, most=24, work=1_000, total=20_000, doubts=96, numbers=True),
    Budget(Fraction(1, 64), most=60, work=8_000, total=160_000, doubts=96),
)
"""Those of a run in which little happens: all that is as large as the leading kernel is kept, on the first with
polynomials of degree one. The second is for sizes up to the first update, which follow from gradients before training:
as little is kept of what norms take away from these as ``BEGUN`` keeps. The last decides what the first found as large
as its bound."""

WORK = "what it is a sum of takes more work than a question may (derive --effort goes on)"
"""The reason where nothing else stands in the way, and no part of a size was found."""
FOUND = "parts of "
"""How the reason begins where some were found."""
ALONE = 60_000
"""Work for a run that certifies by itself what one in which less happens shows."""
SHOWN: tuple[tuple[int | None, int | None], ...] = ((8_000, None), (80_000, 160_000), (None, None))
"""Work that bound and witness of one demand may take, and those of all: a little first, then of what is left more."""
PROPOSED = 200_000
"""Work until the layer-wise law is shown to hold but for what is open."""
LITTLE = 5_000
"""Work for one demand before all of them were asked."""
AHEAD = 5_000
"""Nodes that one product may take on the update after the horizon."""
STARTS = 60_000
"""Work for a size before training that steps divide by."""
PIECE = 100_000
"""Work for a piece of a sum over experts that one tensor makes."""
STRUCTURES = 1_200_000
"""Work for all structures where each is judged at the layer-wise law."""
