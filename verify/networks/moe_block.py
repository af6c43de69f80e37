"""The MoE block as a torch module: independent replicas (seeds and sizes) trained side by side by one real optimizer.

Every parameter has a leading replica dimension; the optimizers are entrywise and the loss is a sum over replicas, so
each replica trains exactly as it would alone.
Read next: ``parts.py`` (splits what the block computes into named parts).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor, nn

from scaling_algebra.errors import UsageError
from scaling_algebra.spec.networks.library import MOE_BLOCK
from scaling_algebra.spec.optimizers import Optimizer
from scaling_algebra.spec.powers import Power
from scaling_algebra.spec.scaling import Scaling

from .replicas import D, Lot, Replicas

LOSS_SLOPE = 1.0
"""chi = dL/df, held constant: the loss is ``chi * f``, so chi is Theta(1) at every step."""

INIT = {"input": 1.0, "router": 1.0, "expert_in": 0.5, "expert_out": 1.0, "readout": 1.0}
LR = {"input": 1.0, "router": 1.5, "expert_in": 1.5, "expert_out": 1.5, "readout": 0.75}
EPS = 0.3
"""Base constants of init std, learning rate and Adam epsilon: the same at every size, so they change no exponent.

Near 1, because a tiny rate would hide the second step behind the first, and a large one makes small sizes heavy-tailed.
Halving or doubling every rate leaves the mean error of the slopes in regime III with SGD the same.
"""

DECAY = 0.1
"""Learning rate times weight decay of AdamW: scale-free, so torch's ``weight_decay`` is ``DECAY / lr``."""

CONSTANTS = {"init": INIT, "lr": LR, "eps": EPS, "lr_times_weight_decay": DECAY, "loss_slope": LOSS_SLOPE, "D": D}
"""The same at every size; pieces trained with others are not mixed (``cells.Setup.recipe``)."""

DTYPE = torch.float64
"""Adam gradients are near 1e-6 and smaller parts are differences of larger ones: float32 would blur them."""


def value(power: Power, dims: Mapping[str, float]) -> float:
    """The number a power of the axes stands for at these dimensions."""
    result = 1.0
    for axis, exponent in power.terms:
        result *= float(dims[axis]) ** float(exponent)
    return result


def sample(device: str) -> Tensor:
    """The one training input, shape (D,), unit length, independent of size and seed."""
    x = torch.randn(D, generator=torch.Generator("cpu").manual_seed(1), dtype=DTYPE, device="cpu")
    unit: Tensor = x / x.norm()
    return unit.to(device)


INPUT_FIRST = ("W3",)
"""Tensors that are stored as (input, output)."""


def matrices(symbol: str, weight: Tensor) -> Tensor:
    """A weight as (..., output, input), however it is stored."""
    return weight.mT if symbol in INPUT_FIRST else weight


class MoEBlock(nn.Module):
    """Minimal MoE block. Source: MSSP paper, App. J.1.

    h1 = W1 x; phi = sigmoid(Q h1); h2_i = W2_i h1; h3_i = W3_i h2_i; h3 = multiplier * sum_i phi_i h3_i; f = W4 h3.

    Args:
        replicas: sizes of the axes N, N_e, M and seeds; one replica is drawn for each (S of them).
        scaling: init stds, tied roles and aggregation multiplier.

    Attributes:
        weights: parameters by symbol, shapes W1 (S,N,D), Q (S,M,N), W2 (S,M,N_e,N), W3 (S,M,N_e,N), W4 (S,N). W3 is
            stored input first, so that with all experts side by side it is one matrix, as W2 is.
            Where there are several sizes, these are the largest.
        multiplier: of the aggregation, (S,1) in float64; where a lot has K, times K/M, as a batch sees it
            (``scaling_algebra.dynamics.sparse_routing``).
    """

    def __init__(self, replicas: Replicas, scaling: Scaling, dtype: torch.dtype = DTYPE) -> None:
        super().__init__()
        self.replicas = replicas
        shares = (lot.dims.get("K", lot.dims["M"]) / lot.dims["M"] for lot in replicas.lots)
        powers = (value(-scaling.alpha, lot.dims) for lot in replicas.lots)
        self.multiplier = replicas.each(a * b for a, b in zip(powers, shares, strict=True))[:, None]
        self.weights = nn.ParameterDict()
        device, drawn = replicas.device, _Draws(replicas, scaling)
        for role, tensor in MOE_BLOCK.tensors.items():
            shape = replicas.largest.shape(tensor.letters)
            stored = [*shape[:-2], *shape[:-3:-1]] if tensor.symbol in INPUT_FIRST else shape
            weight = torch.zeros(len(replicas), *stored, device=device, dtype=dtype)
            drawn.into(matrices(tensor.symbol, weight), role)
            self.weights[tensor.symbol] = nn.Parameter(weight)
        self.register_buffer("x", sample(device).to(dtype))
        self.x: Tensor

    def forward(self) -> Tensor:
        """The output f of every replica, shape (S,)."""
        w = self.weights
        h1 = w["W1"] @ self.x
        phi = self.replicas.present * torch.sigmoid((w["Q"] @ h1[..., None])[..., 0])
        h2 = torch.einsum("sika,sa->sik", w["W2"], h1)
        h3i = (h2[:, :, None] @ w["W3"])[:, :, 0]
        h3 = scaled(self.multiplier, torch.einsum("si,sib->sb", phi, h3i))
        f: Tensor = (w["W4"] * h3).sum(-1)
        return f


class _Draws:
    """Initial values, each replica from a generator of its own."""

    def __init__(self, replicas: Replicas, scaling: Scaling) -> None:
        self.replicas, self.scaling = replicas, scaling
        seeds = [seed for lot in replicas.lots for seed in lot.seeds]
        self.generators = [torch.Generator(replicas.device).manual_seed(seed) for seed in seeds]

    def into(self, weight: Tensor, role: str) -> None:
        """Draws one tensor of all replicas, with the letters of ``MOE_BLOCK`` in their order; padding is left alone."""
        letters, std = MOE_BLOCK.tensors[role].letters, self.scaling.tensors[role].init_std
        shared = MOE_BLOCK.tensors[role].experts if role in self.scaling.tied else ""
        for lot, rows in zip(self.replicas.lots, self.replicas.rows, strict=True):
            shape = lot.shape(letters)
            drawn = [1 if c == shared else s for s, c in zip(shape, letters, strict=True)]
            there = weight[(rows, *map(slice, shape))]
            if std is not None:
                for replica, generator in zip(there, self.generators[rows], strict=True):  # float32: drawn 5x faster
                    replica.copy_(torch.randn(drawn, generator=generator, device=self.replicas.device))
                there *= INIT[role] * value(std, lot.dims)


def scaled(multiplier: Tensor, x: Tensor) -> Tensor:
    """One number in float64 for each replica, (S, 1), times x, (S, ...): rounded once, to the dtype of x."""
    return (multiplier.view(-1, *[1] * (x.ndim - 1)) * x).to(x)


def parameters(lot: Lot) -> int:
    """Parameters of one replica."""
    return sum(prod(lot.shape(tensor.letters)) for tensor in MOE_BLOCK.tensors.values())


def torch_optimizer(model: MoEBlock, scaling: Scaling, optimizer: Optimizer) -> torch.optim.Optimizer:
    """The real ``torch.optim`` optimizer, one parameter group per tensor and size with its own lr, eps, weight decay.

    With several sizes the parameters are views, and gradients are to be written into those of ``model.weights``. Every
    group has two more keys: ``symbol`` of its tensor and ``rows`` of its replicas.

    Raises:
        UsageError: torch has no such optimizer, or the scaling lacks an epsilon that it needs.
    """
    if not optimizer.torch:
        raise UsageError(
            f"{optimizer.name} cannot be measured: torch has no such optimizer; use adam, which scales the same way"
        )
    groups = []
    for role, tensor in MOE_BLOCK.tensors.items():
        scale, weight = scaling.tensors[role], model.weights[tensor.symbol]
        for lot, rows in zip(model.replicas.lots, model.replicas.rows, strict=True):
            lr = LR[role] / optimizer.first * value(scale.lr, lot.dims)
            parameter = weight if len(model.replicas.lots) == 1 else _part(weight, rows)
            group: dict[str, object] = {"params": [parameter], "lr": lr, "symbol": tensor.symbol, "rows": rows}
            if optimizer.epsilon:
                if scale.eps is None:
                    raise UsageError(f"the scaling gives no epsilon for {role}, but {optimizer.name} needs one")
                group["eps"] = EPS / optimizer.first * value(scale.eps, lot.dims)
            if optimizer.decoupled_decay:
                group["weight_decay"] = DECAY / lr
            groups.append(group)
    made: torch.optim.Optimizer = getattr(torch.optim, optimizer.torch)(groups, **optimizer.options)
    return made


def _part(weight: nn.Parameter, rows: slice) -> nn.Parameter:
    """Some replicas of a parameter as one of their own: a view, and so is its gradient."""
    if weight.grad is None:
        weight.grad = torch.zeros_like(weight)
    part = nn.Parameter(weight.data[rows])
    part.grad = weight.grad[rows]
    return part
