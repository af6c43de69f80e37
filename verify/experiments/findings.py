"""What an experiment says: a claim, what was measured, the verdict, and the verdict there must be.

Two kinds of claims: an exponent of n (judged by ``fit.judge_exponent``), and a bound on a number that has one value per
seed (judged by where its 95 % interval lies). A published or planted claim that contradicts the prediction must be
refuted: it is the experiment's negative control.
Read next: ``routers.py``, ``epsilon.py`` and ``clusters.py`` (experiments), ``registry.py`` (runs them).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Any

import numpy as np
from scipy import stats

from scaling_algebra.verify.judging.fit import MIN_SEEDS, MIN_SIZES, RESAMPLES, Array, Fit, Verdict, judge_exponent
from scaling_algebra.verify.judging.report import number


class By(StrEnum):
    """Who claims it: the prediction, a paper, or the experiment itself, as a control that must fail."""

    PREDICTED = "predicted"
    PUBLISHED = "published"
    PLANTED = "planted"


@dataclass(frozen=True)
class Finding:
    """One claim and its verdict.

    Attributes:
        quantity: what it is about; ``@t`` is after t updates.
        by: who claims it.
        claimed: the claim, such as ``n^(-1/2)`` or ``> 0.99``.
        measured, low, high: slope, or mean over seeds, with its 95 % interval; NaN where there is none.
        verdict: what the measurement says about the claim.
        expected: what it must say: AGREES if the claim is the prediction, else REFUTED.
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
        return {
            "quantity": self.quantity,
            "by": str(self.by),
            "claimed": self.claimed,
            "measured": number(self.measured),
            "ci": [number(self.low), number(self.high)],
            "verdict": str(self.verdict),
            "expected": str(self.expected),
            "data": self.data,
            "source": self.source,
        }


def restored(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a finding, as JSON kept them."""
    kinds = {"by": By, "verdict": Verdict, "expected": Verdict}
    return {name: kinds[name](value) if name in kinds else value for name, value in fields.items()}


@dataclass(frozen=True)
class Plan:
    """How to run a trial.

    Attributes:
        device: ``cpu`` or ``cuda``.
        sizes: values of n; empty where the experiment has a fixed size.
        seeds: replicas at every size.
        say: told what is being trained, as an addition to the title of the trial.
    """

    device: str
    sizes: tuple[int, ...]
    seeds: int
    say: Callable[[str], None] = lambda what: None


@dataclass(frozen=True)
class Trial:
    """One configuration of an experiment, or a few that are compared with each other."""

    title: str
    run: Callable[[Plan], list[Finding]]


@dataclass(frozen=True)
class Experiment:
    """Trials that answer one question.

    Attributes:
        sizes, seeds: defaults, together some minutes on two cores; no sizes where the size is fixed.
    """

    name: str
    title: str
    source: str
    trials: tuple[Trial, ...]
    sizes: tuple[int, ...]
    seeds: int


def exponent(
    quantity: str,
    measured: Fit,
    claimed: Fraction | None,
    predicted: Fraction | None,
    by: By,
    source: str,
    sizes: Sequence[float],
    spacing: Fraction = Fraction(1, 2),
    of: str = "n",
) -> Finding:
    """A claimed exponent (None: exactly zero) of n, or of another number; it must be refuted unless it is predicted."""
    return Finding(
        quantity,
        by,
        power(claimed, of),
        measured.slope,
        measured.low,
        measured.high,
        judge_exponent(measured, claimed, spacing),
        Verdict.AGREES if claimed == predicted else Verdict.REFUTED,
        _data(sizes, measured.seeds, of),
        source,
    )


def bound(
    quantity: str, values: Array, sign: str, limit: float, source: str, by: By = By.PREDICTED, wrong: bool = False
) -> Finding:
    """A claim that the mean over seeds is above (``>``) or below (``<``) a limit; a planted one must be refuted.

    Args:
        values: one number per seed. The interval of their mean is Student's.
        wrong: a published claim that contradicts the prediction, so that it must be refuted.
    """
    mean, few = float(np.mean(values)), len(values) < MIN_SEEDS
    reach = float("nan") if few else float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))
    low, high = mean - reach, mean + reach
    expected = Verdict.REFUTED if wrong or by is By.PLANTED else Verdict.AGREES
    verdict = judge_bound(low, high, sign, limit)
    return Finding(
        quantity, by, f"{sign} {limit:g}", mean, low, high, verdict, expected, f"{len(values)} seeds", source
    )


def steeper(quantity: str, n: Sequence[float], values: Sequence[Array], limit: Fraction, source: str) -> Finding:
    """A claim that the median over seeds falls faster than ``n^limit``, where no power of n is predicted.

    The slope is least squares through the logarithms of the medians, its interval a bootstrap over seeds.
    """
    x = np.log2(np.asarray(n, dtype=np.float64))
    x = (x - x.mean()) / np.sum((x - x.mean()) ** 2)

    def slope(*drawn: Array, axis: int = -1) -> Array:
        found: Array = np.tensordot(x, np.log2([np.median(v, axis=axis) for v in drawn]), 1)
        return found

    low = high = float("nan")
    if len(n) >= MIN_SIZES and min(map(len, values)) >= MIN_SEEDS:
        found = stats.bootstrap(tuple(values), slope, n_resamples=RESAMPLES, method="percentile", rng=20240)
        low, high = map(float, found.confidence_interval)
    verdict, claimed = judge_bound(low, high, "<", float(limit)), f"below {power(limit)}"
    seen, data = float(slope(*values)), _data(n, min(map(len, values)))
    return Finding(quantity, By.PREDICTED, claimed, seen, low, high, verdict, Verdict.AGREES, data, source)


def judge_bound(low: float, high: float, sign: str, limit: float) -> Verdict:
    """Where an interval lies: on the claimed side of the limit, on the other, or on both (or NaN): INCONCLUSIVE."""
    below, above = high < limit, low > limit
    if not (below or above):
        return Verdict.INCONCLUSIVE
    return Verdict.AGREES if (below if sign == "<" else above) else Verdict.REFUTED


def _data(sizes: Sequence[float], seeds: int, of: str = "n") -> str:
    return f"{of} = {min(sizes):g} to {max(sizes):g}, {seeds} seeds"


def power(e: Fraction | None, of: str = "n") -> str:
    """``n^(-1/2)``, ``n^0``, or ``zero`` for None."""
    if e is None:
        return "zero"
    return f"{of}^{e}" if e.denominator == 1 else f"{of}^({e})"
