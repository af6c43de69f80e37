"""Base constants of the networks, and the numbers that powers of the axes stand for. Needs no torch.

Constants are the same at every size, so they change no exponent. Pieces of a run that were trained with other ones are
not mixed (``cells.Setup.recipe``).
Read next: ``moe_block.py`` and ``transformer.py`` (the networks).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scaling_algebra.spec.powers import Power

Dims = Mapping[str, int]
"""Size of every axis."""

AXES = ("N", "N_e", "M", "K")
"""Axes that a network of a transfer study, or a Transformer, gives a size to."""

D = 8
"""Input dimension of the MoE block."""

LOSS_SLOPE = 1.0
"""chi = dL/df, held constant: the loss is ``chi * f``, so chi is Theta(1) at every step."""

INIT = {"input": 1.0, "router": 1.0, "expert_in": 0.5, "expert_out": 1.0, "readout": 1.0}
LR = {"input": 1.0, "router": 1.5, "expert_in": 1.5, "expert_out": 1.5, "readout": 0.75}
EPS = 0.3
"""Base constants of init std, learning rate and Adam epsilon of the MoE block.

Near 1, because a tiny rate would hide the second step behind the first, and a large one makes small sizes heavy-tailed.
Halving or doubling every rate leaves the mean error of the slopes in regime III with SGD the same.
"""

DECAY = 0.1
"""Learning rate times weight decay of AdamW: scale-free, so torch's ``weight_decay`` is ``DECAY / lr``."""

TRANSFORMER = {"N": 32, "N_e": 16, "M": 4, "K": 2}
"""Base size of the Transformer: its sizes lie on the ray through it."""

BATCH, CONTEXT, BLOCKS, HEAD = 2, 32, 2, 16
"""Of the Transformer: sequences in a step, their length, blocks of the network, dimension of a head."""

TRANSFORMER_LR, BETAS, TRANSFORMER_EPS = 2.0**-8, (0.9, 0.95), 1e-8
"""Global learning rate; betas and epsilon of AdamW at the base size (MSSP paper, App. P.2)."""

CONSTANTS: dict[str, dict[str, Any]] = {
    "moe": {"init": INIT, "lr": LR, "eps": EPS, "lr_times_weight_decay": DECAY, "loss_slope": LOSS_SLOPE, "D": D},
    "transformer": {
        "base": TRANSFORMER,
        "lr": TRANSFORMER_LR,
        "betas": BETAS,
        "eps": TRANSFORMER_EPS,
        "batch": BATCH,
        "context": CONTEXT,
        "blocks": BLOCKS,
        "head": HEAD,
    },
}
"""By network."""


def value(power: Power, dims: Mapping[str, float]) -> float:
    """The number a power of the axes stands for at these dimensions."""
    result = 1.0
    for axis, exponent in power.terms:
        result *= float(dims[axis]) ** float(exponent)
    return result
