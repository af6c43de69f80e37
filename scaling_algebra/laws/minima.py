"""Finds the minimum of a sum of monomials by circuits: the minimal sets of terms that balance.

Law: every term is at most the minimum, and every term of a constraint at most 1. The least exponent of the minimum is a
linear program. A vertex of its dual is a circuit: terms whose exponents cancel with positive weights, no subset of
which does so. Its weights are the nullspace of a matrix of exponents, which can be computed with parameters as
symbols. The weights also say what share of the minimum each term has at the optimum, and what share of its constraint
each term of a constraint has (geometric programming). This gives the prefactors.
Used by: ``balance.py``, ``recipes/horizon.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import reduce
from itertools import combinations
from operator import mul
from typing import Any

import sympy

from .monomials import Expr, Monomial, Relation, simplify_exponent, write_exponent
from .systems import GrowthSystem, find_sign


@dataclass(frozen=True)
class Condition:
    """A condition ``ratio <= 1``, with its printed form.

    Attributes:
        ratio: the monomial.
        alone: the quantity for which the condition is solved when it is printed; empty if it is printed as a sign of
            an exponent.
    """

    ratio: Monomial
    alone: str = ""

    def __str__(self) -> str:
        if not self.alone:
            above = sympy.fraction(sympy.together(-self.ratio.powers[0][1]))
            whole = sympy.expand(above[0] * (1 if above[1].is_positive else above[1])).primitive()[1]
            up = sympy.Add(*(t for t in sympy.Add.make_args(whole) if t.as_coeff_Mul()[0] > 0))
            return f"{write_exponent(up)} > {write_exponent(sympy.Add(up, -whole))}"
        direction = find_sign(self.ratio[self.alone])
        if direction is None:
            return f"{self.ratio} <= 1"
        return f"{self.alone} {'<=' if direction > 0 else '>='} {self.ratio.solve_for(self.alone)}"


@dataclass(frozen=True)
class Minimum:
    """The minimum of a sum in one cell: the region in which the same terms are the largest ones at the minimum.

    Attributes:
        active: the terms that balance, as written.
        shares: share of the minimum of each active term.
        binding: constraints that hold with equality, as text.
        minimum: the least value.
        optimum: the value of each quantity at the minimum.
        exact: True if the coefficients of ``minimum`` and ``optimum`` are those of the leading order.
        window: bounds on quantities that the minimum does not determine.
        where: conditions that bound the cell, up to constants.
    """

    active: tuple[Monomial, ...]
    shares: tuple[Expr, ...]
    binding: tuple[str, ...]
    minimum: Monomial
    optimum: Mapping[str, Monomial]
    exact: bool
    window: tuple[Condition, ...]
    where: tuple[Condition, ...]

    def record(self) -> dict[str, Any]:
        """Returns the JSON record."""
        sizes = {
            "minimum": self.record_size(self.minimum),
            "optimum": {n: self.record_size(m) for n, m in self.optimum.items()},
        }
        return {f.name: getattr(self, f.name) for f in fields(self)} | sizes

    def record_size(self, m: Monomial) -> dict[str, Any]:
        """Returns the JSON record of a size; its prefactor is None if it is unknown."""
        return m.record() | ({} if self.exact else {"prefactor": None})


def find_circuits(rows: Sequence[Monomial], names: Sequence[str]) -> Iterator[tuple[tuple[int, ...], list[Expr]]]:
    """Yields every minimal set of monomials of which some product of powers contains none of the named quantities,
    small sets first.

    Args:
        rows: the monomials.
        names: the quantities that must cancel in the product.

    Yields:
        Pairs (indices of the monomials of the set, the powers to which they are taken).
    """
    smaller: list[set[int]] = []
    for chosen in (c for size in range(1, len(names) + 2) for c in combinations(range(len(rows)), size)):
        if any(s <= {*chosen} for s in smaller):
            continue
        space = sympy.Matrix(len(names), len(chosen), lambda i, j, of=chosen: rows[of[j]][names[i]]).nullspace()
        weights = [simplify_exponent(x) for x in space[0]] if len(space) == 1 else []
        if weights and all(w != 0 for w in weights):
            smaller.append({*chosen})
            yield chosen, weights


def find_minima(
    terms: Sequence[Monomial],
    bounds: Sequence[Relation],
    free: Sequence[str],
    growing: Sequence[str],
    dependent: Mapping[str, Monomial],
) -> Iterator[Minimum]:
    """Yields the minimum of a sum in each cell: a region in which the same terms are the largest ones at the minimum.

    Logarithms count as constants.

    Args:
        terms: the terms of the sum.
        bounds: constraints ``sum <= 1``.
        free: quantities to minimise over.
        growing: quantities that grow.
        dependent: quantities that are determined by the free ones, as monomials in them.
    """
    rows = [*terms, *(m for bound in bounds for m in bound.terms)]
    group = [None] * len(terms) + [k for k, bound in enumerate(bounds) for _ in bound.terms]
    seen = set()
    for chosen, weights in sorted(find_circuits(rows, free), key=lambda c: -len(c[0])):
        whole = _sum_weights(weights, chosen, group, None)
        shares = {k: simplify_exponent(w / whole) for k, w in zip(chosen, weights, strict=True)} if whole != 0 else {}
        signs = {k: find_sign(x) for k, x in shares.items()}
        if not shares or -1 in signs.values():
            continue
        parts = {
            k: simplify_exponent(x / _sum_weights(list(shares.values()), chosen, group, group[k]))
            for k, x in shares.items()
        }
        equal = {k: rows[k] * Monomial(1 / x) for k, x in parts.items()}
        first, *_ = active = [k for k in chosen if group[k] is None]
        ones = [equal[k] / equal[first] if group[k] is None else equal[k] for k in chosen if k != first]
        optimum = solve_for_ones(ones, free)
        minimum = equal[first].substitute(optimum)
        rest = {k: m.substitute(optimum) for k, m in enumerate(rows) if k not in chosen}
        ratios = [m / minimum if group[k] is None else m for k, m in rest.items()]
        answers = [_decide_condition(Monomial.of({growing[0]: -shares[k]}), growing) for k in chosen if not signs[k]]
        answers += [_decide_condition(m, growing) for m in ratios]
        conditions = [x for x in dict.fromkeys(answers) if isinstance(x, Condition)]
        for where in () if False in answers else _project_conditions(conditions, growing):
            strict = (Relation((c.ratio,), str(c), True) for c in where)
            key = frozenset(where), minimum.powers
            if key in seen or GrowthSystem(strict, growing[0], growing[1:]).core(True):
                continue
            seen.add(key)
            yield Minimum(
                tuple(terms[k] for k in active),
                tuple(shares[k] for k in active),
                tuple(dict.fromkeys(bounds[x].text for x in (group[k] for k in chosen) if x is not None)),
                minimum,
                optimum | {name: m.substitute(optimum) for name, m in dependent.items()},
                all(m.powers for m in ratios),
                tuple(c for c in conditions if not c.ratio.quantities <= set(growing)),
                tuple(where),
            )


def solve_for_ones(ones: Sequence[Monomial], free: Sequence[str]) -> dict[str, Monomial]:
    """Solves for the quantities at which every given monomial equals 1.

    If the monomials are too few to determine all quantities, the first ones are expressed as monomials in the others.
    """
    matrix = sympy.Matrix(len(ones), len(free), lambda i, j: ones[i][free[j]])
    pivots = list(matrix.rref()[1]) if ones else []
    kept = list(matrix.T.rref()[1]) if ones else []
    inverse = matrix.extract(kept, pivots).inv() if pivots else matrix
    rests = [ones[k].substitute({free[j]: Monomial() for j in pivots}) for k in kept]
    optimum = {}
    for i, j in enumerate(pivots):
        value = reduce(mul, (rest ** -inverse[i, k] for k, rest in enumerate(rests)))
        optimum[free[j]] = Monomial(sympy.powsimp(value.coefficient), value.powers)
    return optimum


# inside --------------------------------------------------------------------------------------------------------


def _sum_weights(weights: Sequence[Expr], chosen: Sequence[int], group: Sequence[int | None], of: int | None) -> Expr:
    """Returns the sum of the weights of those chosen terms that belong to the sum itself, or to one constraint.

    Args:
        weights: weights of the chosen terms.
        chosen: indices of the chosen terms.
        group: for every term, the constraint to which it belongs; None for a term of the sum itself.
        of: the constraint, or None for the sum.
    """
    return simplify_exponent(sympy.Add(*(w for k, w in zip(chosen, weights, strict=True) if group[k] == of)))


def _decide_condition(ratio: Monomial, growing: Sequence[str]) -> Condition | bool:
    """Decides ``ratio <= 1`` up to constants.

    Returns:
        True or False if the signs of exponents of growing quantities decide it, else the condition that remains.
    """
    powers = dict(ratio.powers)
    if powers.keys() <= set(growing):
        signs = {find_sign(e) for e in powers.values()}
        if signs <= {-1} or signs == {1}:
            return signs != {1}
        if len(powers) == 1:
            return Condition(Monomial.of({growing[0]: next(iter(powers.values()))}))
    order = [n for n in powers if n not in growing] + [n for n in reversed(growing) if n in powers]
    signed = [n for n in order if find_sign(powers[n]) is not None]
    return Condition(ratio.power, next(iter([*signed, *powers])))


def _project_conditions(
    conditions: Iterable[Condition], growing: Sequence[str], signs: Mapping[Expr, int] | None = None
) -> Iterator[list[Condition]]:
    """Projects conditions onto growing quantities and parameters (Fourier-Motzkin).

    Args:
        conditions: the conditions.
        growing: quantities that grow.
        signs: signs of exponents that depend on parameters. For any further one, both signs are tried.

    Yields:
        The projected conditions for each choice of signs; nothing if they are contradictory.
    """
    left, known = list(dict.fromkeys(conditions)), dict(signs or {})
    for name in sorted({n for c in left for n in c.ratio.quantities} - {*growing}):
        powers = {c: c.ratio[name] for c in left if c.ratio[name] != 0}
        signed = {c: known.get(e) or find_sign(e) for c, e in powers.items()}
        if open_ := [powers[c] for c, side in signed.items() if side is None]:
            for side in (1, -1):
                taken = Condition(Monomial.of({growing[0]: -side * open_[0]}))
                yield from _project_conditions([*left, taken], growing, {**known, open_[0]: side})
            return
        on = {c: c.ratio ** (1 / e) for c, e in powers.items()}
        pairs = [
            _decide_condition(on[a] / on[b], growing) for a in on for b in on if signed[a] == 1 and signed[b] == -1
        ]
        if False in pairs:
            return
        left = [c for c in left if c not in on] + [c for c in pairs if isinstance(c, Condition)]
    yield list(dict.fromkeys(left))
