"""Signals as sums of a few columns, formed only where somebody reads their entries.

All parts of a signal are sums of the same columns: what initial tensors and their updates make of initial signals and
their changes. A column may stay a product of smaller tensors; the products of columns with each other give the sizes of
all their sums. With many narrow experts such signals would outweigh the weights.
Read next: ``parts.py`` (columns forward), ``gradients.py`` (columns backward).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from scaling_algebra.verify.judging.fit import Array
from scaling_algebra.verify.networks.contraction import Labelled, contract

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
    """Columns that are one product of tensors: some of these have the letter ``COLUMN``.

    Attributes:
        count: of columns.
    """

    operands: tuple[Labelled, ...]
    count: int

    @property
    def formed(self) -> bool:
        return len(self.operands) == 1

    def summed(self, which: Sequence[int]) -> list[Labelled]:
        """The sum of some columns as a product of tensors, without ``COLUMN``."""
        having = [k for k, (letters, _) in enumerate(self.operands) if COLUMN in letters]
        if len(having) > 1:
            letters, x = self.operands[having[0]]
            chosen = x.new_zeros(self.count)
            chosen[list(which)] = 1
            return [*self.operands, (COLUMN, chosen.expand(len(x), -1))]
        operands = list(self.operands)
        letters, x = operands[having[0]]
        along = 1 + letters.index(COLUMN)
        if len(which) == 1:
            x = x.select(along, which[0])
        elif len(which) == self.count:
            x = x.sum(along)
        else:
            total = x.select(along, which[0])
            for k in which[1:]:
                total = total + x.select(along, k)
            x = total
        operands[having[0]] = (letters.replace(COLUMN, ""), x)
        return operands


@dataclass(frozen=True)
class Columns:
    """Signals with the same index letters, in groups.

    Attributes:
        letters: of each signal.
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
    """Letters of experts: products over experts are summed last."""

    def sum(self, names: Iterable[Any]) -> SignalEntries:
        """The sum of some signals, by their names."""
        return SignalEntries(self.letters, self, tuple(k for name in names for k in self.keys[name]))

    def split(self, which: Sequence[int]) -> list[tuple[Group, list[int]]]:
        """Some columns by their groups."""
        found, first = [], 0
        for group in self.groups:
            some = [k - first for k in which if first <= k < first + group.count]
            if some:
                found.append((group, some))
            first += group.count
        return found

    @property
    def formed(self) -> bool:
        return all(group.formed for group in self.groups)

    def entries(self, which: Sequence[int]) -> Tensor:
        """Entries of a sum of columns, (S, *letters)."""
        total: Tensor | None = None
        for group, some in self.split(which):
            part = contract(group.summed(some), self.letters, self.sizes)
            total = part if total is None else total + part
        shape = [self.sizes[x] for x in self.letters]
        return self.like.new_zeros(len(self.like), *shape) if total is None else total

    @cached_property
    def products(self) -> Tensor:
        """The mean over entries of the product of any two columns, (S, c, c), in float64."""
        rows = []
        for k, a in enumerate(self.groups):
            row = [rows[j][k].mT for j in range(k)]
            for b in self.groups[k:]:
                row.append(self._met(a, b))
            rows.append(row)
        whole = torch.cat([torch.cat(row, 2) for row in rows], 1)
        count = 1
        for x in self.letters:
            count *= self.sizes[x]
        return whole / count

    def _met(self, a: Group, b: Group) -> Tensor:
        """Inner products of the columns of two groups, (S, c, c)."""
        left = [(letters, x.double()) for letters, x in a.operands]
        hidden = STEP + COLUMN
        right = [(letters, x.double()) for letters, x in renamed(b.operands, hidden, "3" + OTHER)]
        met = contract([*left, *right], self.experts + COLUMN + OTHER, self.sizes)
        return met.flatten(1, -3).sum(1) if self.experts else met

    def rms(self, which: Sequence[int]) -> Tensor:
        """Root-mean-square of a sum of columns over the entries of each replica, (S,)."""
        if self.formed:
            return rms(self.entries(which))
        some = list(which)
        if not some:
            return self.like.new_zeros(len(self.like), dtype=torch.float64)
        return self.products[:, some][:, :, some].sum((1, 2)).clamp(min=0).sqrt()


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

