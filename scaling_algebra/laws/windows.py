"""Windows of exponents: what linear inequalities between the exponents of quantities leave of one.

Law: where every quantity is a power of one that grows, a monomial at most 1 is one inequality between exponents. They
are solved by ``linear/clauses.py``. Who asks: ``feasible.py``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

import sympy

from scaling_algebra.errors import UsageError
from scaling_algebra.linear.clauses import Clause, ClauseSolver, Undecided
from scaling_algebra.linear.linear import Linear, Sense

from .inequalities import Inequality
from .monomials import Monomial, parameter

_GIVEN, _SIZE = "given", "size"
"""The label of what is no inequality, and the unknown that is minimised."""
Exponent = tuple[Mapping[str, Fraction], Fraction]
"""Coefficients by unknown, and a constant."""


@dataclass(frozen=True)
class End:
    """One end of a window.

    Attributes:
        value: None where there is no end.
        binding: labels of inequalities that make it, none of which can be left out. open: it takes a strict one.
    """

    value: Fraction | None
    binding: tuple[str, ...] = ()
    open: bool = False


@dataclass(frozen=True)
class Window:
    """From the least to the largest value of an exponent."""

    low: End
    high: End


def linear(m: Monomial, grows: str, where: str) -> Exponent:
    """The exponent of a monomial, in those of its quantities and in the names in the exponent of what grows.

    Raises:
        UsageError: it is not linear.

    Examples:
        >>> from .expressions import monomial
        >>> linear(monomial("K**2*d**(kappa/2 - 1)"), "d", "here")
        ({'K': Fraction(2, 1), 'kappa': Fraction(1, 2)}, Fraction(-1, 1))
    """
    counts: dict[str, Fraction] = {}
    for name, e in m.powers:
        if name != grows and not e.is_Rational:
            raise UsageError(f"{where}: {name} has the exponent {e}; only {grows} may have one with a name in it")
        counts |= {} if name == grows else {name: Fraction(str(e))}
    e = m[grows]
    names = sorted(str(s) for s in e.free_symbols)
    symbols = [parameter(name) for name in names]
    poly = sympy.Poly(e, *symbols) if names and e.is_polynomial(*symbols) else None
    if names and (poly is None or poly.total_degree() > 1):
        raise UsageError(f"{where}: the exponent {e} of {grows} is not linear in {', '.join(names)}")
    if both := counts.keys() & {*names}:
        raise UsageError(f"{where}: {min(both)} is a quantity and stands in an exponent; give one another name")
    if poly is None:
        return counts, Fraction(str(e))
    counts |= {name: Fraction(str(poly.coeff_monomial(s))) for name, s in zip(names, symbols, strict=True)}
    return counts, Fraction(str(poly.coeff_monomial(1)))


class Exponents:
    """Inequalities between exponents.

    Args:
        strict: strict inequalities do not hold where both sides are equal.
        logs: logarithms count, each as an unknown that is not negative.

    Raises:
        UsageError: they are not linear.

    Examples:
        >>> from .expressions import monomial
        >>> rows = [Inequality(monomial("x**2/d"), label="a"), Inequality(monomial("1/x"), True, "b")]
        >>> w = Exponents(rows, "d").window(monomial("x"))
        >>> w.low, w.high
        (End(value=Fraction(0, 1), binding=('b',), open=True), End(value=Fraction(1, 2), binding=('a',), open=False))
    """

    def __init__(self, rows: Iterable[Inequality], grows: str, strict: bool = False, logs: bool = False) -> None:
        self._grows, self._rows, self._given, self._loose = grows, list[Clause](), list[Clause](), set[str]()
        self.unknowns: dict[str, None] = {}
        for row in rows:
            counts, constant = linear(row.ratio, grows, row.label)
            self.unknowns |= dict.fromkeys(counts)
            sizes = {f"log log {a}": Fraction(str(e)) for a, e in row.ratio.logs if e.is_Rational} if logs else {}
            self._given += [_given({size: Fraction(1)}, Fraction(0), ">=") for size in sizes]
            atom = _compared({**counts, **sizes}, constant, "<" if strict and row.strict else "<=")
            self._rows.append(Clause(row.label, (atom,), ""))
            self._loose |= set() if row.strict else {row.label}

    def core(self, labels: Collection[str] | None = None, *more: Clause) -> tuple[str, ...]:
        """Labels of a smallest contradictory set, with more conditions; empty if there is none.

        Args:
            labels: of inequalities that may be in it.
        """
        solver, asked = ClauseSolver(), [row for row in self._rows if labels is None or row.label in labels]
        for row in asked:
            solver.add(row)
        if solver.possible([*(row.label for row in asked), _GIVEN], given := [*self._given, *more]):
            return ()
        return tuple(label for label in solver.core(given) if label != _GIVEN)

    def window(self, m: Monomial) -> Window:
        """The exponents that a monomial may have; there must be some."""
        return Window(self._end(m, 1), self._end(m, -1))

    def _end(self, m: Monomial, side: int) -> End:
        counts, constant = linear(m, self._grows, str(m))
        turned, constant = {name: side * x for name, x in counts.items()}, side * constant
        try:
            least = ClauseSolver().least(_SIZE, [*self._rows, _given({**turned, _SIZE: Fraction(-1)}, constant, "=")])
        except Undecided:
            return End(None)
        assert least is not None
        beyond = _given(turned, constant - least, "<")
        plain = self.core(self._loose, beyond)
        return End(side * least, plain or self.core(None, beyond), not plain)


def _given(counts: Mapping[str, Fraction], constant: Fraction, sense: Sense) -> Clause:
    return Clause(_GIVEN, (_compared(counts, constant, sense),), "")


def _compared(counts: Mapping[str, Fraction], constant: Fraction, sense: Sense) -> Linear:
    scale = lcm(*(x.denominator for x in counts.values()))
    return Linear(tuple((name, int(x * scale)) for name, x in counts.items() if x), sense, constant * scale)
