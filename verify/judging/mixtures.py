"""A measured size as a sum of powers of n: the share that the predicted power may have. Pure functions on numbers.

A signal in normal order is a sum of kernels, which are orthogonal in L^2 (Wiener chaos; kernels that differ only by
which of their indices are equal may overlap). So there are no cross terms between different kernels:

    mean square(n) = sum over kernels of c_k n^(2 e_k),  c_k >= 0

Assumes: the powers of one kernel and of what nearly equals it (ties, the next order in the learning rate) make a
finite-size factor, which may be below 1. Every power may therefore have a factor between 1 and 1 - ``FACTOR`` n_1/n,
with n_1 the smallest size: still a non-negative combination.

One slope averages over these powers; where a small leading one lies on a large next one it reads something between
both. A predicted power is refuted only where no mixture with it gives the sizes measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from itertools import count, islice

import numpy as np
from scipy.optimize import linprog

from .fit import MIN_SEEDS, MIN_SIZES, Array

Powers = Callable[[str, int], Iterable[tuple[Fraction, bool]]]
"""Of a quantity at a step: exponents of n below the leading one that the engine finds, each True, and at most one bound
on all others, False."""

FACTOR = 0.5
"""Largest finite-size correction of a power, relative, at the smallest size."""

GOOD, ERRORS, NOISE = 0.05, 3.0, 0.5
"""A mixture meets the data within the first relative difference, or so many standard errors of every mean square, up to
the last relative difference."""

FEW, EVERY, DEEP = 3, 8, 24
"""Powers of a mixture: where none is known beside the predicted one, where the engine says which there are, and where
any may be; deeper ones are there at the smallest size alone, as the last of these is."""

SEEN, TRACE = 0.25, 0.02
"""Shares of the mean square at the largest size: a power that every mixture has so much of is seen, one that no mixture
has so much of is not there."""


def share(n: Sequence[float], values: Sequence[Array], powers: Sequence[Fraction]) -> tuple[float, float] | None:
    """Least and largest share of the mean square at the largest size that the first of these powers has in a mixture.

    Law: two linear programs in the coefficients, which are not negative and meet every mean square (``GOOD``).

    Args:
        values: one array of per-seed root-mean-squares for every n.
        powers: exponents of the root-mean-square.

    Returns None where no mixture meets the values, and where there is too little to fit: fewer than 3 sizes or 4 seeds,
    values that vanish or are not finite.
    """
    square = [np.asarray(v, dtype=np.float64) ** 2 for v in values]
    if len(n) < MIN_SIZES or min(map(len, square)) < MIN_SEEDS:
        return None
    y = np.array([s.mean() for s in square])
    if not (np.isfinite(y) & (y > 0)).all():
        return None
    errors = np.array([(s / mean).std() / len(s) ** 0.5 for s, mean in zip(square, y, strict=True)])
    columns = _columns(np.asarray(n, dtype=np.float64), powers) / (y / y[-1])[:, None]
    allowed = np.clip(ERRORS * errors, GOOD, NOISE)
    largest = columns.max(axis=0)
    columns, part = columns / largest, np.array([*(1 / largest[:2]), *np.zeros(columns.shape[1] - 2)])
    bounds = np.vstack([columns, -columns]), np.concatenate([1 + allowed, allowed - 1])
    ends = [linprog(sign * part, *bounds) for sign in (1, -1)]
    return (float(ends[0].fun), float(-ends[1].fun)) if all(end.status == 0 for end in ends) else None


def _columns(x: Array, powers: Sequence[Fraction]) -> Array:
    """Two columns for each power: as it is, and with the largest finite-size factor; both 1 at the last n."""
    factor = 1 - FACTOR * x[0] / x
    plain = [(x / x[-1]) ** float(2 * e) for e in powers]
    return np.stack([column for p in plain for column in (p, p * factor / factor[-1])], axis=1)


def powers_below(
    predicted: Fraction,
    spacing: Fraction,
    rates: Iterable[Fraction],
    engine_powers: Iterable[tuple[Fraction, bool]] | None,
) -> tuple[Fraction, ...]:
    """The predicted exponent and the next ones below it, on the grid of this spacing.

    A power is there if the engine finds it, if it is not above the bound on what the engine dropped, or if it is the
    predicted one times a whole number of finite-size corrections 1/(dimension)^(1/2), of the mean square 1/dimension.

    Args:
        rates: of the axes that grow.
        engine_powers: what the engine finds; None: every power of the grid may be there.
    """
    grid = (predicted - k * spacing for k in count(1))
    if engine_powers is None:
        return predicted, *islice(grid, FEW - 1)
    powers = list(engine_powers)
    exact = {e for e, seen in powers if seen} | {predicted - k * r / 2 for r in rates for k in range(1, FEW)}
    bound = max((e for e, seen in powers if not seen), default=None)
    present = [e for e in islice(grid, 100) if e in exact or (bound is not None and e <= bound)]
    return predicted, *present[: EVERY - 1]
