"""Laws fitted to runs: the parameters of a sum of powers, the optimum that follows, and the best rate at each size.

A sum is fitted as Hoffmann et al. (2022) fit theirs: the log of the loss against a log-sum-exp of its terms, under a
Huber loss, from several starts. Intervals are percentiles of fits to runs drawn again. Needs scipy, no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, product
from typing import Any

import numpy as np
import sympy
from scipy import stats
from scipy.optimize import least_squares
from scipy.special import logsumexp

from scaling_algebra.errors import UsageError, amount
from scaling_algebra.laws.monomials import Expr, Posynomial, parameter

from .optima import BESIDE, best_rates, form
from .regions import Acceptance, Verdict
from .resampling import Array

HUBER, LEVEL, RESAMPLES, STARTS = 1e-3, 0.9, 200, (0.2, 0.5, 1.0)
"""Width of the Huber loss in logs; level of the intervals; fits to runs drawn again; powers that fits start from."""
LOSS, FLOOR, MOST, CERTAIN, ALONG = "loss", "E", 60.0, 1e-9, 0.999
"""The column of losses, the constant under every sum, the largest log of a constant, a slope that is rounding, and the
correlation of logs from which two columns grow together."""

FREE = 3
"""Runs beyond the unknowns from which on runs drawn again show how far the numbers may lie."""
UNLIKELY = 0.01
"""Chance of best rates that lie so far beside one power, from which on they follow none."""
Columns = Mapping[str, Array]


@dataclass(frozen=True)
class Fitted:
    """Numbers with their intervals.

    Attributes:
        value, low, high: by name. residuals: log of the loss over the fitted one, by run.
        misfit: what the numbers do not fit, in a line.
    """

    value: Mapping[str, float]
    low: Mapping[str, float]
    high: Mapping[str, float]
    residuals: Array
    misfit: str = ""

    def verdict(self, name: str, claimed: float, apart: float) -> Verdict:
        """The verdict on a claimed number, where numbers this far apart are told from each other."""
        return Acceptance(claimed, claimed, near=apart / 5, far=apart).verdict(self.low[name], self.high[name])


@dataclass(frozen=True)
class FittedSum:
    """``loss = E + sum of monomials`` in the columns of a table.

    Attributes:
        sum: without E. names: columns that it is in; every other base is a constant that is fitted.
        derived: formulas of the parameters that are wanted, by name.
    """

    sum: Posynomial
    names: tuple[str, ...]
    derived: Mapping[str, Expr]

    @cached_property
    def constants(self) -> list[str]:
        return [FLOOR, *sorted(self.sum.quantities - set(self.names))]

    @cached_property
    def parameters(self) -> list[str]:
        return sorted(self.sum.parameters)

    @cached_property
    def _offsets(self) -> list[float]:
        """Log of the number before every term, E first."""
        return [0.0, *(float(sympy.log(term.coefficient)) for term in self.sum.terms)]

    @cached_property
    def _powers(self) -> list[tuple[int, str, Any, Any]]:
        """Term, base, power and its derivatives, as functions of the parameters."""
        symbols = [parameter(p) for p in self.parameters]
        return [
            (k, q, sympy.lambdify([symbols], e), sympy.lambdify([symbols], [sympy.diff(e, x) for x in symbols]))
            for k, term in enumerate(self.sum.terms, 1)
            for q, e in term.powers
        ]

    def logs(self, theta: Array, x: Columns) -> tuple[Array, Array]:
        """Log of the loss of every run, and its derivatives; theta: logs of constants, then of parameters."""
        count, runs = len(self.constants), len(x[LOSS])
        values = np.exp(theta[count:])
        terms, slopes = np.zeros((len(self.sum.terms) + 1, runs)), np.zeros((len(self.sum.terms) + 1, len(theta), runs))
        terms += np.array(self._offsets)[:, None]
        terms[0], slopes[0, 0] = theta[0], 1.0
        for k, q, power, derivatives in self._powers:
            at = self.constants.index(q) if q in self.constants else None
            log = theta[at] if at is not None else np.log(x[q])
            terms[k] += power(values) * log
            slopes[k, count:] += np.outer(np.array(derivatives(values)) * values, log * np.ones(runs))
            if at is not None:
                slopes[k, at] += power(values)
        whole = logsumexp(terms, axis=0)
        return whole, np.einsum("kn,kpn->np", np.exp(terms - whole), slopes)

    def best(self, x: Columns, starts: Sequence[Array]) -> Array:
        """The parameters of the smallest Huber loss that any start leads to."""
        y = np.log(x[LOSS])
        found = [
            least_squares(
                lambda theta: self.logs(theta, x)[0] - y,
                np.clip(start, -MOST, MOST),
                jac=lambda theta: self.logs(theta, x)[1],
                bounds=(-MOST - 1, MOST + 1),
                loss="huber",
                f_scale=HUBER,
                x_scale="jac",
                max_nfev=300,
            )
            for start in starts
        ]
        return np.asarray(min(found, key=lambda f: f.cost).x)

    def starts(self, x: Columns) -> Iterator[Array]:
        """Every choice of powers, each term as large as the others at the mean run."""
        smallest, middle = x[LOSS].min(), {q: float(np.log(x[q]).mean()) for q in self.names}
        for share, powers in product((0.5, 0.9), product(STARTS, repeat=len(self.parameters))):
            theta = np.zeros(len(self.constants) + len(powers))
            theta[0], theta[len(self.constants) :] = np.log(share * smallest), np.log(powers)
            rest = np.log(max(x[LOSS].mean() - share * smallest, 1e-9) / len(self.sum.terms))
            for k, term in enumerate(self.sum.terms, 1):
                own = [self.constants.index(q) for q in term.quantities if q in self.constants]
                size = sum(
                    float(power(powers)) * middle[q] for j, q, power, _ in self._powers if j == k and q in middle
                )
                theta[own[:1]] = rest - size - self._offsets[k]
            yield theta

    def named(self, theta: Array) -> dict[str, float]:
        """Numbers by name: parameters, what follows from them, constants."""
        values = dict(zip([*self.constants, *self.parameters], map(float, np.exp(theta)), strict=True))
        at = {parameter(name): value for name, value in values.items()}
        found = {name: float(e.xreplace(at)) for name, e in self.derived.items()}
        return {**{p: values[p] for p in self.parameters}, **found, **{c: values[c] for c in self.constants}}

    def _alike(self, slopes: Array) -> list[str]:
        """Unknowns of which some move the losses of all runs as others do; slopes: by unknown and run."""
        names = [*self.constants, *self.parameters]
        norms = np.linalg.norm(slopes, axis=1)
        there = np.flatnonzero(norms > CERTAIN * norms.max())  # a term that vanished moves nothing
        ways, sizes, _ = np.linalg.svd(slopes[there] / norms[there, None])
        none = np.zeros(len(there), dtype=bool)
        none[len(sizes) :], none[: len(sizes)] = True, sizes < CERTAIN * sizes[0]
        return [names[k] for k, way in zip(there, ways[:, none], strict=True) if np.abs(way).max(initial=0) > 0.01]

    def fit(self, x: Columns, resamples: int = 0, seed: int = 0) -> Fitted:
        """The fit to runs, with intervals from runs drawn again."""
        runs, theta = len(x[LOSS]), self.best(x, list(self.starts(x)))
        if runs <= len(theta):
            raise UsageError(f"{amount(runs, 'run')} for {amount(len(theta), 'unknown')}; give more runs")
        for a, b in combinations([name for name in self.names if np.ptp(x[name])], 2):
            if np.corrcoef(np.log(x[a]), np.log(x[b]))[0, 1] > ALONG:  # which power is whose is a choice then
                told = f"{a} and {b} grow together in these runs, so that no fit tells their terms apart"
                raise UsageError(f"{told}; vary them one by one")
        if alike := self._alike(self.logs(theta, x)[1].T):
            raise UsageError(f"the runs do not tell {', '.join(alike)} apart; vary {', '.join(self.names)} one by one")
        value, residuals = self.named(theta), np.log(x[LOSS]) - self.logs(theta, x)[0]
        if runs < len(theta) + FREE:
            few = f"no intervals: {amount(runs, 'run')} for {len(theta)} unknowns; give {len(theta) + FREE} or more"
            return replace(_with_intervals(value, [dict.fromkeys(value, np.nan)], residuals), misfit=few)
        drawn = np.random.default_rng(seed).integers(runs, size=(resamples or RESAMPLES, runs))
        again = [self.named(self.best({q: v[rows] for q, v in x.items()}, [theta])) for rows in drawn]
        return _with_intervals(value, again, residuals)


def together(fits: Mapping[str, Fitted]) -> Fitted:
    """Several fits as one, every number with the name of its fit before it."""

    def every(part: str) -> dict[str, float]:
        return {f"{name} {q}".lstrip(): x for name, f in fits.items() for q, x in getattr(f, part).items()}

    misfit = "; ".join(f"{name} {f.misfit}".lstrip() for name, f in fits.items() if f.misfit)
    residuals = np.concatenate([f.residuals for f in fits.values()])
    return Fitted(every("value"), every("low"), every("high"), residuals, misfit)


def fit_rates(x: Columns, resamples: int = 0, where: str = "", at_sizes: Sequence[float] = ()) -> Fitted:
    """The best rate of every size, ``lr at SIZE``, and its power in the size; columns size, lr, loss.

    Runs whose loss is no finite number diverged, and are left out; so are sizes whose best rate is the smallest or
    largest tried, or whose runs all diverged, which ``misfit`` names.

    Args:
        where: whose runs they are, for messages. at_sizes: other sizes, whose best rate is that of the power.

    Raises:
        UsageError: fewer than three sizes have a best rate between others.
    """
    found, without = dict[float, tuple[Array, Array]](), list[str]()
    for n in np.unique(x["size"]):
        try:
            found[float(n)] = _beside_the_best(x, float(n), where)
        except UsageError as error:
            without.append(str(error))
    if len(found) < 3:
        few = f"{len(found)} sizes show no power; give runs at three or more"
        raise UsageError("; ".join([*without[:1], few]) if without else few)
    sizes, tried = np.array(list(found)), list(found.values())
    at, noise, left, wide = best_rates([_by_rate(u, y) for u, y in tried], LEVEL, resamples or RESAMPLES)
    errors, logs = wide * noise + left, np.log(sizes)
    beside = at - np.polyval(np.polyfit(logs, at, 1), logs)
    off, free = float(np.sum((beside / np.maximum(errors.std(axis=1), CERTAIN)) ** 2)), len(sizes) - 2
    misfit = "; ".join(f"left out, {x}" for x in without)
    if stats.chi2.sf(off, free) < UNLIKELY:  # no one power: what lies beside it is an error of the power
        slopes = ", ".join(f"{x:.2g}" for x in np.diff(at) / np.diff(logs))
        misfit += "; " if misfit else ""
        misfit += f"no one power fits: from size to size it is {slopes}; the interval counts what lies beside"
        tail = stats.t.ppf((1 + LEVEL) / 2, free) / stats.norm.ppf((1 + LEVEL) / 2)
        errors = errors * max(1.0, (off / free) ** 0.5 * tail)
    best = np.hstack([at[:, None], at[:, None] + wide * noise + left])
    line = np.polyfit(logs, np.hstack([at[:, None], at[:, None] + errors]), 1)
    further = [line[0] * np.log(n) + line[1] for n in at_sizes]
    names = ["power", *(f"lr at {n:g}" for n in sizes), *(f"lr at {n:g}, by the power" for n in at_sizes)]
    rates = np.exp(np.vstack([best, *further]))
    value, *again = (dict(zip(names, map(float, row), strict=True)) for row in zip(line[0], *rates, strict=True))
    fitted = _with_intervals(value, again, np.concatenate([y - form(u, y)(u) for u, y in tried]))
    return replace(fitted, misfit=misfit)


MORE = {"smallest": "smaller ones", "largest": "larger ones, or some between it and those that diverged"}
"""What to try where the best rate is the first or last one."""


def _beside_the_best(x: Columns, n: float, where: str) -> tuple[Array, Array]:
    """Logs of the rates beside the best one of a size, and their losses."""
    size, ended = f"{where} size {n:g}".lstrip(), np.isfinite(x[LOSS])
    mine = (x["size"] == n) & ended
    if not mine.any():
        raise UsageError(f"{size}: every run diverged; give smaller rates")
    u, y = np.log(x["lr"][mine]), x[LOSS][mine]
    rates = np.unique(u)
    at = int(np.argmin([y[u == r].mean() for r in rates]))
    if not 0 < at < len(rates) - 1:
        end = "smallest" if at == 0 else "largest"
        best = f"{size}: the best rate, {np.exp(rates[at]):g}"
        raise UsageError(f"{best}, is the {end} that was tried and did not diverge; try {MORE[end]}")
    near = (u >= rates[max(0, at - BESIDE)]) & (u <= rates[min(len(rates) - 1, at + BESIDE)])
    return u[near], y[near]


def _by_rate(u: Array, y: Array) -> tuple[Array, Array]:
    """Rates in increasing order, and the losses of each in the order of the table, (R, runs)."""
    rates, counts = np.unique(u, return_counts=True)
    losses = np.full((len(rates), counts.max()), np.nan)
    for row, rate in zip(losses, rates, strict=True):
        row[: np.sum(u == rate)] = y[u == rate]
    return rates, losses


def _with_intervals(value: dict[str, float], again: Sequence[Mapping[str, float]], residuals: Array) -> Fitted:
    ends = {name: np.quantile([a[name] for a in again], [(1 - LEVEL) / 2, (1 + LEVEL) / 2]) for name in value}
    low, high = ({name: float(end[k]) for name, end in ends.items()} for k in (0, 1))
    return Fitted(value, low, high, residuals)
