"""Signals in normal order: random tensors as maps from kernels to packed exponents (``packing.py``), on one ray.

What pruning drops is bounded by ``Signal.tail``.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, NamedTuple, TypeAlias


class Scalar(NamedTuple):
    """A deterministic factor: what it is called, its packed size, and whether that size is certified."""

    label: str
    size: int
    certain: bool = True


class EntrySize(NamedTuple):
    """The packed size of the entries of an outer product, None if it is exactly zero, and whether it is certified."""

    packed: int | None
    certain: bool = True


Rule: TypeAlias = Literal[
    "tensor", "constant", "product", "sum", "scaled", "centred", "restricted", "relabelled", "doubted"
]


class Made:
    """The making of a signal, for walking back (``monomials.py``); no computation reads it.

    Attributes:
        rule: the operation. ``parts`` are its operands, ``scalars`` the factors of ``scaled``.
        tag: what kind of product it is, e.g. ``forward ROLE``: the inner product of a rank-one update with its input.
    """

    __slots__ = ("parts", "rule", "scalars", "tag")

    def __init__(
        self, rule: Rule, parts: tuple[Signal, ...] = (), scalars: tuple[Scalar, ...] = (), tag: str = ""
    ) -> None:
        self.rule, self.parts, self.scalars, self.tag = rule, parts, scalars, tag


@dataclass(frozen=True, slots=True)
class Rung:
    """The precision with which signals are kept: one rung of a ladder that is climbed until an answer is certified.

    Attributes:
        gap: kernels this far below the leading one are dropped, in powers of the axis that grows fastest.
        most: a signal keeps at most so many kernels, the largest, and among equals those with the fewest leaves.
        leaves: kernels with more leaves than this are dropped.
        work: nodes of matching searches that one product of two signals may take.
        total: nodes of all products that one question may need.
        whole: nothing is dropped, whatever the gap; a product that takes more work raises ``Exhausted``.
        doubts: a signal keeps at most so many kernels that may cancel others.
        numbers: of an inner product that a norm takes away before training the size alone is kept
            (``projections.numbered``).
    """

    gap: Fraction
    most: int | None = None
    leaves: int | None = None
    work: int | None = None
    total: int | None = None
    whole: bool = False
    doubts: int = 24
    numbers: bool = False


class Signal:
    """A random tensor as kernels with exponents.

    Attributes:
        letters: name of each open index, e.g. ``"ik"``; the axis of each letter is fixed by the algebra.
        terms: kernel id -> packed exponent of its coefficient (the std of its leaves included).
        tail: packed upper bound on the root-mean-square of everything pruning dropped; None if nothing was.
        leaf: letters of the tensor when the signal is one initial tensor (enables the operator-norm bound).
        name: what explanations call it; empty for intermediate results.
        made: how it was made.
        flat: letters along which all of it is constant, what pruning dropped included.
        centred: letters along which addends of it sum to zero, each with what is left where these are not counted.
        least: packed lower bound on its root-mean-square that no kernel shows.
        sound: every size that it was divided by is certified.
        loss: packed bound on what was dropped and may cancel something else; part of the tail.
        depends: initial tensors that all of it is a function of, what pruning dropped included, as a set of bits
            (``KernelStore.tensor_bit``): sets of names would take most of the memory of a deep network; None if not
            known.
        curved: a kernel of it may stand for a nonlinear function of its leaves, entry by entry.
        signed: leaves of it may stand for signs, whose squares do not vary.
    """

    __slots__ = (
        *("centred", "curved", "depends", "flat", "leaf", "least", "letters", "loss", "made", "name", "signed"),
        *("sound", "tail", "terms"),
    )

    def __init__(
        self,
        letters: str,
        terms: dict[int, int],
        tail: int | None = None,
        leaf: str | None = None,
        name: str = "",
        made: Made | None = None,
        flat: frozenset[str] = frozenset(),
        centred: Mapping[str, Signal] | None = None,
        least: int | None = None,
        sound: bool = True,
        loss: int | None = None,
        depends: int | None = None,
        curved: bool = False,
        signed: bool = False,
    ) -> None:
        self.letters, self.terms, self.tail, self.leaf, self.name, self.made = letters, terms, tail, leaf, name, made
        self.flat, self.least, self.sound, self.loss, self.depends = flat, least, sound, loss, depends
        self.centred: Mapping[str, Signal] = {} if centred is None else centred
        self.curved, self.signed = curved, signed

    @property
    def zero(self) -> bool:
        """Exactly zero: no kernels and nothing dropped."""
        return not self.terms and self.tail is None

    @property
    def content(self) -> Hashable:
        """All that is counted of it: not its name, nor how it was made."""
        own = (getattr(self, x) for x in Signal.__slots__ if x not in ("centred", "made", "name", "terms"))
        return *own, frozenset(self.terms.items()), frozenset((x, y.content) for x, y in self.centred.items())

    def again(self) -> Signal:
        """A copy."""
        copy = object.__new__(Signal)
        copy.letters, copy.terms, copy.tail, copy.leaf = self.letters, self.terms, self.tail, self.leaf
        copy.name, copy.made, copy.flat, copy.centred = self.name, self.made, self.flat, self.centred
        copy.least, copy.sound, copy.loss, copy.depends = self.least, self.sound, self.loss, self.depends
        copy.curved, copy.signed = self.curved, self.signed
        return copy

    def but(self, **changes: Any) -> Signal:
        """A copy with other values of some attributes."""
        copy = self.again()
        for name, value in changes.items():
            setattr(copy, name, value)
        return copy


def larger(a: int | None, b: int | None) -> int | None:
    """The larger of two packed sizes; None is nothing."""
    return b if a is None else a if b is None or a >= b else b
