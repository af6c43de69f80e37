"""The experiments: verdicts of single claims, the command, and a wrong claim that every one of them must refute."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from functools import cache, partial

import numpy as np
import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")

from scaling_algebra.cli import main
from scaling_algebra.documents import render
from scaling_algebra.solver.derivation import derive
from scaling_algebra.verify.experiments import epsilon, routers
from scaling_algebra.verify.experiments.findings import By, Experiment, Plan, Trial, bound, exponent, power, steeper
from scaling_algebra.verify.experiments.registry import EXPERIMENTS, Result, planned, run_trials
from scaling_algebra.verify.experiments.routers import Asked
from scaling_algebra.verify.judging.fit import Verdict, fit

AGREES, REFUTED, INCONCLUSIVE = Verdict.AGREES, Verdict.REFUTED, Verdict.INCONCLUSIVE
SIZES = [16, 32, 64, 128]
HALF = Fraction(1, 2)


def law(slope, seeds=32, noise=0.05):
    random = np.random.default_rng(1)
    return [n**slope * np.exp(noise * random.standard_normal(seeds)) for n in SIZES]


def test_a_claim_that_is_the_prediction_must_agree_and_any_other_must_be_refuted():
    found = fit(SIZES, law(-0.5))
    right = exponent("q@1", found, -HALF, -HALF, By.PREDICTED, "paper", SIZES)
    assert (right.verdict, right.expected, right.outcome) == (AGREES, AGREES, AGREES)
    printed = exponent("q@1", found, Fraction(0), -HALF, By.PUBLISHED, "paper", SIZES)
    assert (printed.verdict, printed.expected, printed.outcome) == (REFUTED, REFUTED, AGREES)
    assert (right.claimed, printed.claimed, power(None)) == ("n^(-1/2)", "n^0", "zero")


def test_a_wrong_prediction_is_refuted():
    """Negative control of ``exponent``: an engine that predicts 0 for a slope of -1/2, and its false confirmation."""
    found = fit(SIZES, law(-0.5))
    assert exponent("q", found, Fraction(0), Fraction(0), By.PREDICTED, "", SIZES).outcome is REFUTED
    assert exponent("q", found, -HALF, Fraction(0), By.PLANTED, "", SIZES).outcome is REFUTED


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
    found = bound("accuracy", np.array(values), sign, 0.8, "paper")
    assert found.verdict is verdict and found.claimed == f"{sign} 0.8"
    planted = bound("accuracy", np.array(values), sign, 0.8, "paper", By.PLANTED)
    assert planted.expected is REFUTED and (planted.outcome is REFUTED) == (verdict is AGREES)
    if len(values) == 4:  # an interval of Student's t
        assert found.high - found.measured == pytest.approx(3.182446 * np.std(values, ddof=1) / 2, rel=1e-5)


def test_faster_than_any_power_is_told_from_a_power():
    fast = [np.exp(-n * np.linspace(0.5, 1.5, 32)) for n in SIZES]
    assert steeper("q", SIZES, fast, Fraction(-6), "").verdict is AGREES
    assert steeper("q", SIZES, law(-1.5), Fraction(-6), "").verdict is REFUTED
    assert steeper("q", SIZES, [v[:3] for v in fast], Fraction(-6), "").verdict is INCONCLUSIVE


def test_entropy_follows_from_the_spread_of_the_logits():
    frozen = derive("I", "sgd", "mup-sigmoid", architecture="routers-softmax")
    biased = derive("I", "sgd", "mup-sigmoid", architecture="routers-softmax-bias")
    standard = derive("I", "adam", "sp-feature", architecture="routers-softmax")
    laws = (routers.deficit, routers.entropy, routers.relative_update)
    assert [f(frozen, 2) for f in laws] == [-1, 0, -HALF]
    assert [f(biased, 2) for f in laws] == [0, 0, 0]
    assert [f(standard, 1) for f in laws] == [0, -HALF, HALF]


@cache
def frozen_router():
    d = derive("I", "sgd", "mup-sigmoid", architecture="routers-softmax")
    return d, routers.measure(d, sizes=[32, 48, 72, 108], seeds=192, steps=1)


def test_a_planted_exponent_of_the_router_is_refuted():
    """The soft softmax router freezes; that it learns, or that it is gone at once, is refuted on the same data."""
    d, run = frozen_router()
    asked = (
        Asked("psi.effective", 1, "here", published=-HALF, planted=Fraction(0)),
        Asked("relative dQ", 1, "here", planted=Fraction(-3, 2)),
    )
    found = routers.judged(d, run, asked)
    assert [f.verdict for f in found] == [AGREES, AGREES, REFUTED, AGREES, REFUTED]
    assert all(f.outcome is AGREES for f in found) and found[0].source == "routers paper, here"


def test_a_wrong_engine_is_refuted_by_the_router():
    """Negative control: the data of the softmax against the engine's numbers for the sigmoid at the second step."""
    _, run = frozen_router()
    sigmoid = derive("I", "sgd", "mup-sigmoid", architecture="routers-sigmoid")
    (wrong,) = routers.judged(sigmoid, replace(run, values={("psi.effective", 2): run.values["psi.effective", 1]}),
                                (Asked("psi.effective", 2, "here"),))  # fmt: skip
    assert wrong.claimed == "n^0" and wrong.outcome is REFUTED


def test_standard_parameterization_saturates():
    found = routers.saturates("adam", routers.DIVERGES, 4, 10, Plan("cpu", (64, 100, 160, 256), 16))
    typical = [f for f in found if "typical" in f.quantity]
    assert len(typical) == 2 and all(f.verdict is AGREES for f in typical)
    assert {f.quantity: f.claimed for f in found if f.by is By.PREDICTED}["psi.change@1"] == "n^1"
    assert not any(f.outcome is REFUTED for f in found)


def test_epsilon_of_order_one_stops_the_features():
    """The engine's exponents agree, those of the derived epsilon are refuted."""
    change = epsilon.sigmoid(epsilon.order_one, (("h1.change", 1), ("h3i.effective", 1)), "here", wider=1)
    found = epsilon.judged_parts(change, Plan("cpu", (64, 96, 144), 12))
    assert [(f.claimed, f.verdict) for f in found] == [("n^-1", AGREES), ("n^0", REFUTED)] * 2


def test_the_derived_epsilon_does_not():
    kept = epsilon.sigmoid(epsilon.as_derived, (("h1.change", 1), ("h3i.effective", 1)), "here", wider=1)
    found = epsilon.judged_parts(kept, Plan("cpu", (64, 96, 144), 12))
    assert [(f.claimed, f.verdict) for f in found] == [("n^0", AGREES)] * 2


def test_changed_epsilons_by_role():
    d = derive("I", "adam", "mup-sigmoid", architecture="routers-sigmoid")
    eps = {how: {r: str(p) for r, p in how(d).items()} for how in (epsilon.order_one, epsilon.literal)}
    assert set(eps[epsilon.order_one].values()) == {"1"}
    assert eps[epsilon.literal] == {"input": "N^(-1/2)", "router": "1", "expert": "N^(-1/2)", "readout": "1"}
    assert epsilon.with_epsilon(d, {}).scaling == d.scaling


def tiny(name, *outcomes):
    trials = tuple(Trial(f"trial {k}", partial(_trial, what)) for k, what in enumerate(outcomes))
    return Experiment(name, "for a test", "here", trials, (16, 32, 64), 8)


def _trial(what, how):
    if what is None:
        raise KeyboardInterrupt
    values = {AGREES: [1.0, 1.1, 1.2, 1.3], REFUTED: [0.1, 0.2, 0.1, 0.2], INCONCLUSIVE: [0.1, 1.0, 0.1, 1.0]}[what]
    return [bound("q", np.array(values), ">", 0.5, "here")]


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [((AGREES, AGREES), 0), ((AGREES, INCONCLUSIVE), 3), ((INCONCLUSIVE, REFUTED), 1), ((REFUTED, None), 130), ((), 3)],
)
def test_exit_codes(outcomes, code):
    chosen = tiny("tiny", *outcomes)
    found = run_trials(chosen, planned(chosen, "cpu"))
    assert found.exit_code == code and found.interrupted == (None in outcomes)
    assert sum(found.counts.values()) == len([o for o in outcomes if o])


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_can_be_planned(name):
    chosen = EXPERIMENTS[name]
    assert chosen.name == name and len({t.title for t in chosen.trials}) == len(chosen.trials) > 1
    sizes = [16, 32, 64] if chosen.sizes else None
    assert planned(chosen, "cpu", sizes, 4).sizes == tuple(sizes or ()) and planned(chosen, "cpu").seeds == chosen.seeds


def test_the_command_lists_prints_and_writes(tmp_path, monkeypatch):
    monkeypatch.setitem(EXPERIMENTS, "tiny", tiny("tiny", AGREES, REFUTED))
    listed = CliRunner().invoke(main, ["experiment", "--list"])
    assert listed.exit_code == 0 and all(name in listed.output for name in EXPERIMENTS)
    out = tmp_path / "r.json"
    written = CliRunner().invoke(main, ["experiment", "tiny", "--device", "cpu", "-o", str(out)])
    assert written.exit_code == 1 and not written.stdout
    data = json.loads(out.read_text())
    counts = {"AGREES": 1, "REFUTED": 1, "INCONCLUSIVE": 0}
    assert data["exit_code"] == 1 and data["experiments"][0]["outcomes"] == counts
    (row,) = data["experiments"][0]["trials"]["trial 0"]
    assert row["measured"] == 1.15 and row["verdict"] == row["expected"] == "AGREES" and len(row["ci"]) == 2
    shown = CliRunner().invoke(main, ["experiment", "TINY", "--device", "cpu"])
    assert shown.exit_code == 1 and "REFUTED, must be AGREES" in shown.output
    assert "tiny: 1 claims as predicted, 1 against, 0 inconclusive" in shown.output
    part = CliRunner().invoke(main, ["experiment", "tiny", "--device", "cpu", "--only", "Trial 0"])
    assert part.exit_code == 0 and "trial 1" not in part.output


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["roters"], "did you mean 'routers'"),
        (["clusters", "--sizes", "8,16,32"], "clusters has a fixed size"),
        (["routers", "--sizes", "8,9,10"], "n / 4, so give larger ones"),
        (["routers", "--only", "relu"], "no trial has 'relu' in its title"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_2(args, words):
    result = CliRunner().invoke(main, ["experiment", *args])
    assert result.exit_code == 2 and words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_result_text_has_claim_interval_verdict_and_source():
    found = [exponent("q@1", fit(SIZES, law(-0.5)), -HALF, -HALF, By.PREDICTED, "some paper, Sec. 1", SIZES)]
    said = Result(tiny("tiny"), Plan("cpu", (16, 32), 4), {"a trial": found}, 0.0).document()
    for word in ("a trial", "q@1", "n^(-1/2)", "predicted", "AGREES", "some paper, Sec. 1", "n = 16 to 128, 32 seeds"):
        assert word in render(said)
    assert "$n^{-1/2}$" in render(said, "markdown") and "\nquantity,by," in render(said, "csv")


@pytest.mark.parametrize("asked", [routers.FREEZES, routers.SYNCHRONOUS, routers.LEARNS, routers.SELECTS])
def test_every_trial_of_the_routers_has_a_control_that_must_fail(asked):
    assert any(a.planted is not None for a in asked)
