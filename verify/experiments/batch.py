"""Adam on a noisy quadratic: do rules for batch, tokens and experts keep what their invariants say?

The gradient is ``slope + curvature w + z / sqrt(B)`` with z standard normal and far above the rest, as the equation of
Malladi et al. (2205.10287) assumes; steps are those of ``torch.optim.AdamW``. Every predicted exponent is what a rule
of ``horizon`` makes of the monomial of an observable.
Read next: ``recipes/horizon.py`` (the rules), ``findings.py`` (claims and verdicts).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import torch

from scaling_algebra.laws.expressions import monomial
from scaling_algebra.laws.monomials import Monomial
from scaling_algebra.recipes.horizon import horizon
from scaling_algebra.verify.judging.fit import Array, fit

from .findings import By, Experiment, Finding, Plan, Trial, exponent

FACTORS = {"B": (1.0, 2.0, 3.0, 5.0, 8.0), "T": (0.125, 0.25, 0.5, 1.0, 2.0), "s": (1 / 8, 1 / 5, 1 / 3, 1 / 2, 1.0)}
"""Batch, tokens, and the share of experts that is active."""
SEEDS, COPIES = 32, 64
"""Replicas, and how many weights each of them has."""
BASE = {"lr": 0.04, "eps": 1.0, "one_minus_beta1": 1 / 8, "one_minus_beta2": 1e-3, "wd": 0.006}
"""Values at batch 1. 1 - beta1 may grow by 8."""
SOURCE = "invariants of scalecalc horizon"
Rule = Mapping[str, Monomial]


@dataclass(frozen=True)
class Observable:
    """Something of a run that is a monomial in lr, wd, batch B and steps S.

    Attributes:
        decay: with weight decay. start: where weights start.
        log: the observable is minus the logarithm of the mean; else the mean where there is a slope; else the rms.
        steps: of a run at batch 1.
    """

    monomial: Monomial
    curvature: float = 0.0
    slope: float = 0.0
    decay: bool = False
    start: float = 0.0
    log: bool = False
    steps: int = 1024


OBSERVABLES = {
    "stationary spread": Observable(monomial("lr**(1/2)*B**(-1/4)"), curvature=0.4, steps=1536),
    "noise of the whole run": Observable(monomial("lr*S**(1/2)")),
    "drift of the whole run": Observable(monomial("lr*B**(1/2)*S"), slope=0.05),
    "forgetting of the start": Observable(monomial("lr*wd*S"), decay=True, start=10.0, log=True),
}
"""Where noise rules: Adam's step is lr (sqrt(B) gradient + z), divided by 1 + eps sqrt(B)."""


def predicted(rule: Rule, of: Observable, axis: str) -> Fraction:
    """The exponent of an axis (B, T, or s for K/M) that a rule gives an observable."""
    found = of.monomial.substituted(where(axis)).substituted(rule)
    return Fraction(str(found[axis]))


def where(axis: str) -> dict[str, Monomial]:
    """Batch and steps of a tensor: an expert takes all T/B steps on s of the batch."""
    if axis == "s":
        return {"B": monomial("s"), "S": monomial("1")}
    return {"S": monomial("T/B")}


def run(of: Observable, rule: Rule, axis: str, factor: float, seeds: int, device: str) -> Array:
    """The observable of every replica where the axis has grown by a factor."""
    at = {axis: float(factor)}
    value = {name: BASE[name] * rule.get(name, monomial("1")).at(at) for name in BASE}
    placed = {name: m.at(at) for name, m in where(axis).items()}
    batch, steps = placed.get("B", at.get("B", 1.0)), round(of.steps * placed["S"])
    share = at.get("s", 1.0)  # an expert's gradient is averaged over the batch of all
    generator = torch.Generator(device).manual_seed(20240)
    w = torch.full((seeds, COPIES), of.start, dtype=torch.float64, device=device, requires_grad=True)
    adam: Any = torch.optim.AdamW(
        [w],
        lr=value["lr"],
        betas=(1 - value["one_minus_beta1"], 1 - value["one_minus_beta2"]),
        eps=value["eps"] if "eps" in rule else 1e-12,
        weight_decay=value["wd"] * of.decay,
        fused=True,
    )
    for _ in range(steps):
        noise = torch.randn(w.shape, dtype=w.dtype, device=device, generator=generator)
        w.grad = share * (of.slope + of.curvature * w.detach() + noise / batch**0.5)
        adam.step()
    end = w.detach().cpu().numpy()
    if of.log:
        return np.asarray(-np.log(end.mean(1) / of.start))
    return np.asarray(np.abs(end.mean(1)) if of.slope else np.sqrt((end**2).mean(1)))


def judged(rule: Rule, axis: str, claims: Mapping[str, Fraction], plan: Plan) -> list[Finding]:
    """A rule's exponents of observables, and a planted one for each."""
    found = []
    for name, planted in claims.items():
        of = OBSERVABLES[name]
        plan.say(f", {name}")
        measured = fit(FACTORS[axis], [run(of, rule, axis, x, plan.seeds, plan.device) for x in FACTORS[axis]])
        right = predicted(rule, of, axis)
        for by, e in ((By.PREDICTED, right), (By.PLANTED, planted)):
            found.append(exponent(name, measured, e, right, by, SOURCE, FACTORS[axis], Fraction(1, 4), axis))
    return found


def held(*names: str) -> Rule:
    """What follows from holding invariants of adamw."""
    return horizon("adamw", names).powers


def expert(name: str) -> Rule:
    """What follows for an expert from holding an invariant, in s = K/M."""
    share = {"K": monomial("s"), "M": monomial("1")}
    return {q: m.substituted(share) for q, m in horizon("adamw", (name,)).experts.items()}


SDE, TIME = held("sde", "timescale"), held("sde-time", "timescale")
LINEAR = {**SDE, "lr": monomial("B")}
SPREAD, NOISE, DRIFT, FORGETTING = OBSERVABLES
HALF, ZERO, ONE = Fraction(1, 2), Fraction(0), Fraction(1)
ALL = (SPREAD, NOISE, DRIFT, FORGETTING)
RUNS: dict[str, tuple[Rule, str, dict[str, Fraction]]] = {
    "batch, sde and timescale held": (SDE, "B", {SPREAD: -HALF / 2, NOISE: -HALF, DRIFT: -HALF, FORGETTING: -HALF}),
    "batch, lr linear instead": (LINEAR, "B", dict.fromkeys(ALL[1:], ZERO)),
    "batch, lr constant instead": ({**SDE, "lr": monomial("1")}, "B", dict.fromkeys(ALL, ZERO)),
    "tokens, sde and timescale held": (SDE, "T", {NOISE: ZERO, DRIFT: HALF, FORGETTING: ONE}),
    "tokens, sde-time and timescale held": (TIME, "T", {NOISE: HALF, DRIFT: ZERO, FORGETTING: HALF}),
    "experts, sde held: lr shrinks": (expert("sde"), "s", {NOISE: ZERO, DRIFT: HALF}),
    "experts, sde-time held: lr stays": (expert("sde-time"), "s", {NOISE: HALF, DRIFT: ZERO}),
    "experts, bias held: lr grows": (expert("bias"), "s", {NOISE: ZERO, DRIFT: HALF}),
}
"""By title: the rule, what changes, and a wrong exponent for each observable."""

BATCH = Experiment(
    name="batch",
    title="do rules for batch, tokens and experts keep their invariants under Adam",
    source="Malladi et al. 2022 (2205.10287); Power Lines (2505.13738)",
    trials=tuple(Trial(title, partial(judged, *one)) for title, one in RUNS.items()),
    sizes=(),
    seeds=SEEDS,
)
