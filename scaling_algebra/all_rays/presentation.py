"""What theorems say: each with its verdict, and what it rests on.

Read next: ``documents`` (how that is printed).
"""

from __future__ import annotations

from scaling_algebra.documents import document_of
from scaling_algebra.documents.blocks import Block, Document, Grid, Heading, Lines, Piece
from scaling_algebra.documents.notation import typeset
from scaling_algebra.solver.presentation import powers

from .theorems import Theorem, Theorems, said

VERDICTS = {"proved": "proved", "refuted": "REFUTED", "undecided": "UNDECIDED"}


@document_of.register(Theorems)
def theorems(found: Theorems) -> Document:
    """The assumptions, and one heading for each theorem."""
    blocks: list[Block] = [Heading(typeset(f"theorems: {found.about}"))]
    if found.why:
        blocks.append(Lines.of(typeset(f"UNDECIDED: {found.why}"), listed=True))
        return Document(tuple(blocks), found.as_json())
    blocks.append(Lines.of(*map(typeset, found.reading()), listed=True))
    for x in found.items:
        blocks += _theorem(x, found)
    return Document(tuple(blocks), found.as_json())


def _theorem(x: Theorem, found: Theorems) -> list[Block]:
    head = Heading(typeset(f"{x.claim.name}: {VERDICTS[x.decision.verdict]}"), 2)
    lines: list[Piece] = [typeset(said(x.claim, found.whole))]
    lines += [typeset(x.decision.why)] if x.decision.why else []
    if x.decision.clauses:
        lines.append(f"one unsatisfiable system of {len(x.decision.clauses)} clauses")
    blocks: list[Block] = [head, Lines.of(*lines, listed=True)]
    if x.claim.scaling is not None and " exists" in x.claim.name:
        scaling, eps = x.claim.scaling, found.whole.optimizer.epsilon
        header = ("tensor", "init std", "lr", *("eps",) * eps)
        blocks.append(Grid.of(header, (row[: len(header)] for row in powers(scaling))))
        blocks += [Lines.of((f"{name}: ", 1 / power)) for name, power in scaling.multipliers.items()]
    if x.decision.core:
        blocks += [Lines.of("from:"), Lines.of(*map(typeset, x.decision.core), listed=True)]
    return blocks
