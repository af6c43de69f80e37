"""Exact linear systems with few integer coefficients: the one place where equations between exponents are solved.

Read next: ``newton.py`` (what the equations are).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

Row = tuple[dict[str, int], Fraction]
"""Integer coefficients by unknown, and the right-hand side."""
Equation = tuple[Mapping[str, int | Fraction], Fraction]
"""The same with rational coefficients."""
Solved = dict[str, tuple[dict[str, Fraction], Fraction]]
"""By unknown that is solved for: coefficients of the free ones, and the right-hand side."""


def eliminate(rows: Iterable[Equation], order: Sequence[str] = ()) -> tuple[Solved, bool]:
    """Solves the first independent rows; is the rest consistent with them?

    Args:
        order: which unknown of a row is solved for: the first of these; without it, the first of the row.

    Examples:
        >>> eliminate([({"x": 1, "y": 2}, Fraction(3)), ({"x": 2, "y": 4}, Fraction(7))])
        ({'x': ({'y': Fraction(2, 1)}, Fraction(3, 1))}, False)
    """
    solved: Solved = {}
    consistent = True
    for row, rhs in rows:
        left = {name: Fraction(n) for name, n in row.items() if n}
        right = rhs
        for name in [n for n in left if n in solved]:
            factor = left.pop(name)
            other, value = solved[name]
            right -= factor * value
            for k, x in other.items():
                left[k] = left.get(k, Fraction(0)) - factor * x
        left = {k: x for k, x in left.items() if x}
        if not left:
            consistent = consistent and not right
            continue
        pivot = min(left, key=order.index) if order else next(iter(left))
        scale = left.pop(pivot)
        new = ({k: x / scale for k, x in left.items()}, right / scale)
        for name, (other, value) in solved.items():
            if pivot in other:
                factor = other.pop(pivot)
                merged = {
                    k: other.get(k, Fraction(0)) - factor * new[0].get(k, Fraction(0)) for k in {**other, **new[0]}
                }
                solved[name] = ({k: x for k, x in merged.items() if x}, value - factor * new[1])
        solved[pivot] = new
    return solved, consistent


def solve_linear(rows: Iterable[Equation], names: list[str]) -> dict[str, Fraction] | None:
    """The exact solution of the first independent rows; None if they leave an unknown free."""
    solved, _ = eliminate(rows)
    return {name: solved[name][1] for name in names} if all(n in solved and not solved[n][0] for n in names) else None
