"""A plan as a document: its groups with their numbers, and what is left to do.

Read next: ``documents`` (how that is printed).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scaling_algebra.documents import document_of
from scaling_algebra.documents.blocks import Block, Document, Grid, Heading, Later, Lines, Piece, literal
from scaling_algebra.recipes.settings import Setting
from scaling_algebra.solver.presentation import left_open
from scaling_algebra.spec.level import level_as_json
from scaling_algebra.spec.optimizers import SHAPES

from .folding import is_foldable
from .plans import Plan

_WHAT = ("init_std", "lr", "eps", "decay")
WIDE, LISTED = 46, 6
"""Maximum number of characters of a printed name (its last ones are kept), and of names in a line."""


@document_of.register(Plan)
def build_plan_document(p: Plan) -> Document:
    """Returns a plan as a document: the groups with their numbers (or factors, where nothing was tuned), then what
    the model has to do."""
    rows: list[tuple[Piece | None, ...]] = []
    for name, group in p.groups.items():
        first = group.entries[0]
        for row, own in first.parts.items() or [(name, {})]:
            settings = {**own, **first.settings}  # the group has the smallest epsilon
            values = [_format_value(settings.get(what), what) for what in _WHAT]
            values[0] = f"{first.fill:.4g} (all)" if first.fill is not None else "kept" if first.kept else values[0]
            rows.append((literal(_shorten(row)), str(len(group.entries)), *values))
    header = ("group", "of", "init std", "lr", "eps", "decay")
    used = [k for k in range(len(header)) if k < 2 or any(row[k] for row in rows)]
    grid = Grid.of([header[k] for k in used], [tuple(row[k] for k in used) for row in rows])
    blocks: list[Block] = [Heading(literal(p.about)), grid, *left_open(p.level)]
    lines = [literal(x) for x in p.recipe.by_run]
    lines += [literal(f"{_shorten(alias)} is {_shorten(stays)}: one tensor") for alias, stays in p.aliases.items()]
    if frozen := [e.name for e in p.entries if e.frozen]:
        lines.append(literal(f"frozen, in no parameter group: {_join_names(frozen)}"))
    if p.buffers:
        lines.append(literal(f"buffers, never the optimizer's: {_join_names(p.buffers)}"))
    for name, groups in p.optimizers.items():
        rule, factor = p.groups[groups[0]].rules[name], ""
        if rule.normalises == "matrix":
            factor = f", which multiplies a rate by {SHAPES[rule.shape].about}"
        if factor or len(p.optimizers) > 1:
            lines.append(literal(f"{name} trains {_join_names(groups)}{factor}"))
    folds = {name: is_foldable(d.network, name) for d in p.recipe.derivations for name in d.scaling.multipliers}
    lines += [
        f"multiply {name} by {x:.6g} in the model{', or fold=True' if folds[name] else ''}"
        for name, x in p.multipliers.items()
        if x != 1
    ]
    if lines:
        blocks.append(Lines.of(*lines, listed=True))
    if p.warnings:
        blocks += [Heading("look at", 2), Lines.of(*map(literal, p.warnings), listed=True)]
    return Document(tuple(blocks), Later(lambda: as_json(p)))


def as_json(p: Plan) -> dict[str, Any]:
    """Returns a plan as JSON."""
    return {
        **level_as_json(p.level),
        "parameters": [
            {
                "name": e.name,
                "group": e.group or None,
                "optimizer": ", ".join(p.groups[e.group].rules) if e.group in p.groups else None,
                "shape": list(e.shape),
                "frozen": e.frozen,
                "fill": e.fill,
                "kept": e.frozen or e.kept,
                **_settings_as_json(e.settings),
                **({"init_std": None} if e.fill is not None else {}),
                **(
                    {"parts": {x: {"optimizer": e.rules[x].name, **_settings_as_json(v)} for x, v in e.parts.items()}}
                    if e.parts
                    else {}
                ),
            }
            for e in p.entries
        ],
        "aliases": dict(p.aliases),
        "buffers": list(p.buffers),
        "multipliers": dict(p.multipliers),
        "warnings": list(p.warnings),
        "recipe": p.recipe.as_json(),
    }


def _settings_as_json(settings: Mapping[str, Setting]) -> dict[str, Any]:
    return {what: s.as_json() for what, s in settings.items()}


def _shorten(name: str) -> str:
    return name if len(name) <= WIDE else f"...{name[3 - WIDE :]}"


def _join_names(names: Any) -> str:
    names = list(names)
    return ", ".join(map(_shorten, names[:LISTED])) + (f" and {len(names) - LISTED} more" if names[LISTED:] else "")


def _format_value(setting: Setting | None, what: str) -> str:
    if setting is None or (what == "decay" and setting.base is None):  # without a base value the groups have no decay
        return ""
    return f"{setting.target:.4g}" if setting.target is not None else f"x {setting.factor:.4g}"
