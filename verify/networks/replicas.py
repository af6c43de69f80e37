"""Replicas (seeds) of one or several sizes side by side: smaller networks are padded with zeros to the largest.

Padding changes nothing but rounding: both factors of a gradient are zero where they are padded, and every optimizer
here leaves an entry at zero that has no gradient. Only a gate is not zero at zero, so that padded experts are masked,
and means over entries count those that are there.
Read next: ``model.py`` (the network), ``stacks.py`` (which sizes are trained together).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from math import prod

import torch
from torch import Tensor

from scaling_algebra.spec.networks.library import MOE_BLOCK

D = 8
"""Input dimension, the same at every size."""

LETTERS = {
    **MOE_BLOCK.signals,
    **{adjoint.name.partition(".")[0]: MOE_BLOCK.signals[adjoint.signal] for adjoint in MOE_BLOCK.adjoints},
    **{tensor.symbol: tensor.letters for tensor in MOE_BLOCK.tensors.values()},
}
"""Indices of signals, of gradients with respect to them, and of tensors."""


@dataclass(frozen=True)
class Lot:
    """Replicas of one size: its N, N_e, M (and K), and one replica for each seed."""

    dims: Mapping[str, int]
    seeds: Sequence[int]

    def shape(self, letters: str) -> list[int]:
        """Sizes of these indices."""
        return [{"D": D, **self.dims}[MOE_BLOCK.axes[letter]] for letter in letters]


@dataclass(frozen=True)
class Replicas:
    """All replicas of some lots, one after the other, on a device; S of them."""

    lots: tuple[Lot, ...]
    device: str = "cpu"

    @classmethod
    def of(cls, dims: Mapping[str, int], seeds: Sequence[int], device: str = "cpu") -> Replicas:
        """Replicas of one size."""
        return cls((Lot(dims, seeds),), device)

    def __len__(self) -> int:
        return sum(len(lot.seeds) for lot in self.lots)

    @cached_property
    def rows(self) -> list[slice]:
        """Where each lot is."""
        ends = accumulate((len(lot.seeds) for lot in self.lots), initial=0)
        return [slice(*pair) for pair in pairwise(ends)]

    @cached_property
    def largest(self) -> Lot:
        """The size of the tensors that hold all of them."""
        return Lot(widest(lot.dims for lot in self.lots), ())

    def each(self, values: Iterable[float]) -> Tensor:
        """One number for each lot, repeated for its replicas: (S,), in float64."""
        repeated = [x for x, lot in zip(values, self.lots, strict=True) for _ in lot.seeds]
        return torch.tensor(repeated, dtype=torch.float64, device=self.device)

    def entries(self, name: str) -> Tensor:
        """How many entries a signal, a gradient with respect to one, or a tensor has in each replica, (S,)."""
        return self._entries[indices(name)]

    @cached_property
    def _entries(self) -> dict[str, Tensor]:
        return {letters: self.each(prod(lot.shape(letters)) for lot in self.lots) for letters in LETTERS.values()}

    @cached_property
    def present(self) -> Tensor:
        """True for every expert that is there, False for padding: (S, M)."""
        experts = torch.arange(self.largest.dims["M"], device=self.device)
        return experts < self.each(lot.dims["M"] for lot in self.lots)[:, None]


def indices(name: str) -> str:
    """Letters of a quantity's indices: those of the signal, gradient or tensor that it is a part of."""
    return LETTERS[name.partition(".")[0]]


def widest(sizes: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The least dimensions that hold all of these."""
    found: dict[str, int] = {}
    for dims in sizes:
        found |= {axis: max(size, found.get(axis, 0)) for axis, size in dims.items()}
    return found
