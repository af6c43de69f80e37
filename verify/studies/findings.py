"""Findings of an experiment: a claim, the observation, its verdict, and the verdict that is expected.

A claim is a text: an exponent (``-1/2``, ``zero``, or ``derived``: the one that the laboratory derives), a bound on the
mean over seeds (``> 0.98``), or a fall faster than a power (``below -6``). Planted claims, and published ones that
contradict the prediction, must be refuted: they are the negative controls of the experiment. Read next: ``claims/``
(every claim), ``runner.py`` (runs experiments).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from math import inf, nan
from typing import Any

import numpy as np
from scipy import stats

from scaling_algebra.errors import count_noun
from scaling_algebra.verify.judging.fit import (
    MIN_SEEDS,
    MIN_SIZES,
    Array,
    Verdict,
    fit_exponent,
    judge_exponent,
    round_for_json,
)
from scaling_algebra.verify.judging.regions import Acceptance
from scaling_algebra.verify.judging.resampling import compute_slope_weights, estimate_by_bootstrap, weighted_median


class By(StrEnum):
    """Who makes a claim: the prediction, a paper, or nobody (a planted error that must be refuted)."""

    PREDICTED = "predicted"
    PUBLISHED = "published"
    PLANTED = "planted"


@dataclass(frozen=True)
class Conditions:
    """The device, sizes and seeds of a trial.

    Attributes:
        device: the device that trains.
        sizes: values of n; empty if the size is fixed.
        seeds: number of replicas at each size.
    """

    device: str
    sizes: tuple[int, ...]
    seeds: int


@dataclass(frozen=True)
class Observation:
    """The measured values of one quantity of an experiment.

    Attributes:
        values: one number per seed at each n; a bound is tested at a single size.
        n: the sizes.
        of: the symbol of the sizes in reports, such as ``n`` or ``M``.
        derived: the exponent that the theory predicts; None if the quantity is exactly zero.
        spacing: the exponents that could occur are multiples of this; a measured one is judged with this resolution.
    """

    values: Sequence[Array]
    n: Sequence[float] = ()
    of: str = "n"
    derived: Fraction | None = None
    spacing: Fraction = Fraction(1, 2)

    @property
    def data(self) -> str:
        """The sizes and seeds as text, such as ``n = 16 to 128, 32 seeds``."""
        sizes = f"{self.of} = {min(self.n):g} to {max(self.n):g}, " if len(self.n) else ""
        return f"{sizes}{count_noun(min(map(len, self.values)), 'seed')}"


@dataclass(frozen=True)
class Finding:
    """One claim with its verdict.

    Attributes:
        quantity: the quantity that the claim is about; ``@t`` means after t updates.
        by: the origin of the claim.
        claimed: the claim, such as ``n^(-1/2)`` or ``> 0.99``.
        measured: the measured exponent, or the mean over seeds if the claim is a bound.
        low: lower end of its 95 % interval; NaN if there is none.
        high: upper end of its 95 % interval; NaN if there is none.
        verdict: the verdict on the claim.
        expected: the verdict that is expected; a planted error is expected to be refuted.
        data: the sizes and seeds that were measured.
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
        """Whether the verdict is as expected: AGREES if it is, REFUTED if it is the opposite, INCONCLUSIVE if the
        verdict is.
        """
        if self.verdict is Verdict.INCONCLUSIVE:
            return self.verdict
        return Verdict.AGREES if self.verdict is self.expected else Verdict.REFUTED

    def as_json(self) -> dict[str, Any]:
        """Returns the finding in JSON types, numbers rounded to six digits and null in place of NaN."""
        measured = {
            "measured": round_for_json(self.measured),
            "ci": [round_for_json(self.low), round_for_json(self.high)],
        }
        claim = {name: str(vars(self)[name]) for name in ("quantity", "by", "claimed")}
        return claim | measured | {name: str(vars(self)[name]) for name in ("verdict", "expected", "data", "source")}


def judge_claims(claim: Mapping[str, str], observation: Observation) -> list[Finding]:
    """Judges the claims about one quantity, which different origins (prediction, paper, planted error) may make.

    Args:
        claim: a table with the keys ``of`` (the quantity), ``source`` (paper and section) and, for one or more origins
            (``By``), the claim as text. A claim is expected to be refuted if it is planted or contradicts the
            prediction, or if the key ``wrong`` names its origin.
        observation: the measured values.
    """
    claims = {by: _read_exponent(claim[by], observation) for by in By if by in claim}
    judged = []
    for by, claimed in claims.items():
        contradicts = claimed != claims.get(By.PREDICTED, claimed)
        must_fail = by is By.PLANTED or contradicts or claim.get("wrong") == by
        expected = Verdict.REFUTED if must_fail else Verdict.AGREES
        judgement = _judge_claim(claimed, observation)
        judged.append(Finding(claim["of"], by, *judgement, expected, observation.data, claim["source"]))
    return judged


def _read_exponent(text: str, observation: Observation) -> str | Fraction | None:
    """Returns the exponent that a text claims: a fraction, or None for ``zero``.

    The text ``derived`` stands for the exponent of the observation's theory. A text that claims a bound (``> 0.98``,
    ``below -6``) is returned unchanged.
    """
    if text[0] in "<>b":
        return text
    return {"derived": observation.derived, "zero": None}[text] if text.isalpha() else Fraction(text)


def _judge_claim(claimed: str | Fraction | None, observation: Observation) -> tuple[str, float, float, float, Verdict]:
    """Compares a claim with the measured values.

    Args:
        claimed: an exponent, None for exactly zero, or the text of a bound (``> 0.98``, ``below -6``).
        observation: the measured values.

    Returns:
        The claim as text, the measured value, both ends of its interval, and the verdict.
    """
    if not isinstance(claimed, str):
        slope = fit_exponent(observation.n, observation.values)
        verdict = judge_exponent(slope, claimed, observation.spacing)
        return find_power(claimed, observation.of), slope.slope, slope.low, slope.high, verdict
    sign, _, text = claimed.partition(" ")
    limit, few = float(Fraction(text)), min(map(len, observation.values)) < MIN_SEEDS
    if sign == "below":  # least squares through the logarithms of the medians over seeds
        weights = compute_slope_weights(observation.n)
        value, _, low, high = estimate_by_bootstrap(
            observation.values, lambda medians: weights @ np.log2(np.stack(medians)), centre=weighted_median
        )
        few, claimed = few or len(observation.n) < MIN_SIZES, f"below {find_power(Fraction(text))}"
    else:
        (values,) = observation.values
        value = float(np.mean(values))
        reach = nan if few else float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))
        low, high = value - reach, value + reach
    if few:
        low = high = nan
    region = Acceptance(limit, inf) if sign == ">" else Acceptance(-inf, limit)
    return claimed, value, low, high, region.verdict(low, high)


def find_power(e: Fraction | None, of: str = "n") -> str:
    """Formats an exponent as a power such as ``n^(-1/2)`` or ``n^0``, and None (the size is exactly zero) as ``zero``.
    ``of`` is the symbol of the base.
    """
    if e is None:
        return "zero"
    return f"{of}^{e}" if e.denominator == 1 else f"{of}^({e})"
