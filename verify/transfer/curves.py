"""What sweeps of learning rates prove: pure functions on losses.

The optimum of a curve is the vertex of the parabola through its best point and the two beside it, in log2 of the
learning rate. Losses are compared as factors, in log2, each at its own best learning rate, seed by seed, because equal
seeds see equal batches. Errors are bootstrapped over seeds. Two things prove nothing and make a verdict INCONCLUSIVE:
an optimum on the edge of its grid, and a comparison whose negative control (a parameterization that is defined, not
derived) does not drift.
Read next: ``sweep.py`` (trains), ``study.py`` (reports).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from scaling_algebra.verify.judging.fit import MIN_SEEDS, MIN_SIZES, Array
from scaling_algebra.verify.judging.resampling import Estimate, resampled, slope_weights
from scaling_algebra.verify.networks.scales import Dims

OPEN = "INCONCLUSIVE"
UNKNOWN = Estimate(*(math.nan,) * 4)


class Question(NamedTuple):
    """What a change of zero, below or above zero is called.

    Attributes:
        none: what counts as none. certain: an interval beyond this is a change, however small.
    """

    words: tuple[str, str, str]
    none: float
    certain: float
    tolerance: str


DRIFT = Question(("DRIFTS", "TRANSFERS", "DRIFTS"), 0.25, 0.25, "0.25")
"""Of log2 of the best rate per doubling of the width: exponents are multiples of 1/2, so a tolerance of 1/4 is half way
to the nearest wrong one."""
SCALE = Question(("IMPROVES", "STALLS", "WORSENS"), math.log2(1.05), 0.0, "5%")
"""Of log2 of the best loss per doubling of the width."""
RANK = Question(("BETTER", "EQUAL", "WORSE"), math.log2(1.05), 0.0, "5%")
"""Of log2 of the best loss of one parameterization over that of another at one width."""


@dataclass(frozen=True)
class LossCurve:
    """Loss against learning rate at one width.

    Attributes:
        width, dims, parameters: of the network.
        log2_lr: learning rates in increasing order, shape (R,).
        losses: loss late in training, nats, shape (R, seeds); a run that diverges has the loss of its start.
        held: loss on held-out data after training, shape (R, seeds), not finite where a run diverged.
    """

    width: int
    dims: Dims
    parameters: int
    log2_lr: tuple[float, ...]
    losses: Array
    held: Array

    @property
    def best(self) -> int:
        """Index of the rate with the smallest mean loss."""
        return int(self.losses.mean(axis=1).argmin())

    @property
    def edge(self) -> int:
        """-1 or 1 where the smallest mean loss lies at the lower or upper end of the grid, 0 inside."""
        return {0: -1, len(self.log2_lr) - 1: 1}.get(self.best, 0)


@dataclass(frozen=True)
class Optimum:
    """The best learning rate at one width.

    Attributes:
        log2_lr: log2 of the best rate. se, low, high: bootstrap standard error and 95 % interval over seeds.
        loss, loss_se: smallest mean loss on the grid, and its standard error over seeds. held: held-out loss there.
        edge: -1 or 1 where the best point, or an end of the interval, is the first or last rate of the grid, so that
            the optimum is not known.
    """

    width: int
    log2_lr: float
    se: float
    low: float
    high: float
    loss: float
    loss_se: float
    held: float
    edge: int
    seeds: int


@dataclass(frozen=True)
class Change:
    """A slope or ratio in log2, over the widths in ``used``, with the verdict and one line why."""

    estimate: Estimate
    used: tuple[int, ...]
    verdict: str
    why: str


def vertex(log2_lr: Sequence[float], losses: Array) -> Array:
    """Minimum of the parabola through the best point and its neighbours, (R, ...) -> (...); R evenly spaced rates.

    With y-, y0, y+ around the best x0: x0 + spacing (y- - y+) / (2 (y- - 2 y0 + y+)). On the edge, the best point.
    """
    x = np.asarray(log2_lr, dtype=np.float64)
    best = losses.argmin(axis=0)
    inner = np.clip(best, 1, len(x) - 2)
    below, at, above = (np.take_along_axis(losses, (inner + k)[None], axis=0)[0] for k in (-1, 0, 1))
    bend = below - 2 * at + above
    shift = (x[1] - x[0]) * (below - above) / (2 * np.where(bend > 0, bend, np.inf))
    minimum: Array = x[best] + np.where(best == inner, shift, 0.0)
    return minimum


def optimum(curve: LossCurve) -> Optimum:
    """The best rate of one curve, with its error."""
    rate = resampled([curve.losses], lambda drawn: vertex(curve.log2_lr, drawn[0].mean(axis=-1)))
    best, seeds = curve.losses[curve.best], curve.losses.shape[1]
    spread = float(best.std(ddof=1) / seeds**0.5) if seeds > 1 else math.nan
    ends = (rate.high >= curve.log2_lr[-1], rate.low <= curve.log2_lr[0])
    edge = curve.edge or {(True, False): 1, (False, True): -1}.get(ends, 0)
    held = float(curve.held[curve.best].mean())
    return Optimum(curve.width, *rate, float(best.mean()), spread, held, edge, seeds)


def drift(curves: Sequence[LossCurve]) -> Change:
    """Change of log2 of the best rate per doubling of the width: one curve per width.

    TRANSFERS: the interval lies within the tolerance of no drift. DRIFTS: it lies outside, on one side. INCONCLUSIVE:
    anything else, and whenever a width has its optimum on the edge of its grid, or widths or seeds are too few.
    """
    optima = [optimum(c) for c in curves]
    inside = [c for c, o in zip(curves, optima, strict=True) if not o.edge]
    used = tuple(c.width for c in inside)
    if len(inside) < 2:
        return Change(UNKNOWN, used, OPEN, "fewer than two widths have their optimum inside the grid")
    weights = slope_weights(used)

    def slope(drawn: Sequence[Array]) -> Array:
        rates = [vertex(c.log2_lr, losses.mean(axis=-1)) for c, losses in zip(inside, drawn, strict=True)]
        return np.asarray(np.tensordot(weights, np.stack(rates), 1))

    why = few(curves, len(inside))
    if outside := ", ".join(str(o.width) for o in optima if o.edge):
        why = f"the optimum may lie on the edge of the grid at width {outside}"
    return _change(resampled([c.losses for c in inside], slope), used, DRIFT, why)


def improvement(curves: Sequence[LossCurve]) -> Change:
    """Change of log2 of the best loss per doubling, from the middle width on, where a stall would be.

    IMPROVES, WORSENS: the interval of the slope lies below 0, above 0. STALLS: it holds 0, within the tolerance.
    INCONCLUSIVE: it holds 0 and is wider, or widths or seeds are too few, or a best loss lies on the edge of its grid.
    """
    top = curves[max(0, len(curves) - 1) // 2 :]
    used = tuple(c.width for c in top)
    if len(top) < 2:
        return Change(UNKNOWN, used, OPEN, "one width shows no change")
    return _change(growth(top), used, SCALE, few(curves, len(curves)) or _at_edge(top))


def growth(curves: Sequence[LossCurve]) -> Estimate:
    """Least-squares slope of log2 of the best loss per doubling, over all these widths."""
    if len(curves) < 2:
        return UNKNOWN
    weights = slope_weights([c.width for c in curves])
    return resampled([c.losses for c in curves], lambda drawn: np.tensordot(weights, _lowest(drawn), 1), paired=True)


def compare(one: LossCurve, other: LossCurve) -> Change:
    """log2 of the best loss of one parameterization over that of another, at the same width and seeds.

    BETTER, WORSE: the interval lies below 0, above 0. EQUAL: it holds 0 and lies within the tolerance. INCONCLUSIVE: it
    holds 0 and is wider, or seeds are too few, or a best loss lies on the edge of its grid.
    """

    def ratio(drawn: Sequence[Array]) -> Array:
        first, second = _lowest(drawn)
        return np.asarray(first - second)

    seeds = _seeds((one, other))
    why = f"{seeds} seeds; at least {MIN_SEEDS} needed" if seeds < MIN_SEEDS else _at_edge((one, other))
    return _change(resampled([one.losses, other.losses], ratio, paired=True), (one.width,), RANK, why)


def overall(derived: Sequence[str], controls: Sequence[str]) -> str:
    """The verdict on the derived parameterizations, given those of the negative controls run beside them.

    Without derived ones the controls are judged themselves. A control that does not drift shows that this experiment
    cannot see a drift: INCONCLUSIVE, unless a derived one drifts anyway.
    """
    judged = derived or controls
    if "DRIFTS" in judged:
        return "DRIFTS"
    blind = bool(derived) and any(v != "DRIFTS" for v in controls)
    return OPEN if blind or OPEN in judged or not judged else "TRANSFERS"


def few(curves: Sequence[LossCurve], widths: int) -> str:
    """Why widths or seeds are too few; empty where they are not."""
    seeds = _seeds(curves)
    if widths >= MIN_SIZES and seeds >= MIN_SEEDS:
        return ""
    return f"{widths} widths and {seeds} seeds; at least {MIN_SIZES} and {MIN_SEEDS} needed"


def _change(estimate: Estimate, used: tuple[int, ...], asked: Question, unknown: str) -> Change:
    """Lower, none, higher or open; ``unknown`` says why nothing can be known."""
    lower, none, higher = asked.words
    what = "drift" if asked is DRIFT else "change"
    beyond = "outside 0.25 of no drift" if asked is DRIFT else "on one side of no change"
    if unknown:
        return Change(estimate, used, OPEN, unknown)
    if estimate.high < -asked.certain or estimate.low > asked.certain:
        return Change(estimate, used, lower if estimate.high < 0 else higher, f"the interval lies {beyond}")
    if max(-estimate.low, estimate.high) <= asked.none:
        return Change(estimate, used, none, f"the interval lies within {asked.tolerance} of no {what}")
    across = "across 0.25 of no drift" if asked is DRIFT else f"from no change beyond {asked.tolerance}"
    return Change(estimate, used, OPEN, f"the interval reaches {across}")


def _lowest(drawn: Sequence[Array]) -> Array:
    """log2 of the smallest mean loss of each curve, (curves, ...)."""
    return np.log2(np.stack([losses.mean(axis=-1).min(axis=0) for losses in drawn]))


def _seeds(curves: Sequence[LossCurve]) -> int:
    return min((c.losses.shape[1] for c in curves), default=0)


def _at_edge(curves: Sequence[LossCurve]) -> str:
    """Why the best losses are not known; empty where they are."""
    outside = dict.fromkeys(str(c.width) for c in curves if c.edge)
    return f"the smallest loss lies on the edge of the grid at width {', '.join(outside)}" if outside else ""
