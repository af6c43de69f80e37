"""The MLP MoE of the MSSP paper, App. P.1, for ``study transfer --model benchmarks/paper.py:build --data teacher``.

The paper trains 1,000 updates of 50 samples, one pass. Its images (TinyImageNet) are not in this repository.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

INPUTS, CLASSES = 16, 10


class PaperBlock(nn.Module):
    """An input layer, a sigmoid router, experts of two layers, their mean, and a readout."""

    def __init__(self, n: int, width: int, experts: int) -> None:
        super().__init__()
        self.input = nn.Linear(INPUTS, n, bias=False)
        self.router = nn.Linear(n, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, n) / n**0.5)
        self.down = nn.Parameter(torch.randn(experts, n, width) / width**0.5)
        self.readout = nn.Linear(n, CLASSES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = gelu(self.input(x))
        gates = self.router(h).sigmoid() / self.router.out_features
        inner = gelu(torch.einsum("ekn,bn->bek", self.up, h))
        return self.readout(torch.einsum("be,enk,bek->bn", gates, self.down, inner))


def build(sizes: Mapping[str, int]) -> tuple[nn.Module, Tensor]:
    """Returns the model, and an input of one sample."""
    return PaperBlock(sizes["N"], sizes["N_e"], sizes["M"]), torch.randn(1, INPUTS)
