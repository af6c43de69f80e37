"""A measured size as a sum of powers of n: how much of it the leading one is. Pure functions on numbers.

A signal in normal order is a sum of kernels, which are orthogonal in L^2 (Wiener chaos; kernels that differ only by
which of their indices are equal may overlap). So there are no cross terms between different kernels:

    mean square(n) = sum over kernels of c_k n^(2 e_k),  c_k >= 0

Assumes: the powers of one kernel and of what nearly equals it (ties, the next order in the learning rate) make a
finite-size factor, which may be below 1. Every power may therefore have a factor between 1 and 1 - ``FACTOR`` n_1/n,
with n_1 the smallest size: still a non-negative combination, and found by non-negative least squares (weights 1/y^2).

One slope averages over these powers; where a small leading one lies on a large next one it reads something between
both. The spectrum tells them apart if the data bend, and needs more data for it.
Read next: ``fit.py`` (the slope, which decides), ``verdicts.py`` (asks for both).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import count, islice
from typing import Any

import numpy as np
from scipy.optimize import linprog, nnls

from .fit import LEVEL, MIN_SEEDS, MIN_SIZES, Array, Verdict, resampling

Powers = Callable[[str, int], Iterable[tuple[Fraction, bool]]]
"""Of a quantity at a step: exponents of n below the leading one that the engine finds, each True, and at most one bound
on all others, False."""

DRAWS = 200
"""Bootstrap resamples."""

FACTOR = 0.5
"""Largest finite-size correction of a power, relative, at the smallest size."""

SEEN = 0.25
"""Share of the mean square at the largest size that a power must have, beyond doubt, to be seen."""

SHOWS = 0.5
"""Share at the largest size below which, beyond doubt, a power does not lead at any size measured."""

GOOD, ERRORS, NOISE = 0.05, 3.0, 0.5
"""A fit is good if it meets every mean square within the first relative difference, or so many of its standard errors
up to the last relative difference."""

MOST, EVERY = 3, 8
"""Powers in a fit: two, the third where two are not good; and in a mixture."""

TRACE = 0.02
"""Least share of the mean square at the largest size that the predicted power has in a mixture."""

HORIZON = 2.0**40
"""Over the largest size: where a power that does not lead by then is not looked for."""


@dataclass(frozen=True)
class Share:
    """How much of the mean square at the largest size one power has, with an interval.

    Attributes:
        exponent: of n, of the root-mean-square.
        size, low, high: share, and its bootstrap interval.
    """

    exponent: Fraction
    size: float
    low: float
    high: float

    @property
    def seen(self) -> bool:
        return self.low >= SEEN

    @property
    def absent(self) -> bool:
        """Not above zero beyond doubt, and beyond doubt not what leads at the largest size."""
        return self.low <= 1e-3 and self.high < SHOWS

    def as_json(self) -> dict[str, Any]:
        rounded = {"share": round(self.size, 4), "ci": [round(self.low, 4), round(self.high, 4)]}
        return {"exponent": str(self.exponent), **rounded}


@dataclass(frozen=True)
class Spectrum:
    """What a sum of powers says about a predicted exponent.

    Attributes:
        leading: the predicted power, fitted with the next ones.
        larger: the next larger power, fitted with the predicted one.
        powers: exponents in the fit, the predicted one first.
        residual: largest relative difference between fit and mean square.
        good: the fit with the predicted power is one (see ``GOOD``).
        largest: largest size.
        leads: n from which the predicted power is more than half; None if not before ``HORIZON``.
    """

    leading: Share
    larger: Share
    powers: tuple[Fraction, ...]
    residual: float
    good: bool
    largest: float
    leads: float | None

    @property
    def verdict(self) -> Verdict:
        """AGREES: the predicted power is seen in a good fit, the larger one is absent. REFUTED: the larger one is seen,
        or in a good fit the predicted one is absent at the largest size."""
        if self.larger.seen or (self.good and self.leading.absent):
            return Verdict.REFUTED
        return Verdict.AGREES if self.good and self.leading.seen and self.larger.absent else Verdict.INCONCLUSIVE

    def as_json(self) -> dict[str, Any]:
        return {
            "leading": self.leading.as_json(),
            "larger": self.larger.as_json(),
            "powers": [str(e) for e in self.powers],
            "residual": round(self.residual, 4),
            "largest": self.largest,
            "leads_from": None if self.leads is None else round(self.leads, 1),
            "verdict": str(self.verdict),
        }


def spectrum(
    n: Sequence[float], values: Sequence[Array], powers: Sequence[Fraction], larger: Fraction, level: float = LEVEL
) -> Spectrum | None:
    """The mean squares of ``values`` (one array of per-seed root-mean-squares for every n) as a sum of powers.

    Args:
        powers: exponents of the root-mean-square, the predicted one first, then those below.
        larger: the next exponent above.

    Returns None where there is too little to fit: fewer than 3 sizes or 4 seeds, values that vanish or are not finite.
    """
    square = [np.asarray(v, dtype=np.float64) ** 2 for v in values]
    if len(n) < MIN_SIZES or min(map(len, square)) < MIN_SEEDS:
        return None
    if not all(np.isfinite(s).all() and s.mean() > 0 for s in square):
        return None
    x = np.asarray(n, dtype=np.float64)
    y, errors = _mean_squares(square)
    drawn = np.stack([resampling(len(s), i)[:DRAWS] @ s for i, s in enumerate(square)], axis=1)
    drawn = drawn[drawn[:, -1] > 0]
    fitted = _fitted(x, y, errors, powers)
    above = _fitted(x, y, errors, (larger, *powers[: MOST - 1]))
    leading, larger_share = (_share(fit, x, y, drawn, level) for fit in (fitted, above))
    return Spectrum(leading, larger_share, fitted.powers, fitted.residual, fitted.good, float(x[-1]), fitted.leads(x))


def _mean_squares(square: Sequence[Array]) -> tuple[Array, Array]:
    """Means over seeds, and their standard errors relative to them."""
    y = np.array([s.mean() for s in square])
    return y, np.array([s.std() / len(s) ** 0.5 for s in square]) / y


def powers_below(
    predicted: Fraction,
    spacing: Fraction,
    rates: Iterable[Fraction],
    engine_powers: Iterable[tuple[Fraction, bool]] | None,
    most: int = MOST,
) -> tuple[Fraction, ...]:
    """The predicted exponent and the next ones below it, on the grid of this spacing.

    A power is there if the engine finds it, if it is not above the bound on what the engine dropped, or if it is the
    predicted one times a whole number of finite-size corrections 1/(dimension)^(1/2), of the mean square 1/dimension.

    Args:
        rates: of the axes that grow.
        engine_powers: what the engine finds; None: every power of the grid may be there.
        most: how many in all.
    """
    grid = (predicted - k * spacing for k in count(1))
    if engine_powers is None:
        return predicted, *islice(grid, most - 1)
    powers = list(engine_powers)
    exact = {e for e, seen in powers if seen} | {predicted - k * r / 2 for r in rates for k in range(1, MOST)}
    bound = max((e for e, seen in powers if not seen), default=None)
    lowest = min(exact, default=predicted)
    dropped, higher = (lambda e: bound is not None and e <= bound), most <= MOST  # a mixture has no higher corrections
    present = [e for e in islice(grid, 100) if e in exact or dropped(e) or (higher and e < lowest)]
    return predicted, *present[: most - 1]


def mixed(n: Sequence[float], values: Sequence[Array], powers: Sequence[Fraction]) -> bool:
    """May the values be a sum of these powers in which the first has a part (``TRACE``), up to their noise?

    Law: the largest part is a linear program in the coefficients, which are not negative, and meet every mean square
    as a good fit does (``GOOD``).
    """
    y, errors = _mean_squares([np.asarray(v, dtype=np.float64) ** 2 for v in values])
    columns = _columns(np.asarray(n, dtype=np.float64), powers) / (y / y[-1])[:, None]
    allowed = np.clip(ERRORS * errors, GOOD, NOISE)
    part = np.array([-1.0, -1.0, *np.zeros(columns.shape[1] - 2)])
    best = linprog(part, np.vstack([columns, -columns]), np.concatenate([1 + allowed, allowed - 1]))
    return bool(best.status == 0 and -best.fun >= TRACE)


@dataclass(frozen=True)
class _Fit:
    powers: tuple[Fraction, ...]
    columns: Array
    coefficients: Array
    residual: float
    good: bool

    def leads(self, x: Array) -> float | None:
        """n from which the first power is more than half of the fit, in steps of a hundredth of a power of two."""
        if not self.coefficients[:2].any():
            return None
        at = x[-1] * 2.0 ** np.arange(np.log2(x[0] / x[-1]), np.log2(HORIZON), 0.01)
        parts = _columns(np.array([x[0], *at, x[-1]]), self.powers)[1:-1] * self.coefficients
        most = 2 * parts[:, :2].sum(axis=1) >= parts.sum(axis=1)
        return float(at[most.argmax()]) if most.any() else None


def _columns(x: Array, powers: Sequence[Fraction]) -> Array:
    """Two columns for each power: as it is, and with the largest finite-size factor; both 1 at the last n."""
    factor = 1 - FACTOR * x[0] / x
    plain = [(x / x[-1]) ** float(2 * e) for e in powers]
    return np.stack([column for p in plain for column in (p, p * factor / factor[-1])], axis=1)


def _fitted(x: Array, y: Array, errors: Array, powers: Sequence[Fraction]) -> _Fit:
    """The fit with two powers if it is good, else with all."""
    allowed = np.clip(ERRORS * errors, GOOD, NOISE)
    for k in range(min(2, len(powers)), len(powers) + 1):
        columns = _columns(x, powers[:k])
        coefficients, _ = nnls(columns / y[:, None], np.ones(len(y)))
        off = np.abs(columns @ coefficients / y - 1)
        fit = _Fit(tuple(powers[:k]), columns, coefficients, float(off.max()), bool((off <= allowed).all()))
        if fit.good:
            break
    return fit


def _share(fit: _Fit, x: Array, y: Array, drawn: Array, level: float) -> Share:
    weighted = fit.columns / y[:, None]
    shares = [nnls(weighted, d / y)[0][:2].sum() / d[-1] for d in drawn]
    low, high = np.percentile(shares, [50 * (1 - level), 50 * (1 + level)])
    return Share(fit.powers[0], float(fit.coefficients[:2].sum() / y[-1]), float(low), float(high))
