"""The document of a formula: the maximum, its monomials with mechanism and region, and its assumptions."""

from __future__ import annotations

from scaling_algebra.documents import document_of
from scaling_algebra.documents.blocks import Block, Document, Grid, Heading, Lines, Piece, Text, literal
from scaling_algebra.documents.notation import formula as in_formulas
from scaling_algebra.documents.notation import tex
from scaling_algebra.spec.powers import name_symbol

from .formula import Formula, FormulaTerm
from .notation import maximum, monomial


@document_of.register(Formula)
def formula(f: Formula) -> Document:
    """Makes the document of a formula: the maximum, and the rays on which each of its monomials leads."""
    name = f"{f.quantity}@{f.step}"
    head = Text(f"{name} = {f.text()}", f"{literal(name)} $= {tex(f.text())}$")
    blocks: list[Block] = [Heading(literal(f.about), 2), Lines.of((head,))]
    if f.terms:
        blocks.append(Grid.of(("monomial", "mechanisms", "leads where"), [_row(f, t) for t in f.terms]))
    notes: list[Piece] = [*map(literal, _divisors(f)), *map(literal, _notes(f))]
    blocks.append(Lines.of(*notes, listed=True))
    return Document(tuple(blocks), record(f))


def record(f: Formula) -> dict[str, object]:
    """Returns the JSON record of a formula."""
    terms = [
        {
            "axes": t.form.power,
            "parameters": {name_symbol(u): -n for u, n in t.form.unknowns},
            "mechanisms": t.mechanisms,
            "leads": f.leads(t),
        }
        for t in f.terms
    ]
    return {
        "network": f.of.network.name,
        "optimizer": f.of.optimizer.name,
        "epsilon": f.of.optimizer.regime,
        "structure": f.of.structure,
        "quantity": f.quantity,
        "step": f.step,
        "complete": f.complete,
        "slack": f.slack,
        "terms": terms,
        "divisors": f.divisors,
        "assumes": f.assumes,
        "grow": f.averaged,
        "fixed": sorted(f.of.fixed),
    }


def _divisors(f: Formula) -> list[str]:
    """Lists each divisor of a formula as a maximum of its sizes: ``v_input_0 = max(eps_input, gW1@0)``."""
    lines = []
    for name, gradients in f.divisors.items():
        role = name.split("_", 1)[1].rsplit("_", 1)[0]
        parts = [f"eps_{role}", *gradients] if f.of.optimizer.epsilon else gradients
        entries = f.entries(role)
        of = f" {entries}" if entries.terms else ""
        lines.append(f"{name} = {maximum(parts)}{of}: what step {int(name.rsplit('_', 1)[1]) + 1} divides by")
    return lines


def _notes(f: Formula) -> list[str]:
    """Lists the assumptions of a formula, and says whether a monomial may be missing."""
    product = " ".join(f.of.axes)
    notes = ["K grows as M"] if "M" in f.of.axes else []
    notes += [f"{', '.join(sorted(f.of.fixed))} fixed"] if f.of.fixed else []
    notes += [f"{axis} grows: sums over it average the gates" for axis in f.averaged]
    be = "is" if len(f.assumes) == 1 else "are"
    notes += [f"it holds while {', '.join(f.assumes)} {be} O(1)"] if f.assumes else []
    if f.complete:
        notes.append("complete: on every ray one of these monomials is the largest")
    else:
        notes.append(
            f"a lower bound: monomials may be missing; with the parameters shown they exceed it by at most "
            f"({product})^({f.slack})"
            if f.slack
            else "this is a lower bound: monomials may be missing"
        )
    return notes


def _row(f: Formula, t: FormulaTerm) -> list[Piece | None]:
    letters = ", ".join(dict.fromkeys(m.letter for m in t.mechanisms)) or ("outer product" if f.outer else "-")
    return [in_formulas(monomial(t.form)), literal(letters), literal(", ".join(f.leads(t)) or "everywhere")]
