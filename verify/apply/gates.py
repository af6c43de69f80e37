"""What a gate brings to the sum over experts: read from a model's configuration, measured on its router.

A router is copied to the CPU, and its weights are set three times: to zero, so that all logits are alike; to rows that
are alike, which a softmax cannot tell from that; and at random. Read next: ``plans.py`` (what is left to multiply).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from .families import AGGREGATION, Family

SCALES = ("routed_scaling_factor", "route_scale", "router_scaling_factor", "moe_routed_scaling_factor")
"""Names in configurations of a number that multiplies the weights of the chosen experts."""
SHARED = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
TOKENS = 16


@dataclass(frozen=True)
class Gate:
    """What the weights of the chosen experts bring to their sum.

    Attributes:
        brings: a key of ``AGGREGATION``; empty where it is not known. scale: what multiplies the weights.
        shared: experts that every token takes, beside the sum. measured: on the router itself, not read.
    """

    brings: str = ""
    scale: float = 1.0
    shared: int = 0
    measured: bool = False

    def weight(self, sizes: Mapping[str, int]) -> float:
        """Of one chosen expert, where all logits are alike; up to a constant."""
        return self.scale / sizes.get(self.brings.removeprefix("1/"), 1)

    @property
    def about(self) -> str:
        """A line each, for reports."""
        how = f"{'measured' if self.measured else 'read'}; {AGGREGATION[self.brings]}"
        parts = [f"the gate brings {self.brings} to the sum over experts ({how})"]
        parts += [f"times {self.scale:.6g}: keep it at every size"] * (self.scale != 1)
        parts += [f"{self.shared} shared, outside of that sum: dense layers"] * bool(self.shared)
        return "; ".join(parts)


NO_GATE = Gate()


def gate_from(config: Any, family: Family | None, router: nn.Module | None) -> Gate:
    """The gate of a model: its configuration's, with what can be measured in its place."""
    names = [getattr(config, name, None) for name in SHARED]
    read = Gate(family.gate if family else "", _scale(config), next((n for n in names if isinstance(n, int)), 0))
    measured = None if router is None else _measured(router, read.scale)
    return read if measured is None else replace(read, brings=measured[0], scale=measured[1], measured=True)


def _scale(config: Any) -> float:
    given = (getattr(config, name, None) for name in SCALES)
    return next((float(x) for x in given if isinstance(x, int | float) and x > 0), 1.0)


def _measured(router: nn.Module, scale: float) -> tuple[str, float] | None:
    """What it brings, and times what; None of a module that gives no weights and indices of chosen experts."""
    try:
        own = copy.deepcopy(router).to_empty(device="cpu").float().eval()
        for x in (*own.parameters(), *own.buffers()):
            if x.is_floating_point():
                x.data.zero_()
        matrix = next(x for x in own.parameters() if x.dim() == 2)
        drawn = torch.Generator().manual_seed(1)
        tokens, width = torch.rand(TOKENS, matrix.shape[1], generator=drawn), matrix.shape[1]
        seen = []
        for x in (torch.zeros(()), torch.full((), 1 / width), torch.randn(matrix.shape, generator=drawn)):
            matrix.data.copy_(x.expand_as(matrix))
            with torch.no_grad():
                seen.append(_chosen(own(tokens)))
    except Exception:  # a module of somebody else, called in a way that it need not know
        return None
    flat, moved, random = seen
    if flat is None or moved is None or random is None:
        return None
    if torch.allclose(random.sum(-1), flat.sum(-1), rtol=1e-3):
        return "1/K", float(f"{flat.sum(-1).mean():.4g}")
    if not torch.allclose(flat, moved, rtol=1e-3):
        return "1", scale
    return ("1/M", scale) if torch.allclose(flat * len(matrix), torch.tensor(scale), rtol=1e-3) else None


def _chosen(out: Any) -> Tensor | None:
    """The weights of the chosen experts, (tokens, K): as large as a tensor of indices beside them."""
    tensors = [x for x in out if isinstance(x, Tensor) and x.dim() == 2] if isinstance(out, tuple | list) else []
    sizes = [x.shape for x in tensors if not x.is_floating_point()]
    return next((x for x in tensors if x.is_floating_point() and x.shape in sizes), None)
