"""Bootstrap over seeds for slopes, optima, losses and medians.

A resample of seeds is a vector of weights, drawn once from a fixed random stream. So the same data always give the same
interval, and the resampled slopes of a run are one matrix product each. Drawing anew for every number, as
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
"""``centre(values, weights)``: values (..., seeds) and weights (B, seeds), whose rows sum to one, to centres (...,
B)."""

RESAMPLES = 2000
LEVEL = 0.95
"""Confidence level of intervals, for data that are looked at once."""


class Estimate(NamedTuple):
    """A number that is estimated from several seeds, with its bootstrap standard error and confidence interval. Error
    and
    interval are NaN if there is only one seed.
    """

    value: float
    se: float
    low: float
    high: float


def weighted_mean(values: Array, weights: Array) -> Array:
    """Returns the weighted mean over seeds, (..., B), of values (..., seeds) under each of B weightings (B, seeds)."""
    means: Array = values @ weights.T
    return means


def weighted_median(values: Array, weights: Array) -> Array:
    """Returns the weighted median over seeds, (B,), of values (seeds,) under each of B weightings (B, seeds); the lower
    of two medians.
    """
    order = values.argsort()
    return np.asarray(values[order[(weights[:, order].cumsum(axis=1) >= 0.5 - 1e-9).argmax(axis=1)]])


def estimate_by_bootstrap(
    samples: Sequence[Array],
    statistic: Callable[[Sequence[Array]], Array],
    level: float = LEVEL,
    paired: bool = False,
    centre: Centre = weighted_mean,
) -> Estimate:
    """Returns a statistic of the means (or medians) over seeds of some samples, with its bootstrap error.

    Example: a slope, from one sample of seeds at each size.

    Args:
        samples: arrays of shape (..., seeds), one for each size, for example; all values of one seed are resampled
            together.
        statistic: maps the centres (..., B) of all samples, for B resamples, to numbers (B,); numbers that are not
            finite are ignored.
        level: confidence level of the interval.
        paired: whether all samples have the same seeds, which are then resampled together.
        centre: the centre of a sample over seeds, as for ``weighted_mean``.
    """

    def draw_statistic(weights: Callable[[int, int], Array]) -> Array:
        parts = [centre(x, weights(x.shape[-1], 0 if paired else k)) for k, x in enumerate(samples)]
        return np.asarray(statistic(parts))

    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(draw_statistic(lambda seeds, _: np.full((1, seeds), 1 / seeds))[0])
        numbers = draw_statistic(draw_weights) if min(x.shape[-1] for x in samples) > 1 else np.array([])
    numbers = numbers[np.isfinite(numbers)]
    if not len(numbers):
        return Estimate(value, *(float("nan"),) * 3)
    low, high = np.percentile(numbers, [50 * (1 - level), 50 * (1 + level)])
    return Estimate(value, float(numbers.std()), float(low), float(high))


@lru_cache(maxsize=16)
def draw_weights(seeds: int, stream: int) -> Array:
    """Returns the weight of each seed in every bootstrap resample: the fraction of draws that it gets, (RESAMPLES,
    seeds). Different numbers ``stream`` give independent resamples.
    """
    drawn = np.random.default_rng([20240, seeds, stream]).multinomial(seeds, np.full(seeds, 1 / seeds), RESAMPLES)
    return drawn / seeds


def compute_slope_weights(sizes: Sequence[float]) -> Array:
    """Returns weights whose dot product with values at the sizes is the least-squares slope per doubling."""
    doublings = np.log2(sizes) - np.log2(sizes).mean()
    weights: Array = doublings / (doublings @ doublings)
    return weights
