"""What a derivation and a table of signals say. Read next: ``documents`` (how that is printed)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scaling_algebra.documents import document_of
from scaling_algebra.documents.blocks import (
    ZERO,
    Block,
    Document,
    Grid,
    Heading,
    Lines,
    Marked,
    Piece,
    Size,
    literal,
)
from scaling_algebra.documents.notation import formula, typeset
from scaling_algebra.dynamics.answers import Answer
from scaling_algebra.spec.assumptions import listed
from scaling_algebra.spec.gauges import GAUGES, OWN
from scaling_algebra.spec.scaling import Scaling

from .demands import HORIZON
from .derivation import Derivation, Signals


@document_of.register(Derivation)
def derivation(d: Derivation) -> Document:
    """Powers of every tensor, with the reason for every number."""
    blocks: list[Block] = [Heading(literal(d.about))]
    if d.network.free_multipliers:
        summed = {m for s in d.network.aggregations for m in s.multipliers}
        blocks += [
            Lines.of((
                f"{'aggregation multiplier' if name in summed else f'multiplier {name}'}: ",
                1 / power, "   (", typeset(d.reasons["aggregation", name]), ")",
            ))
            for name, power in d.scaling.multipliers.items()
        ]  # fmt: skip
    if d.gauge == OWN:
        blocks.append(Grid.of(("tensor", "b", "c", "d", "init std", "lr", "eps", "tied"), _rows(d)))
    else:
        blocks.append(Lines.of(typeset(f"gauge {d.gauge}: {GAUGES[d.gauge].about}")))
        header = ("tensor", "a", "b", "c", "d", "multiplier", "init std", "lr", "eps", "tied")
        blocks.append(Grid.of(header, _gauged(d)))
    if d.configuration.given and d.configuration.parameterization.derived:
        unmet = Heading("does not hold with what is given", 2), Lines.of(*map(typeset, d.unmet), listed=True)
        blocks += unmet if d.unmet else [Lines.of("every desideratum holds with what is given")]
    reasons = [(role, what, typeset(why)) for (role, what), why in d.reasons.items() if role != "aggregation"]
    blocks += [Heading("why", 2), Grid.of(("tensor", "what", "because"), reasons)]
    if d.structure:
        blocks += [Heading("structure", 2), Lines.of(*map(typeset, d.structure), listed=True)]
    notes: list[Sequence[Piece]] = []
    if d.cone is not None:
        bounds = [piece for x in d.cone.inequalities for piece in (", ", formula(x))][1:]
        until = f" (proved for t = 0 .. {HORIZON})"
        notes.append(("the same formula for all rays with K = M and: ", *bounds, until))
    notes += [(typeset(note),) for note in dict.fromkeys(rule.note for rule in d.optimizer.rules) if note]
    if d.assumes:
        notes.append((f"assumes {listed(d.assumes)}",))
    if notes:
        blocks += [Heading("notes", 2), Lines.of(*notes, listed=True)]
    return Document(tuple(blocks), d.as_json())


def _rows(d: Derivation) -> Iterator[tuple[Piece | None, ...]]:
    for role, std, lr, eps, *_ in powers(d.scaling, marked=False):
        b, c, e = d.exponents(str(role))
        yield role, "zero" if b is None else b, c, e, std, lr, eps, "tied" if role in d.scaling.tied else ""


def _gauged(d: Derivation) -> Iterator[tuple[Piece | None, ...]]:
    for (role, b, c, e, *_, tied), t in zip(_rows(d), d.tensors.values(), strict=True):
        std = ZERO if t.init_std is None else t.init_std
        yield role, -t.multiplier.on(d.ray), b, c, e, t.multiplier, std, t.lr, t.eps, tied


def powers(s: Scaling, marked: bool = True) -> Iterator[tuple[str, Piece, Piece, Piece | None]]:
    """Role, init std, learning rate and epsilon of every tensor; a tied init std is marked on request."""
    for role, t in s.tensors.items():
        std: Piece = ZERO if t.init_std is None else t.init_std
        if marked and t.init_std is not None and role in s.tied:
            std = Marked(t.init_std, "tied")
        yield role, std, "frozen" if t.lr is None else t.lr, None if t.lr is None else t.eps


@document_of.register(Signals)
def signals(s: Signals) -> Document:
    """Exponents of n, one line per quantity."""
    header = ("quantity", *(f"t={t}" for t in range(s.steps + 1)))
    grid = Grid.of(header, ((name, *map(_size, row)) for name, row in s.quantities.items()))
    blocks: list[Block] = [Heading(literal(s.about)), Lines.of("sizes as powers of n; 0 is exactly zero"), grid]
    if s.assumes:
        blocks.append(Lines.of(f"assumes {listed(s.assumes)}"))
    reasons = dict.fromkeys(a.why for row in s.quantities.values() for a in row if not a.decided and a.why)
    if reasons:
        blocks += [Heading("undecided", 2), Lines.of(*map(typeset, reasons), listed=True)]
    return Document(tuple(blocks), s.as_json())


def _size(a: Answer) -> Piece:
    if a.decided:
        return Size(a.exponent)
    return "undecided" if a.low is None or a.high is None else f"undecided, n^({a.low}) to n^({a.high})"
