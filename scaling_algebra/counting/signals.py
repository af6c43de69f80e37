"""Signals in normal order: random tensors as maps from kernels to packed exponents (``packing.py``), on one ray.

``Signal.tail`` bounds what pruning drops.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, NamedTuple, TypeAlias


class Scalar(NamedTuple):
    """A deterministic factor.

    Attributes:
        label: its name in explanations.
        size: its packed size.
        certain: True if that size is certified.
    """

    label: str
    size: int
    certain: bool = True


class EntrySize(NamedTuple):
    """The size of the entries of an outer product.

    Attributes:
        packed: the packed size; None if it is exactly zero.
        certain: True if it is certified.
    """

    packed: int | None
    certain: bool = True


Rule: TypeAlias = Literal[
    "tensor", "constant", "product", "sum", "scaled", "centred", "restricted", "relabelled", "doubted"
]


class Provenance:
    """The origin of a signal, for explanations (``monomials.py``); no computation uses it.

    Attributes:
        rule: the operation.
        parts: its operands.
        scalars: the factors of ``scaled``.
        tag: the kind of product, such as ``forward ROLE`` for the inner product of a rank-one update with its input.
    """

    __slots__ = ("parts", "rule", "scalars", "tag")

    def __init__(
        self, rule: Rule, parts: tuple[Signal, ...] = (), scalars: tuple[Scalar, ...] = (), tag: str = ""
    ) -> None:
        self.rule, self.parts, self.scalars, self.tag = rule, parts, scalars, tag


@dataclass(frozen=True, slots=True)
class Budget:
    """A budget: how precisely signals are kept. Budgets increase until an answer is certified.

    Attributes:
        gap: kernels this far below the leading one are dropped, in powers of the axis that grows fastest.
        most: maximum number of kernels of a signal; the largest are kept, and of equal ones those with the fewest
            leaves.
        leaves: kernels with more leaves than this are dropped.
        work: maximum number of nodes of the matching searches for one product of two signals.
        total: maximum number of nodes of all products for one question.
        whole: nothing is dropped, whatever the gap; a product that exceeds ``work`` raises ``Exhausted``.
        doubts: maximum number of kernels of a signal that may cancel others.
        numbers: only the size is kept of an inner product that a norm removes before training
            (``projections.replace_by_bound``).
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
    """A random tensor as a sum of kernels with coefficients, of which only the exponents are kept.

    Attributes:
        indices: its open indices, such as ``"ik"``; the algebra has their axes.
        terms: packed exponent of the coefficient of each kernel, by kernel id; the std of the leaves is included.
        tail: packed upper bound on the root-mean-square of everything that pruning dropped; None if nothing was
            dropped.
        leaf: indices of the tensor if the signal is one initial tensor (enables the operator-norm bound).
        name: its name in explanations; empty for intermediate results.
        made: its origin.
        flat: indices along which all of it is constant, including what was dropped.
        centred: for each index along which some of its terms sum to zero, the signal without these terms.
        least: packed lower bound on its root-mean-square, if it exceeds those of its kernels.
        sound: True if every size that it was divided by is certified.
        loss: packed bound on the dropped terms that may cancel others; part of the tail.
        depends: initial tensors that all of it is a function of, including what was dropped, as the bits of one
            integer (``KernelStore.tensor_bit``), which takes less memory than a set of names; None if unknown.
        curved: True if a kernel may stand for a nonlinear function of its leaves, entry by entry.
        signed: True if leaves may stand for signs, whose squares do not vary.
    """

    __slots__ = (
        *("centred", "curved", "depends", "flat", "leaf", "indices", "least", "loss", "made", "name", "signed"),
        *("sound", "tail", "terms"),
    )

    def __init__(
        self,
        indices: str,
        terms: dict[int, int],
        tail: int | None = None,
        leaf: str | None = None,
        name: str = "",
        made: Provenance | None = None,
        flat: frozenset[str] = frozenset(),
        centred: Mapping[str, Signal] | None = None,
        least: int | None = None,
        sound: bool = True,
        loss: int | None = None,
        depends: int | None = None,
        curved: bool = False,
        signed: bool = False,
    ) -> None:
        self.indices, self.terms, self.tail, self.leaf, self.name, self.made = indices, terms, tail, leaf, name, made
        self.flat, self.least, self.sound, self.loss, self.depends = flat, least, sound, loss, depends
        self.centred: Mapping[str, Signal] = {} if centred is None else centred
        self.curved, self.signed = curved, signed

    @property
    def zero(self) -> bool:
        """True if it is exactly zero: it has no kernels, and nothing was dropped."""
        return not self.terms and self.tail is None

    @property
    def content(self) -> Hashable:
        """Everything that determines sizes, as a hashable value; name and origin are excluded."""
        own = (getattr(self, x) for x in Signal.__slots__ if x not in ("centred", "made", "name", "terms"))
        return *own, frozenset(self.terms.items()), frozenset((x, y.content) for x, y in self.centred.items())

    def again(self) -> Signal:
        """Returns a copy."""
        copy = object.__new__(Signal)
        copy.indices, copy.terms, copy.tail, copy.leaf = self.indices, self.terms, self.tail, self.leaf
        copy.name, copy.made, copy.flat, copy.centred = self.name, self.made, self.flat, self.centred
        copy.least, copy.sound, copy.loss, copy.depends = self.least, self.sound, self.loss, self.depends
        copy.curved, copy.signed = self.curved, self.signed
        return copy

    def but(self, **changes: Any) -> Signal:
        """Returns a copy with other values of some attributes."""
        copy = self.again()
        for name, value in changes.items():
            setattr(copy, name, value)
        return copy


def larger_size(a: int | None, b: int | None) -> int | None:
    """Returns the larger of two packed sizes; None is zero."""
    return b if a is None else a if b is None or a >= b else b
