"""Construction A of the MoE-laws paper: one expert for each of M charts, fitted to noisy samples by least squares.

The target is a sum of cosines that is Hoelder of order beta everywhere and no smoother; an expert is a constant on a
cube of side M^(-1/d). The question is whether the estimation error grows with log(M), as the printed bound says (it
counts the parameters that a sample uses), or with M, as a bound does that counts all experts. Errors are squared. Read
next: ``claims/charts.toml``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from scaling_algebra.verify.judging.fit import Array

from .findings import Conditions, Observation

OCTAVES, POINTS, NOISE = 16, 2**15, 3.0
"""Number of cosines of a target, number of points at which errors are evaluated, and std of the noise."""
ERRORS = ("approximation", "estimation", "error")
"""Error of the best constants, of the fitted constants relative to the best ones, and in total."""
Indices = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


@dataclass(frozen=True)
class Target:
    """The function to fit: a sum of cosines on the unit cube.

    Attributes:
        beta: its Hoelder exponent, at most 1.
        d: the number of its arguments.
    """

    beta: Fraction
    d: int

    def at(self, x: Array, phases: Array) -> Array:
        """Evaluates the target at points x, (points, d), given the phases of the cosines, (d, frequencies)."""
        values = np.zeros(len(x))
        for octave in range(OCTAVES):
            waves = np.cos(2 * np.pi * 2.0**octave * x + phases[:, octave])
            values += 2.0 ** (-octave * float(self.beta)) * waves.sum(1)
        return values

    def side(self, count: int) -> int:
        """Returns into how many charts (cubes) each dimension is divided to get about ``count`` in total."""
        return max(1, round(count ** (1 / self.d)))

    def chart(self, x: Array, count: int) -> Indices:
        """Returns, for every point of x, the index of the chart (cube) that contains it, with about ``count`` charts
        in total.
        """
        side = self.side(count)
        index: Indices = np.minimum((x * side).astype(np.int64), side - 1) @ side ** np.arange(self.d)
        return index


def compute_errors(target: Target, count: int, samples: int, seed: int) -> tuple[float, ...]:
    """Fits a constant on each chart (cube) to noisy samples of the target, and returns three mean square errors: of the
    best constants, of the fitted constants relative to the best ones, and of the fitted constants in total.

    A chart without samples predicts 0.

    Args:
        target: the function to fit.
        count: the approximate number of charts.
        samples: number of samples.
        seed: seed of the target's phases, of the samples and of the noise.
    """
    draw = np.random.default_rng([4, seed, count, samples])
    phases, total = draw.uniform(0, 2 * np.pi, (target.d, OCTAVES)), target.side(count) ** target.d
    points, x = draw.random((POINTS, target.d)), draw.random((samples, target.d))

    def means(values: Array, where: Indices) -> Array:
        counts = np.bincount(where, minlength=total)
        mean: Array = np.bincount(where, values, total) / np.maximum(counts, 1)
        return mean

    truth, where = target.at(points, phases), target.chart(points, count)
    best = means(truth, where)
    fitted = means(target.at(x, phases) + NOISE * draw.normal(size=samples), target.chart(x, count))
    parts = truth - best[where], (fitted - best)[where], truth - fitted[where]
    return tuple(float(np.mean(p**2)) for p in parts)


def draw_charts(
    how: Conditions, names: Sequence[str], *, beta: str, d: int, samples: int = 0, power: str = "", spacing: str = "1/2"
) -> dict[str, Observation]:
    """Draws noisy samples of the target, fits a constant on each of M charts (cubes), and measures how one error of the
    fit depends on M.

    Args:
        how: the numbers of charts (its ``sizes``) and the number of replicas.
        names: a single name of an error: "approximation" (of the best constants), "estimation" (of the fitted constants
            relative to the best ones) or "error" (in total).
        beta: Hoelder exponent of the target.
        d: number of arguments of the target.
        samples: number of samples.
        power: if given, the number of samples is this power of M, and the error is measured against that number.
        spacing: the exponents that could occur are multiples of this; a measured one is judged with this resolution.
    """
    (name,), target = names, Target(Fraction(beta), d)
    counts = [target.side(m) ** d for m in how.sizes]
    drawn = [round(m ** float(Fraction(power))) for m in counts] if power else [samples] * len(counts)
    values = []
    for count, n in zip(counts, drawn, strict=True):
        values.append(
            np.array([compute_errors(target, count, n, seed)[ERRORS.index(name)] for seed in range(how.seeds)])
        )
    return {name: Observation(values, drawn if power else counts, "n" if power else "M", spacing=Fraction(spacing))}
