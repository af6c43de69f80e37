"""Signals: random tensors as linear combinations of Wick monomials.

The coefficient of a monomial is stored only as an exponent of n on one ray, together with its formula, packed into one
integer (``packing.py``).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal, NamedTuple, TypeAlias


class Scalar(NamedTuple):
    """A deterministic factor, such as a learning rate.

    Attributes:
        label: name of the factor in explanations.
        size: exponent of n of the factor, packed into an integer together with its formula.
        certain: True if that exponent is certified; False if it is only an upper bound.
    """

    label: str
    size: int
    certain: bool = True


class EntrySize(NamedTuple):
    """The size of the entries of a tensor that is not computed explicitly, such as the outer product of two signals.

    Attributes:
        packed: exponent of n of the root-mean-square, packed into an integer; None if the entries are exactly zero.
        certain: True if that exponent is certified.
    """

    packed: int | None
    certain: bool = True


Rule: TypeAlias = Literal[
    "tensor", "constant", "product", "sum", "scaled", "centred", "restricted", "relabelled", "doubted"
]


class Provenance:
    """The operation that computed a signal, for explanations (``monomials.py``). No size depends on it.

    Attributes:
        rule: the operation, such as ``product``.
        operands: the signals that the operation was applied to.
        scalars: the deterministic factors, if the signal was scaled (rule ``scaled``).
        tag: for a product, its meaning in training, such as ``forward ROLE`` for the inner product of a rank-one update
            of the parameter ROLE with its input; otherwise "".
    """

    __slots__ = ("operands", "rule", "scalars", "tag")

    def __init__(
        self, rule: Rule, operands: tuple[Signal, ...] = (), scalars: tuple[Scalar, ...] = (), tag: str = ""
    ) -> None:
        self.rule, self.operands, self.scalars, self.tag = rule, operands, scalars, tag


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits on the precision and the work of a computation. Larger and larger budgets are tried until the answer is
    certified.

    Attributes:
        gap: a monomial is dropped if its size is this far below the largest one, in powers of the axis that grows
            fastest.
        max_kernels: maximum number of monomials of a signal. The largest ones are kept, and of equally large ones those
            with the fewest leaves.
        max_leaves: maximum number of tensors that are multiplied in a monomial.
        max_nodes: maximum number of nodes that the search for one product of two signals may visit.
        max_total_nodes: maximum number of search nodes for the size of one quantity.
        keeps_all: True to drop nothing, and to raise ``Exhausted`` for a product that exceeds ``max_nodes``.
        max_doubts: maximum number of monomials of a signal of which only an upper bound is known.
        bounds_inner_products: True to replace the inner product of the output of a norm with the gradient there,
            before training, by numbers of which only the size is known (``projections.replace_by_bound``).
    """

    gap: Fraction
    max_kernels: int | None = None
    max_leaves: int | None = None
    max_nodes: int | None = None
    max_total_nodes: int | None = None
    keeps_all: bool = False
    max_doubts: int = 24
    bounds_inner_products: bool = False


_OUTSIDE_CONTENT = ("without_centred", "origin", "name", "terms")
"""Attributes of ``Signal`` that ``Signal.content`` handles separately or ignores."""


class Signal:
    """A random tensor as a linear combination of Wick monomials (products of Gaussian tensors). Treat it as immutable.

    Example: with ``W`` of std N^-1/2, ``h[a] = sum_b W[a,b] x[b]`` has the indices ``"a"`` and one term: the monomial
    ``W[a,b] x[b]`` with the exponent -1/2 of N as its coefficient.

    Attributes:
        indices: the indices of the tensor, such as ``"ik"``; ``KernelStore.indices`` has their axes.
        terms: the coefficient of each monomial, as an exponent of n packed into an integer, by monomial id. It includes
            the std of the Gaussian tensors.
        tail_bound: upper bound on the root-mean-square of all terms that were dropped, as an exponent of n packed into
            an integer; None if none were dropped.
        leaf_indices: indices of the tensor if the signal is a single initial tensor, whose operator norm is known; None
            for any other signal.
        name: name in explanations; empty for intermediate results.
        origin: the operation that computed the signal.
        constant_along: indices along which the whole signal is constant, dropped terms included.
        without_centred: ``without_centred[x]`` is the signal without the terms that sum to zero over the index x.
            Indices over which no term sums to zero have no entry.
        lower_bound: lower bound on the root-mean-square, as an exponent of n packed into an integer, if one is known
            from another argument than the size of the monomials; otherwise None.
        certified_divisors: True if the signal was divided only by sizes that are certified, or by none.
        doubt_bound: upper bound on those dropped terms of which only an upper bound was known; None if there were none.
        depends_on: the initial tensors on which the signal depends, dropped terms included, as a bit mask
            (``KernelStore.tensor_bit``); None if unknown.
        may_be_nonlinear: True if a monomial may stand for a nonlinear function of its tensors, entry by entry.
        may_be_signs: True if tensors in a monomial may stand for their signs, whose squares are constant.
    """

    __slots__ = (
        *("certified_divisors", "constant_along", "depends_on", "doubt_bound", "leaf_indices", "indices"),
        *("lower_bound", "may_be_nonlinear", "may_be_signs", "name", "origin", "tail_bound", "terms"),
        "without_centred",
    )

    def __init__(
        self,
        indices: str,
        terms: dict[int, int],
        tail_bound: int | None = None,
        leaf_indices: str | None = None,
        name: str = "",
        origin: Provenance | None = None,
        constant_along: frozenset[str] = frozenset(),
        without_centred: Mapping[str, Signal] | None = None,
        lower_bound: int | None = None,
        certified_divisors: bool = True,
        doubt_bound: int | None = None,
        depends_on: int | None = None,
        may_be_nonlinear: bool = False,
        may_be_signs: bool = False,
    ) -> None:
        self.indices, self.terms, self.name, self.origin = indices, terms, name, origin
        self.tail_bound, self.doubt_bound, self.lower_bound = tail_bound, doubt_bound, lower_bound
        self.leaf_indices, self.constant_along, self.depends_on = leaf_indices, constant_along, depends_on
        self.without_centred: Mapping[str, Signal] = {} if without_centred is None else without_centred
        self.certified_divisors = certified_divisors
        self.may_be_nonlinear, self.may_be_signs = may_be_nonlinear, may_be_signs

    @property
    def is_zero(self) -> bool:
        """Whether the signal is exactly zero: it has no monomials, and none was dropped."""
        return not self.terms and self.tail_bound is None

    @property
    def content(self) -> Hashable:
        """A hashable value that contains all attributes on which sizes depend, that is, all but ``name`` and
        ``origin``. Signals with equal contents are interchangeable in a computation."""
        own = tuple(getattr(self, x) for x in Signal.__slots__ if x not in _OUTSIDE_CONTENT)
        return *own, frozenset(self.terms.items()), frozenset((x, y.content) for x, y in self.without_centred.items())

    def copy(self) -> Signal:
        """Returns a shallow copy."""
        other = object.__new__(Signal)  # no loop over the slots, for speed
        other.indices, other.terms, other.name, other.origin = self.indices, self.terms, self.name, self.origin
        other.tail_bound, other.doubt_bound, other.lower_bound = self.tail_bound, self.doubt_bound, self.lower_bound
        other.leaf_indices, other.constant_along = self.leaf_indices, self.constant_along
        other.depends_on, other.without_centred = self.depends_on, self.without_centred
        other.certified_divisors = self.certified_divisors
        other.may_be_nonlinear, other.may_be_signs = self.may_be_nonlinear, self.may_be_signs
        return other

    def replace(self, **changes: Any) -> Signal:
        """Returns a copy in which the given attributes have new values."""
        copy = self.copy()
        for name, value in changes.items():
            setattr(copy, name, value)
        return copy

    def derive(self, rule: Rule, *scalars: Scalar, **changes: Any) -> Signal:
        """Returns a copy in which the attributes ``changes`` have new values, and whose ``origin`` says that the
        operation ``rule`` was applied to this signal. The copy no longer counts as an initial tensor.
        """
        changes = {"leaf_indices": None, **changes}
        return self.replace(origin=Provenance(rule, (self,), scalars), **changes)


def larger_size(a: int | None, b: int | None) -> int | None:
    """Returns the larger of two sizes, given as exponents of n packed into integers. None stands for the size of a
    signal that is exactly zero, so it is smaller than any other."""
    return b if a is None else a if b is None or a >= b else b
