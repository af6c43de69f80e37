"""Mixtures on digits under Adam: what one expert of many sees and wants.

``horizon`` takes an expert's examples for a random share K/M of the batch: its gradient's mean falls as K/M, its noise
as (K/M)^(1/2). Where a router chooses, examples of one expert are alike, and that changes.
Read next: ``recipes/horizon.py`` (the rules), ``claims/experts.toml``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from scaling_algebra.spec.configuration import Configuration
from scaling_algebra.verify.judging.fit import Array
from scaling_algebra.verify.measuring.batches import cross_entropy, descend, digits
from scaling_algebra.verify.networks.base_shapes import balance, chosen, recipe

from .findings import Conditions, Observation

EXPERTS, BATCH, SAMPLES = (2, 4, 8, 16), 32, 64
"""Numbers of experts, examples of a batch, and batches from which mean and noise of a gradient are taken."""
FIRST = 100
"""Seed of the first replica of experts: what is claimed was found on others."""
BALANCING = 0.1
"""Weight of the load-balancing loss."""


@dataclass(frozen=True)
class Rates:
    """The training of a mixture.

    Attributes:
        lr: log2 of the learning rate of what is dense. experts, router: by what theirs is multiplied.
        random: examples go to experts at random.
    """

    lr: float
    experts: float = 1.0
    router: float = 1.0
    steps: int = 200
    random: bool = False


class Mixture:
    """Top-1 MLP mixture of M experts with one replica per seed, trained.

    Attributes:
        late: loss over the last quarter of the training, (seeds,).
    """

    def __init__(self, count: int, rates: Rates, how: Conditions) -> None:
        self.data, self.device, self.count, self.random = digits(BATCH), how.device, count, rates.random
        self.seeds = range(FIRST, FIRST + how.seeds)
        dims = {"N": 32, "N_e": 16, "M": count, "K": 1}
        shapes = recipe(Configuration.of("I", "adam", "mup"), dims, False)
        self.model = self.data.build(shapes, dims, self.seeds, how.device)
        self.draw = torch.Generator().manual_seed(count)
        factors = {"expert_in": rates.experts, "expert_out": rates.experts, "router": rates.router}
        weights = self.model.weights.items()
        groups = [{"params": [p], "lr": 2.0**rates.lr * factors.get(name, 1.0)} for name, p in weights]
        adam: Any = torch.optim.Adam(groups, betas=(0.9, 0.95), eps=1e-12, fused=True)
        late = list(descend(adam, self.losses, rates.steps))[-(rates.steps // 4) :]
        self.late: Array = torch.stack(late).mean(0).cpu().numpy().astype(np.float64)

    def losses(self, step: int) -> tuple[Tensor, Tensor]:
        """Cross entropy and balancing loss of a batch, (seeds,) each."""
        x, y = self.data.batches(self.seeds, step, self.device)
        w = self.model.weights
        h = F.gelu(x @ w["input"].mT)
        psi = h @ w["router"].mT
        anyone = torch.randint(self.count, psi.shape[:-1], generator=self.draw).to(self.device)
        mask = F.one_hot(anyone, self.count).to(psi.dtype) if self.random else chosen(psi, 1)
        loss = cross_entropy(self.model.moe(h, mask=mask).h3 @ w["readout"].mT, y)
        return loss, BALANCING * balance(psi, mask)

    def gradient(self) -> tuple[Array, Array]:
        """Root mean square over experts' weights of the mean gradient and of the noise of a batch, (seeds,) each."""
        weights = [self.model.weights[name] for name in ("expert_in", "expert_out")]
        first = second = torch.zeros(())
        for k in range(SAMPLES):
            parts = torch.autograd.grad(self.losses(10**6 + k)[0].sum(), weights)
            g = torch.cat([x.flatten(1) for x in parts], 1).double()
            first, second = first + g / SAMPLES, second + g**2 / SAMPLES
        noise = (second - first**2) * SAMPLES / (SAMPLES - 1)
        mean = (first**2 - noise / SAMPLES).mean(1).clamp(min=0)  # without what the noise adds to it
        return mean.sqrt().cpu().numpy(), noise.mean(1).sqrt().cpu().numpy()


def expert_gradient(how: Conditions, names: Sequence[str], **given: Any) -> dict[str, Observation]:
    """Noise of an expert's gradient, and its mean over its noise, against s = K/M."""
    noises, ratios = [], []
    for count in EXPERTS:
        mean, noise = Mixture(count, Rates(**given), how).gradient()
        noises.append(noise)
        ratios.append(mean / noise)
    observed, shares = {"noise": noises, "mean over noise": ratios}, [1 / m for m in EXPERTS]
    return {name: Observation(values, shares, "s") for name, values in observed.items()}


def expert_rates(
    how: Conditions, names: Sequence[str], *, equal: Mapping[str, Any], others: Mapping[str, Mapping[str, Any]]
) -> dict[str, Observation]:
    """Loss late in training less that with equal rates, one expert of the largest number."""
    late = {}
    for name, rates in {"equal rates": equal, **others}.items():
        late[name] = Mixture(EXPERTS[-1], Rates(**rates), how).late
    return {name: Observation([late[name] - late["equal rates"]]) for name in others}
