"""Products of numbers, vectors and random variables with letters, and how large they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from scaling_algebra.spec.networks.language import Factor

from .vectors import NotCovered, Space, Values

NONE = Fraction(-(10**6))
"""The power of what is exactly zero."""
HALF = Fraction(1, 2)


@dataclass(frozen=True)
class Leading:
    """Numbers, or random variables where one letter grows.

    Attributes:
        letters: those that do not grow, in the order of the dimensions.
        over: the letter that grows; empty for numbers. Then the last dimension has coefficients over atoms.
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
        return replace(self, letters=letters, over=names.get(self.over, self.over))

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
    spaces: Mapping[str, Space]

    def contract(self, operands: Sequence[Leading], out: str, where: str) -> Leading:
        """The product of quantities, the letters that ``out`` lacks summed."""
        left = [q for q in operands if not q.over]
        for letter in dict.fromkeys(q.over for q in operands if q.over):
            vectors = [q for q in operands if q.over == letter]
            if letter in out:
                left.append(self.entrywise(vectors, letter, where))
            elif len(vectors) == 1:
                raise NotCovered(f"{where} sums the entries of one vector")
            else:
                left.append(self.inner(self.entrywise(vectors[:-1], letter, where), vectors[-1], letter))
        fixed = "".join(x for x in out if x not in self.growing)
        over = next((x for x in out if x in self.growing), "")
        present = set("".join(q.letters for q in left))
        left += [Leading(x, "", np.ones(self.sizes[x])) for x in fixed if x not in present]
        values = _einsum(left, fixed, bool(over))
        sizes = [q.size for q in left]
        rests = [sum(sizes[:k] + sizes[k + 1 :], q.rest) for k, q in enumerate(left)]
        power = NONE if any(q.power == NONE for q in left) else sum((q.power for q in left), Fraction(0))
        return Leading(fixed, over, values, power if values.any() else NONE, max([NONE, *rests]))

    def entrywise(self, vectors: Sequence[Leading], letter: str, where: str) -> Leading:
        if len(vectors) == 1:
            return vectors[0]
        letters = "".join(dict.fromkeys("".join(q.letters for q in vectors)))
        return self.apply(lambda *x: np.prod(x, axis=0), vectors, letters, letter, where)

    def apply(
        self, function: Callable[..., Values], vectors: Sequence[Leading], letters: str, letter: str, where: str
    ) -> Leading:
        """A function of vectors, entry by entry, linear in each of power other than 0."""
        space, found = self.space(letter), []
        for index in np.ndindex(*(self.sizes[x] for x in letters)):
            at = dict(zip(letters, index, strict=True))
            arguments = [q.values[tuple(at[x] for x in q.letters)] for q in vectors]
            try:
                found.append(space.function(function, arguments))
            except NotCovered as why:
                raise NotCovered(f"{where} {why}") from None
        values = np.stack([space.padded(x) for x in found]).reshape(*(self.sizes[x] for x in letters), -1)
        power = NONE if any(q.power == NONE for q in vectors) else sum((q.power for q in vectors), Fraction(0))
        sizes = [q.size for q in vectors]
        rest = max(sum(sizes[:k] + sizes[k + 1 :], q.rest) for k, q in enumerate(vectors))
        return Leading(letters, letter, values, power, max(NONE, rest))

    def inner(self, x: Leading, y: Leading, letter: str) -> Leading:
        """Sum over an index that grows: n times an expectation; where that is zero, a random sum of size n^(1/2)."""
        space = self.space(letter)
        values, lengths = space.inner(x.values, y.values), [self.lengths(q) for q in (x, y)]
        values = np.where(np.abs(values) > 1e-12 * np.multiply.outer(*lengths), values, 0.0)
        shared = [k for k in y.letters if k in x.letters]
        names = {k: chr(0x2000 + i) for i, k in enumerate(shared)}
        letters = x.letters + "".join(names.get(k, k) for k in y.letters)
        whole = Leading(letters, "", values)
        for k, other in names.items():  # the same index on both sides
            diagonal = np.eye(self.sizes[k])
            self.sizes[other] = self.sizes[k]
            kept = "".join(z for z in whole.letters if z != other)
            whole = Leading(kept, "", _einsum([whole, Leading(k + other, "", diagonal)], kept, False))
        exact = x.power + y.power + 1 if min(x.power, y.power) > NONE and whole.values.any() else NONE
        rest = max(HALF + x.size + y.size, 1 + x.rest + y.size, 1 + x.size + y.rest, NONE)
        return replace(whole, power=exact, rest=rest)

    def lengths(self, q: Leading) -> Values:
        """Root-mean-squares of the entries of vectors, without their power of n."""
        space = self.space(q.over)
        flat = q.values.reshape(-1, q.values.shape[-1])
        squares = [float(space.inner(x, x)) for x in flat]
        return np.sqrt(np.maximum(0.0, np.array(squares).reshape(q.values.shape[:-1])))

    def space(self, letter: str) -> Space:
        return self.spaces[self.letters[letter]]


def added(parts: Sequence[Leading]) -> Leading:
    """The sum; what is of a smaller power than the largest is left out."""
    if len(parts) == 1:
        return parts[0]
    power, first = max(q.power for q in parts), parts[0]
    left = [q for q in parts if q.power == power]
    width = max(q.values.shape[-1] if q.over else 0 for q in left)
    values: Any = 0.0
    for q in left:
        turned = q.values.transpose(*(q.letters.index(x) for x in first.letters), *([-1] if q.over else []))
        values = values + (
            np.pad(turned, [(0, 0)] * len(q.letters) + [(0, width - turned.shape[-1])]) if q.over else turned
        )
    rest = max(max(q.rest for q in parts), max((q.power for q in parts if q.power < power), default=NONE))
    return Leading(first.letters, first.over, values, power, rest)


def named(q: Leading, own: str, factor: Factor) -> Leading:
    """A signal with the letters that it has in a statement."""
    return q.renamed(dict(zip(own, factor.letters, strict=True)))


def numbers(q: Leading) -> Values:
    """Limits of numbers; those of a negative power vanish."""
    return q.values if q.power == 0 else np.zeros_like(q.values)


def levelled(q: Leading) -> Leading:
    return q if q.power == 0 else replace(q, values=np.zeros_like(q.values), power=Fraction(0))


def _einsum(operands: Sequence[Leading], out: str, grows: bool) -> Values:
    letters = list(dict.fromkeys("".join(q.letters for q in operands) + out))
    numbers = {x: k for k, x in enumerate(letters)}
    atoms = len(letters)
    arguments: list[Any] = []
    for q in operands:
        arguments += [q.values, [*(numbers[x] for x in q.letters), *([atoms] if q.over else [])]]
    values: Values = np.einsum(*arguments, [*(numbers[x] for x in out), *([atoms] if grows else [])])
    return values
