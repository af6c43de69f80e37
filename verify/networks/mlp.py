"""The MLP MoE of the MSSP paper, App. P.1: linear input layer with GeLU, one MoE layer, linear readout.

Read next: ``tasks.py`` (the data it learns), ``sweep.py`` (trains it).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional as F

from .base_shapes import BaseShapes, Scaled
from .scales import Dims


class MLPMoE(Scaled):
    """x -> gelu(W1 x) -> MoE -> W4, no normalisation and no residual connection.

    Args:
        inputs, classes: sizes of data and logits, the same at every size.
    """

    def __init__(
        self, recipe: BaseShapes, dims: Dims, seeds: Sequence[int], device: str, *, inputs: int, classes: int
    ) -> None:
        super().__init__(recipe, dims, seeds, device)
        self.draw("input", "input", (dims["N"], inputs), inputs)
        self.draw_moe()
        self.draw("readout", "readout", (classes, dims["N"]), recipe.base["N"])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (S,B,classes) of inputs (S,B,inputs), and the auxiliary loss (S,), which is zero here."""
        layer = self.moe(F.gelu(x @ self.weights["input"].mT))
        logits = layer.h3 @ self.weights["readout"].mT
        return logits, logits.new_zeros(len(logits))
