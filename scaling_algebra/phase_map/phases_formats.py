"""The map of rays as text and JSON; ``picture.py`` draws it.

Adding a format: one more entry in ``PHASES_FORMATS``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from scaling_algebra.solver.cones import PLANE_AXES
from scaling_algebra.solver.report import aligned
from scaling_algebra.spec.axes import REGIMES
from scaling_algebra.spec.scaling import Scaling

from .families import families
from .phases import Cell, Edge, Phases, Point2
from .picture import phases_html, phases_svg


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


PHASES_FORMATS: dict[str, Callable[[Phases], str]] = {
    "text": phases_text,
    "json": phases_json,
    "svg": phases_svg,
    "html": phases_html,
}
"""Formats of ``phases``."""
