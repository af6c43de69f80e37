"""Report files: their content, and the page in a real browser."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from scaling_algebra.documents import render
from scaling_algebra.spec.configuration import Configuration
from scaling_algebra.verify.campaigns import session
from scaling_algebra.verify.campaigns.plans import Effort, build_job
from scaling_algebra.verify.hardware import Hardware
from scaling_algebra.verify.judging.fit import Verdict
from scaling_algebra.verify.judging.verdicts import judge
from scaling_algebra.verify.measuring.pool import Here
from scaling_algebra.verify.measuring.store import Store, write_plan
from scaling_algebra.verify.reports import output, plots

from ..shared import scalecalc

HALF = Fraction(1, 2)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A run in a folder."""
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def run(kept):
    """Two updates, one of which is past the predictions of ``judged``."""
    asked = build_job(Configuration.of("III", "sgd", "mup"), Effort(sizes=(12, 18, 27, 40), seeds=48))
    store = Store(kept)
    write_plan(kept, {"runs": [asked.as_json()], "command": "scalecalc verify"})
    session.Session(store, Here(Hardware())).perform([asked])
    return asked, asked.collect_measurement(store)


@pytest.fixture(scope="module")
def judged(run):
    asked, found = run
    wrong = {"h3.A1": (HALF, HALF)}  # measured -1/2
    prediction = {q: p[:2] for q, p in asked.signals().prediction().items()} | wrong
    return [(asked, judge(found, prediction))]


@pytest.fixture(scope="module")
def folder(judged, tmp_path_factory):
    path = tmp_path_factory.mktemp("report")
    output.write_reports(path, judged, "scalecalc verify --regime III")
    return path


def test_every_gate_is_there_and_passes(run):
    report = judge(run[1], run[0].signals().prediction())
    assert [g.name for g in report.gates] == [
        "enough sizes",
        "enough seeds",
        "parameter counts differ",
        "same input at every size",
        "measured values finite",
        "gradients equal autograd's",
        "width-independent control flat",
        "planted wrong exponents refuted",
        "standard parameterization refuted",
    ]
    assert all(g.passed for g in report.gates) and report.counts["REFUTED"] == 0


def test_the_command_says_what_was_measured_and_which_rows_are_open(run, kept):
    def reported(*options):
        return scalecalc("verify", "--merge", str(kept), *options)

    report = run[0].report(Store(kept))
    still = [r.quantity for r in report.rows if r.verdict != "AGREES"]
    short, every = reported(), reported("--all")
    heading = short.stdout.splitlines()[0]
    assert heading.startswith("muP, sgd, regime III") and heading.endswith("; 48 seeds")
    assert replace(run[0], steps=40).heading == f"{heading}; predictions end after 3 of 40 updates"
    assert report.closing in short.stdout and len(still) > 5 and all(q in short.stdout for q in still)
    assert len(short.stdout.splitlines()) < len(still) + 30 < len(report.rows) < len(every.stdout.splitlines())
    assert reported("--require", "100%").exit_code == 3 and reported("--require", "1/2").exit_code == 0
    wrong = reported("--require", "most")
    assert wrong.exit_code == 2 and "9/10 or 90%" in wrong.stderr and len(wrong.stderr.splitlines()) == 1


def tripped(measurement, prediction):
    report = judge(measurement, prediction)
    assert report.exit_code == 3 and "gates failed" in report.closing
    return [g.name for g in report.gates if not g.passed]


def test_each_control_trips_its_gate(run):
    asked, m = run
    prediction = asked.signals().prediction()
    assert tripped(replace(m, standard=m.values), prediction) == ["standard parameterization refuted"]
    infinite = dict(m.values) | {("h3", 2): [np.full_like(v, np.inf) for v in m.values["h3", 2]]}
    assert "measured values finite" in tripped(replace(m, values=infinite), prediction)
    assert "gradients equal autograd's" in tripped(replace(m, gradients=[1e-3]), prediction)


def test_too_little_precision_is_seen_and_does_not_count():
    asked = build_job(
        Configuration.of("III", "sgd", "mssp"), Effort(sizes=(12, 18, 27, 40), seeds=16, dtype="bfloat16")
    )
    store = Store()
    session.Session(store, Here(Hardware())).perform([asked])
    report = asked.report(store)
    spoilt = [r for r in report.rows if r.note]
    assert spoilt and all(r.verdict is Verdict.INCONCLUSIVE and "float64" in r.note for r in spoilt)
    m = asked.collect_measurement(store)
    nothing = replace(m, exact={key: [v * 2 for v in series] for key, series in m.exact.items()})
    assert "above the numerical floor" in tripped(nothing, asked.signals().prediction())


def test_files_say_the_same(folder, judged):
    (_, report), text = judged[0], (folder / "report.md").read_text()
    data = json.loads((folder / "report.json").read_text())
    assert data["total"] == {"predicted": len(report.rows), **report.counts}
    assert data["schema"] == 1 and data["command"] == "scalecalc verify --regime III"
    assert data["runs"][0]["counts"] == report.counts
    assert judged[0][1].closing in text and re.search(r"\| h3\.A1 +\| 1 +\| \$1/2\$ .* REFUTED ", text)
    several = render(output.build_document(judged * 2, "scalecalc verify"))
    assert several.startswith(output.format_closing(judged * 2)) and "REFUTED: h3.A1 at t=1, predicted 1/2" in several
    assert len(data["runs"][0]["later"]) > 50 and {row["step"] for row in data["runs"][0]["later"]} == {2}
    assert output.compute_exit_code(judged) == 1 and output.compute_exit_code([]) == 3


def test_the_picture_of_kept_evidence_is_that_of_the_run(judged, tmp_path):
    output.build_evidence(tmp_path, judged, "scalecalc verify --regime III")
    kept = plots.read_stored_points(tmp_path / output.EVIDENCE)
    assert len(kept) > 100
    for ours, theirs in zip(kept, plots.list_points(report for _, report in judged), strict=True):
        assert ours[-1] == theirs[-1] and ours[:-1] == pytest.approx(theirs[:-1], abs=1e-3)


def test_the_page_has_every_row_and_needs_nothing_else(folder, judged):
    page = (folder / "report.html").read_text(encoding="utf-8")
    links = re.findall(r"(?:src|href)\s*=\s*[\"']?([^\"'\s>]{,40})", page)
    assert len(links) == 2 and all(link.startswith("data:image/svg") for link in links), "an overview, and slopes"
    assert not re.search(r"@import|url\(\s*[\"']?http|<script", page)
    report, first = judged[0][1], page.index("every prediction")
    assert page[:first].count("REFUTED") >= report.counts["REFUTED"] > 0, "what does not agree comes first"
    assert page[first:].count("AGREES") == report.counts["AGREES"]
    assert output.plots.draw_slopes(replace(report, rows=report.rows[:1])) is None, "a zero, as predicted"


BAD = "document.title='taken'"
HOSTILE = f'<script>{BAD}</script>"\'><img src=x onerror="{BAD}"> &amp; --> ]]> {{{{7*7}}}}'


def typed(text, judged):
    """The elements of a page whose command, quantities, gates and conditions are what somebody typed; its texts."""
    asked, report = judged[0]
    changed = replace(
        report,
        rows=tuple(replace(r, quantity=f"{r.quantity}.{text}", note=text) for r in report.rows),
        gates=tuple(replace(g, name=text, detail=text) for g in report.gates),
        means={(f"{q}.{text}", t): m for (q, t), m in report.means.items()},
        environment={**report.environment, "device": text},
        incomplete=text,
    )
    seen, said = Counter(), []

    class Elements(HTMLParser):
        def handle_starttag(self, tag, attrs):
            seen[tag, tuple(name for name, _ in attrs)] += 1

        def handle_data(self, data):
            said.append(data)

    Elements().feed(output.build_html([(asked, changed)], text))
    tags = {
        x.tag.rpartition("}")[2]
        for x in ElementTree.fromstring(plots.convert_to_svg(plots.draw_slopes(changed))).iter()
    }
    return seen, sum(text in x for x in said), tags


def test_what_somebody_typed_stays_text_for_a_parser(judged):
    """The elements and attributes are those of a page with plain names."""
    mine, plain = typed(HOSTILE, judged), typed("plain", judged)
    assert mine[0] == plain[0] and mine[1] > 100 and mine[2] == plain[2] and "script" not in mine[2]
