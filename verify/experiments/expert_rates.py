"""A mixture on digits in which one expert of M sees an example: its gradient, and which learning rate it wants.

``horizon`` takes an expert's examples for a random share K/M of the batch: its gradient's mean falls as K/M, its noise
as (K/M)^(1/2). Where a router chooses, examples of one expert are alike, and that changes.
Read next: ``recipes/horizon.py`` (what an expert's share asks for), ``findings.py`` (verdicts).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from scaling_algebra.solver.derivation import derive
from scaling_algebra.verify.judging.fit import Array, fit
from scaling_algebra.verify.measuring.batches import Data, cross_entropy, digits
from scaling_algebra.verify.networks.base_shapes import Scaled, balance, chosen, recipe

from .findings import By, Experiment, Finding, Plan, Trial, bound, exponent

EXPERTS, BATCH, SAMPLES = (2, 4, 8, 16), 32, 64
"""Numbers of experts, examples of a batch, and batches from which mean and noise of a gradient are taken."""
FIRST = 100
"""Seed of the first replica: what is claimed was found on others."""
BALANCING = 0.1
"""Weight of the load-balancing loss."""
SHARE, LEARNT = "scalecalc horizon --experts", "marin, issue 5799 (Muon, K/M = 1/64)"
PARAMETERS = ("expert_in", "expert_out")


@dataclass(frozen=True)
class Course:
    """How a mixture is trained.

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
    """Top-1 MLP mixture of M experts with one replica per seed.

    Attributes:
        late: loss over the last quarter of the training, (seeds,).
    """

    def __init__(self, count: int, course: Course, seeds: int, device: str) -> None:
        self.data: Data = digits(BATCH)
        self.seeds, self.course, self.device, self.count = range(FIRST, FIRST + seeds), course, device, count
        dims = {"N": 32, "N_e": 16, "M": count, "K": 1}
        scaling = recipe(derive("I", "adam", "mup").configuration, dims, False)
        self.model: Scaled = self.data.build(scaling, dims, self.seeds, device)
        self.draw = torch.Generator().manual_seed(count)
        self._train()

    def losses(self, step: int) -> tuple[Tensor, Tensor]:
        """Cross entropy and balancing loss of a batch, (seeds,) each."""
        x, y = self.data.batches(self.seeds, step, self.device)
        w = self.model.weights
        h = F.gelu(x @ w["input"].mT)
        psi = h @ w["router"].mT
        anyone = torch.randint(self.count, psi.shape[:-1], generator=self.draw).to(self.device)
        mask = F.one_hot(anyone, self.count).to(psi.dtype) if self.course.random else chosen(psi, 1)
        return cross_entropy(self.model.moe(h, mask=mask).h3 @ w["readout"].mT, y), balance(psi, mask)

    def _train(self) -> None:
        own = {"expert_in": self.course.experts, "expert_out": self.course.experts, "router": self.course.router}
        groups = [
            {"params": [p], "lr": 2.0**self.course.lr * own.get(name, 1.0)} for name, p in self.model.weights.items()
        ]
        adam = torch.optim.Adam(groups, betas=(0.9, 0.95), eps=1e-12, fused=True)
        late = []
        for step in range(self.course.steps):
            loss, uneven = self.losses(step)
            adam.zero_grad()
            (loss + BALANCING * uneven).sum().backward()  # replicas do not meet: a sum trains each alone
            adam.step()
            late += [loss.detach()] * (4 * step >= 3 * self.course.steps)
        self.late: Array = torch.stack(late).mean(0).cpu().numpy().astype(np.float64)

    def gradient(self) -> tuple[Array, Array]:
        """Root mean square over experts' weights of the mean gradient and of the noise of a batch, (seeds,) each."""
        weights = [self.model.weights[name] for name in PARAMETERS]
        first = second = torch.zeros(())
        for k in range(SAMPLES):
            found = torch.autograd.grad(self.losses(10**6 + k)[0].sum(), weights)
            g = torch.cat([x.flatten(1) for x in found], 1).double()
            first, second = first + g / SAMPLES, second + g**2 / SAMPLES
        noise = (second - first**2) * SAMPLES / (SAMPLES - 1)
        mean = (first**2 - noise / SAMPLES).mean(1).clamp(min=0)  # without what the noise adds to it
        return mean.sqrt().cpu().numpy(), noise.mean(1).sqrt().cpu().numpy()


def gradients(course: Course, plan: Plan) -> list[tuple[Array, Array]]:
    """Mean and noise for every number of experts."""
    found = []
    for count in EXPERTS:
        plan.say(f", {count} experts")
        found.append(Mixture(count, course, plan.seeds, plan.device).gradient())
    return found


def shares(course: Course, plan: Plan) -> list[Finding]:
    """Exponents in s = K/M of the noise of an expert's gradient, and of its mean over its noise."""
    found, s, half = gradients(course, plan), [1 / m for m in EXPERTS], Fraction(1, 2)
    ratio = fit(s, [mean / noise for mean, noise in found])
    if course.random:
        claims = ((half, half, By.PREDICTED), (Fraction(0), half, By.PLANTED))
        return [exponent("mean over noise", ratio, e, right, by, SHARE, s, half, "s") for e, right, by in claims]
    noise = fit(s, [noise for _, noise in found])
    return [
        exponent("noise", noise, half, half, By.PREDICTED, SHARE, s, half, "s"),
        exponent("noise", noise, Fraction(1), half, By.PLANTED, SHARE, s, half, "s"),
        exponent("mean over noise", ratio, half, None, By.PLANTED, f"{SHARE}: a random share", s, half, "s"),
    ]


@lru_cache
def late(course: Course, seeds: int, device: str) -> Array:
    return Mixture(EXPERTS[-1], course, seeds, device).late


def rates(courses: Sequence[tuple[str, Course, str, By, str]], plan: Plan) -> list[Finding]:
    """Loss late in training less that with equal rates, at K/M = 1/16: with what sign, and who says so."""
    found = []
    for name, course, sign, by, source in courses:
        plan.say(f", {name}")
        more = late(course, plan.seeds, plan.device) - late(EQUAL, plan.seeds, plan.device)
        found.append(bound(name, more, sign, 0.0, source, by))
    return found


EQUAL = Course(-7)
"""The best of the powers of two where experts learn at the rate of the rest."""
SHRUNK, RAISED = Course(-7, 1 / 4), Course(-5, 1 / 4)
RUNS = (
    ("loss, experts' lr times (K/M)^(1/2)", SHRUNK, ">", By.PUBLISHED, LEARNT),
    ("loss, experts' lr times (K/M)^(1/2)", SHRUNK, "<", By.PLANTED, "scalecalc horizon --experts --hold sde"),
    ("loss, all other lr times (M/K)^(1/2)", RAISED, ">", By.PUBLISHED, LEARNT),
    ("loss, all lr halved, experts' times (M/K)^(1/2)", Course(-8, 4), "<", By.PREDICTED, f"{SHARE} --hold bias"),
    ("loss, router's lr times (K/M)^(1/2)", Course(-7, router=1 / 4), "<", By.PREDICTED, f"{SHARE} --hold sde"),
    ("loss, router's lr times (M/K)^(1/2)", Course(-7, router=4.0), "<", By.PLANTED, f"{SHARE} --hold bias"),
)

EXPERT_RATES = Experiment(
    name="experts",
    title="what the gradient of an expert under top-K is, and which learning rate it wants",
    source="Malladi et al. 2022 (2205.10287); marin, issue 5799",
    trials=(
        Trial("gradient, examples at random", partial(shares, Course(-10, steps=10, random=True))),
        Trial("gradient, examples chosen by the router", partial(shares, Course(-7))),
        Trial("learning rates, one expert of 16", partial(rates, RUNS)),
    ),
    sizes=(),
    seeds=24,
)
