"""The headline experiment: committed records are those of the plan, their verdicts follow from their losses, and the
plan's rule would say otherwise of other records."""

import importlib.util
import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("torch")

from scaling_algebra.verify.transfer.figures import KINDS, picture
from scaling_algebra.verify.transfer.improvement import compare, improvement
from scaling_algebra.verify.transfer.optimum import Curve, drift

PATH = Path(__file__).parents[2] / "benchmarks" / "headline.py"
SPEC = importlib.util.spec_from_file_location("headline", PATH)
headline = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(headline)

RECORDS = headline.records()
PLAN = headline.planned()


def curves(record):
    return {
        name: [
            Curve(w["width"], w["dims"], w["parameters"], tuple(w["grid"]), *(np.array(w[k]) for k in LOSSES))
            for w in kept["widths"]
        ]
        for name, kept in record["parameterizations"].items()
    }


LOSSES = ("losses", "held_out_losses")


def test_records_are_those_of_the_plan():
    by = {run["name"]: run for run in PLAN["run"]}
    assert RECORDS and set(RECORDS) <= set(by)
    for name, record in RECORDS.items():
        assert shlex.split(record["command"])[1:] == headline.arguments(PLAN, by[name])
        assert {"machine", "torch", "dtype", "wall_seconds"} <= set(record["environment"])


@pytest.mark.parametrize("name", RECORDS)
def test_verdicts_follow_from_the_committed_losses(name):
    record = RECORDS[name]
    seen = curves(record)
    for rule, kept in record["parameterizations"].items():
        assert str(improvement(seen[rule]).verdict) == kept["improvement"]["verdict"]
        assert str(drift(seen[rule]).verdict) == kept["drift"]["verdict"]
    said = headline.last(record)
    pair = tuple(next(c for c in seen[rule] if c.width == said["width"]) for rule in ("mup", "mssp"))
    assert str(compare("mup", "mssp", pair).verdict) == said["verdict"]


def test_the_page_shows_what_the_evidence_says():
    """All runs of the plan were made, and none is left out of the page."""
    said = CliRunner().invoke(headline.main, ["judge"]).output.strip()
    page = (PATH.parents[1] / "docs" / "headline.md").read_text(encoding="utf-8")
    assert said in page and "not run" not in said and set(RECORDS) == {run["name"] for run in PLAN["run"]}


def planted(mup="WORSENS", mssp="IMPROVES", gap="WORSE", drifts=("DRIFTS", "TRANSFERS"), slope=0.5, low=0.1):
    scale = {"mup": mup, "mssp": mssp}
    moved = dict(zip(scale, drifts, strict=True))
    return {
        "parameterizations": {
            name: {"improvement": {"verdict": scale[name]}, "drift": {"verdict": moved[name], "slope": slope}}
            for name in scale
        },
        "comparisons": [
            {"one": "mup", "other": "mssp", "width": 8, "verdict": "EQUAL", "low": 0.0, "high": 0.0},
            {"one": "mup", "other": "mssp", "width": 64, "verdict": gap, "low": low, "high": 0.2},
        ],
    }


@pytest.mark.parametrize(
    ("given", "loss", "moved"),
    [
        ({}, "SHOWN", "SHOWN"),
        ({"mup": "STALLS", "slope": -0.5}, "SHOWN", "OPEN"),
        ({"mup": "IMPROVES", "drifts": ("TRANSFERS", "TRANSFERS")}, "GAP ONLY", "REFUTED"),
        ({"mssp": "INCONCLUSIVE", "drifts": ("DRIFTS", "DRIFTS")}, "GAP ONLY", "OPEN"),
        ({"gap": "BETTER", "drifts": ("INCONCLUSIVE", "TRANSFERS")}, "REFUTED", "OPEN"),
        ({"gap": "EQUAL"}, "OPEN", "SHOWN"),
    ],
)
def test_the_rule_of_the_plan(given, loss, moved):
    """Each record is the negative control of the others."""
    record = planted(**given)
    assert (headline.loss_verdict(record), headline.drift_verdict(record)) == (loss, moved)


def test_the_control_fails_where_the_two_differ():
    assert headline.control_verdict(planted(gap="WORSE")) == "FAILS"
    assert headline.control_verdict(planted(gap="EQUAL")) == "HOLDS"
    assert headline.control_verdict(planted(gap="INCONCLUSIVE", low=-0.1)) == "HOLDS"


@pytest.mark.parametrize("kind", KINDS)
def test_every_picture_is_drawn(kind, tmp_path):
    paths = [headline.EVIDENCE / f"{name}.json" for name in list(RECORDS)[:4]]
    picture(kind, tmp_path / "p.png", paths)
    assert (tmp_path / "p.png").stat().st_size > 10_000
    unknown = json.loads(paths[0].read_text())
    unknown["parameterizations"]["mup"]["widths"][0]["low"] = None  # one seed knows no interval
    (tmp_path / "r.json").write_text(json.dumps(unknown))
    picture(kind, tmp_path / "q.png", [tmp_path / "r.json"])
