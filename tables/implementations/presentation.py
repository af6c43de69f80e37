"""What a comparison of shipped rules says. Read next: ``comparison.py`` (what is compared)."""

from __future__ import annotations

from scaling_algebra.documents import document_of
from scaling_algebra.documents.blocks import Block, Code, Document, Grid, Heading, Lines, Piece, literal
from scaling_algebra.documents.notation import typeset

from .comparison import Held, Implementations, text
from .reading import SourcePlace

DIFFERS = ("implementation", "regime", "epsilon", "quantity", "rule", "derived")


@document_of.register(Implementations)
def implementations(found: Implementations) -> Document:
    """An overview, every power that differs, and of every rule its source, assumptions and what fails."""
    blocks: list[Block] = [Heading("shipped rules against the derivation")]
    header = ("implementation", "regime", "covered", "epsilon", "compared with", "equal", "desiderata")
    blocks.append(Grid.of(header, [_line(h) for h in found.held]))
    rows = [
        (literal(h.rule.label), h.regime, h.epsilon, literal(c.name), literal(text(c.rule)), literal(text(c.derived)))
        for h in found.held
        for c in h.differing
    ]
    blocks += [Heading("what differs", 2), Grid.of(DIFFERS, rows)]
    for name in dict.fromkeys(h.rule.name for h in found.held):
        blocks += _about([h for h in found.held if h.rule.name == name])
    return Document(tuple(blocks), {"implementations": [h.as_json() for h in found.held]}, "scalecalc audit")


def _line(h: Held) -> tuple[Piece, ...]:
    equal = f"{len(h.cells) - len(h.differing)} of {len(h.cells)}"
    said = {"holds": "all hold", "fails": f"{len(h.failures)} fail", "undecided": f"{len(h.undecided)} undecided"}
    covered = "yes" if h.covered else "no"
    return literal(h.rule.label), h.regime, covered, h.epsilon, h.rule.parameterization, equal, said[h.verdict]


def _about(held: list[Held]) -> list[Block]:
    first = held[0].rule
    lines: list[tuple[Piece, ...]] = [("repository ", Code(first.repository), f", read {first.read}")]
    lines += [_place(p) for p in first.places]
    lines += [("assumed: ", literal(a)) for a in first.assumes]
    blocks: list[Block] = [Heading(literal(first.title), 2), Lines.of(*lines, listed=True)]
    for h in held:
        if h.failures or h.undecided:
            where = f"{h.rule.label}, regime {h.regime}, epsilon {h.epsilon}"
            blocks += [Heading(literal(where), 3), Lines.of(*map(typeset, h.failures + h.undecided), listed=True)]
    return blocks


def _place(p: SourcePlace) -> tuple[Piece, ...]:
    commit = f" at {p.commit[:12]}" if p.commit else ""
    return Code(p.file), literal(f"{commit}: {p.says}")
