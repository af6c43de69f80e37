"""Pictures of studies, from the JSON that `scalecalc study transfer -o` and `study limit -o` write.

``python -m scaling_algebra.verify.studies.figures KIND PICTURE.png RECORD.json ...``, KIND one of ``KINDS``: loss
against learning rate at every width, best loss against width, or limits with the training at finite width. Read next:
``transfer.py`` (writes the records).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scaling_algebra.documents.pictures import headless
from scaling_algebra.errors import UsageError

with headless():
    import matplotlib
    from matplotlib.figure import Figure


COLOURS = ("#b3261e", "#1f5fa8", "#777777", "#2a7a3b", "#b58900")
"""Colours of parameterizations, in the order in which a record lists them."""
STYLE: dict[Any, Any] = {"font.size": 9, "legend.frameon": False, "axes.titlesize": 9.5}

LABELS = {"mup": "plan (muP)", "mssp": "plan (MSSP)", "sp": "one rate for all"}
"""Titles of panels that display one parameterization."""

Record = Mapping[str, Any]


def _draw_rates(studies: Sequence[Record], titles: Sequence[str]) -> Figure:
    """Plots the loss against the learning rate at every width: a row for each study, a column for each
    parameterization."""
    columns = max(len(s["parameterizations"]) for s in studies)
    figure = Figure(figsize=(2.9 * columns, 2.3 * len(studies)), layout="constrained")
    grid = figure.subplots(len(studies), columns, sharey="row", squeeze=False)
    for row, study, title in zip(grid, studies, titles, strict=True):
        for axes, (name, kept) in zip(row, study["parameterizations"].items(), strict=False):
            shades = matplotlib.colormaps["viridis"](np.linspace(0.9, 0.1, len(kept["widths"])))
            for w, colour in zip(kept["widths"], shades, strict=True):
                losses = np.array(w["losses"], dtype=float)  # a seed that was not run is NaN
                seeds, means = np.isfinite(losses).sum(axis=1), np.nanmean(losses, axis=1)
                error = np.nanstd(losses, axis=1) / np.sqrt(np.maximum(seeds - 1, 1))
                style: Any = {"color": colour, "lw": 1, "label": f"{study.get('along', 'N')} = {w['width']}"}
                axes.errorbar(w["grid"], means, error, **style)
                axes.plot(w["grid"][means.argmin()], means.min(), "o", color=colour, ms=4)
            axes.set_title(": ".join(filter(None, (title, LABELS.get(name, name)))))
            axes.set_xlabel("log2 learning rate" if study.get("swept", "lr") == "lr" else f"log2 {study['swept']}")
            axes.grid(lw=0.3)
        row[0].set_ylabel(study.get("loss", "loss, nats"))
        row[0].legend(fontsize=7)
        for axes in row[len(study["parameterizations"]) :]:
            axes.set_axis_off()
    return figure


def _draw_losses(studies: Sequence[Record], titles: Sequence[str]) -> Figure:
    """Plots the best loss against the width, with a panel for each study."""
    figure = Figure(figsize=(2.9 * len(studies), 2.8), layout="constrained")
    panels = figure.subplots(1, len(studies), squeeze=False)[0]
    for axes, study, title in zip(panels, studies, titles, strict=True):
        for colour, (name, kept) in zip(COLOURS, study["parameterizations"].items(), strict=False):
            style: Any = {"color": colour, "label": name, "marker": "o", "ms": 3.5, "lw": 1.3, "capsize": 2}
            widths, loss, error = zip(*((w["width"], w["loss"], w["loss_se"]) for w in kept["widths"]), strict=True)
            axes.errorbar(widths, loss, error, **style)
        axes.set_xscale("log", base=2)
        axes.set_xticks(widths, [str(n) for n in widths])
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}")
        axes.tick_params(axis="y", which="minor", labelsize=7)
        axes.set_title(title)
        axes.set_xlabel(study.get("along", "N"))
        axes.grid(lw=0.3)
    panels[0].set_ylabel("best loss, nats")
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=len(names))
    return figure


def _draw_limits(studies: Sequence[Record], titles: Sequence[str]) -> Figure:
    """Plots after every update the limit of f, and its mean over seeds at every trained width."""
    figure = Figure(figsize=(3.8 * len(studies), 2.8), layout="constrained")
    for axes, study, title in zip(figure.subplots(1, len(studies), squeeze=False)[0], studies, titles, strict=True):
        f, (limit, *_) = study["trained"]["f"], (v for name, v in study["limit"].items() if name.startswith("f"))
        shades = matplotlib.colormaps["viridis"](np.linspace(0.9, 0.3, len(f["sizes"])))
        for n, means, colour in zip(f["sizes"], f["means"], shades, strict=True):
            axes.plot([m[0] for m in means], "o", color=colour, ms=4, label=f"n = {n}")
        axes.plot(limit, color=COLOURS[0], lw=1, label="limit")
        axes.set_title(title)
        axes.set_xlabel("updates")
        axes.set_ylabel("f")
        axes.legend(fontsize=7)
        axes.grid(lw=0.3)
    return figure


KINDS: dict[str, Callable[[Sequence[Record], Sequence[str]], Figure]] = {
    "rates": _draw_rates,
    "losses": _draw_losses,
    "limits": _draw_limits,
}
"""The function that draws each kind of picture, by name."""


def build_picture(kind: str, path: Path, records: Sequence[Path], titles: Sequence[str] = ()) -> None:
    """Draws records of studies into a PNG file.

    Args:
        kind: a name in ``KINDS``.
        path: the PNG file.
        records: the JSON files.
        titles: titles of the studies; by default the names of the files if there are several.

    Raises:
        UsageError: the records belong to another kind of study.
    """
    studies = [json.loads(record.read_text(encoding="utf-8")) for record in records]
    names = [record.stem.replace("_", " ") if len(records) > 1 else "" for record in records]
    try:
        write_picture(kind, path, studies, titles or names)
    except KeyError as key:
        raise UsageError(
            f"{', '.join(map(str, records))} has no entry {key}; give records of a study that {kind} can draw"
        ) from None


def write_picture(kind: str, path: Path, studies: Sequence[Record], titles: Sequence[str]) -> None:
    """Draws studies, given as parsed JSON, into a PNG file."""
    with matplotlib.rc_context(STYLE):
        KINDS[kind](studies, titles).savefig(path, format="png", dpi=150, metadata={"Software": None})


if __name__ == "__main__":
    if len(sys.argv) < 4 or sys.argv[1] not in KINDS:
        print(f"usage: python -m {__spec__.name} {{{','.join(KINDS)}}} PICTURE.png FILE.json ...", file=sys.stderr)
        sys.exit(2)
    try:
        build_picture(sys.argv[1], Path(sys.argv[2]), [Path(text) for text in sys.argv[3:]])
    except UsageError as error:
        print(f"figures: {error}", file=sys.stderr)
        sys.exit(2)
