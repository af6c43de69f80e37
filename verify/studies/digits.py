"""Mixtures on digits under Adam: where training ends when the batch grows, and what one expert of many sees and wants.

Matched time: every run sees the same number of examples. With lr, eps and betas as ``horizon`` says (Malladi et al.,
2205.10287), steps times lr^2 is the same for every batch, and so must be the loss and the distance from the initial
weights. Batches are so small that noise rules the gradient.
One expert of M: ``horizon`` takes its examples for a random share K/M of the batch, so that the mean of its gradient
falls as K/M and the noise as (K/M)^(1/2). Where a router chooses, examples of one expert are alike, and that changes.
Read next: ``recipes/horizon.py`` (the rules), ``claims/sde.toml``, ``claims/experts.toml``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from scaling_algebra.spec.configuration import Configuration
from scaling_algebra.verify.judging.fit import Array
from scaling_algebra.verify.measuring.batches import Data, cross_entropy, descend, digits
from scaling_algebra.verify.networks.base_shapes import Scaled, balance, chosen, recipe

from .findings import Conditions, Observation
from .quadratic import rule_of

BATCHES, EXAMPLES = (1, 2, 4, 8), 4096
"""Batches, and examples of a run."""
BASE = {"lr": 2.0**-11, "eps": 0.01, "one_minus_beta1": 0.04, "one_minus_beta2": 0.001}
"""At batch 1; eps is of the size of gradients."""
EXPERTS, BATCH, SAMPLES = (2, 4, 8, 16), 32, 64
"""Numbers of experts, examples of a batch, and batches from which mean and noise of a gradient are taken."""
FIRST = 100
"""Seed of the first replica of experts: what is claimed was found on others."""
BALANCING = 0.1
"""Weight of the load-balancing loss."""


def _network(data: Data, dims: dict[str, int], seeds: range, device: str) -> Scaled:
    return data.build(recipe(Configuration.of("I", "adam", "mup"), dims, False), dims, seeds, device)


def matched_time(
    how: Conditions, names: Sequence[str], *, instead: Mapping[str, str] | None = None
) -> dict[str, Observation]:
    """Loss and distance against the batch, under the rule that holds the equation, or with other powers."""
    rule, losses, distances = rule_of(("sde",), "B", instead or {}), list[Array](), list[Array]()
    for batch in BATCHES:
        lr, eps, beta1, beta2 = (x * rule[name].at({"B": batch}) for name, x in BASE.items())
        data, replicas = digits(batch), range(how.seeds)
        model = _network(data, {"N": 32, "N_e": 32, "M": 4, "K": 4}, replicas, how.device)
        start = [p.detach().clone() for p in model.parameters()]
        adam: Any = torch.optim.Adam(model.parameters(), lr=lr, betas=(1 - beta1, 1 - beta2), eps=eps, fused=True)

        def loss(step: int | None, data: Data = data, model: Scaled = model) -> tuple[Tensor, float]:
            x, y = data.batches(range(how.seeds), step, how.device)
            return cross_entropy(model(x)[0], y), 0.0

        for _ in descend(adam, loss, EXAMPLES // batch):
            pass
        moved = torch.cat([(p - w).flatten(1) for p, w in zip(model.parameters(), start, strict=True)], 1)
        for kept, values in ((losses, loss(None)[0]), (distances, moved.pow(2).mean(1).sqrt())):
            kept.append(values.detach().cpu().numpy().astype(np.float64))
    return {
        "held-out loss": Observation(losses, BATCHES, "B", spacing=Fraction(1, 4)),
        "distance from the start": Observation(distances, BATCHES, "B", spacing=Fraction(1, 8)),
    }


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
        self.model = _network(self.data, dims, self.seeds, how.device)
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
