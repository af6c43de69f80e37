"""Gates: checks that a run must pass before agreement counts, with negative controls. A gate that fails turns
agreement into INCONCLUSIVE; a refutation stays if it is larger than what the failure can explain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from scaling_algebra.errors import count_noun

from .fit import DRIFT, LEVEL, MIN_SEEDS, MIN_SIZES, ROUNDING, Array, Fit, Verdict, fit_exponent, judge_exponent
from .measurement import Measurement

SPOILT = 0.1
"""A value whose relative difference from the same replica in float64 exceeds this is dominated by rounding."""


@dataclass(frozen=True)
class RunGate:
    """A check that a run must pass before its agreement with predictions counts.

    Attributes:
        name: name of the check.
        passed: whether the run passed it.
        detail: the numbers on which the result rests, as text.
        explains: largest distance between a slope and its prediction that a failure of this check can explain: infinite
            if the data are not what they should be, 0 if the check only tests whether a wrong exponent would be
            noticed.
    """

    name: str
    passed: bool
    detail: str
    explains: float = math.inf

    def __str__(self) -> str:
        return f"gate {'passed' if self.passed else 'FAILED'}: {self.name} ({self.detail})"


def build_gates(m: Measurement, spacing: Fraction) -> list[RunGate]:
    """Returns the checks of a run that need no predicted exponent.

    Args:
        m: the measurement.
        spacing: the exponents that could occur are multiples of this.
    """
    seeds = min((len(v) for series in m.values.values() for v in series), default=0)
    sizes, fewest = count_noun(len(m.sizes), "size"), f"{count_noun(seeds, 'seed')} at the size with fewest"
    checks = [
        RunGate("enough sizes", len(m.sizes) >= MIN_SIZES, f"{sizes}, at least {MIN_SIZES} needed"),
        RunGate("enough seeds", seeds >= MIN_SEEDS, f"{fewest}, at least {MIN_SEEDS} needed"),
        _check_finite(m),
    ]
    if m.logged:
        return checks
    return [
        *checks[:2],
        RunGate(
            "parameter counts differ",
            bool(m.parameters) and len(set(m.parameters)) == len(m.parameters),
            ", ".join(map(str, m.parameters)),
        ),
        RunGate("same input at every size", len(set(m.inputs)) == 1, f"{len(set(m.inputs))} different inputs"),
        *checks[2:],
        *([_check_gradients(m)] if m.gradients else []),
        _check_flat_control(m, spacing),
    ]


def check_planted_exponents(fits: Sequence[tuple[Fit, Fraction]], spacing: Fraction) -> RunGate:
    """Checks that wrong exponents would be noticed: data that agree with a prediction must refute the exponents next to
    it, above and below.

    Fails: if fewer than a quarter of these wrong exponents are refuted (the data could not tell), or if one of them
    agrees.

    Args:
        fits: (fit, prediction) of every row that agrees.
        spacing: distance from a prediction to the wrong exponents.
    """
    name = "planted wrong exponents refuted"
    verdicts = [judge_exponent(f, p + sign * spacing, spacing) for f, p in fits for sign in (-1, 1)]
    refuted = verdicts.count(Verdict.REFUTED)
    passed = bool(verdicts) and 4 * refuted >= len(verdicts) and Verdict.AGREES not in verdicts
    return RunGate(name, passed, f"{refuted} of {len(verdicts)} exponents off by {spacing}, up or down", 0.0)


def check_standard_refuted(verdicts: Sequence[Verdict]) -> RunGate:
    """Checks a negative control: the same network in the standard parameterization must refute predictions that were
    made for the parameterization under test.

    Fails: if fewer than one in twenty predictions are refuted, as may happen by chance.

    Args:
        verdicts: the verdict on each prediction from the data of the standard parameterization.
    """
    refuted = list(verdicts).count(Verdict.REFUTED)
    detail = f"it refutes {refuted} of {len(verdicts)} predictions of the first steps"
    return RunGate("standard parameterization refuted", 20 * refuted >= max(1, len(verdicts)), detail, 0.0)


def find_rounded(m: Measurement) -> dict[tuple[str, int], float]:
    """Returns the quantities in which rounding in the precision of the run dominates, by comparison with the same run
    in float64.

    Returns:
        (name, step) -> relative difference from float64: the median over seeds, at the size where it is largest.
    """
    spoilt = {}
    reference = replace(m, values=m.exact, environment={})
    for key in m.exact:
        pairs = zip(m.get_cleaned(*key), reference.get_cleaned(*key), strict=True)
        worst = max((_compute_relative_difference(*pair) for pair in pairs), default=0.0)
        if not worst <= SPOILT:
            spoilt[key] = worst
    return spoilt


def check_floor(m: Measurement) -> RunGate:
    """Checks that rounding dominates at most half of the nonzero quantities in a run with less precision than
    float64.
    """
    spoilt, present = find_rounded(m), sum(any(v.any() for v in series) for series in m.exact.values())
    share = f"{len(spoilt)} of {present} numbers differ from float64 by more than {SPOILT:.0%}"
    detail = f"{m.environment.get('dtype')}: {share}, and do not count"
    return RunGate("above the numerical floor", 2 * len(spoilt) <= present, detail)


def _compute_relative_difference(values: Array, exact: Array) -> float:
    """Returns the median over seeds of the relative difference from the exact values."""
    values = values[: len(exact)]
    with np.errstate(divide="ignore", invalid="ignore"):
        differences = np.where(values == exact, 0.0, np.abs(values / exact - 1))
    return float(np.median(differences))


def _check_finite(m: Measurement) -> RunGate:
    """Checks that all measured values are finite."""
    bad = sorted({name for (name, _), series in m.values.items() if not all(np.isfinite(v).all() for v in series)})
    return RunGate(
        "measured values finite", bool(m.values) and not bad, "not finite: " + ", ".join(bad) if bad else "all"
    )


def _check_gradients(m: Measurement) -> RunGate:
    """Checks that the gradients computed by the program's own formulas equal those of torch's autograd."""
    worst, bound = float(np.max(m.gradients)), min(0.1, 100 * ROUNDING[m.environment.get("dtype", "float64")])
    return RunGate(
        "gradients equal autograd's", worst <= bound, f"relative difference at most {worst:.1e}, up to {bound:.0e}"
    )


def _check_flat_control(m: Measurement, spacing: Fraction) -> RunGate:
    """Checks a negative control: replicas that all have the dimensions of the first size, fitted as if they had
    different sizes, must show no slope.

    After the first and the last update the interval of the slope must contain 0, up to ``DRIFT``. After the first,
    where values rarely are extreme, it must contain no other possible exponent (a multiple of ``spacing``), since a
    wide interval would hide a slope. If the check fails, it can explain refutations whose slope differs from the
    prediction by up to the largest slope in these intervals (``RunGate.explains``).
    """
    name, explains = "width-independent control flat", 0.0
    slopes, passed, watched, first = [], True, m.watched, min(1, m.steps)
    for step in dict.fromkeys((first, m.steps)):
        for quantity in watched:
            series = m.control.get((quantity, step), [])
            if series and not any(v.any() for v in series):
                continue  # zero init
            slope = fit_exponent(m.sizes, series, 1 - (1 - LEVEL) / len(watched))
            flat = slope.low <= DRIFT and slope.high >= -DRIFT
            wide = flat and step == first and not (-spacing < slope.low and slope.high < spacing)
            passed &= flat and not wide
            explains = max(explains, -slope.low, slope.high)
            why = f", as wide as {spacing}: take more seeds" if wide else "" if flat else ", not flat"
            slopes.append(f"{quantity}@{step} {slope.slope:+.3f} in [{slope.low:+.3f}, {slope.high:+.3f}]{why}")
    detail = "slopes at frozen dimensions: " + (", ".join(slopes) or "nothing measured")
    return RunGate(name, passed and bool(slopes), detail, explains if slopes else math.inf)
