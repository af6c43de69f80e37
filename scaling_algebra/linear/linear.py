"""Linear forms compared with zero: inequalities, equations, and the planes that bound cones of rays.

The names in a form are axes, which stand for their rates, and unknown exponents.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import gcd, lcm
from operator import eq, ge, gt, le, lt, ne
from typing import Literal

Sense = Literal["<=", ">=", "!=", "<", ">", "="]
SIDES: tuple[Sense, Sense] = ("<=", ">=")
"""The two inequalities that make up an equation."""
COMPARED = {"<=": le, ">=": ge, "!=": ne, "<": lt, ">": gt, "=": eq}
_NOT: dict[Sense, Sense] = {"<=": ">", ">=": "<", "<": ">=", ">": "<=", "=": "!=", "!=": "="}
_STRICT: dict[Sense, Sense] = {"<=": "<", ">=": ">"}

Vector = tuple[int, ...]
"""A direction, as coprime integers."""
Row = tuple[Mapping[str, int | Fraction], Fraction]
"""An equation: the coefficient of each unknown, and the right-hand side."""
Solved = dict[str, tuple[dict[str, Fraction], Fraction]]
"""Maps each solved unknown to the coefficients of the free unknowns and the right-hand side."""


@dataclass(frozen=True)
class Linear:
    """A linear inequality or equation between named numbers: ``constant + sum(count * name)`` compared with 0.

    Attributes:
        counts: pairs (name, integer coefficient).
        sense: the comparison with 0, such as ``<=``.
        constant: the constant term.
    """

    counts: tuple[tuple[str, int], ...]
    sense: Sense = "="
    constant: Fraction = Fraction(0)

    @classmethod
    def of(cls, counts: Mapping[str, Fraction | int], sense: Sense = "=") -> Linear:
        """Makes an equation or inequality without a constant term. The coefficients are multiplied by their common
        denominator, so that they are integers."""
        scale = lcm(*(Fraction(n).denominator for n in counts.values()))
        return cls(tuple((name, int(n * scale)) for name, n in counts.items() if n), sense)

    @classmethod
    def wall(cls, axes: Sequence[str], values: Iterable[Fraction | int]) -> Linear:
        """Makes the equation of the plane on which ``sum(value * axis) = 0``, in canonical form: coprime coefficients,
        the last one positive. Such planes bound cones of rays.

        Examples:
            >>> str(Linear.wall(("N", "N_e", "M"), [2, -2, -2]))
            'N_e + M = N'
        """
        whole = direction(values)
        sign = 1 if next(x for x in reversed(whole) if x) > 0 else -1
        return cls(tuple((axis, sign * x) for axis, x in zip(axes, whole, strict=True) if x))

    def over(self, axes: Sequence[str]) -> Vector:
        """Returns the coefficients of the given names (axes), with 0 for a name that does not occur."""
        counts = dict(self.counts)
        return tuple(counts.get(axis, 0) for axis in axes)

    def at(self, rates: Mapping[str, Fraction | int]) -> Fraction:
        return sum((n * Fraction(rates[name]) for name, n in self.counts), self.constant)

    def holds(self, rates: Mapping[str, Fraction | int]) -> bool:
        return bool(COMPARED[self.sense](self.at(rates), 0))

    def but(self, sense: Sense) -> Linear:
        return replace(self, sense=sense)

    def facing(self, size: Fraction | int) -> Linear:
        """Returns one of the two half-spaces that this plane, ``constant + sum(count * name) = 0``, bounds: the one
        with ``>= 0`` if ``size`` is positive, or with ``<= 0`` if it is negative. If ``size`` is 0, returns the plane
        itself.
        """
        return self.but("=" if not size else ">=" if size > 0 else "<=")

    @property
    def wall_of(self) -> Linear:
        """The equation of the plane that bounds this half-space."""
        return self.but("=")

    @property
    def complement(self) -> Linear:
        return self.but(_NOT[self.sense])

    @property
    def strict(self) -> Linear:
        """The same half-space without its boundary; an equation is returned unchanged."""
        return self.but(_STRICT.get(self.sense, self.sense))

    @property
    def beyond(self) -> Linear:
        """The half-space on the other side of the boundary, including the boundary."""
        return self.but(">=" if self.sense == "<=" else "<=")

    def __str__(self) -> str:
        parts = []
        for sign in (1, -1):
            terms = [(abs(n), name) for name, n in self.counts if n * sign > 0]
            parts.append(" + ".join(name if n == 1 else f"{n} {name}" for n, name in terms) or "0")
        return f" {self.sense} ".join(parts)


def direction(values: Iterable[Fraction | int]) -> Vector:
    """Returns the vector of coprime integers that points in the direction of a vector.

    Examples:
        >>> direction([Fraction(1, 2), 0, Fraction(-1, 3)])
        (3, 0, -2)
    """
    exact = [Fraction(x) for x in values]
    scale = lcm(*(x.denominator for x in exact))
    whole = [int(x * scale) for x in exact]
    common = gcd(*whole) or 1
    return tuple(x // common for x in whole)


def dot(a: Sequence[Fraction | int], b: Sequence[Fraction | int]) -> Fraction | int:
    return sum(x * y for x, y in zip(a, b, strict=True))


def eliminate(rows: Iterable[Row]) -> tuple[Solved, bool]:
    """Solves linear equations by elimination. Each equation that is independent of the earlier ones is solved for its
    first unknown.

    Returns:
        A map from each solved unknown to (coefficients of the other unknowns, right-hand side), and whether the
        remaining equations are consistent with it.

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
            free, value = solved[name]
            right -= factor * value
            for k, x in free.items():
                left[k] = left.get(k, Fraction(0)) - factor * x
        left = {k: x for k, x in left.items() if x}
        if not left:
            consistent = consistent and not right
            continue
        pivot = next(iter(left))
        scale = left.pop(pivot)
        new = ({k: x / scale for k, x in left.items()}, right / scale)
        for name, (free, value) in solved.items():
            if pivot in free:
                factor = free.pop(pivot)
                merged = {k: free.get(k, Fraction(0)) - factor * new[0].get(k, Fraction(0)) for k in {**free, **new[0]}}
                solved[name] = ({k: x for k, x in merged.items() if x}, value - factor * new[1])
        solved[pivot] = new
    return solved, consistent


def solve_linear(rows: Iterable[Row], names: list[str]) -> dict[str, Fraction] | None:
    """Returns the exact values of the unknowns ``names`` in a system of linear equations; None if the equations do not
    determine one of them. Equations that depend on earlier ones are ignored, even if they contradict them."""
    solved, _ = eliminate(rows)
    return {name: solved[name][1] for name in names} if all(n in solved and not solved[n][0] for n in names) else None
