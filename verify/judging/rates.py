"""Fits the best learning rate of runs by a product of powers of their sizes: width, tokens, batch, or others.

The best rate of every setting (one combination of sizes) is the minimum of a curve through its losses; its log is
fitted by weighted least squares. Intervals are percentiles over fits to resampled runs. Needs statsmodels, no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats
from statsmodels.regression.linear_model import WLS
from statsmodels.tools.tools import add_constant

from scaling_algebra.errors import UsageError

from .laws import ALONG, CERTAIN, LOSS, RATE, Columns, Fitted, add_intervals
from .optima import BESIDE, find_best_rates, fit_polynomial
from .regions import Verdict
from .resampling import LEVEL, RESAMPLES, Array

UNLIKELY = 0.002
"""p-value below which the best rates are taken to follow no single power.

The chances are those of normal errors, which few settings do not have. On the designs of
``tests/verify/test_fit_rates.py`` with seeds it was not chosen on, 8 of 300 true laws are called broken (4 at 0.0005),
and of laws that break at a batch 100 of 100 are found at a noise of 0.002, 29 of 30 at 0.005 (24 at 0.0005)."""
PRIOR, KNOTS = 4, 5
"""Weight, in runs, of the median noise of all settings in the noise of one setting; and the maximum number of sizes
at which a change of the power is tried."""
SIZE = "size"
"""Name of the column of sizes if none is given."""
MORE = {"smallest": "smaller ones", "largest": "larger ones, or some between it and those that diverged"}
"""Which rates to try if the best one is the smallest or the largest."""
Setting = tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class FittedRates(Fitted):
    """The best learning rate of every setting (combination of sizes), fitted by a product of powers of the sizes.

    Attributes:
        sizes: names of the columns of sizes, in the order of the powers.
        powers: names of the powers.
        covariance: covariance matrix of the powers over fits to resampled runs, (sizes, sizes).
        settings: the sizes of every best rate, (settings, sizes).
        best: log of the best rate of every setting, (settings,).
        errors: standard errors of ``best``, (settings,).
        by_powers: log of the best rate of every setting that the fitted product of powers gives, (settings,).
    """

    sizes: tuple[str, ...]
    powers: tuple[str, ...]
    covariance: Array
    settings: Array
    best: Array
    errors: Array
    by_powers: Array


@dataclass(frozen=True)
class Edge:
    """A setting whose best rate is the smallest or the largest that was tried.

    Attributes:
        setting: its sizes.
        about: a sentence for the report.
        neighbour: log of the next rate inside the grid.
        sign: -1 if the best rate is the smallest, 1 if it is the largest.
    """

    setting: Setting
    about: str
    neighbour: float
    sign: int


def fit_rates(
    x: Columns,
    sizes: Sequence[str] = (SIZE,),
    resamples: int = 0,
    where: str = "",
    further: Sequence[Setting] = (),
) -> FittedRates:
    """Fits the best learning rate of every setting (combination of sizes), and the power of each size with which it
    changes.

    The result names the best rates ``lr at SETTING``. Runs whose loss is not finite diverged. A setting has no best
    rate if all its runs diverged, or if the best rate is the smallest or largest tried; ``misfit`` lists these
    settings, and whether they contradict the powers.

    Args:
        x: columns of sizes, lr and loss, one entry per run.
        sizes: names of the columns of sizes.
        resamples: number of resampled fits; 0 for the default.
        where: whose runs these are, for messages.
        further: other settings, without runs, whose best rate is extrapolated.

    Raises:
        UsageError: too few settings have a best rate inside their grid of rates, or sizes grow together.
    """
    found, edges, without = dict[Setting, tuple[Array, Array]](), list[Edge](), list[str]()
    for row in np.unique(np.column_stack([x[name] for name in sizes]), axis=0):
        curve = _select_near_best(x, sizes, tuple(map(float, row)), where)
        if isinstance(curve, Edge):
            edges.append(curve)
        elif isinstance(curve, str):
            without.append(curve)
        else:
            found[tuple(map(float, row))] = curve
    told = [*without, *(edge.about for edge in edges)]
    if len(found) < (few := len(sizes) + 2):
        plain = "sizes show no power" if len(sizes) == 1 else f"settings show no powers of {', '.join(sizes)}"
        short = f"{len(found)} {plain}; give runs at {['', '', '', 'three'][few] if few < 4 else few} or more"
        raise UsageError("; ".join([*told[:1], short]))
    settings, tried = np.array(list(found)), list(found.values())
    _check_distinguishable(settings, sizes, told)
    at, noise, left, wide = find_best_rates([_group_by_rate(u, y) for u, y in tried], LEVEL, resamples or RESAMPLES)
    errors, logs = wide * noise + left, np.log(settings)
    # an error common to all settings does not change the fitted powers
    own = errors - (shared := errors.mean(axis=0))
    # a noise estimate from few runs is itself noisy, so it is shrunk towards the median before it enters the weights
    spread, shown = np.maximum(own.std(axis=1), CERTAIN), np.array([_count_free(u) for u, _ in tried])
    known = np.sqrt((shown * spread**2 + PRIOR * np.median(spread**2)) / (shown + PRIOR))
    own *= (known / spread)[:, None]
    line = WLS(at, add_constant(logs), 1 / known**2).fit(cov_type="fixed scale")
    off, free = float(np.sum(((at - line.fittedvalues) / known) ** 2)), len(at) - len(line.params)
    drawn = own / known[:, None]
    drawn = np.sum((drawn - line.model.wexog @ (line.model.pinv_wexog @ drawn)) ** 2, axis=0)
    misfit, (bent, knee) = [f"left out, {text}" for text in told], find_knee(at, logs, known, sizes)
    # deviations from the powers beyond the noise enlarge the errors of the powers (Birge's ratio)
    errors = shared + own * max(1.0, (off / max(free, drawn.mean())) ** 0.5)
    if broken := bool(max(stats.chi2.sf(off, free), np.mean(drawn >= off)) < UNLIKELY):
        errors *= stats.t.ppf((1 + LEVEL) / 2, free) / stats.norm.ppf((1 + LEVEL) / 2)
        slopes = ", ".join(f"{s:.2g}" for s in np.diff(at) / np.diff(logs[:, 0])) if len(sizes) == 1 else ""
        plain = (
            f"no single power fits: between neighbouring sizes it is {slopes}"
            if slopes
            else "no product of powers fits"
        )
        misfit.append(f"{plain}; the interval includes the deviations")
    if bent:
        misfit.append(knee)
    again = line.model.pinv_wexog @ ((at[:, None] + errors) / known[:, None])
    coefficients = np.hstack([line.params[:, None], again])
    elsewhere = np.array([e.setting for e in edges] + [*further]).reshape(-1, len(sizes))
    other = coefficients[0] + np.log(elsewhere) @ coefficients[1:]
    for edge, guess in zip(edges, other, strict=False):
        low, high = np.quantile(guess[1:], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        if (low if edge.sign < 0 else -high) > edge.sign * -edge.neighbour:
            name = _format_setting(sizes, edge.setting)
            place = f"{np.exp(guess[0]):.2g}, inside its grid, where it is not"
            misfit.append(f"the powers put the best rate of {name} at {place}")
            broken = True
    powers = tuple("power" if name == SIZE else name for name in sizes)
    rates = np.exp(np.vstack([np.hstack([at[:, None], at[:, None] + wide * noise + left]), other[len(edges) :]]))
    by = "the power" if len(sizes) == 1 else "the powers"
    names = [*powers, *(f"{RATE} at {_format_setting(sizes, s)}" for s in found)]
    names += [f"{RATE} at {_format_setting(sizes, s)}, by {by}" for s in further]
    value, *others = (dict(zip(names, map(float, row), strict=True)) for row in np.vstack([coefficients[1:], rates]).T)
    never = {Verdict.AGREES} if broken or bent else set()
    # if one power changes along its size, the law is wrong, and the other powers get no verdict
    kept = {name: frozenset(never | ({Verdict.REFUTED} if bent not in ("", name) else set())) for name in powers}
    fitted = add_intervals(value, others, np.concatenate([y - fit_polynomial(u, y)(u) for u, y in tried]))
    return FittedRates(
        **vars(replace(fitted, misfit="; ".join(misfit), broken=kept)),
        sizes=tuple(sizes),
        powers=powers,
        covariance=np.atleast_2d(np.cov(again[1:])),
        settings=settings,
        best=at,
        errors=known,
        by_powers=np.asarray(line.fittedvalues),
    )


def _check_distinguishable(settings: Array, sizes: Sequence[str], told: Sequence[str]) -> None:
    """Checks that the settings with a best rate determine the powers of all sizes.

    They do not if one size is the same in all settings, or is a product of powers of the other sizes.

    Args:
        settings: the sizes of every setting, (settings, sizes).
        sizes: names of the columns of sizes.
        told: sentences on the settings without a best rate, for the message.

    Raises:
        UsageError: a power is not determined; the message names its size.
    """
    behind = f" ({'; '.join(told)})" if told else ""
    logs = np.log(settings)
    for k, name in enumerate(sizes):
        if not np.ptp(logs[:, k]):
            alone = f"{name} is {settings[0, k]:g} in all runs with a best rate{behind}"
            raise UsageError(f"{alone}; vary it, or leave out --size {name}")
    correlations = np.corrcoef(logs, rowvar=False) if len(sizes) > 1 else np.eye(1)
    # variance inflation: the diagonal of the inverse
    inflated = np.diag(np.linalg.pinv(correlations + np.eye(len(sizes)) * CERTAIN))
    if together := [name for name, v in zip(sizes, inflated, strict=True) if v > 1 / (1 - ALONG**2)]:
        raise UsageError(
            f"{' and '.join(together)} grow together in these runs, so that their powers cannot be told "
            f"apart{behind}; vary one of them alone, or leave out --size {together[-1]}: "
            "the power is then that along both"
        )


def find_knee(at: Array, logs: Array, known: Array, sizes: Sequence[str]) -> tuple[str, str]:
    """Finds the size (such as width) whose power in the best rate differs between small and large values.

    At up to ``KNOTS`` values of every size, separate powers below and above this value are fitted. The p-value is
    corrected for the number of attempts.

    Args:
        at: logs of best rates, (settings,).
        logs: logs of the sizes, (settings, sizes).
        known: standard errors of ``at``.
        sizes: names of the columns of ``logs``.

    Returns:
        The name of the size, and a sentence on where its power changes; two empty strings if no change is significant.
    """
    found = list[tuple[float, str, str]]()
    for k, name in enumerate(sizes):
        values = np.unique(logs[:, k])[1:-1]
        places = np.linspace(0, max(len(values) - 1, 0), KNOTS).round().astype(int)
        for knot in values[np.unique(places)] if len(values) else ():
            design = add_constant(np.column_stack([logs, np.maximum(logs[:, k] - knot, 0)]))
            free = len(at) - design.shape[1]
            if free < 1 or np.linalg.matrix_rank(design) < design.shape[1]:
                continue
            line = WLS(at, design, 1 / known**2).fit(cov_type="fixed scale")
            scale = max(1.0, float(line.ssr / free))
            tail = stats.t(free) if scale > 1 else stats.norm
            chance = 2 * float(tail.sf(abs(line.tvalues[-1]) / scale**0.5))
            low, up = line.params[1 + k], line.params[1 + k] + line.params[-1]
            text = f"the power of {name} is {low:.2g} up to {np.exp(knot):g} and {up:.2g} above"
            found.append((chance, name, text))
    chance, name, text = min(found, default=(1.0, "", ""))
    return (name, text) if chance * len(found) < UNLIKELY else ("", "")


def _format_setting(sizes: Sequence[str], setting: Setting) -> str:
    """Returns a setting as text, such as ``N=256, M=8``."""
    if len(sizes) == 1:
        return f"{setting[0]:g}"
    return ", ".join(f"{name}={value:g}" for name, value in zip(sizes, setting, strict=True))


def _select_near_best(
    x: Columns, sizes: Sequence[str], setting: Setting, where: str
) -> tuple[Array, Array] | Edge | str:
    """Selects the runs of a setting whose learning rates are near the best one.

    Returns:
        The logs of the rates and the losses of these runs; an ``Edge`` if the best rate is the smallest or largest
        tried; or a sentence for the report if all runs diverged.
    """
    about = f"{where} {'size ' if len(sizes) == 1 else ''}{_format_setting(sizes, setting)}".lstrip()
    mine = np.isfinite(x[LOSS])
    for name, value in zip(sizes, setting, strict=True):
        mine &= x[name] == value
    if not mine.any():
        return f"{about}: every run diverged; give smaller rates"
    u, y = np.log(x[RATE][mine]), x[LOSS][mine]
    rates = np.unique(u)
    at = int(np.argmin([y[u == r].mean() for r in rates]))
    if not 0 < at < len(rates) - 1:
        end, inside = ("smallest", min(1, len(rates) - 1)) if at == 0 else ("largest", at - 1)
        best = f"{about}: the best rate, {np.exp(rates[at]):g}"
        told = f"{best}, is the {end} that was tried and did not diverge; try {MORE[end]}"
        return Edge(setting, told, float(rates[inside]), -1 if at == 0 else 1)
    near = (u >= rates[max(0, at - BESIDE)]) & (u <= rates[min(len(rates) - 1, at + BESIDE)])
    return u[near], y[near]


def _count_free(u: Array) -> int:
    """Returns how many degrees of freedom an estimate of the noise has: runs minus distinct rates (``u`` has the log of
    each run's rate), or, if all rates are distinct, the number of runs.
    """
    return len(u) - len(np.unique(u)) or len(u)


def _group_by_rate(u: Array, y: Array) -> tuple[Array, Array]:
    """Returns the distinct rates in increasing order, and the losses of the runs at each, (rates, runs), padded with
    NaN. ``u`` and ``y`` have the rate and the loss of each run.
    """
    rates, counts = np.unique(u, return_counts=True)
    losses = np.full((len(rates), counts.max()), np.nan)
    for row, rate in zip(losses, rates, strict=True):
        row[: np.sum(u == rate)] = y[u == rate]
    return rates, losses
