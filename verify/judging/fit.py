"""Fits exponents to measured sizes and judges them: pure functions on numbers.

A quantity is measured as one root mean square per seed at every size; its exponent is the slope of log2(rms over seeds)
against log2(n). The interval is a bootstrap over seeds (95 %, or more where the data are looked at repeatedly), widened
until it contains the slope of the larger half of the sizes: a law that still bends at the measured sizes gets a wide
interval, not a confident wrong number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from .regions import Acceptance
from .regions import Verdict as Verdict
from .resampling import LEVEL as LEVEL
from .resampling import Array as Array
from .resampling import compute_slope_weights, estimate_by_bootstrap

Means = tuple[tuple[float, ...], tuple[float, ...]]
"""log2 of the rms over seeds at every size, and its standard errors."""

MIN_SIZES, MIN_SEEDS = 3, 4
"""With fewer sizes or seeds, the verdict is INCONCLUSIVE."""

DRIFT = 0.1
"""A slope within this finite-size drift of its prediction still agrees."""

OVERFLOWS = "not finite at n = {}; smaller learning rates or constants"
VANISHES = "zero up to rounding at n = {} only, so that no slope can be fitted; choose other sizes"
"""Reasons why values have no slope."""


@dataclass(frozen=True)
class Fit:
    """A measured exponent.

    Attributes:
        slope: least-squares slope through all sizes; NaN if it cannot be fitted.
        se: bootstrap standard error of the slope.
        low: lower end of the confidence interval: a bootstrap interval over seeds, widened until it contains the
            slope of
            the larger half of the sizes.
        high: upper end of this interval.
        trend: slope of the larger half of the sizes plus its difference from the slope through all sizes: where the
            slope goes if it continues to change as much.
        reach: slope extrapolated beyond the largest size, by a parabola through the larger half, if its curvature
            exceeds two standard errors; otherwise the slope of that half.
        zero: whether every value is exactly zero.
        sizes: number of sizes.
        seeds: the fewest seeds at any size.
        bends: whether the slope of the larger half lies outside the bootstrap interval.
        unfit: why there is no slope; empty if there is one, or every value is zero.
    """

    slope: float
    se: float
    low: float
    high: float
    trend: float
    reach: float
    zero: bool
    sizes: int
    seeds: int
    bends: bool = False
    unfit: str = ""

    def as_json(self) -> dict[str, Any]:
        return {
            "measured_zero": self.zero,
            "slope": round_for_json(self.slope),
            "se": round_for_json(self.se),
            "ci": None if np.isnan(self.slope) else [round_for_json(self.low), round_for_json(self.high)],
            "sizes": self.sizes,
            "seeds": self.seeds,
        }


def round_for_json(x: float) -> float | None:
    """Returns a number rounded to 6 digits; None for NaN and infinity, which JSON lacks."""
    return round(x, 6) if np.isfinite(x) else None


@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def fit_exponent(n: Sequence[float], values: Sequence[Array], level: float = LEVEL, typical: bool = False) -> Fit:
    """Fits the exponent of n in measured values.

    Args:
        n: the sizes.
        values: for every n, an array of root mean squares, one per seed.
        level: confidence level of the interval.
        typical: fit the geometric mean over seeds instead, which no single seed dominates.
    """
    seeds = min((len(v) for v in values), default=0)
    nan = float("nan")
    if values and all(len(v) and not np.any(v) for v in values):
        return Fit(*(nan,) * 6, True, len(n), seeds)
    square = [np.asarray(v, dtype=np.float64) ** 2 for v in values]
    if len(n) < 2 or seeds == 0:
        return Fit(*(nan,) * 6, False, len(n), seeds)
    for why, wrong in ((OVERFLOWS, lambda s: not np.isfinite(s.mean())), (VANISHES, lambda s: not s.mean())):
        if at := [f"{size:g}" for size, s in zip(n, square, strict=True) if wrong(s)]:
            return Fit(*(nan,) * 6, False, len(n), seeds, unfit=why.format(", ".join(at)))
    if typical:
        values = [np.broadcast_to(np.exp(np.log(s).mean() / 2), 1) for s in square]
    y, errors = map(np.array, compute_log_means(values))
    upper, weights = len(n) // 2 if len(n) > MIN_SIZES else 0, compute_slope_weights(n)
    slope, bent = float(weights @ y), float(compute_slope_weights(n[upper:]) @ y[upper:])
    samples = [np.log2(s) for s in square] if typical else square
    made = np.stack if typical else lambda drawn: np.log2(np.stack(drawn))
    _, se, low, high = estimate_by_bootstrap(samples, lambda drawn: weights @ (0.5 * made(drawn)), level)
    ends = min(bent, low), max(bent, high), 2 * bent - slope, _extrapolate_slope(n, y, errors, bent)
    return Fit(slope, se, *ends, False, len(n), seeds, not low <= bent <= high)


def _extrapolate_slope(n: Sequence[float], y: Array, errors: Array, bent: float) -> float:
    """Returns the slope extrapolated beyond the largest size, ``Fit.reach``.

    Args:
        n: the sizes.
        y: log2 of the measured value at each.
        errors: standard errors of ``y``.
        bent: slope of the larger half of the sizes, which is returned if there are too few sizes for a parabola or its
            curvature is within two standard errors of zero.
    """
    if len(n) <= MIN_SIZES:
        return bent
    at = min(len(n) // 2, len(n) - 3)
    doublings = np.log2(n[at:])
    curvature = 2 * np.linalg.pinv(np.vander(doublings - doublings.mean(), 3))[0]
    bend, error = float(curvature @ y[at:]), float(np.sqrt(curvature**2 @ errors[at:] ** 2))
    return bent + 1.5 * float(np.ptp(doublings)) * bend if abs(bend) > 2 * error else bent


@np.errstate(over="ignore", invalid="ignore")
def compute_log_means(values: Sequence[Array]) -> Means:
    """Returns, for every size, log2 of the root mean square over seeds, and the standard errors of these logs.

    Both are NaN where every value is zero.

    Args:
        values: for every size, an array of root mean squares, one per seed.
    """
    pairs = []
    for v in values:
        square = np.asarray(v, dtype=np.float64) ** 2
        mean = square.mean() if len(square) else 0.0
        spread = square.std() / len(square) ** 0.5 / mean if mean > 0 else 0.0
        pairs.append((0.5 * np.log2(mean), 0.5 * spread / np.log(2)) if mean > 0 else (np.nan, np.nan))
    centre, error = zip(*pairs, strict=True)
    return tuple(map(float, centre)), tuple(map(float, error))


ROUNDING = {"float64": 1e-13, "float32": 3e-5, "bfloat16": 0.05}
"""Relative size below which a part of a whole is rounding: some hundred units in the last place (bfloat16: six)."""


def zero_rounding(values: Array, scale: Array, dtype: str = "float64") -> Array:
    """Sets values to zero that are so small compared with ``scale``, the size of the whole of which they are a part,
    that they may be rounding errors in the precision ``dtype``.
    """
    return np.where(np.abs(values) <= ROUNDING[dtype] * scale, 0.0, values)


def judge_exponent(
    measured: Fit, predicted: Fraction | None, spacing: Fraction = Fraction(1, 2), later: bool = False
) -> Verdict:
    """Compares a fit with a predicted exponent.

    Possible exponents are taken to lie ``spacing`` apart. AGREES: the interval, up to ``DRIFT``, contains the
    prediction and neither of its two neighbours. REFUTED: the interval, ``Fit.trend`` and (with ``later``)
    ``Fit.reach`` lie on one side of the prediction, farther away than half a spacing and half the interval's width.
    INCONCLUSIVE: anything else.

    Args:
        measured: the fit.
        predicted: the exponent; None for exactly zero.
        spacing: distance between neighbouring possible exponents.
        later: if True, a prediction is refuted only if the slope extrapolated to larger sizes refutes it, too.
    """
    if measured.sizes < MIN_SIZES or measured.seeds < MIN_SEEDS:
        return Verdict.INCONCLUSIVE
    if measured.zero or predicted is None:
        if measured.zero and predicted is None:
            return Verdict.AGREES
        return Verdict.REFUTED if measured.zero or np.isfinite(measured.slope) else Verdict.INCONCLUSIVE
    if not np.isfinite(measured.slope):
        return Verdict.INCONCLUSIVE
    p, step = float(predicted), float(spacing)
    region = Acceptance(p, p, near=min(DRIFT, step / 5), far=step)
    return region.verdict(measured.low, measured.high, measured.trend, *[measured.reach] * later)
