"""Circuits: the smallest sets of terms that balance, and the minimum where each of them does.

A circuit is a set of terms whose exponents cancel with positive shares, and no part of which does so: the nullspace of
their exponents has one dimension. At the optimum every term is its share of the sum.
Read next: ``inequalities.py`` (what bounds a cell), ``balance.py`` (who asks).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations
from operator import mul

import sympy

from scaling_algebra.errors import UsageError

from .expressions import monomial
from .inequalities import Inequality, contradiction, decided, sign
from .monomials import Expr, Monomial, Posynomial, parameter, simplified, written


@dataclass(frozen=True)
class Minimum:
    """The minimum in one cell, where one set of terms balances.

    Attributes:
        active: the terms that balance, as they are written; shares: of the minimum, by active term.
        binding: constraints that hold with equality.
        minimum: the least value; optimum: where it is reached, by quantity. Their coefficients are those of the leading
            order where ``exact``.
        window: what bounds quantities that the minimum leaves open. where: what bounds the cell, up to constants.
    """

    active: tuple[Monomial, ...]
    shares: tuple[Expr, ...]
    binding: tuple[str, ...]
    minimum: Monomial
    optimum: Mapping[str, Monomial]
    exact: bool
    window: tuple[Inequality, ...]
    where: tuple[Inequality, ...]

    def reach(self, target: str, growing: str) -> dict[str, Monomial]:
        """The growing quantity, and the optimum, at which the minimum equals a monomial such as ``eps**2``."""
        if self.minimum[growing] == 0:
            raise UsageError(f"the minimum does not depend on {growing}; no size of it reaches {target}")
        size = {growing: (self.minimum / monomial(target)).solved(growing)}
        return size | {name: m.substituted(size) for name, m in self.optimum.items()}


def circuits(terms: Sequence[Monomial], names: Sequence[str]) -> Iterator[tuple[tuple[int, ...], list[Expr]]]:
    """Every smallest set of terms, by index, with exponents that cancel the named quantities; small sets first."""
    smaller: list[set[int]] = []
    for chosen in (c for size in range(1, len(names) + 2) for c in combinations(range(len(terms)), size)):
        if any(s <= {*chosen} for s in smaller):
            continue
        space = sympy.Matrix(len(names), len(chosen), lambda i, j, of=chosen: terms[of[j]][names[i]]).nullspace()
        weights = [simplified(x) for x in space[0]] if len(space) == 1 else []
        if weights and all(w != 0 for w in weights):
            smaller.append({*chosen})
            yield chosen, weights


def minima(
    terms: Sequence[Monomial],
    bounds: Sequence[Inequality],
    free: Sequence[str],
    growing: Sequence[str],
    dependent: Mapping[str, Monomial],
) -> Iterator[Minimum]:
    """The minimum of each cell; logarithms do not count.

    Args:
        dependent: quantities that follow from those that are free.
    """
    rows, seen = [*terms, *(bound.ratio for bound in bounds)], set()
    for chosen, weights in sorted(circuits(rows, free), key=lambda c: -len(c[0])):
        total = simplified(sum(w for k, w in zip(chosen, weights, strict=True) if k < len(terms)))
        shares = {k: simplified(w / total) for k, w in zip(chosen, weights, strict=True)} if total != 0 else {}
        signs = {k: sign(x) for k, x in shares.items()}
        if not shares or -1 in signs.values():
            continue
        first, *_ = active = [k for k in chosen if k < len(terms)]
        whole = terms[first] * Monomial(1 / shares[first])
        equal = [rows[k] / (whole * Monomial(shares[k])) if k in active else rows[k] for k in chosen if k != first]
        optimum = _solved(equal, free)
        minimum = terms[first].substituted(optimum) * Monomial(1 / shares[first])
        rest = {k: m.substituted(optimum) for k, m in enumerate(rows) if k not in chosen}
        ratios = [m / minimum if k < len(terms) else m for k, m in rest.items()]
        answers = [decided(Monomial.of({growing[0]: -shares[k]}), growing) for k in chosen if not signs[k]]
        answers += [decided(m, growing) for m in ratios]
        if False in answers:
            continue
        conditions = [x for x in dict.fromkeys(answers) if isinstance(x, Inequality)]
        where = _projected(conditions, growing)
        if where is None or contradiction(where, growing):
            continue
        if (key := (frozenset(where), minimum.powers)) in seen:
            continue
        seen.add(key)
        yield Minimum(
            tuple(terms[k] for k in active),
            tuple(shares[k] for k in active),
            tuple(dict.fromkeys(bounds[k - len(terms)].label for k in chosen if k >= len(terms))),
            minimum,
            optimum | {name: m.substituted(optimum) for name, m in dependent.items()},
            all(m.powers for m in ratios),
            tuple(c for c in conditions if not c.ratio.quantities <= set(growing)),
            tuple(where),
        )


@dataclass(frozen=True)
class Stationary:
    """``exp(S + W_-1(z)/(p + 1))``, the exact minimum of ``a x^-p + u x + v x log(w/x)``; there is one for z >= -1/e.

    Law: with ``S = u/v + log(w) - 1`` the first-order condition ``p a x^(-p-1) = u + v (log(w/x) - 1)`` becomes
    ``y e^y = z`` for ``y = (p+1)(log(x) - S)`` and ``z = -(p+1) p (a/v) e^(-(p+1) S)``. Branch -1 is the minimum,
    branch 0 a maximum: the second derivative is positive where ``(p+1)(u/v + log(w/x) - 1) > 1``.
    """

    p: Expr
    shift: Expr
    argument: Expr

    @property
    def minimum(self) -> Expr:
        return sympy.exp(self.shift + sympy.LambertW(self.argument, -1) / (self.p + 1))

    def __str__(self) -> str:
        inside = f"S = {written(self.shift)}, z = {written(self.argument)}"
        return f"exp(S + W_-1(z)/({written(self.p)} + 1)) for {inside}"


def stationary(total: Posynomial, name: str) -> Stationary | None:
    """The minimum of a sum of this form in a quantity; None for other sums."""
    x = parameter(name)
    slow = [t for t in total.terms if any(name in a.quantities for a, _ in t.logs)]
    rest = [t for t in total.terms if t not in slow]
    linear, falling = [t for t in rest if t[name] == 1], [t for t in rest if t[name] != 1]
    if not len(slow) == len(linear) == len(falling) == 1 or not falling[0][name].could_extract_minus_sign():
        return None
    ((argument, e), *more), p = slow[0].logs, -falling[0][name]
    if more or e != 1 or slow[0][name] != 1 or argument[name] != -1 or argument.logs:
        return None
    a, u = falling[0].expr * x**p, linear[0].expr / x
    v, w = Monomial(slow[0].coefficient, slow[0].powers).expr / x, argument.expr * x
    shift = u / v + sympy.expand_log(sympy.log(w), force=True) - 1
    decay = sympy.powsimp(sympy.exp(sympy.expand(-(p + 1) * shift)))
    return Stationary(p, shift, -(p + 1) * p * a / v * decay)


def _solved(ones: Sequence[Monomial], free: Sequence[str]) -> dict[str, Monomial]:
    """The quantities at which every monomial is 1."""
    matrix = sympy.Matrix(len(ones), len(free), lambda i, j: ones[i][free[j]])
    pivots = list(matrix.rref()[1]) if ones else []
    inverse = matrix[:, pivots].inv() if pivots else matrix
    rests = [m.substituted({free[j]: Monomial() for j in pivots}) for m in ones]
    optimum = {}
    for i, j in enumerate(pivots):
        value = reduce(mul, (rest ** -inverse[i, k] for k, rest in enumerate(rests)))
        optimum[free[j]] = Monomial(sympy.powsimp(value.coefficient), value.powers)
    return optimum


def _projected(conditions: Iterable[Inequality], growing: Sequence[str]) -> list[Inequality] | None:
    """The conditions' projection on growing quantities and parameters (Fourier-Motzkin); None if they cannot hold."""
    left = list(conditions)
    for name in sorted({n for c in left for n in c.ratio.quantities} - {*growing}):
        on = [c.ratio ** (1 / c.ratio[name]) for c in left if c.ratio[name] != 0]
        signs = [sign(c.ratio[name]) for c in left if c.ratio[name] != 0]
        above = [m for m, s in zip(on, signs, strict=True) if s == 1]
        below = [m for m, s in zip(on, signs, strict=True) if s == -1]
        pairs = [decided(a / b, growing) for a in above for b in below]
        if False in pairs:
            return None
        left = [c for c in left if c.ratio[name] == 0] + [c for c in pairs if isinstance(c, Inequality)]
    return list(dict.fromkeys(left))
