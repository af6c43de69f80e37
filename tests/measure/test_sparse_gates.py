"""K of M experts with sigmoid, softmax and renormalised top-K gates: what is certified is measured.

A step averages over many tokens, each with its own K experts; sizes are those of tokens whose experts are held.
"""

from fractions import Fraction

import pytest

torch = pytest.importorskip("torch")

from ..engine.test_rules import GATED
from .campaign import follow, planted
from .networks import from_text

DEPENDS = ("counts", "interprets", "scaling_algebra/spec/networks", "tests/engine/test_rules.py")
INIT = "b.Q=1/2,b.W2=1/2,b.W3=1/2,b.W4=1"
RATES = {
    "sgd": "c.W1=-1,c.W2=-1,c.W3=-1,c.W4=1",
    "signsgd": "c.Q=1,c.W2=1,c.W3=1,c.W4=1",
}
GATES = {"sigmoid": "1/2", "topk_sigmoid": "1/2", "softmax": "-1/2", "topk_softmax": "0"}
"""A gate, and the exponent of one over the multiplier."""


def case(gate, rule):
    text = GATED.format(gate, "alpha ")
    text = text.replace("(psi[i]; i)", "(psi[i])") if gate == "sigmoid" else text
    point = f"b.W1=0,{INIT},{RATES[rule]},alpha={GATES[gate]}"
    return from_text(f"sparse-{gate}", text, rule, "N=1,N_e=1,M=1,K=1/2", point)


@pytest.mark.parametrize("rule", RATES)
@pytest.mark.parametrize("gate", GATES)
def test_what_is_certified_with_few_active_experts_is_measured(gate, rule, record_property):
    report = follow(case(gate, rule), further=())
    record_property("values", report.counts)
    assert not report.refuted, "\n".join(report.lines())
    assert report.counts["AGREES"] > 20


def test_exponents_that_are_off_by_a_half_are_found(record_property):
    """The negative control."""
    words = planted(case("sigmoid", "sgd"), Fraction(-1, 2))
    record_property("values", dict(words))
    assert words["REFUTED"] > 20 > words["AGREES"]
