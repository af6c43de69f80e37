"""What balances and laws say: the minimum and its optimum in powers, the terms that balance, and where.

Read next: ``documents`` (how that is printed).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy

from scaling_algebra.documents.blocks import Block, Document, Grid, Heading, Lines, Piece, Text, literal

from .balance import Balance
from .circuits import Cell
from .conditions import Condition
from .expressions import Expr, Monomial, Sum, written
from .lambert import stationary
from .library import Answer
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


def law(a: Answer, *further: Block, more: Mapping[str, object] | None = None, checks: Sequence[Check] = ()) -> Document:
    """Every axis in one line, or one axis in full; exponents, identities, and what contradicts it.

    Args:
        checks: of the one axis, in numbers.
        further, more: blocks behind it, and what they say for programs.
    """
    blocks: list[Block] = [Heading(literal(a.about), 2)]
    if len(a.axes) == 1:
        blocks += balance(next(iter(a.axes.values())), checks=checks).blocks
    else:
        rows = [row for name, b in a.axes.items() for row in _rows(name, b)]
        blocks.append(Grid.of(("axis", "of", "grows as", "where"), rows))
    numbers = [(n, term(e), f"{float(e):.5f}" if e.is_number else "") for n, e in a.exponents.items()]
    lines = [f"{text}: {'holds' if true else 'does not hold'}" for text, true in a.identities.items()]
    if len(a.axes) > 1 and numbers:
        blocks += [Heading("exponents", 3), Grid.of(("exponent", "is", "number"), numbers)]
        blocks += [Lines.of(*map(literal, lines), listed=True)] * bool(lines)
    wrong = []
    for name, where in a.below.items():
        place = "" if where is True else f" where {where}"
        least = a.axes[name].cells[-1].minimum
        known = f"; not with {', '.join(a.repairs[name])}" if a.repairs[name] else ""
        wrong.append(
            f"{name}: the minimum {power(least).plain} is below {a.law.floor}{place}: a term is missing{known}"
        )
    if wrong:
        blocks += [Heading("below the floor", 3), Lines.of(*map(literal, wrong), listed=True)]
    if names := [f"{name}: {said}" for name, said in a.law.names.items() if _named(a, name)]:
        blocks += [Heading("names", 3), Lines.of(*map(literal, names), listed=True)]
    return Document((*blocks, *further), {**law_record(a, checks), **(more or {})})


def _rows(name: str, b: Balance) -> list[tuple[Piece, ...]]:
    """One line for the minimum and each optimum of every cell."""
    made: list[tuple[Piece, ...]] = []
    for cell in b.cells:
        where = literal(", ".join(map(str, cell.where)))
        of = {"minimum" if b.minimised else "largest": cell.minimum, **cell.optimum}
        made += [(name, key, power(m), where) for key, m in of.items()]
    return made


def _named(a: Answer, name: str) -> bool:
    """Does a name stand in what is shown?"""
    sums = [x for b in a.axes.values() for x in (b.total, *(s for c in b.constraints for s in (c.left, c.right)))]
    return (name in a.exponents and len(a.axes) > 1) or any(name in x.quantities | x.parameters for x in sums)


def law_record(a: Answer, checks: Sequence[Check] = ()) -> dict[str, Any]:
    """The JSON contract."""
    return {
        "law": a.law.name,
        "choices": dict(a.choices),
        "at": {name: written(x) for name, x in a.values.items()},
        "axes": {name: record(b, checks=checks) for name, b in a.axes.items()},
        "exponents": {name: written(e) for name, e in a.exponents.items()},
        "identities": dict(a.identities),
        "below_floor": {name: True if where is True else str(where) for name, where in a.below.items()},
        "repairs": {name: list(choices) for name, choices in a.repairs.items()},
    }


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
