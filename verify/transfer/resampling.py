"""Errors over seeds of whatever is computed from mean losses: the bootstrap of this folder.

Read next: ``optimum.py`` (the best rate), ``improvement.py`` (the best loss).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import bootstrap

from scaling_algebra.verify.judging.fit import RESAMPLES, Array


class Estimate(NamedTuple):
    """A number with its bootstrap standard error and 95 % percentile interval; NaN where one seed tells none."""

    value: float
    se: float
    low: float
    high: float


def resampled(losses: Sequence[Array], reduce: Callable[[Sequence[Array]], Array], paired: bool = False) -> Estimate:
    """``reduce`` of the mean losses, with its error over seeds; all learning rates of a seed are drawn together.

    Args:
        losses: of each curve, shape (R, seeds).
        reduce: a number from the means of the curves, (R, ...) each -> (...).
        paired: the same seeds are drawn in every curve, because they saw the same batches.
    """

    def statistic(*drawn: Array, axis: int = -1) -> Array:
        return reduce([x[:, seeds.astype(int)].mean(axis=-1) for x, seeds in zip(losses, drawn, strict=True)])

    every = [np.arange(x.shape[1], dtype=np.float64) for x in losses]
    found = float(statistic(*every))
    if min(map(len, every)) < 2:
        return Estimate(found, *(float("nan"),) * 3)
    rng = np.random.default_rng(20240)
    options = {"vectorized": True, "method": "percentile", "n_resamples": RESAMPLES, "rng": rng}
    result = bootstrap(every, statistic, paired=paired, **options)
    interval = result.confidence_interval
    return Estimate(found, float(result.standard_error), float(interval.low), float(interval.high))


def slope_weights(widths: Sequence[int]) -> Array:
    """Weights (W,) whose product with values at the widths is their least-squares slope per doubling."""
    doublings = np.log2(widths) - np.log2(widths).mean()
    weights: Array = doublings / (doublings @ doublings)
    return weights
