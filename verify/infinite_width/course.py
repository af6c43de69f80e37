"""Describes a training run whose limit of infinite width is wanted, and computes this limit."""

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
    """A training by gradient descent whose limit of infinite width is computed.

    Attributes:
        derivation: network, ray, optimizer and the powers of n of all init stds and learning rates.
        inputs: inputs, (samples, *dimensions of the data).
        targets: targets of the loss 1/2 (f - y)^2, (samples,); None if the loss is the output f itself.
        steps: number of updates.
        lr: learning rate of every tensor without its power of n.
        seed: seed of the inputs and of the tensors that do not grow.
    """

    derivation: Derivation
    inputs: Values
    targets: Values | None
    steps: int
    lr: float
    seed: int = 0

    @classmethod
    def of(cls, derivation: Derivation, steps: int, lr: float, samples: int, loss: str, seed: int = 0) -> Descent:
        """Makes a training on random inputs of unit length with targets 1, -1, 1, ...

        Args:
            derivation: network, ray, optimizer and powers of n, as for ``Descent``. So are ``steps``, ``lr`` and
                ``seed``.
            samples: number of inputs.
            loss: "squared" for the squared error; with any other name the loss is the output, without targets.

        Raises:
            UsageError: the network has losses in addition to its output.
        """
        network = derivation.network
        if network.losses:
            beside = ", ".join(network.losses)
            raise UsageError(
                f"{network.name} has losses in addition to its output ({beside}), for which no limit is computed; "
                f"{INSTEAD}"
            )
        shape = [FIXED_SIZES[network.axes[x]] for x in network.signals[DATA]]
        x = np.random.default_rng([5, seed]).standard_normal((samples, *shape))
        x /= np.linalg.norm(x, axis=-1, keepdims=True)
        targets = np.resize([1.0, -1.0], samples) if loss == "squared" else None
        return cls(derivation, x, targets, steps, lr, seed)


@dataclass(frozen=True)
class Computed:
    """The limit of infinite width of a training, as far as it could be computed.

    Attributes:
        course: the training.
        limit: the network of infinite width.
        states: after 0, 1, ... updates, the signals and gradients for each input.
        why: the reason why the states end before the last update; empty if they do not.
        error: standard error of the output over several sets of samples if expectations are estimated by samples;
            else 0.
        many: whether the states end because a function depends on too many Gaussian vectors for quadrature. The
            computation can then be repeated with integration at points (see ``Points``).
    """

    course: Descent
    limit: Limit
    states: tuple[tuple[LimitState, ...], ...]
    why: str = ""
    error: float = 0.0
    many: bool = False

    @property
    def outputs(self) -> Values:
        """The output after 0, 1, ... updates for each input, (updates, samples)."""
        name = self.limit.network.output
        found = [float(s.signals[name]) for row in self.states for s in row]
        return np.array(found).reshape(len(self.states), len(self.course.inputs))


SETS = 4
"""Number of sets of samples over which results are averaged."""
SHARE, LEAST = 0.05, 5e-5
"""An error of the output is too large if it exceeds both this share of the largest output so far and the second
number, below which errors are invisible in four digits."""


def compute_trajectory(course: Descent) -> Computed:
    """Computes the limit of a training, up to the first update that cannot be computed.

    Expectations are integrated by quadrature; if a function depends on too many Gaussians for that, they are means
    over samples, and states end where their error becomes too large.
    """
    exact = _compute(course, 0)
    points = exact.many and not exact.limit.sampled
    if not points and not (exact.limit.sampled and exact.states):
        return exact
    sets = [exact] if exact.limit.sampled else []
    for draw in range(len(sets), SETS):
        sets.append(replace(_compute(course, draw, points), limit=exact.limit))
        if points and len(sets[-1].states) <= len(exact.states):
            return exact
    least = min(sets, key=lambda x: len(x.states))
    outputs = [x.outputs[: len(least.states)] for x in sets]
    errors, most = np.std(outputs, axis=0, ddof=1).max(1) / SETS**0.5, np.abs(np.mean(outputs, 0)).max(1)
    errors, most = np.maximum.accumulate(errors), np.maximum.accumulate(most)
    known = int(max([0, *np.flatnonzero(errors <= np.maximum(SHARE * most, LEAST)) + 1]))
    states = tuple(tuple(map(_average_states, *row)) for row in zip(*(x.states[:known] for x in sets), strict=False))
    why, f = least.why, exact.limit.network.output
    if known < len(errors):
        why = f"{f} is known to {errors[known]:.1g} at update {known}, above {SHARE:.0%} of {most[known]:.1g}"
    sampled = replace(least, states=states, error=float(errors[known - 1]) if known else 0.0, why=why)
    return exact if points and known <= len(exact.states) else sampled


def _average_states(*states: LimitState) -> LimitState:
    parts = ([getattr(s, part) for s in states] for part in ("signals", "gradients"))
    return LimitState(*({name: np.mean([x[name] for x in same], 0) for name in same[0]} for same in parts))


@np.errstate(over="ignore", invalid="ignore")  # values that are not finite are refused
def _compute(course: Descent, draw: int, points: bool = False) -> Computed:
    limit, states = Limit(course.derivation, course.inputs, course.lr, course.seed, draw, points), []
    try:
        for state in limit.train(course.steps, course.targets):
            states.append(state)
    except Diverges:
        return Computed(course, limit, tuple(states), f"{limit.network.output} diverges at update {len(states)}")
    except NotCovered as why:
        return Computed(course, limit, tuple(states), str(why), many=isinstance(why, Many))
    return Computed(course, limit, tuple(states))
