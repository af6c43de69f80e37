"""A balance in numbers: the sum itself, minimised over twelve decades with scipy."""

from __future__ import annotations

from collections.abc import Mapping
from math import exp, isnan, log
from typing import Any

import sympy

from scaling_algebra.errors import UsageError

from .balance import Balance, NumericCheck
from .monomials import Expr, Monomial, parameter

SIZES = tuple(10.0**k for k in range(24, 37, 3))
"""Values of n, where a quantity of rate r has the value n^r: large, so that smaller terms have died out."""
STEEP = 1e3
"""The logarithm of a term outside of what it is defined for, and how fast it rises there."""


def checked(b: Balance, rates: Mapping[str, Expr]) -> NumericCheck:
    """Minimises the sum itself, with its logarithms, and fits slopes; fixed quantities are 1.

    Raises:
        UsageError: rates of other quantities, parameters without values, or no minimum on this ray.
    """
    from scipy.optimize import minimize

    if set(rates) != set(b.growing):
        raise UsageError(f"rates of {', '.join(rates)} were given; give those of {', '.join(b.growing)}, as n=1")
    if open_ := sorted(b.total.parameters.union(*(c.parameters for c in b.bounds))):
        raise UsageError(f"no number for {', '.join(open_)}; give values of all parameters with --at")
    ray = {name: float(x) for name, x in rates.items()}
    cell = next((c for c in b.cells if all(w.holds(ray) for w in c.where)), None)
    if cell is None:
        raise UsageError(f"there is no minimum where {', '.join(f'{n} = n^{x}' for n, x in rates.items())}")
    ones = {parameter(name): sympy.S.One for name in b.fixed}
    every = [b.reduced.terms, *(c.ratios for c in b.bounds)]
    free = [name for name in b.minimised if any(m[name] != 0 for some in every for m in some)]
    terms, *bounds = ([Monomial(m.coefficient.xreplace(ones), m.powers, m.logs) for m in some] for some in every)

    def at(x: Any, n: float) -> dict[str, float]:
        return dict(zip(free, x, strict=True)) | {name: rate * log(n) for name, rate in ray.items()}

    def total(x: Any, n: float, of: list[Monomial] = terms) -> float:
        sizes = [_logarithm(t, at(x, n)) for t in of]
        return max(sizes) + log(sum(exp(s - max(sizes)) for s in sizes))

    points, start = [], [0.0] * len(free)
    for n in SIZES:
        held = [{"type": "ineq", "fun": lambda x, of=of, n=n: -total(x, n, of)} for of in bounds]
        options = {"maxiter": 2000, "ftol": 1e-14}
        if free:
            start = list(minimize(total, start, (n,), method="SLSQP", constraints=held, options=options).x)
        if any(_logarithm(t, at(start, n)) >= STEEP for t in terms):
            raise UsageError("a logarithm in the sum is not positive at its minimum; let its quantities grow too")
        points.append((total(start, n), *start))
    span = log(SIZES[-1]) - log(SIZES[-2])
    slopes = [(y - x) / span for x, y in zip(points[-2], points[-1], strict=True)]
    predicted = {"minimum": cell.minimum} | {name: m for name, m in cell.optimum.items() if name in free}
    on = {name: sum(e * rates[q] for q, e in m.powers) for name, m in predicted.items()}
    numeric = {name: (on[name], x) for name, x in zip(("minimum", *free), slopes, strict=True) if name in on}
    if not cell.exact:
        return NumericCheck(dict(rates), numeric, None)
    size = float(cell.minimum.coefficient.xreplace(ones))
    return NumericCheck(dict(rates), numeric, exp(points[-1][0] - float(on["minimum"]) * log(SIZES[-1])) / size)


def _logarithm(m: Monomial, at: Mapping[str, float]) -> float:
    """The logarithm of a monomial; where there is none, large, and larger the more negative a logarithm inside is."""
    size = m.log_at(at)
    return STEEP * (1 - min(0.0, *(a.log_at(at) for a, _ in m.logs))) if isnan(size) else size
