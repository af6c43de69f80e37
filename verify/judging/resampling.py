"""A number with its error over seeds: the bootstrap of scipy, from a fixed stream.

Read next: ``transfer/curves.py`` and ``experiments/findings.py`` (what is resampled).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import bootstrap

from .fit import RESAMPLES, Array


class Estimate(NamedTuple):
    """A number with its bootstrap standard error and 95 % percentile interval; NaN where one seed tells none."""

    value: float
    se: float
    low: float
    high: float


def resampled(
    samples: Sequence[Array], statistic: Callable[[Sequence[Array]], Array], paired: bool = False
) -> Estimate:
    """A statistic of samples, with its error over seeds.

    Args:
        samples: shape (..., seeds) each; all that one seed saw is drawn together.
        statistic: a number from the samples; with a dimension of resamples before the seeds, one for each.
        paired: the same seeds are drawn in every sample.
    """

    def drawn(*seeds: Array, axis: int = -1) -> Array:
        return statistic([x[..., s.astype(int)] for x, s in zip(samples, seeds, strict=True)])

    every = [np.arange(x.shape[-1], dtype=np.float64) for x in samples]
    value = float(drawn(*every))
    if min(map(len, every)) < 2:
        return Estimate(value, *(float("nan"),) * 3)
    rng = np.random.default_rng(20240)
    result = bootstrap(
        every, drawn, paired=paired, vectorized=True, method="percentile", n_resamples=RESAMPLES, rng=rng
    )
    interval = result.confidence_interval
    return Estimate(value, float(result.standard_error), float(interval.low), float(interval.high))


def slope_weights(sizes: Sequence[float]) -> Array:
    """Weights whose product with values at the sizes is their least-squares slope per doubling."""
    doublings = np.log2(sizes) - np.log2(sizes).mean()
    weights: Array = doublings / (doublings @ doublings)
    return weights
