"""What a proof says: verdict, the desiderata behind it, and what each of them determines.

Read next: ``documents`` (how that is printed).
"""

from __future__ import annotations

from collections.abc import Mapping

from scaling_algebra.documents import document_of
from scaling_algebra.documents.blocks import Block, Document, Grid, Heading, Lines, Piece, Text, literal
from scaling_algebra.documents.notation import typeset
from scaling_algebra.solver.derivation import Derivation

from .prover import Outcome, Proof

Freed = Mapping[str, tuple[str, ...] | None]
"""The unknowns that each desideratum determines, as ``necessity.freed`` finds them."""
VERDICTS = {
    "unique": "exactly one parameterization with these interventions; every other point breaks one of",
    "impossible": "no parameterization; these contradict each other",
    "several": "more than one parameterization",
    "undecided": "undecided",
}


@document_of.register(Proof)
def proof(p: Proof, freed: Freed | None = None) -> Document:
    """What was proved, from which desiderata, and what each of them determines."""
    within = typeset(f"(O(1) at t = 0 .. {p.steps[0]}, Theta(1) by t = {p.steps[1]})")
    verdict = Text(f"proof: {p.outcome.verdict} {within.plain}", f"proof: {p.outcome.verdict} {within.rich}")
    blocks: list[Block] = [Heading(verdict, 2), Lines.of(literal(p.about), listed=True)]
    if p.later is not None:
        holds = "every demand holds" if p.later.holds else "not shown for every demand"
        blocks.append(Lines.of(f"after any number of updates: {holds}", *map(typeset, p.later.open), listed=True))
    for a in p.attempts:
        blocks += _attempt(p, a)
    if freed:
        rows = [(typeset(name), _freed(names)) for name, names in freed.items()]
        blocks += [Heading("dropping one desideratum", 2), Grid.of(("desideratum", "without it"), rows)]
    drops = {} if freed is None else {"freed": {k: v if v is None else list(v) for k, v in freed.items()}}
    head = {**p.configuration.as_json(), "unique": p.unique}
    return Document(tuple(blocks), {**head, "proof": {**p.as_json(), **drops}})


def proved(p: Proof, derived: Derivation | None, freed: Freed | None = None) -> Document:
    """A derivation with its proof below it; the proof alone where nothing was derived."""
    below = proof(p, freed)
    if derived is None:
        return below
    above = derived.document()
    doubt = [Lines.of("the numbers above do not meet the desiderata, or not they alone")] if p.unique is False else []
    blocks = (*above.blocks, below.blocks[0], *doubt, *below.blocks[1:])
    return Document(blocks, {**above.record, **below.record})


def _attempt(p: Proof, a: Outcome) -> list[Block]:
    lines: list[Piece] = [*map(typeset, a.core), *(literal(f"found: {point}") for point in p.shown(a))]
    why = f": {a.why}" if a.why else ""
    head = Heading(typeset(f"{a.structure}: {VERDICTS[a.verdict]}{why}"), 3)
    return [head, Lines.of(*lines, listed=True)] if lines else [head]


def _freed(names: tuple[str, ...] | None) -> str:
    return "undecided" if names is None else f"frees {', '.join(names)}" if names else "frees nothing"
