"""Checks that make a pass mean something: where one fails nothing agrees, and what it cannot explain is refuted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from scaling_algebra.errors import count_noun

from .fit import DRIFT, LEVEL, MIN_SEEDS, MIN_SIZES, ROUNDING, Array, Fit, Verdict, fit, judge_exponent
from .measurement import Measurement

SPOILT = 0.1
"""Relative difference between a run and the same replicas in float64 above which a number is called rounding."""


@dataclass(frozen=True)
class RunGate:
    """A named check.

    Attributes:
        passed, detail: whether it passed, and what was seen.
        explains: distance of a slope from its prediction that its failure may account for: all where the data are not
            what they should be; none where the gate only asks whether a wrong exponent would be seen.
    """

    name: str
    passed: bool
    detail: str
    explains: float = math.inf

    def __str__(self) -> str:
        return f"gate {'passed' if self.passed else 'FAILED'}: {self.name} ({self.detail})"


def gates(m: Measurement, spacing: Fraction) -> list[RunGate]:
    """The gates that need no prediction; exponents are multiples of ``spacing``."""
    seeds = min((len(v) for series in m.values.values() for v in series), default=0)
    sizes, fewest = count_noun(len(m.sizes), "size"), f"{count_noun(seeds, 'seed')} at the size with fewest"
    checks = [
        RunGate("enough sizes", len(m.sizes) >= MIN_SIZES, f"{sizes}, at least {MIN_SIZES} needed"),
        RunGate("enough seeds", seeds >= MIN_SEEDS, f"{fewest}, at least {MIN_SEEDS} needed"),
        _finite(m),
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
        *([_gradients(m)] if m.gradients else []),
        _flat(m, spacing),
    ]


def planted(fits: Sequence[tuple[Fit, Fraction]], spacing: Fraction) -> RunGate:
    """A wrong exponent would be seen: where a prediction agrees, the same data refute both its neighbours.

    Fails: on fewer than a quarter of them (so little data could not tell), or if any neighbour agrees, too.
    """
    name = "planted wrong exponents refuted"
    verdicts = [judge_exponent(f, p + sign * spacing, spacing) for f, p in fits for sign in (-1, 1)]
    refuted = verdicts.count(Verdict.REFUTED)
    passed = bool(verdicts) and 4 * refuted >= len(verdicts) and Verdict.AGREES not in verdicts
    return RunGate(name, passed, f"{refuted} of {len(verdicts)} exponents off by {spacing}, up or down", 0.0)


def standard_refuted(verdicts: Sequence[Verdict]) -> RunGate:
    """Standard parameterization, measured at the same sizes, does not follow the predictions of another one.

    Fails: if it refutes fewer than one in twenty of them, which chance may do.
    """
    refuted = list(verdicts).count(Verdict.REFUTED)
    detail = f"it refutes {refuted} of {len(verdicts)} predictions of the first steps"
    return RunGate("standard parameterization refuted", 20 * refuted >= max(1, len(verdicts)), detail, 0.0)


def below_floor(m: Measurement) -> dict[tuple[str, int], float]:
    """Quantities that rounding spoils, with the relative difference to float64 (median over seeds, worst size)."""
    spoilt = {}
    reference = replace(m, values=m.exact, environment={})
    for key in m.exact:
        pairs = zip(m.cleaned(*key), reference.cleaned(*key), strict=True)
        worst = max((_relative_difference(*pair) for pair in pairs), default=0.0)
        if not worst <= SPOILT:
            spoilt[key] = worst
    return spoilt


def floor(m: Measurement) -> RunGate:
    """Less precision than float64 leaves at least half of what is not zero above rounding."""
    spoilt, present = below_floor(m), sum(any(v.any() for v in series) for series in m.exact.values())
    share = f"{len(spoilt)} of {present} numbers differ from float64 by more than {SPOILT:.0%}"
    detail = f"{m.environment.get('dtype')}: {share}, and do not count"
    return RunGate("above the numerical floor", 2 * len(spoilt) <= present, detail)


def _relative_difference(values: Array, exact: Array) -> float:
    values = values[: len(exact)]
    with np.errstate(divide="ignore", invalid="ignore"):
        differences = np.where(values == exact, 0.0, np.abs(values / exact - 1))
    return float(np.median(differences))


def _finite(m: Measurement) -> RunGate:
    bad = sorted({name for (name, _), series in m.values.items() if not all(np.isfinite(v).all() for v in series)})
    return RunGate(
        "measured values finite", bool(m.values) and not bad, "not finite: " + ", ".join(bad) if bad else "all"
    )


def _gradients(m: Measurement) -> RunGate:
    """Gradients are written by hand, part by part: their sum must be what autograd finds."""
    worst, bound = float(np.max(m.gradients)), min(0.1, 100 * ROUNDING[m.environment.get("dtype", "float64")])
    return RunGate(
        "gradients equal autograd's", worst <= bound, f"relative difference at most {worst:.1e}, up to {bound:.0e}"
    )


def _flat(m: Measurement, spacing: Fraction) -> RunGate:
    """Same pipeline, dimensions frozen at the first size: whatever slope it shows is an artefact.

    After one update and after the last the interval holds 0, give or take ``DRIFT``; after one, where tails are light,
    it holds no other exponent: a wide one would hide a slope. Its failure explains slopes up to the largest in these
    intervals.
    """
    name, explains = "width-independent control flat", 0.0
    slopes, passed, watched, first = [], True, m.watched, min(1, m.steps)
    for step in dict.fromkeys((first, m.steps)):
        for quantity in watched:
            series = m.control.get((quantity, step), [])
            if series and not any(v.any() for v in series):
                continue  # zero init
            slope = fit(m.sizes, series, 1 - (1 - LEVEL) / len(watched))
            flat = slope.low <= DRIFT and slope.high >= -DRIFT
            wide = flat and step == first and not (-spacing < slope.low and slope.high < spacing)
            passed &= flat and not wide
            explains = max(explains, -slope.low, slope.high)
            why = f", as wide as {spacing}: take more seeds" if wide else "" if flat else ", not flat"
            slopes.append(f"{quantity}@{step} {slope.slope:+.3f} in [{slope.low:+.3f}, {slope.high:+.3f}]{why}")
    detail = "slopes at frozen dimensions: " + (", ".join(slopes) or "nothing measured")
    return RunGate(name, passed and bool(slopes), detail, explains if slopes else math.inf)
