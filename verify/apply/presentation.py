"""What a plan says of every parameter: the coverage report. Read next: ``documents`` (how that is printed)."""

from __future__ import annotations

from typing import Any

from scaling_algebra.documents.blocks import Block, Code, Document, Grid, Heading, Lines, Piece, literal
from scaling_algebra.recipes.presentation import number

from .plans import Plan

_WHAT = ("init_std", "lr", "eps", "decay")


def coverage(p: Plan) -> Document:
    """Every parameter with role, rule and numbers (factors where nothing was tuned), then what the model must do."""
    rows: list[tuple[Piece | None, ...]] = []
    for e in p.entries:
        shape = " x ".join(map(str, e.shape)) + (f" ({e.layout})" if e.layout else "")
        told = "frozen" if e.frozen else e.role
        values = [_told(e.settings.get(what)) for what in _WHAT]
        rows.append((e.name, told, literal(shape), Code(e.rule), *values))
    header = ("parameter", "role", "shape", "rule", "init std", "lr", "eps", "weight decay")
    blocks: list[Block] = [Heading(literal(p.about)), Grid.of(header, rows)]
    lines = [literal(f"{alias} is {stays}: one tensor, one group") for alias, stays in p.aliases.items()]
    if p.buffers:
        lines.append(literal(f"buffers, never the optimizer's: {', '.join(p.buffers)}"))
    if p.family is not None and p.family.gate:
        lines.append(f"the gate of {p.family.name} brings {p.family.gate} to the sum over experts")
    lines += [f"multiply {name} by {number(x)} in the model" for name, x in p.multipliers.items() if x != 1]
    if lines:
        blocks.append(Lines.of(*lines, listed=True))
    return Document(tuple(blocks), as_json(p))


def as_json(p: Plan) -> dict[str, Any]:
    """The JSON contract of a plan."""
    return {
        "family": None if p.family is None else p.family.name,
        "gate": None if p.family is None or not p.family.gate else p.family.gate,
        "parameters": [
            {
                "name": e.name,
                "role": e.role or None,
                "rule": e.rule,
                "shape": list(e.shape),
                "layout": e.layout,
                "frozen": e.frozen,
                **{what: s.as_json() for what, s in e.settings.items()},
            }
            for e in p.entries
        ],
        "aliases": dict(p.aliases),
        "buffers": list(p.buffers),
        "multipliers": dict(p.multipliers),
        "recipe": p.recipe.as_json(),
    }


def _told(setting: Any) -> str:
    if setting is None:
        return ""
    return number(setting.target) if setting.target is not None else f"x {number(setting.factor)}"
