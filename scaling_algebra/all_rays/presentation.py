"""Makes the printed reports on theorems and on the map of rays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from scaling_algebra.documents import document_of
from scaling_algebra.documents.blocks import Block, Code, Document, Grid, Heading, Lines, Piece, Text
from scaling_algebra.documents.notation import formula, typeset
from scaling_algebra.linear.linear import Linear
from scaling_algebra.solver.presentation import powers
from scaling_algebra.spec.axes import REGIMES, Ray
from scaling_algebra.spec.scaling import Scaling, TensorScaling

from .claims import Theorem
from .families import load_families
from .phases import PLANE, PLANE_AXES, MapCell, Phases, mean_corner
from .theorems import Theorems, write_statement

VERDICTS = {"proved": "proved", "refuted": "REFUTED", "undecided": "UNDECIDED"}


@document_of.register(Theorems)
def theorems(t: Theorems) -> Document:
    """Returns the document of some theorems: the assumptions, then a section for each theorem."""
    blocks: list[Block] = [Heading(typeset(f"theorems: {t.about}"))]
    lines = [f"UNDECIDED: {t.why}"] if t.why else t.reading()
    blocks.append(Lines.of(*map(typeset, lines), listed=True))
    for x in t.items:
        blocks += _make_section(x, t)
    return Document(tuple(blocks), t.as_json())


def _make_section(x: Theorem, t: Theorems) -> list[Block]:
    """Makes the section of one theorem."""
    lines: list[Piece] = [typeset(write_statement(x, t.whole))]
    lines += [typeset(x.decision.why)] if x.decision.why else []
    if x.decision.clauses:
        lines.append(f"one unsatisfiable system of {len(x.decision.clauses)} clauses")
    head = Heading(typeset(f"{x.name}: {VERDICTS[x.decision.verdict]}"), 2)
    blocks: list[Block] = [head, Lines.of(*lines, listed=True)]
    if x.scaling is not None and " exists" in x.name:
        columns = ("init std", "lr", "eps") if t.whole.optimizer.epsilon else ("init std", "lr")
        blocks.append(make_formula_table(x.scaling, columns))
        blocks += [Lines.of((f"{name}: ", 1 / power)) for name, power in x.scaling.multipliers.items()]
    if x.decision.core:
        blocks += [Lines.of("from:"), Lines.of(*map(typeset, x.decision.core), listed=True)]
    return blocks


@document_of.register(Phases)
def phases(p: Phases) -> Document:
    """Returns the document of a map: cells with their formulas, walls, and the positions of regimes and model
    families."""

    def join_walls(walls: Iterable[Linear], bar: str) -> Sequence[Piece]:
        return [piece for w in walls for piece in (bar, formula(str(w)))][1:]

    blocks: list[Block] = [Heading(typeset(p.about)), Lines.of(("walls: ", *join_walls(p.walls, "; ")))]
    for cell in p.cells:
        state = typeset(f"   ({describe_status(cell)})")
        bounds = ", ".join(formula(x).rich for x in cell.inequalities)
        plain = f"{cell.title}: {', '.join(cell.inequalities)}{state.plain}"
        blocks.append(Heading(Text(plain, f"{cell.title}: {bounds}{state.rich}"), 2))
        blocks += [] if cell.scaling is None else [make_formula_table(cell.scaling)]
    edges = [(formula(e.name), describe_span(e), _format_edge(e)) for e in p.edges]
    blocks += [Heading("on the walls", 2), Grid.of(("wall", "between", "what holds"), edges)]
    regimes = [(f"{name}: on ", *(join_walls(p.walls_of(ray), ", ") or ["no wall"])) for name, ray in REGIMES.items()]
    blocks += [Heading("regimes", 2), Lines.of(*regimes, listed=True)]
    shown = []
    for f in load_families():
        text = ", ".join(f"{axis} {f.rates[axis]:.2f}" for axis in PLANE_AXES if f.rates)
        shown.append(f"{f.name}: {text or 'no ray, because it has one member or N did not grow'}")
    title = "model families (estimated between first and last member)"
    blocks += [Heading(title, 2), Lines.of(*shown, listed=True)]
    if (inside := next((c for c in (*p.cells, *p.edges) if c.scaling is not None), None)) is not None:
        of = f"--parameterization {p.parameterization.name} --optimizer {p.optimizer.name}"
        of += f" --epsilon {p.optimizer.regime}" if p.optimizer.regime not in (None, "derived") else ""
        ray = _format_rates(p.at(mean_corner(inside.corners)))
        blocks += [Heading("the numbers on one ray, with reasons", 2)]
        blocks += [Lines.of((f"{inside.title}: ", Code(f"scalecalc derive --ray {ray} {of}")), listed=True)]
    return Document(tuple(blocks), _make_record(p))


def make_formula_table(s: Scaling, columns: tuple[str, ...] = ("init std", "lr", "eps")) -> Grid:
    """Returns a table of the init std, learning rate and epsilon of every tensor."""
    return Grid.of(("tensor", *columns), (row[: len(columns) + 1] for row in powers(s)))


def describe_status(cell: MapCell) -> str:
    """Describes whether the formula of a cell or edge is proved on all of it, or why there is no formula."""
    if cell.scaling is None:
        return f"no parameterization was found at {_format_rates(cell.ray)}: {cell.why}"
    extent = "proved on the whole cell" if cell.holds else f"UNDECIDED: only checked at {_format_rates(cell.ray)}"
    return f"{extent}; {cell.structure}" + "".join(f"; the formula of cell {x} is proved here, too" for x in cell.also)


def describe_span(e: MapCell) -> str:
    """Describes the ends of a piece of a wall, such as ``N_e 0 to 1, M 1 to 1``."""
    return ", ".join(f"{axis} {x} to {y}" for axis, x, y in zip(PLANE, *e.corners, strict=True))


def _format_rates(ray: Ray) -> str:
    return ",".join(f"{axis}={ray[axis]}" for axis in PLANE_AXES)


def _format_edge(e: MapCell) -> Piece:
    """Describes the formula on a piece of a wall by its interventions and the init std of the experts' tensors."""
    if e.scaling is None:
        return "none found"
    stds = [(role, t.init_std) for role, t in e.scaling.tensors.items() if "e" in role]
    text = ", ".join(f"{role} {0 if std is None else std}" for role, std in stds)
    doubt = "" if e.holds else f"UNDECIDED, only checked at {_format_rates(e.ray)}: "
    return typeset(f"{doubt}{e.structure}: {text}")


def _make_record(p: Phases) -> dict[str, Any]:
    """Returns the JSON record of a map, whose keys are documented and stable."""

    def tensor(t: TensorScaling) -> dict[str, Any]:
        return {"init_std": t.init_std, "lr": t.lr, "eps": t.eps}

    def record(c: MapCell) -> dict[str, Any]:
        s = c.scaling
        formulas = s and {role: {**tensor(t), "tied": role in s.tied} for role, t in s.tensors.items()}
        outcome = {"structure": c.structure, "why": c.why}
        ray = {"ray": c.ray, "proved": c.holds}
        if c in p.edges:
            return {"wall": c.name, "ends": c.corners, **ray, **outcome, "formulas": formulas}
        lies = {"name": c.name, "corners": c.corners, "inequalities": c.inequalities}
        return {**lies, **ray, "also": c.also, **outcome, "formulas": formulas}

    return {
        "parameterization": p.parameterization.name,
        "optimizer": p.optimizer.name,
        "epsilon": p.optimizer.regime,
        "plane": PLANE,
        "walls": p.walls,
        "cells": [record(c) for c in p.cells],
        "edges": [record(e) for e in p.edges],
        "regimes": {name: p.walls_of(ray) for name, ray in REGIMES.items()},
        "families": {f.name: {k: round(v, 4) for k, v in f.rates.items()} for f in load_families()},
    }
