"""Where the loss is smallest, how that drifts with width, and what it proves: pure functions on numbers.

The optimum of a curve is the vertex of the parabola through its best point and the two beside it, in log2 of the
learning rate. Errors are bootstrapped over seeds. Two things prove nothing and make a verdict INCONCLUSIVE: an optimum
on the edge of its grid, and a comparison whose negative control (a parameterization that is defined, not derived) does
not drift.
Read next: ``improvement.py`` (how low the loss is there), ``sweep.py`` (trains), ``study.py`` (reports).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from scaling_algebra.verify.judging.fit import MIN_SEEDS, MIN_SIZES, Array
from scaling_algebra.verify.networks.scales import Dims

from .resampling import resampled, slope_weights

TOLERANCE = 0.25
"""Drift of log2 of the optimal rate per doubling of the width that still counts as none: exponents are multiples of
1/2, so this is half way to the nearest wrong one."""


class Transfer(StrEnum):
    """Does the optimal learning rate stay where it is when the network grows?"""

    TRANSFERS = "TRANSFERS"
    DRIFTS = "DRIFTS"
    INCONCLUSIVE = "INCONCLUSIVE"


@dataclass(frozen=True)
class Curve:
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
    def mean(self) -> Array:
        """Mean over seeds, (R,)."""
        found: Array = self.losses.mean(axis=1)
        return found

    @property
    def edge(self) -> int:
        """-1 or 1 where the smallest mean loss lies at the lower or upper end of the grid, 0 inside."""
        best = int(self.mean.argmin())
        return -1 if best == 0 else 1 if best == len(self.log2_lr) - 1 else 0


@dataclass(frozen=True)
class Optimum:
    """The best learning rate at one width.

    Attributes:
        width: of the network.
        log2_lr: log2 of the best rate. se, low, high: bootstrap standard error and 95 % interval over seeds.
        loss, loss_se: smallest mean loss on the grid, and its standard error over seeds. held: held-out loss there.
        edge: -1 or 1 where the best point, or an end of the interval, is the first or last rate of the grid, so that
            the optimum is not known.
        seeds: how many.
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
class Drift:
    """How the optimum moves: change of log2 of the best rate per doubling of the width, over the widths in ``used``.

    Attributes:
        slope, se, low, high: least squares, bootstrap standard error and 95 % interval; NaN where too little is known.
        why: one line for reports.
    """

    slope: float
    se: float
    low: float
    high: float
    used: tuple[int, ...]
    verdict: Transfer
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
    found: Array = x[best] + np.where(best == inner, shift, 0.0)
    return found


def optimum(curve: Curve) -> Optimum:
    """The best rate of one curve, with its error."""
    found, se, low, high = resampled([curve.losses], lambda means: _optima([curve], means)[0])
    at = int(curve.mean.argmin())
    best, held = curve.losses[at], float(curve.held[at].mean())
    seeds = len(best)
    spread = float(best.std(ddof=1) / seeds**0.5) if seeds > 1 else float("nan")
    edge = curve.edge or int(high >= curve.log2_lr[-1]) - int(low <= curve.log2_lr[0])
    return Optimum(curve.width, found, se, low, high, float(best.mean()), spread, held, edge, seeds)


def drift(curves: Sequence[Curve]) -> Drift:
    """How the optimum of these curves (one per width) moves, and the verdict.

    TRANSFERS: the interval lies within ``TOLERANCE`` of no drift. DRIFTS: it lies outside, on one side. INCONCLUSIVE:
    anything else, and whenever a width has its optimum on the edge of its grid, or widths or seeds are too few.
    """
    optima = [optimum(c) for c in curves]
    inside = [c for c, o in zip(curves, optima, strict=True) if not o.edge]
    used = tuple(c.width for c in inside)
    seeds = min((c.losses.shape[1] for c in curves), default=0)
    nan = float("nan")
    if len(inside) < 2:
        why = "fewer than two widths have their optimum inside the grid"
        return Drift(nan, nan, nan, nan, used, Transfer.INCONCLUSIVE, why)
    weights = slope_weights(used)
    found = resampled([c.losses for c in inside], lambda means: np.tensordot(weights, _optima(inside, means), 1))
    slope, se, low, high = found
    verdict, why = _verdict(low, high)
    if len(inside) < len(curves):
        outside = ", ".join(str(o.width) for o in optima if o.edge)
        verdict, why = Transfer.INCONCLUSIVE, f"the optimum may lie on the edge of the grid at width {outside}"
    elif len(inside) < MIN_SIZES or seeds < MIN_SEEDS:
        few = f"{len(inside)} widths and {seeds} seeds; at least {MIN_SIZES} and {MIN_SEEDS} needed"
        verdict, why = Transfer.INCONCLUSIVE, few
    return Drift(slope, se, low, high, used, verdict, why)


def overall(derived: Sequence[Transfer], controls: Sequence[Transfer]) -> Transfer:
    """The verdict on the derived parameterizations, given those of the negative controls run beside them.

    Without derived ones the controls are judged themselves. A control that does not drift shows that this experiment
    cannot see a drift: INCONCLUSIVE, unless a derived one drifts anyway.
    """
    judged = derived or controls
    if Transfer.DRIFTS in judged:
        return Transfer.DRIFTS
    blind = bool(derived) and any(v != Transfer.DRIFTS for v in controls)
    return Transfer.INCONCLUSIVE if blind or Transfer.INCONCLUSIVE in judged or not judged else Transfer.TRANSFERS


def _verdict(low: float, high: float) -> tuple[Transfer, str]:
    if max(-low, high) <= TOLERANCE:
        return Transfer.TRANSFERS, f"the interval lies within {TOLERANCE:g} of no drift"
    if high < -TOLERANCE or low > TOLERANCE:
        return Transfer.DRIFTS, f"the interval lies outside {TOLERANCE:g} of no drift"
    return Transfer.INCONCLUSIVE, f"the interval reaches across {TOLERANCE:g} of no drift"


def _optima(curves: Sequence[Curve], means: Sequence[Array]) -> Array:
    """log2 of the best rate of each curve, (curves, ...)."""
    return np.stack([vertex(c.log2_lr, mean) for c, mean in zip(curves, means, strict=True)])
