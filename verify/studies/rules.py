"""Rules for batch, tokens and experts, tried out: do they keep what their invariants say?

Adam on a noisy quadratic: the gradient is ``slope + curvature w + z / sqrt(B)`` with z standard normal and far above
the rest, as the equation of Malladi et al. (2205.10287) assumes. Every derived exponent is what a rule of ``horizon``
makes of the monomial of an observable.
Mixtures on digits. Matched time: every run sees the same number of examples. With lr, eps and betas as ``horizon``
says, steps times lr^2 is the same for every batch, and so must be the loss and the distance from the initial weights;
batches are so small that noise rules the gradient. One expert of M: ``horizon`` takes its examples for a random share
K/M of the batch, so that the mean of its gradient falls as K/M and the noise as (K/M)^(1/2). Where a router chooses,
examples of one expert are alike, and that changes.
Read next: ``recipes/horizon.py`` (the rules), ``claims/batch.toml``, ``claims/sde.toml``, ``claims/experts.toml``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scaling_algebra.laws.expressions import monomial
from scaling_algebra.laws.monomials import Monomial
from scaling_algebra.recipes.horizon import horizon
from scaling_algebra.verify.hardware import generators
from scaling_algebra.verify.judging.fit import Array
from scaling_algebra.verify.measuring.batches import descend
from scaling_algebra.verify.networks.replicas import fill

from .data import CLASSES, Data, digits
from .findings import Conditions, Observation

COPIES = 64
"""Weights of a replica."""
Rule = Mapping[str, Monomial]


@dataclass(frozen=True)
class Observable:
    """Something of a run that is a monomial in lr, wd, batch B and steps S, where noise rules: Adam's step is
    lr (sqrt(B) gradient + z), divided by 1 + eps sqrt(B).

    Attributes:
        decay: with weight decay. start: where weights start.
        log: the observable is minus the logarithm of the mean; else the mean where there is a slope; else the rms.
        steps: of a run at batch 1.
    """

    monomial: str
    curvature: float = 0.0
    slope: float = 0.0
    decay: bool = False
    start: float = 0.0
    log: bool = False
    steps: int = 1024


def rule_of(hold: Sequence[str], axis: str, instead: Mapping[str, str]) -> Rule:
    """The powers that hold invariants; for the axis s those of an expert. ``instead``: powers that replace some."""
    if axis == "s":
        share = {"K": monomial("s"), "M": monomial("1")}
        rule: Rule = {q: m.substituted(share) for q, m in horizon("adamw", hold).experts.items()}
    else:
        rule = horizon("adamw", hold).powers
    return {**rule, **{name: monomial(text) for name, text in instead.items()}}


def quadratic(
    how: Conditions,
    names: Sequence[str],
    *,
    axis: str,
    hold: Sequence[str],
    base: Mapping[str, float],
    factors: Mapping[str, Sequence[float]],
    places: Mapping[str, Mapping[str, str]],
    observables: Mapping[str, Mapping[str, Any]],
    instead: Mapping[str, str] | None = None,
) -> dict[str, Observation]:
    """A rule's exponents of observables, along an axis.

    Args:
        base: values at batch 1. factors: of an axis: batch B, tokens T, or the share s = K/M of experts that is active.
        places: batch and steps of a tensor along an axis. observables: by name. instead: other powers of the rule.
    """
    rule, observations, n = rule_of(hold, axis, instead or {}), {}, factors[axis]
    placed = {name: monomial(text) for name, text in places[axis].items()}
    for name in names:
        observable = Observable(**observables[name])
        derived = monomial(observable.monomial).substituted(placed).substituted(rule)[axis]
        values = [_run(observable, base, rule, placed, {axis: factor}, how) for factor in n]
        observations[name] = Observation(values, n, axis, Fraction(str(derived)), Fraction(1, 4))
    return observations


def _run(
    of: Observable, base: Mapping[str, float], rule: Rule, places: Rule, at: Mapping[str, float], how: Conditions
) -> Array:
    """The observable of every replica where an axis has grown by a factor."""
    value = {name: x * rule.get(name, monomial("1")).at(at) for name, x in base.items()}
    placed = {"B": at.get("B", 1.0), **{name: place.at(at) for name, place in places.items()}}
    share = at.get("s", 1.0)  # an expert's gradient is averaged over the batch of all
    generator = torch.Generator(how.device).manual_seed(20240)
    w = torch.full((how.seeds, COPIES), of.start, dtype=torch.float64, device=how.device, requires_grad=True)
    adam: Any = torch.optim.AdamW(
        [w],
        lr=value["lr"],
        betas=(1 - value["one_minus_beta1"], 1 - value["one_minus_beta2"]),
        eps=value["eps"] if "eps" in rule else 1e-12,
        weight_decay=value["wd"] if of.decay else 0.0,
        fused=True,
    )

    def losses(step: int) -> Tensor:
        noise = torch.randn(w.shape, dtype=w.dtype, device=how.device, generator=generator)
        return share * (w * (of.slope + of.curvature * w / 2 + noise / placed["B"] ** 0.5)).sum(1)

    for _ in descend(adam, losses, round(of.steps * placed["S"])):
        pass
    end = w.detach().cpu().numpy()
    if of.log:
        return np.asarray(-np.log(end.mean(1) / of.start))
    return np.asarray(np.abs(end.mean(1)) if of.slope else np.sqrt((end**2).mean(1)))


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


PIXELS = 64


class Replicas(nn.Module):
    """x -> gelu(W1 x) -> mixture -> W4, one replica for each seed; std fan_in^-1/2, the readout at zero.

    Attributes:
        weights: parameters by name, shape (S, ...); both matrices of the experts are (S, M, N_e, N).
    """

    def __init__(self, dims: Mapping[str, int], seeds: Sequence[int], device: str) -> None:
        super().__init__()
        n, n_e, self.count, self.active = (dims[axis] for axis in ("N", "N_e", "M", "K"))
        experts, streams = (self.count, n_e, n), generators(seeds, device)
        shapes = {"input": (n, PIXELS), "router": (self.count, n), "expert_in": experts, "expert_out": experts}
        fan_in = {"input": PIXELS, "router": n, "expert_in": n, "expert_out": n_e}
        self.weights = nn.ParameterDict()
        for name, shape in shapes.items():
            weight = torch.zeros(len(seeds), *shape, device=device)
            fill(weight, shape, streams)
            self.weights[name] = nn.Parameter(weight * fan_in[name] ** -0.5)
        self.weights["readout"] = nn.Parameter(torch.zeros(len(seeds), CLASSES, n, device=device))

    def forward(self, x: Tensor) -> Tensor:
        """Logits (S,B,classes) of inputs (S,B,pixels), by the K experts with the largest logits."""
        h = F.gelu(x @ self.weights["input"].mT)
        return self.mixed(h, chosen(h @ self.weights["router"].mT, self.active))

    def mixed(self, h: Tensor, mask: Tensor) -> Tensor:
        """Logits of signals (S,B,N) where the experts of a mask (S,B,M) are active."""
        w = self.weights
        gates = (h @ w["router"].mT).sigmoid() * mask
        h2 = (h @ w["expert_in"].flatten(1, 2).mT).unflatten(-1, (self.count, -1))
        h3 = (gates[..., None] * F.gelu(h2)).flatten(-2) @ w["expert_out"].flatten(1, 2) / self.active
        return h3 @ w["readout"].mT


def chosen(psi: Tensor, active: int) -> Tensor:
    """Mask of the ``active`` largest logits of every token, (S,P,M) of zeros and ones; no gradient passes."""
    if active >= psi.shape[-1]:
        return torch.ones_like(psi)
    return torch.zeros_like(psi).scatter(-1, psi.detach().topk(active, -1).indices, 1.0)


def balance(psi: Tensor, mask: Tensor) -> Tensor:
    """Load-balancing loss M sum_i f_i P_i of every replica, (S,); 1 at perfect balance.

    f_i: share of the routed pairs that go to expert i; P_i: mean over tokens of phi_i / sum_j phi_j.
    Source: Fedus et al. (2022), with normalised sigmoid scores for the softmax.
    """
    share = mask.sum(-2) / mask.sum((-2, -1))[..., None]
    scores = psi.sigmoid()
    mean = (scores / scores.sum(-1, keepdim=True)).mean(-2)
    result: Tensor = psi.shape[-1] * (share * mean).sum(-1)
    return result


def batches(data: Data, seeds: Sequence[int], step: int | None, device: str) -> tuple[Tensor, Tensor]:
    """One batch for each replica."""
    drawn = [data.batch(seed, step, device) for seed in seeds]
    x, y = (torch.stack(part) for part in zip(*drawn, strict=True))
    return x, y


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over all but the replica dimension, nats, (S,): logits (S,...,classes), targets (S,...)."""
    losses = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none")
    return losses.view(len(targets), -1).mean(1)


def matched_time(
    how: Conditions, names: Sequence[str], *, instead: Mapping[str, str] | None = None
) -> dict[str, Observation]:
    """Loss and distance against the batch, under the rule that holds the equation, or with other powers."""
    rule, losses, distances = rule_of(("sde",), "B", instead or {}), list[Array](), list[Array]()
    for batch in BATCHES:
        lr, eps, beta1, beta2 = (x * rule[name].at({"B": batch}) for name, x in BASE.items())
        data, replicas = digits(batch), range(how.seeds)
        model = Replicas({"N": 32, "N_e": 32, "M": 4, "K": 4}, replicas, how.device)
        start = [p.detach().clone() for p in model.parameters()]
        adam: Any = torch.optim.Adam(model.parameters(), lr=lr, betas=(1 - beta1, 1 - beta2), eps=eps, fused=True)

        def loss(step: int | None, data: Data = data, model: Replicas = model) -> Tensor:
            x, y = batches(data, range(how.seeds), step, how.device)
            return cross_entropy(model(x), y)

        for _ in descend(adam, loss, EXAMPLES // batch):
            pass
        moved = torch.cat([(p - w).flatten(1) for p, w in zip(model.parameters(), start, strict=True)], 1)
        for kept, values in ((losses, loss(None)), (distances, moved.pow(2).mean(1).sqrt())):
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
        self.model = Replicas(dims, self.seeds, how.device)
        self.draw = torch.Generator().manual_seed(count)
        factors = {"expert_in": rates.experts, "expert_out": rates.experts, "router": rates.router}
        weights = self.model.weights.items()
        groups = [{"params": [p], "lr": 2.0**rates.lr * factors.get(name, 1.0)} for name, p in weights]
        adam: Any = torch.optim.Adam(groups, betas=(0.9, 0.95), eps=1e-12, fused=True)

        def loss(step: int) -> Tensor:
            loss, balancing = self.losses(step)
            return loss + balancing - balancing.detach()  # the gradient is of both, the value the first's

        late = list(descend(adam, loss, rates.steps))[-(rates.steps // 4) :]
        self.late: Array = torch.stack(late).mean(0).cpu().numpy().astype(np.float64)

    def losses(self, step: int) -> tuple[Tensor, Tensor]:
        """Cross entropy and balancing loss of a batch, (seeds,) each."""
        x, y = batches(self.data, self.seeds, step, self.device)
        w = self.model.weights
        h = F.gelu(x @ w["input"].mT)
        psi = h @ w["router"].mT
        anyone = torch.randint(self.count, psi.shape[:-1], generator=self.draw).to(self.device)
        mask = F.one_hot(anyone, self.count).to(psi.dtype) if self.random else chosen(psi, 1)
        return cross_entropy(self.model.mixed(h, mask), y), BALANCING * balance(psi, mask)

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
