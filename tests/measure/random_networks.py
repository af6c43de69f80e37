"""Random networks, trained by an interpreter of its own: no certified exponent is wrong.

Every case is asked, trained in float64 at 5 to 7 sizes and judged (``judge.py``); what disagrees is followed to larger
sizes. `python -m tests.measure.campaign FIRST LAST ...` settles cases before, in pieces; what one engine settled
is kept.
"""

from collections import Counter

import pytest

torch = pytest.importorskip("torch")

from .campaign import SETTLED, case_of

DEPENDS = ("derives", "interprets")
SEEDS = (*range(120), *range(400, 440), *range(800, 840), *range(1200, 1300))
"""Of all kinds of networks, some with K < M, with products and sums of the same signals, and with ``SHAPES``."""
BLOCK = 20


@pytest.mark.parametrize("block", range(len(SEEDS) // BLOCK))
def test_no_certified_exponent_is_wrong(block, record_property):
    found = [case_of(seed) for seed in SEEDS[BLOCK * block : BLOCK * (block + 1)]]
    record_property("outcomes", dict(Counter(x["outcome"] for x in found)))
    record_property("values", dict(sum((Counter(x.get("values")) for x in found), Counter())))
    wrong = [x for x in found if x.get("refuted") and x["seed"] not in SETTLED]
    assert not wrong, "\n\n".join(f"case {x['seed']}\n{x['case']}\n" + "\n".join(x["refuted"]) for x in wrong)
