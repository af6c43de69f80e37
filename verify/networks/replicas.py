"""Replicas of a network that train side by side: random streams, initial tensors, the real optimizer.

Every parameter has a leading replica dimension; the optimizers are entrywise and the loss is a sum over replicas, so
each replica trains exactly as it would alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from scaling_algebra.errors import UsageError
from scaling_algebra.spec.axes import FIXED
from scaling_algebra.spec.networks import language
from scaling_algebra.spec.networks.language import DATA, Network
from scaling_algebra.spec.optimizers import Trained
from scaling_algebra.spec.scaling import Scaling
from scaling_algebra.verify.hardware import generators

from .scales import DECAY, constants, every_size
from .steppers import Fold, Group, assembled, group

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
    """The training input, or a constant, of unit length along the input dimension, independent of size and seed.

    Raises:
        UsageError: its size grows, so that it cannot be the same at every size.
    """
    letters = network.signals.get(name, "")
    grows = [x for x in letters if draw.grows(network.axes[x])]
    if grows:
        why = f"{name} has the letter {grows[0]!r} of a growing axis; measure fixed data only"
        raise UsageError(f"{network.name}: {why}")
    shape = [sizes[x] for x in letters]
    seed = 1 + [DATA, *network.constants].index(name)
    x = torch.randn(shape, generator=torch.Generator("cpu").manual_seed(seed), dtype=DTYPE, device="cpu")
    along = [k for k, letter in enumerate(letters) if network.axes[letter] == "D"]
    unit: Tensor = x / torch.linalg.vector_norm(x, dim=along, keepdim=True) if along else x
    return unit.to(draw.device)


def fill(weight: Tensor, shape: Sequence[int], streams: Sequence[torch.Generator]) -> None:
    """Draws standard normal values for every replica of a weight, (S, ...), from a stream for each.

    Args:
        shape: of what is drawn; a dimension of size 1 is repeated.
    """
    for replica, stream in zip(weight, streams, strict=True):
        replica.copy_(torch.randn(shape, generator=stream, device=weight.device))  # float32: 5x faster


class Replicated(nn.Module):
    """Replicas of a network with the powers of a scaling.

    Args:
        scaling: init stds, tied roles and multipliers.

    Attributes:
        weights: parameters, shape (S, *letters), by role.
        sizes: of every index letter.
        x: the training input.
    """

    def __init__(self, network: Network, draw: Draw, scaling: Scaling, dtype: torch.dtype = DTYPE) -> None:
        super().__init__()
        self.network, self.draw, self.scaling, self.constants = network, draw, scaling, constants(network)
        dims = every_size(network, draw.dims)
        self.sizes = {letter: dims[axis] for letter, axis in network.letters.items() if axis in dims}
        self.weights: dict[str, nn.Parameter] = {}
        seeded, shared = generators(draw.seeds, draw.device), generators(draw.shared, draw.device)
        for role, tensor in network.tensors.items():
            memory, std = self.memory(tensor), scaling.tensors[role].init_std
            shape = [self.sizes[x] for x in memory]
            weight = torch.zeros(len(draw), *shape, device=draw.device, dtype=dtype)
            weight = weight.permute(0, *(1 + memory.index(x) for x in tensor.letters))
            if std is not None:
                alike = tensor.experts if role in scaling.tied else ""
                drawn = [1 if x == alike else self.sizes[x] for x in tensor.letters]
                fill(weight, drawn, seeded if self.grows(tensor.letters) else shared)
                weight *= self.constants.init_of(role) * std.at(draw.dims)
            self.weights[role] = nn.Parameter(weight)
        self.parameters_in_order = nn.ParameterList(self.weights.values())  # not by name, which may be any text
        self.register_buffer("x", sample(network, self.sizes, draw).to(dtype))
        self.x: Tensor

    def memory(self, tensor: language.Tensor) -> str:
        """The letters of a tensor in the order of memory."""
        return tensor.letters

    def grows(self, letters: str) -> bool:
        """Has a tensor with these letters an index of an axis that grows?"""
        return any(self.draw.grows(self.network.axes[x]) for x in letters)

    def count(self) -> int:
        """Parameters of one replica."""
        return sum(p[0].numel() for p in self.parameters())

    def optimizer(self, trained: Trained) -> torch.optim.Optimizer:
        """The real optimizer, or several as one, one parameter group per tensor with its own lr, eps and weight decay.

        Every group has one more key: the ``symbol`` of its tensor, which is its role.

        A frozen tensor is in no group.

        Raises:
            UsageError: it cannot be trained, or the scaling lacks an epsilon that it needs.
        """
        groups, dims, c = list[Group](), self.draw.dims, self.constants
        for role, tensor in self.network.tensors.items():
            rule, scale = trained.of(role), self.scaling.tensors[role]
            if scale.lr is None:
                continue
            if rule.epsilon and scale.eps is None:
                raise UsageError(f"the scaling gives no epsilon for {role}, but {rule.name} needs one")
            lr = c.lr_of(role, rule) / rule.first * scale.lr.at(dims)
            eps = 0.0 if scale.eps is None else c.eps / rule.first * scale.eps.at(dims)
            options: dict[str, object] = {"symbol": role}
            if rule.folded:
                options["fold"] = Fold.of(self.network, role, tensor.letters, rule)
            groups.append(group(rule, self.weights[role], lr, eps, DECAY, **options))
        return assembled(groups)
