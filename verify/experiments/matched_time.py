"""Adam on digits at matched time of its equation: does the square root rule keep the trajectory when the batch grows?

Every run sees the same number of examples. With lr, eps and betas as ``horizon`` says (Malladi et al., 2205.10287),
steps times lr^2 is the same for every batch, and so must be the loss and the distance from the initial weights, at any
part of the run. Batches are so small that noise rules the gradient.
Read next: ``recipes/horizon.py`` (the rule), ``batch.py`` (the same on a quadratic), ``findings.py`` (verdicts).
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import lru_cache, partial

import numpy as np
import torch

from scaling_algebra.laws.expressions import monomial
from scaling_algebra.laws.monomials import Monomial
from scaling_algebra.recipes.horizon import horizon
from scaling_algebra.solver.derivation import derive
from scaling_algebra.verify.judging.fit import Array, fit
from scaling_algebra.verify.measuring.batches import cross_entropy, digits
from scaling_algebra.verify.networks.base_shapes import recipe

from .findings import By, Experiment, Finding, Plan, Trial, exponent

BATCHES, EXAMPLES, PARTS = (1, 2, 4, 8), 4096, (Fraction(1, 2), Fraction(1))
"""Batches, examples of a run, and the parts of it at which trajectories are compared: moments are averages by then."""
BASE = {"lr": 2.0**-11, "eps": 0.01, "one_minus_beta1": 0.04, "one_minus_beta2": 0.001}
"""At batch 1; eps is of the size of gradients."""
DIMS = {"N": 32, "N_e": 32, "M": 4, "K": 4}
SOURCE = "Malladi et al. 2022 (2205.10287), by scalecalc horizon"
LOSS, DISTANCE = Fraction(1, 4), Fraction(1, 8)
"""Spacing of exponents by which slopes of the two are judged."""
Rule = Mapping[str, Monomial]


@lru_cache
def trajectory(batch: int, lr: float, eps: float, beta1: float, beta2: float, seeds: int, device: str) -> list[Array]:
    """Held-out loss and rms distance from the initial weights at every part of a run, each (2, seeds)."""
    data, replicas = digits(batch), range(seeds)
    model = data.build(recipe(derive("I", "adam", "mup").configuration, DIMS, False), DIMS, replicas, device)
    start = [p.detach().clone() for p in model.parameters()]
    adam = torch.optim.Adam(model.parameters(), lr=lr, betas=(beta1, beta2), eps=eps, fused=True)
    found, steps = [], EXAMPLES // batch
    for step in range(steps):
        x, y = data.batches(replicas, step, device)
        adam.zero_grad()
        cross_entropy(model(x)[0], y).sum().backward()  # replicas do not meet: a sum trains each alone
        adam.step()
        if Fraction(step + 1, steps) in PARTS:
            x, y = data.batches(replicas, None, device)
            with torch.no_grad():
                moved = [(p - w).flatten(1) for p, w in zip(model.parameters(), start, strict=True)]
                both = cross_entropy(model(x)[0], y), torch.cat(moved, 1).pow(2).mean(1).sqrt()
            found.append(np.stack([part.cpu().numpy().astype(np.float64) for part in both]))
    return found


def compared(rule: Rule, kept: bool, plan: Plan) -> list[Finding]:
    """Slopes in the batch: zero for the rule that is predicted to keep the trajectory, and for no other."""
    runs = []
    for batch in BATCHES:
        plan.say(f", batch {batch}")
        at = {name: x * rule[name].at({"B": batch}) for name, x in BASE.items()}
        betas = 1 - at["one_minus_beta1"], 1 - at["one_minus_beta2"]
        runs.append(trajectory(batch, at["lr"], at["eps"], *betas, plan.seeds, plan.device))
    found, zero = [], Fraction(0)
    for part, index in ((p, i) for i in (0, 1) for p in range(len(PARTS))):
        what, spacing = (("held-out loss", LOSS), ("distance from the start", DISTANCE))[index]
        if index == 0 and not kept:
            continue  # that it moves is predicted of the weights
        measured = fit(BATCHES, [run[part][index] for run in runs])
        by, right = (By.PREDICTED, zero) if kept else (By.PLANTED, None)
        name = f"{what}, {'whole' if PARTS[part] == 1 else PARTS[part]} run"
        found.append(exponent(name, measured, zero, right, by, SOURCE, BATCHES, spacing, "B"))
    return found


SDE: Rule = horizon("adam", ("sde",), ("B",)).powers
RUNS: dict[str, tuple[Rule, bool]] = {
    "sde held: lr as the root of the batch": (SDE, True),
    "lr linear instead": ({**SDE, "lr": monomial("B")}, False),
    "lr constant instead": ({**SDE, "lr": monomial("1")}, False),
    "eps constant instead": ({**SDE, "eps": monomial("1")}, False),
}
"""By title: the rule, and whether it is predicted to keep the trajectory."""

MATCHED = Experiment(
    name="sde",
    title="does Adam on digits keep its trajectory when the batch grows, at matched time of its equation",
    source="Malladi et al. 2022 (2205.10287)",
    trials=tuple(Trial(title, partial(compared, *one)) for title, one in RUNS.items()),
    sizes=(),
    seeds=24,
)
