"""Exact linear systems with few integer coefficients: the one place where equations between exponents are solved.

Read next: ``newton.py`` (what the equations are).
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

Row = tuple[dict[str, int], Fraction]
"""Integer coefficients by unknown, and the right-hand side."""


def solve_linear(rows: Iterable[Row], names: list[str]) -> dict[str, Fraction] | None:
    """The exact solution of the first independent rows; None if they leave an unknown free."""
    solved: dict[str, tuple[dict[str, Fraction], Fraction]] = {}
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
            continue
        pivot = next(iter(left))
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
    return {name: solved[name][1] for name in names} if all(n in solved and not solved[n][0] for n in names) else None
