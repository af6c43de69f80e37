"""Verdicts on measured numbers: compares a confidence interval with the region of claimed values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """The verdict of a measurement about a claim: confirmed, contradicted, or neither (see ``Acceptance.verdict``)."""

    AGREES = "AGREES"
    REFUTED = "REFUTED"
    INCONCLUSIVE = "INCONCLUSIVE"


@dataclass(frozen=True)
class Acceptance:
    """The numbers that a claim allows, from ``low`` to ``high``: for a bound one end is infinite, for an exponent both
    are equal.

    Attributes:
        low: lower end.
        high: upper end.
        near: a measured interval may miss the region by this much and still agree.
        far: distance from the region to the next number that may be true, such as the next multiple of 1/2; 0 if any
            number may be.
    """

    low: float
    high: float
    near: float = 0.0
    far: float = 0.0

    def verdict(self, low: float, high: float, *others: float) -> Verdict:
        """Compares a measured confidence interval with the region.

        AGREES: the interval, widened by ``near``, touches the region, and no other number that may be true. REFUTED:
        the interval and ``others`` lie on one side of the region, farther away than ``far`` / 2 and, if ``far`` is not
        0, farther than half the interval's width. INCONCLUSIVE: anything else, and NaN.

        Args:
            low: lower end of the interval.
            high: upper end of the interval.
            others: further estimates, which have to lie on the same side for REFUTED.
        """
        ends = (low, high, *others)
        if any(map(math.isnan, ends)):
            return Verdict.INCONCLUSIVE
        touches = low - self.near <= self.high and high + self.near >= self.low
        if touches and self.low - self.far < low - self.near and high + self.near < self.high + self.far:
            return Verdict.AGREES
        beyond = max(min(ends) - self.high, self.low - max(ends))
        return Verdict.REFUTED if beyond > max(self.far, high - low if self.far else 0) / 2 else Verdict.INCONCLUSIVE


class ClaimOutcome(StrEnum):
    """The possible outcomes of comparing losses or rates over widths, or between parameterizations, such as DRIFTS
    or EQUAL."""

    TRANSFERS = "TRANSFERS"
    DRIFTS = "DRIFTS"
    IMPROVES = "IMPROVES"
    STALLS = "STALLS"
    WORSENS = "WORSENS"
    BETTER = "BETTER"
    EQUAL = "EQUAL"
    WORSE = "WORSE"
    INCONCLUSIVE = "INCONCLUSIVE"


Named = Sequence[tuple[ClaimOutcome, Acceptance]]
"""(name, region) pairs in the order in which they are tried."""


def name_outcome(named: Named, low: float, high: float) -> ClaimOutcome:
    """Returns the first outcome in ``named`` whose region agrees with the interval from ``low`` to ``high``, or
    INCONCLUSIVE if none does.
    """
    agreeing = (name for name, region in named if region.verdict(low, high) is Verdict.AGREES)
    return next(agreeing, ClaimOutcome.INCONCLUSIVE)
