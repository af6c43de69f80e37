"""An independent oracle: the sum itself, with its logarithms, minimised by scipy over twelve decades."""

from math import exp, isnan, log

import sympy

SIZES = tuple(10.0**k for k in range(24, 37, 3))
"""Values of n, where a quantity of rate r has the value n^r: large, so that smaller terms have died out."""
STEEP = 1e3
"""The logarithm of a term outside of what it is defined for, and how fast it rises there."""


def size(m, at):
    """The logarithm of a monomial at logarithms of its quantities, constants being 1; nan where one inside is not
    positive."""
    coefficient = m.coefficient.xreplace(dict.fromkeys(m.coefficient.free_symbols, sympy.S.One))
    total = float(sympy.log(coefficient)) + sum(float(e) * at.get(q, 0.0) for q, e in m.powers)
    inner = ((float(e), size(a, at)) for a, e in m.logs)
    return total + sum(e * log(x) if x > 0 else float("nan") for e, x in inner)


def holds(condition, at):
    return size(condition.ratio, at) <= 1e-12


def steep(m, at):
    """The same, but large instead of nan, and larger the more negative a logarithm inside is."""
    x = size(m, at)
    return STEEP * (1 - min(0.0, *(size(a, at) for a, _ in m.logs))) if isnan(x) else x


def slopes(b, rates):
    """Slopes of the minimum and of the optimum, and the logarithm of the minimum at the largest size."""
    from scipy.optimize import minimize

    every = [b.reduced.terms, *(c.terms for c in b.bounds)]
    free = [name for name in b.minimised if any(m[name] != 0 for some in every for m in some)]
    terms, *bounds = every

    def at(x, n):
        return dict(zip(free, x, strict=True)) | {name: float(rate) * log(n) for name, rate in rates.items()}

    def total(x, n, of=terms):
        sizes = [steep(t, at(x, n)) for t in of]
        return max(sizes) + log(sum(exp(s - max(sizes)) for s in sizes))

    points, start = [], [0.0] * len(free)
    for n in SIZES:
        held = [{"type": "ineq", "fun": lambda x, of=of, n=n: -total(x, n, of)} for of in bounds]
        options = {"maxiter": 2000, "ftol": 1e-14}
        start = list(minimize(total, start, (n,), method="SLSQP", constraints=held, options=options).x)
        points.append((total(start, n), *start))
    span = log(SIZES[-1]) - log(SIZES[-2])
    found = [(y - x) / span for x, y in zip(points[-2], points[-1], strict=True)]
    return dict(zip(("minimum", *free), found, strict=True)), points[-1][0]


def agrees(b, rates, near=0.01):
    """Every slope is the exponent, and the prefactor is the one that is given, where one is."""
    found, least = slopes(b, rates)
    at = {name: float(rate) * log(SIZES[-1]) for name, rate in rates.items()}
    (cell,) = [c for c in b.cells if all(holds(w, at) for w in c.where)]
    sizes = {"minimum": cell.minimum, **cell.optimum}
    gaps = [x - float(sum(e * rates[q] for q, e in sizes[name].powers)) for name, x in found.items()]
    ratio = exp(least - size(cell.minimum, at)) if cell.exact else 1
    return all(abs(gap) <= near for gap in (*gaps, ratio - 1))
