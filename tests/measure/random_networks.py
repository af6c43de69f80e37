"""Random networks, trained by an interpreter of its own: no certified exponent is wrong.

Every case is asked, trained in float64 at 5 to 7 sizes and judged (``judge.py``); what disagrees is followed to larger
sizes. What is wrong is shrunk, and printed with its equations.
"""

from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest

torch = pytest.importorskip("torch")

from scaling_algebra import Infeasible
from scaling_algebra.errors import UsageError
from scaling_algebra.spec.networks.language import FUNCTIONS

from .campaign import SCALES, TooLong, answers, drawn, follow, measured, shrunk
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
    counts, wrong, outcomes = Counter(), [], Counter()
    for seed in range(BLOCK * block, BLOCK * (block + 1)):
        try:
            report = follow(drawn(seed))
        except (Infeasible, TooLong, UsageError) as reason:
            outcomes[type(reason).__name__] += 1
            continue
        outcomes["trained"] += 1
        counts.update(report.counts)
        if report.refuted:
            small = shrunk(report)
            wrong.append(
                "\n".join([f"case {seed}", str(report.case), *report.lines(), str(small.case), *small.lines()])
            )
    record_property("cases", dict(outcomes))
    record_property("values", dict(counts))
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.parametrize("name", KNOWN)
def test_networks_that_were_wrong(name, record_property):
    report = follow(KNOWN[name])
    record_property("values", report.counts)
    assert not report.refuted, list(report.lines())


def test_a_function_read_as_mean_and_slope_is_found(monkeypatch, record_property):
    """The negative control: the cubic part of tanh left out of the engine."""
    monkeypatch.setitem(FUNCTIONS, "tanh", replace(FUNCTIONS["tanh"], powers=frozenset({1})))
    found = {name: list(follow(KNOWN[name]).lines()) for name in ("T1", "T2")}
    record_property("refuted", found)
    assert all(found.values())


@pytest.mark.parametrize("off", (Fraction(1, 2), Fraction(-1, 2)))
def test_exponents_that_are_off_by_a_half_are_found(off, record_property):
    said, point = answers(KNOWN["T1"])
    values = measured(KNOWN["T1"], point, SCALES)
    predicted = {key: e for key, (state, e) in said.items() if key in values and state == "decided" and e is not None}
    words = Counter(judge(SCALES, values[key], e + off).word for key, e in predicted.items())
    record_property("verdicts", dict(words))
    assert words["AGREES"] <= len(predicted) / 50 and words["REFUTED"] >= 0.8 * len(predicted), words
