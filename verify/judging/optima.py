"""The best rates of curves of losses, and how well they are known.

A best rate is the vertex of the parabola through the lowest of the rates tried and its two neighbours. On a curve that
rises faster on one side it is off by what depends on where the optimum falls between the rates. The cubic through two
neighbours on each side is off by something else: what the two differ by, beyond noise, counts as an error. It counts
twice where all curves share it, because the cubic is then off by about half as much, to the same side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

from scaling_algebra.errors import UsageError

from .resampling import Array

BESIDE = 2
"""Rates on each side of the lowest one that anything is fitted to."""


def vertex(x: Sequence[float] | Array, losses: Array, beside: int = 1, degree: int = 2) -> Array:
    """The minimum of the polynomial through the lowest point and those ``beside`` it, (R, ...) -> (...); x increasing.

    It lies between the two neighbours of the lowest point. On the edge, and where nothing bends, it is that point.
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


def form(x: Array, losses: Array) -> np.polynomial.Polynomial:
    """The cubic through the points beside a lowest one; of four or three rates a parabola."""
    return np.polynomial.Polynomial.fit(x, losses, 3 if len(set(x.tolist())) > 4 else 2)


class BestRates(NamedTuple):
    """The best rate of every curve, and its errors drawn.

    Attributes:
        value: (curves,). noise, form: what runs, and the form of the curves, leave open, (curves, draws) each.
        wide: what an interval widens by because noise is estimated from few runs, Student's quantile over Gauss's.
    """

    value: Array
    noise: Array
    form: Array
    wide: float


def best_rates(curves: Sequence[tuple[Array, Array]], level: float, draws: int) -> BestRates:
    """The vertex of the mean losses of every curve, for an interval of this level.

    Noise is drawn with the spread of runs at every rate, those of one column together. A rate of one run has that of
    the others, or of the distances from the ``form`` of the curves where there is no other.

    Args:
        curves: rates in increasing order, and losses (R, runs), NaN where a rate has fewer runs.
    """
    rng, count = np.random.default_rng(20240), len(curves)
    runs = [np.isfinite(y).sum(axis=1, keepdims=True) for _, y in curves]
    means = [np.nanmean(y, axis=1, keepdims=True) for _, y in curves]
    errors = [np.nan_to_num(y - mean) for (_, y), mean in zip(curves, means, strict=True)]
    free, independent = sum(int(n.max()) - 1 for n in runs), sum(int((n - 1).sum()) for n in runs)
    spread = sum(float(np.sum(e**2)) for e in errors)
    if not free:
        forms = [form(x, mean[:, 0]) for (x, _), mean in zip(curves, means, strict=True)]
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
        np.array([vertex(x, y, *way) for (x, _), y in zip(curves, losses, strict=True)]) for way in ((), (BESIDE, 3))
    )
    apart = found - other
    noisy = float(apart[:, 1:].var(axis=1).mean())
    shared = max(0.0, apart[:, 0].mean() ** 2 - noisy / count)
    own = max(0.0, apart[:, 0].var(ddof=1) - noisy) if count > 1 else 0.0
    left = 2 * shared**0.5 * rng.standard_normal(draws) + own**0.5 * rng.standard_normal((count, draws))
    tail = (1 + level) / 2
    wide = float(stats.t.ppf(tail, free) / stats.norm.ppf(tail))
    return BestRates(found[:, 0], found[:, 1:] - found[:, :1], left, wide)
