"""Products of numbers, vectors and random variables with letters, and how large they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from scaling_algebra.spec.networks.language import Factor

from .vectors import Diverges, NotCovered, Particles, Points, Space, Values

NONE = Fraction(-(10**6))
"""The power of what is exactly zero."""
HALF = Fraction(1, 2)


@dataclass(frozen=True)
class Leading:
    """Numbers, or random variables where letters grow.

    Attributes:
        letters: those that do not grow, in the order of the first dimensions.
        over: the letters that grow, in the order of the last dimensions: coefficients over atoms, or samples.
        power: of n; ``NONE`` for exact zeros. rest: bound on the power of what is left out.
    """

    letters: str
    over: str
    values: Values
    power: Fraction = Fraction(0)
    rest: Fraction = NONE

    @property
    def size(self) -> Fraction:
        return max(self.power, self.rest)

    def renamed(self, names: Mapping[str, str]) -> Leading:
        letters = "".join(names.get(x, x) for x in self.letters)
        return replace(self, letters=letters, over="".join(names.get(x, x) for x in self.over))

    def times(self, factor: float, power: Fraction = Fraction(0)) -> Leading:
        grown = self.power if self.power == NONE else self.power + power
        return replace(self, values=self.values * factor, power=grown, rest=max(NONE, self.rest + power))


@dataclass(frozen=True)
class Contractions:
    """Products in the limit.

    Attributes:
        letters: axis of every letter. growing: those that grow. sizes: of the others.
        spaces: of the axes that grow.
    """

    letters: Mapping[str, str]
    growing: frozenset[str]
    sizes: dict[str, int]
    spaces: Mapping[str, Space | Particles]

    def contract(self, operands: Sequence[Leading], out: str, where: str) -> Leading:
        """The product of quantities, the letters that ``out`` lacks summed; experts come last."""
        left = list(operands)
        for letter in sorted({x for q in operands for x in q.over}, key=self.sampled):
            vectors, left = [q for q in left if letter in q.over], [q for q in left if letter not in q.over]
            if letter in out:
                left.append(self.entrywise(vectors, letter, where))
            elif self.sampled(letter) and (len(vectors) == 1 or not isinstance(self.space(letter), Points)):
                left.append(self.mean(self.entrywise(vectors, letter, where), letter))
            elif len(vectors) == 1:
                raise NotCovered(f"{where} sums the entries of one vector")
            else:
                left.append(self.inner(self.entrywise(vectors[:-1], letter, where), vectors[-1], letter))
        present = {x for q in left for x in (*q.letters, *q.over)}
        left += [self._ones(x, where) for x in out if x not in present]
        fixed, over = self.ordered(out)
        values = self.einsum([q.values for q in left], left, fixed + over)
        return Leading(fixed, over, values, _power(left) if values.any() else NONE, _rest(left))

    def ordered(self, letters: str) -> tuple[str, str]:
        """The letters that do not grow, and those that do, experts first."""
        grow = sorted((x for x in letters if x in self.growing), key=lambda x: (not self.sampled(x), x))
        return "".join(x for x in letters if x not in self.growing), "".join(grow)

    def zero(self, letters: str) -> Leading:
        """Exactly zero, with some letters."""
        fixed, over = self.ordered(letters)
        shape = [*(self.sizes[x] for x in fixed), *(self.space(x).zero.size for x in over)]
        return Leading(fixed, over, np.zeros(shape), NONE)

    def sampled(self, letter: str) -> bool:
        """An index that grows, of experts or at points, whose random variables are samples."""
        return letter in self.growing and isinstance(self.space(letter), Particles)

    def _ones(self, letter: str, where: str) -> Leading:
        if letter not in self.growing:
            return Leading(letter, "", np.ones(self.sizes[letter]))
        space = self.space(letter)
        if not isinstance(space, Particles):
            raise NotCovered(f"{where} repeats what has no index {letter}")
        return Leading("", letter, np.ones(space.zero.shape))

    def entrywise(self, vectors: Sequence[Leading], letter: str, where: str) -> Leading:
        """The product at each value of an index that grows."""
        if len(vectors) == 1:
            return vectors[0]
        letters = "".join(dict.fromkeys("".join(q.letters for q in vectors)))
        if not self.sampled(letter):
            return self.apply(lambda *x: np.prod(x, axis=0), vectors, letters, letter, where)
        over = "".join(dict.fromkeys("".join(q.over for q in vectors)))
        values = self.einsum([q.values for q in vectors], vectors, letters + over)
        return Leading(letters, over, values, _power(vectors), _rest(vectors))

    def apply(
        self, function: Callable[..., Values], vectors: Sequence[Leading], letters: str, letter: str, where: str
    ) -> Leading:
        """A function of vectors, entry by entry, linear in each of power other than 0."""
        space, found = self.space(letter), []
        if any(q.over != letter for q in vectors):
            raise NotCovered(f"{where} is a function along {letter} of what has two indices that grow")
        for index in np.ndindex(*(self.sizes[x] for x in letters)):
            at = dict(zip(letters, index, strict=True))
            arguments = [q.values[tuple(at[x] for x in q.letters)] for q in vectors]
            try:
                found.append(space.function(function, arguments))
            except NotCovered as why:
                raise type(why)(f"{where} {why}") from None
        values = np.stack([space.padded(x) for x in found]).reshape(*(self.sizes[x] for x in letters), -1)
        return Leading(letters, letter, values, _power(vectors), _rest(vectors))

    def inner(self, x: Leading, y: Leading, letter: str) -> Leading:
        """Sum over an index that grows: n times an expectation; where that is zero, a random sum of size n^(1/2)."""
        pair = [replace(q, values=v) for q, v in zip((x, y), self._dual(x, y, letter), strict=True)]
        letters = "".join(dict.fromkeys(x.letters + y.letters))
        over = "".join(dict.fromkeys((x.over + y.over).replace(letter, "")))
        values = self.einsum([q.values for q in pair], pair, letters + over)
        lengths = [self.lengths(q, letter) for q in (x, y)]
        most = self.einsum(lengths, [replace(q, over=q.over.replace(letter, "")) for q in (x, y)], letters + over)
        return self._summed(Leading(letters, over, values, x.power + y.power), most, (x, y))

    def _dual(self, x: Leading, y: Leading, letter: str) -> tuple[Values, Values]:
        """The coefficients over atoms, whose products are expectations; the letter is the last of what grows."""
        if self.sampled(letter):
            return x.values / self.space(letter).zero.size, y.values
        if {x.over[-1], y.over[-1]} != {letter}:
            raise NotCovered(f"a product along {letter} of what has two indices that grow")
        return self.space(letter).dual(x.values, y.values)

    def mean(self, q: Leading, letter: str) -> Leading:
        """Sum over experts that grow in number: n times the mean over samples, zero where these do not resolve it."""
        space, over = self.space(letter), q.over.replace(letter, "")
        values = self.einsum([q.values / q.values.shape[len(q.letters) + q.over.index(letter)]], [q], q.letters + over)
        products = np.moveaxis(q.values, len(q.letters) + q.over.index(letter), -1)
        values = space.resolved(values, lambda: products)
        return self._summed(Leading(q.letters, over, values, q.power), self.lengths(q, letter), (q,))

    @staticmethod
    def _summed(q: Leading, most: Values, parts: Sequence[Leading]) -> Leading:
        if not (np.isfinite(q.values) & np.isfinite(most)).all():
            raise Diverges
        values = np.where(np.abs(q.values) > 1e-12 * most, q.values, 0.0)
        exact = q.power + 1 if min(x.power for x in parts) > NONE and values.any() else NONE
        sizes = sum((x.size for x in parts), Fraction(0))
        return replace(q, values=values, power=exact, rest=max(HALF + sizes, 1 + _rest(parts), NONE))

    def lengths(self, q: Leading, letter: str = "") -> Values:
        """Root-mean-squares along an index that grows, or all of them, without the power of n."""
        along = letter or q.over
        values = [q.values, q.values]
        if not self.sampled(along[-1]):
            values = list(self.space(along[-1]).dual(q.values, q.values))
        left = q.letters + "".join(x for x in q.over if x not in along)
        squares = self.einsum(values, [q, q], left)
        for x in filter(self.sampled, along):
            squares = squares / self.space(x).zero.size
        return np.sqrt(np.maximum(0.0, squares))

    def space(self, letter: str) -> Space | Particles:
        return self.spaces[self.letters[letter]]

    def einsum(self, values: Sequence[Values], of: Sequence[Leading], out: str) -> Values:
        """The product of arrays with the letters of quantities; atoms that are new to one are zero there."""
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


def added(parts: Sequence[Leading]) -> Leading:
    """The sum; what is of a smaller power than the largest is left out."""
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


def _power(parts: Sequence[Leading]) -> Fraction:
    """The power of a product."""
    return NONE if any(q.power == NONE for q in parts) else sum((q.power for q in parts), Fraction(0))


def _rest(parts: Sequence[Leading]) -> Fraction:
    """Bound on the power of what a product leaves out."""
    sizes = [q.size for q in parts]
    return max([NONE, *(sum(sizes[:k] + sizes[k + 1 :], q.rest) for k, q in enumerate(parts))])


def named(q: Leading, own: str, factor: Factor) -> Leading:
    """A signal with the letters that it has in a statement."""
    return q.renamed(dict(zip(own, factor.letters, strict=True)))


def numbers(q: Leading) -> Values:
    """Limits of numbers; those of a negative power vanish."""
    return q.values if q.power == 0 else np.zeros_like(q.values)


def levelled(q: Leading) -> Leading:
    return q if q.power == 0 else replace(q, values=np.zeros_like(q.values), power=Fraction(0))
