"""Compares measured sizes with certified exponents: local slopes of root-mean-squares over entries and seeds.

A size is a sum of powers of n. AGREES: the slope of the larger sizes is the exponent, or the squares are a sum of
``n^(2e)`` and smaller powers in which the first is seen. Else REFUTED where slope, noise and trend all exclude it, and
OPEN where they do not: larger sizes or more seeds decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from scipy.optimize import nnls

NEAR = 0.15
"""Of a slope from its exponent."""
NOISY = 0.2
"""Standard error of a slope that says nothing."""
ROUNDING = 1e-14
"""Constants are Theta(1), so that at the smallest size nothing is as small as this but what cancels exactly."""
DRAWS = 100


@dataclass(frozen=True)
class MeasuredVerdict:
    """What a measurement says.

    Attributes:
        word: AGREES, REFUTED or OPEN.
        slope, error: of the larger half of the sizes.
        values: root-mean-square at every size.
    """

    word: str
    why: str
    slope: float
    error: float
    values: tuple[float, ...]


def judge(
    scales: Sequence[float], replicas: list[np.ndarray], predicted: Fraction | None, slow: bool = False
) -> MeasuredVerdict:
    """One quantity: ``replicas`` has one root-mean-square per seed at every scale (of a scalar, with its sign); None
    predicts exactly zero.

    Args:
        slow: powers may be n^(1/4) apart.
    """
    finite = [r[np.isfinite(r)] for r in replicas]
    values = tuple(float(np.sqrt((r**2).mean())) if len(r) else np.nan for r in finite)

    def verdict(word: str, why: str, slope: float = np.nan, error: float = np.nan) -> MeasuredVerdict:
        return MeasuredVerdict(word, why, slope, error, values)

    zero = all(x < ROUNDING for x in values)
    if not all(np.isfinite(values)) or any(len(r) < 4 for r in finite):
        return verdict("OPEN", "not finite")
    if predicted is None or zero:
        return verdict("AGREES" if zero and predicted is None else "REFUTED", "zero" if zero else "not zero")
    if not min(values):
        return verdict("OPEN", "zero at some sizes")
    e = float(predicted)
    x, y = np.log2(scales), np.log2(values)
    rng = np.random.default_rng(5)
    drawn = np.stack([_drawn(r, rng) for r in finite], 1)
    half = max(2, (len(x) + 1) // 2)
    slope, error = _slope(x[-half:], y[-half:]), float(np.std([_slope(x[-half:], z[-half:]) for z in drawn]))
    middle = np.log2([np.median(np.abs(r)) + 1e-300 for r in finite])
    typical = _slope(x[-half:], middle[-half:])
    if abs(slope - e) <= NEAR + min(error, NEAR):
        return verdict("AGREES" if error < NOISY else "OPEN", "slope", slope, error)
    noise, (low, high) = drawn.std(0), _share(x, y, drawn, e)
    if low > 0.25 or _meant(x, finite, e) or any(_saturating(x, y, noise, e, d) for d in (1.0, 0.5)):
        return verdict("AGREES", "sum of powers", slope, error)
    if high > 0.25 or (slow and _saturating(x, y, noise, e, 0.25)):
        return verdict("OPEN", f"may be a sum of powers, share {low:.2f} to {high:.2f}", slope, error)
    if error > NOISY or abs(typical - e) <= NEAR or (slope - e) * (typical - e) < 0:
        return verdict("OPEN", f"noise or heavy tails (median's slope {typical:+.2f})", slope, error)
    local = np.diff(y) / np.diff(x)
    comes = abs(local[0] - e) - abs(local[-1] - e) > 0.1 and abs(local[-1] - e) < 0.4
    wide = (np.hypot(noise[:-1], noise[1:]) / np.diff(x))[-3:].max()
    if comes or np.ptp(local[-3:]) > 0.12 + 3 * wide:
        return verdict("OPEN", f"bends, slopes {' '.join(f'{s:+.2f}' for s in local)}", slope, error)
    return verdict("REFUTED", f"median's slope {typical:+.2f}", slope, error)


def _drawn(r: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    picked = rng.integers(0, len(r), (DRAWS, len(r)))
    return np.log2(np.sqrt((r[picked] ** 2).mean(1)) + 1e-300)


def _slope(x: np.ndarray, y: np.ndarray) -> float:
    centred = x - x.mean()
    return float(y @ centred / (centred @ centred))


def _share(x: np.ndarray, y: np.ndarray, drawn: np.ndarray, e: float) -> tuple[float, float]:
    """Of n^(2e) in the squares at the largest size, as a sum with smaller powers: an interval; 0 where none fits.

    A power may come with a factor down to 1 - n_1 / 2n, as finite sums have.
    """
    n, square = 2.0 ** (x - x[0]), 2.0 ** (2 * y)
    whole, finite, slow = np.ones_like(n), 1 - 0.5 / n, 1 - 0.5 / np.sqrt(n)
    factors = {0: (whole, finite), 1: (whole, slow), 2: (whole,)}
    columns = np.stack([n ** (2 * e - k) * f for k, own in factors.items() for f in own], 1)
    shares = []
    for z in (square, *(2.0 ** (2 * d) for d in drawn[:60])):
        found, _ = nnls(columns / z[:, None], np.ones_like(z))
        if not shares and (np.abs(columns @ found / z - 1) > np.maximum(0.15, 6 * drawn.std(0))).any():
            return 0.0, 0.0
        shares.append(columns[-1, :2] @ found[:2] / z[-1])
    low, high = np.percentile(shares, [5, 90])
    return float(low), float(high)


def _meant(x: np.ndarray, replicas: list[np.ndarray], e: float) -> bool:
    """Has a scalar a mean over seeds of the size n^e? It is a part of its mean square: of that slope, or a sum of n^e,
    n^(e-1/2) and n^(e-1), of any signs, in which the first is beyond doubt."""
    means = np.array([r.mean() for r in replicas])
    errors = np.array([r.std() / len(r) ** 0.5 for r in replicas])
    if all((r >= 0).all() for r in replicas) or (np.abs(means[-3:]) < 4 * errors[-3:]).any():
        return False
    y, spread = np.log2(np.abs(means[-3:])), (errors[-3:] / np.abs(means[-3:])).max()
    if abs(_slope(x[-3:], y) - e) <= NEAR + spread:
        return True
    n, last = 2.0 ** (x - x[0]), slice(max(0, len(x) - 6), None)
    if len(n[last]) < 5:
        return False
    weighted = np.stack([n ** (e - k / 2) / errors for k in range(3)], 1)[last]
    inverse = np.linalg.pinv(weighted)
    found, sigmas = inverse @ (means / errors)[last], np.sqrt((inverse**2).sum(1))
    off = weighted @ found - (means / errors)[last]
    return bool((off**2).sum() < 3 * (len(off) - 3) and abs(found[0]) > 5 * sigmas[0])


def _saturating(x: np.ndarray, y: np.ndarray, noise: np.ndarray, e: float, apart: float) -> bool:
    """Is it ``n^e / (1 + c n^-apart)``, as a step over its epsilon is, or ``n^e (1 + c n^-apart)``?"""
    n = 2.0 ** (x - x[0])
    for c in np.linspace(-0.6, 1.5, 43):
        rest = y - e * x + np.log2(1 + c * n**-apart)
        if (np.abs(rest - rest.mean()) < np.maximum(0.04, 2.5 * noise)).all():
            return True
    return False
