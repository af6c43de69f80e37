"""What a gate brings to the sum over experts: read from a model's configuration, measured on its router.

A router is copied to the CPU, and its weights are set three times: to zero, so that all logits are alike; to rows that
are alike, which a softmax cannot tell from that; and at random.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

AGGREGATION: Mapping[str, str] = {
    "1/K": "the weights of the chosen experts sum to 1: the gate brings 1/K to their sum; K and M may change, and "
    "nothing is left to multiply",
    "1/M": "a softmax over all experts, not renormalised: the gate brings 1/M to the sum over the K chosen; where "
    "K / M changes multiply that sum by M / K, target over base",
    "1": "sigmoids, not renormalised: the gate brings nothing to the sum over the chosen experts, which needs 1/M",
}
"""What a gate means for transfer, by what it brings to the sum over experts."""
SCALES = ("routed_scaling_factor", "route_scale", "router_scaling_factor", "moe_routed_scaling_factor")
"""Names in configurations of a number that multiplies the weights of the chosen experts."""
SHARED = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
SCORES = {"softmax": "1/M", "sigmoid": "1"}
"""What weights bring that are not renormalised, by ``scoring_func``."""
TOKENS = 16


@dataclass(frozen=True)
class Gate:
    """The factor that the weights of the chosen experts bring to their sum.

    Attributes:
        brings: a key of ``AGGREGATION``; empty where it is not known. scale: what multiplies the weights.
        shared: experts that every token takes, beside the sum. measured: on the router itself; else read, or given.
    """

    brings: str = ""
    scale: float = 1.0
    shared: int = 0
    measured: bool = False

    def weight(self, sizes: Mapping[str, int]) -> float:
        """The weight of one chosen expert where all logits are equal, up to a constant."""
        return self.scale / sizes.get(self.brings.removeprefix("1/"), 1)

    @property
    def about(self) -> str:
        """A line for reports."""
        how = "measured on its router" if self.measured else "as the configuration or the caller says"
        scale = "" if self.scale == 1 else f", times {self.scale:.6g} at every size"
        shared = f"; {self.shared} shared experts are dense layers outside of that sum" if self.shared else ""
        return f"gate, {how}{scale}: {AGGREGATION[self.brings]}{shared}"


def gate_from(config: Any, router: nn.Module | None) -> Gate:
    """The gate of a model: what its configuration says, with what its router shows in the place of that."""

    def configured(*names: str) -> Any:
        return next((x for name in names if (x := getattr(config, name, None)) is not None), None)

    brings = {True: "1/K", False: SCORES.get(configured("scoring_func"), "")}.get(configured("norm_topk_prob"), "")
    read = Gate(brings, float(configured(*SCALES) or 1), configured(*SHARED) or 0)
    try:
        brings, scale = _measured(router, read.scale)
    except Exception:  # a module of somebody else, called in a way that it need not know
        return read
    return replace(read, brings=brings, scale=scale, measured=True)


def _measured(router: Any, scale: float) -> tuple[str, float]:
    """The key of ``AGGREGATION``, and the scale of the weights.

    Raises:
        Exception: it gives no weights and indices of chosen experts, or others than these three.
    """
    copied = copy.deepcopy(router).to_empty(device="cpu").float().eval()
    for x in (*copied.parameters(), *copied.buffers()):
        if x.is_floating_point():
            x.data.zero_()
    matrix = next(x for x in copied.parameters() if x.dim() == 2)
    drawn, (experts, width) = torch.Generator().manual_seed(1), matrix.shape
    tokens = torch.rand(TOKENS, width, generator=drawn)

    def weights(values: Tensor) -> Tensor:
        """Weights of the chosen experts, (tokens, K): the output that has the shape of an output of indices."""
        matrix.data.copy_(values.expand_as(matrix))
        with torch.no_grad():
            outputs = [x for x in copied(tokens) if isinstance(x, Tensor) and x.dim() == 2]
        sizes = [x.shape for x in outputs if not x.is_floating_point()]
        return next(x for x in outputs if x.is_floating_point() and x.shape in sizes)

    flat, moved = weights(torch.zeros(())), weights(torch.full((), 1 / width))
    random = weights(torch.randn(matrix.shape, generator=drawn))
    if torch.allclose(random.sum(-1), flat.sum(-1), rtol=1e-3):
        return "1/K", float(f"{flat.sum(-1).mean():.4g}")
    if not torch.allclose(flat, moved, rtol=1e-3):
        return "1", scale
    if torch.allclose(flat * experts, torch.tensor(scale), rtol=1e-3):
        return "1/M", scale
    raise ValueError("weights of no gate that is known")
