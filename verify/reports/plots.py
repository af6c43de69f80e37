"""Pictures of a report: slopes with the predicted lines, exponents over time, predicted against measured.

``python -m scaling_algebra.verify.reports.plots EVIDENCE.json PICTURE.png`` draws the last from kept evidence.
"""

from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from scaling_algebra.documents.pictures import headless
from scaling_algebra.verify.judging.fit import Verdict
from scaling_algebra.verify.judging.report import Report, ReportRow

from .panels import Curve, panel

with headless():
    import matplotlib
    from matplotlib.figure import Figure

COLOURS = {Verdict.AGREES: "#2a7a3b", Verdict.REFUTED: "#b3261e", Verdict.INCONCLUSIVE: "#b58900"}
STYLE: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "scalecalc", "legend.frameon": False}

Pictures = tuple[str, list[str]]
"""A caption and SVGs, one for each family of quantities."""
Point = tuple[float, float, float, float, str]
"""Predicted exponent, measured exponent, ends of its interval, verdict."""


def family(quantity: str) -> str:
    """The panel of a quantity: the signal or gradient it is a part of, all updates, or all raw gradients."""
    parts = quantity.split(".")
    if parts[0] in ("g1",) and len(parts) > 1:
        return ".".join(parts[:2])
    if parts[0][0] in "dg" and parts[0][1:2] in ("W", "Q"):
        return "cumulative updates" if parts[0][0] == "d" else "raw gradients"
    return parts[0]


def slopes(report: Report) -> Pictures:
    """Size of every quantity against n at the last predicted step, from the smallest n on."""
    last = max((r.step for r in report.rows), default=0)
    x = [math.log2(n) for n in report.sizes]

    def curve(r: ReportRow) -> Curve:
        centre, error = report.means[r.quantity, r.step]
        grown = [(at, c - centre[0], 2 * e) for at, c, e in zip(x, centre, error, strict=True)]
        measured = [(at, c, c - e, c + e) for at, c, e in grown]
        return Curve(_short(r.quantity), measured, [(at, float(r.predicted or 0) * (at - x[0])) for at in x])

    shown = [
        r for r in report.rows if r.step == last and r.predicted is not None and (r.quantity, r.step) in report.means
    ]
    pictures = [panel(name, "log2 n", [curve(r) for r in rows]) for name, rows in _families(shown).items()]
    return f"log2 of size after {last} updates, from the smallest n on; dashed: predicted", pictures


def over_time(report: Report) -> Pictures:
    """Measured exponent of every quantity against the number of updates, with intervals."""
    later = [ReportRow(q, t, None, f, Verdict.INCONCLUSIVE) for (q, t), f in report.later.items()]

    def curve(name: str, rows: Sequence[ReportRow]) -> Curve:
        predicted = [(r.step, float(r.predicted)) for r in rows if r.predicted is not None]
        return Curve(_short(name), [(r.step, r.fit.slope, r.fit.low, r.fit.high) for r in rows], predicted)

    pictures = []
    for name, rows in _families([*report.rows, *later]).items():
        by_quantity: dict[str, list[ReportRow]] = {}
        for r in rows:
            by_quantity.setdefault(r.quantity, []).append(r)
        curves = [curve(quantity, rows_of) for quantity, rows_of in by_quantity.items()]
        pictures.append(panel(name, "updates", curves, crosses=True, whole=True))
    return "measured exponent after every update; crosses: predicted", pictures


def points(reports: Iterable[Report]) -> list[Point]:
    """Every exponent that is predicted and can be measured."""
    rows = [r for report in reports for r in report.rows if r.predicted is not None and math.isfinite(r.fit.slope)]
    return [(float(r.predicted or 0), r.fit.slope, r.fit.low, r.fit.high, str(r.verdict)) for r in rows]


def kept_points(evidence: Path) -> list[Point]:
    """The exponents of an ``evidence.json``."""
    rows = [row for run in json.loads(evidence.read_text(encoding="utf-8"))["runs"] for row in run["rows"]]
    return [(float(Fraction(r[2])), *r[3:]) for r in rows if r[2] is not None and r[3] is not None]


def overview(shown: Sequence[Point]) -> str:
    """SVG: every measured exponent against the predicted one, coloured by verdict."""
    return _svg(_overview(shown))


def overview_png(shown: Sequence[Point], path: Path | BinaryIO) -> None:
    """The overview as a file of fixed size, however many exponents there are."""
    _overview(shown).savefig(path, format="png", dpi=160, metadata={"Software": None})


def _overview(shown: Sequence[Point]) -> Figure:
    with matplotlib.rc_context({**STYLE, "font.size": 10.5, "legend.fontsize": 9}):
        figure = Figure(figsize=(5.4, 5.0), layout="constrained")
        axes = figure.add_subplot()
        spread = np.random.default_rng(0).uniform(-0.15, 0.15, len(shown))  # else equal exponents hide each other
        for verdict in Verdict:
            chosen = [(x + s, *rest) for (x, *rest, v), s in zip(shown, spread, strict=True) if v == str(verdict)]
            x, y, low, high = zip(*chosen, strict=True) if chosen else ((), (), (), ())
            style: dict[str, Any] = {"ls": "", "marker": ".", "ms": 4, "mew": 0, "elinewidth": 0.4}
            label = f"{verdict} ({len(chosen)})"
            axes.errorbar(x, y, _bars(y, low, high), color=COLOURS[verdict], label=label, **style)
        exponents = np.unique([x for x, *_ in shown] or [0.0])
        line = [exponents[0] - 0.3, exponents[-1] + 0.3]
        axes.plot(line, line, color="#999", lw=0.8, zorder=0)
        axes.hlines(exponents, exponents - 0.19, exponents + 0.19, color="black", lw=1.5, zorder=5, label="predicted")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(matplotlib.ticker.MultipleLocator(0.5))
        axes.set_xlabel("predicted exponent of n (points spread sideways)")
        axes.set_ylabel("measured exponent of n, with its interval")
        axes.grid(lw=0.3)
        figure.legend(
            loc="outside upper center", ncols=4, handletextpad=0.3, handlelength=1, columnspacing=1, markerscale=2
        )
        return figure


def _families(rows: Sequence[ReportRow]) -> dict[str, list[ReportRow]]:
    """Rows with something to show, one picture for each family."""
    groups: dict[str, list[ReportRow]] = {}
    for r in rows:
        if math.isfinite(r.fit.slope):
            groups.setdefault(family(r.quantity), []).append(r)
    return groups


def _short(quantity: str) -> str:
    return quantity.removeprefix(family(quantity) + ".")


def _bars(at: Sequence[float], low: Sequence[float], high: Sequence[float]) -> list[list[float]]:
    """Lengths of error bars below and above."""
    down = [max(0.0, x - y) for x, y in zip(at, low, strict=True)]
    return [down, [max(0.0, y - x) for x, y in zip(at, high, strict=True)]]


def _svg(figure: Figure) -> str:
    out = io.StringIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()


if __name__ == "__main__":
    overview_png(kept_points(Path(sys.argv[1])), Path(sys.argv[2]))
