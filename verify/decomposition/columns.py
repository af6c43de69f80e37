"""Signals as sums of a few columns, formed only where somebody reads their entries.

All parts of a signal are sums of the same columns: what initial tensors and their updates make of initial signals and
their changes. A column may stay a product of smaller tensors; the products of columns with each other give the sizes of
all their sums. With many narrow experts such signals would outweigh the weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import torch
from torch import Tensor

from scaling_algebra.verify.judging.fit import Array
from scaling_algebra.verify.networks.contraction import Labelled, contract

CACHED = 2**18
"""Entries of the columns of experts that are formed at once on a CPU."""

COLUMN, OTHER, STEP = "0", "1", "2"
"""Letters of columns, of the columns that they are multiplied with, and of past steps. No network has them."""


def rms(x: Tensor) -> Tensor:
    """Root-mean-square over the entries of each replica, (S, ...) -> (S,)."""
    if x.ndim == 1:
        return x.abs()
    flat = x.flatten(1)
    size: Tensor = torch.linalg.vector_norm(flat, dim=1, dtype=torch.float64)
    return size / flat.shape[1] ** 0.5


def relative_difference(pairs: Iterable[tuple[Tensor, Tensor]]) -> Array:
    """Largest difference within pairs (S, ...), relative to the second of them, for each replica, (S,); NaN where one
    is not finite."""
    differences = []
    for ours, theirs in pairs:
        difference, size = (rms(x).double() for x in (ours - theirs, theirs))
        differences.append(torch.where(size == 0, difference, difference / size))
    largest: Array = torch.stack(differences).amax(0).cpu().numpy()
    return largest


def over(x: Tensor, size: Tensor) -> Tensor:
    """``x / size`` for each replica, (S, ...) with (S,); what is exactly zero stays so."""
    return x.where(x == 0, x / size.view(-1, *[1] * (x.ndim - 1)).to(x))


def renamed(operands: Sequence[Labelled], old: str, new: str) -> list[Labelled]:
    """Tensors with other letters."""
    table = str.maketrans(old, new)
    return [(letters.translate(table), x) for letters, x in operands]


@dataclass(frozen=True)
class Group:
    """Columns that are a sum of products of tensors, some of which have the letter ``COLUMN``.

    Attributes:
        terms: products, with their signs.
        count: of columns.
    """

    terms: tuple[tuple[int, tuple[Labelled, ...]], ...]
    count: int

    @property
    def formed(self) -> bool:
        return len(self.terms) == 1 and len(self.terms[0][1]) == 1

    @property
    def operands(self) -> tuple[Labelled, ...]:
        """The tensors of the only product."""
        ((_, operands),) = self.terms
        return operands

    def summed(self, which: Sequence[int]) -> list[tuple[int, list[Labelled]]]:
        """The sum of some columns, without ``COLUMN``."""
        return [(sign, self._summed(operands, which)) for sign, operands in self.terms]

    def _summed(self, operands: Sequence[Labelled], which: Sequence[int]) -> list[Labelled]:
        """Products are linear in the one tensor that has ``COLUMN``; where several have it, columns are picked."""
        having = [k for k, (letters, _) in enumerate(operands) if COLUMN in letters]
        if len(having) > 1:
            picked = operands[0][1].new_zeros(self.count)
            picked[list(which)] = 1
            return [*operands, (COLUMN, picked.expand(len(operands[0][1]), -1))]
        if not having:
            return list(operands)
        found = list(operands)
        letters, x = found[having[0]]
        along = 1 + letters.index(COLUMN)
        if len(which) == self.count and self.count > 1:
            x = x.sum(along)
        else:
            total = x.select(along, which[0])
            for k in which[1:]:
                total = total + x.select(along, k)
            x = total
        found[having[0]] = (letters.replace(COLUMN, ""), x)
        return found


@dataclass(frozen=True)
class Columns:
    """Signals with the same index letters, in groups.

    Attributes:
        letters: of each signal; ``experts``: those of experts among them.
        keys: numbers of the columns, counted through all groups, that a signal is the sum of, by its name; no number
            for what is exactly zero.
        sizes: of all letters.
        like: a tensor of the replicas and the type of the entries.
    """

    letters: str
    groups: tuple[Group, ...]
    keys: Mapping[Any, tuple[int, ...]]
    sizes: Mapping[str, int]
    like: Tensor
    experts: str = ""

    def sum(self, names: Iterable[Any]) -> SignalEntries:
        """The sum of some signals, by their names."""
        return SignalEntries(self.letters, self, tuple(k for name in names for k in self.keys[name]))

    @property
    def formed(self) -> bool:
        return all(group.formed for group in self.groups)

    def entries(self, which: Sequence[int]) -> Tensor:
        """Entries of a sum of columns, (S, *letters)."""
        total: Tensor | None = None
        first = 0
        for group in self.groups:
            some = [k - first for k in which if first <= k < first + group.count]
            for sign, operands in group.summed(some) if some else ():
                part = contract(operands, self.letters, self.sizes)
                total = (part if sign > 0 else -part) if total is None else total + sign * part
            first += group.count
        shape = [self.sizes[x] for x in self.letters]
        return self.like.new_zeros(len(self.like), *shape) if total is None else total

    def rms(self, which: Sequence[int]) -> Tensor:
        """Root-mean-square of a sum of columns over the entries of each replica, (S,)."""
        if self.formed:
            return rms(self.entries(which))
        some = list(which)
        return self.products[:, some][:, :, some].sum((1, 2)).clamp(min=0).sqrt()

    @cached_property
    def products(self) -> Tensor:
        """The mean over entries of the product of any two columns, (S, c, c), in float64, with the columns of few
        experts formed at once, so that they stay in a cache."""
        letter = self.experts[0]
        rest = self.letters.replace(letter, "")
        count, inner = sum(group.count for group in self.groups), prod(self.sizes[x] for x in rest)
        total = self.like.new_zeros(len(self.like), count, count, dtype=torch.float64)
        cached = CACHED if self.like.device.type == "cpu" else 2**10 * CACHED
        together = max(1, cached // (len(self.like) * count * inner))
        for first in range(0, self.sizes[letter], together):
            columns = self._of_experts(letter, rest, slice(first, first + together)).double()
            total += (columns @ columns.mT).sum(1)
        return total / (self.sizes[letter] * inner)

    def _of_experts(self, letter: str, rest: str, some: slice) -> Tensor:
        """All columns of some experts, (S, experts, columns, entries)."""
        made, parts = dict[tuple[int, ...], Tensor](), []
        for group in self.groups:
            total: Tensor | None = None
            for sign, operands in group.terms:
                key = tuple(id(x) for _, x in operands)
                if key not in made:
                    cut = [(x, _cut(t, 1 + x.index(letter), some) if letter in x else t) for x, t in operands]
                    made[key] = contract(cut, letter + COLUMN + rest, self.sizes)
                total = (made[key] if sign > 0 else -made[key]) if total is None else total + sign * made[key]
            assert total is not None
            parts.append(total)
        whole = torch.cat(parts, 2)
        return whole.reshape(*whole.shape[:3], -1)


def _cut(x: Tensor, along: int, some: slice) -> Tensor:
    return x[(slice(None),) * along + (some,)]


class SignalEntries:
    """Entries of a signal with its index letters, (S, *letters); those of a sum of columns are formed when they are
    first read.

    Args:
        made: the entries, or the columns.
        which: numbers of the columns.
    """

    def __init__(self, letters: str, made: Tensor | Columns, which: tuple[int, ...] = ()) -> None:
        self.letters, self.made, self.which = letters, made, which
        self.divisor: Tensor | None = None

    @cached_property
    def entries(self) -> Tensor:
        whole = self.made.entries(self.which) if isinstance(self.made, Columns) else self.made
        return whole if self.divisor is None else over(whole, self.divisor)

    def over(self, divisor: Tensor) -> SignalEntries:
        """The signal over a number for each replica, (S,)."""
        divided = SignalEntries(self.letters, self.made, self.which)
        divided.divisor = divisor
        return divided

    def rms(self) -> Tensor:
        """Root-mean-square over the entries of each replica, (S,)."""
        if isinstance(self.made, Columns) and "entries" not in self.__dict__:
            size = self.made.rms(self.which)
            return size if self.divisor is None else over(size, self.divisor)
        return rms(self.entries)
