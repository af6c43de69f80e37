"""Random networks, trained by an interpreter of its own: no certified exponent is wrong.

Every case is asked, trained in float64 at 5 to 7 sizes and judged (``judge.py``); what disagrees is followed to larger
sizes. `python -m tests.measure.campaign FIRST LAST` settles cases before, in pieces; what one engine settled is kept.
"""

from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest

torch = pytest.importorskip("torch")

from scaling_algebra.counting.signals import Scalar
from scaling_algebra.dynamics import trajectory
from scaling_algebra.spec.networks.language import FUNCTIONS

from .campaign import SCALES, answers, case_of, follow, measured
from .judge import judge
from .networks import KNOWN

DEPENDS = (
    "scaling_algebra/counting",
    "scaling_algebra/dynamics",
    "scaling_algebra/spec/networks",
    "scaling_algebra/spec/optimizers.py",
    "tests/measure/campaign.py",
    "tests/measure/interpreter.py",
    "tests/measure/judge.py",
    "tests/measure/networks.py",
)
BLOCK, BLOCKS = 20, 20


@pytest.mark.parametrize("block", range(BLOCKS))
def test_no_certified_exponent_is_wrong(block, record_property):
    found = [case_of(seed) for seed in range(BLOCK * block, BLOCK * (block + 1))]
    values = sum((Counter(x.get("values")) for x in found), Counter())
    record_property("cases", dict(Counter(x["outcome"] for x in found)))
    record_property("values", dict(values))
    wrong = [f"case {x['seed']}\n{x['case']}\n" + "\n".join(x["refuted"]) for x in found if x.get("refuted")]
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.parametrize("name", KNOWN)
def test_networks_that_were_wrong(name, record_property):
    report = follow(KNOWN[name])
    record_property("values", report.counts)
    assert not report.refuted, list(report.lines())


def unrepaired(name, monkeypatch):
    """The engine with a fault that it had."""
    if name in ("T1", "T2"):
        monkeypatch.setitem(FUNCTIONS, "tanh", replace(FUNCTIONS["tanh"], powers=frozenset({1})))
    elif name == "T3":
        monkeypatch.setattr(trajectory, "signs", lambda tr, role, t, gradients: gradients)
    else:
        monkeypatch.setattr(trajectory, "apart", lambda tr, role, t, gradients: [Scalar("one", 0) for _ in gradients])


@pytest.mark.parametrize("name", KNOWN)
def test_what_is_not_repaired_is_found(name, monkeypatch, record_property):
    """The negative control: functions without their cubic part, signs of positive factors, sums of directions."""
    unrepaired(name, monkeypatch)
    found = list(follow(KNOWN[name]).lines())
    record_property("refuted", found)
    assert found


@pytest.mark.parametrize("off", (Fraction(1, 2), Fraction(-1, 2)))
def test_exponents_that_are_off_by_a_half_are_found(off, record_property):
    said, point = answers(KNOWN["T1"])
    values = measured(KNOWN["T1"], point, SCALES)
    predicted = {key: e for key, (state, e) in said.items() if key in values and state == "decided" and e is not None}
    words = Counter(judge(SCALES, values[key], e + off).word for key, e in predicted.items())
    record_property("verdicts", dict(words))
    assert words["AGREES"] <= len(predicted) / 50 and words["REFUTED"] >= 0.8 * len(predicted), words
