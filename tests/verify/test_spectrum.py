"""Sizes as sums of powers, on made-up numbers with negative controls, and on one small run."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("scipy")

from scaling_algebra import signals
from scaling_algebra.verify import judge
from scaling_algebra.verify.judging.fit import Verdict, fit, judge_exponent
from scaling_algebra.verify.judging.report import spectrum_of
from scaling_algebra.verify.judging.spectrum import powers_below, spectrum

HALF = Fraction(1, 2)
N = [64, 112, 197, 346, 608]
WIDE = [64, 124, 238, 458, 880]


def powers(p):
    return p, p - HALF, p - 2 * HALF


def values(sizes, size, seeds=64, noise=0.05):
    """Root-mean-squares of every seed around ``size(n)``."""
    rng = np.random.default_rng(5)
    return [size(n) * np.exp(noise * rng.standard_normal(seeds)) for n in sizes]


def small_beside_large(n):
    """The size of h3.A2.2 at t = 2 (regime II, Adam, muP, base constants drawn at random), in mean square."""
    return (0.0279**2 / n + 0.868**2 / n**2) ** 0.5


@pytest.mark.parametrize("exponent", [Fraction(-5, 2), -HALF, Fraction(0), Fraction(1)])
def test_a_power_law_agrees_with_its_exponent_and_refutes_its_neighbours(exponent):
    data = values(N, lambda n: n ** float(exponent))
    found = spectrum(N, data, powers(exponent), exponent + HALF)
    assert found.verdict is Verdict.AGREES and found.good and found.leads == pytest.approx(N[0], rel=0.02)
    for wrong in (exponent - HALF, exponent + HALF, exponent - 1, exponent + 1):
        assert spectrum(N, data, powers(wrong), wrong + HALF).verdict is Verdict.REFUTED


def test_a_small_leading_power_is_seen_where_one_slope_reads_something_between():
    data = values(WIDE, small_beside_large)
    assert judge_exponent(fit(WIDE, data), -HALF) is not Verdict.AGREES
    found = spectrum(WIDE, data, powers(-HALF), Fraction(0))
    assert found.verdict is Verdict.AGREES and 0.3 < found.leading.low < found.leading.high < 0.6
    assert found.leads == pytest.approx((0.868 / 0.0279) ** 2, rel=0.35)
    assert found.larger.absent and spectrum(WIDE, data, powers(Fraction(0)), HALF).verdict is Verdict.REFUTED


def test_a_leading_power_that_is_not_there_is_not_seen():
    """The same without the small power: now one slope is right, and the spectrum says so."""
    data = values(WIDE, lambda n: 0.868 / n)
    found = spectrum(WIDE, data, powers(-HALF), Fraction(0))
    assert found.verdict is Verdict.REFUTED and found.leading.absent


@pytest.mark.parametrize("correction", [-0.4, 0.4, 2])
def test_finite_size_corrections_of_either_sign_need_no_larger_power(correction):
    data = values(N, lambda n: (1 + correction * N[0] / n) ** 0.5)
    found = spectrum(N, data, powers(Fraction(0)), HALF)
    assert found.verdict is Verdict.AGREES and not found.larger.seen


def test_a_bend_downwards_beyond_finite_size_corrections_refutes():
    data = values(N, lambda n: 1 / (1 + (200 / n) ** 2))
    assert spectrum(N, data, powers(Fraction(0)), HALF).verdict is not Verdict.AGREES


def test_noise_decides_nothing_and_too_little_is_not_fitted():
    rng = np.random.default_rng(1)
    wild = [np.exp(3 * rng.standard_normal(8)) for _ in N]
    assert spectrum(N, wild, powers(Fraction(0)), HALF).verdict is Verdict.INCONCLUSIVE
    data = values(N, lambda n: 1.0)
    assert spectrum(N[:2], data[:2], powers(Fraction(0)), HALF) is None
    assert spectrum(N, [v[:3] for v in data], powers(Fraction(0)), HALF) is None
    assert spectrum(N, [0 * v for v in data], powers(Fraction(0)), HALF) is None
    assert spectrum(N, [*data[:4], np.full(64, np.nan)], powers(Fraction(0)), HALF) is None


def test_the_same_data_give_the_same_spectrum():
    data = values(N, lambda n: n**-0.5)
    found = [spectrum(N, data, powers(-HALF), Fraction(0)) for _ in range(2)]
    assert found[0] == found[1] and json.loads(json.dumps(found[0].as_json()))["leading"]["exponent"] == "-1/2"


def test_powers_below_are_those_of_the_engine_and_of_finite_sizes():
    quarter, zero = Fraction(1, 4), Fraction(0)
    assert powers_below(zero, HALF, {Fraction(1)}, None) == (0, -HALF, -1)
    assert powers_below(zero, quarter, {Fraction(1)}, [(zero, True), (Fraction(-1), False)]) == (0, -HALF, -1)
    assert powers_below(zero, quarter, {Fraction(1)}, [(zero, True), (-quarter, True)]) == (0, -quarter, -HALF)
    assert powers_below(zero, quarter, {Fraction(1)}, [(zero, True), (-HALF, False)]) == (0, -HALF, -3 * quarter)
    assert powers_below(zero, quarter, {HALF}, [(zero, True)]) == (0, -quarter, -HALF)


def test_the_engine_knows_the_powers_of_every_size():
    """The largest is the exponent itself, and a quantity that is exactly zero has none."""
    found = signals(regime="II", optimizer="adam", parameterization="mup", steps=2)
    analysis = found.derivation.analysis()
    for name in ("h1", "h3.A2.2", "h3.propagating", "g1", "dW2"):
        for t, answer in enumerate(found.quantities[name]):
            known = analysis.powers(name, t)
            assert max((e for e, _ in known), default=None) == answer.exponent
    assert (Fraction(-1), True) in analysis.powers("h3.A2.2", 2)


def rows(size):
    names = range(64)
    data = values(WIDE, size)
    return [dict(quantity="x", n=n, seed=k, value=v[k]) for n, v in zip(WIDE, data, strict=True) for k in names]


def test_a_report_shows_both_and_a_power_that_is_seen_is_not_refuted_by_the_slope():
    report = judge(rows(small_beside_large), {"x": "-1/2"})
    (row,) = report.rows
    assert row.spectrum.verdict is Verdict.AGREES and row.verdict is not Verdict.REFUTED
    assert "spectrum says" in str(report) and row.as_json()["spectrum"]["verdict"] == "AGREES"
    (absent,) = judge(rows(lambda n: 0.868 / n), {"x": "-1/2"}).rows
    assert absent.verdict is Verdict.REFUTED and absent.spectrum.verdict is Verdict.REFUTED
    (fine,) = judge(rows(lambda n: 0.868 / n), {"x": "-1"}).rows
    assert fine.verdict is Verdict.AGREES and fine.spectrum is None


def test_a_small_run_is_the_sum_that_the_engine_predicts():
    """Of what the slope leaves no doubt about: no spectrum refutes it, all refute the neighbours above."""
    pytest.importorskip("torch")
    from scaling_algebra import derive
    from scaling_algebra.verify import measure

    made = derive(regime="I", optimizer="sgd", parameterization="mup")
    predicted = signals(regime="I", optimizer="sgd", parameterization="mup", steps=1)
    run = measure(made, sizes=[32, 64, 128, 256], seeds=32, steps=1, device="cpu")
    known = predicted.derivation.analysis().powers
    asked = [(q, 1, predicted.quantities[q][1].exponent) for q in ("h1", "h3.A3", "h2.effective", "dW2", "h3.A1")]
    right = [spectrum_of(run, *one, known).verdict for one in asked]
    assert Verdict.REFUTED not in right and right.count(Verdict.AGREES) >= 4, right
    wrong = [spectrum_of(run, q, t, p + sign * HALF, known).verdict for q, t, p in asked for sign in (-1, 1)]
    assert wrong.count(Verdict.REFUTED) >= 8 and Verdict.AGREES not in wrong, wrong
