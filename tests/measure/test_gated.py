"""MSSP of gated experts: what is certified of SwiGLU experts, measured with real steps of torch.optim."""

import pytest

pytest.importorskip("torch")

from scaling_algebra import signals
from scaling_algebra.verify.judging.verdicts import judge
from scaling_algebra.verify.measuring.runs import measure

DEPENDS = ("scaling_algebra/spec/networks/library.toml", "scaling_algebra/spec/desiderata.py")
SIZES = {"II": [24, 36, 54, 81, 120]}
SEEDS = 32
PIECES = ["h3.A1", "h3.A2.1", "h3.A2.2", "h3.A2.3", "h3.A3", "h3i", "h3", "h1.change", "psi.change", "f.change"]
"""What MSSP asks of the sum, and what it is made of."""


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("regime", ["II"])
def test_mssp_of_swiglu_is_measured(regime, optimizer, record_property):
    """None is refuted; muP's exponents are, under MSSP's training."""
    predicted = signals(regime, optimizer, "mssp", architecture="swiglu", quantities=PIECES)
    found = measure(predicted.derivation, sizes=SIZES[regime], seeds=SEEDS, device="cpu")
    report = judge(found, predicted.prediction())
    other = signals(regime, optimizer, "mup", architecture="swiglu", quantities=PIECES).prediction()
    control = judge(found, {x: row for x, row in other.items() if row != predicted.prediction().get(x)})
    record_property("sizes", SIZES[regime])
    for name, counts in (("mssp", report.counts), ("mup", control.counts)):
        record_property(name, {str(verdict): n for verdict, n in counts.items()})
    assert not report.counts["REFUTED"] and report.counts["AGREES"] > 2 * report.counts["INCONCLUSIVE"]
    assert control.counts["REFUTED"]
