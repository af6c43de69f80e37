"""Construction A: its parts against sums by hand, and what each must show at a small size."""

from fractions import Fraction

import numpy as np
import pytest

pytest.importorskip("torch")

from scaling_algebra.verify.experiments.charts import CHARTS, LINE, NOISE, PLANE, Target, errors
from scaling_algebra.verify.experiments.findings import Plan
from scaling_algebra.verify.judging.fit import Verdict


def test_charts_are_cubes():
    x = np.array([[0.1, 0.1], [0.6, 0.1], [0.1, 0.6], [0.999, 0.999]])
    assert list(PLANE.chart(x, 4)) == [0, 1, 2, 3] and list(LINE.chart(x[:, :1], 2)) == [0, 1, 0, 1]


def test_a_smoother_target_is_easier():
    rough, smooth = (errors(Target(Fraction(b), 1), 64, 1000, 0)[0] for b in ("1/4", "3/4"))
    assert smooth < rough / 4


def test_error_is_the_sum_of_its_parts():
    approximation, estimation, whole = np.mean([errors(LINE, 32, 5000, seed) for seed in range(24)], axis=0)
    assert whole == pytest.approx(approximation + estimation, rel=0.05)
    assert estimation == pytest.approx((NOISE**2 + approximation) * 32 / 5000, rel=0.2)
    assert estimation != pytest.approx(NOISE**2 * np.log(32) / 5000, rel=0.2), "negative control"


@pytest.mark.parametrize("trial", CHARTS.trials[:3], ids=lambda t: t.title)
def test_claims_at_a_small_size(trial):
    findings = trial.run(Plan("cpu", (16, 64, 256), 4))
    assert [f.outcome for f in findings] == [Verdict.AGREES] * 2
    assert findings[1].verdict is Verdict.REFUTED
