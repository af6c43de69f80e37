"""A picture of a monomial: initial tensors as boxes, indices as ovals that say what their sum contributes.

Tensors stand from left to right in the order in which the network applies them, open indices at the right. A matched
pair is one box, drawn twice, so that the half-weight rule can be seen: an index is random where a line leads to a
single box. Needs matplotlib for svg and png, imported when one is asked for; dot is plain text.
"""

from __future__ import annotations

import importlib
import io
import json
import re
from itertools import pairwise
from pathlib import Path
from textwrap import wrap
from typing import Any

from scaling_algebra.documents.pictures import headless
from scaling_algebra.errors import UsageError, missing
from scaling_algebra.files import write
from scaling_algebra.spec.powers import Power

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


def draw(found: Explanation, path: Path) -> None:
    """Draw the leading monomial of an explanation; the suffix of the path chooses svg, png or dot.

    Raises:
        UsageError: another suffix, nothing to draw, a missing library, or a path that cannot be written.
    """
    form = path.suffix.lstrip(".").lower()
    if form not in GRAPH_FORMATS:
        raise UsageError(f"cannot draw {path}: the name must end in .svg, .png or .dot")
    if not found.terms:
        raise UsageError(f"{found.quantity} is exactly zero at t = {found.step}: there is no monomial to draw")
    drawn = _dot(found) if form == "dot" else _picture(found, form)
    write(path, drawn, "choose another --graph FILE")


def vectors(found: Explanation) -> list[tuple[str, Graph, str]]:
    """What is drawn, from top to bottom: heading, network, arithmetic. An outer product has two vectors."""
    drawn = []
    for k, term in enumerate(found.terms if found.outer else found.terms[:1], 1):
        letters = ", ".join(dict.fromkeys(x.letter for x in term.mechanisms))
        first = (
            f"vector {k}, " if found.outer else f"leading monomial 1 of {found.leading}, " if found.leading > 1 else ""
        )
        drawn.append((f"{first}mechanism {letters}", graph_of(found, term), f"exponent: {term.arithmetic}"))
    return drawn


def total(found: Explanation) -> str:
    """The arithmetic of an outer product; empty for one monomial."""
    parts = [f"{c.exponent} ({c.label})" for c in found.constants]
    parts += [f"{term.exponent} (vector {k})" for k, term in enumerate(found.terms, 1)]
    return f"exponent: {' + '.join(parts)} = {found.total()}".replace("+ -", "- ") if found.outer else ""


def _picture(found: Explanation, form: str) -> bytes:
    try:
        with headless():
            importlib.import_module("matplotlib").use("Agg")
    except ModuleNotFoundError:
        raise missing("--graph", "matplotlib", "graph") from None
    plt: Any = importlib.import_module("matplotlib.pyplot")
    patches: Any = importlib.import_module("matplotlib.patches")
    drawn = [(heading, net, *layout(net), text) for heading, net, text in vectors(found)]
    right = [at[name][0] + node.size[0] / 2 for _, net, at, _, _ in drawn for name, node in net.nodes.items()]
    width = max([5.0, *right])

    with plt.rc_context({"svg.hashsalt": "scalecalc", "font.size": 9, "font.family": "DejaVu Sans"}):
        figure = plt.figure()
        axes = figure.add_axes((0, 0, 1, 1))
        axes.axis("off")

        def put(text: str, y: float, colour: str = "black") -> float:
            whole = re.sub(r"(?:[+-] )?\S+ \([^)]*\)|= \S+", lambda m: m[0].replace(" ", "\xa0"), text)
            lines = wrap(whole, int(width / 0.075))
            for k, line in enumerate(lines):
                axes.text(0, y - k * LINE, line, color=colour, va="center")
            return y - len(lines) * LINE

        axes.text(0, 0, f"{found.about} $\\sim n^{{{found.exponent}}}$", fontsize=12, va="center")
        y = -0.3
        for heading, net, at, routes, text in drawn:
            y = put(heading, y, "#555555") - 0.45 * ROW
            for (_, index), points in routes.items():
                colour, line, _ = LOOKS[net.nodes[index].kind]
                axes.add_patch(
                    patches.PathPatch(_curve(patches.Path, points, y), fill=False, ec=colour, ls=line, lw=1.6, zorder=1)
                )
            for name, node in net.nodes.items():
                _box(axes, patches, node, at[name][0], y - at[name][1])
            y -= max((point[1] for points in [*routes.values(), [*at.values()]] for point in points), default=0)
            y = put(text, y - 0.8 * ROW) - 0.6 * LINE
        y = put(total(found), y) - 0.5 * LINE
        shown = {node.kind for _, net, *_ in drawn for node in net.nodes.values()}
        for kind, (colour, line, name) in LOOKS.items():
            if kind in shown:
                if kind not in ("tensor", "pair"):
                    axes.plot([0, 0.6], [y, y], color=colour, ls=line, lw=1.6, zorder=1)
                _box(axes, patches, Node(kind, ("",), 0, None if kind in ("tensor", "pair") else Power()), 0.3, y, 0.6)
                axes.text(0.75, y, name, va="center", color="#555555")
                y -= 1.4 * LINE
        low, high = y, 0.3
        axes.set(xlim=(-GAP, width + GAP), ylim=(low, high))
        figure.set_size_inches(width + 2 * GAP, high - low)
        figure.savefig(
            out := io.BytesIO(), format=form, dpi=150, **({"metadata": {"Date": None}} if form == "svg" else {})
        )
        plt.close(figure)
        return out.getvalue()


def _curve(path: Any, points: list[Point], y: float) -> Any:
    """Level at every point."""
    codes, corners = [path.MOVETO], [(points[0][0], y - points[0][1])]
    for (x0, y0), (x1, y1) in pairwise(points):
        middle = (x0 + x1) / 2
        codes += [path.CURVE4] * 3
        corners += [(middle, y - y0), (middle, y - y1), (x1, y - y1)]
    return path(corners, codes)


def _box(axes: Any, patches: Any, node: Node, x: float, y: float, scale: float = 1.0) -> None:
    """A node with its text; a pair is drawn twice."""
    (width, height), colour = (scale * side for side in node.size), LOOKS[node.kind][0]
    rounding = height / 2 if node.power is not None else 0.04
    for shift in (0.06, 0.0) if node.kind == "pair" else (0.0,):
        corner = (x - width / 2 + shift, y - height / 2 - shift)
        box = patches.FancyBboxPatch(corner, width, height, f"round,pad=0,rounding_size={rounding}")
        box.set(facecolor="white" if node.power is not None else "#eef3f9", edgecolor=colour, lw=1.4, zorder=2)
        axes.add_patch(box)
    axes.text(x, y, node.math, ha="center", va="center", zorder=3)


def _dot(found: Explanation) -> str:
    lines = ["graph {", "rankdir=LR;", "labelloc=b;"]
    drawn = vectors(found)
    text = "\n".join([found.about, *(f"{heading}\n{text}" for heading, _, text in drawn), total(found)])
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
