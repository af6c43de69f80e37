"""Fits a measured size by a sum of powers of n, to bound the share of the predicted power. Pure functions on numbers.

A signal in normal order is a sum of Wick monomials, which are orthogonal in L^2 (Wiener chaos; monomials that differ
only in which indices are equal may overlap). So different monomials have no cross terms:

    mean square(n) = sum over monomials of c_k n^(2 e_k),  c_k >= 0

Assumes: a monomial and terms of nearly the same power (ties, the next order in the learning rate) combine to a
finite-size factor, which may be below 1. So every power may have a factor between 1 and 1 - ``FACTOR`` n_1/n, where n_1
is the smallest size; this is still a non-negative combination.

One slope averages over these powers: a small leading power on top of a large subleading one gives a slope in between.
Therefore a predicted power is refuted only if no mixture that contains it fits the measured sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from itertools import count, islice

import numpy as np
from scipy.optimize import linprog

from .fit import MIN_SEEDS, MIN_SIZES, Array

Powers = Callable[[str, int], Iterable[tuple[Fraction, bool]]]
"""``powers(quantity, step)``: pairs of an exponent of n and a flag. True: an exponent below the leading one that the
engine finds. False (at most one): an upper bound on all other exponents."""

FACTOR = 0.5
"""Largest relative finite-size correction of a power at the smallest size."""

GOOD, ERRORS, NOISE = 0.05, 3.0, 0.5
"""A mixture fits if every mean square is met within ``GOOD`` (relative) or ``ERRORS`` standard errors, but never
beyond ``NOISE`` (relative)."""

FEW, EVERY, DEEP = 3, 8, 24
"""Number of powers in a mixture: if only the predicted one is known; if the engine lists them; if any may occur.
Deeper powers matter only at the smallest size, as the last of these does."""

SEEN, TRACE = 0.25, 0.02
"""Shares of the mean square at the largest size. A power is seen if every mixture has at least ``SEEN`` of it, and
absent if no mixture has as much as ``TRACE``."""


def bound_share(n: Sequence[float], values: Sequence[Array], powers: Sequence[Fraction]) -> tuple[float, float] | None:
    """Bounds how large a part of a measured size one power of n can be.

    A mixture is a sum of the given powers with non-negative coefficients. Of all mixtures that fit the mean squares at
    all sizes (see ``GOOD``), those are found in which the first power has the smallest and the largest share of the
    mean square at the largest size.

    Law: the share is linear in the coefficients, so that either bound is the solution of a linear program.

    Args:
        n: the sizes.
        values: for every n, an array of root mean squares, one per seed.
        powers: exponents of n in the root mean square; the share of the first one is bounded.

    Returns:
        The smallest and the largest share. None if no mixture fits, or the data are insufficient: fewer than 3 sizes or
        4 seeds, or values that vanish or are not finite.
    """
    square = [np.asarray(v, dtype=np.float64) ** 2 for v in values]
    if len(n) < MIN_SIZES or min(map(len, square)) < MIN_SEEDS:
        return None
    y = np.array([s.mean() for s in square])
    if not (np.isfinite(y) & (y > 0)).all():
        return None
    errors = np.array([(s / mean).std() / len(s) ** 0.5 for s, mean in zip(square, y, strict=True)])
    columns = _build_columns(np.asarray(n, dtype=np.float64), powers) / (y / y[-1])[:, None]
    allowed = np.clip(ERRORS * errors, GOOD, NOISE)
    largest = columns.max(axis=0)
    columns, part = columns / largest, np.array([*(1 / largest[:2]), *np.zeros(columns.shape[1] - 2)])
    bounds = np.vstack([columns, -columns]), np.concatenate([1 + allowed, allowed - 1])
    ends = [linprog(sign * part, *bounds) for sign in (1, -1)]
    return (float(ends[0].fun), float(-ends[1].fun)) if all(end.status == 0 for end in ends) else None


def _build_columns(x: Array, powers: Sequence[Fraction]) -> Array:
    """Returns two columns for each power of n, (sizes, 2 * powers): the mean square n^(2 e), and the same with the
    largest factor for a finite size, 1 - ``FACTOR`` n_1/n. Both are normalised to 1 at the last size.
    """
    factor = 1 - FACTOR * x[0] / x
    plain = [(x / x[-1]) ** float(2 * e) for e in powers]
    return np.stack([column for p in plain for column in (p, p * factor / factor[-1])], axis=1)


def list_powers_below(
    predicted: Fraction,
    spacing: Fraction,
    rates: Iterable[Fraction],
    engine_powers: Iterable[tuple[Fraction, bool]] | None,
) -> tuple[Fraction, ...]:
    """Returns the predicted exponent and the next lower ones that a quantity may contain as well, in descending order.

    Exponents lie ``spacing`` apart. A power may occur if the engine finds it, or if it does not exceed the engine's
    bound on the terms that the engine dropped. It may also be the predicted power times one or more factors
    1/dimension^(1/2), since a finite dimension corrects a mean square by 1/dimension.

    Args:
        predicted: the exponent.
        spacing: distance between neighbouring possible exponents.
        rates: growth rates of the axes on the ray.
        engine_powers: the engine's other powers (see ``Powers``); None if unknown, so that every exponent may occur.
    """
    grid = (predicted - k * spacing for k in count(1))
    if engine_powers is None:
        return predicted, *islice(grid, FEW - 1)
    powers = list(engine_powers)
    exact = {e for e, seen in powers if seen} | {predicted - k * r / 2 for r in rates for k in range(1, FEW)}
    bound = max((e for e, seen in powers if not seen), default=None)
    present = [e for e in islice(grid, 100) if e in exact or (bound is not None and e <= bound)]
    return predicted, *present[: EVERY - 1]
