"""Slopes, intervals and verdicts: pure functions on numbers, nothing about networks.

A quantity is measured as one root-mean-square per seed at every size; its exponent is the slope of log2(rms over
seeds) against log2(n). The interval is a bootstrap over seeds (95 %, or more where the data are looked at repeatedly),
widened until it covers the slope of the larger half of the sizes: a law that still bends at the sizes measured gets a
wide interval, not a confident wrong number.
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
from .resampling import resampled, slope_weights

Means = tuple[tuple[float, ...], tuple[float, ...]]
"""log2 of the root-mean-square over seeds at every size, and its standard errors."""

MIN_SIZES, MIN_SEEDS = 3, 4
"""Fewer prove nothing: the verdict is INCONCLUSIVE."""

DRIFT = 0.1
"""Finite-size drift of a slope that still counts as agreement."""

OVERFLOWS = "not finite at n = {}; smaller learning rates or constants"
VANISHES = "zero to rounding at n = {} alone, so that there is no slope; take other sizes"
"""Why values have no slope."""


@dataclass(frozen=True)
class Fit:
    """A measured exponent.

    Attributes:
        slope: least squares through all sizes; NaN if it cannot be fitted.
        se: bootstrap standard error of the slope.
        low, high: interval (see the module text).
        trend: where the slope goes if its bend from all sizes to the larger half goes on once more.
        reach: slope of the parabola through the larger half, that range beyond the largest size, where its bend exceeds
            two standard errors; else the slope of that half.
        zero: every value is exactly zero.
        sizes, seeds: sizes used, and the fewest seeds at any of them.
        bends: the slope of the larger half lies outside the bootstrap interval.
        unfit: why there is no slope; empty where there is one, or every value is zero.
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
            "slope": number(self.slope),
            "se": number(self.se),
            "ci": None if np.isnan(self.slope) else [number(self.low), number(self.high)],
            "sizes": self.sizes,
            "seeds": self.seeds,
        }


def number(x: float) -> float | None:
    """For JSON, which has neither NaN nor infinity."""
    return round(x, 6) if np.isfinite(x) else None


@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def fit(n: Sequence[float], values: Sequence[Array], level: float = LEVEL, typical: bool = False) -> Fit:
    """The exponent of n in ``values`` (one array of per-seed root-mean-squares for every n), with an interval.

    Args:
        typical: of the geometric mean over seeds, which no single seed makes.
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
    y, errors = map(np.array, means(values))
    upper, weights = len(n) // 2 if len(n) > MIN_SIZES else 0, slope_weights(n)
    slope, bent = float(weights @ y), float(slope_weights(n[upper:]) @ y[upper:])
    samples = [np.log2(s) for s in square] if typical else square
    made = np.stack if typical else lambda drawn: np.log2(np.stack(drawn))
    _, se, low, high = resampled(samples, lambda drawn: weights @ (0.5 * made(drawn)), level)
    ends = min(bent, low), max(bent, high), 2 * bent - slope, _reach(n, y, errors, bent)
    return Fit(slope, se, *ends, False, len(n), seeds, not low <= bent <= high)


def _reach(n: Sequence[float], y: Array, errors: Array, bent: float) -> float:
    """See ``Fit``; the larger half has three sizes at least, which a parabola needs, and three pairs show a drift."""
    if len(n) <= MIN_SIZES:
        return bent
    at = min(len(n) // 2, len(n) - 3)
    doublings = np.log2(n[at:])
    curvature = 2 * np.linalg.pinv(np.vander(doublings - doublings.mean(), 3))[0]
    bend, error = float(curvature @ y[at:]), float(np.sqrt(curvature**2 @ errors[at:] ** 2))
    return bent + 1.5 * float(np.ptp(doublings)) * bend if abs(bend) > 2 * error else bent


@np.errstate(over="ignore", invalid="ignore")
def means(values: Sequence[Array]) -> Means:
    """The points that a slope is fitted to, for pictures; NaN where every value is zero."""
    pairs = []
    for v in values:
        square = np.asarray(v, dtype=np.float64) ** 2
        mean = square.mean() if len(square) else 0.0
        spread = square.std() / len(square) ** 0.5 / mean if mean > 0 else 0.0
        pairs.append((0.5 * np.log2(mean), 0.5 * spread / np.log(2)) if mean > 0 else (np.nan, np.nan))
    centre, error = zip(*pairs, strict=True)
    return tuple(map(float, centre)), tuple(map(float, error))


ROUNDING = {"float64": 1e-13, "float32": 3e-5, "bfloat16": 0.05}
"""Relative size below which a part is rounding of the whole: some hundred units in the last place (bfloat16: six)."""


def zeros_to_rounding(values: Array, scale: Array, dtype: str = "float64") -> Array:
    """``values`` with everything below rounding of the quantity's own scale set to zero."""
    return np.where(np.abs(values) <= ROUNDING[dtype] * scale, 0.0, values)


def judge_exponent(
    measured: Fit, predicted: Fraction | None, spacing: Fraction = Fraction(1, 2), later: bool = False
) -> Verdict:
    """Compares a fit with a predicted exponent (None: exactly zero).

    Exponents lie on a grid of this ``spacing``. AGREES: the interval, give or take ``DRIFT``, holds the prediction and
    no neighbour of it on the grid. REFUTED: interval, trend and (``later``) reach lie to one side of the prediction,
    farther than half a spacing and than half the width of the interval. Anything else is INCONCLUSIVE.
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
