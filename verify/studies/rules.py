"""Rules for batch and tokens, tried out: do they keep what their invariants say?

Adam on a noisy quadratic: the gradient is ``slope + curvature w + z / sqrt(B)`` with z standard normal and far above
the rest, as the equation of Malladi et al. (2205.10287) assumes. Every derived exponent is what a rule of ``horizon``
makes of the monomial of an observable.
Read next: ``recipes/horizon.py`` (the rules), ``claims/batch.toml``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scaling_algebra.laws.expressions import monomial
from scaling_algebra.laws.monomials import Monomial
from scaling_algebra.recipes.horizon import horizon
from scaling_algebra.verify.judging.fit import Array
from scaling_algebra.verify.measuring.batches import descend

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
