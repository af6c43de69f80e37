"""Finds the best learning rate of loss curves, with its uncertainty.

A best rate is the vertex of the parabola through the lowest point and its two neighbours. If the curve rises faster on
one side, it is biased, depending on where the optimum falls between the rates. The cubic through two neighbours on each
side has another bias; the difference between the two, beyond noise, counts as an error. It counts twice if all curves
share it, because then the cubic is off by about half as much, to the same side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from scaling_algebra.errors import UsageError

from .resampling import Array

BESIDE = 2
"""Number of rates on each side of the lowest point that are used in fits."""


def find_vertex(x: Sequence[float] | Array, losses: Array, beside: int = 1, degree: int = 2) -> Array:
    """Returns the minimum of a polynomial through the lowest point and its neighbours, (R, ...) -> (...).

    The result is clipped to the interval between the two nearest neighbours. If the lowest point is the first or last,
    or the polynomial has no minimum, that point is returned.

    Args:
        x: the R places, in increasing order.
        losses: shape (R, ...).
        beside: number of neighbours on each side.
        degree: degree of the polynomial.
    """
    at, flat = np.asarray(x, dtype=np.float64), losses.reshape(len(x), -1)
    best = flat.argmin(axis=0)
    found = at[best]
    for k in set(best.tolist()) - {0, len(at) - 1}:
        mine, near = best == k, slice(max(0, k - beside), k + beside + 1)
        t = at[near] - at[k]
        *cubic, bend, slope, _ = np.polyfit(t, flat[near, mine], min(degree, len(t) - 1))
        root = bend**2 - 3 * (cubic[0] if cubic else 0) * slope
        steep = bend + np.sqrt(np.maximum(root, 0))
        with np.errstate(divide="ignore", invalid="ignore"):
            shift = np.where((root > 0) & (steep > 0), -slope / steep, 0.0)
        found[mine] += np.clip(shift, at[k - 1] - at[k], at[k + 1] - at[k])
    return found.reshape(losses.shape[1:])


def fit_polynomial(x: Array, losses: Array) -> np.polynomial.Polynomial:
    """Fits a cubic to losses at the places x (logs of learning rates); a parabola, if there are fewer than five
    distinct places.
    """
    return np.polynomial.Polynomial.fit(x, losses, 3 if len(set(x.tolist())) > 4 else 2)


class BestRates(NamedTuple):
    """The best learning rate of every curve, with random samples of its error.

    Attributes:
        value: log of the best rate, (curves,).
        noise: random samples of its error due to the noise of runs, (curves, draws).
        form: random samples of its error due to the unknown form of the curves, (curves, draws).
        wide: factor by which intervals are widened because the noise is itself estimated: quantile of Student's t
            distribution divided by that of the normal distribution.
    """

    value: Array
    noise: Array
    form: Array
    wide: float


def find_best_rates(curves: Sequence[tuple[Array, Array]], level: float, draws: int) -> BestRates:
    """Returns the best rate of every curve (the vertex of a parabola through its lowest mean losses), with its errors.

    Noise is sampled with the spread of the runs at each rate; runs in the same column are sampled together. A rate with
    only one run gets the spread of the other rates, or, if no rate has several runs, that of the residuals of
    ``fit_polynomial``.

    Args:
        curves: for each curve, logs of the R rates in increasing order, and losses (R, runs), NaN where a rate has
            fewer runs.
        level: confidence level of the intervals, which decides ``BestRates.wide``.
        draws: number of samples of the errors.

    Raises:
        UsageError: the curves have too few points to estimate noise.
    """
    rng, count = np.random.default_rng(20240), len(curves)
    runs = [np.isfinite(y).sum(axis=1, keepdims=True) for _, y in curves]
    means = [np.nanmean(y, axis=1, keepdims=True) for _, y in curves]
    errors = [np.nan_to_num(y - mean) for (_, y), mean in zip(curves, means, strict=True)]
    free, independent = sum(int(n.max()) - 1 for n in runs), sum(int((n - 1).sum()) for n in runs)
    spread = sum(float(np.sum(e**2)) for e in errors)
    if not free:
        forms = [fit_polynomial(x, mean[:, 0]) for (x, _), mean in zip(curves, means, strict=True)]
        free = independent = sum(len(x) - len(f.coef) for (x, _), f in zip(curves, forms, strict=True))
        spread = sum(float(np.sum((m[:, 0] - f(x)) ** 2)) for (x, _), m, f in zip(curves, means, forms, strict=True))
    if free < 1:
        raise UsageError("one run of three rates shows no noise; give more rates, or several runs of each")
    alone, losses = (spread / independent) ** 0.5, []
    for n, mean, e in zip(runs, means, errors, strict=True):
        noise = e @ rng.standard_normal((e.shape[1], draws)) / np.sqrt(n * np.maximum(n - 1, 1))
        noise = np.where(n > 1, noise, alone * rng.standard_normal((len(n), draws)))
        losses.append(np.hstack([mean, mean + noise]))
    found, other = (
        np.array([find_vertex(x, y, *way) for (x, _), y in zip(curves, losses, strict=True)])
        for way in ((), (BESIDE, 3))
    )
    apart = found - other
    noisy = float(apart[:, 1:].var(axis=1).mean())
    shared = max(0.0, apart[:, 0].mean() ** 2 - noisy / count)
    own = max(0.0, apart[:, 0].var(ddof=1) - noisy) if count > 1 else 0.0
    left = 2 * shared**0.5 * rng.standard_normal(draws) + own**0.5 * rng.standard_normal((count, draws))
    tail = (1 + level) / 2
    wide = float(stats.t.ppf(tail, free) / stats.norm.ppf(tail))
    return BestRates(found[:, 0], found[:, 1:] - found[:, :1], left, wide)
