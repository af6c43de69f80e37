"""Circuits: the smallest sets of rows that balance, and the minimum of a sum where each of them does.

Law: with risk for the minimum, every term is at most the risk and every constraint at most 1. The least exponent of the
risk is a linear program, and a corner of its dual is a circuit: rows whose exponents cancel with positive shares, no
part of which does so. A circuit is a nullspace, so that parameters may stay symbols. At the optimum a term is its share
of the risk, and a term of a constraint its share of that constraint (geometric programming), hence the prefactors.
Who asks: ``balance.py``, ``recipes/horizon.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import reduce
from itertools import combinations
from operator import mul
from typing import Any

import sympy

from .monomials import Expr, Monomial, Relation, simplified, written
from .systems import GrowthSystem, sign


@dataclass(frozen=True)
class Condition:
    """``ratio <= 1`` as it is printed.

    Attributes:
        alone: the quantity on one side alone; empty if only the sign of an exponent decides.
    """

    ratio: Monomial
    alone: str = ""

    def __str__(self) -> str:
        if not self.alone:
            above = sympy.fraction(sympy.together(-self.ratio.powers[0][1]))
            whole = sympy.expand(above[0] * (1 if above[1].is_positive else above[1])).primitive()[1]
            up = sympy.Add(*(t for t in sympy.Add.make_args(whole) if t.as_coeff_Mul()[0] > 0))
            return f"{written(up)} > {written(sympy.Add(up, -whole))}"
        direction = sign(self.ratio[self.alone])
        if direction is None:
            return f"{self.ratio} <= 1"
        return f"{self.alone} {'<=' if direction > 0 else '>='} {self.ratio.solved(self.alone)}"


@dataclass(frozen=True)
class Minimum:
    """The minimum in one cell, where one set of terms balances.

    Attributes:
        active: the terms that balance, as they are written; shares: of the minimum, by active term.
        binding: constraints that hold with equality.
        minimum: the least value; optimum: where it is reached, by quantity. Their coefficients are those of the leading
            order where ``exact``.
        window: bounds on quantities that the minimum leaves open. where: bounds of the cell, up to constants.
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
        """For JSON."""
        sizes = {"minimum": self.shown(self.minimum), "optimum": {n: self.shown(m) for n, m in self.optimum.items()}}
        return {f.name: getattr(self, f.name) for f in fields(self)} | sizes

    def shown(self, m: Monomial) -> dict[str, Any]:
        """A size for JSON: no prefactor where none is known."""
        return m.record() | ({} if self.exact else {"prefactor": None})


def circuits(rows: Sequence[Monomial], names: Sequence[str]) -> Iterator[tuple[tuple[int, ...], list[Expr]]]:
    """Every smallest set of rows, by index, with exponents that cancel the named quantities; small sets first."""
    smaller: list[set[int]] = []
    for chosen in (c for size in range(1, len(names) + 2) for c in combinations(range(len(rows)), size)):
        if any(s <= {*chosen} for s in smaller):
            continue
        space = sympy.Matrix(len(names), len(chosen), lambda i, j, of=chosen: rows[of[j]][names[i]]).nullspace()
        weights = [simplified(x) for x in space[0]] if len(space) == 1 else []
        if weights and all(w != 0 for w in weights):
            smaller.append({*chosen})
            yield chosen, weights


def minima(
    terms: Sequence[Monomial],
    bounds: Sequence[Relation],
    free: Sequence[str],
    growing: Sequence[str],
    dependent: Mapping[str, Monomial],
) -> Iterator[Minimum]:
    """The minimum of each cell; logarithms do not count.

    Args:
        bounds: relations ``sum <= 1``. dependent: quantities that follow from those that are free.
    """
    rows = [*terms, *(m for bound in bounds for m in bound.terms)]
    group = [None] * len(terms) + [k for k, bound in enumerate(bounds) for _ in bound.terms]
    seen = set()
    for chosen, weights in sorted(circuits(rows, free), key=lambda c: -len(c[0])):
        whole = _total(weights, chosen, group, None)
        shares = {k: simplified(w / whole) for k, w in zip(chosen, weights, strict=True)} if whole != 0 else {}
        signs = {k: sign(x) for k, x in shares.items()}
        if not shares or -1 in signs.values():
            continue
        parts = {k: simplified(x / _total(list(shares.values()), chosen, group, group[k])) for k, x in shares.items()}
        equal = {k: rows[k] * Monomial(1 / x) for k, x in parts.items()}
        first, *_ = active = [k for k in chosen if group[k] is None]
        ones = [equal[k] / equal[first] if group[k] is None else equal[k] for k in chosen if k != first]
        optimum = solved(ones, free)
        minimum = equal[first].substituted(optimum)
        rest = {k: m.substituted(optimum) for k, m in enumerate(rows) if k not in chosen}
        ratios = [m / minimum if group[k] is None else m for k, m in rest.items()]
        answers = [_decided(Monomial.of({growing[0]: -shares[k]}), growing) for k in chosen if not signs[k]]
        answers += [_decided(m, growing) for m in ratios]
        conditions = [x for x in dict.fromkeys(answers) if isinstance(x, Condition)]
        for where in () if False in answers else _projected(conditions, growing):
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
                optimum | {name: m.substituted(optimum) for name, m in dependent.items()},
                all(m.powers for m in ratios),
                tuple(c for c in conditions if not c.ratio.quantities <= set(growing)),
                tuple(where),
            )


def solved(ones: Sequence[Monomial], free: Sequence[str]) -> dict[str, Monomial]:
    """The values of the first independent quantities at which every monomial is 1, if there are any."""
    matrix = sympy.Matrix(len(ones), len(free), lambda i, j: ones[i][free[j]])
    pivots = list(matrix.rref()[1]) if ones else []
    kept = list(matrix.T.rref()[1]) if ones else []
    inverse = matrix.extract(kept, pivots).inv() if pivots else matrix
    rests = [ones[k].substituted({free[j]: Monomial() for j in pivots}) for k in kept]
    optimum = {}
    for i, j in enumerate(pivots):
        value = reduce(mul, (rest ** -inverse[i, k] for k, rest in enumerate(rests)))
        optimum[free[j]] = Monomial(sympy.powsimp(value.coefficient), value.powers)
    return optimum


# inside --------------------------------------------------------------------------------------------------------


def _total(weights: Sequence[Expr], chosen: Sequence[int], group: Sequence[int | None], of: int | None) -> Expr:
    """The weight of one group."""
    return simplified(sympy.Add(*(w for k, w in zip(chosen, weights, strict=True) if group[k] == of)))


def _decided(ratio: Monomial, growing: Sequence[str]) -> Condition | bool:
    """``ratio <= 1`` up to constants: True or False where the signs of exponents of growing quantities decide it."""
    powers = dict(ratio.powers)
    if powers.keys() <= set(growing):
        signs = {sign(e) for e in powers.values()}
        if signs <= {-1} or signs == {1}:
            return signs != {1}
        if len(powers) == 1:
            return Condition(Monomial.of({growing[0]: next(iter(powers.values()))}))
    order = [n for n in powers if n not in growing] + [n for n in reversed(growing) if n in powers]
    signed = [n for n in order if sign(powers[n]) is not None]
    return Condition(ratio.power, next(iter([*signed, *powers])))


def _projected(
    conditions: Iterable[Condition], growing: Sequence[str], signs: Mapping[Expr, int] | None = None
) -> Iterator[list[Condition]]:
    """The conditions' projection on growing quantities and parameters (Fourier-Motzkin), unless they cannot hold.

    Args:
        signs: of exponents that parameters decide; each that is met is taken to be positive, and to be negative.
    """
    left, known = list(dict.fromkeys(conditions)), dict(signs or {})
    for name in sorted({n for c in left for n in c.ratio.quantities} - {*growing}):
        powers = {c: c.ratio[name] for c in left if c.ratio[name] != 0}
        signed = {c: known.get(e) or sign(e) for c, e in powers.items()}
        if open_ := [powers[c] for c, side in signed.items() if side is None]:
            for side in (1, -1):
                taken = Condition(Monomial.of({growing[0]: -side * open_[0]}))
                yield from _projected([*left, taken], growing, {**known, open_[0]: side})
            return
        on = {c: c.ratio ** (1 / e) for c, e in powers.items()}
        pairs = [_decided(on[a] / on[b], growing) for a in on for b in on if signed[a] == 1 and signed[b] == -1]
        if False in pairs:
            return
        left = [c for c in left if c not in on] + [c for c in pairs if isinstance(c, Condition)]
    yield list(dict.fromkeys(left))
