"""A compact GPT with MoE layers, as in the MSSP paper, App. P.2.

Pre-norm RMSNorm, causal attention with RMSNorm on queries and keys and fixed head dimension (heads grow with width),
MoE layers with sigmoid token-choice top-K routing, untied readout that starts at zero.

Assumptions, beyond the paper's:
- Residual branches are added with multiplier 1: the number of blocks is Theta(1).
- Norms have no gains and linear maps no biases. Learned positions are scaled as the embedding is (role ``input``).
- Every attention matrix maps width to width and has the role ``hidden``: the powers the tool derives for the dense MLP.
- An embedding is looked up, so its natural std is 1, as if its fan-in were 1.
- No gradient clipping: a global norm would mix the scales of all tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from scaling_algebra.errors import UsageError

from .base_shapes import BaseShapes, LayerSignals, Scaled, balance
from .scales import Dims

BALANCE = 0.01
"""Weight of the load-balancing loss, the same at every size."""


class Transformer(Scaled):
    """Embedding, ``blocks`` times (attention, MoE layer) on a residual stream, norm, readout.

    Args:
        context: longest sequence T.
        head: dimension of a head, the same at every width.

    Raises:
        UsageError: a width that is not a multiple of the head dimension.
    """

    def __init__(
        self,
        recipe: BaseShapes,
        dims: Dims,
        seeds: Sequence[int],
        device: str,
        *,
        vocabulary: int = 256,
        context: int = 1024,
        blocks: int = 8,
        head: int = 64,
    ) -> None:
        super().__init__(recipe, dims, seeds, device)
        n, base = dims["N"], recipe.base["N"]
        if n % head:
            raise UsageError(f"the width {n} is not a multiple of the head dimension {head}; give another --head")
        self.blocks, self.head = blocks, head
        self.draw("embedding", "input", (vocabulary, n), 1)
        self.draw("position", "input", (context, n), 1)
        for k in range(blocks):
            for part in ("query", "key", "value", "mix"):
                self.draw(f"{part}_{k}", "hidden", (n, n), base)
            self.draw_moe(f"_{k}")
        self.draw("readout", "readout", (vocabulary, n), base)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (S,B,T,vocabulary) of the next tokens, and the auxiliary loss (S,) summed over layers."""
        streams, layers = self.stream(tokens)
        logits = norm(streams[-1]) @ self.weights["readout"].mT
        losses = torch.stack([balance(layer.psi, (layer.gates > 0).to(layer.psi)) for layer in layers])
        return logits.unflatten(1, tokens.shape[1:]), BALANCE * losses.sum(0)

    def stream(self, tokens: Tensor, masks: Sequence[Tensor] | None = None) -> tuple[list[Tensor], list[LayerSignals]]:
        """The residual stream (S, B*T, N) before every MoE layer and at the end, and what every MoE layer computed.

        Args:
            tokens: (S,B,T).
            masks: routing of every layer, (S, B*T, M), instead of top-K.
        """
        w, (replicas, batch, length) = self.weights, tokens.shape
        every = torch.arange(replicas, device=tokens.device)[:, None, None]
        x = (w["embedding"][every, tokens] + w["position"][:, None, :length]).flatten(1, 2)
        streams, layers = [], []
        for k in range(self.blocks):
            x = x + self.attention(norm(x), k, batch)
            streams.append(x)
            layers.append(self.moe(norm(x), f"_{k}", None if masks is None else masks[k]))
            x = x + layers[-1].h3
        return [*streams, x], layers

    def attention(self, x: Tensor, k: int, batch: int) -> Tensor:
        """Causal attention of block k with normalised queries and keys, (S, B*T, N) -> (S, B*T, N)."""
        heads = (
            (x @ self.weights[f"{part}_{k}"].mT)
            .unflatten(1, (batch, -1))
            .unflatten(-1, (-1, self.head))
            .transpose(2, 3)
            for part in ("query", "key", "value")
        )
        q, key, v = heads  # (S,B,heads,T,head)
        mixed = F.scaled_dot_product_attention(norm(q), norm(key), v, is_causal=True)
        result: Tensor = mixed.transpose(2, 3).flatten(-2).flatten(1, 2) @ self.weights[f"mix_{k}"].mT
        return result


def norm(x: Tensor) -> Tensor:
    """RMSNorm over the last dimension, without gains."""
    return F.rms_norm(x, x.shape[-1:])
