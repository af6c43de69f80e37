"""One verdict for every measured number: its interval against the region where the number is claimed to be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """The verdict of a measurement about a claim."""

    AGREES = "AGREES"
    REFUTED = "REFUTED"
    INCONCLUSIVE = "INCONCLUSIVE"


@dataclass(frozen=True)
class Acceptance:
    """Numbers from ``low`` to ``high``: a bound has an infinite end, an exponent two equal ones.

    Attributes:
        near: how far beside the region an interval may lie and still agree.
        far: how far beside the region the next numbers begin that may be true; 0: at once.
    """

    low: float
    high: float
    near: float = 0.0
    far: float = 0.0

    def verdict(self, low: float, high: float, *others: float) -> Verdict:
        """AGREES: the interval, give or take ``near``, touches the region and no other number that may be true.
        REFUTED: the interval and the ``others`` lie to one side, farther than half of ``far`` and, where there is a
        grid of such numbers, than half the width of the interval. INCONCLUSIVE: anything else, and NaN."""
        ends = (low, high, *others)
        if any(map(math.isnan, ends)):
            return Verdict.INCONCLUSIVE
        touches = low - self.near <= self.high and high + self.near >= self.low
        if touches and self.low - self.far < low - self.near and high + self.near < self.high + self.far:
            return Verdict.AGREES
        beyond = max(min(ends) - self.high, self.low - max(ends))
        return Verdict.REFUTED if beyond > max(self.far, high - low if self.far else 0) / 2 else Verdict.INCONCLUSIVE


class Settled(StrEnum):
    """The name of a change over widths, or between parameterizations."""

    TRANSFERS = "TRANSFERS"
    DRIFTS = "DRIFTS"
    IMPROVES = "IMPROVES"
    STALLS = "STALLS"
    WORSENS = "WORSENS"
    BETTER = "BETTER"
    EQUAL = "EQUAL"
    WORSE = "WORSE"
    INCONCLUSIVE = "INCONCLUSIVE"


Named = Sequence[tuple[Settled, Acceptance]]
"""Regions in the order in which they are tried, each with the name of a number that lies there."""


def outcome(named: Named, low: float, high: float) -> Settled:
    """The first name whose region holds the interval."""
    agreeing = (name for name, region in named if region.verdict(low, high) is Verdict.AGREES)
    return next(agreeing, Settled.INCONCLUSIVE)
