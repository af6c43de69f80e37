"""Pictures of a report: slopes with the predicted lines, exponents over time, predicted against measured.

Read next: ``output.py`` (puts them into files).
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scaling_algebra.verify.judging.fit import Fit, Verdict
from scaling_algebra.verify.judging.report import Report, Row

COLOURS = {Verdict.AGREES: "#2a7a3b", Verdict.REFUTED: "#b3261e", Verdict.INCONCLUSIVE: "#b58900"}
COLUMNS, LINES = 4, 12
"""Panels side by side, and most entries in a legend."""

STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "scalecalc",
    "font.size": 8,
    "axes.titlesize": 9,
    "legend.fontsize": 6,
}


def family(quantity: str) -> str:
    """The panel of a quantity: the signal or gradient it is a part of, all updates, or all raw gradients."""
    parts = quantity.split(".")
    if parts[0] in ("g1",) and len(parts) > 1:
        return ".".join(parts[:2])
    if parts[0][0] in "dg" and parts[0][1:2] in ("W", "Q"):
        return "cumulative updates" if parts[0][0] == "d" else "raw gradients"
    return parts[0]


def slopes(report: Report) -> str:
    """SVG: size of every quantity against n at the last predicted step, from the smallest n on; dashed as predicted."""
    last = max((r.step for r in report.rows), default=0)
    x = np.log2(report.sizes)

    def draw(axes: Axes, rows: Sequence[Row]) -> None:
        for k, r in enumerate(rows):
            centre, error = (np.array(v) for v in report.means[r.quantity, r.step])
            colour = f"C{k % 10}"
            axes.errorbar(
                x, centre - centre[0], 2 * error, color=colour, lw=1, marker=".", ms=3, label=_short(r.quantity)
            )
            axes.plot(x, float(r.predicted or 0) * (x - x[0]), color=colour, lw=0.8, ls="--")
        axes.set_xlabel("log2 n")

    shown = [
        r for r in report.rows if r.step == last and r.predicted is not None and (r.quantity, r.step) in report.means
    ]
    return _panels(shown, draw, f"log2 of size, relative to the smallest n, after {last} updates (dashed: predicted)")


def over_time(report: Report) -> str:
    """SVG: measured exponent of every quantity against the number of updates, with intervals; crosses are predicted."""
    later = [Row(q, t, None, f, Verdict.INCONCLUSIVE) for (q, t), f in report.later.items()]

    def draw(axes: Axes, rows: Sequence[Row]) -> None:
        names = list(dict.fromkeys(r.quantity for r in rows))
        for k, name in enumerate(names):
            mine = [r for r in rows if r.quantity == name and math.isfinite(r.fit.slope)]
            steps, fits = [r.step for r in mine], [r.fit for r in mine]
            axes.errorbar(
                steps,
                [f.slope for f in fits],
                _bars(fits),
                color=f"C{k % 10}",
                lw=1,
                marker=".",
                ms=3,
                label=_short(name),
            )
            told = [(r.step, float(r.predicted)) for r in mine if r.predicted is not None]
            if told:
                axes.plot(*zip(*told, strict=True), color=f"C{k % 10}", ls="", marker="x", ms=5)
        axes.set_xlabel("updates")
        low, high = axes.get_ylim()
        axes.set_ylim(math.floor(low) - 0.25, math.ceil(high) + 0.25)
        axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))

    return _panels([*report.rows, *later], draw, "measured exponent after every update (crosses: predicted)")


def overview(reports: Iterable[Report]) -> str:
    """SVG: every measured exponent against the predicted one, coloured by verdict."""
    return _svg(_overview(reports))


def overview_png(reports: Iterable[Report], path: Path) -> None:
    """The same as a file of fixed size, however many exponents there are."""
    _overview(reports).savefig(path, dpi=130, metadata={"Software": None})


def _overview(reports: Iterable[Report]) -> Figure:
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.4, 5.0), layout="constrained")
        axes = figure.add_subplot()
        rows = [r for report in reports for r in report.rows if r.predicted is not None and math.isfinite(r.fit.slope)]
        spread = np.random.default_rng(0).uniform(-0.08, 0.08, len(rows))  # else points of one exponent lie on a line
        for verdict in Verdict:
            chosen = [
                (float(r.predicted or 0) + s, r.fit) for r, s in zip(rows, spread, strict=True) if r.verdict is verdict
            ]
            label = f"{verdict} ({len(chosen)})"
            axes.errorbar(
                [p for p, _ in chosen],
                [f.slope for _, f in chosen],
                _bars([f for _, f in chosen]),
                ls="",
                marker=".",
                ms=3,
                lw=0.3,
                color=COLOURS[verdict],
                label=label,
            )
        ends = [float(r.predicted or 0) for r in rows] or [0.0]
        axes.plot(
            [min(ends) - 0.2, max(ends) + 0.2], [min(ends) - 0.2, max(ends) + 0.2], color="black", lw=0.6, zorder=0
        )
        axes.set_xlabel("predicted exponent of n (spread sideways to tell points apart)")
        axes.set_ylabel("measured exponent, with interval")
        axes.grid(lw=0.2)
        axes.legend(fontsize=8)
        return figure


def _panels(rows: Sequence[Row], draw: object, title: str) -> str:
    """One panel for each family that has something to show."""
    groups: dict[str, list[Row]] = {}
    for r in rows:
        if math.isfinite(r.fit.slope):
            groups.setdefault(family(r.quantity), []).append(r)
    with matplotlib.rc_context(STYLE):
        height = max(1, math.ceil(len(groups) / COLUMNS))
        figure = Figure(figsize=(3.1 * COLUMNS, 2.4 * height + 0.6))
        figure.subplots_adjust(0.04, 0.45 / (2.4 * height), 0.99, 1 - 0.7 / (2.4 * height), hspace=0.45)
        figure.suptitle(title, fontsize=10)
        grid = figure.subplots(height, COLUMNS, squeeze=False).flat
        for axes in grid[len(groups) :]:
            axes.remove()
        for axes, (name, members) in zip(grid, groups.items(), strict=False):
            draw(axes, members)  # type: ignore[operator]
            axes.set_title(name)
            axes.grid(lw=0.2)
            handles, labels = axes.get_legend_handles_labels()
            axes.legend(handles[:LINES], labels[:LINES], loc="upper left", framealpha=0.5, handlelength=1)
        return _svg(figure)


def _short(quantity: str) -> str:
    return quantity.removeprefix(family(quantity) + ".")


def _bars(fits: Sequence[Fit]) -> list[list[float]]:
    """Lengths of error bars below and above."""
    return [[max(0.0, f.slope - f.low) for f in fits], [max(0.0, f.high - f.slope) for f in fits]]


def _svg(figure: Figure) -> str:
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()
