"""The audit: every printed cell is compared or has a reason; every disagreement is explained, measured and listed."""

import json
import re
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest
from click.testing import CliRunner

from scaling_algebra.cli import main
from scaling_algebra.documents import render
from scaling_algebra.explanations.explanations import explain_quantity
from scaling_algebra.laws.expressions import exponent, parameter
from scaling_algebra.spec.powers import Power
from scaling_algebra.tables.audit.comparison import STATUSES, Audit, audit, compare, derivations, holds
from scaling_algebra.tables.audit.errata import errata, unlisted
from scaling_algebra.tables.commands import audit as audit_command
from scaling_algebra.tables.published.reading import SOURCES, load

pytestmark = pytest.mark.slow


DRIFT = 0.1
"""Finite-size drift that still counts as agreement, as in verify."""


@pytest.fixture(scope="module")
def found():
    return audit()


def test_every_cell_is_compared_or_has_a_reason(found):
    assert len(found.comparisons) == len(load()) > 1900
    for c in found.comparisons:
        assert c.status in STATUSES
        assert c.why if c.status != "AGREES" else c.derived
    assert Counter(c.status for c in found.comparisons)["AGREES"] > 1400
    assert {c.printed.source for c in found.comparisons} == set(SOURCES)


TABLES = {
    ("mssp", "B.1"): 90,
    ("mssp", "B.2"): 93,
    ("mssp", "G.1"): 71,
    ("mssp", "G.2"): 15,
    ("mssp", "Definitions 4-7"): 80,
    ("mssp", "J.3.2"): 171,
    ("mssp", "J.3.4"): 150,
    ("mssp", "J.4.3"): 156,
    ("mssp", "J.4.5"): 111,
    ("mssp", "J.3.1"): 290,
    ("mssp", "J.3.3"): 170,
    ("mssp", "J.4.2"): 139,
    ("mssp", "J.4.4"): 97,
    ("mssp", "App. C, D, I, Q.8"): 126,
    ("routers", "1"): 8,
    ("routers", "2"): 12,
    ("routers", "App. B-F"): 226,
    ("transfer", "1"): 38,
    ("moe-laws", "Sec. 3, 4, App. B, E to G"): 71,
    ("switch-cluster", "Thm. 4.1, 4.2"): 64,
}


def test_the_tables_are_complete(found):
    cells = {key: sum(c.values()) for key, c in found.counts().items()}
    assert {key: cells[key] for key in TABLES} == TABLES


def test_a_stream_with_depth_is_compared_whole(found):
    """Table B.2: all that is printed about the network."""
    cells = [c for c in found.comparisons if (c.printed.source, c.printed.table) == ("mssp", "B.2")]
    assert Counter(c.status for c in cells) == {"AGREES": 84, "NOT COMPARABLE": 9}
    assert {c.why for c in cells if c.why} == {"printed blank", "a factor of a loss, no part of the network"}


def test_every_disagreement_is_a_listed_erratum(found):
    assert unlisted(found, errata()) == ([], [])


def value(text, at):
    """An exponent at values of its parameters."""
    put = {parameter(name): exponent(x) for name, x in at.items()}
    return Fraction(str(exponent(text).subs(put)))


def test_every_erratum_is_explained_and_measured():
    for e in errata():
        assert len(e.why) > 60 and len(e.inside) > 30 and e.measured
        for m in e.measured:
            derived = {value(d, m.at) for _, d in e.cells.values()}
            printed = {value(p, m.at) for p, _ in e.cells.values()}
            assert m.drift in (0, DRIFT)
            low, high = m.interval[0] - m.drift, m.interval[1] + m.drift
            assert low <= m.slope <= high
            assert any(low <= float(x) <= high for x in derived), (e.title, m)
            assert not any(low <= float(x) <= high for x in printed - derived), (e.title, m)


def test_a_changed_cell_is_found(found):
    """Negative control: of every table, one cell with a changed value."""
    first = {}
    for c in found.comparisons:
        if c.status == "AGREES" and c.printed.step is not None:
            first.setdefault(c.printed.table, c.printed)
    assert len(first) >= 10
    for cell in first.values():
        assert compare([replace(cell, value="-17/2")])[0].status == "DISAGREES"


def test_a_changed_cell_of_a_law_is_found(found):
    laws = [c for c in found.comparisons if c.printed.source == "moe-laws" and c.status == "AGREES"]
    assert len(laws) == 49
    for c in laws:
        text = str(c.printed.value)
        wrong = (
            ", ".join(f"{float(x) + 0.31:.3f}" for x in text.split(","))
            if "numbers" in c.printed.setting["law"]
            else f"({text})*n**9"
        )
        wrong = wrong.replace("n**9", "3") if {"of", "identity"} & set(c.printed.setting["law"]) else wrong
        wrong = ", ".join([f"({x})*n**9" for x in text.split(",")]) if "bound" in c.printed.setting["law"] else wrong
        assert compare([replace(c.printed, value=wrong)])[0].status == "DISAGREES", c.printed


def test_a_changed_order_of_assumptions_is_found(found):
    """29 orders of the switch-cluster paper follow; one that is smaller by d^9 does not, nor any other window."""
    orders = [c for c in found.comparisons if c.printed.source == "switch-cluster" and c.status == "AGREES"]
    assert len(orders) == 29
    for c in orders:
        wrong = ", ".join(x if x.strip() == "-" else f"({x})*d**(-9)" for x in str(c.printed.value).split(","))
        assert compare([replace(c.printed, value=wrong)])[0].status == "DISAGREES", c.printed
    open_ = [c for c in found.comparisons if c.printed.source == "switch-cluster" and c.status == "NOT COMPARABLE"]
    assert len(open_) == 34 and all(len(c.why) > 15 for c in open_)


def test_reasons_of_laws_are_precise(found):
    reasons = [c.why for c in found.comparisons if c.printed.source == "moe-laws" and c.status == "NOT COMPARABLE"]
    assert len(reasons) == 16 and all(len(set(w.split()) - {"a", "the", "of"}) > 2 for w in reasons)


def test_a_changed_parameter_is_found(found):
    for table in ("B.1", "B.2", "G.2", "1", "2", "Definitions 4-7"):
        agreeing = (c.printed for c in found.comparisons if c.printed.table == table and c.status == "AGREES")
        cell = next(agreeing)
        wrong = "-17/2" if isinstance(cell.value, str) and cell.value != "zero" else cell.times
        changed = replace(cell, value=wrong + Power.of({"N": -9}) if wrong is cell.times else wrong)
        assert compare([changed])[0].status == "DISAGREES", table


def test_unlisted_and_gone_are_told_apart(found):
    known = errata().entries
    new, gone = unlisted(found, known[1:])
    assert {c.key for c in new} == set(known[0].cells) and not gone
    agreeing = tuple(c for c in found.comparisons if c.key not in known[0].cells)
    assert unlisted(Audit(agreeing), known) == ([], list(known[0].cells))


@pytest.mark.parametrize(
    ("printed", "derived", "expected"),
    [
        ("-1/2", Fraction(-1, 2), True),
        ("-1/2", None, False),
        ("zero", None, True),
        ("zero", Fraction(0), False),
        ("vanishes", Fraction(-1, 2), True),
        ("vanishes", None, True),
        ("vanishes", Fraction(0), False),
        (">= 1/2", Fraction(3, 2), True),
        (">= 1/2", Fraction(0), False),
        ("<= 0", None, True),
        ("> 0", Fraction(0), False),
    ],
)
def test_how_a_printed_size_is_read(printed, derived, expected):
    assert holds(printed, derived) is expected


def test_mechanism_letters_of_the_paper():
    """MSSP paper, App. I.7: the letter printed beside a size is that of a leading matching, or the experts are tied."""
    checked = 0
    for cell in load("mssp"):
        letter = cell.setting.get("mechanism")
        if letter is None or cell.reason or cell.step is None:
            continue
        (d,) = derivations(cell)
        found = explain_quantity(d, d.analysis(), cell.quantity, cell.step)
        letters = {x.letter for term in found.terms for x in term.mechanisms}
        assert letter in letters or (d.scaling.tied and "shared" in letters), cell
        checked += 1
    assert checked >= 15


def test_errata_name_every_cell_twice():
    """In the overview, with a measured slope, and with its evidence."""
    result = CliRunner().invoke(main, ["errata"])
    page = result.output
    assert result.exit_code == 0 and page == render(errata().document()) + "\n"
    overview, _, evidence = page.partition(SOURCES["mssp"])
    places = [line for line in overview.splitlines() if line.startswith("  ")][1:]
    assert len(places) == sum(len(e.cells) for e in errata()) == 37
    for e in errata():
        assert e.title in evidence and e.why in evidence and all(m.command in evidence for m in e.measured)
        for (source, table, label, quantity, _), (printed, derived) in e.cells.items():
            where = f"{table} {label}".strip()
            (line,) = (x for x in places if x.split("  ")[1] == f"{source} {where}" and f"  {quantity}  " in x + "  ")
            shown = rf"{re.escape(printed)} +{re.escape(derived)}"
            assert re.search(rf"  {shown} +[+-]\d\.\d\d \[", line), line
            assert where in evidence and quantity in evidence


def test_errata_as_json():
    data = json.loads(CliRunner().invoke(main, ["errata", "--format", "json"]).output)
    assert data["schema"] == 1 and len(data["errata"]) == len(errata().entries)
    keys = {"source", "title", "why", "inside", "matching", "cells", "measured"}
    assert all(set(e) == keys and e["matching"] and e["measured"] for e in data["errata"])


def test_json_contract():
    result = CliRunner().invoke(main, ["audit", "--source", "mssp", "--format", "json"])
    assert result.exit_code == 0
    data = json.loads(result.stdout)
    assert data["cells"] == data["agree"] + len(data["disagreements"]) + len(data["not_comparable"])
    keys = {
        "source",
        "table",
        "regime",
        "parameterization",
        "optimizer",
        "quantity",
        "step",
        "printed",
        "derived",
        "why",
    }
    assert all(keys <= set(x) for x in data["disagreements"]) and data["disagreements"]


@pytest.mark.parametrize("form", ["text", "markdown", "latex", "html"])
def test_report_formats(form):
    result = CliRunner().invoke(main, ["audit", "--source", "transfer", "--format", form])
    assert result.exit_code == 0 and "not comparable" in result.output and "transfer" in result.output


def test_a_new_disagreement_fails(monkeypatch):
    """Negative control of the exit code."""
    known = errata().entries
    monkeypatch.setattr(audit_command, "errata", lambda: known[1:])
    result = CliRunner().invoke(main, ["audit", "--source", "mssp"])
    assert result.exit_code == 1 and "not in the errata" in result.stderr


@pytest.mark.parametrize(("args", "says"), [(["--source", "msp"], "no source named"), (["--format", "x"], "no format")])
def test_errors(args, says):
    result = CliRunner().invoke(main, ["audit", *args])
    assert result.exit_code == 2 and says in result.stderr
