"""What laws say: every axis, exponents, identities, and what lies below the floor.

Read next: ``balance/presentation.py`` (one axis), ``documents`` (how that is printed).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scaling_algebra.documents.blocks import Block, Document, Grid, Heading, Lines, Piece, literal

from ..balance.balance import Balance
from ..balance.numeric import Check
from ..balance.presentation import balance, power, record, term
from ..expressions import written
from .library import Answer


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
