"""Turns a report into a document."""

from __future__ import annotations

import math
from collections.abc import Sequence

from scaling_algebra.documents import document_of
from scaling_algebra.documents.blocks import Block, Document, Grid, Heading, Lines, Piece, literal
from scaling_algebra.documents.notation import formula, plain
from scaling_algebra.spec.level import NAMED

from .fit import Fit, Verdict
from .report import Report, ReportRow


@document_of.register(Report)
def build_report_document(r: Report, heading: str = "", every: bool = False) -> Document:
    """Returns a report as a document: claims, a summary line, rows that do not agree, and gates.

    Args:
        r: the report.
        heading: what was measured, or "".
        every: show rows and gates that agree, too.
    """
    sizes = f"n = {', '.join(f'{n:g}' for n in r.sizes)}; " if r.sizes else ""
    blocks: list[Block] = [Heading(literal(heading))] if heading else []
    blocks.append(Lines.of(sizes + r.conditions))
    if r.claims:
        blocks.append(_build_grid(r.claims))
    blocks.append(Lines.of(r.closing))
    if shown := [row for row in r.rows if every or row.verdict is not Verdict.AGREES]:
        blocks += [Heading("every prediction" if every else "predictions that do not agree", 2), _build_grid(shown)]
    if r.unmeasured:
        blocks += [Heading("not measured", 2), Lines.of(", ".join(r.unmeasured), listed=True)]
    if r.undecided:
        named, more = r.undecided if every else r.undecided[:NAMED], len(r.undecided) - NAMED
        told = f"{', '.join(named)}{f' and {more} more (--all)' if more > 0 and not every else ''}"
        blocks += [
            Heading("not judged, because some step or all steps have no prediction", 2),
            Lines.of(told, listed=True),
        ]
    gates = [str(gate) for gate in r.gates if every or not gate.passed]
    passed = ", ".join(gate.name for gate in r.gates if gate.passed)
    gates += [f"gates passed: {passed}"] if passed and not every else []
    if gates:
        blocks += [Heading("gates", 2), Lines.of(*gates, listed=True)]
    return Document(tuple(blocks), r.as_json(), closing=r.closing)


def _build_grid(rows: Sequence[ReportRow]) -> Grid:
    """Returns a table with one line for each row of a report; the columns "level" and "because" appear only if some row
    has an entry in them.
    """
    header = ["quantity", "step", "predicted", "level", "measured", "interval", "verdict", "because"]
    cells: list[tuple[Piece, ...]] = [
        (r.quantity, str(r.step), format_prediction(r), r.level, *format_measurement(r.fit), str(r.verdict), r.because)
        for r in rows
    ]
    used = {"level": any(r.level for r in rows), "because": any(r.because for r in rows)}
    columns = [k for k, name in enumerate(header) if used.get(name, True)]
    return Grid.of([header[k] for k in columns], [tuple(row[k] for k in columns) for row in cells])


def format_prediction(row: ReportRow) -> Piece:
    return "zero" if row.predicted is None else row.predicted


def format_measurement(f: Fit) -> tuple[Piece, Piece]:
    """Returns the measured slope and its confidence interval, each as text."""
    return "zero" if f.zero else format_signed(f.slope), format_interval(f.low, f.high)


def format_signed(x: float, digits: int = 3, otherwise: str = "none") -> Piece:
    """Formats a number like ``+0.017``; ``otherwise`` if it is not finite."""
    return formula(f"{x:+.{digits}f}") if math.isfinite(x) else otherwise


def format_interval(low: float, high: float, digits: int = 3) -> Piece:
    """Formats an interval like ``[-0.114, +0.110]``; empty if it is NaN."""
    return "" if math.isnan(low) else formula(f"[{low:+.{digits}f}, {high:+.{digits}f}]")


def describe_row(row: ReportRow) -> str:
    """Returns a row as a sentence, with the reason if it is undecided."""
    slope, between = map(plain, format_measurement(row.fit))
    text = f"{row.verdict}: {row.quantity} at t={row.step}, predicted {format_prediction(row)}, measured {slope}"
    why = row.because
    return text + (f" in {between}" if between else "") + (f" ({why})" if why else "")
