"""Laws fitted to runs: the parameters of a sum of powers, and the optimum that follows.

A sum is fitted as Hoffmann et al. (2022) fit theirs: the log of the loss against a log-sum-exp of its terms, under a
Huber loss, from several starts. Intervals are percentiles of fits to runs drawn again. Needs scipy, no torch.
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
"""Width of the Huber loss in logs; fits to runs drawn again; powers that fits start from."""
LOSS, RATE = "loss", "lr"
"""The columns of losses and of learning rates."""
FLOOR, MOST, CERTAIN, ALONG = "E", 60.0, 1e-9, 0.999
"""The constant under every sum, the largest log of a constant, a slope that is rounding, and the correlation of logs
from which two columns grow together."""
FREE = 3
"""Runs beyond the unknowns from which on runs drawn again show how far the numbers may lie."""
Columns = Mapping[str, Array]


@dataclass(frozen=True)
class Fitted:
    """Numbers with their intervals.

    Attributes:
        value, low, high: by name. residuals: log of the loss over the fitted one, by run.
        misfit: what the numbers do not fit, in a line.
        broken: verdicts that are not given, by number: those of a law that the runs do not follow.
    """

    value: Mapping[str, float]
    low: Mapping[str, float]
    high: Mapping[str, float]
    residuals: Array
    misfit: str = ""
    broken: Mapping[str, frozenset[Verdict]] = field(default_factory=dict)

    def verdict(self, name: str, claimed: float, apart: float) -> Verdict:
        """The verdict on a claimed number, where numbers this far apart are told from each other."""
        found = Acceptance(claimed, claimed, near=apart / 5, far=apart).verdict(self.low[name], self.high[name])
        return Verdict.INCONCLUSIVE if found in self.broken.get(name, ()) else found


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
            raise UsageError(f"{count_noun(runs, 'run')} for {count_noun(len(theta), 'unknown')}; give more runs")
        for a, b in combinations([name for name in self.names if np.ptp(x[name])], 2):
            if np.corrcoef(np.log(x[a]), np.log(x[b]))[0, 1] > ALONG:  # which power is whose is a choice then
                told = f"{a} and {b} grow together in these runs, so that no fit tells their terms apart"
                raise UsageError(f"{told}; vary them one by one")
        if alike := self._alike(self.logs(theta, x)[1].T):
            raise UsageError(f"the runs do not tell {', '.join(alike)} apart; vary {', '.join(self.names)} one by one")
        value, residuals = self.named(theta), np.log(x[LOSS]) - self.logs(theta, x)[0]
        if runs < len(theta) + FREE:
            few = f"no intervals: {count_noun(runs, 'run')} for {len(theta)} unknowns; give {len(theta) + FREE} or more"
            return replace(with_intervals(value, [dict.fromkeys(value, np.nan)], residuals), misfit=few)
        drawn = np.random.default_rng(seed).integers(runs, size=(resamples or RESAMPLES, runs))
        again = [self.named(self.best({q: v[rows] for q, v in x.items()}, [theta])) for rows in drawn]
        return with_intervals(value, again, residuals)


def together(fits: Mapping[str, Fitted]) -> Fitted:
    """Several fits as one, every number with the name of its fit before it."""

    def every(part: str) -> dict[str, Any]:
        return {f"{name} {q}".lstrip(): x for name, f in fits.items() for q, x in getattr(f, part).items()}

    misfit = "; ".join(f"{name} {f.misfit}".lstrip() for name, f in fits.items() if f.misfit)
    residuals = np.concatenate([f.residuals for f in fits.values()])
    return Fitted(every("value"), every("low"), every("high"), residuals, misfit, every("broken"))


def with_intervals(value: dict[str, float], again: Sequence[Mapping[str, float]], residuals: Array) -> Fitted:
    """Numbers with the percentiles of the same numbers in fits to runs drawn again."""
    ends = {name: np.quantile([a[name] for a in again], [(1 - LEVEL) / 2, (1 + LEVEL) / 2]) for name in value}
    low, high = ({name: float(end[k]) for name, end in ends.items()} for k in (0, 1))
    return Fitted(value, low, high, residuals)
