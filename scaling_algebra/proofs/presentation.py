"""Renders a proof as a document: the verdict and the desiderata behind it."""

from __future__ import annotations

from scaling_algebra.documents import document_of
from scaling_algebra.documents.blocks import Block, Document, Heading, Lines, Piece, Text, literal
from scaling_algebra.documents.notation import typeset
from scaling_algebra.spec.desiderata import NONE

from .prover import Outcome, Proof, Uniqueness

VERDICTS = {
    Uniqueness.UNIQUE: "exactly one parameterization; every other choice breaks one of",
    Uniqueness.IMPOSSIBLE: "no parameterization; these contradict each other",
    Uniqueness.SEVERAL: "more than one parameterization",
    Uniqueness.UNDECIDED: "undecided",
}


@document_of.register(Proof)
def proof(p: Proof) -> Document:
    """Renders a proof: for each structure the statement that was proved, and the desiderata that prove it."""
    within = typeset(f"(O(1) at t = 0 .. {p.steps[0]}, Theta(1) by t = {p.steps[1]})")
    verdict = Text(f"proof: {p.verdict} {within.plain}", f"proof: {p.verdict} {within.rich}")
    blocks: list[Block] = [Heading(verdict, 2), Lines.of(literal(p.about), listed=True)]
    if (left := p.open_later) is not None:
        holds = "not proved for every desideratum" if left else "every desideratum holds"
        blocks.append(Lines.of(f"after any number of updates: {holds}", *map(typeset, left), listed=True))
    for a in p.attempts:
        blocks += _attempt(p, a)
    return Document(tuple(blocks), {**p.configuration.as_json(), "unique": p.unique, "proof": p.as_json()})


def render_proved(p: Proof, above: Document | None) -> Document:
    """Renders a derivation with its proof below it, or the proof alone if nothing was derived."""
    below = proof(p)
    if above is None:
        return below
    doubt = (
        [Lines.of("the numbers above do not meet the desiderata, or are not the only ones that do")]
        if p.unique is False
        else []
    )
    blocks = (*above.blocks, below.blocks[0], *doubt, *below.blocks[1:])
    return Document(blocks, {**above.record, **below.record})


def _attempt(p: Proof, a: Outcome) -> list[Block]:
    lines: list[Piece] = [*map(typeset, a.core), *(literal(f"found: {point}") for point in p.show_points(a))]
    why = f": {a.why}" if a.why else ""
    structure = "with no tensor tied or zero" if str(a.structure) == NONE else a.structure
    head = Heading(typeset(f"{structure}: {VERDICTS[a.verdict]}{why}"), 3)
    return [head, Lines.of(*lines, listed=True)] if lines else [head]
