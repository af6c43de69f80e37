"""Construction A of the MoE-laws paper: one expert for each of M charts, fitted to noisy samples by least squares.

The target is a sum of cosines that is Hoelder of order beta everywhere and no smoother; an expert is a constant on a
cube of side M^(-1/d). Does the error of estimation grow with log(M), as the printed bound says, which counts the
parameters that a sample uses, or with M, as a bound does that counts all experts? Errors are squared.
Read next: ``registry.py`` (runs it).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import numpy as np

from scaling_algebra.verify.judging.fit import Array, fit

from .findings import By, Experiment, Finding, Plan, Trial, exponent

OCTAVES, POINTS, SAMPLES, NOISE = 16, 2**15, 20_000, 3.0
"""Cosines of a target, points at which errors are taken, samples where their number is fixed, and the noise's std."""
SOURCE = "MoE-laws paper, Thm. 3.1 and App. F"


@dataclass(frozen=True)
class Target:
    """Its smoothness (at most 1) and dimension."""

    beta: Fraction
    d: int

    def draw(self, draw: np.random.Generator) -> Array:
        """Phases of the cosines, (d, octaves)."""
        return draw.uniform(0, 2 * np.pi, (self.d, OCTAVES))

    def at(self, x: Array, phases: Array) -> Array:
        """Values at points x, (points, d)."""
        found = np.zeros(len(x))
        for octave in range(OCTAVES):
            waves = np.cos(2 * np.pi * 2.0**octave * x + phases[:, octave])
            found += 2.0 ** (-octave * float(self.beta)) * waves.sum(1)
        return found

    def charts(self, count: int) -> int:
        """Charts along one dimension, for about this many in all."""
        return max(1, round(count ** (1 / self.d)))

    def chart(self, x: Array, count: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        """The chart of every point."""
        side = self.charts(count)
        cells = np.minimum((x * side).astype(np.int64), side - 1)
        found: np.ndarray[tuple[int, ...], np.dtype[np.int64]] = cells @ side ** np.arange(self.d)
        return found


def errors(target: Target, count: int, samples: int, seed: int) -> tuple[float, float, float]:
    """Mean squares with about ``count`` charts: error of the best constants, of fitted ones beside these, and in all.

    A chart without samples predicts 0.
    """
    draw = np.random.default_rng([4, seed, count, samples])
    phases, total = target.draw(draw), target.charts(count) ** target.d
    points, x = draw.random((POINTS, target.d)), draw.random((samples, target.d))
    truth, where = target.at(points, phases), target.chart(points, count)
    best = _means(truth, where, total)
    fitted = _means(target.at(x, phases) + NOISE * draw.normal(size=samples), target.chart(x, count), total)
    parts = truth - best[where], (fitted - best)[where], truth - fitted[where]
    approximation, estimation, whole = (float(np.mean(p**2)) for p in parts)
    return approximation, estimation, whole


def _means(values: Array, where: np.ndarray[tuple[int, ...], np.dtype[np.int64]], total: int) -> Array:
    counts = np.bincount(where, minlength=total)
    found: Array = np.bincount(where, values, total) / np.maximum(counts, 1)
    return found


def measured(target: Target, counts: Sequence[int], samples: Sequence[int], part: int, plan: Plan) -> list[Array]:
    """One error per seed, for every number of charts with its number of samples."""
    found = []
    for count, n in zip(counts, samples, strict=True):
        plan.say(f", {count} charts")
        found.append(np.array([errors(target, count, n, seed)[part] for seed in range(plan.seeds)]))
    return found


def approximation(target: Target, plan: Plan) -> list[Finding]:
    """M^(-2 beta/d), and a planted rate of twice that."""
    counts = [target.charts(m) ** target.d for m in plan.sizes]
    values = measured(target, counts, [1] * len(counts), 0, plan)
    right = -2 * target.beta / target.d
    return _judged("approximation", counts, values, right, 2 * right, By.PLANTED, "M", -right)


def estimation(target: Target, plan: Plan) -> list[Finding]:
    """M/n: it grows with all experts, not with their logarithm."""
    counts = [target.charts(m) ** target.d for m in plan.sizes]
    values = measured(target, counts, [SAMPLES] * len(counts), 1, plan)
    return _judged("estimation", counts, values, Fraction(1), Fraction(0), By.PUBLISHED, "M", Fraction(1, 2))


def data(target: Target, plan: Plan) -> list[Finding]:
    """n^(-2 beta/(2 beta + d)) at M = n^(d/(2 beta + d)); the printed bound at its own optimum would be 1/n."""
    rate = -2 * target.beta / (2 * target.beta + target.d)
    counts = [target.charts(m) ** target.d for m in plan.sizes]
    samples = [round(m ** float((2 * target.beta + target.d) / target.d)) for m in counts]
    values = measured(target, counts, samples, 2, plan)
    return _judged("error", samples, values, rate, Fraction(-1), By.PUBLISHED, "n", Fraction(1, 2))


def crowded(target: Target, plan: Plan) -> list[Finding]:
    """At M = n^(d/(2 beta)), where the printed bound has its least value 1/n, the error does not fall at all."""
    counts = [target.charts(m) ** target.d for m in plan.sizes]
    samples = [round(m ** float(2 * target.beta / target.d)) for m in counts]
    values = measured(target, counts, samples, 2, plan)
    return _judged("error", samples, values, Fraction(0), Fraction(-1), By.PUBLISHED, "n", Fraction(1, 2))


def _judged(
    name: str, n: list[int], values: list[Array], right: Fraction, wrong: Fraction, by: By, of: str, spacing: Fraction
) -> list[Finding]:
    slope = fit(n, values)
    claims = ((right, By.PREDICTED), (wrong, by))
    return [exponent(name, slope, claimed, right, who, SOURCE, n, spacing, of) for claimed, who in claims]


LINE, PLANE = Target(Fraction(1, 2), 1), Target(Fraction(1, 2), 2)
CHARTS = Experiment(
    "charts",
    "what more experts cost: one expert for each chart of a rough target, with noise",
    "MoE-laws paper",
    (
        Trial("approximation, d = 1", partial(approximation, LINE)),
        Trial("approximation, d = 2", partial(approximation, PLANE)),
        Trial("estimation at fixed n, d = 1", partial(estimation, LINE)),
        Trial("estimation at fixed n, d = 2", partial(estimation, PLANE)),
        Trial("error at the best M, d = 1", partial(data, LINE)),
        Trial("error at the best M of the printed bound, d = 1", partial(crowded, LINE)),
    ),
    (16, 32, 64, 128, 256, 512),
    8,
)
