"""What a plan says of every parameter: the coverage report."""

from __future__ import annotations

from typing import Any

from scaling_algebra.documents import document_of
from scaling_algebra.documents.blocks import Block, Code, Document, Grid, Heading, Lines, Piece, literal
from scaling_algebra.recipes.presentation import number
from scaling_algebra.recipes.settings import Setting
from scaling_algebra.spec.optimizers import SHAPES

from .plans import Plan

_WHAT = ("init_std", "lr", "eps", "decay")


@document_of.register(Plan)
def coverage(p: Plan) -> Document:
    """Every parameter with role, rule and numbers (factors where nothing was tuned), then what the model must do."""
    rows: list[tuple[Piece | None, ...]] = []
    for e in p.entries:
        shape = " x ".join(map(str, e.shape)) + (f" ({e.layout})" if e.layout else "")
        values = [_value(e.settings.get(what)) for what in _WHAT]
        rows.append((e.name, "frozen" if e.frozen else e.group, literal(shape), Code(e.rule), *values))
    header = ("parameter", "role", "shape", "rule", "init std", "lr", "eps", "weight decay")
    blocks: list[Block] = [Heading(literal(p.about)), Grid.of(header, rows)]
    lines = [literal(f"{alias} is {stays}: one tensor, one group") for alias, stays in p.aliases.items()]
    if p.buffers:
        lines.append(literal(f"buffers, never the optimizer's: {', '.join(p.buffers)}"))
    for name, groups in p.optimizers.items():
        rule, factor = p.groups[groups[0]].optimizer, ""
        if rule.normalises == "matrix":
            factor = f", which multiplies a rate by {SHAPES[rule.shape].about}"
        if factor or len(p.optimizers) > 1:
            lines.append(literal(f"{name} trains {', '.join(groups)}{factor}"))
    if p.gate.brings:
        lines.append(literal(p.gate.about))
    lines += [f"multiply {name} by {number(x)} in the model" for name, x in p.multipliers.items() if x != 1]
    if lines:
        blocks.append(Lines.of(*lines, listed=True))
    if p.warnings:
        blocks += [Heading("look at", 2), Lines.of(*map(literal, p.warnings), listed=True)]
    return Document(tuple(blocks), as_json(p))


def as_json(p: Plan) -> dict[str, Any]:
    """The JSON contract of a plan."""
    return {
        "family": p.family or None,
        "gate": p.gate.brings or None,
        "gate_scale": p.gate.scale,
        "gate_measured": p.gate.measured,
        "shared_experts": p.gate.shared,
        "parameters": [
            {
                "name": e.name,
                "role": e.role or None,
                "group": e.group or None,
                "optimizer": p.groups[e.group].optimizer.name if e.group in p.groups else None,
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
        "warnings": list(p.warnings),
        "recipe": p.recipe.as_json(),
    }


def _value(setting: Setting | None) -> str:
    if setting is None:
        return ""
    return number(setting.target) if setting.target is not None else f"x {number(setting.factor)}"
