"""The tables of docs/results.md are those of the committed evidence."""

import json
import re
from statistics import mean

import pytest

from .pages import ROOT

RESULTS = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("campaign", ["quick", "full", "gpu"])
def test_counts_are_those_of_the_evidence(campaign):
    """Exponents that are not exactly zero by verdict, and the number of those that are."""
    record = json.loads((ROOT / "verify" / "evidence" / campaign / "evidence.json").read_text(encoding="utf-8"))
    rows = [row for run in record["runs"] for row in run["rows"]]
    judged = [row[-1] for row in rows if row[2] is not None]
    agree, refuted, open_ = (judged.count(v) for v in ("AGREES", "REFUTED", "INCONCLUSIVE"))
    cells = (campaign, f"{agree:,} of {len(judged):,}", refuted, open_, f"{len(rows) - len(judged):,}")
    assert "| " + " | ".join(map(str, cells)) + " |" in RESULTS.splitlines()


def test_sections_of_papers_are_counted():
    text = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    told = re.search(
        r"Of (\d+) rows of sections (\d+) are reproduced, (\d+) partly, (\d+) not, and (\d+) are left out", text
    )
    tables = text.partition("## What is reproduced, by section")[2].partition("A trained bias on")[0]
    rows = [x.split(" | ") for x in tables.splitlines() if x.startswith("| ") and " paper | | by |" not in x]
    count = [sum(what.startswith(kind) for _, what, *_ in rows) for kind in ("reproduced", "partly", "not", "left out")]
    assert [*map(int, told.groups())] == [len(rows), *count] and sum(count) == len(rows)


def test_undecided_values_of_random_networks_are_counted():
    last = json.loads((ROOT / "verify" / "evidence" / "measure" / "random.json").read_text(encoding="utf-8"))["parts"][
        -1
    ]
    counts, part = last["values"], RESULTS.partition("## Random networks")[2].partition("\n## ")[0]
    assert f"`{last['command']}`" in part and not last["refuted"] and "REFUTED" not in counts
    assert f"{counts['AGREES'] + counts['AGREES, zero']:,} certified values" in part
    assert (
        f"{counts['undecided']} are undecided" in part
        and f"{counts['settled']} of {len(last['settled'])} networks" in part
    )
    rows = (x.strip("| ").split(" | ") for x in part.splitlines() if x.startswith("| ") and x[-3:-2].isdigit())
    assert {why: int(n) for why, n in rows} == last["undecided"]


def test_the_late_start_of_a_zero_readout_is_the_measured_curve():
    kept = json.loads((ROOT / "verify" / "evidence" / "measure" / "delay.json").read_text(encoding="utf-8"))["tests"]
    _, slopes, sizes = next(x.values() for name, x in kept.items() if "mup" in name)
    shown = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8").partition("## The late start")[2].splitlines()
    rows = dict(line.strip("| ").split(" | ", 1) for line in shown if line.startswith("| "))
    at = [int(t) - 1 for t in rows["t"].split(" | ")]
    assert rows["slope"] == " | ".join(f"{slopes[k]:+.2f}" for k in at)
    assert rows["rms of f at N = 256"] == " | ".join(f"{sizes[k]:.3f}" for k in at)


def best(curve):
    """log2 of the best rate of one width, and the mean losses by rate."""
    means = {x: mean([v for v in row if v is not None]) for x, row in zip(curve["grid"], curve["losses"], strict=True)}
    return min(means, key=means.get), means


@pytest.mark.parametrize(("name", "count"), [("h100_experts_fixed", 5), ("h100_experts_grow", 4)])
def test_the_tables_of_transfer_are_those_of_the_evidence(name, count):
    record = json.loads((ROOT / "verify" / "evidence" / "text" / f"{name}.json").read_text(encoding="utf-8"))
    found = {key: [best(w) for w in record["parameterizations"][key]["widths"]] for key in ("mup", "sp")}
    rows = [
        ("plan: best log2 rate", [f"{at:.0f}" for at, _ in found["mup"]]),
        ("plan: loss there", [f"{means[at]:.2f}" for at, means in found["mup"]]),
        ("one rate for all: best log2 rate", [f"{at:.0f}" for at, _ in found["sp"]]),
        ("one rate for all: loss there", [f"{means[at]:.2f}" for at, means in found["sp"]]),
        ("one rate for all: loss at 2^-8", [f"{means[-8]:.2f}" for _, means in found["sp"]]),
    ]
    assert all(len(cells) == count for _, cells in rows)
    table = "\n".join("| " + " | ".join([head, *cells]) + " |" for head, cells in rows)
    assert table in RESULTS
    if count == 5:
        (first, *_, last), (_, *_, plain) = found["mup"], found["sp"]
        told = [f"from {first[1][-8]:.2f} to {last[1][-8]:.2f}"]
        told += [f"is {plain[1][-8]:.2f}", f"reaches {plain[1][-10]:.2f}"]
        front = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
        assert all(text in front for text in told), told


def test_the_front_page_shows_the_evidence():
    kept = ROOT / "verify" / "evidence" / "quick" / "predicted_and_measured.png"
    assert (ROOT / "docs" / "assets" / "predicted_and_measured.png").read_bytes() == kept.read_bytes()
