"""Measured exponents on rays away from regimes I to III, and negative controls."""

from fractions import Fraction

import pytest

torch = pytest.importorskip("torch")

from scaling_algebra import REGIMES, Ray, signals
from scaling_algebra.verify.judging.report import judge
from scaling_algebra.verify.measuring.runs import measure
from scaling_algebra.verify.measuring.sizes import dims_at

RAYS = {
    "N=1,N_e=3/2,M=1/2": [32, 45, 64, 90, 128],
    "N=1/2,N_e=1/2,M=1": [64, 128, 256, 512, 900],
    "N=1/2,N_e=1,M=1/4": [64, 128, 256, 512, 1024],
}
"""Inside the cell M <= N <= N_e, on the wall N_e = N below M, and on the edge M + N_e > N of narrow networks."""


@pytest.mark.slow
@pytest.mark.parametrize("ray", RAYS)
def test_measured_exponents_on_other_rays(ray):
    """muP with Adam: no exponent is refuted and most agree; half a power more, and none agrees and most are refuted."""
    predicted = signals(None, "adam", "mup", ray=ray)
    d = predicted.derivation
    found = measure(d, sizes=RAYS[ray], seeds=32)
    counts = judge(found, predicted.prediction()).counts
    assert counts["REFUTED"] == 0
    assert 3 * counts["AGREES"] > 2 * sum(counts.values())
    wrong = {
        name: tuple(None if p is None else p + Fraction(1, 2) for p in row)
        for name, row in predicted.prediction().items()
    }
    planted = [row.verdict for row in judge(found, wrong).rows if row.predicted is not None]
    assert "AGREES" not in planted
    assert 2 * planted.count("REFUTED") > len(planted)


def test_dimensions_follow_the_ray_from_the_first_size():
    """All sizes of a ray lie on one side of every wall; in the regimes all growing axes are equal."""
    assert dims_at(Ray.parse("N=1,N_e=1/2,M=3/2"), 64) == {"N": 64, "N_e": 8, "M": 512}
    assert dims_at(REGIMES["III"], 48) == {"N": 48, "N_e": 48, "M": 48}
