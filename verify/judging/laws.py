"""Fits laws to runs: the parameters of a sum of powers, and the optimum that follows.

A sum is fitted as in Hoffmann et al. (2022): the log of the loss by the log-sum-exp of its terms, with a Huber loss,
from several starting points. Intervals are percentiles over fits to resampled runs. Needs scipy, no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations, product
from typing import Any

import numpy as np
import sympy
from scipy.optimize import least_squares
from scipy.special import logsumexp

from scaling_algebra.errors import UsageError, count_noun
from scaling_algebra.laws.monomials import Expr, Posynomial, parameter

from .regions import Acceptance, Verdict
from .resampling import LEVEL, Array

HUBER, RESAMPLES, STARTS = 1e-3, 200, (0.2, 0.5, 1.0)
"""Width of the Huber loss in logs; number of resampled fits; initial values of powers."""
LOSS, RATE = "loss", "lr"
"""Names of the columns of losses and of learning rates."""
FLOOR, MOST, CERTAIN, ALONG = "E", 60.0, 1e-9, 0.999
"""Name of the constant term; largest log of a constant; relative size of a gradient that is rounding; and the
correlation of logs above which two columns count as growing together."""
FREE = 3
"""Minimum number of runs beyond the number of unknowns for intervals by resampling."""
Columns = Mapping[str, Array]


@dataclass(frozen=True)
class Fitted:
    """Numbers fitted to runs, with their confidence intervals.

    Attributes:
        value: fitted value by name.
        low: lower end of the interval by name.
        high: upper end of the interval by name.
        residuals: log of the loss minus the fitted log, by run.
        misfit: a sentence on what the fit does not explain, or "".
        broken: name of a fitted number -> verdicts on it that are replaced by INCONCLUSIVE, because the runs do not
            follow
            the law.
    """

    value: Mapping[str, float]
    low: Mapping[str, float]
    high: Mapping[str, float]
    residuals: Array
    misfit: str = ""
    broken: Mapping[str, frozenset[Verdict]] = field(default_factory=dict)

    def verdict(self, name: str, claimed: float, apart: float) -> Verdict:
        """Judges a claimed value of a fitted number by its interval.

        Args:
            name: name of the number.
            claimed: its claimed value.
            apart: smallest difference from the claimed value that matters.
        """
        found = Acceptance(claimed, claimed, near=apart / 5, far=apart).verdict(self.low[name], self.high[name])
        return Verdict.INCONCLUSIVE if found in self.broken.get(name, ()) else found


@dataclass(frozen=True)
class FittedSum:
    """The model ``loss = E + sum of monomials``, such as E + A N^-a + B D^-b, to be fitted to a table of runs.

    Its unknowns are the constants (E, A, B) and the parameters in exponents (a, b).

    Attributes:
        sum: the sum of monomials, without the constant E.
        names: columns of the table that occur in the sum (N, D); every other symbol that is raised to a power there
            is a
            constant to fit (A, B).
        derived: formulas of further numbers to report, by name.
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
        """Log of the numeric coefficient of every term; 0 for the first term, the constant E."""
        return [0.0, *(float(sympy.log(term.coefficient)) for term in self.sum.terms)]

    @cached_property
    def _powers(self) -> list[tuple[int, str, Any, Any]]:
        """Every power in the sum as (number of its term, its base, function that gives its exponent, function that
        gives the derivatives of the exponent); both functions take the values of the parameters.
        """
        symbols = [parameter(p) for p in self.parameters]
        return [
            (k, q, sympy.lambdify([symbols], e), sympy.lambdify([symbols], [sympy.diff(e, x) for x in symbols]))
            for k, term in enumerate(self.sum.terms, 1)
            for q, e in term.powers
        ]

    def compute_logs(self, theta: Array, x: Columns) -> tuple[Array, Array]:
        """Returns the log of the modelled loss of every run, (runs,), and its derivatives by the unknowns, (runs,
        unknowns).

        Args:
            theta: the unknowns: logs of the constants, then of the parameters.
            x: the columns of the table.
        """
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

    def find_best(self, x: Columns, starts: Sequence[Array]) -> Array:
        """Returns the unknowns that fit best: those with the smallest Huber loss reached from any starting point
        (``starts``).
        """
        y = np.log(x[LOSS])
        found = [
            least_squares(
                lambda theta: self.compute_logs(theta, x)[0] - y,
                np.clip(start, -MOST, MOST),
                jac=lambda theta: self.compute_logs(theta, x)[1],
                bounds=(-MOST - 1, MOST + 1),
                loss="huber",
                f_scale=HUBER,
                x_scale="jac",
                max_nfev=300,
            )
            for start in starts
        ]
        return np.asarray(min(found, key=lambda f: f.cost).x)

    def iterate_starts(self, x: Columns) -> Iterator[Array]:
        """Yields starting points of the fit: one for every combination of some values of the parameters and of E, with
        all monomials equally large at the average run.
        """
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

    def name_values(self, theta: Array) -> dict[str, float]:
        """Returns the values of parameters, derived numbers and constants by name. ``theta`` has the unknowns, which
        are the
        logs of the constants and of the parameters.
        """
        values = dict(zip([*self.constants, *self.parameters], map(float, np.exp(theta)), strict=True))
        at = {parameter(name): value for name, value in values.items()}
        found = {name: float(e.xreplace(at)) for name, e in self.derived.items()}
        return {**{p: values[p] for p in self.parameters}, **found, **{c: values[c] for c in self.constants}}

    def _find_confounded(self, slopes: Array) -> list[str]:
        """Returns the unknowns that the runs cannot distinguish, because changes of them can cancel in every loss.

        Args:
            slopes: derivative of every log loss, (unknowns, runs).
        """
        names = [*self.constants, *self.parameters]
        norms = np.linalg.norm(slopes, axis=1)
        there = np.flatnonzero(norms > CERTAIN * norms.max())  # a term that has vanished determines no parameter
        ways, sizes, _ = np.linalg.svd(slopes[there] / norms[there, None])
        none = np.zeros(len(there), dtype=bool)
        none[len(sizes) :], none[: len(sizes)] = True, sizes < CERTAIN * sizes[0]
        return [names[k] for k, way in zip(there, ways[:, none], strict=True) if np.abs(way).max(initial=0) > 0.01]

    def fit(self, x: Columns, resamples: int = 0, seed: int = 0) -> Fitted:
        """Fits the sum to runs, with intervals from resampled runs.

        Args:
            x: columns of sizes and loss, one entry per run.
            resamples: number of resampled fits; 0 for the default.
            seed: seed of the resampling.

        Raises:
            UsageError: too few runs, or runs that do not distinguish the unknowns.
        """
        runs, theta = len(x[LOSS]), self.find_best(x, list(self.iterate_starts(x)))
        if runs <= len(theta):
            raise UsageError(f"{count_noun(runs, 'run')} for {count_noun(len(theta), 'unknown')}; give more runs")
        for a, b in combinations([name for name in self.names if np.ptp(x[name])], 2):
            if np.corrcoef(np.log(x[a]), np.log(x[b]))[0, 1] > ALONG:  # the two sizes cannot be distinguished
                told = f"{a} and {b} grow together in these runs, so that the fit cannot distinguish their terms"
                raise UsageError(f"{told}; vary them one by one")
        if alike := self._find_confounded(self.compute_logs(theta, x)[1].T):
            raise UsageError(
                f"these runs cannot distinguish {', '.join(alike)}; vary {', '.join(self.names)} one by one"
            )
        value, residuals = self.name_values(theta), np.log(x[LOSS]) - self.compute_logs(theta, x)[0]
        if runs < len(theta) + FREE:
            few = f"no intervals: {count_noun(runs, 'run')} for {len(theta)} unknowns; give {len(theta) + FREE} or more"
            return replace(add_intervals(value, [dict.fromkeys(value, np.nan)], residuals), misfit=few)
        drawn = np.random.default_rng(seed).integers(runs, size=(resamples or RESAMPLES, runs))
        again = [self.name_values(self.find_best({q: v[rows] for q, v in x.items()}, [theta])) for rows in drawn]
        return add_intervals(value, again, residuals)


def merge_fits(fits: Mapping[str, Fitted]) -> Fitted:
    """Merges several fits (such as one for each group of runs) into one, in which the name of every number is prefixed
    by the name of its fit.
    """

    def collect_part(part: str) -> dict[str, Any]:
        return {f"{name} {q}".lstrip(): x for name, f in fits.items() for q, x in getattr(f, part).items()}

    misfit = "; ".join(f"{name} {f.misfit}".lstrip() for name, f in fits.items() if f.misfit)
    residuals = np.concatenate([f.residuals for f in fits.values()])
    return Fitted(
        collect_part("value"), collect_part("low"), collect_part("high"), residuals, misfit, collect_part("broken")
    )


def add_intervals(value: dict[str, float], again: Sequence[Mapping[str, float]], residuals: Array) -> Fitted:
    """Returns fitted numbers with confidence intervals.

    Args:
        value: the fitted numbers, by name.
        again: the same numbers in fits to resampled runs; their percentiles are the intervals.
        residuals: log of the loss minus the fitted log, by run.
    """
    ends = {name: np.quantile([a[name] for a in again], [(1 - LEVEL) / 2, (1 + LEVEL) / 2]) for name in value}
    low, high = ({name: float(end[k]) for name, end in ends.items()} for k in (0, 1))
    return Fitted(value, low, high, residuals)
