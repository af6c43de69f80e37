"""How low the best loss is: does it fall with scale, and is it lower than that of another parameterization?

Losses are compared as factors, in log2, each at its own best learning rate; seeds are paired, because equal seeds see
equal batches. An interval on one side of 0 is a change, however small; an interval around 0 is none where it is narrow.
Read next: ``optimum.py`` (where the best loss is), ``study.py`` (reports).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

import numpy as np

from scaling_algebra.verify.judging.fit import MIN_SEEDS, MIN_SIZES, Array

from .optimum import Curve
from .resampling import Estimate, resampled, slope_weights

TOLERANCE = math.log2(1.05)
"""log2 of a factor of the loss that still counts as none, where the interval holds 0: five per cent."""


class Scale(StrEnum):
    """What the best loss does when the network grows."""

    IMPROVES = "IMPROVES"
    STALLS = "STALLS"
    WORSENS = "WORSENS"
    INCONCLUSIVE = "INCONCLUSIVE"


class Rank(StrEnum):
    """How the best loss of one parameterization compares with that of another at one width."""

    BETTER = "BETTER"
    EQUAL = "EQUAL"
    WORSE = "WORSE"
    INCONCLUSIVE = "INCONCLUSIVE"


Word = TypeVar("Word", Scale, Rank)


@dataclass(frozen=True)
class Improvement:
    """Change of log2 of the best loss per doubling of the width.

    Attributes:
        slope, se, low, high: over the middle width and those above it, ``used``: least squares, bootstrap standard
            error and 95 % interval. whole: the slope over all widths.
        why: one line for reports.
    """

    slope: float
    se: float
    low: float
    high: float
    whole: float
    used: tuple[int, ...]
    verdict: Scale
    why: str


@dataclass(frozen=True)
class Comparison:
    """log2 of the best loss of ``one`` over that of ``other`` at a width, with standard error and 95 % interval."""

    one: str
    other: str
    width: int
    ratio: float
    se: float
    low: float
    high: float
    verdict: Rank
    why: str


def improvement(curves: Sequence[Curve]) -> Improvement:
    """Whether the best loss still falls from the middle width on, where a stall would be.

    IMPROVES, WORSENS: the interval of the slope lies below 0, above 0. STALLS: it holds 0 and lies within
    ``TOLERANCE``. INCONCLUSIVE: it holds 0 and is wider, or widths or seeds are too few, or a best loss lies on the
    edge of its grid.
    """
    top = curves[max(0, len(curves) - 1) // 2 :]
    used, nan = tuple(c.width for c in top), float("nan")
    if len(top) < 2:
        return Improvement(nan, nan, nan, nan, nan, used, Scale.INCONCLUSIVE, "one width shows no change")

    def slope(of: Sequence[Curve]) -> Estimate:
        weights = slope_weights([c.width for c in of])
        return resampled([c.losses for c in of], lambda means: np.tensordot(weights, _lowest(means), 1), paired=True)

    found = slope(top)
    few = len(curves) < MIN_SIZES or _seeds(curves) < MIN_SEEDS
    why = f"{len(curves)} widths and {_seeds(curves)} seeds; at least {MIN_SIZES} and {MIN_SEEDS} needed" if few else ""
    words = (Scale.IMPROVES, Scale.STALLS, Scale.WORSENS, Scale.INCONCLUSIVE)
    return Improvement(*found, slope(curves).value, used, *_judged(found, words, why or _at_edge(top)))


def compare(one: str, other: str, curves: tuple[Curve, Curve]) -> Comparison:
    """The best loss of one parameterization over that of another, at the same width and seeds.

    BETTER, WORSE: the interval lies below 0, above 0. EQUAL: it holds 0 and lies within ``TOLERANCE``. INCONCLUSIVE: it
    holds 0 and is wider, or seeds are too few, or a best loss lies on the edge of its grid.
    """

    def ratio(means: Sequence[Array]) -> Array:
        low = _lowest(means)
        difference: Array = low[0] - low[1]
        return difference

    found = resampled([c.losses for c in curves], ratio, paired=True)
    seeds = _seeds(curves)
    why = f"{seeds} seeds; at least {MIN_SEEDS} needed" if seeds < MIN_SEEDS else _at_edge(curves)
    words = (Rank.BETTER, Rank.EQUAL, Rank.WORSE, Rank.INCONCLUSIVE)
    return Comparison(one, other, curves[0].width, *found, *_judged(found, words, why))


def _judged(found: Estimate, words: tuple[Word, Word, Word, Word], unknown: str) -> tuple[Word, str]:
    """Lower, none, higher or open; ``unknown`` says why nothing can be known."""
    lower, none, higher, undecided = words
    factor = f"{2**TOLERANCE - 1:.0%}"
    if unknown:
        return undecided, unknown
    if found.high < 0 or found.low > 0:
        return (lower if found.high < 0 else higher), "the interval lies on one side of no change"
    if max(-found.low, found.high) <= TOLERANCE:
        return none, f"the interval lies within {factor} of no change"
    return undecided, f"the interval reaches from no change beyond {factor}"


def _lowest(means: Sequence[Array]) -> Array:
    """log2 of the smallest mean loss of each curve, (curves, ...)."""
    return np.log2(np.stack([mean.min(axis=0) for mean in means]))


def _seeds(curves: Sequence[Curve]) -> int:
    return min(c.losses.shape[1] for c in curves)


def _at_edge(curves: Sequence[Curve]) -> str:
    """Why the best losses are not known; empty where they are."""
    outside = dict.fromkeys(str(c.width) for c in curves if c.edge)
    return f"the smallest loss lies on the edge of the grid at width {', '.join(outside)}" if outside else ""
