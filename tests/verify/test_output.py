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
from scaling_algebra.verify.campaigns.plans import Effort, job
from scaling_algebra.verify.hardware import Hardware
from scaling_algebra.verify.judging.fit import Verdict
from scaling_algebra.verify.judging.verdicts import judge
from scaling_algebra.verify.measuring.pool import Here
from scaling_algebra.verify.measuring.store import Store, write_plan
from scaling_algebra.verify.reports import output, plots

from ..page.chrome import BROWSER, Chrome
from ..shared import scalecalc

HALF = Fraction(1, 2)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A run in a folder."""
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def run(kept):
    """Two updates, one of which is past the predictions of ``judged``."""
    asked = job(Configuration.of("III", "sgd", "mup"), Effort(sizes=(12, 18, 27, 40), seeds=48))
    store = Store(kept)
    write_plan(kept, {"runs": [asked.as_json()], "command": "scalecalc verify"})
    session.Session(store, Here(Hardware())).perform([asked])
    return asked, asked.measured(store)


@pytest.fixture(scope="module")
def judged(run):
    asked, found = run
    wrong = {"h3.A1": (HALF, HALF)}  # measured -1/2
    prediction = {q: p[:2] for q, p in asked.signals().prediction().items()} | wrong
    return [(asked, judge(found, prediction))]


@pytest.fixture(scope="module")
def folder(judged, tmp_path_factory):
    path = tmp_path_factory.mktemp("report")
    output.write(path, judged, "scalecalc verify --regime III")
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
    asked = job(Configuration.of("III", "sgd", "mssp"), Effort(sizes=(12, 18, 27, 40), seeds=16, dtype="bfloat16"))
    store = Store()
    session.Session(store, Here(Hardware())).perform([asked])
    report = asked.report(store)
    spoilt = [r for r in report.rows if r.note]
    assert spoilt and all(r.verdict is Verdict.INCONCLUSIVE and "float64" in r.note for r in spoilt)
    m = asked.measured(store)
    nothing = replace(m, exact={key: [v * 2 for v in series] for key, series in m.exact.items()})
    assert "above the numerical floor" in tripped(nothing, asked.signals().prediction())


def test_files_say_the_same(folder, judged):
    (_, report), text = judged[0], (folder / "report.md").read_text()
    data = json.loads((folder / "report.json").read_text())
    assert data["total"] == {"predicted": len(report.rows), **report.counts}
    assert data["schema"] == 1 and data["command"] == "scalecalc verify --regime III"
    assert data["runs"][0]["counts"] == report.counts
    assert judged[0][1].closing in text and re.search(r"\| h3\.A1 +\| 1 +\| \$1/2\$ .* REFUTED ", text)
    several = render(output.document(judged * 2, "scalecalc verify"))
    assert several.startswith(output.closing(judged * 2)) and "REFUTED: h3.A1 at t=1, predicted 1/2" in several
    assert len(data["runs"][0]["later"]) > 50 and {row["step"] for row in data["runs"][0]["later"]} == {2}
    assert output.exit_code(judged) == 1 and output.exit_code([]) == 3


def test_the_picture_of_kept_evidence_is_that_of_the_run(judged, tmp_path):
    output.evidence(tmp_path, judged, "scalecalc verify --regime III")
    kept = plots.kept_points(tmp_path / output.EVIDENCE)
    assert len(kept) > 100
    for ours, theirs in zip(kept, plots.points(report for _, report in judged), strict=True):
        assert ours[-1] == theirs[-1] and ours[:-1] == pytest.approx(theirs[:-1], abs=1e-3)


def test_refuted_rows_come_first_then_open_ones_and_the_rest_is_folded(folder, judged):
    page = (folder / "report.html").read_text(encoding="utf-8")
    links = re.findall(r"(?:src|href)\s*=\s*[\"']?([^\"'\s>]{,40})", page)
    assert links and all(link.startswith("data:") for link in links), "the page needs nothing else"
    assert not re.search(r"@import|url\(\s*[\"']?http|fetch\(|XMLHttpRequest", page)
    before, *folded = page.split('<details class="rest">')
    verdicts = re.findall('data-verdict="([A-Z]+)"', before)
    assert verdicts == sorted(verdicts, reverse=True) and verdicts[0] == "REFUTED"
    assert len(verdicts) == sum(r.verdict is not Verdict.AGREES for _, report in judged for r in report.judged)
    assert {*re.findall('data-verdict="([A-Z]+)"', "".join(folded))} == {"AGREES"}


@pytest.mark.skipif(BROWSER is None, reason="no chromium or chrome on PATH")
def test_the_page_works_in_a_browser(folder, judged, tmp_path):
    pytest.importorskip("websocket")
    page, rows, tab = folder / "report.html", judged[0][1].judged, Chrome(tmp_path)
    names = [r.quantity for r in rows]
    try:
        for anchor, width in (("", 390), ("", 1280), ("h3.A", 390)):
            tab.open(f"{page.as_uri()}#{anchor}", width)
            wanted = [name for name in names if anchor in name]
            assert tab.run("document.documentElement.scrollWidth") == width
            assert tab.run("document.querySelector('details.rest').open") == bool(anchor)
            tab.run("document.querySelectorAll('details').forEach(fold => { fold.open = true; })")
            assert tab.run("document.getElementById('shown').textContent") == f"{len(wanted)} of {len(rows)}"
            seen = tab.run("[...document.querySelectorAll('tr[data-name]:not([hidden])')].map(x => x.dataset.name)")
            assert sorted(seen) == sorted(wanted)
        assert not tab.faults
    finally:
        tab.close()


BAD = "document.title='taken'"
HOSTILE = f'<script>{BAD}</script>"\'><img src=x onerror="{BAD}"> &amp; --> ]]> {{{{7*7}}}}'


def typed(text, judged):
    """A page whose command, quantities, gates and conditions are what somebody typed."""
    asked, report = judged[0]
    changed = replace(
        report,
        rows=tuple(replace(r, quantity=f"{r.quantity}.{text}", note=text) for r in report.rows),
        gates=tuple(replace(g, name=text, detail=text) for g in report.gates),
        means={(f"{q}.{text}", t): m for (q, t), m in report.means.items()},
        environment={**report.environment, "device": text},
        incomplete=text,
    )
    return output.html([(asked, changed)], text), changed


def test_what_somebody_typed_stays_text_for_a_parser(judged):
    """The elements and attributes are those of a page with plain names."""
    page, report = typed(HOSTILE, judged)

    class Elements(HTMLParser):
        def __init__(self):
            super().__init__()
            self.seen, self.said = Counter(), []

        def handle_starttag(self, tag, attrs):
            self.seen[tag, tuple(name for name, _ in attrs)] += 1

        def handle_data(self, data):
            self.said.append(data)

    mine, plain = Elements(), Elements()
    mine.feed(page)
    plain.feed(typed("plain", judged)[0])
    assert mine.seen == plain.seen and sum(HOSTILE in said for said in mine.said) > 100
    for svg in (*plots.slopes(report)[1], *plots.over_time(report)[1]):
        drawn = ElementTree.fromstring(svg)
        assert {x.tag.rpartition("}")[2] for x in drawn.iter()} <= {"svg", "text", "path", "g", "rect"}
