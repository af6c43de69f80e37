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
    """The leading term of a quantity: numbers, or random variables if it has growing indices.

    Attributes:
        `letters`: the indices that do not grow, in the order of the first dimensions.
        over: the growing indices, in the order of the last dimensions, which are coefficients over atoms, or samples.
        values: the numbers without the power of n.
        power: power of n; ``NONE`` for exact zeros.
        rest: upper bound on the power of the neglected terms.
    """

    letters: str
    over: str
    values: Values
    power: Fraction = Fraction(0)
    rest: Fraction = NONE

    @property
    def size(self) -> Fraction:
        return max(self.power, self.rest)

    def rename_indices(self, names: Mapping[str, str]) -> Leading:
        letters = "".join(names.get(x, x) for x in self.letters)
        return replace(self, letters=letters, over="".join(names.get(x, x) for x in self.over))

    def times(self, factor: float, power: Fraction = Fraction(0)) -> Leading:
        grown = self.power if self.power == NONE else self.power + power
        return replace(self, values=self.values * factor, power=grown, rest=max(NONE, self.rest + power))


@dataclass(frozen=True)
class Contractions:
    """Contractions in the limit of infinite width.

    Attributes:
        `letters`: the axis of every index.
        growing: the indices that grow.
        sizes: sizes of the other indices.
        spaces: random variables of every growing axis.
    """

    letters: Mapping[str, str]
    growing: frozenset[str]
    sizes: dict[str, int]
    spaces: Mapping[str, Space | Particles]

    def contract(self, operands: Sequence[Leading], out: str, where: str) -> Leading:
        """Multiplies quantities and sums over the indices that ``out`` lacks, those of experts last.

        Args:
            operands: the quantities.
            out: indices of the result.
            where: name of the statement in messages.

        Raises:
            NotCovered: the result has no limit that can be computed here.
        """
        left = list(operands)
        for letter in sorted({x for q in operands for x in q.over}, key=self.is_sampled):
            vectors, left = [q for q in left if letter in q.over], [q for q in left if letter not in q.over]
            if letter in out:
                left.append(self.entrywise(vectors, letter, where))
            elif self.is_sampled(letter) and (len(vectors) == 1 or not isinstance(self.space(letter), Points)):
                left.append(self.mean(self.entrywise(vectors, letter, where), letter))
            elif len(vectors) == 1:
                raise NotCovered(
                    f"{where} sums the entries of a single vector along a growing index, which is not supported"
                )
            else:
                left.append(self.inner(self.entrywise(vectors[:-1], letter, where), vectors[-1], letter))
        present = {x for q in left for x in (*q.letters, *q.over)}
        left += [self._ones(x, where) for x in out if x not in present]
        fixed, over = self.split_indices(out)
        values = self.einsum([q.values for q in left], left, fixed + over)
        return Leading(fixed, over, values, _compute_power(left) if values.any() else NONE, _bound_rest(left))

    def split_indices(self, letters: str) -> tuple[str, str]:
        """Splits indices into those that do not grow and those that do, experts first."""
        grow = sorted((x for x in letters if x in self.growing), key=lambda x: (not self.is_sampled(x), x))
        return "".join(x for x in letters if x not in self.growing), "".join(grow)

    def zero(self, letters: str) -> Leading:
        """Returns a quantity with the given indices that is exactly zero."""
        fixed, over = self.split_indices(letters)
        shape = [*(self.sizes[x] for x in fixed), *(self.space(x).zero.size for x in over)]
        return Leading(fixed, over, np.zeros(shape), NONE)

    def is_sampled(self, letter: str) -> bool:
        """Tells whether an index grows and its random variables are given by samples or points."""
        return letter in self.growing and isinstance(self.space(letter), Particles)

    def _ones(self, letter: str, where: str) -> Leading:
        if letter not in self.growing:
            return Leading(letter, "", np.ones(self.sizes[letter]))
        space = self.space(letter)
        if not isinstance(space, Particles):
            raise NotCovered(f"{where} broadcasts a signal along the growing index {letter}, which is not supported")
        return Leading("", letter, np.ones(space.zero.shape))

    def entrywise(self, vectors: Sequence[Leading], letter: str, where: str) -> Leading:
        """Multiplies quantities at each value of a growing index."""
        if len(vectors) == 1:
            return vectors[0]
        letters = "".join(dict.fromkeys("".join(q.letters for q in vectors)))
        if not self.is_sampled(letter):
            return self.apply(lambda *x: np.prod(x, axis=0), vectors, letters, letter, where)
        over = "".join(dict.fromkeys("".join(q.over for q in vectors)))
        values = self.einsum([q.values for q in vectors], vectors, letters + over)
        return Leading(letters, over, values, _compute_power(vectors), _bound_rest(vectors))

    def apply(
        self, function: Callable[..., Values], vectors: Sequence[Leading], letters: str, letter: str, where: str
    ) -> Leading:
        """Applies a function to vectors entry by entry; it must be linear in every vector whose power is not 0."""
        space, found = self.space(letter), []
        if any(q.over != letter for q in vectors):
            raise NotCovered(
                f"{where} applies a function along {letter} to a signal with two growing indices, which is not "
                "supported"
            )
        for index in np.ndindex(*(self.sizes[x] for x in letters)):
            at = dict(zip(letters, index, strict=True))
            arguments = [q.values[tuple(at[x] for x in q.letters)] for q in vectors]
            try:
                found.append(space.function(function, arguments))
            except NotCovered as why:
                raise type(why)(f"{where} {why}") from None
        values = np.stack([space.pad(x) for x in found]).reshape(*(self.sizes[x] for x in letters), -1)
        return Leading(letters, letter, values, _compute_power(vectors), _bound_rest(vectors))

    def inner(self, x: Leading, y: Leading, letter: str) -> Leading:
        """Sums a product over a growing index: n times an expectation. If that is zero, the sum is random, of size
        n^(1/2)."""
        pair = [replace(q, values=v) for q, v in zip((x, y), self._dual(x, y, letter), strict=True)]
        letters = "".join(dict.fromkeys(x.letters + y.letters))
        over = "".join(dict.fromkeys((x.over + y.over).replace(letter, "")))
        values = self.einsum([q.values for q in pair], pair, letters + over)
        lengths = [self.lengths(q, letter) for q in (x, y)]
        most = self.einsum(lengths, [replace(q, over=q.over.replace(letter, "")) for q in (x, y)], letters + over)
        return self._finish_sum(Leading(letters, over, values, x.power + y.power), most, (x, y))

    def _dual(self, x: Leading, y: Leading, letter: str) -> tuple[Values, Values]:
        """Returns two arrays whose products are the expectations over a growing index, the last one of both
        quantities."""
        if self.is_sampled(letter):
            return x.values / self.space(letter).zero.size, y.values
        if {x.over[-1], y.over[-1]} != {letter}:
            raise NotCovered(f"a product along {letter} of signals with two growing indices, which is not supported")
        return self.space(letter).dual(x.values, y.values)

    def mean(self, q: Leading, letter: str) -> Leading:
        """Sums over a growing number of experts: n times the mean over samples, or zero if they cannot distinguish
        it from zero."""
        space, over = self.space(letter), q.over.replace(letter, "")
        values = self.einsum([q.values / q.values.shape[len(q.letters) + q.over.index(letter)]], [q], q.letters + over)
        products = np.moveaxis(q.values, len(q.letters) + q.over.index(letter), -1)
        values = space.zero_unresolved(values, lambda: products)
        return self._finish_sum(Leading(q.letters, over, values, q.power), self.lengths(q, letter), (q,))

    @staticmethod
    def _finish_sum(q: Leading, most: Values, parts: Sequence[Leading]) -> Leading:
        if not (np.isfinite(q.values) & np.isfinite(most)).all():
            raise Diverges
        values = np.where(np.abs(q.values) > 1e-12 * most, q.values, 0.0)
        exact = q.power + 1 if min(x.power for x in parts) > NONE and values.any() else NONE
        sizes = sum((x.size for x in parts), Fraction(0))
        return replace(q, values=values, power=exact, rest=max(HALF + sizes, 1 + _bound_rest(parts), NONE))

    def lengths(self, q: Leading, letter: str = "") -> Values:
        """Returns root mean squares along one growing index, or along all, without the power of n."""
        along = letter or q.over
        values = [q.values, q.values]
        if not self.is_sampled(along[-1]):
            values = list(self.space(along[-1]).dual(q.values, q.values))
        left = q.letters + "".join(x for x in q.over if x not in along)
        squares = self.einsum(values, [q, q], left)
        for x in filter(self.is_sampled, along):
            squares = squares / self.space(x).zero.size
        return np.sqrt(np.maximum(0.0, squares))

    def space(self, letter: str) -> Space | Particles:
        return self.spaces[self.letters[letter]]

    def einsum(self, values: Sequence[Values], of: Sequence[Leading], out: str) -> Values:
        """Contracts arrays that have the indices of given quantities. Arrays with fewer atoms are padded with zeros."""
        letters = list(dict.fromkeys("".join(q.letters + q.over for q in of) + out))
        count = {x: k for k, x in enumerate(letters)}
        widths = {
            x: max(v.shape[len(q.letters) + q.over.index(x)] for v, q in zip(values, of, strict=True) if x in q.over)
            for x in letters
            if x in self.growing
        }
        arguments: list[Any] = []
        for v, q in zip(values, of, strict=True):
            wide = [(0, 0)] * len(q.letters) + [
                (0, widths[x] - n) for x, n in zip(q.over, v.shape[len(q.letters) :], strict=True)
            ]
            arguments += [np.pad(v, wide) if any(w for _, w in wide) else v, [count[x] for x in q.letters + q.over]]
        product: Values = np.einsum(*arguments, [count[x] for x in out], optimize=len(of) > 2)
        return product


def add_leading(parts: Sequence[Leading]) -> Leading:
    """Adds quantities. Terms of a smaller power than the largest are neglected and counted in ``rest``."""
    if len(parts) == 1:
        return parts[0]
    power, first = max(q.power for q in parts), parts[0]
    left, order = [q for q in parts if q.power == power], first.letters + first.over
    shape = np.max([[q.values.shape[(q.letters + q.over).index(x)] for x in order] for q in left], axis=0).tolist()
    values = np.zeros(shape)
    for q in left:
        turned = q.values.transpose([(q.letters + q.over).index(x) for x in order])
        values[tuple(map(slice, turned.shape))] += turned
    rest = max(max(q.rest for q in parts), max((q.power for q in parts if q.power < power), default=NONE))
    return Leading(first.letters, first.over, values, power, rest)


def _compute_power(parts: Sequence[Leading]) -> Fraction:
    """Returns the power of a product."""
    return NONE if any(q.power == NONE for q in parts) else sum((q.power for q in parts), Fraction(0))


def _bound_rest(parts: Sequence[Leading]) -> Fraction:
    """Returns the upper bound on the power of the neglected terms of a product."""
    sizes = [q.size for q in parts]
    return max([NONE, *(sum(sizes[:k] + sizes[k + 1 :], q.rest) for k, q in enumerate(parts))])


def rename_indices(q: Leading, own: str, factor: Factor) -> Leading:
    """Renames the indices of a signal to those that a statement uses."""
    return q.rename_indices(dict(zip(own, factor.letters, strict=True)))


def get_limits(q: Leading) -> Values:
    """Returns the limits of numbers, which are zero if the power is negative."""
    return q.values if q.power == 0 else np.zeros_like(q.values)


def take_limit(q: Leading) -> Leading:
    return q if q.power == 0 else replace(q, values=np.zeros_like(q.values), power=Fraction(0))
