"""The MoE block as a torch module: replicas of one size trained side by side by one real optimizer.

Every parameter has a leading replica dimension; the optimizers are entrywise and the loss is a sum over replicas, so
each replica trains exactly as it would alone.
Read next: ``parts.py`` (splits what the block computes into named parts).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from scaling_algebra.errors import UsageError
from scaling_algebra.spec.networks import language
from scaling_algebra.spec.networks.library import MOE_BLOCK
from scaling_algebra.spec.optimizers import Trained
from scaling_algebra.spec.scaling import Scaling
from scaling_algebra.verify.hardware import generators

from .scales import DECAY, EPS, INIT, LR, NEGLIGIBLE, D
from .steppers import Fold, Group, assembled

DTYPE = torch.float64
"""Adam gradients are near 1e-6 and smaller parts are differences of larger ones: float32 would blur them."""

INPUT_FIRST = ("W3",)
"""Tensors that are stored as (input, output)."""


@dataclass(frozen=True)
class Replicas:
    """Networks of one size, N, N_e, M (and K), on a device: one for each seed, S of them."""

    dims: Mapping[str, int]
    seeds: Sequence[int]
    device: str = "cpu"

    def __len__(self) -> int:
        return len(self.seeds)

    def shape(self, letters: str) -> list[int]:
        """Sizes of the indices of a tensor of ``MOE_BLOCK``."""
        return [{"D": D, **self.dims}[MOE_BLOCK.axes[letter]] for letter in letters]


def sample(device: str) -> Tensor:
    """The one training input, shape (D,), unit length, independent of size and seed."""
    x = torch.randn(D, generator=torch.Generator("cpu").manual_seed(1), dtype=DTYPE, device="cpu")
    unit: Tensor = x / x.norm()
    return unit.to(device)


def stored(tensor: language.Tensor) -> str:
    """The letters of a tensor in the order in which it is stored."""
    x = tensor.letters
    return x[:-2] + x[-1] + x[-2] if tensor.symbol in INPUT_FIRST else x


def matrices(symbol: str, weight: Tensor) -> Tensor:
    """A weight as (..., output, input), however it is stored."""
    return weight.mT if symbol in INPUT_FIRST else weight


class MoEBlock(nn.Module):
    """Minimal MoE block. Source: MSSP paper, App. J.1.

    h1 = W1 x; phi = sigmoid(Q h1); h2_i = W2_i h1; h3_i = W3_i h2_i; h3 = multiplier * sum_i phi_i h3_i; f = W4 h3.

    Args:
        scaling: init stds, tied roles and aggregation multiplier.

    Attributes:
        weights: parameters by symbol, shapes W1 (S,N,D), Q (S,M,N), W2 (S,M,N_e,N), W3 (S,M,N_e,N), W4 (S,N). W3 is
            stored input first, so that with all experts side by side it is one matrix, as W2 is.
        multiplier: of the aggregation; where there is a K, times K/M, as a batch sees it
            (``scaling_algebra.dynamics.sparse_routing``).
    """

    def __init__(self, replicas: Replicas, scaling: Scaling, dtype: torch.dtype = DTYPE) -> None:
        super().__init__()
        self.replicas, self.scaling, dims = replicas, scaling, replicas.dims
        self.multiplier = (1 / scaling.alpha).at(dims) * dims.get("K", dims["M"]) / dims["M"]
        self.weights = nn.ParameterDict()
        streams = generators(replicas.seeds, replicas.device)
        for role, tensor in MOE_BLOCK.tensors.items():
            shape, std = replicas.shape(tensor.letters), scaling.tensors[role].init_std
            weight = torch.zeros(len(replicas), *replicas.shape(stored(tensor)), device=replicas.device, dtype=dtype)
            if std is not None:
                shared = tensor.experts if role in scaling.tied else ""
                drawn = [1 if letter == shared else s for s, letter in zip(shape, tensor.letters, strict=True)]
                for replica, stream in zip(matrices(tensor.symbol, weight), streams, strict=True):
                    replica.copy_(torch.randn(drawn, generator=stream, device=replicas.device))  # float32: 5x faster
                weight *= INIT[role] * std.at(dims)
            self.weights[tensor.symbol] = nn.Parameter(weight)
        self.register_buffer("x", sample(replicas.device).to(dtype))
        self.x: Tensor

    def forward(self) -> Tensor:
        """The output f of every replica, shape (S,)."""
        w = self.weights
        h1 = w["W1"] @ self.x
        phi = torch.sigmoid((w["Q"] @ h1[..., None])[..., 0])
        h2 = torch.einsum("sika,sa->sik", w["W2"], h1)
        h3i = (h2[:, :, None] @ w["W3"])[:, :, 0]
        h3 = self.multiplier * torch.einsum("si,sib->sb", phi, h3i)
        f: Tensor = (w["W4"] * h3).sum(-1)
        return f

    def count(self) -> int:
        """Parameters of one replica."""
        return sum(p[0].numel() for p in self.parameters())

    def optimizer(self, trained: Trained) -> torch.optim.Optimizer:
        """The real optimizer, or several as one, one parameter group per tensor with its own lr, eps and weight decay.

        Every group has one more key: the ``symbol`` of its tensor.

        Raises:
            UsageError: it cannot be trained, or the scaling lacks an epsilon that it needs.
        """
        groups, dims = list[Group](), self.replicas.dims
        for role, tensor in MOE_BLOCK.tensors.items():
            rule = trained.of(role)
            scale = self.scaling.tensors[role]
            lr = LR[role] / rule.first * scale.lr.at(dims)
            group: dict[str, object] = {"params": [self.weights[tensor.symbol]], "lr": lr, "symbol": tensor.symbol}
            if rule.epsilon:
                if scale.eps is None:
                    raise UsageError(f"the scaling gives no epsilon for {role}, but {rule.name} needs one")
                group["eps"] = EPS / rule.first * scale.eps.at(dims)
            if rule.negligible:
                group["eps"] = NEGLIGIBLE
            if rule.decoupled_decay:
                group["weight_decay"] = DECAY / lr
            if rule.folded:
                group["fold"] = Fold.of(MOE_BLOCK, role, stored(tensor), rule)
            groups.append((rule, group))
        return assembled(groups)
