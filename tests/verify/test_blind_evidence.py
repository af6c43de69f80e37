"""The committed draws of the blind test are those of the generator; the pages quote what they show."""

import json

import pytest
from click.testing import CliRunner

from .test_blind import PATH, blind

RECORDS = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(blind.EVIDENCE.glob("draw_*.json"))]
ROOT = PATH.parents[1]


def test_the_draws_are_the_first_ones_of_the_generator():
    assert RECORDS and [r["draw"] for r in RECORDS] == list(range(len(RECORDS)))
    for record in RECORDS:
        drawn = blind.setting(record["draw"])
        assert all(record["setting"][k] == pytest.approx(drawn[k]) for k in ("eps", "stream", "largest"))
        assert all(record["setting"][k] == pytest.approx(drawn[k]) for k in ("init", "lr"))
        assert [(x["regime"], x["optimizer"], x["parameterization"]) for x in record["runs"]] == list(blind.RUNS)
        assert not any(x["failed_gates"] for x in record["runs"])


def test_the_page_and_the_readme_quote_the_counts():
    told = CliRunner().invoke(blind.main, ["tell"]).output.strip()
    assert told in (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    agree, refuted, open_ = map(int, next(x for x in told.splitlines() if x.startswith("all")).split()[1:4])
    quoted = f"{agree:,} of {agree + refuted + open_:,} agree, {refuted} are refuted, {open_:,} are"
    assert quoted in (ROOT / "README.md").read_text(encoding="utf-8")
