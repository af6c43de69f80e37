"""What explains an exponent, as data: leading monomials spelled out, sums on the way, reasons.

Read next: ``explanations.py`` (makes them), ``reasons.py`` (the sentence), ``presentation.py`` (what they say).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction

from scaling_algebra.documents import Rendered
from scaling_algebra.solver.derivation import Derivation
from scaling_algebra.spec.powers import Power

from .mechanisms import Mechanism
from .monomials import Choice, MatchedMonomial


@dataclass(frozen=True)
class Constant:
    """A deterministic factor of a monomial: what it is, as a power of the axes, and its exponent of n."""

    label: str
    power: Power
    exponent: Fraction


@dataclass(frozen=True)
class LeadingTerm:
    """One leading monomial, spelled out.

    Attributes:
        constants: deterministic factors, the std of every initial tensor included.
        monomial: the network and its matching.
        mechanisms: what the matching does.
    """

    constants: tuple[Constant, ...]
    monomial: MatchedMonomial
    mechanisms: tuple[Mechanism, ...]

    @property
    def exponent(self) -> Fraction:
        """Constants plus weight times dimension over the index classes: the reported exponent."""
        sums = (i.weight * i.rate for i in self.monomial.indices.values())
        return sum((c.exponent for c in self.constants), Fraction(0)) + sum(sums, Fraction(0))

    @property
    def arithmetic(self) -> str:
        """The sum as text: ``-1 (aggregation multiplier) + 1/2 (i: experts, CLT) = -1/2``."""
        times = Counter(c for c in self.constants if c.exponent)
        parts = [(c.exponent * k, c.label if k == 1 else f"{k} x {c.label}") for c, k in times.items()]
        for i in self.monomial.indices.values():
            if i.weight * i.rate:
                kind = "LLN" if i.weight == 1 else "CLT" if i.weight > 0 else "repeated"
                parts.append((i.weight * i.rate, f"{i.name}: {kind}"))
        text = " ".join(f"{'-' if e < 0 else '+'} {abs(e)} ({label})" for e, label in parts).removeprefix("+ ")
        return f"{text or '0'} = {self.exponent}"


@dataclass(frozen=True, repr=False)
class Explanation(Rendered):
    """The derivation of one exponent.

    Attributes:
        derivation: the parameterization in force.
        quantity, step, formula: what is explained.
        exponent: None for exactly zero.
        terms: leading monomials of equal exponent; for an update or a raw gradient its two vectors.
        outer: True in that second case: exponents of the terms and of ``constants`` add up.
        constants: factors in front of an outer product.
        leading: how many monomials lead; more than are shown in ``terms`` where many tie.
        note: why there is nothing to show, for exact zeros.
        reason: a sentence or two, read off the winning matching.
    """

    derivation: Derivation
    quantity: str
    step: int
    formula: str
    exponent: Fraction | None
    terms: tuple[LeadingTerm, ...] = ()
    outer: bool = False
    constants: tuple[Constant, ...] = ()
    leading: int = 0
    note: str = ""
    reason: str = ""

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The sums on the way to the first monomial, each once."""
        seen: dict[str, Choice] = {}
        for term in self.terms if self.outer else self.terms[:1]:
            for choice in term.monomial.choices:
                seen.setdefault(choice.name, choice)
        return tuple(seen.values())

    def total(self) -> Fraction:
        """The exponent as the shown arithmetic sums to it."""
        if self.outer:
            parts = [*(c.exponent for c in self.constants), *(t.exponent for t in self.terms)]
            return sum(parts, Fraction(0))
        return self.terms[0].exponent

    @property
    def about(self) -> str:
        return f"{self.quantity} after {self.step} update{'' if self.step == 1 else 's'}"


@dataclass(frozen=True, repr=False)
class SettingExplanation(Rendered):
    """The derivation of one parameter.

    Attributes:
        name: ``expert_out.lr``; ``value``: its power of the axes, None for zero init or no such setting.
        because: the desideratum in words.
        equation: the form that must be Theta(1), with the unknowns as symbols; empty where nothing was solved.
        behind: the quantity that binds, explained at the solution; None where nothing was solved.
        structure: structural choices that bear on it.
        reason: a sentence or two: what fixes it, read off the winning matching of the quantity behind it.
    """

    derivation: Derivation
    name: str
    value: Power | None
    because: str
    equation: str = ""
    behind: Explanation | None = None
    structure: tuple[str, ...] = ()
    reason: str = ""

    @property
    def about(self) -> str:
        return self.name


def behind(result: object) -> Explanation | None:
    """What is drawn of an explanation: the quantity itself, or the one behind a parameter."""
    if isinstance(result, SettingExplanation):
        return result.behind
    return result if isinstance(result, Explanation) else None
