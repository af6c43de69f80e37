"""Writes a recipe as a document, as TOML and as Python."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from scaling_algebra.documents import document_of
from scaling_algebra.documents.blocks import ZERO, Block, Document, Grid, Heading, Lines, Piece, Text, literal
from scaling_algebra.documents.notation import typeset
from scaling_algebra.solver.presentation import left_open

from .next_terms import SMALL, NextTerm, NextTerms
from .recipe import Recipe
from .settings import Setting

_TITLES = {"multiplier": "multiplier", "init_std": "init std", "lr": "lr", "eps": "eps", "decay": "weight decay"}

_SHOWN, _NAMED = 5, 2
"""`_SHOWN` is the number of terms that are printed, `_NAMED` that of the signals of each."""


@document_of.register(Recipe)
def recipe(r: Recipe) -> Document:
    """Makes the report on a recipe: the ray, the numbers of every tensor, whether the base is large enough,
    warnings.
    """
    blocks: list[Block] = [Heading(literal(r.about))]
    if r.way.ray is not None:
        blocks.append(Lines.of(typeset(f"ray: {r.way.ray}" + ("" if r.way.exact else " (nearest)"))))
    blocks += [Lines.of(typeset(line)) for line in r.by_run]
    if r.missing:
        blocks += [Heading("no parameterization on this ray", 2), Lines.of(typeset(r.missing))]
        blocks.append(
            Lines.of(typeset(f"these are the powers of {r.instead}, for which these signals grow from base to target:"))
        )
        rows = ((x.signal, str(x.step), x.growth, number(x.factor)) for x in r.breaks)
        blocks.append(Grid.of(("signal", "t", "grows at least as", "factor"), rows))
    header = ("tensor", "what", "base", "rule", "factor", "target")
    multipliers = ((name, "multiplier", "", _rule(s), number(s.factor), "") for name, s in r.multipliers.items())
    blocks += [Grid.of(header, (*_rows(r), *multipliers)), *left_open(r.level)]
    if r.tied:
        blocks.append(Lines.of(typeset(f"experts share their initial values: {', '.join(r.tied)}")))
    blocks += _next_terms(r.next_terms)
    if r.warnings:
        blocks += [Heading("look at", 2), Lines.of(*map(typeset, r.warnings), listed=True)]
    return Document(tuple(blocks), r.as_json())


def _rows(r: Recipe) -> Iterator[tuple[Piece, ...]]:
    for role, settings in r.tensors.items():
        for what, s in settings.items():
            yield role, _TITLES[what], number(s.base), _rule(s), number(s.factor), number(s.target)


def _next_terms(answer: NextTerms) -> Iterator[Block]:
    if not answer.examined:
        return
    yield Heading("is the base large enough", 2)
    terms, limit = answer.terms, f"1/{1 / SMALL}"
    if terms:
        header = ("beside the leading term", "at the base", "at the target", f"below {limit} from", "in")
        yield Grid.of(header, map(_next_term, terms[:_SHOWN]))
    notes = ["powers alone, without constants"]
    if not terms:
        notes = [f"no other term is larger than {limit} times the leading one (up to constants)"]
    if len(terms) > _SHOWN:
        notes.append(f"{len(terms) - _SHOWN} smaller terms are not printed")
    if answer.unknown:
        few = ", ".join(answer.unknown[:_SHOWN])
        more = len(answer.unknown) - _SHOWN
        notes.append(f"not known of {few}{f' and {more} more' if more > 0 else ''}")
    yield Lines.of(*map(literal, notes), listed=True)


def _next_term(x: NextTerm) -> tuple[Piece, ...]:
    small = ", ".join(f"{axis}={math.ceil(float(f'{size:.3g}'))}" for axis, size in (x.small_from or {}).items())
    signals, more = ", ".join(f"{name}@{t}" for name, t in x.of[:_NAMED]), len(x.of) - _NAMED
    ratio = Text(str(x.ratio), f"${x.ratio.latex}$")
    others = f" and {more} more" if more > 0 else ""
    return ratio, f"{x.base:.2g}", f"{x.target:.2g}", literal(small), literal(signals + others)


def _rule(s: Setting) -> Piece:
    if s.rule is None:
        return ZERO
    return s.rule if s.before is None else typeset(f"{s.before} to {s.rule}")


def number(value: float | None) -> str:
    """Formats a number with six significant digits; returns an empty string for None."""
    return "" if value is None else f"{value:.6g}"


def as_toml(r: Recipe) -> str:
    """Writes the numbers to set at the target as TOML. Where no base value was given, the factor is written."""
    lines = _comment_lines(r)
    for group, entries in _numbers(r).items():
        for name, values in entries.items():
            lines += ["", f"[{group}.{name}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    return "\n".join(lines)


def as_python(r: Recipe) -> str:
    """Writes the numbers to set at the target, or the factors, as the source text of a Python dict."""
    lines = [*_comment_lines(r), "RECIPE = {"]
    for group, entries in _numbers(r).items():
        lines.append(f"    {group!r}: {{")
        lines += [f"        {name!r}: {values!r}," for name, values in entries.items()]
        lines.append("    },")
    return "\n".join([*lines, "}"])


def _comment_lines(r: Recipe) -> list[str]:
    """Returns the comment lines at the top of a written recipe: its title, the effect of batch and tokens, warnings."""
    return [f"# {line}" for line in (r.about, *r.by_run, *r.warnings)]


def _numbers(r: Recipe) -> dict[str, dict[str, dict[str, Any]]]:
    tensors: dict[str, dict[str, Any]] = {}
    for role, settings in r.tensors.items():
        tensors[role] = {}
        for what, s in settings.items():
            tensors[role] |= {f"{what}_factor": s.factor} if s.target is None else {what: s.target}
        if role in r.tied:
            tensors[role]["tied"] = True
    return {"tensors": tensors, "multipliers": {m: {"factor": s.factor} for m, s in r.multipliers.items()}}


FORMS: Mapping[str, Callable[[Recipe], str]] = {"toml": as_toml, "python": as_python}
"""Formats that only recipes have."""
