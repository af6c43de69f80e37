"""Slopes, intervals and verdicts on made-up numbers, with negative controls."""

from __future__ import annotations

from fractions import Fraction

import pytest

np = pytest.importorskip("numpy")

from scaling_algebra.verify.judging.fit import Fit, Verdict, fit, judge_exponent, zeros_to_rounding

N = [32, 64, 128, 256, 512]


def power_law(exponent: float, seeds: int = 64, noise: float = 0.05, correction: float = 0.0) -> list:
    rng = np.random.default_rng(3)
    return [n**exponent * (1 + correction / n**0.5) * np.exp(noise * rng.standard_normal(seeds)) for n in N]


@pytest.mark.parametrize("exponent", [Fraction(-5, 2), Fraction(-1, 2), Fraction(0), Fraction(1)])
def test_a_power_law_agrees_with_its_exponent_and_refutes_its_neighbours(exponent):
    measured = fit(N, power_law(float(exponent)))
    assert measured.slope == pytest.approx(float(exponent), abs=0.02)
    assert judge_exponent(measured, exponent) is Verdict.AGREES
    for wrong in (exponent - Fraction(1, 2), exponent + Fraction(1, 2), exponent + 3):
        assert judge_exponent(measured, wrong) is Verdict.REFUTED


def test_one_random_scalar_per_seed_is_fitted_through_its_mean_square():
    rng = np.random.default_rng(0)
    measured = fit(N, [abs(rng.standard_normal(64)) / n for n in N])
    assert judge_exponent(measured, Fraction(-1)) is Verdict.AGREES


def test_noise_is_inconclusive():
    rng = np.random.default_rng(1)
    measured = fit(N, [np.exp(6 * rng.standard_normal(8)) for _ in N])
    assert judge_exponent(measured, Fraction(0)) is Verdict.INCONCLUSIVE


def test_a_law_that_still_bends_gets_a_wider_interval():
    straight, bent = fit(N, power_law(-0.5, noise=0.01)), fit(N, power_law(-0.5, noise=0.01, correction=8))
    assert bent.high - bent.low > 2 * (straight.high - straight.low)
    upper = fit(N[2:], power_law(-0.5, noise=0.01, correction=8)[2:])
    assert bent.low <= upper.slope <= bent.high


def test_a_slope_that_bends_towards_the_prediction_is_not_refuted():
    approaching = Fit(-1.44, 0.07, -1.60, -1.26, -1.07, False, 6, 25)
    assert judge_exponent(approaching, Fraction(-1)) is Verdict.INCONCLUSIVE
    assert judge_exponent(approaching, Fraction(-2)) is Verdict.REFUTED
    leaving = Fit(-1.44, 0.07, -1.60, -1.26, -1.60, False, 6, 25)
    assert judge_exponent(leaving, Fraction(-1)) is Verdict.REFUTED


@pytest.mark.parametrize(("sizes", "seeds"), [(2, 64), (5, 3)])
def test_too_few_sizes_or_seeds_are_inconclusive(sizes, seeds):
    measured = fit(N[:sizes], power_law(0, seeds)[:sizes])
    assert judge_exponent(measured, Fraction(0)) is Verdict.INCONCLUSIVE
    assert judge_exponent(measured, Fraction(2)) is Verdict.INCONCLUSIVE


def test_exactly_zero():
    zero = fit(N, [np.zeros(8) for _ in N])
    assert judge_exponent(zero, None) is Verdict.AGREES
    assert judge_exponent(zero, Fraction(-1)) is Verdict.REFUTED
    assert judge_exponent(fit(N, power_law(-1)), None) is Verdict.REFUTED
    assert zeros_to_rounding(np.array([1e-20, 1e-3]), 1.0).tolist() == [0.0, 1e-3]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_inconclusive(bad):
    values = power_law(0)
    values[2][0] = bad
    assert judge_exponent(fit(N, values), Fraction(0)) is Verdict.INCONCLUSIVE


def test_a_finer_grid_of_exponents_needs_a_tighter_fit():
    measured = fit(N, power_law(-0.25))
    assert judge_exponent(measured, Fraction(-1, 4), Fraction(1, 4)) is Verdict.AGREES
    assert judge_exponent(measured, Fraction(-1, 2), Fraction(1, 4)) is Verdict.REFUTED


def test_the_same_data_give_the_same_fit():
    assert fit(N, power_law(0.5)) == fit(N, power_law(0.5))
