"""Renders an audit and the errata as documents. Used by ``commands/audit.py`` and ``commands/errata.py``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from sympy import latex

from scaling_algebra.documents import document_of
from scaling_algebra.documents.blocks import Block, Code, Document, Grid, Heading, Lines, Piece, Text, literal
from scaling_algebra.documents.notation import typeset
from scaling_algebra.laws.expressions import exponent
from scaling_algebra.tables.published.printed import SOURCES, Key, load

from .comparison import STATUSES, Audit, Comparison, compare
from .errata import Errata, Erratum, Measured, WrongCell
from .errata import errata as known_errata

SETTING = ("regime", "parameterization", "optimizer", "gate")
"""Parts of a setting that distinguish configurations in reports."""
PLACES = ("place", "quantity", "updates", "printed", "derived", "measured")


@document_of.register(Audit)
def audit(a: Audit) -> Document:
    """Renders an audit: the number of cells of each status by table, every disagreement with its reasons, and why the
    other cells cannot be compared.
    """
    rows = [(source, table, *(str(n[s]) for s in STATUSES)) for (source, table), n in a.counts().items()]
    total = Counter(c.status for c in a.comparisons)
    rows.append(("all", "", *(str(total[s]) for s in STATUSES)))
    listed = {key: e for e in known_errata() for key in e.cells}
    blocks: list[Block] = [Heading(literal(f"{a.file or 'published'} against derived"))]
    blocks.append(Grid.of(("source", "table", *(s.lower() for s in STATUSES)), rows))
    for c in a.disagreements:
        erratum, slope = listed.get(c.key), a.slopes.get(c.key)
        lines: list[Sequence[Piece]] = []
        if erratum is not None:
            lines += [("why: ", typeset(erratum.why)), ("in the same paper: ", typeset(erratum.inside))]
        lines += [
            *([(_label(a, c), Code(c.why))] if c.why or not a.file else []),
            *([("measured: ", literal(slope))] if slope is not None else []),
        ]
        blocks += [Heading(literal(difference(c, "stated" if a.file else "printed")), 2)]
        blocks += [Lines.of(*lines, listed=True)] if lines else []
    if reasons := Counter(c.why for c in a.comparisons if c.status == "NOT COMPARABLE"):
        blocks += [Heading("not comparable", 2)]
        blocks.append(Grid.of(("cells", "because"), [(str(n), literal(why)) for why, n in reasons.most_common()]))
    return Document(tuple(blocks), _audit_record(a))


def _label(a: Audit, c: Comparison) -> str:
    """Returns the words that introduce the reason for a derived value: ``because``, ``matching`` or ``derived by``."""
    if a.file and c.printed.step is None:
        return "because: "
    return "matching: " if c.derivation is not None else "derived by: "


def difference(c: Comparison, printed: str = "printed") -> str:
    """Writes a disagreement in a line: its place, the printed and the derived exponent."""
    p = c.printed
    setting = ", ".join(str(p.setting[k]) for k in SETTING if k in p.setting)
    place = f"{p.source} {p.table} {p.label}".strip() + (f" ({setting})" if setting else "")
    return f"{place}: {p.quantity}{_after(p.step)}: {printed} {p.value}, derived {c.derived}"


def _audit_record(a: Audit) -> dict[str, Any]:
    measured = {key: {"measured": slope} for key, slope in a.slopes.items()}
    return {
        "cells": len(a.comparisons),
        "agree": sum(c.status == "AGREES" for c in a.comparisons),
        "disagreements": [c.as_json() | measured.get(c.key, {}) for c in a.disagreements],
        "not_comparable": [c.as_json() for c in a.comparisons if c.status == "NOT COMPARABLE"],
    }


@document_of.register(Errata)
def errata(entries: Errata) -> Document:
    """Renders an overview of the errata, then each erratum with the largest monomial that the engine finds and the
    measured exponent.
    """
    by_key = _compare_listed(entries)
    blocks: list[Block] = [
        Heading("Errata"),
        Lines.of(
            "Cells of the published tables whose exponent differs from the derived one. Each was derived by exact "
            "power counting, agrees with a measurement with real optimizer steps that excludes what is printed, and "
            "follows from another place of the same paper. Exponents are powers of $n$ on the ray of the "
            "configuration; scalecalc audit lists them all. A slope agrees with an exponent that lies within 0.1 of "
            "its interval, a drift that finite sizes leave. A cell about a law is compared with its balance, and "
            "minimised or simulated in numbers."
        ),
        Heading("Overview", 2),
        Grid.of(PLACES, (_line(e, c) for e in entries for c in e.cell))
        if entries.entries
        else Lines.of("No cell of this paper is known to be wrong."),
    ]
    for source in dict.fromkeys(e.source for e in entries):
        blocks.append(Heading(literal(SOURCES[source]), 2))
        for e in entries:
            if e.source == source:
                blocks += _erratum(e, by_key)
    return Document(
        tuple(blocks), {"errata": [_erratum_record(e, by_key) for e in entries]}, "scalecalc audit --errata"
    )


def _compare_listed(entries: Errata) -> dict[Key, Comparison]:
    """Compares every cell in the errata with the engine; returns those that disagree, by key."""
    keys = {key for e in entries for key in e.cells}
    return {c.key: c for c in compare([c for c in load() if c.key in keys]) if c.status == "DISAGREES"}


def _line(e: Erratum, c: WrongCell) -> tuple[Piece | None, ...]:
    near = next((m for m in e.measured if (m.quantity, m.step) == (c.quantity, c.step)), e.measured[0])
    slope, interval = f"{near.slope:+.2f}", f"[{near.interval[0]:+.2f}, {near.interval[1]:+.2f}]"
    measured = Text(f"{slope} {interval}", f"${slope}$ ${interval}$")
    where = f"{e.source} {c.table} {c.label}".strip()
    return literal(where), literal(c.quantity), _updates(c.step), _number(c.printed), _number(c.derived), measured


def _updates(step: int | None) -> str | None:
    return None if step is None else str(step)


def _number(text: str) -> Text:
    """Converts an exponent to text with two forms: plain, and as a typeset formula."""
    return Text(text, f"${latex(exponent(text))}$" if "*" in text else f"${text}$")


def _erratum(e: Erratum, by_key: dict[Key, Comparison]) -> list[Block]:
    rows = []
    for key, c in e.cells.items():
        notation = by_key[key].printed.notation if key in by_key else ""
        shown, where = f"${notation}$" if notation else "", f"{c.table} {c.label}".strip()
        rows.append((where, c.quantity, _updates(c.step), shown, _number(c.printed), _number(c.derived)))
    header = ("where", "quantity", "updates", "printed as", "printed", "derived")
    blocks: list[Block] = [Heading(typeset(e.title), 3)]
    first = by_key.get(next(iter(e.cells)))
    setting = {} if first is None else {k: v for k, v in first.printed.setting.items() if k in SETTING}
    if setting:
        configuration = ", ".join(f"{k} {setting[k]}" for k in SETTING if k in setting)
        blocks.append(Lines.of(f"Configuration: {configuration}."))
    lines: list[Sequence[Piece]] = [("Why: ", typeset(e.why)), ("In the same paper: ", typeset(e.inside))]
    lines += [("Winning matching: " if setting else "Derived by: ", Code(first.why))] if first is not None else []
    return [*blocks, Grid.of(header, rows), Lines.of(*lines, *map(_measurement_line, e.measured), listed=True)]


def _measurement_line(m: Measured) -> Sequence[Piece]:
    interval = f"[{m.interval[0]:+.3f}, {m.interval[1]:+.3f}]"
    return f"Measured: {m.quantity}{_after(m.step)}, slope {m.slope:+.3f}, 95 % interval {interval}, by ", Code(
        m.command
    )


def _after(step: int | None) -> str:
    return "" if step is None else f" after {step} update{'' if step == 1 else 's'}"


def _erratum_record(e: Erratum, by_key: dict[Key, Comparison]) -> dict[str, Any]:
    cells = [{"source": e.source, **vars(c)} for c in e.cell]
    first = by_key.get(next(iter(e.cells)))
    matching = None if first is None else first.why
    measured = [{**vars(m), "interval": list(m.interval), "at": dict(m.at)} for m in e.measured]
    head = {"source": e.source, "title": e.title, "why": e.why, "inside": e.inside}
    return {**head, "matching": matching, "cells": cells, "measured": measured}
