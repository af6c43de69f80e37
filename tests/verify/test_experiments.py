"""The experiments: verdicts of single claims, every laboratory at its smallest, and a wrong claim that each refutes."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from scaling_algebra.documents import render
from scaling_algebra.solver.derivation import derive
from scaling_algebra.verify.hardware import Hardware
from scaling_algebra.verify.judging.fit import Verdict
from scaling_algebra.verify.measuring.pool import Here
from scaling_algebra.verify.studies import blocks, charts, clusters, rules
from scaling_algebra.verify.studies.findings import By, Conditions, Observation, find_power, judge_claims
from scaling_algebra.verify.studies.presentation import list_experiments
from scaling_algebra.verify.studies.runner import (
    EXPERIMENTS,
    Experiment,
    Trial,
    find_worst_code,
    plan_conditions,
    run_experiments,
)

AGREES, REFUTED, INCONCLUSIVE = Verdict.AGREES, Verdict.REFUTED, Verdict.INCONCLUSIVE
SIZES = [16, 32, 64, 128]
HALF = Fraction(1, 2)


def law(slope, seeds=32, derived=-HALF):
    random = np.random.default_rng(1)
    return Observation([n**slope * np.exp(0.05 * random.standard_normal(seeds)) for n in SIZES], SIZES, derived=derived)


def judged(seen, **claim):
    return judge_claims({"of": "q@1", "source": "paper", **claim}, seen)


def of(*seeds):
    return Conditions("cpu", seeds[:-1], seeds[-1])


# claims -------------------------------------------------------------------------------------------------------------


def test_a_claim_that_is_the_prediction_must_agree_and_any_other_must_be_refuted():
    right, printed, planted = judged(law(-0.5), predicted="derived", published="0", planted="zero")
    assert (right.verdict, right.expected, right.outcome) == (AGREES, AGREES, AGREES)
    assert (printed.verdict, printed.expected, printed.outcome) == (REFUTED, REFUTED, AGREES)
    assert [f.claimed for f in (right, printed, planted)] == ["n^(-1/2)", "n^0", "zero"] and find_power(None) == "zero"
    assert right.data == "n = 16 to 128, 32 seeds"


def test_a_wrong_prediction_is_refuted_and_so_is_a_planted_claim_that_holds():
    """Negative control: an engine that predicts 0 for a slope of -1/2, and its false confirmation."""
    wrong, planted = judged(law(-0.5, derived=Fraction(0)), predicted="derived", planted="-1/2")
    assert wrong.outcome is planted.outcome is REFUTED


@pytest.mark.parametrize(
    ("values", "sign", "verdict"),
    [
        ([0.99, 0.98, 1.0, 0.99], ">", AGREES),
        ([0.99, 0.98, 1.0, 0.99], "<", REFUTED),
        ([0.2, 0.9, 1.0, 0.4], ">", INCONCLUSIVE),
        ([0.99, 0.98, 1.0], ">", INCONCLUSIVE),
        ([1.0, 1.0, 1.0, 1.0], ">", AGREES),
    ],
)
def test_a_bound_is_judged_by_where_the_interval_lies(values, sign, verdict):
    claim, seen = f"{sign} 0.8", Observation([np.array(values)])
    right, planted = judged(seen, predicted=claim, planted=claim)
    assert right.verdict is verdict and right.claimed == claim
    assert planted.expected is REFUTED and (planted.outcome is REFUTED) == (verdict is AGREES)
    (published,) = judged(seen, published=claim, wrong="published")
    assert published.expected is REFUTED and published.by is By.PUBLISHED
    if len(values) == 4:  # an interval of Student's t
        assert right.high - right.measured == pytest.approx(3.182446 * np.std(values, ddof=1) / 2, rel=1e-5)


def test_faster_than_any_power_is_told_from_a_power():
    fast = [np.exp(-n * np.linspace(0.5, 1.5, 32)) for n in SIZES]
    few = Observation([v[:3] for v in fast], SIZES)
    verdicts = [judged(x, predicted="below -6")[0].verdict for x in (Observation(fast, SIZES), law(-1.5), few)]
    assert verdicts == [AGREES, REFUTED, INCONCLUSIVE]


# running ------------------------------------------------------------------------------------------------------------

CLAIM = {"of": "q", "predicted": "> 0.5", "source": "some paper, Sec. 1"}
VALUES = {AGREES: [1.0, 1.1, 1.2, 1.3], REFUTED: [0.1, 0.2, 0.1, 0.2], INCONCLUSIVE: [0.1, 1.0, 0.1, 1.0]}


def performed(*outcomes):
    """An experiment whose trials have these outcomes; None interrupts it."""

    def seen(what, how, names):
        if what is None:
            raise KeyboardInterrupt
        return {"q": Observation([np.array(VALUES[what])])}

    trials = tuple(Trial(f"trial {k}", partial(seen, what), (CLAIM,)) for k, what in enumerate(outcomes))
    tiny = Experiment("tiny", "for a test", "here", trials, (16, 32, 64), 8)
    return run_experiments(tiny, plan_conditions(tiny, "cpu"), Here(Hardware()))


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [((AGREES, AGREES), 0), ((AGREES, INCONCLUSIVE), 3), ((INCONCLUSIVE, REFUTED), 1), ((REFUTED, None), 130), ((), 3)],
)
def test_exit_codes(outcomes, code):
    result = performed(*outcomes)
    assert result.exit_code == find_worst_code([result]) == code and result.interrupted == (None in outcomes)
    assert sum(result.counts.values()) == len([o for o in outcomes if o])


def test_every_experiment_is_listed_and_can_fail():
    text = render(list_experiments(list(EXPERIMENTS.values())))
    for name, chosen in EXPERIMENTS.items():
        assert name in text and len({t.title for t in chosen.trials}) == len(chosen.trials) > 1
        claims = [claim for trial in chosen.trials for claim in trial.claims]
        assert any("planted" in claim for claim in claims), "a control that must fail"
        assert all(set(claim) <= {"of", "source", "wrong", *By} for claim in claims)


# blocks -------------------------------------------------------------------------------------------------------------

FROZEN = {"optimizer": "sgd", "parameterization": "mup-sigmoid", "architecture": "routers-softmax"}


@pytest.mark.parametrize(
    ("rule", "parameterization", "network", "step", "exponent"),
    [
        ("sgd", "mup-sigmoid", "routers-softmax", 2, -1),
        ("sgd", "mup-sigmoid", "routers-softmax-bias", 2, 0),
        ("adam", "sp-feature", "routers-softmax", 1, 0),
    ],
)
def test_entropy_follows_from_the_spread_of_the_logits(rule, parameterization, network, step, exponent):
    assert blocks.predict_deficit(derive("I", rule, parameterization, architecture=network), step) == exponent


@pytest.fixture(scope="module")
def frozen():
    names = ("psi.effective@1", "dQ@1", "psi.change@1")
    return blocks.measure_block(of(32, 48, 72, 108, 192), names, **FROZEN)


def test_a_soft_softmax_router_freezes(frozen):
    """That it learns, or that it is gone at once, is refuted on the same data; so are exponents of SP."""
    claims = {"psi.effective@1": "0", "dQ@1": "-1", "psi.change@1": "1"}
    for name, planted in claims.items():
        right, wrong = judged(frozen[name], predicted="derived", planted=planted)
        assert (right.verdict, wrong.verdict, wrong.outcome) == (AGREES, REFUTED, AGREES), name


def test_a_wrong_engine_is_refuted_by_the_router(frozen):
    """Negative control: the data of the softmax against the engine's number for the sigmoid at the second step."""
    sigmoid = derive("I", "sgd", "mup-sigmoid", architecture="routers-sigmoid").analysis()("psi.effective", 2).exponent
    (wrong,) = judged(replace(frozen["psi.effective@1"], derived=sigmoid), predicted="derived")
    assert wrong.claimed == "n^0" and wrong.outcome is REFUTED


def test_standard_parameterization_saturates():
    given = EXPERIMENTS["routers"].trials[1]
    found = replace(given, run=partial(given.run, scale="1/4", more=10)).findings(of(64, 100, 160, 256, 16))
    assert [f.verdict for f in found if "typical" in f.quantity] == [AGREES] * 2
    assert {f.quantity: f.claimed for f in found if f.by is By.PREDICTED}["psi.change@1"] == "n^1"
    assert not any(f.outcome is REFUTED for f in found)


@pytest.mark.parametrize(("epsilon", "claimed"), [({"all": "1"}, "n^-1"), ({}, "n^0")])
def test_epsilon_of_order_one_stops_the_features(epsilon, claimed):
    """The engine's exponents agree; where they differ those of the derived epsilon are refuted."""
    given = {**FROZEN, "optimizer": "adam", "architecture": "routers-sigmoid", "epsilon": epsilon}
    for observation in blocks.measure_block(of(64, 96, 144, 12), ("h1.change@1", "h3i.effective@1"), **given).values():
        right, other = judged(observation, predicted="derived", published="0")
        assert (right.claimed, right.verdict, other.outcome) == (claimed, AGREES, AGREES)


def test_changed_epsilons_by_role():
    d = derive("I", "adam", "mup-sigmoid", architecture="routers-sigmoid")

    def changed(*how):
        return {role: str(t.eps) for role, t in blocks.with_epsilon(d, *how).scaling.tensors.items()}

    assert set(changed({"all": "1"}).values()) == {"1"} and changed({"router": "N^(-1/2)"})["router"] == "N^(-1/2)"
    assert changed({}, "1/2") == {"input": "N^(-1/2)", "router": "1", "expert": "N^(-1/2)", "readout": "1"}
    assert blocks.with_epsilon(d, {}).scaling == d.scaling


# charts -------------------------------------------------------------------------------------------------------------

LINE, PLANE = charts.Target(HALF, 1), charts.Target(HALF, 2)


def test_charts_are_cubes_and_errors_the_sum_of_their_parts():
    x = np.array([[0.1, 0.1], [0.6, 0.1], [0.1, 0.6], [0.999, 0.999]])
    assert list(PLANE.chart(x, 4)) == [0, 1, 2, 3] and list(LINE.chart(x[:, :1], 2)) == [0, 1, 0, 1]
    approximation, estimation, whole = np.mean(
        [charts.compute_errors(LINE, 32, 5000, seed) for seed in range(24)], axis=0
    )
    assert whole == pytest.approx(approximation + estimation, rel=0.05)
    assert estimation == pytest.approx((charts.NOISE**2 + approximation) * 32 / 5000, rel=0.2)
    assert estimation != pytest.approx(charts.NOISE**2 * np.log(32) / 5000, rel=0.2), "negative control"


@pytest.mark.parametrize("trial", EXPERIMENTS["charts"].trials[:3], ids=lambda t: t.title)
def test_claims_of_charts_at_a_small_size(trial):
    found = trial.findings(of(16, 64, 256, 4))
    assert [f.outcome for f in found] == [AGREES] * 2 and found[1].verdict is REFUTED


# clusters -----------------------------------------------------------------------------------------------------------

TABLE_5 = [[0, 0, 3971, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 4, 4005, 0], [8, 4, 4, 6, 0, 1304, 4, 2711], [3979] + [0] * 7]
TABLE_6 = [
    [0, 630, 1629, 1298, 27, 87, 4, 296],
    [136, 1107, 1884, 651, 0, 0, 0, 231],
    [0, 594, 1976, 1471, 0, 0, 0, 0],
    [0, 377, 1480, 1891, 0, 0, 0, 231],
]


def drawn(n, law="setting 1"):
    generator = torch.Generator().manual_seed(0)
    directions = clusters.draw_signals(generator)
    return directions, clusters.sample_examples(n, clusters.DISTRIBUTIONS[law], directions, generator)


def test_entropy_of_the_published_dispatch_tables():
    """Tables 5 and 6 of the paper: a cubic mixture, and a linear one."""
    assert clusters.compute_dispatch_entropy(TABLE_5) == pytest.approx(0.0092549, abs=1e-6)
    assert clusters.compute_dispatch_entropy(TABLE_6) == pytest.approx(1.3145780, abs=1e-6)
    assert clusters.compute_dispatch_entropy(np.full((4, 8), 5)) == pytest.approx(np.log(4))
    assert clusters.compute_dispatch_entropy([[7, 0, 0], [0, 9, 0]]) == 0


@pytest.mark.parametrize("name", clusters.DISTRIBUTIONS)
def test_examples_are_those_of_the_definition(name):
    directions, data = drawn(4000, name)
    torch.testing.assert_close(directions @ directions.T, torch.eye(8), atol=1e-5, rtol=0)
    projections = torch.einsum("npd,kd->npk", data.x, directions)
    centre = projections[:, :, 4:].amax(1)
    assert (centre.argmax(1) == data.cluster).all() and centre.amax(1).min() >= 1 and centre.amax(1).max() < 2.5
    own = projections[torch.arange(len(data.y)), :, data.cluster]  # projections on the label signal of its cluster
    signal = own.gather(1, own.abs().argmax(1)[:, None])[:, 0]
    assert (signal.sign() == data.y).float().mean() > 0.95  # random noise of setting 2 and 4 may exceed it
    assert torch.bincount(data.cluster, minlength=4).min() > 850 and abs(data.y.mean()) < 0.1
    law = clusters.DISTRIBUTIONS[name]
    assert data.x.norm(dim=2).max() <= max(law.gamma, 2 * law.noise, 2) + 1e-4


# digits -------------------------------------------------------------------------------------------------------------


def test_a_constant_rate_is_told_from_the_root(monkeypatch):
    """Along the batch the square root rule, and three that differ from it in one quantity."""
    pytest.importorskip("sklearn")
    monkeypatch.setattr(rules, "EXAMPLES", 256)
    monkeypatch.setattr(rules, "BATCHES", (1, 2, 4))
    rule = {"lr": "B^(1/2)", "eps": "1/B^(1/2)", "one_minus_beta1": "B", "one_minus_beta2": "B"}
    assert {q: str(rules.find_rule(("sde",), "B", {})[q]) for q in rule} == rule
    kept, *others = EXPERIMENTS["sde"].trials
    assert [list(trial.run.keywords["instead"]) for trial in others] == [["lr"], ["lr"], ["eps"]]
    (right,), (wrong,) = kept.findings(of(6))[1:], others[0].findings(of(6))
    assert wrong.verdict is REFUTED and wrong.outcome is AGREES
    assert abs(right.measured) < abs(wrong.measured) / 2


def test_experts_of_random_examples_have_the_derived_noise(monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.setattr(rules, "EXPERTS", (2, 4, 8))
    right, planted = EXPERIMENTS["experts"].trials[0].findings(of(8))
    assert (right.claimed, right.verdict) == ("s^(1/2)", AGREES)
    assert (planted.claimed, planted.outcome) == ("s^0", AGREES)
