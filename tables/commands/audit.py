"""``scalecalc audit``: every published cell against the engine, and on request against a measurement.

Read next: ``audit.py`` (the comparison), ``errata.py`` (what is known already).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click
from tabulate import tabulate

from scaling_algebra.errors import unknown_name
from scaling_algebra.solver.report import markdown_table
from scaling_algebra.tables.audit.comparison import Verdict, audit, counts
from scaling_algebra.tables.audit.errata import WHERE, Key, errata, unlisted
from scaling_algebra.tables.published.reading import SOURCES

FORMATS = ("text", "json", "markdown")
_STATUSES = ("AGREES", "DISAGREES", "NOT COMPARABLE")


@click.command("audit")
@click.option("--source", metavar="NAME", help=f"Only this paper: {', '.join(SOURCES)}.")
@click.option("--measure", is_flag=True, help="Also train torch models and fit the slope of every disagreement.")
@click.option("--format", "form", default="text", show_default=True, metavar="FORMAT", help=", ".join(FORMATS))
def command(source: str | None, measure: bool, form: str) -> int:
    """Hold every published table against the engine, cell by cell.

    Each cell AGREES, DISAGREES or is NOT COMPARABLE, with the reason. Exit code 0 when every disagreement is a listed
    erratum (tables/emitted/errata.md), 1 when there is a new one or a listed one has gone.
    """
    if source is not None and source not in SOURCES:
        raise unknown_name("source", source, SOURCES)
    if form not in FORMATS:
        raise unknown_name("format", form, FORMATS)
    verdicts = audit(source)
    new, gone = unlisted(verdicts, errata())
    wrong = [v for v in verdicts if v.status == "DISAGREES"]
    slopes = _measure(wrong) if measure else {}
    if form == "json":
        click.echo(json.dumps(_json(verdicts, slopes), indent=1))
    else:
        click.echo(_report(verdicts, slopes, form))
    for v in new:
        click.echo(f"scalecalc: not in the errata: {_difference(v)}", err=True)
    for key in gone:
        click.echo(f"scalecalc: listed in the errata, but it agrees: {' '.join(map(str, key))}", err=True)
    return 1 if new or gone else 0


def _measure(wrong: Sequence[Verdict]) -> dict[Key, str]:
    """Measured slope of every disagreement, as text."""
    from scaling_algebra.verify.experiments.slopes import slopes  # torch is loaded here

    asked = [(v.derivation, v.printed.quantity, v.printed.step) for v in wrong if v.derivation is not None]
    return dict(zip((v.key for v in wrong), slopes(asked), strict=True))


def _json(verdicts: Sequence[Verdict], slopes: Mapping[Key, str]) -> dict[str, Any]:
    wrong = [v for v in verdicts if v.status == "DISAGREES"]
    return {
        "cells": len(verdicts),
        "agree": sum(v.status == "AGREES" for v in verdicts),
        "disagreements": [v.as_json() | ({"measured": slopes[v.key]} if v.key in slopes else {}) for v in wrong],
        "not_comparable": [v.as_json() for v in verdicts if v.status == "NOT COMPARABLE"],
    }


def _report(verdicts: Sequence[Verdict], slopes: Mapping[Key, str], form: str) -> str:
    rows = [[source, table, *(str(found[s]) for s in _STATUSES)] for (source, table), found in counts(verdicts).items()]
    rows.append(["all", "", *(str(sum(v.status == s for v in verdicts)) for s in _STATUSES)])
    header = ("source", "table", *(s.lower() for s in _STATUSES))
    listed = {key: e for e in errata() for key in e.cells}
    blocks = [_table(header, rows, form)]
    for v in verdicts:
        if v.status == "DISAGREES":
            lines = [_difference(v)]
            known = listed.get(v.key)
            if known is not None:
                lines += [f"  why: {known.why}", f"  in the same paper: {known.inside}"]
            lines.append(f"  matching: {v.why}")
            if v.key in slopes:
                lines.append(f"  measured: {slopes[v.key]}")
            blocks.append(
                "\n".join(lines if form == "text" else [f"- {lines[0]}", *(f"  - {x.strip()}" for x in lines[1:])])
            )
    reasons: dict[str, int] = {}
    for v in verdicts:
        if v.status == "NOT COMPARABLE":
            reasons[v.why] = reasons.get(v.why, 0) + 1
    table = [[str(k), why] for why, k in sorted(reasons.items(), key=lambda item: -item[1])]
    blocks.append(_table(("cells", "not comparable because"), table, form))
    return "\n\n".join(blocks)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], form: str) -> str:
    if form == "markdown":
        return markdown_table(header, rows)
    return str(tabulate(rows, header, tablefmt="simple", disable_numparse=True))


def _difference(v: Verdict) -> str:
    p = v.printed
    setting = ", ".join(str(p.setting[k]) for k in WHERE if k in p.setting)
    step = "" if p.step is None else f" after {p.step} update{'' if p.step == 1 else 's'}"
    place = f"{p.source} {p.table} {p.label}".strip() + f" ({setting}): {p.quantity}{step}"
    return f"{place}: printed {p.value}, derived {v.derived}"
