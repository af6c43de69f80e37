"""Slopes, sums of powers, intervals and verdicts on made-up numbers, with negative controls, and on one small run."""

from __future__ import annotations

from fractions import Fraction

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("scipy")

from scaling_algebra import signals
from scaling_algebra.spec.networks.library import MOE_BLOCK
from scaling_algebra.verify import judge
from scaling_algebra.verify.judging.claims import Claim
from scaling_algebra.verify.judging.fit import Fit, Verdict, fit_exponent, judge_exponent, zero_rounding
from scaling_algebra.verify.judging.gates import check_planted_exponents
from scaling_algebra.verify.judging.mixtures import SEEN, TRACE, bound_share, list_powers_below
from scaling_algebra.verify.judging.regions import Acceptance, ClaimOutcome, name_outcome
from scaling_algebra.verify.judging.resampling import estimate_by_bootstrap, weighted_median
from scaling_algebra.verify.judging.verdicts import bound_share_of

HALF = Fraction(1, 2)
N = [64, 112, 197, 346, 608]
SIZES = [32, 64, 128, 256, 512]
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


def power_law(exponent: float, seeds: int = 64, noise: float = 0.05, correction: float = 0.0) -> list:
    rng = np.random.default_rng(3)
    return [n**exponent * (1 + correction / n**0.5) * np.exp(noise * rng.standard_normal(seeds)) for n in SIZES]


@pytest.mark.parametrize("exponent", [Fraction(-5, 2), Fraction(-1, 2), Fraction(0), Fraction(1)])
def test_a_slope_agrees_with_its_exponent_and_refutes_its_neighbours(exponent):
    measured = fit_exponent(SIZES, power_law(float(exponent)))
    assert measured.slope == pytest.approx(float(exponent), abs=0.02)
    assert judge_exponent(measured, exponent + Fraction(1, 4), Fraction(1, 4)) is Verdict.REFUTED  # on a finer grid
    assert judge_exponent(measured, exponent) is Verdict.AGREES
    for wrong in (exponent - Fraction(1, 2), exponent + Fraction(1, 2), exponent + 3):
        assert judge_exponent(measured, wrong) is Verdict.REFUTED


def test_one_random_scalar_per_seed_is_fitted_through_its_mean_square():
    rng = np.random.default_rng(0)
    measured = fit_exponent(SIZES, [abs(rng.standard_normal(64)) / n for n in SIZES])
    assert judge_exponent(measured, Fraction(-1)) is Verdict.AGREES


def test_noise_is_inconclusive():
    rng = np.random.default_rng(1)
    measured = fit_exponent(SIZES, [np.exp(6 * rng.standard_normal(8)) for _ in SIZES])
    assert judge_exponent(measured, Fraction(0)) is Verdict.INCONCLUSIVE


def test_a_law_that_still_bends_gets_a_wider_interval():
    straight, bent = (
        fit_exponent(SIZES, power_law(-0.5, noise=0.01)),
        fit_exponent(SIZES, power_law(-0.5, noise=0.01, correction=8)),
    )
    assert bent.high - bent.low > 2 * (straight.high - straight.low)
    upper = fit_exponent(SIZES[2:], power_law(-0.5, noise=0.01, correction=8)[2:])
    assert bent.low <= upper.slope <= bent.high


def test_a_slope_may_drift_by_a_tenth_however_wide_the_grid():
    off = {x: Fit(x, 0.01, x - 0.02, x + 0.02, x, x, False, 5, 32) for x in (0.08, 0.15)}
    said = {x: judge_exponent(f, Fraction(0), Fraction(2)) for x, f in off.items()}
    assert said == {0.08: Verdict.AGREES, 0.15: Verdict.INCONCLUSIVE}


def test_data_that_agree_with_a_wrong_exponent_plant_nothing():
    right, wrong = (Fit(x, 0.01, x - 0.02, x + 0.02, x, x, False, 5, 32) for x in (0.0, 0.5))
    half = Fraction(1, 2)
    assert check_planted_exponents([(right, Fraction(0))], half).passed
    assert not check_planted_exponents([(right, Fraction(0)), (wrong, Fraction(0))], half).passed


def test_a_slope_that_bends_towards_the_prediction_is_not_refuted():
    approaching = Fit(-1.44, 0.07, -1.60, -1.26, -1.07, -1.07, False, 6, 25)
    assert judge_exponent(approaching, Fraction(-1)) is Verdict.INCONCLUSIVE
    assert judge_exponent(approaching, Fraction(-2)) is Verdict.REFUTED
    leaving = Fit(-1.44, 0.07, -1.60, -1.26, -1.60, -1.60, False, 6, 25)
    assert judge_exponent(leaving, Fraction(-1)) is Verdict.REFUTED

    for last, towards, away in ((0.6, -1, 0), (0.4, 0, -1)):  # of pairs of sizes, as of a gradient behind a norm in II
        curve = fit_exponent(SIZES, [2**-y * power_law(0, noise=0.01)[0] for y in np.cumsum([0, 0.5, 0.3, 0.5, last])])
        assert judge_exponent(curve, Fraction(towards), later=True) is Verdict.INCONCLUSIVE
        assert all(judge_exponent(curve, Fraction(p), later=True) is Verdict.REFUTED for p in (away, -2))


@pytest.mark.parametrize(("sizes", "seeds"), [(2, 64), (5, 3)])
def test_too_few_sizes_or_seeds_are_inconclusive(sizes, seeds):
    measured = fit_exponent(SIZES[:sizes], power_law(0, seeds)[:sizes])
    assert judge_exponent(measured, Fraction(0)) is Verdict.INCONCLUSIVE
    assert judge_exponent(measured, Fraction(2)) is Verdict.INCONCLUSIVE


def test_exactly_zero():
    zero = fit_exponent(SIZES, [np.zeros(8) for _ in SIZES])
    assert judge_exponent(zero, None) is Verdict.AGREES
    assert judge_exponent(zero, Fraction(-1)) is Verdict.REFUTED
    assert judge_exponent(fit_exponent(SIZES, power_law(-1)), None) is Verdict.REFUTED
    assert zero_rounding(np.array([1e-20, 1e-3]), 1.0).tolist() == [0.0, 1e-3]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_inconclusive(bad):
    values = power_law(0)
    values[2][0] = bad
    assert judge_exponent(fit_exponent(SIZES, values), Fraction(0)) is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("exponent", [Fraction(-5, 2), -HALF, Fraction(0), Fraction(1)])
def test_a_power_law_is_a_mixture_with_its_exponent_and_with_no_neighbour(exponent):
    data = values(N, lambda n: n ** float(exponent))
    low, high = bound_share(N, data, powers(exponent))
    assert low >= SEEN and high == pytest.approx(1, abs=0.06)
    assert bound_share(N, data, powers(exponent - HALF)) is None and bound_share(N, data, powers(exponent - 1)) is None
    for wrong in (exponent + HALF, exponent + 1):
        assert bound_share(N, data, powers(wrong))[0] < 1e-6, "the data need no larger power"


def test_a_small_leading_power_is_seen_where_one_slope_reads_something_between():
    data = values(WIDE, small_beside_large)
    assert judge_exponent(fit_exponent(WIDE, data), -HALF) is not Verdict.AGREES
    low, high = bound_share(WIDE, data, powers(-HALF))
    assert SEEN < low < 0.476 < high < 0.7, "the share that was planted lies between"
    assert bound_share(WIDE, data, powers(-1)) is None, "and the larger power is needed"


def test_a_leading_power_that_is_not_there_is_not_seen():
    """The same without the small power: now one slope is right."""
    assert bound_share(WIDE, values(WIDE, lambda n: 0.868 / n), powers(-HALF))[0] < 1e-6
    steep = bound_share(WIDE, values(WIDE, lambda n: n**-2.5), powers(-HALF))
    assert steep is None or steep[1] < TRACE


@pytest.mark.parametrize("correction", [-0.4, 0.4, 2])
def test_finite_size_corrections_of_either_sign_need_no_larger_power(correction):
    data = values(N, lambda n: (1 + correction * N[0] / n) ** 0.5)
    assert bound_share(N, data, powers(Fraction(0)))[0] >= SEEN and bound_share(N, data, powers(HALF))[0] < 1e-6


def test_a_bend_downwards_beyond_finite_size_corrections_is_no_mixture():
    assert bound_share(N, values(N, lambda n: 1 / (1 + (200 / n) ** 2)), powers(Fraction(0))) is None


def test_noise_decides_nothing_and_too_little_is_not_fitted():
    rng = np.random.default_rng(1)
    wild = bound_share(N, [np.exp(3 * rng.standard_normal(8)) for _ in N], powers(Fraction(0)))
    assert wild is None or wild[0] < SEEN
    data = values(N, lambda n: 1.0)
    too_little = (N[:2], data[:2]), (N, [v[:3] for v in data]), (N, [0 * v for v in data])
    for sizes, few in (*too_little, (N, [*data[:4], np.full(64, np.nan)])):
        assert bound_share(sizes, few, powers(Fraction(0))) is None


@pytest.mark.parametrize(
    ("region", "interval", "verdict"),
    [
        (Acceptance(0.8, np.inf), (0.81, 0.9), Verdict.AGREES),
        (Acceptance(0.8, np.inf), (0.1, 0.79), Verdict.REFUTED),
        (Acceptance(0.8, np.inf), (0.8, 0.8), Verdict.INCONCLUSIVE),
        (Acceptance(-0.25, 0.25), (-0.2, 0.2), Verdict.AGREES),
        (Acceptance(-0.25, 0.25), (-0.3, 0.2), Verdict.INCONCLUSIVE),
        (Acceptance(-0.25, 0.25), (0.26, 9.0), Verdict.REFUTED),
        (Acceptance(0, 0, near=0.1, far=0.5), (0.05, 0.3), Verdict.AGREES),
        (Acceptance(0, 0, near=0.1, far=0.5), (0.05, 0.4), Verdict.INCONCLUSIVE),
        (Acceptance(0, 0, near=0.1, far=0.5), (0.3, 0.5), Verdict.REFUTED),
        (Acceptance(0, 0, near=0.1, far=0.5), (np.nan, 0.1), Verdict.INCONCLUSIVE),
    ],
)
def test_the_verdict_is_that_of_an_interval_against_a_region(region, interval, verdict):
    assert region.verdict(*interval) is verdict
    assert region.verdict(*interval, region.low) is not Verdict.REFUTED, "where the trend goes back"


def test_a_name_is_that_of_the_first_region_that_holds_the_interval():
    named = ((ClaimOutcome.IMPROVES, Acceptance(-np.inf, 0)), (ClaimOutcome.STALLS, Acceptance(-0.1, 0.1)))
    said = [name_outcome(named, *ends) for ends in ((-0.05, -0.01), (-0.05, 0.05), (-0.2, 0.05), (0, 0))]
    assert said == [ClaimOutcome.IMPROVES, ClaimOutcome.STALLS, ClaimOutcome.INCONCLUSIVE, ClaimOutcome.STALLS]


def test_one_bootstrap_pairs_seeds_and_has_a_median():
    rng = np.random.default_rng(0)
    one = rng.standard_normal(64)
    apart, together = (
        estimate_by_bootstrap([one, one + 1], lambda m: m[1] - m[0], paired=paired) for paired in (False, True)
    )
    assert together.low == pytest.approx(together.high) == pytest.approx(1) and apart.high - apart.low > 0.4
    middle = estimate_by_bootstrap([np.array([0.0, 1.0, 2.0, 900.0, 901.0])], lambda m: m[0], centre=weighted_median)
    assert middle.value == 2 and middle.low == 0 and middle.high > 800
    assert np.isnan(estimate_by_bootstrap([one[:1]], lambda m: m[0]).se)


def test_powers_below_are_those_of_the_engine_and_of_finite_sizes():
    quarter, zero = Fraction(1, 4), Fraction(0)
    assert list_powers_below(zero, HALF, {Fraction(1)}, None) == (0, -HALF, -1)
    assert list_powers_below(zero, quarter, {Fraction(1)}, [(zero, True), (Fraction(-1), False)])[:3] == (0, -HALF, -1)
    assert list_powers_below(zero, quarter, {Fraction(1)}, [(zero, True), (-quarter, True)])[:3] == (0, -quarter, -HALF)
    assert list_powers_below(zero, quarter, {Fraction(1)}, [(zero, True), (-HALF, False)])[:3] == (
        0,
        -HALF,
        -3 * quarter,
    )
    assert list_powers_below(zero, quarter, {HALF}, [(zero, True)]) == (0, -quarter, -HALF)


def rows(size):
    names = range(64)
    data = values(WIDE, size)
    return [dict(quantity="x", n=n, seed=k, value=v[k]) for n, v in zip(WIDE, data, strict=True) for k in names]


def test_a_report_shows_both_and_a_power_that_is_seen_is_not_refuted_by_the_slope():
    report = judge(rows(small_beside_large), {"x": "-1/2"})
    (row,) = report.rows
    assert row.share[0] >= SEEN and row.verdict is Verdict.INCONCLUSIVE and "is seen, beside" in str(report)
    assert row.as_json()["share"] == [round(x, 4) for x in row.share]
    (absent,) = judge(rows(lambda n: 0.868 / n), {"x": "-1/2"}).rows
    assert absent.verdict is Verdict.REFUTED and absent.share[0] < 1e-6
    (fine,) = judge(rows(lambda n: 0.868 / n), {"x": "-1"}).rows
    assert fine.verdict is Verdict.AGREES and fine.share is None


def test_a_small_run_is_the_sum_that_the_engine_predicts():
    """The predicted power is seen in what the slope leaves no doubt about; no neighbour is."""
    pytest.importorskip("torch")
    from scaling_algebra import derive
    from scaling_algebra.verify import measure

    made = derive(regime="I", optimizer="sgd", parameterization="mup")
    predicted = signals(regime="I", optimizer="sgd", parameterization="mup", steps=1)
    run = measure(made, sizes=[32, 64, 128, 256], seeds=32, steps=1, device="cpu")
    known = predicted.derivation.analysis().powers
    asked = [(q, 1, predicted.quantities[q][1].exponent) for q in ("h1", "h3.A3", "h2.effective", "dW2", "h3.A1")]
    assert all(max(e for e, _ in known(q, t)) == p for q, t, p in asked), "the largest power is the exponent"
    right = [bound_share_of(run, *one, known) for one in asked]
    assert all(part and part[1] >= 0.9 for part in right) and sum(part[0] >= SEEN for part in right) >= 4, right
    wrong = [bound_share_of(run, q, t, p + sign * HALF, known) for q, t, p in asked for sign in (-1, 1)]
    assert all(part is None or part[0] < SEEN for part in wrong) and wrong.count(None) >= 4, wrong


def logged_as(size, seeds=16, noise=0.3):
    data = values(N, size, seeds, noise)
    return [
        {"quantity": "h1", "n": n, "seed": k, "value": float(x), "step": 0}
        for n, v in zip(N, data, strict=True)
        for k, x in enumerate(v)
    ]


@pytest.mark.parametrize(
    ("size", "own", "claimed"),
    [
        (lambda n: (0.02 + 50 / n) ** 0.5, Verdict.INCONCLUSIVE, Verdict.REFUTED),
        (lambda n: n**-0.5, Verdict.INCONCLUSIVE, Verdict.REFUTED),
        (lambda n: n**0.5, Verdict.REFUTED, Verdict.REFUTED),
        (lambda n: n**-1.5, Verdict.REFUTED, Verdict.REFUTED),
    ],
)
def test_only_what_no_mixture_of_the_predicted_powers_gives_is_refuted(size, own, claimed):
    """At n^0 with n^(-1/2) below it. A claim has no powers beside it: its slope decides, as before."""
    rows, known = logged_as(size), lambda *_: ((Fraction(0), True), (-HALF, True))
    assert judge(rows, {"h1": 0}, powers=known).rows[0].verdict is own
    assert judge(rows, {"h1": -3}, [Claim.parse("h1@0=0")], powers=known).claims[0].verdict is claimed


@pytest.mark.parametrize(("power", "verdict"), [(0, Verdict.INCONCLUSIVE), (-1, Verdict.REFUTED)])
def test_what_one_seed_makes_refutes_nothing_and_what_all_have_does(power, verdict):
    """As swiglu in II by descent from n = 24, where a few of 256 seeds diverge."""
    rng, sizes = np.random.default_rng(4), {24: 2.6, 48: 1.8, 96: 1.0}
    draws = {n: float(n) ** power * np.exp(spread * rng.standard_normal(256)) for n, spread in sizes.items()}
    rows = [
        {"quantity": "h3", "step": 2, "n": n, "seed": k, "value": float(x)}
        for n in sizes
        for k, x in enumerate(draws[n])
    ]
    (row,) = judge(rows, {"h3": [..., ..., Fraction(0)]}).rows
    assert row.verdict is verdict and row.fit.high < -1 and ("one seed contributes" in row.note) == (power == 0)


@pytest.mark.parametrize(("rest", "verdict"), [((), Verdict.REFUTED), (((-HALF, False),), Verdict.INCONCLUSIVE)])
def test_a_slope_a_whole_power_from_all_that_the_engine_has_is_refuted(rest, verdict):
    """As of descent in the name of an optimizer that divides by the size of an entry: n^-1 where n^0 is predicted."""
    known = ((Fraction(0), True), *rest)
    assert judge(logged_as(lambda n: 1 / n, noise=0.02), {"h1": 0}, powers=lambda *_: known).rows[0].verdict is verdict


@pytest.mark.parametrize(("network", "verdict"), [("moe-rmsnorm", Verdict.INCONCLUSIVE), ("moe", Verdict.REFUTED)])
def test_what_a_norm_cancels_is_larger_where_gates_move(network, verdict):
    """As g1.expert.A6.2 of muP in II at t = 1: n^-2 with held gates, n^(-3/2) in training. What is smaller, what is
    before training, and a network without norms are judged as before."""
    asked = signals(
        regime="II", optimizer="sgd", parameterization="sp", architecture=network, quantities=["g3i"], steps=1
    )
    for t, power, expected in ((1, 1, verdict), (0, 1, Verdict.REFUTED), (1, -2, Verdict.REFUTED)):
        size = asked.quantities["g3i"][t].size + power
        rows = [{**x, "quantity": "g3i", "step": t} for x in logged_as(lambda n, p=float(size): n**p, noise=0.02)]
        assert judge(rows, asked).rows[0].verdict is expected, (t, power)


@pytest.mark.parametrize(
    ("divisor", "verdict"),
    [(lambda n: (0.02 + 50 / n) ** 0.5, Verdict.INCONCLUSIVE), (lambda n: n**-1.5, Verdict.REFUTED)],
)
def test_a_quotient_is_refuted_only_with_one_of_its_parts(divisor, verdict):
    """As f.update / h3 at t = 1, whose n^0 comes late; without its parts it is judged alone."""
    whole, by = (logged_as(size) for size in (lambda n: 1 / n, divisor))
    logged = {"f.update": [x["value"] for x in whole], "h1": [y["value"] for y in by]}
    logged["f.update.normalised"] = [x / y for x, y in zip(*logged.values(), strict=True)]
    every = [{**x, "quantity": q, "value": v} for q in logged for x, v in zip(whole, logged[q], strict=True)]
    predicted = {"h1": 0, "f.update": -1, "f.update.normalised": -1}

    def known(name, _):
        return ((Fraction(predicted[name]), True), (predicted[name] - HALF, True))

    assert judge(every, predicted, powers=known).rows[2].verdict is verdict
    alone = [x for x in every if x["quantity"] == "f.update.normalised"]
    assert judge(alone, predicted, powers=known).rows[0].verdict is Verdict.REFUTED


@pytest.mark.parametrize(
    ("name", "size", "power", "verdicts"),
    [
        ("psi.change", 3, -HALF, (Verdict.REFUTED, Verdict.INCONCLUSIVE)),
        ("psi.change", 0.9, -HALF, (Verdict.REFUTED, Verdict.REFUTED)),
        ("psi.change", 3, 0, (Verdict.REFUTED, Verdict.REFUTED)),
        ("psi", 30, 0, (Verdict.REFUTED, Verdict.INCONCLUSIVE)),
    ],
)
def test_behind_a_gate_that_is_no_polynomial_yet_nothing_is_refuted(name, size, power, verdicts):
    """A gate whose argument falls with n is one where it is below 1, another below 10. Before the gate (h1) and as a
    claim, the same numbers are refuted, as with a gate that is one."""
    logged = {"h1": lambda n: 1.0, "h3": lambda n: 1.0, name: lambda n: size * (n / N[0]) ** float(power)}
    rows = [{**x, "quantity": q, "step": t} for q in logged for t in (0, 1) for x in logged_as(logged[q])]
    wrong = {q: [Fraction(p), Fraction(p)] for q, p in (("h1", -1), ("h3", -1), (name, power))}
    first = [x for x in rows if (x["quantity"], x["step"]) != (name, 0)]  # the gate is one at t = 0
    report = judge(first, wrong, [Claim.parse("h1@1=-2")], network=MOE_BLOCK)
    verdict = {(r.quantity, r.step): r.verdict for r in report.rows}
    assert (verdict["h1", 1], verdict["h3", 1]) == verdicts and report.claims[0].verdict is Verdict.REFUTED
