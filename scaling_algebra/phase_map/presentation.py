"""What the map of rays says: cells with their formulas, what holds on the walls, where regimes and families lie.

Read next: ``picture.py`` (draws it), ``documents`` (how the rest is printed).
"""

from __future__ import annotations

from typing import Any

from scaling_algebra.documents import document_of
from scaling_algebra.documents.blocks import Block, Document, Grid, Heading, Lines, Piece, Text
from scaling_algebra.documents.notation import formula, typeset
from scaling_algebra.solver.presentation import powers
from scaling_algebra.spec.axes import REGIMES, Ray
from scaling_algebra.spec.scaling import Scaling

from .families import families
from .nearest import Nearest
from .phases import Edge, MapCell, Phases
from .plane import PLANE_AXES


@document_of.register(Phases)
def phases(p: Phases) -> Document:
    """Cells with their formulas, edges where they add something, and where the regimes lie."""
    walls = [piece for w in p.walls for piece in ("; ", formula(str(w)))][1:]
    blocks: list[Block] = [Heading(typeset(p.about)), Lines.of(("walls: ", *walls))]
    for cell in p.cells:
        said = typeset(f"   ({status(cell)})")
        bounds = ", ".join(formula(x).rich for x in cell.inequalities)
        title = Text(f"cell {cell.name}: {_where(cell)}{said.plain}", f"cell {cell.name}: {bounds}{said.rich}")
        blocks += [Heading(title, 2), *([formulas(cell.scaling)] if cell.scaling is not None else [])]
    edges = [(formula(str(e.wall)), _span(p, e), _edge(e)) for e in p.edges]
    blocks += [Heading("on the walls", 2), Grid.of(("wall", "between", "what holds"), edges)]
    regimes = []
    for name, ray in REGIMES.items():
        on = [piece for w in p.walls_of(ray) for piece in (", ", formula(str(w)))][1:] or ["no wall"]
        regimes.append((f"{name}: on ", *on))
    blocks += [Heading("regimes", 2), Lines.of(*regimes, listed=True)]
    blocks.append(Heading("model families (estimated between first and last member)", 2))
    shown = []
    for f in families():
        rates = f.rates()
        text = ", ".join(f"{axis} {rates[axis]:.2f}" for axis in PLANE_AXES if rates)
        shown.append(f"{f.name}: {text or 'no ray: one member, or N did not grow'}")
    blocks.append(Lines.of(*shown, listed=True))
    return Document(tuple(blocks), _record(p))


@document_of.register(Nearest)
def nearest(n: Nearest) -> Document:
    """What fails on a ray, and the rays next to it on which nothing does."""
    title, rows = n.map.parameterization.title, []
    for x in n.rays:
        rates = ",".join(f"{axis}={x.ray[axis]}" for axis in PLANE_AXES)
        changes = ", ".join(f"{axis} from {n.asked[axis]} to {x.ray[axis]}" for axis in x.moved)
        rows.append((rates, changes or "nothing", x.where or "the ray itself", x.structure))
    why = typeset(f"no {title} found: {n.why}" if n.why else f"{title} is found on this ray")
    blocks: list[Block] = [Heading(typeset(n.about)), Lines.of(why)]
    if rows:
        blocks.append(Grid.of(("nearest ray", "what changes", "on", "interventions"), rows))
    rays = [{"ray": _strings(x.ray), "moved": list(x.moved), "on": x.where, "structure": x.structure} for x in n.rays]
    asked = {"parameterization": n.map.parameterization.name, "optimizer": n.map.optimizer.name}
    return Document(tuple(blocks), {**asked, "ray": _strings(n.asked), "why": n.why or None, "nearest": rays})


def _strings(ray: Ray) -> dict[str, str]:
    return {axis: str(ray[axis]) for axis in PLANE_AXES}


def formulas(s: Scaling) -> Grid:
    """Init std, learning rate and epsilon of every tensor."""
    return Grid.of(("tensor", "init std", "lr", "eps"), powers(s))


def _where(cell: MapCell) -> str:
    return ", ".join(cell.inequalities)


def status(cell: MapCell | Edge) -> str:
    """Whether a formula is proved on all of a cell or edge, and what is known where none was found."""
    if cell.scaling is None:
        proof = f"; proved at {cell.proved} that none exists" if isinstance(cell, MapCell) and cell.proved else ""
        return f"none found at {_rates(cell.ray)}{proof}: {cell.why}"
    known = "proved on all of it" if cell.holds else f"UNDECIDED: found at {_rates(cell.ray)} alone"
    also = "".join(f"; so is the formula of cell {x}" for x in (cell.also if isinstance(cell, MapCell) else ()))
    return f"{known}; {cell.structure}{also}"


def _rates(ray: Ray) -> str:
    return ",".join(f"{axis}={ray[axis]}" for axis in PLANE_AXES)


def _edge(e: Edge) -> Piece:
    if e.scaling is None:
        return "none found"
    stds = [(role, t.init_std) for role, t in e.scaling.tensors.items() if "e" in role]
    text = ", ".join(f"{role} {0 if std is None else std}" for role, std in stds)
    known = "" if e.holds else f"UNDECIDED, found at {_rates(e.ray)} alone: "
    return typeset(f"{known}{e.structure}: {text}")


def _span(p: Phases, e: Edge) -> str:
    (x0, y0), (x1, y1) = e.ends
    return f"{p.plane[0]} {x0} to {x1}, {p.plane[1]} {y0} to {y1}"


def _record(p: Phases) -> dict[str, Any]:
    """The JSON contract."""

    def tensors(s: Scaling | None) -> object:
        if s is None:
            return None
        return {
            role: {
                "init_std": t.init_std,
                "lr": t.lr,
                "eps": t.eps,
                "tied": role in s.tied,
            }
            for role, t in s.tensors.items()
        }

    return {
        "parameterization": p.parameterization.name,
        "optimizer": p.optimizer.name,
        "epsilon": p.optimizer.regime,
        "plane": p.plane,
        "walls": p.walls,
        "cells": [
            {
                "name": c.name,
                "corners": c.corners,
                "inequalities": c.inequalities,
                "ray": c.ray,
                "proved": c.holds,
                "also": c.also,
                "structure": c.structure,
                "why": c.why,
                "proved_impossible_at": c.proved,
                "formulas": tensors(c.scaling),
            }
            for c in p.cells
        ],
        "edges": [
            {
                "wall": e.wall,
                "ends": e.ends,
                "ray": e.ray,
                "proved": e.holds,
                "structure": e.structure,
                "why": e.why,
                "formulas": tensors(e.scaling),
            }
            for e in p.edges
        ],
        "regimes": {name: p.walls_of(ray) for name, ray in REGIMES.items()},
        "families": {f.name: {k: round(v, 4) for k, v in f.rates().items()} for f in families()},
    }
