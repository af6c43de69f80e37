"""Runs, gates, claims, exit codes and errors, end to end on small models."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from html import unescape

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from scaling_algebra import derive
from scaling_algebra.documents import FORMATS, render
from scaling_algebra.documents.frames import rows
from scaling_algebra.errors import UsageError
from scaling_algebra.spec.axes import Ray
from scaling_algebra.verify import Claim, judge, measure
from scaling_algebra.verify.judging.fit import Fit, Verdict, judge_exponent
from scaling_algebra.verify.judging.gates import RunGate
from scaling_algebra.verify.judging.presentation import build_report_document as shown
from scaling_algebra.verify.judging.report import REQUIRED, Report, ReportRow
from scaling_algebra.verify.measuring.sizes import compute_dims, plan_seeds, plan_sizes

HALF = Fraction(1, 2)
MUP = derive("III", "sgd", "mup")
SIZES = [12, 20, 32, 52]
PREDICTION = {
    "h1.change": (None, -HALF),
    "h3.A1": (-HALF, -HALF),
    "g1.expert.A4.1": (-3 * HALF, -3 * HALF),
    "h2.effective": (None, Fraction(0)),
    "dW4": (None, -3 * HALF),
}


@pytest.fixture(scope="module")
def mup():
    return measure(MUP, sizes=SIZES, seeds=24, steps=1, device="cpu")


def test_right_predictions_agree(mup):
    report = judge(mup, PREDICTION, [])
    assert report.counts["REFUTED"] == 0 and report.counts["AGREES"] >= 8, str(report)
    assert all(g.passed for g in report.gates) and report.exit_code == 0
    zeros = sum(r.predicted is None for r in report.rows)
    assert report.closing.endswith(f"0 inconclusive; {zeros} exactly zero as predicted")
    heading, conditions, closing = render(shown(report, "the MoE block")).splitlines()[:3]
    assert heading == "the MoE block" and conditions.startswith("n = 12") and closing == report.closing
    assert "h3.A1" not in str(report) and "h3.A1" in render(shown(report, every=True))
    assert repr(report) == f"<Report: {report.closing}>" and "dynamics" not in report.conditions
    alive = replace(report, environment={**report.environment, "predicted_with": "moe-sigmoid"})
    assert "gate in the dynamics" in alive.conditions


def test_planted_wrong_exponents_are_refuted(mup):
    wrong = {q: tuple(None if p is None else p + HALF for p in series) for q, series in PREDICTION.items()}
    report = judge(mup, wrong, [])
    assert report.counts["REFUTED"] >= 4 and report.exit_code == 1
    assert judge(mup, {"dW4": (Fraction(0), None)}, []).counts["REFUTED"] == 2


def test_claims_decide_the_exit_code(mup):
    assert judge(mup, {}, [Claim.parse("h3.A1@1=-1/2")]).exit_code == 0
    assert judge(mup, PREDICTION, [Claim.parse("h3.A1@1=-1")]).exit_code == 1
    every = judge(mup, PREDICTION, [Claim.parse("h1.change=-1/2"), Claim.parse("h1.change@0=zero")])
    assert [r.step for r in every.claims] == [1, 0] and every.exit_code == 0


def test_json_is_complete(mup):
    found = json.loads(json.dumps(judge(mup, PREDICTION | {"unknown.part": (None,)}, []).as_json()))
    row = next(r for r in found["quantities"] if r["quantity"] == "h3.A1" and r["step"] == 1)
    assert row["predicted"] == "-1/2" and row["ci"][0] <= row["slope"] <= row["ci"][1] and row["sizes"] == 4
    assert found["unmeasured"] == ["unknown.part"]
    flat = next(r for r in rows(found) if r["quantity"] == "h3.A1" and r["step"] == 1)
    assert [flat["ci_low"], flat["ci_high"]] == row["ci"] and not flat["predicted_is_zero"] and flat["because"] == ""
    assert flat["gates_failed"] == "; ".join(g["name"] for g in found["gates"] if not g["passed"])
    few = replace(mup, values={key: [x[:2] for x in series] for key, series in mup.values.items()})
    assert {r.as_json()["because"] for r in judge(few, PREDICTION, []).rows if r.predicted} == {
        "4 sizes and 2 seeds are too few"
    }


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("size", "why"),
    [
        (np.nan, "not finite at n = 32, 52; smaller learning rates or constants"),
        (1e200, "not finite at n = 32, 52; smaller learning rates or constants"),
        (0.0, "zero up to rounding at n = 32, 52 only, so that no slope can be fitted; choose other sizes"),
    ],
)
def test_a_row_without_a_slope_says_why(mup, size, why):
    spoilt = {q: [*x[:2], *(size * (1 + v) for v in x[2:])] for q, x in mup.values.items()}
    found = judge(replace(mup, values=spoilt), PREDICTION).rows
    assert {row.because for row in found if row.predicted is not None} == {why}


@pytest.mark.filterwarnings("error")
def test_verdicts_are_those_of_values_1e100_times_as_large(mup):
    """The squares of their squares overflow."""
    wrong = PREDICTION | {"h3.A1": (HALF, HALF), "dW4": (None, HALF)}
    large = replace(mup, values={q: [1e100 * v for v in x] for q, x in mup.values.items()})
    powers = {"powers": lambda quantity, step: [(Fraction(-1), True)]}
    said = [[(row.verdict, row.share) for row in judge(m, wrong, **powers).rows] for m in (mup, large)]
    assert said[0] == said[1] and any(share for _, share in said[0])


def test_a_failed_gate_makes_a_run_inconclusive(mup):
    few = {key: series[:2] for key, series in mup.values.items()}
    control = {key: series[:2] for key, series in mup.control.items()}
    two = replace(mup, sizes=mup.sizes[:2], values=few, control=control)
    assert "enough sizes" in [g.name for g in judge(two, PREDICTION, []).gates if not g.passed]
    sparse = {key: [v[:3] for v in series] for key, series in mup.values.items()}
    lacking = judge(replace(mup, values=sparse), PREDICTION, [])
    assert "enough seeds" in [g.name for g in lacking.gates if not g.passed] and lacking.exit_code == 3
    same = replace(mup, parameters=[7] * len(SIZES))
    assert judge(same, PREDICTION, []).exit_code == 3
    assert judge(replace(mup, inputs=["a", "b", "b", "b"]), PREDICTION, []).exit_code == 3
    drifting = {key: [v * n for v, n in zip(series, SIZES, strict=True)] for key, series in mup.control.items()}
    report = judge(replace(mup, control=drifting), PREDICTION, [])
    assert [g.name for g in report.gates if not g.passed] == ["width-independent control flat"]


def with_control(mup, slope, noise):
    """A measurement whose control has this slope and noise."""
    random = np.random.default_rng(2)
    drawn = {
        key: [n**slope * np.exp(noise * random.standard_normal(48)) for n in SIZES] if key[0] == "h3" else series
        for key, series in mup.control.items()
    }
    return judge(replace(mup, control=drawn), PREDICTION)


@pytest.mark.parametrize(("slope", "noise", "passes"), [(0, 0.1, True), (-0.45, 1.0, False), (0, 3.0, False)])
def test_a_control_that_is_too_noisy_to_be_flat_trips_its_gate(mup, slope, noise, passes):
    """-0.45 with an interval that reaches beyond 0 is no proof that nothing grows."""
    report = with_control(mup, slope, noise)
    assert [g.name for g in report.gates if not g.passed] == ([] if passes else ["width-independent control flat"])
    assert report.exit_code == (0 if passes else 3)
    (gate,) = (g for g in report.gates if g.name == "width-independent control flat")
    assert [(": take more seeds" in gate.detail), (", not flat" in gate.detail)] == [noise == 3.0, slope != 0]


@pytest.mark.parametrize("drift", [0, 1])
def test_a_control_that_drifts_in_the_last_step_only_trips_its_gate(mup, drift):
    first = {q: series for (q, t), series in mup.control.items() if t == 1}
    late = {(q, 2): [v * n**drift for v, n in zip(x, SIZES, strict=True)] for q, x in first.items()}
    report = judge(replace(mup, steps=2, control={**mup.control, **late}), PREDICTION, [])
    assert [g.name for g in report.gates if not g.passed] == ["width-independent control flat"] * drift
    assert any(", not flat" in g.detail for g in report.gates) is bool(drift)


RIGHT, OPEN = Fit(0.0, 0.01, -0.02, 0.02, 0.0, 0.0, False, 5, 32), Fit(0.3, 0.2, -0.1, 0.7, 0.3, 0.3, False, 5, 32)
GONE = Fit(*[float("nan")] * 6, True, 5, 32)
GATE = RunGate("a gate", True, "")


def verdicts(*judged, required=REQUIRED, gate=GATE):
    """A report of so many rows of each (prediction, fit)."""
    rows = []
    for predicted, fitted, count in judged:
        rows += [ReportRow("q", 1, predicted, fitted, judge_exponent(fitted, predicted))] * count
    return Report(tuple(rows), (), (gate,), {}, (), (), required=required)


ZERO = (None, GONE, 164)


@pytest.mark.parametrize(
    ("judged", "required", "code"),
    [
        ([(Fraction(0), RIGHT, 41), (Fraction(0), OPEN, 95), ZERO], REQUIRED, 3),
        ([(Fraction(0), RIGHT, 125), (Fraction(0), OPEN, 11), ZERO], REQUIRED, 0),
        ([(Fraction(0), RIGHT, 80), (Fraction(0), OPEN, 20)], REQUIRED, 0),
        ([(Fraction(0), RIGHT, 79), (Fraction(0), OPEN, 21)], REQUIRED, 3),
        ([(Fraction(0), RIGHT, 79), (Fraction(0), OPEN, 21)], Fraction(3, 4), 0),
        ([(Fraction(0), RIGHT, 80), (Fraction(0), OPEN, 20)], Fraction(9, 10), 3),
        ([(Fraction(0), RIGHT, 99), (Fraction(1), RIGHT, 1)], REQUIRED, 1),
        ([(Fraction(0), RIGHT, 99), (None, RIGHT, 1), ZERO], REQUIRED, 1),
        ([(Fraction(0), OPEN, 1), ZERO], REQUIRED, 3),
        ([ZERO], REQUIRED, 0),
        ([], REQUIRED, 3),
    ],
)
def test_the_rule_of_the_exit_code(judged, required, code):
    assert verdicts(*judged, required=required).exit_code == code
    assert verdicts(*judged, required=required, gate=replace(GATE, passed=False)).exit_code == 3
    quiet = verdicts(*judged, required=required, gate=replace(GATE, passed=False, explains=0.5))
    assert quiet.exit_code == (1 if code == 1 else 3) and ("explains no" in quiet.closing) is (code == 1)


def test_a_gate_that_failed_may_explain_what_is_near():
    """+0.02 to a prediction of 1 is 0.98 apart; a control with slopes up to 1 may be all that is seen there."""
    for explains, code in ((0.9, 1), (0.99, 3)):
        gate = replace(GATE, passed=False, explains=explains)
        assert verdicts((Fraction(1), RIGHT, 1), gate=gate).exit_code == code


def test_zeros_are_told_apart_from_exponents():
    fine = verdicts((Fraction(0), RIGHT, 125), (Fraction(0), OPEN, 11), ZERO)
    assert fine.closing == "125 of 136 exponents agree, 0 refuted, 11 inconclusive; 164 exactly zero as predicted"
    broken = verdicts((Fraction(0), RIGHT, 9), (None, RIGHT, 1), ZERO)
    assert "only 164 of 165 exactly zero as predicted, 1 refuted" in broken.closing
    few = verdicts((Fraction(0), RIGHT, 41), (Fraction(0), OPEN, 95), ZERO)
    assert few.closing.endswith("fewer than 4/5 of the exponents agree, so the run is INCONCLUSIVE")
    assert few.as_json()["tally"]["exponents"] == {"AGREES": 41, "REFUTED": 0, "INCONCLUSIVE": 95}
    near = Fit(-0.234, 0.02, -0.275, -0.195, -0.2, -0.2, False, 5, 128)  # four times the seeds left it where it was
    assert "misses the prediction, but by too little to refute it; take larger sizes" in str(
        verdicts((Fraction(0), near, 1))
    )
    assert "more seeds" in str(few) and "more seeds" not in str(verdicts((Fraction(0), RIGHT, 5)))


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_says_what_was_found(form):
    """The claims, the line that sums up, the rows that do not agree with their reasons, and the gates."""
    report = verdicts((Fraction(0), RIGHT, 9), (Fraction(0), OPEN, 1), ZERO, gate=replace(GATE, passed=False))
    claimed = replace(report, claims=(ReportRow("<h3@0, h3@2>", 2, Fraction(0), RIGHT, Verdict.AGREES),))
    text = unescape(render(shown(claimed, "the MoE block"), form))
    if form == "json":
        record = json.loads(text)
        assert record == {"schema": 1, **json.loads(json.dumps(claimed.as_json()))} and len(record["quantities"]) == 174
        return
    words = ["0.300", "[-0.100, +0.700]", "standard error 0.20", "h3@0, h3@2"]
    words += ["claims: 1 of 1 exponents agree", "gate FAILED: a gate", "the MoE block"]
    assert all(word in text for word in words) and text.count("AGREES") == 1


def test_an_interrupt_is_no_measurement():
    """A trial of a study would keep what it cut short; a session keeps cells, and goes on from them."""

    def stop(done, total, message):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(MUP, sizes=SIZES, seeds=8, steps=1, device="cpu", progress=stop)


@pytest.mark.parametrize(("rule", "steps", "message"), [("sgd", -1, "steps is -1"), ("adam", 1, "epsilon")])
def test_wrong_use_is_one_clear_line(rule, steps, message):
    with pytest.raises(UsageError, match=message):
        measure(replace(derive("III", rule, "sp"), scaling=MUP.scaling), steps=steps, device="cpu")


def test_claims_about_what_was_not_measured(mup):
    with pytest.raises(UsageError, match=r"did you mean 'h3.A1'"):
        judge(mup, {}, [Claim.parse("h3.a1=0")])
    with pytest.raises(UsageError, match="only 1 step is trained"):
        judge(mup, {}, [Claim.parse("h3.A1@2=0")])


@pytest.mark.parametrize("rates", ["N=1,N_e=1,M=0", "N=1,N_e=1,M=1", "N=1,N_e=1/2,M=1/2", "N=1,N_e=0,M=0"])
def test_default_plans_grow_every_growing_axis_and_stay_affordable(rates):
    ray = Ray.parse(rates)
    sizes = plan_sizes(ray, None)
    dims = [compute_dims(ray, n) for n in sizes]
    assert len(sizes) >= 5 and min(plan_seeds(ray, sizes, None)) >= 16
    for axis in ("N", "N_e", "M"):
        values = [d[axis] for d in dims]
        assert values == sorted(set(values)) if ray[axis] else len(set(values)) == 1
    assert dims[-1]["N"] * dims[-1]["N_e"] * dims[-1]["M"] < 5e6


def test_time_and_memory_stand_apart_in_json(mup):
    """So that the same command gives the same bytes; what else the environment says stays where it was."""
    report = judge(mup, PREDICTION, [])
    slow, fast = (replace(report, environment={**report.environment, "wall_seconds": s}).as_json() for s in (9.0, 1.0))
    assert slow.pop("spent") != fast.pop("spent") and slow == fast
    assert fast["environment"]["torch"] == torch.__version__ and "wall_seconds" not in fast["environment"]
