"""The tables of docs/results.md are those of the committed evidence."""

import json
import re

import pytest

from .pages import ROOT

RESULTS = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")


def line(names, rows):
    """One row of a table: exponents that are not exactly zero by verdict, and the number of those that are."""
    judged = [row[-1] for row in rows if row[2] is not None]
    agree, refuted, open_ = (judged.count(v) for v in ("AGREES", "REFUTED", "INCONCLUSIVE"))
    cells = (*names, f"{agree:,} of {len(judged):,}", refuted, open_, f"{len(rows) - len(judged):,}")
    return re.sub(r"  +", " ", "| " + " | ".join(map(str, cells)) + " |")


@pytest.mark.parametrize("campaign", ["quick", "full", "transformer"])
def test_counts_are_those_of_the_evidence(campaign):
    record = json.loads((ROOT / "verify" / "evidence" / campaign / "evidence.json").read_text(encoding="utf-8"))
    _, shown = RESULTS.split(record["command"])
    table = shown[shown.index("\n|") :].split("\n\n")[0].strip().splitlines()[2:]
    every = [row for run in record["runs"] for row in run["rows"]]
    asked = [run["job"]["configuration"] for run in record["runs"]]
    jobs = [[one[k] for k in ("regime", "optimizer", "parameterization")] for one in asked]
    assert table[:-1] == [line(job, run["rows"]) for job, run in zip(jobs, record["runs"], strict=True)]
    assert table[-1] == line(("all", "", ""), every)


def test_the_front_page_shows_the_evidence():
    kept = ROOT / "verify" / "evidence" / "quick" / "predicted_and_measured.png"
    assert (ROOT / "docs" / "assets" / "predicted_and_measured.png").read_bytes() == kept.read_bytes()
