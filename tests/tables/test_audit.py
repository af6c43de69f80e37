"""The audit: every printed cell is compared or has a reason; every disagreement is explained, measured and listed."""

import json
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest
from click.testing import CliRunner

from scaling_algebra.cli import main
from scaling_algebra.explanations.explanations import explain_quantity
from scaling_algebra.tables.audit import comparison as audit_module
from scaling_algebra.tables.audit.comparison import _compare, _derivations, _holds, audit, counts
from scaling_algebra.tables.audit.errata import errata, errata_markdown, unlisted
from scaling_algebra.tables.commands import audit as audit_command
from scaling_algebra.tables.published.reading import SOURCES, load

DRIFT = 0.1
"""Finite-size drift that still counts as agreement, as in verify."""


@pytest.fixture(scope="module")
def verdicts():
    return audit()


def test_every_cell_is_compared_or_has_a_reason(verdicts):
    assert len(verdicts) == len(load()) > 1900
    for v in verdicts:
        assert v.status in ("AGREES", "DISAGREES", "NOT COMPARABLE")
        assert v.why if v.status != "AGREES" else v.derived
    assert Counter(v.status for v in verdicts)["AGREES"] > 1400
    assert {v.printed.source for v in verdicts} == set(SOURCES)


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
}


def test_the_tables_are_complete(verdicts):
    found = {key: sum(c.values()) for key, c in counts(verdicts).items()}
    assert {key: found[key] for key in TABLES} == TABLES


def test_every_disagreement_is_a_listed_erratum(verdicts):
    assert unlisted(verdicts, errata()) == ([], [])


def test_every_erratum_is_explained_and_measured():
    for e in errata():
        assert len(e.why) > 60 and len(e.inside) > 30 and e.measured
        derived = {Fraction(d) for _, d in e.cells.values()}
        printed = {Fraction(p) for p, _ in e.cells.values()}
        for m in e.measured:
            low, high = m.interval[0] - DRIFT, m.interval[1] + DRIFT
            assert low <= m.slope <= high
            assert any(low <= float(x) <= high for x in derived), (e.title, m)
            assert not any(low <= float(x) <= high for x in printed - derived), (e.title, m)


def test_a_changed_cell_is_found(verdicts):
    """Negative control: of every table, one cell with a changed value."""
    first = {}
    for v in verdicts:
        if v.status == "AGREES" and v.printed.step is not None:
            first.setdefault(v.printed.table, v.printed)
    assert len(first) >= 10
    for cell in first.values():
        assert _compare(replace(cell, value="-17/2"), {}).status == "DISAGREES"


def test_a_changed_parameter_is_found(verdicts):
    for table in ("B.1", "B.2", "G.2", "1", "2", "Definitions 4-7"):
        cell = next(v.printed for v in verdicts if v.printed.table == table and v.status == "AGREES")
        wrong = "-17/2" if isinstance(cell.value, str) and cell.value != "zero" else cell.times
        changed = replace(cell, value=wrong + audit_module.Power.of({"N": -9}) if wrong is cell.times else wrong)
        assert _compare(changed, {}).status == "DISAGREES", table


def test_unlisted_and_gone_are_told_apart(verdicts):
    known = errata()
    new, gone = unlisted(verdicts, known[1:])
    assert {v.key for v in new} == set(known[0].cells) and not gone
    agreeing = [v for v in verdicts if v.key not in known[0].cells]
    assert unlisted(agreeing, known) == ([], list(known[0].cells))


@pytest.mark.parametrize(
    ("printed", "derived", "holds"),
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
def test_how_a_printed_size_is_read(printed, derived, holds):
    assert _holds(printed, derived) is holds


def test_mechanism_letters_of_the_paper():
    """MSSP paper, App. I.7: the letter printed beside a size is that of a leading matching, or the experts are tied."""
    checked = 0
    for cell in load("mssp"):
        letter = cell.setting.get("mechanism")
        if letter is None or cell.reason or cell.step is None:
            continue
        (d,) = _derivations(cell)
        found = explain_quantity(d, d.analysis(), cell.quantity, cell.step)
        letters = {x.letter for term in found.terms for x in term.mechanisms}
        assert letter in letters or (d.scaling.tied and "shared" in letters), cell
        checked += 1
    assert checked >= 15


def test_errata_page_names_every_cell(verdicts):
    page = errata_markdown(verdicts, errata())
    for e in errata():
        assert e.title in page
        for (_, table, label, quantity, _), (printed, derived) in e.cells.items():
            assert f"{table} {label}".strip() in page and quantity in page and printed in page and derived in page


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


@pytest.mark.parametrize("form", ["text", "markdown"])
def test_report_formats(form):
    result = CliRunner().invoke(main, ["audit", "--source", "transfer", "--format", form])
    assert result.exit_code == 0 and "not comparable" in result.output and "transfer" in result.output


def test_a_new_disagreement_fails(monkeypatch):
    """Negative control of the exit code."""
    known = errata()
    monkeypatch.setattr(audit_command, "errata", lambda: known[1:])
    result = CliRunner().invoke(main, ["audit", "--source", "mssp"])
    assert result.exit_code == 1 and "not in the errata" in result.stderr


@pytest.mark.parametrize(("args", "says"), [(["--source", "msp"], "no source named"), (["--format", "x"], "no format")])
def test_errors(args, says):
    result = CliRunner().invoke(main, ["audit", *args])
    assert result.exit_code == 2 and says in result.stderr
