"""Base constants of the networks: init std, learning rate, epsilon. Needs no torch.

They are the same at every size, so they change no exponent. Parts of a run with different constants are not combined
(``cells.Setup.digest``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from scaling_algebra.spec.networks.language import Network
from scaling_algebra.spec.optimizers import Optimizer

Dims = Mapping[str, int]
"""Size of every axis."""

D = 8
"""Input dimension of the MoE block."""

FIXED_SIZES = {"D": D, "S": 3, "E": 4, "R": 2, "C": 2}
"""Sizes of the axes that never grow."""

LAYERS = 4
"""Number of layers of a network whose depth does not grow."""

OWN = 4
"""Size of a user's own axis that does not grow."""

LOSS_SLOPE = 1.0
"""chi = dL/df, held constant: the loss is ``chi * f``, so chi is Theta(1) at every step."""

INIT = {"input": 1.0, "router": 1.0, "expert_in": 0.5, "expert_out": 1.0, "readout": 1.0}
LR = {"input": 1.0, "router": 1.5, "expert_in": 1.5, "expert_out": 1.5, "readout": 0.75}
EPS = 0.3
"""Base constants of init std, learning rate and Adam's epsilon for the MoE block.

They are near 1: with a tiny rate the second step would hide behind the first, and a large one makes the distributions
at small sizes heavy-tailed. Halving or doubling every rate does not change the mean error of the slopes in regime III
with SGD.
"""

NEGLIGIBLE = 1e-30
"""Adam's epsilon if it is negligible: far below every gradient whose square float64 or float32 can represent."""

DECAY = 0.1
"""Learning rate times weight decay of AdamW. This product is independent of size, so torch's ``weight_decay`` is
``DECAY / lr``."""

MOE_CONSTANTS: dict[str, Any] = {
    "init": INIT, "lr": LR, "eps": EPS, "lr_times_weight_decay": DECAY, "loss_slope": LOSS_SLOPE, "D": D
}  # fmt: skip
"""All constants of the MoE block, for reports."""


def complete_sizes(network: Network, dims: Dims) -> dict[str, int]:
    """Returns the size of every axis of a network: ``dims``, and the default sizes of axes that do not grow."""
    return {**dict.fromkeys(network.axes.values(), OWN), "L": LAYERS, **FIXED_SIZES, **dims}


@dataclass(frozen=True)
class Constants:
    """The factors in front of the powers of n, with which a network is initialised and trained.

    Attributes:
        init: factor of the init std, by tensor.
        lr: factor of the learning rate, by tensor.
        eps: factor of Adam's epsilon.
        other: factors of init std and learning rate of tensors that are not listed.
        raw: factor of the learning rate of all tensors for optimizers that do not normalise gradients, such as SGD;
            None if these use ``lr``, too.
    """

    init: Mapping[str, float] = field(default_factory=dict)
    lr: Mapping[str, float] = field(default_factory=dict)
    eps: float = EPS
    other: tuple[float, float] = (1.0, 0.5)
    raw: float | None = None

    def init_of(self, role: str) -> float:
        return self.init.get(role, self.other[0])

    def lr_of(self, role: str, rule: Optimizer) -> float:
        if self.raw is not None and not rule.normalises:
            return self.raw
        return self.lr.get(role, self.other[1])

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "lr_times_weight_decay": DECAY, "loss_slope": LOSS_SLOPE, "fixed": FIXED_SIZES}


_USUAL = Constants()
MOE = Constants(INIT, LR)
_ROUTERS = Constants({"input": 2.0}, other=(1.0, 1.0), raw=0.4)
"""Input 2: what a router learns, ~ |h1|^2, must show above its initial logits ~ n^(-1/2) at n = 64. Optimizers that do
not normalise have gradients that grow like |h1|^2: rate 1 puts logits near 10 at the second step, which saturates a
sigmoid; a bounded step of 0.4 would hide behind n^(-1/2)."""


_DEEP = Constants(INIT, LR, raw=0.2)
"""Gains are random factors of everything, and with SGD every step multiplies with one more of them: larger rates make
small sizes heavy-tailed."""


def choose_constants(network: Network) -> Constants:
    """Returns the factors with which a network is trained: one of four fixed sets, chosen by whether it has a depth, a
    router and experts.
    """
    if "L" in network.axes.values():
        return _DEEP
    roles = set(network.tensors)
    if {"router", "expert_in", "expert_out"} <= roles:
        return MOE
    return _ROUTERS if {"router", "expert"} <= roles else _USUAL
