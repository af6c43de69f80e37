"""What an experiment says: a claim, what was observed, the verdict, and the verdict there must be.

A claim is a text: an exponent (``-1/2``, ``zero``, or ``derived``: what the laboratory derives), a bound on the mean
over seeds (``> 0.98``), or a fall faster than any power (``below -6``). A planted claim, and a published one that
contradicts the prediction, must be refuted: it is the experiment's negative control.
Read next: ``claims/`` (every claim), ``runner.py`` (runs experiments).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Any

import numpy as np
from scipy import stats

from scaling_algebra.verify.judging.fit import MIN_SEEDS, MIN_SIZES, Array, Verdict, fit, judge_exponent
from scaling_algebra.verify.judging.report import number
from scaling_algebra.verify.judging.resampling import resampled, slope_weights


class By(StrEnum):
    """Who claims it: the prediction, a paper, or the experiment itself, as a control that must fail."""

    PREDICTED = "predicted"
    PUBLISHED = "published"
    PLANTED = "planted"


@dataclass(frozen=True)
class Conditions:
    """How a trial is run.

    Attributes:
        device: ``cpu`` or ``cuda``.
        sizes: values of n; empty where the experiment has a fixed size.
        seeds: replicas at every size.
        say: told what is being trained.
    """

    device: str
    sizes: tuple[int, ...]
    seeds: int
    say: Callable[[str], None] = lambda what: None


@dataclass(frozen=True)
class Observation:
    """What a laboratory saw of one quantity.

    Attributes:
        values: one number per seed, at every n; of a bound at one size.
        n, of: sizes, and what they count.
        derived: the exponent that the theory of the laboratory gives; None is exactly zero.
        spacing: of the exponents that may be true.
    """

    values: Sequence[Array]
    n: Sequence[float] = ()
    of: str = "n"
    derived: Fraction | None = None
    spacing: Fraction = Fraction(1, 2)


@dataclass(frozen=True)
class Finding:
    """One claim and its verdict.

    Attributes:
        quantity: what it is about; ``@t`` is after t updates.
        claimed: the claim, such as ``n^(-1/2)`` or ``> 0.99``.
        measured, low, high: slope, or mean over seeds, with its 95 % interval; NaN where there is none.
        expected: what the verdict must be.
        data: sizes and seeds behind it.
        source: paper and section.
    """

    quantity: str
    by: By
    claimed: str
    measured: float
    low: float
    high: float
    verdict: Verdict
    expected: Verdict
    data: str
    source: str

    @property
    def outcome(self) -> Verdict:
        """AGREES if the verdict is the expected one, REFUTED if it is the opposite one."""
        if self.verdict is Verdict.INCONCLUSIVE:
            return self.verdict
        return Verdict.AGREES if self.verdict is self.expected else Verdict.REFUTED

    def as_json(self) -> dict[str, Any]:
        """Numbers are rounded to six digits; null where there is none."""
        measured = {"measured": number(self.measured), "ci": [number(self.low), number(self.high)]}
        texts = {name: str(x) for name, x in vars(self).items() if isinstance(x, str)}
        first = ("quantity", "by", "claimed")
        return {name: texts.pop(name) for name in first} | measured | texts


def findings(claim: Mapping[str, str], seen: Observation) -> list[Finding]:
    """What is claimed of one quantity, by whom, and what the observation says.

    Args:
        claim: ``of``, ``source``, and a text for one or more of ``By``; ``wrong``: the one of them that must be refuted
            although it is neither planted nor beside a prediction that differs.
    """
    right = _exponent(claim["predicted"], seen) if "predicted" in claim else None
    judged = []
    for by in (by for by in By if by in claim):
        claimed = _exponent(claim[by], seen)
        contradicts = "predicted" in claim and claimed != right
        must_fail = by is By.PLANTED or contradicts or claim.get("wrong") == by
        expected = Verdict.REFUTED if must_fail else Verdict.AGREES
        judged.append(Finding(claim["of"], by, *_judged(claimed, seen), expected, _data(seen), claim["source"]))
    return judged


def _exponent(text: str, seen: Observation) -> str | Fraction | None:
    """The exponent that a text claims; the text itself where it claims something else."""
    if text[0] in "<>b":
        return text
    return {"derived": seen.derived, "zero": None}[text] if text.isalpha() else Fraction(text)


def _judged(claimed: str | Fraction | None, seen: Observation) -> tuple[str, float, float, float, Verdict]:
    if not isinstance(claimed, str):
        slope = fit(seen.n, seen.values)
        verdict = judge_exponent(slope, claimed, seen.spacing)
        return power(claimed, seen.of), slope.slope, slope.low, slope.high, verdict
    sign, _, limit = claimed.partition(" ")
    if sign == "below":
        middle, low, high = _medians(seen)
        return f"below {power(Fraction(limit))}", middle, low, high, judge_bound(low, high, "<", float(limit))
    (values,) = seen.values
    mean, few = float(np.mean(values)), len(values) < MIN_SEEDS
    reach = float("nan") if few else float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))
    return claimed, mean, mean - reach, mean + reach, judge_bound(mean - reach, mean + reach, sign, float(limit))


def _medians(seen: Observation) -> tuple[float, float, float]:
    """Least squares through the logarithms of the medians over seeds, with a bootstrap over seeds."""
    weights = slope_weights(seen.n)

    def slope(drawn: Sequence[Array]) -> Array:
        result: Array = np.tensordot(weights, np.log2([np.median(v, axis=-1) for v in drawn]), 1)
        return result

    few = len(seen.n) < MIN_SIZES or min(map(len, seen.values)) < MIN_SEEDS
    value, _, low, high = resampled(seen.values, slope)
    return (value, float("nan"), float("nan")) if few else (value, low, high)


def judge_bound(low: float, high: float, sign: str, limit: float) -> Verdict:
    """Where an interval lies: on the claimed side of the limit, on the other, or on both (or NaN): INCONCLUSIVE."""
    below, above = high < limit, low > limit
    if not (below or above):
        return Verdict.INCONCLUSIVE
    return Verdict.AGREES if (below if sign == "<" else above) else Verdict.REFUTED


def _data(seen: Observation) -> str:
    sizes = f"{seen.of} = {min(seen.n):g} to {max(seen.n):g}, " if len(seen.n) else ""
    return f"{sizes}{min(map(len, seen.values))} seeds"


def power(e: Fraction | None, of: str = "n") -> str:
    """``n^(-1/2)``, ``n^0``, or ``zero`` for None."""
    if e is None:
        return "zero"
    return f"{of}^{e}" if e.denominator == 1 else f"{of}^({e})"
