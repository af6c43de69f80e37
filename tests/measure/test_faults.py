"""T1 to T4, on which the engine was wrong: trained, they agree; with the fault planted again, they are refuted.

T5 is a message, on the network of T2. What is derived on all five: tests/engine/test_functions.py.
"""

from dataclasses import replace
from fractions import Fraction

import pytest

torch = pytest.importorskip("torch")

from scaling_algebra.counting.signals import Scalar
from scaling_algebra.dynamics import updates
from scaling_algebra.spec.networks.functions import FUNCTIONS

from .campaign import follow, planted
from .networks import KNOWN

DEPENDS = ("counts", "interprets", "scaling_algebra/spec/networks", "scaling_algebra/spec/optimizers.py")


@pytest.mark.parametrize("name", KNOWN)
def test_networks_that_were_wrong(name, record_property):
    report = follow(KNOWN[name])
    record_property("values", report.counts)
    assert not report.refuted, list(report.lines())


def unrepaired(name, monkeypatch):
    """The engine with a fault that it had."""
    if name in ("T1", "T2"):
        powers = frozenset({1} if name == "T1" else {1, 2})
        monkeypatch.setitem(FUNCTIONS, "tanh", replace(FUNCTIONS["tanh"], powers=powers))
    elif name == "T3":
        monkeypatch.setattr(updates, "sign_factors", lambda tr, role, t, gradients: gradients)
    else:
        monkeypatch.setattr(
            updates, "scale_singular_values", lambda tr, role, gradients: [Scalar("one", 0) for _ in gradients]
        )


@pytest.mark.parametrize("name", KNOWN)
def test_what_is_not_repaired_is_found(name, monkeypatch, record_property):
    """The negative control: a function without its cubic part, one without its parity, signs of positive factors, sums
    of directions divided by their Frobenius norm."""
    unrepaired(name, monkeypatch)
    found = list(follow(KNOWN[name]).lines())
    record_property("refuted", found)
    assert found


@pytest.mark.parametrize("off", (Fraction(1, 2), Fraction(-1, 2)))
def test_exponents_that_are_off_by_a_half_are_found(off, record_property):
    words = planted(KNOWN["T1"], off)
    record_property("verdicts", dict(words))
    assert words["AGREES"] <= words.total() / 50 and words["REFUTED"] >= 0.8 * words.total(), words
