"""Replicas that train side by side: sizes, random streams, training input, initial tensors."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from scaling_algebra.errors import UsageError
from scaling_algebra.spec.axes import FIXED
from scaling_algebra.spec.networks.language import DATA, Network

DTYPE = torch.float64
"""Adam's gradients are near 1e-6, and small parts are differences of larger ones: float32 is not precise enough."""


@dataclass(frozen=True)
class ReplicaDraw:
    """The random draw of S replicas of a network of one size: sizes, seeds and device.

    Attributes:
        dims: size of every axis that the network has.
        seeds: seeds of the tensors with a growing axis, one per replica.
        shared: seeds of all other tensors, one per replica; the same at every size, so that these tensors have the same
            initial values there.
        device: the device of the tensors.
        growing: the axes that grow; None if all axes without a fixed size do.
    """

    dims: Mapping[str, int]
    seeds: Sequence[int]
    shared: Sequence[int] = ()
    device: str = "cpu"
    growing: Collection[str] | None = None

    def __len__(self) -> int:
        return len(self.seeds)

    def grows(self, axis: str) -> bool:
        """Whether an axis grows with n in this comparison of sizes."""
        return axis not in FIXED if self.growing is None else axis in self.growing


def sample_input(network: Network, sizes: Mapping[str, int], draw: ReplicaDraw, name: str = DATA) -> Tensor:
    """Returns the training input, or another input of the network (a constant), as random numbers that do not depend on
    the seeds of the replicas.

    They have unit norm along the data dimension. A constant that is a number, or has a growing axis (such as the load
    of every expert), is positive.

    Raises:
        UsageError: the input has a growing axis, so it cannot be the same at every size.
    """
    indices = network.signals.get(name, "")
    grows = [x for x in indices if draw.grows(network.axes[x])]
    if grows and name == DATA:
        why = (
            f"{name} has the index {grows[0]!r} of a growing axis, but the input must be the same at every size; use "
            "an index of a fixed axis"
        )
        raise UsageError(f"{network.name}: {why}")
    shape = [sizes[x] for x in indices]
    seed = 1 + [DATA, *network.constants].index(name)
    x = torch.randn(shape, generator=torch.Generator("cpu").manual_seed(seed), dtype=DTYPE, device="cpu")
    along = [k for k, index in enumerate(indices) if network.axes[index] == "D"]
    x = x.abs() if grows or not indices else x
    unit: Tensor = x / torch.linalg.vector_norm(x, dim=along, keepdim=True) if along else x
    return unit.to(draw.device)


def fill_normal(weight: Tensor, shape: Sequence[int], streams: Sequence[torch.Generator]) -> None:
    """Fills a weight (S, ...) in place with standard normal values, for each replica from its own random stream.

    Args:
        weight: the tensor to fill.
        shape: shape that is drawn per replica; a dimension of size 1 is broadcast.
        streams: one random generator per replica.
    """
    for replica, stream in zip(weight, streams, strict=True):
        replica.copy_(torch.randn(shape, generator=stream, device=weight.device))  # float32: 5x faster
