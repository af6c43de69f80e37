"""Names the mechanisms of a monomial, that is, why each of its sums is coherent or random: A to D for sums over
experts; rank-one alignment, Gram or plain CLT for single linear maps.

Mechanisms are determined only from which factors of the monomial are matched (``Pair``); the name of the quantity
plays no role.
Source: MSSP paper, App. I.7 (A to D) and App. I.2 (single maps).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from scaling_algebra.spec.glossary import MECHANISMS
from scaling_algebra.spec.networks.indices import EXPERTS

from .monomials import MatchedMonomial, Pair

TITLES = {letter: said["title"] for letter, said in MECHANISMS.items()}
"""The title of each mechanism, keyed as in the MSSP paper, App. I.7."""


@dataclass(frozen=True)
class Mechanism:
    """A mechanism that determines the size of a monomial.

    Attributes:
        `letter`: its symbol in the MSSP paper (A to D), or its name.
        title: its title.
        evidence: in words, the indices or factors of the monomial from which the mechanism follows.
    """

    letter: str
    evidence: str

    @property
    def title(self) -> str:
        return TITLES[self.letter]

    def __str__(self) -> str:
        return f"{self.letter}: {self.title}; {self.evidence}"


def mechanisms(m: MatchedMonomial) -> list[Mechanism]:
    """Returns every mechanism of a monomial: one for each summed expert index, then those of single linear maps.

    Two factors are matched if they are the same random tensor with equal indices, so that their product does not
    average out.

    Law: a sum over an expert index is random if an unmatched factor has this index (A). Any other sum over experts is
    coherent, for one of four reasons: nothing in it depends on the expert (shared); a tensor of the expert, matched
    with itself, passes a vector on (B); or such pairs contract to a scalar, in the inner product of an update with its
    input (C) or elsewhere (D).
    """
    at_work = [_across_experts(m, c) for c, index in m.indices.items() if index.axis in EXPERTS and index.weight > 0]
    for what, classes in inner_products(m):
        sums = [m.indices[c] for c in classes if m.indices[c].rate]
        if sums and all(i.weight == 1 for i in sums):
            at_work.append(Mechanism("rank-1", f"{what}: {', '.join(i.name for i in sums)} coherent"))
    for pair in m.pairs:
        left = m.factors[pair.left]
        experts = [i for c in left.classes if (i := m.indices[c]).axis in EXPERTS]
        if not pair.where and all(not i.weight for i in experts):
            at_work.append(Mechanism("Gram", f"{_show(m, pair)} is in no inner product of an update with its input"))
    if not at_work:
        evidence = (
            "the matched factors share only indices that do not grow" if m.pairs else "no two factors are matched"
        )
        at_work.append(Mechanism("CLT", evidence))
    return list(dict.fromkeys(at_work))


def inner_products(m: MatchedMonomial) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields each inner product of a rank-one update with the signal or gradient on which it acts.

    Yields:
        A sentence, such as ``the update of expert_in meets its own input again``, and the summed indices, by the
        numbers that they have in ``m.indices``.
    """
    for inner in m.inner:
        side = "input" if inner.where == "forward" else "gradient"
        yield f"the update of {inner.tensor} meets its own {side} again", inner.classes


def _across_experts(m: MatchedMonomial, c: int) -> Mechanism:
    """Determines why the sum over one expert index is coherent or random. ``c`` is the number of the index in
    ``m.indices``.
    """
    index = m.indices[c]
    inside = [p for p in m.pairs if c in m.factors[p.left].classes]
    if index.weight == Fraction(1, 2):
        names = ", ".join(_name(m, k) for k in index.touched)
        return Mechanism("A", f"sum over {index.name} is random: touched by unmatched {names}")
    if not inside:
        return Mechanism("shared", f"no factor depends on {index.name}")
    passing = [p for p in inside if any(m.indices[d].weight < 1 for d in m.factors[p.left].classes if d != c)]
    if passing:
        return Mechanism("B", f"{_show(m, passing[0])} passes a vector on and does not touch {index.name}")
    letter = "C" if any(p.where == "forward" for p in inside) else "D"
    first = next((p for p in inside if p.where == "forward"), inside[0])
    return Mechanism(letter, f"{_show(m, first)} contracts to a scalar and does not touch {index.name}")


def _show(m: MatchedMonomial, pair: Pair) -> str:
    return f"matched pair of {_name(m, pair.left)}"


def _name(m: MatchedMonomial, k: int) -> str:
    return f"{m.factors[k].tensor}[{','.join(m.names(k))}]"
