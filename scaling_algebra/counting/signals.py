"""Signals in normal order: random tensors as maps from kernels to packed exponents (``packing.py``), on one ray.

What pruning drops is bounded by ``Signal.tail``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from operator import attrgetter
from typing import Any, Literal, Self


@dataclass(frozen=True, slots=True)
class Scalar:
    """A deterministic factor: what it is called, its packed size, and whether that size is certified."""

    label: str
    size: int
    certain: bool = True


@dataclass(frozen=True, slots=True)
class EntrySize:
    """The packed size of the entries of an outer product, None if it is exactly zero, and whether it is certified."""

    packed: int | None
    certain: bool = True


@dataclass(frozen=True, slots=True)
class Made:
    """The making of a signal, for walking back (``monomials.py``); no computation reads it.

    Attributes:
        rule: the operation. ``parts`` are its operands, ``scalars`` the factors of ``scaled``.
        tag: what kind of product it is, e.g. ``forward ROLE``: the inner product of a rank-one update with its input.
    """

    rule: Literal["tensor", "constant", "product", "sum", "scaled", "centred", "restricted", "relabelled", "doubted"]
    parts: tuple[Signal, ...] = ()
    scalars: tuple[Scalar, ...] = ()
    tag: str = ""


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
    """

    gap: Fraction
    most: int | None = None
    leaves: int | None = None
    work: int | None = None
    total: int | None = None
    whole: bool = False
    doubts: int = 24


_ATTRIBUTES: dict[Any, attrgetter[Any]] = {}
"""What reads all attributes of a kind of signal at once."""


@dataclass(slots=True)
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
        depends: initial tensors that all of it is a function of, what pruning dropped included; None if not known.
        curved: a kernel of it may stand for a nonlinear function of its leaves, entry by entry.
        signed: leaves of it may stand for signs, whose squares do not vary.
    """

    letters: str
    terms: dict[int, int]
    tail: int | None = None
    leaf: str | None = None
    name: str = ""
    made: Made | None = None
    flat: frozenset[str] = frozenset()
    centred: Mapping[str, Signal] = field(default_factory=dict)
    least: int | None = None
    sound: bool = True
    loss: int | None = None
    depends: frozenset[str] | None = None
    curved: bool = False
    signed: bool = False

    @property
    def zero(self) -> bool:
        """Exactly zero: no kernels and nothing dropped."""
        return not self.terms and self.tail is None

    def but(self, **changes: Any) -> Self:
        """A copy with other values of some attributes; quicker than ``dataclasses.replace``."""
        kind = type(self)
        if kind not in _ATTRIBUTES:
            _ATTRIBUTES[kind] = attrgetter(*kind.__dataclass_fields__)
        copy = kind(*_ATTRIBUTES[kind](self))
        for name, value in changes.items():
            setattr(copy, name, value)
        return copy


def larger(a: int | None, b: int | None) -> int | None:
    """The larger of two packed sizes; None is nothing."""
    return b if a is None else a if b is None or a >= b else b
