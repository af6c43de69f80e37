"""Training at finite width beside the limit: the same data, rates and tensors that do not grow.

Read next: ``presentation.py`` (the tables).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from scaling_algebra.solver.derivation import Derivation
from scaling_algebra.verify.judging.fit import fit
from scaling_algebra.verify.measuring.sizes import dims_at
from scaling_algebra.verify.networks.reading import TorchNetwork
from scaling_algebra.verify.networks.replicas import Draw

from .program import Limit, State
from .vectors import NotCovered, Values

ENTRIES = 3e7
"""Weight entries that are trained side by side."""


@dataclass(frozen=True)
class Course:
    """What is trained: inputs (samples, *data), targets (samples,) or None for the loss f, updates and learning rate."""

    derivation: Derivation
    inputs: Values
    targets: Values | None
    steps: int
    lr: float
    seed: int = 0

    @classmethod
    def of(cls, derivation: Derivation, steps: int, lr: float, samples: int, loss: str, seed: int = 0) -> Course:
        """Inputs of unit length, drawn at random; targets 1, -1, 1, ..."""
        from scaling_algebra.verify.networks.scales import FIXED_SIZES

        network = derivation.network
        shape = [FIXED_SIZES[network.axes[x]] for x in network.signals["data"]]
        x = np.random.default_rng([5, seed]).standard_normal((samples, *shape))
        x /= np.linalg.norm(x, axis=-1, keepdims=True)
        targets = np.resize([1.0, -1.0], samples) if loss == "squared" else None
        return cls(derivation, x, targets, steps, lr, seed)


@dataclass(frozen=True)
class Trajectory:
    """States of all samples by updates; ``why`` they end before the last one, if they do."""

    limit: Limit
    states: tuple[tuple[State, ...], ...]
    why: str = ""


def trajectory(course: Course) -> Trajectory:
    """The limit, as far as it is covered."""
    limit, states = Limit(course.derivation, course.inputs, course.lr, course.seed), []
    try:
        for state in limit.train(course.steps, course.targets):
            states.append(state)
    except NotCovered as why:
        return Trajectory(limit, tuple(states), str(why))
    return Trajectory(limit, tuple(states))


def trained(course: Course, limit: Limit, n: int, seeds: Sequence[int], device: str) -> dict[str, Values]:
    """Numbers that do not grow, f among them, (replicas, updates, samples, *letters), of networks of width n."""
    d, dims = course.derivation, dims_at(course.derivation.ray, n)
    model = TorchNetwork(d.network, Draw(dims, list(seeds), list(seeds), device), d.scaling).to(device)
    optimizer = model.optimizer(d.optimizer)
    with torch.no_grad():
        for role, weight in model.weights.items():
            current = limit.weights[role].current
            if current is not None and not current.over and current.values.any():
                weight.copy_(torch.as_tensor(current.values))  # the same at every width
            else:
                weight /= model.constants.init_of(role)
    for group in optimizer.param_groups:
        group["lr"] = course.lr * d.scaling.tensors[group["symbol"]].lr.at(dims)
    inputs = torch.as_tensor(course.inputs, device=device)
    names = [x for x, letters in d.network.signals.items() if not set(letters) & limit.growing and x != "data"]
    found: dict[str, list[Any]] = {name: [] for name in names}
    for _ in range(course.steps + 1):
        optimizer.zero_grad()
        loss, now = torch.zeros((), dtype=inputs.dtype, device=device), list[Mapping[str, torch.Tensor]]()
        for k, x in enumerate(inputs):
            model.x = x
            signals = model.signals(model.weights, {})
            f = signals[d.network.output]
            loss = loss + ((f - course.targets[k]) ** 2 / 2 if course.targets is not None else f).sum()
            now.append(signals)
        for name in names:
            found[name].append(torch.stack([s[name].detach() for s in now], 1))
        (loss / len(inputs)).backward()
        optimizer.step()
    return {name: torch.stack(values, 1).cpu().numpy() for name, values in found.items()}
