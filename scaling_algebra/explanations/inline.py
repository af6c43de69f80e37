"""The picture of a monomial as SVG inside a page: the nodes and routes of ``layers.py``, without matplotlib.

Text and paper take the colours of the page (``currentColor``, ``--paper``), so that it reads in light and dark.
Read next: ``graph.py`` (the same as a file).
"""

from __future__ import annotations

from html import escape
from itertools import pairwise
from textwrap import wrap

from .graph import LOOKS, total, vectors
from .layers import GAP, LINE, ROW, Node, Point, layout
from .results import Explanation

_INCH, _LETTER = 84, 0.078
"""Pixels of an inch; inches of a letter."""
_DASHES = {"solid": "", "dashed": ' stroke-dasharray="6 4"', "dotted": ' stroke-dasharray="2 4"'}


def picture(found: Explanation) -> str:
    """The leading monomial of an explanation that has one, as an SVG element.

    Tensors are boxes (a matched pair is drawn twice), indices ovals that say what their sum contributes.
    """
    out: list[str] = []
    drawn = [(heading, net, *layout(net), text) for heading, net, text in vectors(found)]
    width = max(4.2, *(at[n][0] + node.size[0] / 2 for _, net, at, _, _ in drawn for n, node in net.nodes.items()))
    y, kinds = 0.15, set[str]()
    for heading, net, at, routes, text in drawn:
        y = _put(out, heading, y, width) + 0.3 * ROW
        for (_, index), points in routes.items():
            colour, line, _ = LOOKS[net.nodes[index].kind]
            look = f'fill="none" stroke="{colour}" stroke-width="1.6"{_DASHES[line]}'
            out.append(f'<path d="{_curve(points, y)}" {look}/>')
        for name, node in net.nodes.items():
            _box(out, node, at[name][0], y + at[name][1])
            kinds.add(node.kind)
        y += max((p[1] for points in [*routes.values(), [*at.values()]] for p in points), default=0) + 0.7 * ROW
        y = _put(out, text, y, width) + LINE / 2
    y = _put(out, total(found), y, width) if found.outer else y
    for kind, (colour, line, name) in LOOKS.items():
        if kind in kinds:
            look = f'fill="none" stroke="{colour}" stroke-width="1.6"{_DASHES[line]}'
            round_ = 0 if kind in ("tensor", "pair") else 8
            out.append(
                f'<rect x="1" y="{_px(y) - 8:.1f}" width="34" height="16" rx="{round_}" {look}/>'
                f'<text x="44" y="{_px(y) + 4:.1f}">{escape(name)}</text>'
            )
            y += 1.3 * LINE
    size = f"{-_px(GAP) / 4:.0f} 0 {_px(width + GAP / 2):.0f} {_px(y):.0f}"
    open_ = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}" width="{_px(width + GAP / 2):.0f}" role="img"'
    look = 'font-family="system-ui, sans-serif" font-size="12" fill="currentColor"'
    return "\n".join([f'{open_} {look} aria-label="{escape(found.about)}: the leading monomial">', *out, "</svg>"])


def _px(inches: float) -> float:
    return inches * _INCH


def _put(out: list[str], text: str, y: float, width: float) -> float:
    """Lines of text from y on; where they end."""
    lines = wrap(text, int(width / _LETTER))
    for k, line in enumerate(lines):
        out.append(f'<text x="0" y="{_px(y + k * LINE) + 4:.1f}" opacity=".8">{escape(line)}</text>')
    return y + len(lines) * LINE


def _curve(points: list[Point], y: float) -> str:
    """Level at every point."""
    x0, y0 = points[0]
    parts = [f"M {_px(x0):.1f} {_px(y + y0):.1f}"]
    for (x0, y0), (x1, y1) in pairwise(points):
        middle = (x0 + x1) / 2
        spots = ((middle, y0), (middle, y1), (x1, y1))
        parts.append("C " + ", ".join(f"{_px(u):.1f} {_px(y + v):.1f}" for u, v in spots))
    return " ".join(parts)


def _box(out: list[str], node: Node, x: float, y: float) -> None:
    """A node with its text; a pair is drawn twice."""
    (width, height), colour = node.size, LOOKS[node.kind][0]
    rounding = height / 2 if node.power is not None else 0.04
    for shift in (0.06, 0.0) if node.kind == "pair" else (0.0,):
        left, top = x - width / 2 + shift, y - height / 2 + shift
        out.append(
            f'<rect x="{_px(left):.1f}" y="{_px(top):.1f}" width="{_px(width):.1f}" height="{_px(height):.1f}" '
            f'rx="{_px(rounding):.1f}" fill="var(--paper, #fff)" stroke="{colour}" stroke-width="1.5"/>'
        )
    lines = _lines(node)
    for k, line in enumerate(lines):
        at = _px(y + (k - (len(lines) - 1) / 2) * LINE) + 4
        out.append(f'<text x="{_px(x):.1f}" y="{at:.1f}" text-anchor="middle">{line}</text>')


def _lines(node: Node) -> list[str]:
    """The text of a node; a power with its exponents raised."""
    if node.power is None or not node.power.terms:
        return [escape(line) for line in node.lines]
    factors = (
        axis if e == 1 else f'{axis}<tspan dy="-4" font-size="9">{e}</tspan><tspan dy="4"></tspan>'
        for axis, e in node.power.ordered()
    )
    return [f"{escape(node.lines[0])}: {' '.join(factors)}"]
