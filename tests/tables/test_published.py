"""Published against derived: every printed cell is compared or has a reason, every disagreement is a listed erratum."""

import re
import shlex
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path

import pytest

from scaling_algebra.cli import main
from scaling_algebra.documents import render
from scaling_algebra.explanations.explanations import explain_quantity
from scaling_algebra.laws.expressions import exponent, parameter
from scaling_algebra.spec.powers import Power
from scaling_algebra.tables.audit.comparison import STATUSES, Audit, compare, derivations, holds
from scaling_algebra.tables.audit.errata import Errata, errata, find_unlisted
from scaling_algebra.tables.commands import audit as audit_command
from scaling_algebra.tables.published.printed import SOURCES, load

from ..shared import scalecalc

DRIFT = 0.1
"""Finite-size drift that still counts as agreement, as in verify."""
GUIDE = (Path(__file__).parents[2] / "docs" / "guide" / "tables.md").read_text(encoding="utf-8")
ROW = r"^\| ([\w-]+) \| (.*?) \| (\d+) \| (\d+) \| (\d+) \|$"
*TABLES, ALL = re.findall(ROW, GUIDE, re.M)
COUNTS = {(source, table): tuple(map(int, counts)) for source, table, *counts in TABLES}
"""Cells of every table that agree, disagree, and cannot be compared, as the guide says."""


@cache
def compared(table):
    """The cells of one table beside the derived ones."""
    source, name = table
    return Audit(compare([c for c in load(source) if c.table == name]))


def listed(table):
    """The errata of one table."""
    found = (replace(e, cell=tuple(c for c in e.cell if (e.source, c.table) == table)) for e in errata())
    return [e for e in found if e.cell]


def wrong(cell):
    """The cell with another value."""
    law, text = cell.setting.get("law", {}), str(cell.value)
    parts = text.split(",")
    if "assumptions" in law:
        value = ", ".join(x if x.strip() == "-" else f"({x})*d**(-9)" for x in parts)
    elif "numbers" in law:
        value = ", ".join(f"{float(x) + 0.31:.3f}" for x in parts)
    elif law:
        value = ", ".join(f"({x})*3" if {"of", "identity"} & set(law) else f"({x})*n**9" for x in parts)
    else:
        of_a_size = cell.step is not None or (isinstance(cell.value, str) and cell.value != "zero")
        value = "-17/2" if of_a_size else Power.of({"N": -9})
    return replace(cell, value=value)


PAGE = (Path(__file__).parents[2] / "docs" / "papers.md").read_text(encoding="utf-8").partition("## Softmax")[0]
SECTIONS = re.findall(r"^\| [^|]+ \| ((reproduced|partly|not|left out)[^|]*) \| (.*?) ?\|$", PAGE, re.M)


def test_the_page_of_papers_counts_its_sections():
    """Each is reproduced, partly, not or left out; what is reproduced, or against, has its command."""
    found, against = Counter(status for _, status, _ in SECTIONS), sum("against" in says for says, _, _ in SECTIONS)
    said = [int(n) for n in re.findall(r"\d+", PAGE.partition("Of ")[2].partition("the word")[0])]
    assert said == [len(SECTIONS), found["reproduced"], found["partly"], found["not"], found["left out"], against]
    assert len(SECTIONS) + 5 == len(re.findall(r"^\| ", PAGE, re.M))  # five heads
    assert all("`scalecalc " in by for says, status, by in SECTIONS if status == "reproduced" or "against" in says)


OPEN = "derive --architecture moe-load --regime I --optimizer adamw"
"""Its row says what stays open: exit code 3."""


@pytest.mark.parametrize("command", sorted({c for *_, by in SECTIONS for c in re.findall("`scalecalc (.*?)`", by)}))
def test_a_command_that_reproduces_a_section_answers(command):
    """Sources are compared below, cell by cell; what trains is tested in `tests/verify`; `audit --errata` is an example
    of the guide, which is compared word by word."""
    verb, *rest = shlex.split(command)
    if verb == "verify" or (verb == "study" and rest[0] != "limit") or rest == ["--errata"]:
        main.get_command(None, verb).make_context(verb, rest)
    elif "--source" in rest:
        assert rest[-1] in SOURCES
    else:
        assert scalecalc(verb, *rest).exit_code == (3 if command == OPEN else 0)


def test_no_table_is_left_out():
    assert Counter((c.source, c.table) for c in load()) == {table: sum(n) for table, n in COUNTS.items()}
    assert {source for source, _ in COUNTS} == set(SOURCES)
    assert ("all", "", *(str(sum(n)) for n in zip(*COUNTS.values(), strict=True))) == ALL


def every_cell(table):
    """Each agrees, is a listed erratum or says why not; and with another value (negative control) it is no other."""
    found, known = compared(table), listed(table)
    ((_, counted),) = found.counts().items()
    assert tuple(counted[s] for s in STATUSES) == COUNTS[table]
    for c in found.comparisons:
        assert c.derived if c.status == "AGREES" else len(c.why) > 10, c
    assert find_unlisted(found, known) == ([], [])
    agreeing = [c.printed for c in found.comparisons if c.status == "AGREES"]
    gauges = [c.printed for c in found.comparisons if c.printed.setting.get("gauge") == "multiplier"]
    for cell in agreeing if "law" in agreeing[0].setting else agreeing[::25]:
        assert compare([wrong(cell), *(c for c in gauges if c is not cell)])[0].status == "DISAGREES", cell


@pytest.mark.parametrize("table", [t for t in COUNTS if t[1] != "B.2"], ids=" ".join)
def test_every_cell_of_a_table(table):
    """Of B.2 they are compared in `test_emitted.py`: it takes long to derive."""
    every_cell(table)


def test_an_erratum_that_is_new_and_one_that_is_gone_are_told_apart(monkeypatch):
    """Negative control, also of the exit code."""
    found, known = compared(("mssp", "J.4.3")), listed(("mssp", "J.4.3"))
    new, gone = find_unlisted(found, known[1:])
    assert {c.key for c in new} == set(known[0].cells) and not gone
    agreeing = Audit(tuple(c for c in found.comparisons if c.key not in known[0].cells))
    assert find_unlisted(agreeing, known) == ([], list(known[0].cells))
    for audited, errors, code, says in (
        (found, known, 0, ""),
        (found, known[1:], 1, "not in the errata: mssp J.4.3"),
        (agreeing, known, 1, "listed in the errata, but it agrees: mssp J.4.3"),
    ):
        monkeypatch.setattr(audit_command, "audit", lambda source, audited=audited: audited)
        monkeypatch.setattr(audit_command, "errata", lambda errors=errors: Errata(tuple(errors)))
        result = scalecalc("audit")
        assert result.exit_code == code and says in result.stderr and bool(result.stderr) == bool(says)


@pytest.mark.parametrize(
    ("printed", "derived", "expected"),
    [
        ("-1/2", Fraction(-1, 2), True),
        ("-1/2", Fraction(1, 2), False),
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
    cells = [c for c in load("mssp") if "mechanism" in c.setting and not c.reason and c.step is not None]
    assert len(cells) >= 15
    for cell in cells:
        (d,) = derivations(cell)
        found = explain_quantity(d, d.analysis(), cell.quantity, cell.step)
        letters = {x.letter for term in found.terms for x in term.mechanisms}
        letter = cell.setting["mechanism"]
        assert letter in letters or (d.scaling.tied and "shared" in letters), cell


# errata --------------------------------------------------------------------------------------------------------


def value(text, at):
    """An exponent at values of its parameters."""
    put = {parameter(name): exponent(x) for name, x in at.items()}
    return Fraction(str(exponent(text).subs(put)))


def test_every_erratum_is_explained_and_measured():
    for e in errata():
        assert len(e.why) > 60 and len(e.inside) > 30 and e.measured
        for m in e.measured:
            derived, printed = ({value(getattr(c, x), m.at) for c in e.cell} for x in ("derived", "printed"))
            assert m.drift in (0, DRIFT)
            low, high = m.interval[0] - m.drift, m.interval[1] + m.drift
            assert low <= m.slope <= high
            assert any(low <= float(x) <= high for x in derived), (e.title, m)
            assert not any(low <= float(x) <= high for x in printed - derived), (e.title, m)


def test_errata_name_every_cell_twice():
    """In the overview, with a measured slope, and with its evidence."""
    overview, _, evidence = render(errata().document()).partition(SOURCES["mssp"])
    places = [line for line in overview.splitlines() if line.startswith("  ")][1:]
    assert len(places) == sum(len(e.cell) for e in errata()) == 45
    for e in errata():
        assert e.title in evidence and e.why in evidence and all(m.command in evidence for m in e.measured)
        for c in e.cell:
            where = f"{c.table} {c.label}".strip()
            (line,) = (
                x for x in places if x.split("  ")[1] == f"{e.source} {where}" and f"  {c.quantity}  " in x + "  "
            )
            shown = rf"{re.escape(c.printed)} +{re.escape(c.derived)}"
            assert re.search(rf"  {shown} +[+-]\d\.\d\d \[", line), line
            assert where in evidence and c.quantity in evidence
    assert all(e["matching"] for e in errata().document().record["errata"])


def test_errata_of_one_paper():
    assert all([*errata(source)] == [e for e in errata() if e.source == source] for source in SOURCES)
    assert "No cell of this paper is known to be wrong." in render(errata("transfer").document())


def test_a_softmax_of_bounded_logits_has_the_exponents_of_the_table():
    """MSSP paper, App. A and J.1, on Table J.4.5: but for the share 1/M of gates, and zero where experts are alike.

    On J.3.2, J.3.4 and J.4.3 (4 minutes) 410 cells are the same, 33 differ by 1/M, 34 are undecided.
    """
    cells = [c for c in load("mssp") if c.table == "J.4.5" and c.step is not None and not c.reason]
    softmax = [replace(c, setting={**c.setting, "but": ["net=moe-softmax"]}) for c in cells]
    other = [(c.printed.quantity, c.derived) for c in compare(softmax) if c.status != "AGREES"]
    assert len(cells) - len(other) == 103
    assert sum(name in ("phi", "gphi") for name, _ in other) == 5
    assert [derived for name, derived in other if name not in ("phi", "gphi")] == ["zero"] * 3
