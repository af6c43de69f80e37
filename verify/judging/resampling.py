"""A number with its error over seeds: one bootstrap for slopes, optima, losses and medians.

The resamples of a number of seeds are weights of these seeds, drawn once from a fixed stream: the same data always
give the same interval, and each of a run's thousand slopes is a matrix product. Drawing anew for every number, as
``scipy.stats.bootstrap`` does, takes eight times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Centre = Callable[[Array, Array], Array]
"""Values (..., seeds) and weights (B, seeds), whose rows sum to one, give (..., B)."""

RESAMPLES = 2000
LEVEL = 0.95
"""Of intervals, for data that are looked at once."""


class Estimate(NamedTuple):
    """A number with its bootstrap standard error and percentile interval; NaN where one seed tells none."""

    value: float
    se: float
    low: float
    high: float


def mean(values: Array, weights: Array) -> Array:
    """The weighted mean over seeds."""
    means: Array = values @ weights.T
    return means


def median(values: Array, weights: Array) -> Array:
    """The lower weighted median over seeds; values (seeds,)."""
    order = values.argsort()
    return np.asarray(values[order[(weights[:, order].cumsum(axis=1) >= 0.5 - 1e-9).argmax(axis=1)]])


def resampled(
    samples: Sequence[Array],
    statistic: Callable[[Sequence[Array]], Array],
    level: float = LEVEL,
    paired: bool = False,
    centre: Centre = mean,
) -> Estimate:
    """A statistic of the centres of samples, with its error over seeds.

    Args:
        samples: shape (..., seeds) each; all that one seed saw is drawn together.
        statistic: numbers (B,) from the centres (..., B) of every sample; those that are not finite are left out.
        paired: the same seeds are drawn in every sample.
    """

    def drawn(weights: Callable[[int, int], Array]) -> Array:
        parts = [centre(x, weights(x.shape[-1], 0 if paired else k)) for k, x in enumerate(samples)]
        return np.asarray(statistic(parts))

    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(drawn(lambda seeds, _: np.full((1, seeds), 1 / seeds))[0])
        numbers = drawn(resampling) if min(x.shape[-1] for x in samples) > 1 else np.array([])
    numbers = numbers[np.isfinite(numbers)]
    if not len(numbers):
        return Estimate(value, *(float("nan"),) * 3)
    low, high = np.percentile(numbers, [50 * (1 - level), 50 * (1 + level)])
    return Estimate(value, float(numbers.std()), float(low), float(high))


@lru_cache(maxsize=16)
def resampling(seeds: int, stream: int) -> Array:
    """Weights, (RESAMPLES, seeds): how often each seed is drawn, over the number of seeds; streams differ."""
    drawn = np.random.default_rng([20240, seeds, stream]).multinomial(seeds, np.full(seeds, 1 / seeds), RESAMPLES)
    return drawn / seeds


def slope_weights(sizes: Sequence[float]) -> Array:
    """Weights whose product with values at the sizes is their least-squares slope per doubling."""
    doublings = np.log2(sizes) - np.log2(sizes).mean()
    weights: Array = doublings / (doublings @ doublings)
    return weights
