"""Experiments on the scaling rules for batch, tokens and experts: does training keep the invariants that a rule states?

Quadratic: Adam on a noisy quadratic, whose gradient is ``slope + curvature w + z / sqrt(B)`` with z standard normal and
much larger than the rest, as the equation of Malladi et al. (2205.10287) assumes. The derived exponent of an observable
follows from its monomial and the rule of ``horizon``.
Mixtures on digits, matched time: every run sees the same number of examples. With lr, eps and betas from ``horizon``,
steps times lr^2 is the same for every batch; so must be the loss and the distance from the initial weights. Batches are
small enough for noise to dominate the gradient.
One expert of M: ``horizon`` assumes that the examples of an expert are a random share K/M of the batch, so that the
mean of its gradient falls as K/M and the noise as (K/M)^(1/2). If a router chooses, the examples of one expert are
alike, and both powers change.
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
from scaling_algebra.verify.hardware import seed_generators
from scaling_algebra.verify.judging.fit import Array
from scaling_algebra.verify.measuring.batches import descend
from scaling_algebra.verify.networks.replicas import fill_normal

from .data import CLASSES, Data, read_digits
from .findings import Conditions, Observation

COPIES = 64
"""Number of weights in a replica."""
Rule = Mapping[str, Monomial]


@dataclass(frozen=True)
class Observable:
    """A number measured when Adam trains weights on a noisy quadratic: their mean or their rms at the end.

    As long as noise dominates the gradient, Adam's step is lr (sqrt(B) gradient + z), divided by 1 + eps sqrt(B), where
    z is the noise. The number is then a product of powers of the learning rate lr, the weight decay wd, the batch size
    B and the number of steps S.

    Attributes:
        monomial: this product of powers, which is the prediction.
        curvature: curvature of the quadratic.
        slope: slope of the quadratic at zero. If it is not 0, the absolute mean of the weights is measured, else their
            rms.
        decay: whether to train with weight decay.
        start: initial value of the weights.
        log: whether minus the logarithm of (mean weight / initial value) is measured instead.
        steps: number of steps of a run at batch 1.
    """

    monomial: str
    curvature: float = 0.0
    slope: float = 0.0
    decay: bool = False
    start: float = 0.0
    log: bool = False
    steps: int = 1024


def find_rule(hold: Sequence[str], axis: str, instead: Mapping[str, str]) -> Rule:
    """Returns, by hyperparameter of AdamW, the power of batch, tokens or experts with which it must scale so that some
    invariants of the training are kept.

    Args:
        hold: the invariants, as for ``horizon``.
        axis: the axis that grows. For ``s`` = K/M the powers are those for the tensors of an expert.
        instead: powers that replace some of the derived ones.
    """
    if axis == "s":
        share = {"K": monomial("s"), "M": monomial("1")}
        rule: Rule = {q: m.substitute(share) for q, m in horizon("adamw", hold).experts.items()}
    else:
        rule = horizon("adamw", hold).powers
    return {**rule, **{name: monomial(text) for name, text in instead.items()}}


def measure_quadratic(
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
    """Measures how observables of a training on the noisy quadratic depend on an axis (batch, tokens or experts), for
    comparison with the exponents that a rule derives.

    Args:
        how: device and number of replicas.
        names: the observables to measure.
        axis: batch B, tokens T, or the share s = K/M of active experts.
        hold: the invariants that the rule keeps, as for ``horizon``.
        base: values of the hyperparameters at batch 1.
        factors: for each axis, the factors by which it grows, one training for each.
        places: for each axis, the number of examples B in a batch and of steps S as monomials in it.
        observables: for each name, the fields of its ``Observable``.
        instead: powers that replace some of the derived ones.
    """
    rule, observations, n = find_rule(hold, axis, instead or {}), {}, factors[axis]
    placed = {name: monomial(text) for name, text in places[axis].items()}
    for name in names:
        observable = Observable(**observables[name])
        derived = monomial(observable.monomial).substitute(placed).substitute(rule)[axis]
        values = [_train_quadratic(observable, base, rule, placed, {axis: factor}, how) for factor in n]
        observations[name] = Observation(values, n, axis, Fraction(str(derived)), Fraction(1, 4))
    return observations


def _train_quadratic(
    of: Observable, base: Mapping[str, float], rule: Rule, places: Rule, at: Mapping[str, float], how: Conditions
) -> Array:
    """Trains on the noisy quadratic and returns the observable of every replica, (seeds,).

    Args:
        of: the observable.
        base: values of the hyperparameters at the base.
        rule: the power by which each hyperparameter scales with the axis.
        places: the batch size B and the number of steps S as monomials in the axis.
        at: the factor by which the axis has grown.
        how: device and number of replicas.
    """
    value = {name: x * rule.get(name, monomial("1")).at(at) for name, x in base.items()}
    placed = {"B": at.get("B", 1.0), **{name: place.at(at) for name, place in places.items()}}
    share = at.get("s", 1.0)  # an expert's gradient is divided by the whole batch size
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
"""Batch sizes, and number of examples in a run."""
BASE = {"lr": 2.0**-11, "eps": 0.01, "one_minus_beta1": 0.04, "one_minus_beta2": 0.001}
"""Parameters of Adam at batch 1; eps is of the size of gradients."""
EXPERTS, BATCH, SAMPLES = (2, 4, 8, 16), 32, 64
"""Numbers of experts, number of examples in a batch, and number of batches from which the mean and the noise of a
gradient are estimated."""
FIRST = 100
"""Seed of the first replica in experiments on experts. The claims were found with other seeds."""
BALANCING = 0.1
"""Weight of the load-balancing loss."""


PIXELS = 64


class Replicas(nn.Module):
    """An MLP with a mixture of experts, x -> gelu(W1 x) -> experts -> W4, with one replica per seed. Init stds are
    fan_in^-1/2; the readout starts at zero.

    Attributes:
        weights: parameters by name, shape (S, ...); both matrices of the experts are (S, M, N_e, N).
    """

    def __init__(self, dims: Mapping[str, int], seeds: Sequence[int], device: str) -> None:
        super().__init__()
        n, n_e, self.count, self.active = (dims[axis] for axis in ("N", "N_e", "M", "K"))
        experts, streams = (self.count, n_e, n), seed_generators(seeds, device)
        shapes = {"input": (n, PIXELS), "router": (self.count, n), "expert_in": experts, "expert_out": experts}
        fan_in = {"input": PIXELS, "router": n, "expert_in": n, "expert_out": n_e}
        self.weights = nn.ParameterDict()
        for name, shape in shapes.items():
            weight = torch.zeros(len(seeds), *shape, device=device)
            fill_normal(weight, shape, streams)
            self.weights[name] = nn.Parameter(weight * fan_in[name] ** -0.5)
        self.weights["readout"] = nn.Parameter(torch.zeros(len(seeds), CLASSES, n, device=device))

    def forward(self, x: Tensor) -> Tensor:
        """Returns the logits (S,B,classes) of inputs (S,B,pixels), computed by the K experts with the largest router
        logits."""
        h = F.gelu(x @ self.weights["input"].mT)
        return self.mix_experts(h, select_largest(h @ self.weights["router"].mT, self.active))

    def mix_experts(self, h: Tensor, mask: Tensor) -> Tensor:
        """Returns the logits (S,B,classes) of the readout, given the signals h (S,B,N) before the experts. ``mask``
        (S,B,M)
        has a 1 for each expert that is used.
        """
        w = self.weights
        gates = (h @ w["router"].mT).sigmoid() * mask
        h2 = (h @ w["expert_in"].flatten(1, 2).mT).unflatten(-1, (self.count, -1))
        h3 = (gates[..., None] * F.gelu(h2)).flatten(-2) @ w["expert_out"].flatten(1, 2) / self.active
        return h3 @ w["readout"].mT


def select_largest(psi: Tensor, active: int) -> Tensor:
    """Returns the mask of the ``active`` largest logits of every token, (S,P,M) of zeros and ones, without a
    gradient."""
    if active >= psi.shape[-1]:
        return torch.ones_like(psi)
    return torch.zeros_like(psi).scatter(-1, psi.detach().topk(active, -1).indices, 1.0)


def compute_balance_loss(psi: Tensor, mask: Tensor) -> Tensor:
    """Returns the load-balancing loss M sum_i f_i P_i of every replica, (S,). It is 1 at perfect balance.

    f_i: share of expert i in all pairs (token, selected expert); P_i: mean over tokens of phi_i / sum_j phi_j, where
    phi is the sigmoid of the logits ``psi``.
    Source: Fedus et al. (2022), with these normalised sigmoids in place of the softmax.
    """
    share = mask.sum(-2) / mask.sum((-2, -1))[..., None]
    scores = psi.sigmoid()
    mean = (scores / scores.sum(-1, keepdim=True)).mean(-2)
    result: Tensor = psi.shape[-1] * (share * mean).sum(-1)
    return result


def stack_batches(data: Data, seeds: Sequence[int], step: int | None, device: str) -> tuple[Tensor, Tensor]:
    """Returns the batches of one step (None for the held-out batch) of all seeds as (inputs, targets), stacked along
    the replica dimension.
    """
    drawn = [data.batch(seed, step, device) for seed in seeds]
    x, y = (torch.stack(part) for part in zip(*drawn, strict=True))
    return x, y


def compute_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Returns the cross entropy in nats of logits (S,...,classes) and targets (S,...), averaged over all but the
    replica dimension, (S,)."""
    losses = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none")
    return losses.view(len(targets), -1).mean(1)


def measure_matched_time(
    how: Conditions, names: Sequence[str], *, instead: Mapping[str, str] | None = None
) -> dict[str, Observation]:
    """Measures how the loss and the distance from the initial weights depend on the batch size, at a fixed number of
    examples.

    Learning rate, epsilon and betas scale by the rule of ``horizon`` that keeps the stochastic differential equation of
    training; powers in ``instead`` replace those of the rule.
    """
    rule, losses, distances = find_rule(("sde",), "B", instead or {}), list[Array](), list[Array]()
    for batch in BATCHES:
        lr, eps, beta1, beta2 = (x * rule[name].at({"B": batch}) for name, x in BASE.items())
        data, replicas = read_digits(batch), range(how.seeds)
        model = Replicas({"N": 32, "N_e": 32, "M": 4, "K": 4}, replicas, how.device)
        start = [p.detach().clone() for p in model.parameters()]
        adam: Any = torch.optim.Adam(model.parameters(), lr=lr, betas=(1 - beta1, 1 - beta2), eps=eps, fused=True)

        def loss(step: int | None, data: Data = data, model: Replicas = model) -> Tensor:
            x, y = stack_batches(data, range(how.seeds), step, how.device)
            return compute_cross_entropy(model(x), y)

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
    """Hyperparameters of the training of a mixture.

    Attributes:
        lr: log2 of the learning rate of the dense weights.
        experts: factor on the learning rate of the experts.
        router: factor on the learning rate of the router.
        steps: number of steps.
        random: whether examples are assigned to experts at random.
    """

    lr: float
    experts: float = 1.0
    router: float = 1.0
    steps: int = 200
    random: bool = False


class Mixture:
    """An MLP mixture of M experts of which each example uses one, with one replica per seed. The constructor trains it.

    Attributes:
        late: mean loss over the last quarter of the training, (seeds,).
    """

    def __init__(self, count: int, rates: Rates, how: Conditions) -> None:
        self.data, self.device, self.count, self.random = read_digits(BATCH), how.device, count, rates.random
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
            return loss + balancing - balancing.detach()  # gradient of both losses, value of the first

        late = list(descend(adam, loss, rates.steps))[-(rates.steps // 4) :]
        self.late: Array = torch.stack(late).mean(0).cpu().numpy().astype(np.float64)

    def losses(self, step: int) -> tuple[Tensor, Tensor]:
        """Returns the cross entropy and the balancing loss of a batch, (seeds,) each."""
        x, y = stack_batches(self.data, self.seeds, step, self.device)
        w = self.model.weights
        h = F.gelu(x @ w["input"].mT)
        psi = h @ w["router"].mT
        anyone = torch.randint(self.count, psi.shape[:-1], generator=self.draw).to(self.device)
        mask = F.one_hot(anyone, self.count).to(psi.dtype) if self.random else select_largest(psi, 1)
        return compute_cross_entropy(self.model.mix_experts(h, mask), y), BALANCING * compute_balance_loss(psi, mask)

    def gradient(self) -> tuple[Array, Array]:
        """Returns the rms, over the weights of the experts, of the mean gradient and of the noise of one batch's
        gradient, (seeds,) each.
        """
        weights = [self.model.weights[name] for name in ("expert_in", "expert_out")]
        first = second = torch.zeros(())
        for k in range(SAMPLES):
            parts = torch.autograd.grad(self.losses(10**6 + k)[0].sum(), weights)
            g = torch.cat([x.flatten(1) for x in parts], 1).double()
            first, second = first + g / SAMPLES, second + g**2 / SAMPLES
        noise = (second - first**2) * SAMPLES / (SAMPLES - 1)
        mean = (first**2 - noise / SAMPLES).mean(1).clamp(min=0)  # subtract the contribution of the noise
        return mean.sqrt().cpu().numpy(), noise.mean(1).sqrt().cpu().numpy()


def measure_expert_gradient(how: Conditions, names: Sequence[str], **given: Any) -> dict[str, Observation]:
    """Measures how the noise of an expert's gradient, and the ratio of its mean to its noise, depend on the share s =
    K/M of active experts. ``given`` has the fields of ``Rates``.
    """
    noises, ratios = [], []
    for count in EXPERTS:
        mean, noise = Mixture(count, Rates(**given), how).gradient()
        noises.append(noise)
        ratios.append(mean / noise)
    observed, shares = {"noise": noises, "mean over noise": ratios}, [1 / m for m in EXPERTS]
    return {name: Observation(values, shares, "s") for name, values in observed.items()}


def measure_expert_rates(
    how: Conditions, names: Sequence[str], *, equal: Mapping[str, Any], others: Mapping[str, Mapping[str, Any]]
) -> dict[str, Observation]:
    """Measures by how much the loss late in training, with other learning rates for the experts, exceeds that with
    equal rates for all weights.

    The mixture has the largest number of experts in ``EXPERTS``, one of which is active.

    Args:
        how: device and number of replicas.
        names: unused; all quantities of ``others`` are returned.
        equal: fields of ``Rates`` with equal learning rates of experts and dense weights.
        others: for each quantity, the fields of the ``Rates`` to compare with ``equal``.
    """
    late = {}
    for name, rates in {"equal rates": equal, **others}.items():
        late[name] = Mixture(EXPERTS[-1], Rates(**rates), how).late
    return {name: Observation([late[name] - late["equal rates"]]) for name in others}
