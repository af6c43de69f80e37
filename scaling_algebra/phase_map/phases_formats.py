"""The map of rays as text, JSON, SVG, and HTML where hovering a cell shows its formulas.

Adding a format: one more entry in ``PHASES_FORMATS``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from html import escape

from scaling_algebra.solver.cones import PLANE_AXES
from scaling_algebra.solver.report import aligned
from scaling_algebra.spec.axes import REGIMES
from scaling_algebra.spec.scaling import Scaling

from .families import families
from .phases import SIDE, Cell, Edge, Phases, Point2

_SIZE, _MARGIN = 560, 70
_FILL = ("#dbe9f6", "#e5f5e0", "#fee6ce", "#efedf5", "#fde0dd", "#f0f0f0", "#fff7bc", "#e0f3f8")


def _rows(s: Scaling) -> list[tuple[str, str, str, str]]:
    rows = [("tensor", "init std", "lr", "eps")]
    for role, t in s.tensors.items():
        tied = " tied" if role in s.tied else ""
        eps = "-" if t.eps is None else str(t.eps)
        rows.append((role, ("0" if t.init_std is None else str(t.init_std)) + tied, str(t.lr), eps))
    return rows


def _title(p: Phases) -> str:
    third = next(axis for axis in PLANE_AXES if axis not in p.plane)
    who = f"{p.parameterization.name}, {p.optimizer.name}"
    return f"{who}: rates of {p.plane[0]} and {p.plane[1]} where {third} = 1 and K = M"


def _where(cell: Cell) -> str:
    return ", ".join(cell.inequalities)


def _status(cell: Cell) -> str:
    solved, sampled = cell.found
    if cell.scaling is None:
        proof = f"; proved at {cell.proved} that none exists" if cell.proved else ""
        return f"none found at {sampled} sampled rays{proof}: {cell.why}"
    if solved < sampled:
        return f"UNDECIDED: found at {solved} of {sampled} sampled rays"
    return f"found at {solved} of {sampled} sampled rays; {cell.structure}"


def phases_text(p: Phases) -> str:
    """Cells with their formulas, edges where they add something, and where the regimes lie."""
    lines = [_title(p), "walls: " + "; ".join(map(str, p.walls)), ""]
    for cell in p.cells:
        lines.append(f"cell {cell.name}: {_where(cell)}   ({_status(cell)})")
        if cell.scaling is not None:
            lines += [f"  {line}" for line in aligned(_rows(cell.scaling))]
    lines += ["", "on the walls"]
    lines += aligned([(f"  {e.wall}", _span(p, e), _edge(e)) for e in p.edges])
    lines += ["", "regimes"]
    for name, ray in REGIMES.items():
        walls = ", ".join(str(w) for w in p.walls_of(ray)) or "no wall"
        lines.append(f"  {name}: on {walls}")
    lines += ["", "model families (estimated between first and last member)"]
    for f in families():
        rates = f.rates()
        shown = ", ".join(f"{axis} {rates[axis]:.2f}" for axis in PLANE_AXES if rates)
        text = shown or "no ray: one member, or N did not grow"
        lines.append(f"  {f.name}: {text}")
    return "\n".join(lines)


def _span(p: Phases, e: Edge) -> str:
    (x0, y0), (x1, y1) = e.ends
    return f"{p.plane[0]} {x0} to {x1}, {p.plane[1]} {y0} to {y1}"


def _edge(e: Edge) -> str:
    if e.scaling is None:
        return "none found"
    stds = ", ".join(
        f"{role} {'0' if t.init_std is None else t.init_std}" for role, t in e.scaling.tensors.items() if "e" in role
    )
    return f"{e.structure}: {stds}"


def phases_json(p: Phases) -> str:
    """Exact rationals as strings."""

    def formulas(s: Scaling | None) -> object:
        if s is None:
            return None
        return {
            role: {
                "init_std": None if t.init_std is None else t.init_std.as_strings(),
                "lr": t.lr.as_strings(),
                "eps": None if t.eps is None else t.eps.as_strings(),
                "tied": role in s.tied,
            }
            for role, t in s.tensors.items()
        }

    def points(found: Sequence[Point2]) -> list[list[str]]:
        return [[str(x), str(y)] for x, y in found]

    data = {
        "parameterization": p.parameterization.name,
        "optimizer": p.optimizer.name,
        "plane": list(p.plane),
        "walls": [str(w) for w in p.walls],
        "cells": [
            {
                "name": c.name,
                "corners": points(c.corners),
                "inequalities": list(c.inequalities),
                "found": list(c.found),
                "structure": c.structure,
                "why": c.why,
                "proved_impossible_at": None if c.proved is None else str(c.proved),
                "formulas": formulas(c.scaling),
            }
            for c in p.cells
        ],
        "edges": [
            {
                "wall": str(e.wall),
                "ends": points(e.ends),
                "structure": e.structure,
                "why": e.why,
                "formulas": formulas(e.scaling),
            }
            for e in p.edges
        ],
        "regimes": {name: [str(w) for w in p.walls_of(ray)] for name, ray in REGIMES.items()},
        "families": {f.name: {k: round(v, 4) for k, v in f.rates().items()} for f in families()},
    }
    return json.dumps(data, indent=1)


def _screen(p: Point2 | tuple[float, float]) -> tuple[float, float]:
    scale = _SIZE / float(SIDE)
    return _MARGIN + float(p[0]) * scale, _MARGIN + _SIZE - float(p[1]) * scale


def phases_svg(p: Phases) -> str:
    """A picture: labelled cells, walls, regimes and model families. Hovering a cell shows its formulas."""
    width = _SIZE + 2 * _MARGIN
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {width}" '
        'font-family="sans-serif" font-size="14">',
        f'<text x="{_MARGIN}" y="{_MARGIN - 38}" font-size="16">{escape(_title(p))}</text>',
    ]
    for k, cell in enumerate(p.cells):
        corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in map(_screen, cell.corners))
        fill = "#ffffff" if cell.scaling is None else _FILL[(ord(cell.name) - ord("A")) % len(_FILL)]
        table = "\n".join(aligned(_rows(cell.scaling))) if cell.scaling else cell.why
        tip = escape(f"{_where(cell)}\n{_status(cell)}\n{table}")
        name = cell.name if cell.scaling else "none"
        out.append(f'<polygon data-cell="{k}" points="{corners}" fill="{fill}"><title>{tip}</title></polygon>')
        middle = [sum(float(c[axis]) for c in cell.corners) / len(cell.corners) for axis in (0, 1)]
        x, y = _screen((middle[0], middle[1]))
        out.append(f'<text x="{x:.1f}" y="{y:.1f}" font-size="22" text-anchor="middle">{name}</text>')
    for e in p.edges:
        (x0, y0), (x1, y1) = map(_screen, e.ends)
        style = 'stroke-width="2.5"' if e.scaling is not None else 'stroke-width="1.5" stroke-dasharray="5 4"'
        tip = escape(f"{e.wall}\n{_edge(e)}")
        line = f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" stroke="#222" {style}>'
        out.append(f"{line}<title>{tip}</title></line>")
    out += [*_labels(p), *_axes(p), *_points(p), "</svg>"]
    return "\n".join(out)


def _labels(p: Phases) -> list[str]:
    """Each wall's equation beside its first piece."""
    found = []
    for wall in p.walls:
        edge = next(e for e in p.edges if e.wall == wall)
        (x0, y0), (x1, y1) = map(_screen, edge.ends)
        x, y = x0 + 0.3 * (x1 - x0) + 6, y0 + 0.3 * (y1 - y0) - 6
        found.append(f'<text x="{x:.1f}" y="{y:.1f}" font-style="italic">{escape(str(wall))}</text>')
    return found


def _axes(p: Phases) -> list[str]:
    found = []
    for k in range(int(SIDE) * 2 + 1):
        tick = k / 2
        x, y = _screen((tick, 0.0))
        found.append(f'<text x="{x:.1f}" y="{y + 20:.1f}" text-anchor="middle">{tick:g}</text>')
        x, y = _screen((0.0, tick))
        found.append(f'<text x="{x - 10:.1f}" y="{y + 5:.1f}" text-anchor="end">{tick:g}</text>')
    x, y = _screen((float(SIDE) / 2, 0.0))
    found.append(f'<text x="{x:.1f}" y="{y + 44:.1f}" text-anchor="middle">rate of {p.plane[0]}</text>')
    x, y = _screen((0.0, float(SIDE) / 2))
    turn = f'transform="rotate(-90 {x - 44:.1f} {y:.1f})"'
    found.append(f'<text x="{x - 44:.1f}" y="{y:.1f}" text-anchor="middle" {turn}>rate of {p.plane[1]}</text>')
    return found


def _points(p: Phases) -> list[str]:
    """Regimes as dots, model families as triangles, where they lie in the picture."""
    found = []
    for name, ray in REGIMES.items():
        at = p.point(ray)
        if at is not None:
            x, y = _screen(at)
            found.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" fill="#b2182b"><title>regime {name}</title></circle>'
            )
            found.append(f'<text x="{x + 9:.1f}" y="{y - 9:.1f}" fill="#b2182b" font-weight="bold">{name}</text>')
    for f in families():
        rates = f.rates()
        third = next(axis for axis in PLANE_AXES if axis not in p.plane)
        if not rates or not rates[third]:
            continue
        at2 = (rates[p.plane[0]] / rates[third], rates[p.plane[1]] / rates[third])
        if not all(0 <= c <= float(SIDE) for c in at2):
            continue
        x, y = _screen(at2)
        path = f"M {x:.1f} {y - 7:.1f} l 6 11 l -12 0 z"
        found.append(f'<path d="{path}" fill="#2166ac"><title>{escape(f.name)}: {escape(f.source)}</title></path>')
        found.append(f'<text x="{x + 9:.1f}" y="{y - 6:.1f}" fill="#2166ac" font-size="12">{escape(f.name)}</text>')
    return found


def phases_html(p: Phases) -> str:
    """A page without network access: the picture, and the formulas of the cell under the pointer below it."""
    tables = []
    for k, cell in enumerate(p.cells):
        text = "\n".join(aligned(_rows(cell.scaling))) if cell.scaling else cell.why
        tables.append(
            f'<pre id="cell{k}">cell {cell.name}: {escape(_where(cell))}\n{escape(_status(cell))}\n{escape(text)}</pre>'
        )
    svg = phases_svg(p)
    script = (
        "document.querySelectorAll('polygon').forEach(c => c.addEventListener('mouseover', () => {"
        "document.querySelectorAll('pre').forEach(t => t.hidden = t.id !== 'cell' + c.dataset.cell)}));"
        "document.querySelectorAll('pre').forEach((t, k) => t.hidden = k > 0)"
    )
    style = "body{font-family:sans-serif;max-width:760px;margin:auto} polygon:hover{opacity:.6} pre{font-size:14px}"
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(_title(p))}</title>'
        f"<style>{style}</style></head>\n<body>\n{svg}\n{''.join(tables)}\n<script>{script}</script>\n</body></html>"
    )


PHASES_FORMATS: dict[str, Callable[[Phases], str]] = {
    "text": phases_text,
    "json": phases_json,
    "svg": phases_svg,
    "html": phases_html,
}
"""Formats of ``phases``."""
