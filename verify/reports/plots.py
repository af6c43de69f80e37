"""Pictures of a report: predicted against measured exponents, and the sizes of the quantities that do not agree.

``python -m scaling_algebra.verify.reports.plots EVIDENCE.json PICTURE.png`` draws the first from kept evidence.
"""

from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from scaling_algebra.documents.pictures import headless
from scaling_algebra.verify.judging.fit import Verdict
from scaling_algebra.verify.judging.report import Report, ReportRow

with headless():
    import matplotlib
    from matplotlib.figure import Figure

COLOURS = {Verdict.AGREES: "#2a7a3b", Verdict.REFUTED: "#b3261e", Verdict.INCONCLUSIVE: "#b58900"}
STYLE: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "scalecalc", "legend.frameon": False}
STYLE |= {"text.parse_math": False}
PANELS, ACROSS = 6, 3
"""Maximum number of panels in a picture, and number of panels in a row."""

Point = tuple[float, float, float, float, str]
"""Predicted exponent, measured exponent, lower and upper end of its interval, verdict."""


def get_family(quantity: str) -> str:
    """Returns the title of the panel in which a quantity is plotted.

    It is "cumulative updates" for the size of W_t - W_0, "raw gradients" for the gradient of a tensor, and otherwise
    the signal, or gradient at a signal, of which the quantity is a part.
    """
    parts = quantity.split(".")
    if parts[0] in ("g1",) and len(parts) > 1:
        return ".".join(parts[:2])
    if parts[0][0] in "dg" and parts[0][1:2] in ("W", "Q"):
        return "cumulative updates" if parts[0][0] == "d" else "raw gradients"
    return parts[0]


def draw_slopes(report: Report) -> Figure | None:
    """Plots the measured size of every quantity that does not agree against n.

    Sizes are those at the quantity's last step, relative to the smallest n. Each family of quantities has its own
    panel; dashed lines show the predicted power of n.

    Returns:
        The figure, or None if every quantity agrees.
    """
    last = {r.quantity: r for r in report.judged if r.verdict is not Verdict.AGREES and r.predicted is not None}
    families: dict[str, list[ReportRow]] = {}
    for r in last.values():
        if math.isfinite(r.fit.slope) and (r.quantity, r.step) in report.means:
            families.setdefault(get_family(r.quantity), []).append(r)
    if not families:
        return None
    rows = -(-min(len(families), PANELS) // ACROSS)
    x = np.log2(report.sizes)
    with matplotlib.rc_context({**STYLE, "font.size": 8}):
        figure = Figure(figsize=(4 * ACROSS, 2.8 * rows))
        figure.subplots_adjust(0.04, 0.2 / rows, 0.99, 1 - 0.1 / rows, hspace=0.45, wspace=0.15)
        for k, (name, shown) in enumerate(islice(families.items(), PANELS), 1):
            axes = figure.add_subplot(rows, ACROSS, k)
            axes.set_title(name)
            axes.set_xlabel("log2 n")
            for r in shown:
                centre, error = map(np.array, report.means[r.quantity, r.step])
                label = f"{r.quantity}, t={r.step}"
                drawn = axes.errorbar(x, centre - centre[0], 2 * error, marker=".", lw=0.8, label=label)
                axes.plot(x, float(r.predicted or 0) * (x - x[0]), "--", lw=0.8, color=drawn.lines[0].get_color())
            axes.legend(fontsize=6)
        return figure


def list_points(reports: Iterable[Report]) -> list[Point]:
    """Returns (predicted, measured) of every exponent in some reports that has a prediction and a finite measured
    slope, as points of a plot.
    """
    rows = [r for report in reports for r in report.rows if r.predicted is not None and math.isfinite(r.fit.slope)]
    return [(float(r.predicted or 0), r.fit.slope, r.fit.low, r.fit.high, str(r.verdict)) for r in rows]


def read_stored_points(evidence: Path) -> list[Point]:
    """Reads the points of a plot from an ``evidence.json``: its exponents that have both a prediction and a measured
    slope.
    """
    rows = [row for run in json.loads(evidence.read_text(encoding="utf-8"))["runs"] for row in run["rows"]]
    return [(float(Fraction(r[2])), *r[3:]) for r in rows if r[2] is not None and r[3] is not None]


def draw_overview_png(shown: Sequence[Point], path: Path | BinaryIO) -> None:
    """Writes the plot of measured against predicted exponents (``draw_overview``) as a PNG file. The size of the
    picture does not depend on the number of exponents.
    """
    draw_overview(shown).savefig(path, format="png", dpi=160, metadata={"Software": None})


def draw_overview(shown: Sequence[Point]) -> Figure:
    """Plots every measured exponent against the predicted one, coloured by verdict."""
    with matplotlib.rc_context({**STYLE, "font.size": 10.5, "legend.fontsize": 9}):
        figure = Figure(figsize=(5.4, 5.0), layout="constrained")
        axes = figure.add_subplot()
        spread = np.random.default_rng(0).uniform(-0.15, 0.15, len(shown))  # else equal exponents hide each other
        for verdict in Verdict:
            chosen = [(x + s, *rest) for (x, *rest, v), s in zip(shown, spread, strict=True) if v == str(verdict)]
            x, y, low, high = zip(*chosen, strict=True) if chosen else ((), (), (), ())
            style: dict[str, Any] = {"ls": "", "marker": ".", "ms": 4, "mew": 0, "elinewidth": 0.4}
            label = f"{verdict} ({len(chosen)})"
            axes.errorbar(x, y, _draw_bars(y, low, high), color=COLOURS[verdict], label=label, **style)
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


def _draw_bars(at: Sequence[float], low: Sequence[float], high: Sequence[float]) -> list[list[float]]:
    """Returns the lengths of the error bars below and above each value ``at``, whose confidence interval is from
    ``low`` to ``high``.
    """
    down = [max(0.0, x - y) for x, y in zip(at, low, strict=True)]
    return [down, [max(0.0, y - x) for x, y in zip(at, high, strict=True)]]


def convert_to_svg(figure: Figure) -> str:
    """Returns a figure as SVG text. The same figure always gives the same bytes."""
    out = io.StringIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()


if __name__ == "__main__":
    draw_overview_png(read_stored_points(Path(sys.argv[1])), Path(sys.argv[2]))
