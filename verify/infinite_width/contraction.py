"""Contracts numbers, vectors and random variables with named indices, and tracks the powers of n of their sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from scaling_algebra.spec.networks.language import Factor

from .vectors import Diverges, NotCovered, Particles, Points, Space, Values

NONE = Fraction(-(10**6))
"""The power of a quantity that is exactly zero."""
HALF = Fraction(1, 2)


@dataclass(frozen=True)
class Leading:
    """The term of a quantity (a signal, gradient or tensor) with the largest power of n: ``values`` times n^power.

    Without growing indices it is an array of numbers. A growing index stands for infinitely many entries, which are
    represented by one random variable.

    Attributes:
        `indices`: the indices that do not grow, in the order of the first dimensions.
        over: the growing indices, in the order of the last dimensions. Such a dimension does not count entries, but
            the samples of the random variable or its coefficients (see ``Space``).
        values: the values without the power of n.
        power: power of n; ``NONE`` for exact zeros.
        rest: upper bound on the power of n of all other terms, which are neglected.
    """

    indices: str
    over: str
    values: Values
    power: Fraction = Fraction(0)
    rest: Fraction = NONE

    @property
    def size(self) -> Fraction:
        return max(self.power, self.rest)

    def rename_indices(self, names: Mapping[str, str]) -> Leading:
        indices = "".join(names.get(x, x) for x in self.indices)
        return replace(self, indices=indices, over="".join(names.get(x, x) for x in self.over))

    def times(self, factor: float, power: Fraction = Fraction(0)) -> Leading:
        grown = self.power if self.power == NONE else self.power + power
        return replace(self, values=self.values * factor, power=grown, rest=max(NONE, self.rest + power))


@dataclass(frozen=True)
class Contractions:
    """Multiplies and sums quantities with named indices in the limit of infinite width.

    Attributes:
        `indices`: the axis of every index.
        growing: the indices that grow.
        sizes: sizes of the other indices.
        spaces: by growing axis, the random variables that represent the entries along it.
    """

    indices: Mapping[str, str]
    growing: frozenset[str]
    sizes: dict[str, int]
    spaces: Mapping[str, Space | Particles]

    def contract(self, operands: Sequence[Leading], out: str, where: str) -> Leading:
        """Multiplies quantities and sums over the indices that are not in ``out``; indices of experts are summed last.

        Args:
            operands: the quantities.
            out: indices of the result.
            where: name of the statement in messages.

        Raises:
            NotCovered: the result has no limit that can be computed here.
        """
        left = list(operands)
        for index in sorted({x for q in operands for x in q.over}, key=self.is_sampled):
            vectors, left = [q for q in left if index in q.over], [q for q in left if index not in q.over]
            if index in out:
                left.append(self.entrywise(vectors, index, where))
            elif self.is_sampled(index) and (len(vectors) == 1 or not isinstance(self.space(index), Points)):
                left.append(self.mean(self.entrywise(vectors, index, where), index))
            elif len(vectors) == 1:
                raise NotCovered(
                    f"{where} sums the entries of a single vector along a growing index, which is not supported"
                )
            else:
                left.append(self.inner(self.entrywise(vectors[:-1], index, where), vectors[-1], index))
        present = {x for q in left for x in (*q.indices, *q.over)}
        left += [self._ones(x, where) for x in out if x not in present]
        fixed, over = self.split_indices(out)
        values = self.einsum([q.values for q in left], left, fixed + over)
        return Leading(fixed, over, values, _compute_power(left) if values.any() else NONE, _bound_rest(left))

    def split_indices(self, indices: str) -> tuple[str, str]:
        """Splits indices into those that do not grow and those that do, experts first."""
        grow = sorted((x for x in indices if x in self.growing), key=lambda x: (not self.is_sampled(x), x))
        return "".join(x for x in indices if x not in self.growing), "".join(grow)

    def zero(self, indices: str) -> Leading:
        """Returns a quantity with the given indices that is exactly zero."""
        fixed, over = self.split_indices(indices)
        shape = [*(self.sizes[x] for x in fixed), *(self.space(x).zero.size for x in over)]
        return Leading(fixed, over, np.zeros(shape), NONE)

    def is_sampled(self, index: str) -> bool:
        """Tells whether an index grows and its random variables are given by values at samples or points
        (``Particles`` or
        ``Points``), not by coefficients (``Space``).
        """
        return index in self.growing and isinstance(self.space(index), Particles)

    def _ones(self, index: str, where: str) -> Leading:
        if index not in self.growing:
            return Leading(index, "", np.ones(self.sizes[index]))
        space = self.space(index)
        if not isinstance(space, Particles):
            raise NotCovered(f"{where} broadcasts a signal along the growing index {index}, which is not supported")
        return Leading("", index, np.ones(space.zero.shape))

    def entrywise(self, vectors: Sequence[Leading], index: str, where: str) -> Leading:
        """Multiplies quantities that share a growing index, entry by entry along it."""
        if len(vectors) == 1:
            return vectors[0]
        indices = "".join(dict.fromkeys("".join(q.indices for q in vectors)))
        if not self.is_sampled(index):
            return self.apply(lambda *x: np.prod(x, axis=0), vectors, indices, index, where)
        over = "".join(dict.fromkeys("".join(q.over for q in vectors)))
        values = self.einsum([q.values for q in vectors], vectors, indices + over)
        return Leading(indices, over, values, _compute_power(vectors), _bound_rest(vectors))

    def apply(
        self, function: Callable[..., Values], vectors: Sequence[Leading], indices: str, index: str, where: str
    ) -> Leading:
        """Applies a function to vectors entry by entry; it must be linear in every vector whose power of n is not 0,
        since powers of n are multiplied as in a product.

        Args:
            function: the function, one argument for each vector.
            vectors: the vectors, which have ``index`` as their only growing index.
            indices: the indices of the result that do not grow.
            index: the growing index.
            where: name of the statement in messages.
        """
        space, found = self.space(index), []
        if any(q.over != index for q in vectors):
            raise NotCovered(
                f"{where} applies a function along {index} to a signal with two growing indices, which is not supported"
            )
        for entry in np.ndindex(*(self.sizes[x] for x in indices)):
            at = dict(zip(indices, entry, strict=True))
            arguments = [q.values[tuple(at[x] for x in q.indices)] for q in vectors]
            try:
                found.append(space.function(function, arguments))
            except NotCovered as why:
                raise type(why)(f"{where} {why}") from None
        values = np.stack([space.pad(x) for x in found]).reshape(*(self.sizes[x] for x in indices), -1)
        return Leading(indices, index, values, _compute_power(vectors), _bound_rest(vectors))

    def inner(self, x: Leading, y: Leading, index: str) -> Leading:
        """Sums the product of two quantities over a growing index: n times the expectation of the product.

        If the expectation is zero, the sum is a random number of size n^(1/2), which only counts in ``rest``.
        """
        pair = [replace(q, values=v) for q, v in zip((x, y), self._dual(x, y, index), strict=True)]
        indices = "".join(dict.fromkeys(x.indices + y.indices))
        over = "".join(dict.fromkeys((x.over + y.over).replace(index, "")))
        values = self.einsum([q.values for q in pair], pair, indices + over)
        lengths = [self.lengths(q, index) for q in (x, y)]
        most = self.einsum(lengths, [replace(q, over=q.over.replace(index, "")) for q in (x, y)], indices + over)
        return self._finish_sum(Leading(indices, over, values, x.power + y.power), most, (x, y))

    def _dual(self, x: Leading, y: Leading, index: str) -> tuple[Values, Values]:
        """Returns two arrays, made of x and y, whose product summed over the last dimension is the expectation of x
        times y along the growing index ``index``, the last one of both.
        """
        if self.is_sampled(index):
            return x.values / self.space(index).zero.size, y.values
        if {x.over[-1], y.over[-1]} != {index}:
            raise NotCovered(f"a product along {index} of signals with two growing indices, which is not supported")
        return self.space(index).dual(x.values, y.values)

    def mean(self, q: Leading, index: str) -> Leading:
        """Sums a quantity over a growing number of experts: n times the mean over samples, or zero if the mean is not
        larger than its sampling error. The result stores the mean, and the factor n in its power of n.
        """
        space, over = self.space(index), q.over.replace(index, "")
        values = self.einsum([q.values / q.values.shape[len(q.indices) + q.over.index(index)]], [q], q.indices + over)
        products = np.moveaxis(q.values, len(q.indices) + q.over.index(index), -1)
        values = space.zero_unresolved(values, lambda: products)
        return self._finish_sum(Leading(q.indices, over, values, q.power), self.lengths(q, index), (q,))

    @staticmethod
    def _finish_sum(q: Leading, most: Values, parts: Sequence[Leading]) -> Leading:
        if not (np.isfinite(q.values) & np.isfinite(most)).all():
            raise Diverges
        values = np.where(np.abs(q.values) > 1e-12 * most, q.values, 0.0)
        exact = q.power + 1 if min(x.power for x in parts) > NONE and values.any() else NONE
        sizes = sum((x.size for x in parts), Fraction(0))
        return replace(q, values=values, power=exact, rest=max(HALF + sizes, 1 + _bound_rest(parts), NONE))

    def lengths(self, q: Leading, index: str = "") -> Values:
        """Returns the root mean squares of a quantity along the growing index ``index``, or along all of them if it is
        empty, without the power of n.
        """
        along = index or q.over
        values = [q.values, q.values]
        if not self.is_sampled(along[-1]):
            values = list(self.space(along[-1]).dual(q.values, q.values))
        left = q.indices + "".join(x for x in q.over if x not in along)
        squares = self.einsum(values, [q, q], left)
        for x in filter(self.is_sampled, along):
            squares = squares / self.space(x).zero.size
        return np.sqrt(np.maximum(0.0, squares))

    def space(self, index: str) -> Space | Particles:
        return self.spaces[self.indices[index]]

    def einsum(self, values: Sequence[Values], of: Sequence[Leading], out: str) -> Values:
        """Multiplies arrays and sums over the indices missing from ``out``, like ``numpy.einsum``.

        Args:
            values: the arrays. One that lacks the last coefficients along a growing index is padded with zeros.
            of: for each array, a quantity that has the same indices.
            out: indices of the result.
        """
        indices = list(dict.fromkeys("".join(q.indices + q.over for q in of) + out))
        count = {x: k for k, x in enumerate(indices)}
        widths = {
            x: max(v.shape[len(q.indices) + q.over.index(x)] for v, q in zip(values, of, strict=True) if x in q.over)
            for x in indices
            if x in self.growing
        }
        arguments: list[Any] = []
        for v, q in zip(values, of, strict=True):
            wide = [(0, 0)] * len(q.indices) + [
                (0, widths[x] - n) for x, n in zip(q.over, v.shape[len(q.indices) :], strict=True)
            ]
            arguments += [np.pad(v, wide) if any(w for _, w in wide) else v, [count[x] for x in q.indices + q.over]]
        product: Values = np.einsum(*arguments, [count[x] for x in out], optimize=len(of) > 2)
        return product


def add_leading(parts: Sequence[Leading]) -> Leading:
    """Adds quantities. Those with a smaller power of n than the largest are neglected; ``rest`` of the sum bounds
    their power.
    """
    if len(parts) == 1:
        return parts[0]
    power, first = max(q.power for q in parts), parts[0]
    left, order = [q for q in parts if q.power == power], first.indices + first.over
    shape = np.max([[q.values.shape[(q.indices + q.over).index(x)] for x in order] for q in left], axis=0).tolist()
    values = np.zeros(shape)
    for q in left:
        turned = q.values.transpose([(q.indices + q.over).index(x) for x in order])
        values[tuple(map(slice, turned.shape))] += turned
    rest = max(max(q.rest for q in parts), max((q.power for q in parts if q.power < power), default=NONE))
    return Leading(first.indices, first.over, values, power, rest)


def _compute_power(parts: Sequence[Leading]) -> Fraction:
    """Returns the power of n of the product of quantities: the sum of their powers, or ``NONE`` if one is zero."""
    return NONE if any(q.power == NONE for q in parts) else sum((q.power for q in parts), Fraction(0))


def _bound_rest(parts: Sequence[Leading]) -> Fraction:
    """Returns an upper bound on the power of n of the terms in a product of quantities other than its leading term."""
    sizes = [q.size for q in parts]
    return max([NONE, *(sum(sizes[:k] + sizes[k + 1 :], q.rest) for k, q in enumerate(parts))])


def rename_indices(q: Leading, own: str, factor: Factor) -> Leading:
    """Renames the indices of a signal from its own names (``own``) to those with which a statement reads it
    (``factor``).
    """
    return q.rename_indices(dict(zip(own, factor.indices, strict=True)))


def get_limits(q: Leading) -> Values:
    """Returns the limits of numbers as n grows: the values, or zeros if their power of n is negative."""
    return q.values if q.power == 0 else np.zeros_like(q.values)


def take_limit(q: Leading) -> Leading:
    return q if q.power == 0 else replace(q, values=np.zeros_like(q.values), power=Fraction(0))
