"""The MoE block as a torch module: one matrix product for each of its tensors.

Read next: ``replicas.py`` (draws and trains it), ``decomposition/parts.py`` (splits what it computes into parts).
"""

from __future__ import annotations

import torch
from torch import Tensor

from scaling_algebra.spec.networks import language
from scaling_algebra.spec.networks.library import MOE_BLOCK
from scaling_algebra.spec.scaling import Scaling

from .replicas import DTYPE, Draw, Replicated

INPUT_FIRST = ("W3",)
"""Tensors that are stored as (input, output)."""


def matrices(symbol: str, weight: Tensor) -> Tensor:
    """A weight as (..., output, input), however it is stored."""
    return weight.mT if symbol in INPUT_FIRST else weight


class MoEBlock(Replicated):
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

    def __init__(self, draw: Draw, scaling: Scaling, dtype: torch.dtype = DTYPE) -> None:
        super().__init__(MOE_BLOCK, draw, scaling, dtype)
        dims = draw.dims
        self.multiplier = (1 / scaling.alpha).at(dims) * dims.get("K", dims["M"]) / dims["M"]

    def label(self, role: str) -> str:
        """The symbol of its tensor."""
        return MOE_BLOCK.tensors[role].symbol

    def stored(self, tensor: language.Tensor) -> str:
        """The letters of a tensor in the order in which it is stored."""
        x = tensor.letters
        return x[:-2] + x[-1] + x[-2] if tensor.symbol in INPUT_FIRST else x

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
