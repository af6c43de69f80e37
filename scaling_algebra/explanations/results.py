"""Explanations as data: the largest monomials, the sums on the way to them, and the reason in two sentences.

The reason follows from which factors of the largest monomial are matched (``monomials.Pair``). It does not depend on
the name of the quantity.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import prod

from scaling_algebra.documents import Rendered
from scaling_algebra.solver.derivation import Derivation
from scaling_algebra.spec.networks.indices import EXPERTS
from scaling_algebra.spec.powers import Power, format_exponent

from .mechanisms import Mechanism, inner_products
from .monomials import Choice, MatchedMonomial


@dataclass(frozen=True)
class Constant:
    """A scalar factor of a monomial that is not random, such as a learning rate or the std of an initial tensor.

    Attributes:
        label: its description.
        power: its size as a power of the axes.
        exponent: its exponent of n.
    """

    label: str
    power: Power
    exponent: Fraction


@dataclass(frozen=True)
class LeadingTerm:
    """One of the largest monomials of a quantity, spelled out.

    Attributes:
        constants: deterministic factors, including the std of every initial tensor.
        monomial: the product of initial tensors, and which of them are paired because they are copies of one random
            tensor.
        mechanisms: why each of its sums is coherent or random.
    """

    constants: tuple[Constant, ...]
    monomial: MatchedMonomial
    mechanisms: tuple[Mechanism, ...]

    @property
    def exponent(self) -> Fraction:
        """The exponent of n in the size of the monomial."""
        return self.monomial.exponent

    @property
    def added(self) -> Power:
        """The factor that the sums over indices contribute, as a power of the axes."""
        return prod((i.gives for i in self.monomial.indices.values() if i.rate), start=Power())

    @property
    def power(self) -> Power:
        """The size of the monomial as a power of the axes."""
        return prod((c.power for c in self.constants), start=self.added)

    @property
    def arithmetic(self) -> str:
        """The sum of exponents as text: ``- 1 (aggregation multiplier) + 1/2 (i: CLT) = -1/2``."""
        return self.write_sum()

    def write_sum(self, math: str = "") -> str:
        """Writes the sum of exponents, with ``math`` as the delimiter of formulas."""
        times = Counter(c for c in self.constants if c.exponent)
        parts = [(c.exponent * k, c.label if k == 1 else f"{k} x {c.label}") for c, k in times.items()]
        for i in self.monomial.indices.values():
            if i.weight * i.rate:
                kind = "LLN" if i.weight == 1 else "CLT" if i.weight > 0 else "repeated"
                parts.append((i.weight * i.rate, f"{math}{i.name}{math}: {kind}"))
        signs = ("-" if e < 0 else "+" * (k > 0) for k, (e, _) in enumerate(parts))
        terms = [f"{math}{f'{s} {abs(e)}'.strip()}{math} ({of})" for s, (e, of) in zip(signs, parts, strict=True)]
        return " ".join([*terms, f"{math}= {self.exponent}{math}"]) if terms else f"{math}0 = {self.exponent}{math}"


@dataclass(frozen=True, repr=False)
class Explanation(Rendered):
    """An explanation of why a quantity has its exponent.

    Attributes:
        derivation: the parameterization.
        quantity: the quantity that is explained.
        step: the number of updates.
        formula: the definition of the quantity.
        exponent: its exponent; None if it is exactly zero.
        terms: the largest monomials; for an update or a raw gradient u v^T, that of u and that of v.
        outer: whether the quantity is an outer product (an update or a raw gradient); its exponent is then the sum of
            those of ``terms`` and ``constants``.
        constants: scalar factors of an outer product.
        leading: how many monomials are equally large and larger than all others; ``terms`` may have only some of them.
        note: if there are no terms, the reason: the quantity is zero, or its size could not be certified while all
            tensors train.
        assumes: names (in ``ASSUMPTIONS``) of the assumptions beyond power counting on which the exponent depends.
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
    assumes: frozenset[str] = frozenset()

    @cached_property
    def reason(self) -> str:
        """Two sentences on why the quantity has its size."""
        if self.exponent is None:
            return f"It is exactly zero: {self.note}."
        total = f"n^{format_exponent(self.exponent)}"
        if not self.terms:
            return f"It is {total}: {self.note}."
        if self.outer:
            sizes = " and ".join(str(term.power) for term in self.terms)
            factors = f", times {_factors(self.constants)}" if self.constants else ""
            return f"Every entry is a product of two entries, of size {sizes}{factors}: {total}."
        term = self.terms[0]
        others = "" if self.leading == 1 else f" {self.leading - 1} more of the same size: see below."
        carries = _factors(term.constants)
        result = f"It carries {carries}, so {self.quantity} ~ {total}."
        if term.added.terms:
            result = f"Together the sums give {term.added}; it carries {carries}; so {self.quantity} ~ {term.power}"
            result += f", {total} here."
        return f"{_sums(term.monomial)}. {result}{others}"

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The sums of signals through which the first monomial of ``terms`` is computed, each with the summand from
        which the monomial comes. For an outer product, the sums for both vectors.
        """
        seen: dict[str, Choice] = {}
        for term in self.terms if self.outer else self.terms[:1]:
            for choice in term.monomial.choices:
                seen.setdefault(choice.name, choice)
        return tuple(seen.values())

    @property
    def summands(self) -> list[tuple[Fraction, str]]:
        """For an outer product, the exponents whose sum is its exponent, each with the name of its factor or vector."""
        vectors = [(term.exponent, f"vector {k}") for k, term in enumerate(self.terms, 1)]
        return [(c.exponent, c.label) for c in self.constants] + vectors

    def total(self) -> Fraction:
        """Computes the exponent as the sum that ``arithmetic`` shows."""
        return sum((e for e, _ in self.summands), Fraction(0)) if self.outer else self.terms[0].exponent

    @property
    def arithmetic(self) -> str:
        """The sum of exponents as text: ``- 1 (aggregation multiplier) + 1/2 (i: CLT) = -1/2``."""
        if not self.outer:
            return self.terms[0].arithmetic
        return f"{' + '.join(f'{e} ({label})' for e, label in self.summands)} = {self.total()}"

    @property
    def about(self) -> str:
        return f"{self.quantity} after {self.step} update{'' if self.step == 1 else 's'}"


@dataclass(frozen=True, repr=False)
class SettingExplanation(Rendered):
    """An explanation of what determines a parameter of a tensor, such as its learning rate.

    Attributes:
        derivation: the parameterization.
        name: the parameter, such as ``expert_out.lr``.
        value: its power of the axes; None for zero init, or if the tensor has no such parameter.
        because: the desideratum in words.
        equation: the product of sizes that must be Theta(1), with the parameters as symbols; empty if nothing was
            solved.
        behind: the explanation of the quantity that determines the parameter; None if nothing was solved.
        structure: interventions (tied or zero tensors) that affect it.
        multiplied: the power of the axes by which the module multiplies the tensor.
        own: the parameter's power for the tensor itself; all other attributes are about the tensor times
            ``multiplied``.
    """

    derivation: Derivation
    name: str
    value: Power | None
    because: str
    equation: str = ""
    behind: Explanation | None = None
    structure: tuple[str, ...] = ()
    multiplied: Power | None = None
    own: Power | None = None

    @property
    def about(self) -> str:
        return self.name

    @cached_property
    def reason(self) -> str:
        """The reason in words: the size that the quantity has without the parameter's factor, and the value of the
        parameter with which it is Theta(1).
        """
        role, _, what = self.name.rpartition(".") if "." in self.name else (self.name, "", "")
        because = _capital(self.because)
        if self.value is None and self.behind is None:
            return f"{self.because}."
        if self.behind is None or self.value is None or not self.behind.terms:
            return f"{because}."
        behind = self.behind.reason
        if self.behind.outer or what == "eps":
            return f"Epsilon has the size of the gradient, {self.value}: {behind[0].lower()}{behind[1:]}"
        summed, label = role == "aggregation", f"{'std' if what == 'init' else what} of {role}"
        wanted, label = ("the aggregation multiplier", "aggregation multiplier") if summed else (self.name, label)
        term = self.behind.terms[0]
        others = [c for c in term.constants if c.label != label]
        times = len(term.constants) - len(others)
        if not times:
            return f"{because}. {behind}"
        rest = term.power / self.value**times
        without = f" {rest}" if rest.terms else ""
        same = "" if rest == 1 / self.value**times else " (the same power of n here)"
        unknown = wanted if times == 1 else f"{wanted}^{times}"
        return (
            f"{_sums(term.monomial)}. Besides {wanted} it carries {_factors(others)}; so {self.behind.quantity} ~ "
            f"{unknown}{without}, and Theta(1) needs {wanted} = {self.value}{same}."
        )


# sentences ---------------------------------------------------------------------------------------------------------


def _sums(m: MatchedMonomial) -> str:
    """Describes every sum of a monomial over a growing index, with the reason why it is coherent or random."""
    left = {c: i for c, i in m.indices.items() if i.weight > 0 and i.rate}
    phrases: list[str] = []

    def coherent(what: str, classes: Iterable[int]) -> None:
        sums = [c for c in classes if c in left and left[c].weight == 1]
        if sums:
            many = "a coherent sum" if len(sums) == 1 else "coherent sums"
            phrases.append(f"{what}, {many} over {_and(left[c].text for c in sums)}")
        for c in sums:
            left.pop(c, None)

    for what, classes in inner_products(m):
        coherent(what, classes)
    for pair in m.pairs:
        factor = m.factors[pair.left]
        narrow = [c for c in factor.classes if m.indices[c].axis not in EXPERTS]
        coherent(f"{factor.tensor} meets its own transpose", narrow)
    for c, index in list(left.items()):
        if index.weight == 1:
            coherent("all experts push the same way" if index.axis in EXPERTS else "no random factor remains", [c])
        else:
            names = dict.fromkeys(m.factors[k].tensor for k in index.touched)
            stay = "stays" if len(names) == 1 else "stay"
            phrases.append(f"{_and(names)} {stay} random over {index.text}, a random sum of size {index.gives}")
    if not phrases:
        return "No growing index is summed"
    text = "; ".join(p if k == 1 else f"{p} ({k} times)" for p, k in Counter(phrases).items())
    return text if text.partition(" ")[0] in {f.tensor for f in m.factors} else _capital(text)


def _factors(constants: Iterable[Constant]) -> str:
    """Lists the factors that are not of size 1, each with its power: ``lr of expert_in N_e M N^-1, ...``."""
    times = Counter(c for c in constants if c.power.terms)
    parts = [
        f"{c.label} {c.power}" + (" twice" if k == 2 else f" {k} times" if k > 2 else "") for c, k in times.items()
    ]
    return ", ".join(parts) or "factors of size 1 only"


def _and(names: Iterable[str]) -> str:
    """Joins names by commas and a final "and"."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _capital(text: str) -> str:
    """Capitalises the first character."""
    return text[:1].upper() + text[1:]
