"""Committed evidence of runs against today's predictions."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from scaling_algebra.verify.campaigns.plans import Job, load
from scaling_algebra.verify.judging.report import REQUIRED
from scaling_algebra.verify.reports.output import EVIDENCE
from scaling_algebra.verify.transfer.improvement import improvement
from scaling_algebra.verify.transfer.optimum import Curve, drift

FOLDER = Path(__file__).parents[2] / "verify" / "evidence"
RECORDS = {path.parent.name: json.loads(path.read_text()) for path in sorted(FOLDER.glob(f"*/{EVIDENCE}"))}


def differences(run):
    """Recorded predictions that are not those of today's engine."""
    prediction = Job.from_json(run["job"]).prediction()
    today = {(q, t): None if p is None else str(p) for q, row in prediction.items() for t, p in enumerate(row)}
    return {(q, t) for q, t, predicted, *_ in run["rows"] if today.get((q, t), "none") != predicted}


@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDS)
def test_evidence_matches_todays_predictions(name):
    for run in RECORDS[name]["runs"]:
        assert run["rows"] and not differences(run), run["job"]


@pytest.mark.parametrize("name", RECORDS)
def test_evidence_says_where_it_comes_from_and_what_it_shows(name):
    record = RECORDS[name]
    assert record["command"].startswith("scalecalc ")
    for run in record["runs"]:
        assert {"device", "machine", "torch", "dtype", "wall_seconds", "peak_memory_bytes", "sizes"} <= set(
            run["environment"]
        )
        assert run["environment"]["gates"]
    counts = Counter(row[-1] for run in record["runs"] for row in run["rows"])
    assert {k: v for k, v in record["total"].items() if v} == {"predicted": counts.total(), **counts}
    assert not counts["REFUTED"]


STEEP = {("quick", "III", "sgd", "mup")}
"""Sizes from 44 to 110 leave more than one in five open: nothing is refuted, and the run alone is INCONCLUSIVE."""


@pytest.mark.parametrize("name", RECORDS)
def test_committed_runs_pass_the_rule_but_for_those_that_are_named(name):
    short = set()
    for run in RECORDS[name]["runs"]:
        verdicts = [row[-1] for row in run["rows"] if row[2] is not None]
        assert all(row[-1] == "AGREES" for row in run["rows"] if row[2] is None)
        asked = run["job"]["configuration"]
        if verdicts.count("AGREES") < REQUIRED * len(verdicts):
            short.add((name, asked["regime"], asked["optimizer"], asked["parameterization"]))
    assert short == {key for key in STEEP if key[0] == name}


def test_a_changed_exponent_would_be_seen():
    run = RECORDS["quick"]["runs"][0]
    assert not differences(run)
    row = next(r for r in run["rows"] if r[2] not in (None, "0"))
    assert differences({**run, "rows": [[row[0], row[1], "0", *row[3:]]]}) == {(row[0], row[1])}


def test_the_quick_campaign_is_the_committed_one():
    assert [Job.from_json(run["job"]) for run in RECORDS["quick"]["runs"]] == load("quick")


# learning-rate transfer ------------------------------------------------------------------------------------------


SWEEPS = {path.stem: json.loads(path.read_text()) for path in sorted((FOLDER / "transfer").glob("*.json"))}


def curves(sweep):
    """Curves of every parameterization, from the committed losses of every seed."""
    found = {}
    for name, run in sweep["parameterizations"].items():
        kept = [(w, np.array(w["losses"]), np.array(w["held_out_losses"])) for w in run["widths"]]
        found[name] = [Curve(w["width"], w["dims"], w["parameters"], tuple(w["grid"]), *x) for w, *x in kept]
    return found


def drifts(sweep):
    """Drift of every parameterization."""
    return {name: drift(found) for name, found in curves(sweep).items()}


@pytest.mark.parametrize("name", SWEEPS)
def test_committed_sweeps_show_what_is_said_of_them(name):
    found, said = drifts(SWEEPS[name]), SWEEPS[name]["parameterizations"]
    for parameterization, seen in found.items():
        assert str(seen.verdict) == said[parameterization]["drift"]["verdict"]
        assert seen.slope == pytest.approx(said[parameterization]["drift"]["slope"], abs=1e-3)
    verdicts = {p: str(d.verdict) for p, d in found.items()}
    assert verdicts == {"mup": "TRANSFERS", "mssp": "TRANSFERS", "sp": "DRIFTS"}
    assert {str(improvement(kept).verdict) for kept in curves(SWEEPS[name]).values()} == {"IMPROVES"}
    assert {"device", "machine", "torch", "dtype", "wall_seconds"} <= set(SWEEPS[name]["environment"])


def test_a_shifted_optimum_in_a_committed_sweep_would_be_seen():
    sweep = json.loads(json.dumps(SWEEPS["text_II"]))
    widest = sweep["parameterizations"]["mup"]["widths"][-1]
    widest["grid"] = [x + 2 for x in widest["grid"]]
    assert str(drifts(sweep)["mup"].verdict) == "DRIFTS"
