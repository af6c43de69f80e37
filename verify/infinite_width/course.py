"""A question about a limit, and how far the answer goes. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from scaling_algebra.errors import UsageError
from scaling_algebra.solver.derivation import Derivation
from scaling_algebra.spec.networks.language import DATA
from scaling_algebra.verify.networks.scales import FIXED_SIZES

from .program import Limit, LimitState
from .vectors import NotCovered, Values


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
            raise UsageError(
                f"{network.name} has losses beside the output ({', '.join(network.losses)}): no limit of it"
            )
        shape = [FIXED_SIZES[network.axes[x]] for x in network.signals[DATA]]
        x = np.random.default_rng([5, seed]).standard_normal((samples, *shape))
        x /= np.linalg.norm(x, axis=-1, keepdims=True)
        targets = np.resize([1.0, -1.0], samples) if loss == "squared" else None
        return cls(derivation, x, targets, steps, lr, seed)


@dataclass(frozen=True)
class Computed:
    """States of all samples by updates; ``why`` they end before the last one, if they do.

    Attributes:
        error: of the output where experts are sampled: its standard deviation over sets of samples; else 0.
    """

    course: Descent
    limit: Limit
    states: tuple[tuple[LimitState, ...], ...]
    why: str = ""
    error: float = 0.0

    @property
    def outputs(self) -> Values:
        """The output, (updates, samples)."""
        name = self.limit.network.output
        return np.array([[float(s.signals[name]) for s in row] for row in self.states])


SETS = 4
"""Sets of samples of experts whose outputs are compared."""


def trajectory(course: Descent) -> Computed:
    """The limit, as far as it is covered."""
    first = _computed(course, 0)
    if not first.limit.sampled:
        return first
    outputs = [first.outputs, *(_computed(course, draw).outputs for draw in range(1, SETS))]
    common = min(map(len, outputs))
    error = np.std([x[:common] for x in outputs], axis=0, ddof=1).max(initial=0.0)
    return replace(first, error=float(error))


def _computed(course: Descent, draw: int) -> Computed:
    limit, states = Limit(course.derivation, course.inputs, course.lr, course.seed, draw), []
    try:
        for state in limit.train(course.steps, course.targets):
            states.append(state)
    except NotCovered as why:
        return Computed(course, limit, tuple(states), str(why))
    return Computed(course, limit, tuple(states))
