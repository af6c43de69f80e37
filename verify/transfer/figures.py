"""Pictures of studies of transfer, from the JSON that `scalecalc transfer -o` writes.

``python -m scaling_algebra.verify.transfer.figures KIND PICTURE.png RECORD.json ...``, KIND one of ``KINDS``: loss
against learning rate at every width, best loss against width, optimum against width.
Read next: ``study.py`` (writes the records).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scaling_algebra.documents.pictures import headless

with headless():
    import matplotlib
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#b3261e", "#1f5fa8", "#777777", "#2a7a3b", "#b58900")
"""Of parameterizations, in the order in which a record names them."""
STYLE: dict[Any, Any] = {"font.size": 9, "legend.frameon": False, "axes.titlesize": 9.5}

Study = Mapping[str, Any]


def rates(studies: Sequence[Study], titles: Sequence[str]) -> Figure:
    """Loss against learning rate at every width: a row for each study, a column for each parameterization."""
    columns = max(len(s["parameterizations"]) for s in studies)
    figure = Figure(figsize=(2.9 * columns, 2.3 * len(studies)), layout="constrained")
    grid = figure.subplots(len(studies), columns, sharey="row", squeeze=False)
    for row, study, title in zip(grid, studies, titles, strict=True):
        for axes, (name, kept) in zip(row, study["parameterizations"].items(), strict=False):
            shades = matplotlib.colormaps["viridis"](np.linspace(0.9, 0.1, len(kept["widths"])))
            for width, colour in zip(kept["widths"], shades, strict=True):
                losses = np.array(width["losses"])
                error = losses.std(axis=1, ddof=1) / losses.shape[1] ** 0.5
                axes.errorbar(
                    width["grid"], losses.mean(axis=1), error, color=colour, lw=1, label=f"N = {width['width']}"
                )
                axes.plot(width["log2_lr"], width["loss"], "v", color=colour, ms=4)
            axes.set_title(f"{title}, {name}")
            axes.set_xlabel("log2 learning rate")
            axes.grid(lw=0.3)
        row[0].set_ylabel("loss, nats")
        row[0].legend(fontsize=7)
    return figure


def losses(studies: Sequence[Study], titles: Sequence[str]) -> Figure:
    """Best loss against width, a panel for each study."""

    def draw(axes: Axes, kept: Study, style: Mapping[str, Any]) -> None:
        at = kept["widths"]
        axes.errorbar([w["width"] for w in at], [w["loss"] for w in at], [w["loss_se"] for w in at], **style)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}")
        axes.tick_params(axis="y", which="minor", labelsize=7)

    return _by_width(studies, titles, draw, "best loss, nats")


def optima(studies: Sequence[Study], titles: Sequence[str]) -> Figure:
    """log2 of the best learning rate against width, a panel for each study."""

    def draw(axes: Axes, kept: Study, style: Mapping[str, Any]) -> None:
        known = [w for w in kept["widths"] if w["low"] is not None]
        at = [w["log2_lr"] for w in known]
        ends = [[w["log2_lr"] - w["low"] for w in known], [w["high"] - w["log2_lr"] for w in known]]
        axes.errorbar([w["width"] for w in known], at, np.maximum(0, ends), **style)

    return _by_width(studies, titles, draw, "log2 of the best learning rate")


def _by_width(
    studies: Sequence[Study],
    titles: Sequence[str],
    draw: Callable[[Axes, Study, Mapping[str, Any]], None],
    label: str,
    columns: int = 3,
) -> Figure:
    """A panel for each study with N across, three in a row."""
    rows = -(-len(studies) // columns)
    columns = min(columns, len(studies))
    figure = Figure(figsize=(2.9 * columns, 2.5 * rows + 0.3), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False)
    for axes in panels.flat[len(studies) :]:
        axes.remove()
    for axes, study, title in zip(panels.flat, studies, titles, strict=False):
        for colour, (name, kept) in zip(COLOURS, study["parameterizations"].items(), strict=False):
            style = {"color": colour, "label": name, "marker": "o", "ms": 3.5, "lw": 1.3, "capsize": 2}
            draw(axes, kept, style)
        widths = [w["width"] for w in next(iter(study["parameterizations"].values()))["widths"]]
        axes.set_xscale("log", base=2)
        axes.set_xticks(widths, [str(n) for n in widths])
        axes.set_title(title)
        axes.set_xlabel("N")
        axes.grid(lw=0.3)
    for row in panels:
        row[0].set_ylabel(label)
    handles, names = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=len(names))
    return figure


KINDS: dict[str, Callable[[Sequence[Study], Sequence[str]], Figure]] = {
    "rates": rates,
    "losses": losses,
    "optima": optima,
}
"""Every picture, by name."""


def picture(kind: str, path: Path, records: Sequence[Path], titles: Sequence[str] = ()) -> None:
    """Draws records into a PNG; each is titled by its file name if no titles are given."""
    studies = [json.loads(record.read_text(encoding="utf-8")) for record in records]
    with matplotlib.rc_context(STYLE):
        figure = KINDS[kind](studies, titles or [record.stem.replace("_", ", ") for record in records])
        figure.savefig(path, format="png", dpi=150, metadata={"Software": None})


if __name__ == "__main__":
    picture(sys.argv[1], Path(sys.argv[2]), [Path(text) for text in sys.argv[3:]])
