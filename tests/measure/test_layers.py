"""Whole layers of language models (attention, norms, held gates, SwiGLU experts): muP, trained at several sizes."""

import pytest

from scaling_algebra import signals
from scaling_algebra.verify import judge, measure

DEPENDS = ("derives", "trains")
SIZES, WIDER = (64, 128, 256, 512), (64, 128, 256, 512, 1024)


@pytest.mark.parametrize(
    ("name", "rule", "sizes", "seeds", "least"),
    [
        ("deepseek-v3", "adam", SIZES, 12, 0.9),
        ("mixtral", "adam", WIDER, 24, 0.9),
        ("mixtral", "sgd", WIDER, 24, 0.7),
    ],
)
def test_nothing_certified_is_refuted(name, rule, sizes, seeds, least, record_property):
    """``least``: of the exponents, how many agree; the others come to their powers above these sizes."""
    look = signals(None, rule, "mup", ray="N=1,N_e=1,M=0", architecture=name)
    report = judge(measure(look.derivation, sizes=sizes, seeds=seeds, device="cpu"), look.prediction())
    record_property("exponents", {str(k): v for k, v in report.tally.exponents.items()})
    record_property("zeros", {str(k): v for k, v in report.tally.zeros.items()})
    assert report.tally.refuted == 0 and all(gate.passed for gate in report.gates), str(report)
    assert report.tally.exponents["AGREES"] > least * sum(report.tally.exponents.values())
