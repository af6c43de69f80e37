"""What balances say: the minimum and its optimum in powers, the terms that balance, and where.

Read next: ``documents`` (how that is printed).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy

from scaling_algebra.documents.blocks import Block, Document, Grid, Heading, Lines, Piece, Text, literal

from ..expressions import Expr, Monomial, Sum, written
from .balance import Balance
from .circuits import Cell
from .conditions import Condition
from .lambert import stationary
from .numeric import Check

LONG = 12
"""Characters of a number that is printed as it is."""


def balance(b: Balance, reach: str | None = None, checks: Sequence[Check] = ()) -> Document:
    """Every cell: what grows how, with which prefactor; active terms; conditions.

    Args:
        reach: also the size at which the minimum equals this monomial.
        checks: the same in numbers.
    """
    blocks: list[Block] = [Heading(Text(b.about, literal(b.about)), 2)]
    if b.constraints:
        blocks.append(Lines.of(("with ", literal(", ".join(c.text for c in b.constraints)))))
    for cell in b.cells:
        if cell.where:
            blocks.append(Heading(("where " + ", ".join(map(str, cell.where))).replace("$", r"\$"), 3))
        blocks += _cell(b, cell, reach)
    notes = list(b.notes)
    for name in b.minimised:
        if (exact := stationary(b.reduced, name)) is not None:
            inside = f"S = {written(exact.shift)}, z = {written(exact.argument)}"
            notes.append(f"with the logarithm, {name} = exp(S + W_-1(z)/({written(exact.p)} + 1)) for {inside}")
    for c in checks:
        for name, (predicted, found) in c.slopes.items():
            notes.append(f"numerically, {name}: slope {found:.4f}, predicted {predicted} = {float(predicted):.4f}")
        notes += (
            [] if c.ratio is None else [f"numerically, prefactor of the minimum over the predicted one: {c.ratio:.4f}"]
        )
        notes.append("AGREES" if c.agrees else "REFUTED")
    if notes:
        blocks.append(Lines.of(*map(literal, notes), listed=True))
    return Document(tuple(blocks), record(b, reach, checks))


def _cell(b: Balance, cell: Cell, reach: str | None) -> list[Block]:
    name = "minimum" if b.minimised else "largest"
    rows = [(name, cell.minimum), *cell.optimum.items()]
    header = ("", "grows as", "times") if cell.exact else ("", "grows as")
    grid = Grid.of(header, [(n, *((power(m), _factor(m.coefficient)) if cell.exact else (power(m),))) for n, m in rows])
    shares = zip(cell.active, cell.shares, strict=True)
    lines: list[list[Piece]] = [
        ["terms that balance: ", *_joined([(sized(t), ", share ", term(x)) for t, x in shares])]
    ]
    if cell.binding:
        lines.append(["held with equality: ", literal(", ".join(dict.fromkeys(cell.binding)))])
    if cell.window:
        lines.append(["left open: ", literal(", ".join(map(str, cell.window)))])
    if reach is not None:
        found = cell.reach(reach, b.growing[0])
        sizes: list[Sequence[Piece]] = [(f"{name} = ", power(m)) for name, m in found.items()]
        lines.append([f"minimum {literal(reach)} at ", *_joined(sizes)])
    return [grid, Lines.of(*lines, listed=True)]


def _joined(groups: list[Sequence[Piece]]) -> list[Piece]:
    return [piece for k, group in enumerate(groups) for piece in ([*(["; "] * bool(k)), *group])]


def power(m: Monomial) -> Text:
    """Without its coefficient."""
    return sized(Monomial.of(dict(m.powers), logs=m.logs))


def sized(m: Monomial | Sum) -> Text:
    return Text(str(m), f"${sympy.latex(m.expr)}$")


def term(e: Expr) -> Text:
    return Text(written(e), f"${sympy.latex(e)}$")


def _factor(e: Expr) -> Text:
    """A prefactor; a long number in decimals (JSON has it exactly)."""
    long = e.is_number and len(written(e)) > LONG
    return Text(f"{float(e):.6g}", f"{float(e):.6g}") if long else term(e)


def strings(m: Monomial) -> dict[str, str]:
    """The powers, for JSON: exact, as text."""
    return {name: written(e) for name, e in m.powers}


def record(b: Balance, reach: str | None = None, checks: Sequence[Check] = ()) -> dict[str, Any]:
    """The JSON contract."""

    def shown(m: Monomial, exact: bool) -> dict[str, Any]:
        return {"powers": strings(m), "prefactor": written(m.coefficient) if exact else None}

    def texts(conditions: tuple[Condition, ...]) -> list[str]:
        return [str(c) for c in conditions]

    cells: list[dict[str, Any]] = [
        {
            "where": texts(c.where),
            "minimum": shown(c.minimum, c.exact),
            "optimum": {name: shown(m, c.exact) for name, m in c.optimum.items()},
            "active": [{"term": str(t), "share": written(x)} for t, x in zip(c.active, c.shares, strict=True)],
            "binding": list(c.binding),
            "open": texts(c.window),
        }
        for c in b.cells
    ]
    if reach is not None:
        for shown_, c in zip(cells, b.cells, strict=True):
            shown_["reached"] = {name: strings(m) for name, m in c.reach(reach, b.growing[0]).items()}
    return {
        "sum": str(b.total),
        "constraints": [c.text for c in b.constraints],
        "minimise": list(b.minimised),
        "grow": list(b.growing),
        "fixed": list(b.fixed),
        "cells": cells,
        "notes": list(b.notes),
        "reach": reach,
        "checks": [
            {
                "rates": {name: written(x) for name, x in c.rates.items()},
                "slopes": {name: {"predicted": written(e), "found": round(x, 6)} for name, (e, x) in c.slopes.items()},
                "ratio": None if c.ratio is None else round(c.ratio, 6),
                "agrees": c.agrees,
            }
            for c in checks
        ],
    }
