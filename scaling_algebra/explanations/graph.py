"""A picture of a monomial: initial tensors as boxes, indices as ovals that say what their sum contributes.

Tensors stand from left to right in the order in which the network applies them, open indices at the right. A matched
pair is one box, drawn twice, so that the half-weight rule can be seen: an index is random where a line leads to a
single box. Two pens draw one plan: matplotlib, imported when an svg or png file is asked for, and SVG inside a page,
where text and paper take its colours, light or dark. dot is plain text.
"""

from __future__ import annotations

import importlib
import io
import json
import re
from html import escape
from itertools import pairwise
from pathlib import Path
from textwrap import wrap
from typing import Any

from scaling_algebra.documents.pictures import headless
from scaling_algebra.errors import UsageError, missing
from scaling_algebra.files import write

from .layers import GAP, LINE, ROW, Graph, Node, Point, graph_of, layout
from .results import Explanation

GRAPH_FORMATS = ("svg", "png", "dot")
LOOKS = {  # colour, line, legend of each kind of node
    "tensor": ("#333333", "solid", "initial tensor"),
    "pair": ("#7b3294", "solid", "two matched tensors"),
    "LLN": ("#1b7837", "solid", "coherent sum (LLN, weight 1)"),
    "CLT": ("#c25100", "dashed", "random sum (CLT, weight 1/2)"),
    "open": ("#666666", "dotted", "open index"),
}


_INDICES = ("LLN", "CLT", "open")
_DASHES = {"solid": "", "dashed": ' stroke-dasharray="6 4"', "dotted": ' stroke-dasharray="2 4"'}
_LETTER, _INCH = 0.078, 84
"""Inches of a letter of the text around a picture; pixels of an inch."""


def draw(e: Explanation, path: Path) -> None:
    """Draw the leading monomial of an explanation; the suffix of the path chooses svg, png or dot.

    Raises:
        UsageError: another suffix, nothing to draw, a missing library, or a path that cannot be written.
    """
    form = path.suffix.lstrip(".").lower()
    if form not in GRAPH_FORMATS:
        raise UsageError(f"cannot draw {path}: the name must end in .svg, .png or .dot")
    if not e.terms:
        raise UsageError(f"{e.quantity} is exactly zero at t = {e.step}: there is no monomial to draw")
    drawn = _dot(e) if form == "dot" else _picture(e, form)
    write(path, drawn, "choose another --graph FILE")


def picture(e: Explanation) -> str:
    """The leading monomial of an explanation that has one, as an SVG element.

    Tensors are boxes (a matched pair is drawn twice), indices ovals that say what their sum contributes.
    """
    width, height = _trace(e, pen := _SvgPen())
    size = f"{-_px(GAP) / 4:.0f} 0 {_px(width + GAP / 2):.0f} {_px(height):.0f}"
    open_ = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}" width="{_px(width + GAP / 2):.0f}" role="img"'
    look = 'font-family="system-ui, sans-serif" font-size="12" fill="currentColor"'
    label = f"{escape(e.about)}: the leading monomial"
    return "\n".join([f'{open_} {look} aria-label="{label}">', *pen.out, "</svg>"])


def vectors(e: Explanation) -> list[tuple[str, Graph, str]]:
    """What is drawn, from top to bottom: heading, network, arithmetic. An outer product has two vectors."""
    drawn = []
    for k, term in enumerate(e.terms if e.outer else e.terms[:1], 1):
        letters = ", ".join(dict.fromkeys(x.letter for x in term.mechanisms))
        first = f"vector {k}, " if e.outer else f"leading monomial 1 of {e.leading}, " if e.leading > 1 else ""
        drawn.append((f"{first}mechanism {letters}", graph_of(e, term), f"exponent: {term.arithmetic}"))
    return drawn


def total(e: Explanation) -> str:
    """The arithmetic of an outer product; empty for one monomial."""
    return f"exponent: {e.arithmetic.replace('+ -', '- ')}" if e.outer else ""


def _trace(e: Explanation, pen: _MatplotlibPen | _SvgPen) -> Point:
    """Draw what leads, with headings, arithmetic and a legend of what occurs; the size of the picture."""
    drawn = [(heading, net, *layout(net), text) for heading, net, text in vectors(e)]
    width = max(4.2, *(at[n][0] + node.size[0] / 2 for _, net, at, _, _ in drawn for n, node in net.nodes.items()))
    y, kinds = 0.15, set[str]()

    def put(text: str, y: float) -> float:
        """Lines of text from y on, no term broken; where they end."""
        whole = re.sub(r"(?:[+-] )?\S+ \([^)]*\)|= \S+", lambda m: m[0].replace(" ", "\xa0"), text)
        lines = wrap(whole, int(width / _LETTER))
        for k, line in enumerate(lines):
            pen.words(line.replace("\xa0", " "), y + k * LINE)
        return y + len(lines) * LINE

    for heading, net, at, routes, text in drawn:
        y = put(heading, y) + 0.3 * ROW
        for (_, index), points in routes.items():
            pen.curve([(u, y + v) for u, v in points], net.nodes[index].kind)
        for name, node in net.nodes.items():
            pen.box(node, at[name][0], y + at[name][1])
            kinds.add(node.kind)
        y += max((v for points in [*routes.values(), [*at.values()]] for _, v in points), default=0) + 0.7 * ROW
        y = put(text, y) + LINE / 2
    y = put(total(e), y)
    for kind in (kind for kind in LOOKS if kind in kinds):
        pen.key(kind, y)
        y += 1.3 * LINE
    return width, y


def _picture(e: Explanation, form: str) -> bytes:
    try:
        with headless():
            importlib.import_module("matplotlib").use("Agg")
    except ModuleNotFoundError:
        raise missing("--graph", "matplotlib", "graph") from None
    plt: Any = importlib.import_module("matplotlib.pyplot")
    with plt.rc_context({"svg.hashsalt": "scalecalc", "font.size": 9, "font.family": "DejaVu Sans"}):
        figure = plt.figure()
        axes = figure.add_axes((0, 0, 1, 1))
        axes.axis("off")
        axes.text(0, -0.2, f"{e.about} $\\sim n^{{{e.exponent}}}$", fontsize=12, va="center")
        width, height = _trace(e, _MatplotlibPen(axes))
        axes.set(xlim=(-GAP, width + GAP), ylim=(height, -0.5))
        figure.set_size_inches(width + 2 * GAP, height + 0.5)
        metadata = {"metadata": {"Date": None}} if form == "svg" else {}
        figure.savefig(out := io.BytesIO(), format=form, dpi=150, **metadata)
        plt.close(figure)
        return out.getvalue()


class _MatplotlibPen:
    """Places are in inches from the upper left corner."""

    def __init__(self, axes: Any) -> None:
        self.axes, self.patches = axes, importlib.import_module("matplotlib.patches")
        self.path: Any = importlib.import_module("matplotlib.path").Path

    def words(self, text: str, y: float) -> None:
        self.axes.text(0, y, text, va="center")

    def curve(self, points: list[Point], kind: str) -> None:
        codes, corners = [self.path.MOVETO], [points[0]]
        for (x0, y0), (x1, y1) in pairwise(points):
            codes += [self.path.CURVE4] * 3
            corners += [((x0 + x1) / 2, y0), ((x0 + x1) / 2, y1), (x1, y1)]
        colour, line, _ = LOOKS[kind]
        path = self.path(corners, codes)
        self.axes.add_patch(self.patches.PathPatch(path, fill=False, ec=colour, ls=line, lw=1.6, zorder=1))

    def box(self, node: Node, x: float, y: float) -> None:
        (width, height), oval = node.size, node.power is not None
        style = f"round,pad=0,rounding_size={height / 2 if oval else 0.04}"
        for shift in (0.06, 0.0) if node.kind == "pair" else (0.0,):
            corner = (x - width / 2 + shift, y - height / 2 + shift)
            box = self.patches.FancyBboxPatch(corner, width, height, style)
            box.set(facecolor="white" if oval else "#eef3f9", edgecolor=LOOKS[node.kind][0], lw=1.4, zorder=2)
            self.axes.add_patch(box)
        self.axes.text(x, y, node.math, ha="center", va="center", zorder=3)

    def key(self, kind: str, y: float) -> None:
        colour, line, name = LOOKS[kind]
        if kind in _INDICES:
            self.axes.plot([0, 0.5], [y, y], color=colour, ls=line, lw=1.6)
        else:
            self.axes.add_patch(self.patches.Rectangle((0, y - 0.08), 0.5, 0.16, fill=False, ec=colour, lw=1.4))
        self.axes.text(0.65, y, name, va="center", color="#555555")


class _SvgPen:
    def __init__(self) -> None:
        self.out: list[str] = []

    def words(self, text: str, y: float) -> None:
        self.out.append(f'<text x="0" y="{_px(y) + 4:.1f}" opacity=".8">{escape(text)}</text>')

    def curve(self, points: list[Point], kind: str) -> None:
        parts = [f"M {_at(points[0])}"]
        for (x0, y0), (x1, y1) in pairwise(points):
            middle = (x0 + x1) / 2
            parts.append("C " + ", ".join(map(_at, ((middle, y0), (middle, y1), (x1, y1)))))
        self.out.append(f'<path d="{" ".join(parts)}" {_line(kind)}/>')

    def box(self, node: Node, x: float, y: float) -> None:
        (width, height), colour = map(_px, node.size), LOOKS[node.kind][0]
        rounding = height / 2 if node.power is not None else _px(0.04)
        for shift in (0.06, 0.0) if node.kind == "pair" else (0.0,):
            left, top = _px(x + shift) - width / 2, _px(y + shift) - height / 2
            self.out.append(
                f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" '
                f'rx="{rounding:.1f}" fill="var(--paper, #fff)" stroke="{colour}" stroke-width="1.5"/>'
            )
        lines = _lines(node)
        for k, line in enumerate(lines):
            at = _px(y + (k - (len(lines) - 1) / 2) * LINE) + 4
            self.out.append(f'<text x="{_px(x):.1f}" y="{at:.1f}" text-anchor="middle">{line}</text>')

    def key(self, kind: str, y: float) -> None:
        self.out.append(
            f'<rect x="1" y="{_px(y) - 8:.1f}" width="34" height="16" rx="{8 if kind in _INDICES else 0}" '
            f'{_line(kind)}/><text x="44" y="{_px(y) + 4:.1f}">{escape(LOOKS[kind][2])}</text>'
        )


def _px(inches: float) -> float:
    return inches * _INCH


def _at(point: Point) -> str:
    return f"{_px(point[0]):.1f} {_px(point[1]):.1f}"


def _line(kind: str) -> str:
    colour, line, _ = LOOKS[kind]
    return f'fill="none" stroke="{colour}" stroke-width="1.6"{_DASHES[line]}'


def _lines(node: Node) -> list[str]:
    """The text of a node; a power with its exponents raised."""
    if node.power is None or not node.power.terms:
        return [escape(line) for line in node.lines]
    factors = (
        axis if e == 1 else f'{axis}<tspan dy="-4" font-size="9">{e}</tspan><tspan dy="4"></tspan>'
        for axis, e in node.power.ordered()
    )
    return [f"{escape(node.lines[0])}: {' '.join(factors)}"]


def _dot(e: Explanation) -> str:
    lines = ["graph {", "rankdir=LR;", "labelloc=b;"]
    drawn = vectors(e)
    text = "\n".join([e.about, *(f"{heading}\n{text}" for heading, _, text in drawn), total(e)])
    lines.append(f"label={json.dumps(text)};")
    for k, (_, net, _) in enumerate(drawn):
        for name, node in net.nodes.items():
            shape = "ellipse" if node.power is not None else "box"
            twice = 2 if node.kind == "pair" else 1
            colour = LOOKS[node.kind][0]
            name, label = json.dumps(f"{k}{name}"), json.dumps(node.text)
            lines.append(f'{name} [label={label}, shape={shape}, peripheries={twice}, color="{colour}"];')
        for tensor, index in net.edges:
            colour, style, _ = LOOKS[net.nodes[index].kind]
            ends = sorted((tensor, index), key=lambda name: net.nodes[name].column)
            left, right = (json.dumps(f"{k}{end}") for end in ends)
            lines.append(f'{left} -- {right} [color="{colour}", style={style}];')
    return "\n".join([*lines, "}"]) + "\n"
