"""Signals as sums of a few columns: what initial tensors and their updates make of initial signals and their changes.

All parts of a signal are sums of the same columns, which come out of one product with each tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scaling_algebra.verify.judging.fit import Array

COLUMN = "0"
"""The letter of columns. No network has it."""


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


@dataclass(frozen=True)
class SignalEntries:
    """Entries of a signal with its index letters, (S, *letters)."""

    letters: str
    entries: Tensor

    def over(self, divisor: Tensor) -> SignalEntries:
        """The signal over a number for each replica, (S,)."""
        return SignalEntries(self.letters, over(self.entries, divisor))

    def rms(self) -> Tensor:
        """Root-mean-square over the entries of each replica, (S,)."""
        return rms(self.entries)


@dataclass(frozen=True)
class Columns:
    """Signals with the same index letters, as sums of columns.

    Attributes:
        entries: of every column, (S, columns, *letters).
        keys: numbers of the columns that a signal is the sum of, by its name; no number for what is exactly zero.
    """

    letters: str
    entries: Tensor
    keys: Mapping[Any, tuple[int, ...]]

    def sum(self, names: Iterable[Any]) -> SignalEntries:
        """The sum of some signals, by their names."""
        which = [k for name in names for k in self.keys[name]]
        if len(which) == 1:
            return SignalEntries(self.letters, self.entries[:, which[0]])
        every = which == list(range(self.entries.shape[1]))
        return SignalEntries(self.letters, (self.entries if every else self.entries[:, which]).sum(1))
