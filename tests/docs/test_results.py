"""The tables of docs/results.md are those of the committed evidence."""

import json

import pytest

from .pages import ROOT

RESULTS = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("campaign", ["quick", "full"])
def test_counts_are_those_of_the_evidence(campaign):
    """Exponents that are not exactly zero by verdict, and the number of those that are."""
    record = json.loads((ROOT / "verify" / "evidence" / campaign / "evidence.json").read_text(encoding="utf-8"))
    rows = [row for run in record["runs"] for row in run["rows"]]
    judged = [row[-1] for row in rows if row[2] is not None]
    agree, refuted, open_ = (judged.count(v) for v in ("AGREES", "REFUTED", "INCONCLUSIVE"))
    cells = (campaign, f"{agree:,} of {len(judged):,}", refuted, open_, f"{len(rows) - len(judged):,}")
    assert "| " + " | ".join(map(str, cells)) + " |" in RESULTS.splitlines()


def test_the_front_page_shows_the_evidence():
    kept = ROOT / "verify" / "evidence" / "quick" / "predicted_and_measured.png"
    assert (ROOT / "docs" / "assets" / "predicted_and_measured.png").read_bytes() == kept.read_bytes()
