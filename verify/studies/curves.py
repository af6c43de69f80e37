"""Verdicts on sweeps of learning rates, as pure functions of losses.

The optimum of a curve is that of ``judging.optima``, in log2 of the learning rate. Losses are compared as factors, in
log2, each at its own best learning rate, seed by seed because equal seeds see equal batches; their errors are
bootstrapped over seeds. Two things prove nothing and make a verdict INCONCLUSIVE: an optimum at the edge of its grid,
and a comparison whose negative control (a parameterization that is defined, not derived) does not drift.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from scaling_algebra.errors import count_noun
from scaling_algebra.verify.judging.fit import MIN_SEEDS, MIN_SIZES, Array
from scaling_algebra.verify.judging.optima import find_best_rates, find_vertex
from scaling_algebra.verify.judging.regions import Acceptance, ClaimOutcome, Named, name_outcome
from scaling_algebra.verify.judging.resampling import (
    LEVEL,
    RESAMPLES,
    Estimate,
    compute_slope_weights,
    estimate_by_bootstrap,
)
from scaling_algebra.verify.networks.scales import Dims

UNKNOWN = Estimate(*(math.nan,) * 4)


@dataclass(frozen=True)
class Change:
    """A measured change of a loss or of the best learning rate, in log2, with its verdict.

    Attributes:
        estimate: the change with its confidence interval.
        used: the widths from which it was computed.
        verdict: the verdict.
        why: the reason for the verdict, in one line.
    """

    estimate: Estimate
    used: tuple[int, ...]
    verdict: ClaimOutcome
    why: str


@dataclass(frozen=True)
class Question:
    """A question about a change, such as whether the best learning rate drifts, with the rule that answers it.

    Attributes:
        named: pairs (verdict, region): the verdict is given if the confidence interval of the change lies in the
            region.
        small: the tolerance in words, such as "a drift by 0.25 is small".
    """

    named: Named
    small: str

    def judge(self, estimate: Estimate, used: Sequence[int], unknown: str) -> Change:
        """Judges a change by its confidence interval.

        Args:
            estimate: the change with its interval.
            used: the widths from which it was computed.
            unknown: a reason why there can be no verdict, which makes it INCONCLUSIVE; or empty.
        """
        verdict = ClaimOutcome.INCONCLUSIVE if unknown else name_outcome(self.named, estimate.low, estimate.high)
        where = "in none of the regions" if verdict is ClaimOutcome.INCONCLUSIVE else f"in the region of {verdict}"
        return Change(estimate, tuple(used), verdict, unknown or f"the interval lies {where}; {self.small}")


def _judge_losses(below: ClaimOutcome, about: ClaimOutcome, above: ClaimOutcome) -> Question:
    """Returns the rule that judges a change of log2 of a loss by its confidence interval.

    Args:
        below: verdict if the interval lies below 0, so that the loss falls, however little.
        about: verdict if the interval contains 0 and no change by more than 5 %.
        above: verdict if the interval lies above 0.
    """
    none = Acceptance(-math.log2(1.05), math.log2(1.05))
    named = (below, Acceptance(-math.inf, 0)), (above, Acceptance(0, math.inf)), (about, none)
    return Question(named, "a change by 5% is small")


DRIFT = Question(
    (
        (ClaimOutcome.TRANSFERS, Acceptance(-0.25, 0.25)),
        (ClaimOutcome.DRIFTS, Acceptance(-math.inf, -0.25)),
        (ClaimOutcome.DRIFTS, Acceptance(0.25, math.inf)),
    ),
    "a drift by 0.25 is small",
)
"""Change of log2 of the best rate per doubling of the width. Exponents are multiples of 1/2, so a tolerance of 1/4
is half the distance to the nearest wrong one."""
SCALE = _judge_losses(ClaimOutcome.IMPROVES, ClaimOutcome.STALLS, ClaimOutcome.WORSENS)
"""Change of log2 of the best loss per doubling of the width."""
RANK = _judge_losses(ClaimOutcome.BETTER, ClaimOutcome.EQUAL, ClaimOutcome.WORSE)
"""log2 of the ratio of the best losses of two parameterizations at one width."""


@dataclass(frozen=True)
class LossCurve:
    """Loss against learning rate at one width.

    Attributes:
        width: width of the network.
        dims: sizes of all axes.
        parameters: number of parameters.
        log2_lr: log2 of the learning rates in increasing order, shape (R,).
        losses: losses to judge, shape (R, seeds): the held-out loss, or that of the first batch if the held-out loss is
            larger or the training diverged.
        held: held-out losses, shape (R, seeds), not finite if the training diverged.
    """

    width: int
    dims: Dims
    parameters: int
    log2_lr: tuple[float, ...]
    losses: Array
    held: Array

    @property
    def seeds(self) -> int:
        return self.losses.shape[1]

    @property
    def best(self) -> int:
        """Index of the learning rate with the smallest mean loss over seeds."""
        return int(self.losses.mean(axis=1).argmin())

    @property
    def loss(self) -> tuple[float, float, float]:
        """The smallest mean loss, its standard error over seeds, and the mean held-out loss at the same rate."""
        best = self.losses[self.best]
        error = float(best.std(ddof=1) / self.seeds**0.5) if self.seeds > 1 else math.nan
        return float(best.mean()), error, float(self.held[self.best].mean())

    @property
    def diverged(self) -> list[float]:
        """log2 of the rates at which the training of some seed diverged."""
        return [x for x, held in zip(self.log2_lr, self.held, strict=True) if not np.isfinite(held).all()]

    def mean_at(self, log2: float) -> float:
        """Returns the mean loss at log2 of a rate, NaN if the rate was not trained."""
        return float(self.losses[self.log2_lr.index(log2)].mean()) if log2 in self.log2_lr else math.nan

    @cached_property
    def optimum(self) -> Estimate:
        """log2 of the best rate, with its interval clipped to the grid."""
        found = find_optimum([self], np.ones(1))
        return found._replace(low=max(found.low, self.log2_lr[0]), high=min(found.high, self.log2_lr[-1]))

    @property
    def edge(self) -> int:
        """-1 or 1 if the smallest mean loss lies at the lower or upper end of the grid of rates, 0 if it lies
        inside.
        """
        return {0: -1, len(self.log2_lr) - 1: 1}.get(self.best, 0)

    @cached_property
    def unknown(self) -> int:
        """Whether the grid of rates ends too early for the optimum to be known, and where.

        -1 or 1 if the smallest mean loss, or an end of the optimum's interval over seeds, lies at the lower or upper
        end of the grid; 0 if not, or if the interval covers the whole grid.
        """
        _, _, low, high = find_optimum([self], np.ones(1), exact=False)
        ends = (high >= self.log2_lr[-1], low <= self.log2_lr[0])
        return self.edge or {(True, False): 1, (False, True): -1}.get(ends, 0)


def find_optimum(curves: Sequence[LossCurve], weights: Array, exact: bool = True) -> Estimate:
    """Estimates a weighted sum of log2 of the best learning rates of several curves, such as their slope against width,
    with a confidence interval.

    Args:
        curves: the curves.
        weights: weight of each curve.
        exact: whether the interval also covers two further errors: the form of the curves is unknown, and their noise
            is estimated from few seeds.
    """
    rates = [(np.array(c.log2_lr), c.losses) for c in curves]
    if min(c.seeds for c in curves) == 1:
        return Estimate(float(weights @ [find_vertex(x, y.mean(axis=1)) for x, y in rates]), *(math.nan,) * 3)
    best = find_best_rates(rates, LEVEL, RESAMPLES)
    value, noise, left = (weights @ part for part in best[:3])
    low, high = np.percentile(
        value + (best.wide * noise + left if exact else noise), [50 * (1 - LEVEL), 50 * (1 + LEVEL)]
    )
    return Estimate(float(value), float(np.std(noise + left)), float(low), float(high))


def measure_drift(curves: Sequence[LossCurve]) -> Change:
    """Estimates the change of log2 of the best rate per doubling of the width, given one curve per width.

    TRANSFERS: the interval lies within the tolerance of no drift. DRIFTS: it lies outside, on one side. INCONCLUSIVE:
    anything else, and whenever the optimum of some width lies at the edge of its grid, or widths or seeds are too few.
    """
    inside = [c for c in curves if not c.unknown]
    used = [c.width for c in inside]
    if len(inside) < 2:
        return DRIFT.judge(UNKNOWN, used, "fewer than two widths have their optimum inside the grid")
    unknown = describe_shortage(curves, len(inside))
    if outside := ", ".join(str(c.width) for c in curves if c.unknown):
        unknown = f"the optimum may lie on the edge of the grid at width {outside}"
    return DRIFT.judge(find_optimum(inside, compute_slope_weights(used)), used, unknown)


def measure_improvement(curves: Sequence[LossCurve]) -> Change:
    """Estimates the change of log2 of the best loss per doubling, from the middle width on, where a stall would be
    visible.

    IMPROVES, WORSENS: the interval of the slope lies below 0, above 0. STALLS: it contains 0 and lies within the
    tolerance. INCONCLUSIVE: it contains 0 and is wider, or widths or seeds are too few, or a best loss lies at the edge
    of its grid.
    """
    top = curves[max(0, len(curves) - 1) // 2 :]
    unknown = (
        describe_shortage(curves, len(curves)) or _explain_edge(top)
        if len(top) > 1
        else "a change needs at least two widths"
    )
    widths, slope = [c.width for c in top], UNKNOWN
    if len(top) > 1:
        slope = estimate_by_bootstrap(
            [c.losses for c in top], lambda means: compute_slope_weights(widths) @ _find_lowest(means), paired=True
        )
    return SCALE.judge(slope, widths, unknown)


def compare(curve: LossCurve, reference: LossCurve) -> Change:
    """Compares the best loss of one parameterization with that of another, at the same width and seeds, as log2 of the
    ratio.

    BETTER, WORSE: the interval lies below 0, above 0. EQUAL: it contains 0 and lies within the tolerance. INCONCLUSIVE:
    it contains 0 and is wider, or seeds are too few, or a best loss lies at the edge of its grid.
    """
    seeds = min(curve.seeds, reference.seeds)
    few = f"{count_noun(seeds, 'seed')}; at least {MIN_SEEDS} needed"
    unknown = few if seeds < MIN_SEEDS else _explain_edge((curve, reference))
    ratio = estimate_by_bootstrap(
        [curve.losses, reference.losses], lambda means: np.subtract(*_find_lowest(means)), paired=True
    )
    return RANK.judge(ratio, [curve.width], unknown)


def measure_regret(curve: LossCurve, log2: float) -> Estimate:
    """Returns by how many nats the loss at the rate 2^``log2`` exceeds the smallest loss of the curve, with an
    interval; NaN if this rate was not trained.
    """
    if log2 not in curve.log2_lr:
        return UNKNOWN
    at = curve.log2_lr.index(log2)
    return estimate_by_bootstrap([curve.losses], lambda means: means[0][at] - means[0].min(axis=0))


def combine_outcomes(derived: Sequence[ClaimOutcome], controls: Sequence[ClaimOutcome]) -> ClaimOutcome:
    """Returns one verdict on whether the best learning rate transfers with the derived parameterizations.

    A negative control that does not drift shows that this experiment cannot detect a drift; the verdict is then
    INCONCLUSIVE, unless a derived parameterization drifts anyway.

    Args:
        derived: the verdict on the drift with each derived parameterization; if there is none, the controls are judged
            in their place.
        controls: the verdict on the drift with each negative control.
    """
    judged = derived or controls
    if ClaimOutcome.DRIFTS in judged:
        return ClaimOutcome.DRIFTS
    blind = bool(derived) and any(v != ClaimOutcome.DRIFTS for v in controls)
    return (
        ClaimOutcome.INCONCLUSIVE
        if blind or ClaimOutcome.INCONCLUSIVE in judged or not judged
        else ClaimOutcome.TRANSFERS
    )


def describe_shortage(curves: Sequence[LossCurve], widths: int) -> str:
    """Explains why the number of widths (``widths``), or that of the seeds of some curve, is too small for a verdict;
    returns an empty text if both suffice.
    """
    seeds = min((c.seeds for c in curves), default=0)
    if widths >= MIN_SIZES and seeds >= MIN_SEEDS:
        return ""
    return f"{count_noun(widths, 'width')} and {count_noun(seeds, 'seed')}; at least {MIN_SIZES} and {MIN_SEEDS} needed"


def _find_lowest(means: Sequence[Array]) -> Array:
    """Returns log2 of the smallest mean loss of each curve, (curves, ...), given its mean losses, (rates, ...)."""
    return np.log2(np.stack([losses.min(axis=0) for losses in means]))


def _explain_edge(curves: Sequence[LossCurve]) -> str:
    """Explains why the best losses are not known: at some width the smallest one lies at the edge of the grid. Returns
    an empty text otherwise.
    """
    outside = dict.fromkeys(str(c.width) for c in curves if c.edge)
    return f"the smallest loss lies on the edge of the grid at width {', '.join(outside)}" if outside else ""
