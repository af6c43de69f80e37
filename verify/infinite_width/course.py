"""A question about a limit, and how far the answer goes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from scaling_algebra.errors import UsageError
from scaling_algebra.solver.derivation import Derivation
from scaling_algebra.spec.networks.language import DATA
from scaling_algebra.verify.networks.scales import FIXED_SIZES

from .program import INSTEAD, Limit, LimitState
from .vectors import Diverges, Many, NotCovered, Values


@dataclass(frozen=True)
class Descent:
    """Training: inputs (samples, *data), targets (samples,) or None for the loss f, updates and learning rate."""

    derivation: Derivation
    inputs: Values
    targets: Values | None
    steps: int
    lr: float
    seed: int = 0

    @classmethod
    def of(cls, derivation: Derivation, steps: int, lr: float, samples: int, loss: str, seed: int = 0) -> Descent:
        """Inputs of unit length, drawn at random; targets 1, -1, 1, ..."""
        network = derivation.network
        if network.losses:
            beside = ", ".join(network.losses)
            raise UsageError(f"{network.name} has losses beside the output ({beside}): no limit of it; {INSTEAD}")
        shape = [FIXED_SIZES[network.axes[x]] for x in network.signals[DATA]]
        x = np.random.default_rng([5, seed]).standard_normal((samples, *shape))
        x /= np.linalg.norm(x, axis=-1, keepdims=True)
        targets = np.resize([1.0, -1.0], samples) if loss == "squared" else None
        return cls(derivation, x, targets, steps, lr, seed)


@dataclass(frozen=True)
class Computed:
    """States of all samples by updates; ``why`` they end before the last one, if they do.

    Attributes:
        error: of the output where expectations are sampled: its standard error over sets of samples; else 0.
        many: it ends where points may go on: a function depends on too many Gaussians to be integrated.
    """

    course: Descent
    limit: Limit
    states: tuple[tuple[LimitState, ...], ...]
    why: str = ""
    error: float = 0.0
    many: bool = False

    @property
    def outputs(self) -> Values:
        """The output, (updates, samples)."""
        name = self.limit.network.output
        found = [float(s.signals[name]) for row in self.states for s in row]
        return np.array(found).reshape(len(self.states), len(self.course.inputs))


SETS = 4
"""Sets of samples whose numbers are averaged."""
SHARE, LEAST = 0.05, 5e-5
"""Errors of the output are too large above a share of its largest value so far, where they show in four digits."""


def trajectory(course: Descent) -> Computed:
    """The limit, as far as it is covered: exactly, or by samples where a function depends on too many Gaussians."""
    exact = _computed(course, 0)
    points = exact.many and not exact.limit.sampled
    if not points and not (exact.limit.sampled and exact.states):
        return exact
    sets = [exact] if exact.limit.sampled else []
    for draw in range(len(sets), SETS):
        sets.append(replace(_computed(course, draw, points), limit=exact.limit))
        if points and len(sets[-1].states) <= len(exact.states):
            return exact
    least = min(sets, key=lambda x: len(x.states))
    outputs = [x.outputs[: len(least.states)] for x in sets]
    errors, most = np.std(outputs, axis=0, ddof=1).max(1) / SETS**0.5, np.abs(np.mean(outputs, 0)).max(1)
    errors, most = np.maximum.accumulate(errors), np.maximum.accumulate(most)
    known = int(max([0, *np.flatnonzero(errors <= np.maximum(SHARE * most, LEAST)) + 1]))
    states = tuple(tuple(map(_mean, *row)) for row in zip(*(x.states[:known] for x in sets), strict=False))
    why, f = least.why, exact.limit.network.output
    if known < len(errors):
        why = f"{f} is known to {errors[known]:.1g} at update {known}, above {SHARE:.0%} of {most[known]:.1g}"
    sampled = replace(least, states=states, error=float(errors[known - 1]) if known else 0.0, why=why)
    return exact if points and known <= len(exact.states) else sampled


def _mean(*states: LimitState) -> LimitState:
    parts = ([getattr(s, part) for s in states] for part in ("signals", "gradients"))
    return LimitState(*({name: np.mean([x[name] for x in same], 0) for name in same[0]} for same in parts))


@np.errstate(over="ignore", invalid="ignore")  # what is not finite is refused
def _computed(course: Descent, draw: int, points: bool = False) -> Computed:
    limit, states = Limit(course.derivation, course.inputs, course.lr, course.seed, draw, points), []
    try:
        for state in limit.train(course.steps, course.targets):
            states.append(state)
    except Diverges:
        return Computed(course, limit, tuple(states), f"{limit.network.output} diverges at update {len(states)}")
    except NotCovered as why:
        return Computed(course, limit, tuple(states), str(why), many=isinstance(why, Many))
    return Computed(course, limit, tuple(states))
