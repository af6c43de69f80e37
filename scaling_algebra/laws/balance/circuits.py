"""Circuits: the smallest sets of terms that balance, and the cell of each.

A circuit is a set of terms whose exponents cancel with positive shares, and no part of which does so: the nullspace of
their exponents has one dimension. At the optimum every term is its share of the sum.
Read next: ``conditions.py`` (what bounds a cell), ``balance.py`` (who asks).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import sympy

from scaling_algebra.errors import UsageError

from ..expressions import Expr, Monomial, monomial, simplified
from .conditions import Condition, condition, possible, sign


@dataclass(frozen=True)
class Row:
    """A term (weight 1), or a constraint ``term <= 1`` (weight 0), of the linear program."""

    term: Monomial
    weight: int
    text: str


@dataclass(frozen=True)
class Cell:
    """Where one set of terms balances.

    Attributes:
        active: the terms that balance, as they are written; shares: of the minimum, by active term.
        binding: constraints that hold with equality.
        minimum: the least value; optimum: where it is reached, by quantity. Their coefficients are those of the leading
            order where ``exact``.
        window: what bounds quantities that the minimum leaves open.
        where: what must hold of the rest, up to constants.
    """

    active: tuple[Monomial, ...]
    shares: tuple[Expr, ...]
    binding: tuple[str, ...]
    minimum: Monomial
    optimum: Mapping[str, Monomial]
    exact: bool
    window: tuple[Condition, ...]
    where: tuple[Condition, ...]

    def reach(self, target: str, growing: str) -> dict[str, Monomial]:
        """The growing quantity, and the optimum, at which the minimum equals a monomial such as ``eps**2``.

        Raises:
            UsageError: the minimum does not depend on it.
        """
        if (e := self.minimum[growing]) == 0:
            raise UsageError(f"the minimum does not depend on {growing}; no size of it reaches {target}")
        rest = Monomial.of({n: x for n, x in self.minimum.powers if n != growing}, self.minimum.coefficient)
        size = (monomial(target) * rest**sympy.S.NegativeOne) ** (1 / e)
        return {growing: size, **{name: m.substituted({growing: size}) for name, m in self.optimum.items()}}


def cells(
    rows: Sequence[Row], free: Sequence[str], growing: Sequence[str], dependent: Mapping[str, Monomial], logs: bool
) -> Iterator[Cell]:
    seen = set()
    for chosen, shares in _circuits(rows, free):
        signs = [sign(x) for x in shares]
        if any(s is not None and s < 0 for s in signs):
            continue
        optimum = _optimum(chosen, shares, free)
        base, share = next((row, x) for row, x in zip(chosen, shares, strict=True) if row.weight)
        minimum = base.term.substituted(optimum) * Monomial(1 / share)
        found: list[Condition | bool] = [Condition(positive=x) for x, s in zip(shares, signs, strict=True) if s is None]
        tied = False
        for row in rows:
            if row not in chosen:
                ratio = row.term.substituted(optimum) * (minimum**sympy.S.NegativeOne if row.weight else Monomial())
                tied |= not ratio.powers
                found.append(condition(Monomial.of(dict(ratio.powers)), growing))
        if False in found:
            continue
        open_ = [c for c in dict.fromkeys(found) if isinstance(c, Condition)]
        window = [c for c in open_ if c.ratio is not None and set(dict(c.ratio.powers)) - {*growing}]
        where = _projected(open_, growing)
        if (
            where is None
            or (where and possible([where], growing) is False)
            or (frozenset(where), minimum.powers) in seen
        ):
            continue
        seen.add((frozenset(where), minimum.powers))
        terms = [(row.term, x) for row, x in zip(chosen, shares, strict=True) if row.weight]
        every = optimum | {name: m.substituted(optimum) for name, m in dependent.items()}
        yield Cell(
            tuple(t for t, _ in terms),
            tuple(x for _, x in terms),
            tuple(row.text for row in chosen if not row.weight),
            minimum,
            every,
            not (logs or tied),
            tuple(window),
            tuple(where),
        )


def _circuits(rows: Sequence[Row], free: Sequence[str]) -> Iterator[tuple[tuple[Row, ...], list[Expr]]]:
    """Smallest sets of rows whose exponents cancel, with their shares; largest sets first."""
    for size in range(len(free) + 1, 0, -1):
        for chosen in combinations(rows, size):
            space = sympy.Matrix(len(free), size, lambda i, j, of=chosen: of[j].term[free[i]]).nullspace()
            if len(space) != 1:
                continue
            weights = [simplified(x) for x in space[0]]
            total = simplified(sum(w for w, row in zip(weights, chosen, strict=True) if row.weight))
            if all(w != 0 for w in weights) and total != 0:
                yield chosen, [simplified(w / total) for w in weights]


def _optimum(chosen: Sequence[Row], shares: Sequence[Expr], free: Sequence[str]) -> dict[str, Monomial]:
    """Where every active term is its share of the sum, and every binding constraint an equality."""
    at = next(i for i, row in enumerate(chosen) if row.weight)
    base, inverse = chosen[at], Monomial(1 / shares[at])
    equations = []  # monomials that equal 1
    for row, share in zip(chosen, shares, strict=True):
        if row is not base:
            scale = (base.term * inverse * Monomial(share)) ** sympy.S.NegativeOne if row.weight else Monomial()
            equations.append(row.term * scale)
    matrix = sympy.Matrix(len(equations), len(free), lambda i, j: equations[i][free[j]])
    solved = list(matrix.rref()[1]) if equations else []
    inverted = matrix[:, solved].inv() if solved else matrix
    rests = [Monomial.of({n: e for n, e in m.powers if n not in [free[j] for j in solved]}, m.coefficient)
             for m in equations]  # fmt: skip
    found = {}
    for i, j in enumerate(solved):
        value = Monomial()
        for k, rest in enumerate(rests):
            value *= rest ** -inverted[i, k]
        found[free[j]] = Monomial(sympy.powsimp(value.coefficient), value.powers)
    return found


def _projected(conditions: Sequence[Condition], growing: Sequence[str]) -> list[Condition] | None:
    """What conditions say of growing quantities and parameters alone (Fourier-Motzkin); None if they cannot hold."""
    left = list(conditions)
    names = sorted({n for c in left if c.ratio is not None for n, _ in c.ratio.powers} - {*growing})
    for name in names:
        on = [c.ratio for c in left if c.ratio is not None and c.ratio[name] != 0]
        left = [c for c in left if c.ratio is None or c.ratio[name] == 0]
        above = [r ** (1 / r[name]) for r in on if sign(r[name]) == 1]
        below = [r ** (-1 / r[name]) for r in on if sign(r[name]) == -1]
        made = [condition(a * b, growing) for a in above for b in below]
        if False in made:
            return None
        left += [c for c in made if isinstance(c, Condition)]
    return list(dict.fromkeys(left))
