"""Makes rows of a check inconclusive where one term still gives way to another at the measured sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from scaling_algebra.verify.judging.fit import DRIFT, MIN_SIZES, Array, Verdict
from scaling_algebra.verify.judging.measurement import Measurement
from scaling_algebra.verify.judging.report import Report, ReportRow
from scaling_algebra.verify.tracing.measuring import UPDATE

from .rows import DEMANDED, NEAR, Cell

APART = (0.5, 1.0, 1.5, 2.0)
"""Exponent differences that are tried for the two terms of a crossover."""
BEHIND = 3.0
"""Largest ratio (fading term / remaining term) between the last two sizes that a crossover may have; with a larger
ratio the measurement shows nothing of the remaining term."""
FADED = 0.1
"""Share of a product's mean square below which the fading term no longer matters."""
FURTHEST = 64.0
"""A message proposes sizes at most this many times as large as the largest one here."""


def suspend_converging_rows(report: Report) -> Report:
    """Makes refuted rows inconclusive whose slope between neighbouring sizes approaches the prediction as n grows.

    This happens at a crossover, where one term of a sum gives way to another. The note of such a row names the sizes
    that would settle it. For a certified exponent, the slope between the last two sizes must already be nearer to this
    exponent than to any other possible one, within one standard error, or within two if the slope certainly moves
    towards it. If the exponent is only that of a demand, this slope must not be that of another possible exponent.
    """

    def row(r: ReportRow) -> ReportRow:
        if r.verdict is not Verdict.REFUTED or r.predicted is None or r.fit.zero or len(report.sizes) < MIN_SIZES:
            return r
        values, own = map(np.array, report.means[r.quantity, r.step])
        doublings = np.log2(report.sizes)
        steps = np.diff(doublings)
        off = np.diff(values) / steps - float(r.predicted)
        off *= np.sign(off.sum()) or 1.0
        errors = np.hypot(own[1:], own[:-1]) / steps
        times = _estimate_doublings_left(off, errors, (doublings[1:] + doublings[:-1]) / 2)
        shared = own[1] if len(steps) == 2 else 0.0  # both slopes use the middle size
        bent = errors[0] ** 2 + errors[-1] ** 2 + 2 * shared**2 / (steps[0] * steps[-1])
        certain = off[0] - off[-1] > 2 * math.sqrt(bent)
        near = NEAR + min(float(errors[-1]), DRIFT) * (2 if certain else 1)
        most = min(APART) - DRIFT if r.level == DEMANDED else near
        if times is None or off[-1] > most:
            return r
        where = _format_settling_sizes(report, times)
        note = f"comes nearer to n^({r.predicted}) from size to size; {where} would settle it"
        return replace(r, verdict=Verdict.INCONCLUSIVE, note=note)

    return replace(report, rows=tuple(map(row, report.rows)))


def suspend_crossovers(report: Report, m: Measurement, exponents: Mapping[str, Sequence[Cell]]) -> Report:
    """Makes refuted rows inconclusive if their size is undecided and a crossover in W_t x = W_0 x + dW x explains them.

    At the crossover, the term W_0 x, which vanishes with n relative to dW x, is still visible at the smallest size.

    Model: if W_0 x falls as n^(-gap) relative to dW x, a norm of their sum passes on a signal that grows, more slowly
    than n^gap, until dW x dominates.

    Args:
        report: the report; rows whose size is undecided are compared with the bound of their demand.
        m: the measurement, with the root mean squares of both terms.
        exponents: by quantity, the predicted exponent (or its upper bound) at every step.
    """
    found: list[tuple[float, Fraction, int, str]] = []
    for name in (x.removesuffix(".init") for x in exponents if x.endswith(".init")):
        before = exponents[f"{name}.init"][0]
        for t, after in enumerate(exponents.get(f"{name}{UPDATE}", ())):
            keys = [(f"{name}.init", t), (f"{name}{UPDATE}", t)]
            if not t or not (isinstance(before, Fraction) and isinstance(after, Fraction) and before < after):
                continue
            if any(key not in m.values or not all(v.any() for v in m.values[key]) for key in keys):
                continue
            old, new = ([float(np.square(v).mean()) for v in m.values[key]] for key in keys)
            first, last, gap = old[0] / new[0], old[-1] / new[-1], after - before
            if first > FADED / (1 - FADED) and last < first * (m.sizes[0] / m.sizes[-1]) ** float(gap):
                found.append((last, gap, t, name))

    def row(r: ReportRow) -> ReportRow:
        if r.verdict is not Verdict.REFUTED or r.level != DEMANDED or r.predicted is None or r.fit.zero:
            return r
        off = r.fit.slope - float(r.predicted)
        crossing = [x for x in found if x[2] <= r.step and 0 < off <= x[1] - DRIFT]
        if not crossing:
            return r
        odds, gap, _, name = max(crossing)
        times = max(0.0, math.log2(odds * (1 - FADED) / FADED) / (2 * float(gap)))
        note = f"the initial values of {name} still count beside its update, which outgrows them as n^({gap})"
        return replace(
            r, verdict=Verdict.INCONCLUSIVE, note=f"{note}; sizes from {_format_settling_sizes(report, times, True)}"
        )

    return replace(report, rows=tuple(map(row, report.rows)))


def _estimate_doublings_left(off: Array, errors: Array, at: Array) -> float | None:
    """Returns how many more doublings of n bring the slope of a row within ``DRIFT`` of its prediction.

    None if the slope does not approach its prediction, or a constant slope fits as well. Model: the squares of two
    terms, a n^p and b n^(p +- gap), add up. The local slope between two sizes then differs from the exponent p of the
    remaining term by gap * w, with w / (1 - w) = odds * n^(-2 gap); gap and the constant ``odds`` are fitted.

    Args:
        off: distance of each local slope from the prediction, signed so that most are positive.
        errors: standard errors of these.
        at: log2 of n midway between the two sizes of each slope.
    """
    errors = np.maximum(errors, 1e-3)

    def compute_misfit(expected: Array) -> float:
        return float((((off - expected) / errors) ** 2).sum())

    stays = float((off / errors**2).sum() / (1 / errors**2).sum())
    best, left = compute_misfit(np.full_like(off, stays)), None
    if off[-1] >= off[0]:
        return None
    for gap in APART:
        for odds in np.geomspace(DRIFT / gap, BEHIND, 40):  # at the last pair of sizes
            every = odds * 2.0 ** (2 * gap * (at[-1] - at))
            if (found := compute_misfit(gap * every / (1 + every))) < best:
                settled_at = DRIFT / (gap - DRIFT)
                best, left = found, max(0.0, math.log2(odds / settled_at) / (2 * gap))
    return left


def _format_settling_sizes(report: Report, doublings: float, start: bool = False) -> str:
    """Returns, as text, the range of sizes that would decide a row: from the largest size so far to the one needed.

    Args:
        report: the report with the sizes measured so far.
        doublings: how many more doublings of n are needed.
        start: whether to name only the size needed.
    """
    first, last = report.dims[0], report.dims[-1]
    whole = math.log2(report.sizes[-1] / report.sizes[0])
    doublings = math.ceil(doublings) + (not start)  # counts the pair of sizes whose slope is close enough
    grown = {axis: round(n * (n / first[axis]) ** (doublings / whole)) for axis, n in last.items()}
    if 2.0**doublings > FURTHEST:
        return f"more than {FURTHEST:g} times the largest here" if start else f"sizes {FURTHEST:g} times as large"
    listed = [",".join(f"{axis}={n}" for axis, n in size.items()) for size in (last, grown)]
    return f"{listed[1]} on would settle it" if start else " to ".join(listed)
