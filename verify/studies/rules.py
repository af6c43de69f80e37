"""Rules for batch and tokens, tried out: do they keep what their invariants say?

Adam on a noisy quadratic: the gradient is ``slope + curvature w + z / sqrt(B)`` with z standard normal and far above
the rest, as the equation of Malladi et al. (2205.10287) assumes. Every derived exponent is what a rule of ``horizon``
makes of the monomial of an observable.
A mixture on digits. Matched time: every run sees the same number of examples. With lr, eps and betas as ``horizon``
says, steps times lr^2 is the same for every batch, and so must be the loss and the distance from the initial weights;
batches are so small that noise rules the gradient.
Read next: ``recipes/horizon.py`` (the rules), ``claims/batch.toml``, ``claims/sde.toml``.
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
STEPS: Rule = {"S": monomial("T/B")}
"""Of a run."""


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


def rule_of(hold: Sequence[str], instead: Mapping[str, str]) -> Rule:
    """The powers that hold invariants. ``instead``: powers that replace some."""
    return {**horizon("adamw", hold).powers, **{name: monomial(text) for name, text in instead.items()}}


def quadratic(
    how: Conditions,
    names: Sequence[str],
    *,
    axis: str,
    hold: Sequence[str],
    base: Mapping[str, float],
    factors: Mapping[str, Sequence[float]],
    observables: Mapping[str, Mapping[str, Any]],
    instead: Mapping[str, str] | None = None,
) -> dict[str, Observation]:
    """A rule's exponents of observables, along an axis.

    Args:
        base: values at batch 1. factors: of an axis: batch B, tokens T.
        observables: by name. instead: other powers of the rule.
    """
    rule, observations, n = rule_of(hold, instead or {}), {}, factors[axis]
    for name in names:
        observable = Observable(**observables[name])
        derived = monomial(observable.monomial).substituted(STEPS).substituted(rule)[axis]
        values = [_run(observable, base, rule, {axis: factor}, how) for factor in n]
        observations[name] = Observation(values, n, axis, Fraction(str(derived)), Fraction(1, 4))
    return observations


def _run(of: Observable, base: Mapping[str, float], rule: Rule, at: Mapping[str, float], how: Conditions) -> Array:
    """The observable of every replica where an axis has grown by a factor."""
    value = {name: x * rule.get(name, monomial("1")).at(at) for name, x in base.items()}
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
        return (w * (of.slope + of.curvature * w / 2 + noise / at.get("B", 1.0) ** 0.5)).sum(1)

    for _ in descend(adam, losses, round(of.steps * STEPS["S"].at(at))):
        pass
    end = w.detach().cpu().numpy()
    if of.log:
        return np.asarray(-np.log(end.mean(1) / of.start))
    return np.asarray(np.abs(end.mean(1)) if of.slope else np.sqrt((end**2).mean(1)))


BATCHES, EXAMPLES = (1, 2, 4, 8), 4096
"""Batches, and examples of a run."""
BASE = {"lr": 2.0**-11, "eps": 0.01, "one_minus_beta1": 0.04, "one_minus_beta2": 0.001}
"""At batch 1; eps is of the size of gradients."""
PIXELS = 64


class Replicas(nn.Module):
    """x -> gelu(W1 x) -> mixture -> W4, one replica for each seed; std fan_in^-1/2, the readout at zero.

    Attributes:
        weights: parameters by name, shape (S, ...); both matrices of the experts are (S, M, N_e, N).
    """

    def __init__(self, dims: Mapping[str, int], seeds: Sequence[int], device: str) -> None:
        super().__init__()
        n, n_e, self.count = (dims[axis] for axis in ("N", "N_e", "M"))
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
        """Logits (S,B,classes) of inputs (S,B,pixels)."""
        w = self.weights
        h = F.gelu(x @ w["input"].mT)
        gates = (h @ w["router"].mT).sigmoid()
        h2 = (h @ w["expert_in"].flatten(1, 2).mT).unflatten(-1, (self.count, -1))
        h3 = (gates[..., None] * F.gelu(h2)).flatten(-2) @ w["expert_out"].flatten(1, 2) / self.count
        return h3 @ w["readout"].mT


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
    rule, losses, distances = rule_of(("sde",), instead or {}), list[Array](), list[Array]()
    for batch in BATCHES:
        lr, eps, beta1, beta2 = (x * rule[name].at({"B": batch}) for name, x in BASE.items())
        data, replicas = digits(batch), range(how.seeds)
        model = Replicas({"N": 32, "N_e": 32, "M": 4}, replicas, how.device)
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
