"""A balance in numbers: minimised over twelve decades with scipy, and drawn.

Read next: ``balance.py`` (what is checked).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from typing import Any

import sympy

from scaling_algebra.errors import UsageError

from ..expressions import Expr, Monomial, parameter
from .balance import Balance
from .circuits import Cell

SIZES = tuple(10.0**k for k in range(24, 37, 3))
"""Values of n, where a quantity of rate r has the value n^r: large, so that smaller terms have died out."""
TINY, STEEP = 1e-6, 1e3
"""A logarithm below the first is outside of what the sum is defined for, and raises it by the second for each unit."""
NEAR = 0.01
"""How far a numeric slope may lie from the exponent."""


@dataclass(frozen=True)
class Check:
    """Slopes of the numeric minimum and optimum beside their exponents on a ray.

    Attributes:
        rates: of the growing quantities. slopes: by name, ``minimum`` first: (predicted, found).
        ratio: numeric over predicted minimum at the largest size; None where the prefactor is not exact.
    """

    rates: Mapping[str, Expr]
    slopes: Mapping[str, tuple[Expr, float]]
    ratio: float | None

    @property
    def agrees(self) -> bool:
        return all(abs(float(e) - x) <= NEAR for e, x in self.slopes.values()) and (
            self.ratio is None or abs(self.ratio - 1) <= NEAR
        )


def leading(b: Balance, rates: Mapping[str, Expr]) -> Cell:
    """The cell that a ray lies in.

    Raises:
        UsageError: rates of other quantities, parameters without values, or no cell.
    """
    if set(rates) != set(b.growing):
        raise UsageError(f"rates of {', '.join(rates)} were given; give those of {', '.join(b.growing)}, as n=1")
    if open_ := sorted(b.total.parameters.union(*(m.parameters for m in b.bounds))):
        raise UsageError(f"no number for {', '.join(open_)}; give values of all parameters with --at")
    logs = {name: float(x) for name, x in rates.items()}
    found = next((c for c in b.cells if all(w.holds(logs, {}) for w in c.where)), None)
    if found is None:
        raise UsageError(f"there is no minimum where {', '.join(f'{n} = n^{x}' for n, x in rates.items())}")
    return found


def checked(b: Balance, rates: Mapping[str, Expr]) -> Check:
    """Minimises the sum itself, with its logarithms, and fits slopes; fixed quantities are 1."""
    from scipy.optimize import minimize

    cell = leading(b, rates)
    free = [name for name in b.minimised if any(t[name] != 0 for t in (*b.reduced.terms, *b.bounds))]
    ones = {parameter(name): sympy.S.One for name in (*b.fixed, *(b.reduced.quantities - {*free, *b.growing}))}
    rows = [_numeric(m, ones) for m in (*b.reduced.terms, *b.bounds)]
    count = len(b.reduced.terms)

    def values(x: Any, n: float) -> list[float]:
        return [_logarithm(row, _at(free, x, b, rates, n)) for row in rows]

    def total(x: Any, n: float) -> float:
        terms = values(x, n)[:count]
        return max(terms) + log(sum(exp(t - max(terms)) for t in terms))

    found, start = [], [0.0] * len(free)
    for n in SIZES:
        bounds = [{"type": "ineq", "fun": lambda x, n=n, k=k: -values(x, n)[k]} for k in range(count, len(rows))]
        options = {"maxiter": 2000, "ftol": 1e-14}
        best = minimize(total, start, (n,), method="SLSQP", constraints=bounds, options=options) if free else None
        start = list(best.x) if best is not None else []
        if any(_logarithm(a, _at(free, start, b, rates, n)) <= TINY for row in rows for a, _ in row[2]):
            raise UsageError("a logarithm in the sum is not positive at its minimum; let its quantities grow too")
        found.append((total(start, n), *start))
    span = log(SIZES[-1]) - log(SIZES[-2])
    slopes = [(y - x) / span for x, y in zip(found[-2], found[-1], strict=True)]
    predicted = {"minimum": cell.minimum, **{name: cell.optimum[name] for name in free if name in cell.optimum}}
    numeric = dict(zip(("minimum", *free), slopes, strict=True))
    on = {name: (sum(e * rates[q] for q, e in m.powers), numeric[name]) for name, m in predicted.items()}
    size = float(cell.minimum.coefficient.xreplace(ones)) if cell.exact else 0.0
    ratio = exp(found[-1][0] - float(on["minimum"][0]) * log(SIZES[-1])) / size if cell.exact else None
    return Check(dict(rates), on, ratio)


def _at(free: Sequence[str], x: Any, b: Balance, rates: Mapping[str, Expr], n: float) -> dict[str, float]:
    """Logarithms of all quantities at a size n."""
    return dict(zip(free, x, strict=True)) | {name: float(rates[name]) * log(n) for name in b.growing}


_Row = tuple[float, dict[str, float], list[tuple[Any, float]]]
"""A monomial in floats: logarithm of the coefficient, exponents, and its logarithms with their exponents."""


def _numeric(m: Monomial, ones: Mapping[Expr, Expr]) -> _Row:
    inside = [(_numeric(a, ones), float(e)) for a, e in m.logs]
    return log(float(m.coefficient.xreplace(ones))), {n: float(e) for n, e in m.powers}, inside


def _logarithm(row: _Row, at: Mapping[str, float]) -> float:
    """Of a monomial, at logarithms of its quantities; those that are not named are 1."""
    scale, powers, inside = row
    found = scale + sum(e * at.get(n, 0.0) for n, e in powers.items())
    for argument, e in inside:
        value = _logarithm(argument, at)
        found += e * log(value) if value > TINY else e * log(TINY) + STEEP * (TINY - value)
    return found


def drawn(b: Balance, file: Path, rates: Mapping[str, Expr] | None = None) -> None:
    """The exponents of all terms over that of what is minimised: the minimum is the lowest point of the largest.

    Args:
        rates: of the growing quantities, in powers of the first; by default the others stay constant.

    Raises:
        UsageError: not one quantity to minimise over, or parameters without values.
    """
    free = [name for name in b.minimised if any(t[name] != 0 for t in b.reduced.terms)]
    if len(free) != 1:
        raise UsageError(f"a plot has one quantity to minimise over, not {len(free)}; give one")
    (x,), n = free, b.growing[0]
    at = rates or {name: sympy.Integer(name == n) for name in b.growing}
    cell = leading(b, at)

    def on(m: Monomial) -> float:
        return sum(float(m[name] * e) for name, e in at.items())

    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    best, low = on(cell.optimum.get(x, Monomial())), on(cell.minimum)
    ends = [best - 1, best + 1]
    figure, axes = plt.subplots(figsize=(5, 3.5))
    for t in b.reduced.terms:
        axes.plot(ends, [float(t[x]) * e + on(t) for e in ends], label=str(t))
    axes.plot(best, low, "ko", label=f"minimum {n}^{low:.4g}")
    others = [f"{name} constant" if e == 0 else f"{name} = {n}^{e}" for name, e in at.items() if name != n]
    axes.set(xlabel=f"exponent of {x} in {n}", ylabel=f"exponent of a term in {n}", title=", ".join(others))
    axes.legend(fontsize=8)
    figure.savefig(file, bbox_inches="tight")
    plt.close(figure)
