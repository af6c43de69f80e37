"""Trains networks of finite width for comparison with the limit: same data, same rates, same tensors that do not
grow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch

from scaling_algebra.verify.judging.fit import Fit, Verdict, fit_exponent, judge_exponent, round_for_json
from scaling_algebra.verify.measuring.batches import descend
from scaling_algebra.verify.measuring.sizes import compute_dims, count_elements
from scaling_algebra.verify.networks.replicas import ReplicaDraw
from scaling_algebra.verify.networks.torch_network import TorchNetwork

from .course import Computed, Descent
from .program import Limit
from .vectors import Values

ENTRIES = 1e7
"""Maximum number of weight entries that are trained at once."""


def train_finite(course: Descent, limit: Limit, n: int, seeds: Sequence[int], device: str) -> dict[str, Values]:
    """Trains networks of width n as the limit is trained, and returns all signals without a growing index, such as the
    output f.

    Args:
        course: the training: data, learning rate and number of updates.
        limit: the network of infinite width; the tensors that do not grow start with its values.
        n: the width.
        seeds: seeds of the networks, which are trained at once, one replica for each.
        device: the torch device.

    Returns:
        Values by name of the signal, (replicas, updates, samples, *indices).
    """
    d, dims = course.derivation, compute_dims(course.derivation.ray, n)
    model = TorchNetwork(d.network, ReplicaDraw(dims, list(seeds), list(seeds), device), d.scaling).to(device)
    optimizer = model.optimizer(d.optimizer)
    with torch.no_grad():
        for role, parameter in model.weights.items():
            start = limit.weights[role].start
            parameter.div_(model.constants.init_of(role))
            if start is not None and not start.over and start.values.any():
                parameter.copy_(torch.as_tensor(start.values))  # the same at every width
    for group in optimizer.param_groups:
        powers = d.scaling.tensors[group["symbol"]]
        group["lr"] = 0.0 if powers.lr is None else course.lr * powers.lr.at(dims)
        if d.optimizer.of(group["symbol"]).epsilon and powers.eps is not None:
            group["eps"] = powers.eps.at(dims)
    inputs = torch.as_tensor(course.inputs, device=device)
    names = [x for x in limit.made if not set(d.network.signals[x]) & limit.growing]
    found: dict[str, list[Any]] = {name: [] for name in names}

    def losses(step: int) -> torch.Tensor:
        now, parts = list[Mapping[str, torch.Tensor]](), list[torch.Tensor]()
        for k, x in enumerate(inputs):
            model.x = x
            now.append(model.signals(model.weights, {}))
            f = now[-1][d.network.output]
            parts.append((f - course.targets[k]) ** 2 / 2 if course.targets is not None else f)
        for name in names:
            found[name].append(torch.stack([s[name].detach() for s in now], 1))
        return torch.stack(parts).mean(0)

    for _ in descend(optimizer, losses, course.steps):
        pass
    losses(course.steps)
    return {name: torch.stack(values, 1).cpu().numpy() for name, values in found.items()}


@dataclass(frozen=True)
class Compared:
    """A signal without a growing index, such as the output, in networks trained at several widths, compared with its
    limit of infinite width.

    Attributes:
        name: name of the signal.
        sizes: the widths.
        means: means over seeds at each width, (updates, samples, *indices).
        error: largest absolute difference between the mean over seeds at the largest width and the limit.
        scale: largest absolute value of the limit.
        slope: fitted power of n of the difference between one seed and the limit.
        verdict: whether this difference falls as n^(-1/2).
    """

    name: str
    sizes: tuple[int, ...]
    means: tuple[Values, ...]
    error: float
    scale: float
    slope: Fit
    verdict: Verdict

    def as_json(self) -> dict[str, Any]:
        slope = {
            "slope": round_for_json(self.slope.slope),
            "ci": [round_for_json(self.slope.low), round_for_json(self.slope.high)],
        }
        means = [x.tolist() for x in self.means]
        head = {
            "sizes": list(self.sizes),
            "means": means,
            "error": round_for_json(self.error),
            "scale": round_for_json(self.scale),
        }
        return {**head, **slope, "verdict": str(self.verdict)}


@np.errstate(over="ignore", invalid="ignore")  # a width that diverges has no verdict
def compare_widths(
    t: Computed, sizes: Sequence[int], seeds: int, device: str, say: Callable[[str], None] = lambda what: None
) -> dict[str, Compared]:
    """Trains networks at several widths and compares their signals with the limit, by name of the signal.

    They are compared for as many updates as the limit was computed.

    Law: the difference from the limit is a mean of n independent terms, so it falls as n^(-1/2).

    Args:
        t: the computed limit.
        sizes: the widths.
        seeds: number of networks at each width.
        device: the torch device.
        say: called with a line of progress before each width.
    """
    course, steps = t.course, len(t.states)
    runs: list[dict[str, Values]] = []
    for n in sizes:
        say(f"n = {n}")
        together = max(
            1, int(ENTRIES / count_elements(compute_dims(course.derivation.ray, n), course.derivation.network))
        )
        parts = [
            train_finite(course, t.limit, n, range(seeds)[k : k + together], device) for k in range(0, seeds, together)
        ]
        runs.append({name: np.concatenate([part[name] for part in parts])[:, :steps] for name in parts[0]})
    found = {}
    for name in sorted(runs[0], key=lambda x: x != course.derivation.network.output) if steps else ():
        limit = np.array([[s.signals[name] for s in row] for row in t.states])
        apart = [run[name] - limit for run in runs]
        slope = fit_exponent(sizes, [np.sqrt((x**2).reshape(len(x), -1).mean(1)) for x in apart])
        verdict = judge_exponent(slope, Fraction(-1, 2), Fraction(1, 2))
        means = tuple(run[name].mean(0) for run in runs)
        error, scale = float(np.abs(means[-1] - limit).max()), float(np.abs(limit).max())
        found[name] = Compared(name, tuple(sizes), means, error, scale, slope, verdict)
    return found
