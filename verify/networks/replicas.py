"""Replicas that train side by side: their sizes and random streams, the training input, initial tensors."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from scaling_algebra.errors import UsageError
from scaling_algebra.spec.axes import FIXED
from scaling_algebra.spec.networks.language import DATA, Network

DTYPE = torch.float64
"""Adam gradients are near 1e-6 and smaller parts are differences of larger ones: float32 would blur them."""


@dataclass(frozen=True)
class Draw:
    """Networks of one size on a device: S replicas.

    Attributes:
        dims: size of every axis that a network has.
        seeds: of what grows, by replica.
        shared: of what does not grow, by replica: the same at every size, so that limits are conditional on it.
        growing: the axes that grow; None: every one that may.
    """

    dims: Mapping[str, int]
    seeds: Sequence[int]
    shared: Sequence[int] = ()
    device: str = "cpu"
    growing: Collection[str] | None = None

    def __len__(self) -> int:
        return len(self.seeds)

    def grows(self, axis: str) -> bool:
        """Does this axis grow?"""
        return axis not in FIXED if self.growing is None else axis in self.growing


def sample(network: Network, sizes: Mapping[str, int], draw: Draw, name: str = DATA) -> Tensor:
    """The training input, or a constant, of unit length along the input dimension, independent of size and seed; a
    constant that is a number, or along an axis that grows, such as the load of every expert, is positive.

    Raises:
        UsageError: the size of the input grows, so that it cannot be the same at every size.
    """
    letters = network.signals.get(name, "")
    grows = [x for x in letters if draw.grows(network.axes[x])]
    if grows and name == DATA:
        why = f"{name} has the letter {grows[0]!r} of a growing axis; measure fixed data only"
        raise UsageError(f"{network.name}: {why}")
    shape = [sizes[x] for x in letters]
    seed = 1 + [DATA, *network.constants].index(name)
    x = torch.randn(shape, generator=torch.Generator("cpu").manual_seed(seed), dtype=DTYPE, device="cpu")
    along = [k for k, letter in enumerate(letters) if network.axes[letter] == "D"]
    x = x.abs() if grows or not letters else x
    unit: Tensor = x / torch.linalg.vector_norm(x, dim=along, keepdim=True) if along else x
    return unit.to(draw.device)


def fill(weight: Tensor, shape: Sequence[int], streams: Sequence[torch.Generator]) -> None:
    """Draws standard normal values for every replica of a weight, (S, ...), from a stream for each.

    Args:
        shape: of what is drawn; a dimension of size 1 is repeated.
    """
    for replica, stream in zip(weight, streams, strict=True):
        replica.copy_(torch.randn(shape, generator=stream, device=weight.device))  # float32: 5x faster
