"""What a formula says: the maximum, its monomials with mechanism and place, and what it assumes; sizes on a cone.

Read next: ``documents`` (how that is printed).
"""

from __future__ import annotations

from fractions import Fraction
from itertools import groupby
from typing import TYPE_CHECKING

from scaling_algebra.documents.blocks import ZERO, Block, Document, Grid, Heading, Lines, Piece, Text, literal
from scaling_algebra.documents.notation import formula as typeset_formula
from scaling_algebra.documents.notation import latex_power
from scaling_algebra.solver.polyhedra import corners, direction, dot
from scaling_algebra.spec.powers import Form, Power, symbol

from .search import spanning

if TYPE_CHECKING:
    from .every_ray import EveryRay, Largest
    from .formula import Formula, Term

_GREEK = {"sigma": r"\sigma", "lr": r"\eta", "eps": r"\epsilon", "v": "v"}


def formula(f: Formula, where: bool = False) -> Document:
    """The formula; ``where``: also the rays on which each of its monomials leads."""
    head = Text(f"{f.quantity}@{f.step} = {text(f)}", f"{literal(f'{f.quantity}@{f.step}')} $= {latex(f)}$")
    blocks: list[Block] = [Heading(literal(f.about), 2), Lines.of((head,))]
    if f.terms:
        columns = ["monomial", "mechanisms"] + ["leads where"] * where
        rows = [_row(f, t, where) for t in f.terms]
        blocks.append(Grid.of(columns, rows))
    notes: list[Piece] = [*map(literal, divisors(f)), *map(literal, notes_of(f))]
    blocks.append(Lines.of(*notes, listed=True))
    return Document(tuple(blocks), record(f))


def record(f: Formula) -> dict[str, object]:
    """The JSON contract."""
    terms = [
        {
            "axes": t.form.power.as_strings(),
            "parameters": {symbol(u): -n for u, n in t.form.unknowns},
            "mechanisms": [str(m) for m in t.mechanisms],
            "leads": list(f.leads(t)),
        }
        for t in f.terms
    ]
    return {
        "network": f.network.name,
        "optimizer": f.optimizer.name,
        "epsilon": f.optimizer.regime,
        "structure": str(f.structure),
        "quantity": f.quantity,
        "step": f.step,
        "complete": f.complete,
        "slack": None if f.slack is None else str(f.slack),
        "terms": terms,
        "divisors": {name: list(found) for name, found in f.divisors.items()},
        "assumes": list(f.assumes),
        "grow": list(f.averaged),
        "fixed": sorted(f.fixed),
    }


def text(f: Formula) -> str:
    """``Theta(multiplier^2 sigma_input^2 max(N, M))``; of an incomplete formula ``Omega(...)``."""
    if not f.terms:
        return "0 (exact)"
    groups = [_joined(_parameters(next(iter(found))), _maximum([str(x.power) for x in found])) for found in _groups(f)]
    return f"{'Theta' if f.complete else 'Omega'}({_maximum(groups)})"


def latex(f: Formula) -> str:
    """The same in LaTeX."""
    if not f.terms:
        return "0"
    groups = []
    for found in _groups(f):
        powers = [_latex_power(x.power) or "1" for x in found]
        inside = powers[0] if len(powers) == 1 else rf"\max({', '.join(powers)})"
        parameters = " ".join(_latex_symbol(u, -n) for u, n in found[0].unknowns)
        groups.append(" ".join(x for x in (parameters, inside) if x != "1") or "1")
    inside = groups[0] if len(groups) == 1 else rf"\max({', '.join(groups)})"
    order = r"\Theta" if f.complete else r"\Omega"
    return rf"{order}\left({inside}\right)"


def inequalities(f: Formula, term: Term) -> tuple[str, ...]:
    """Walls of the cone of rays on which a monomial leads among those with its parameters."""
    own = [term.form.power[axis] for axis in f.axes]
    walls = {direction([x - p[axis] for x, axis in zip(own, f.axes, strict=True)]): p for p in term.beside}
    cone = corners(spanning(f.axes), walls)
    needed = [w for w in walls if _rank([c for c in cone if not dot(w, c)]) >= len(f.axes) - 1]
    return tuple(_inequality(dict(zip(f.axes, w, strict=True))) for w in needed)


def divisors(f: Formula) -> list[str]:
    """``v_input_0 = max(eps_input, gW1@0)``."""
    lines = []
    for name, found in f.divisors.items():
        role = name.split("_", 1)[1].rsplit("_", 1)[0]
        parts = [f"eps_{role}"] * f.optimizer.epsilon + [*found]
        entries = f._entries(role)
        of = f" {entries}" if entries.terms else ""
        lines.append(f"{name} = {_maximum(parts)}{of}: what step {int(name.rsplit('_', 1)[1]) + 1} divides by")
    return lines


def notes_of(f: Formula) -> list[str]:
    """What the formula rests on, and what may be missing from it."""
    product = " ".join(f.axes)
    notes = ["K grows as M"] * ("M" in f.axes and "K" not in f.axes)
    notes += [f"{', '.join(sorted(f.fixed))} fixed"] * bool(f.fixed)
    notes += [f"{axis} grows: sums over it average the gates" for axis in f.averaged]
    notes += [f"it holds while {', '.join(f.assumes)} {'is' if len(f.assumes) == 1 else 'are'} O(1)"] * bool(f.assumes)
    if f.complete:
        notes.append("complete: no other monomial leads anywhere")
    else:
        notes.append(
            f"a lower bound: monomials may be missing; with the parameters shown they exceed it by at most "
            f"({product})^({f.slack})"
            if f.slack
            else "a lower bound: monomials may be missing"
        )
    return notes


def every_ray(found: EveryRay) -> Document:
    """One line per quantity, the largest monomials at every step; before them the cone on which this holds."""
    header = ("quantity", *(f"t={t}" for t in range(found.steps + 1)))
    grid = Grid.of(header, ((name, *(x.piece for x in row)) for name, row in found.sizes.items()))
    bounds = [piece for x in found.cone.inequalities for piece in (", ", typeset_formula(x))][1:] or ["every ray"]
    held = ("on all rays with K = M and: ", *bounds, "; " + str(found.structure))
    what = "sizes as powers of the axes; 0 is exactly zero"
    return Document((Heading(literal(found.about)), Lines.of(held, what), grid), found.as_json())


def largest(x: Largest) -> Piece:
    """``max(M^(-1/2), N_e N^-1)``."""
    if not x.decided or len(x.powers) < 2:
        return x.powers[0] if x.powers else ZERO if x.decided else "undecided"
    return Text(str(x), rf"$\max({', '.join(map(latex_power, x.powers))})$")


def _row(f: Formula, t: Term, where: bool) -> list[Piece | None]:
    shown = _joined(_parameters(t.form), str(t.form.power))
    said = ", ".join(dict.fromkeys(m.letter for m in t.mechanisms)) or ("outer product" if f.outer else "-")
    place = [literal(", ".join(f.leads(t)) or "everywhere")] if where else []
    return [Text(shown, f"${latex_term(t.form)}$"), literal(said), *place]


def latex_term(form: Form) -> str:
    parameters = " ".join(_latex_symbol(u, -n) for u, n in form.unknowns)
    return " ".join(x for x in (parameters, _latex_power(form.power)) if x) or "1"


def _groups(f: Formula) -> list[list[Form]]:
    """Monomials with the same parameters together."""
    return [list(found) for _, found in groupby((t.form for t in f.terms), key=lambda form: form.unknowns)]


def _maximum(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"max({', '.join(parts)})"


def _joined(parameters: str, rest: str) -> str:
    return " ".join(x for x in (parameters, rest) if x and x != "1") or "1"


def _parameters(form: Form) -> str:
    return " ".join(symbol(u) if n == -1 else f"{symbol(u)}^{-n}" for u, n in form.unknowns)


def _latex_symbol(unknown: str, count: int) -> str:
    letter, _, rest = symbol(unknown).partition("_")
    name = rf"{_GREEK[letter]}_{{\mathrm{{{rest.replace('_', ' ')}}}}}" if rest else r"\alpha"
    return name if count == 1 else f"{name}^{{{count}}}"


def _latex_power(power: Power) -> str:
    return latex_power(power) if power.terms else ""


def _inequality(wall: dict[str, int]) -> str:
    """``N_e M >= N`` for the wall M + N_e - N >= 0."""
    sides = [Power.of({axis: sign * n for axis, n in wall.items() if sign * n > 0}) for sign in (1, -1)]
    return f"{sides[0]} >= {sides[1]}"


def _rank(rows: list[tuple[int, ...]]) -> int:
    """The dimension that integer vectors span."""
    left, rank = [[Fraction(x) for x in row] for row in rows], 0
    while left:
        row = left.pop()
        pivot = next((k for k, x in enumerate(row) if x), None)
        if pivot is None:
            continue
        rank += 1
        left = [[x - other[pivot] / row[pivot] * y for x, y in zip(other, row, strict=True)] for other in left]
    return rank
