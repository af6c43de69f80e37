"""Systems of monomials that are at most 1: whether they are consistent, and which exponents they allow.

Law: in units of the logarithm of one growing quantity, the logarithm of a monomial is a linear form in the exponents of
the other quantities. If an exponent contains parameters, the form contains products of unknowns.
``linear/clauses.py`` solves both. Used by: ``minima.py`` (which terms balance), ``assumptions.py`` (which exponents
are allowed).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import lcm

import sympy

from scaling_algebra.errors import UsageError, check_names
from scaling_algebra.linear.clauses import TIMES, Clause, ClauseSolver, Undecided
from scaling_algebra.linear.linear import Linear, Sense

from .monomials import Expr, Monomial, Relation, parameter, simplify_exponent

_GIVEN, _SIZE, _ONE = "", " size", ""
"""The label of what is no row, the unknown that is minimised, and the name of a constant."""
Form = Mapping[str, Fraction]
"""A sum of products of unknowns: the coefficient of each product."""


@dataclass(frozen=True)
class End:
    """One end of the range of an exponent.

    Attributes:
        value: the end; None if the range is unbounded.
        binding: labels of the relations that together imply this end; if one of them were omitted, it would not follow.
        open: True if the end itself is excluded, because it follows from a strict relation.
    """

    value: Fraction | None
    binding: tuple[str, ...] = ()
    open: bool = False


@dataclass(frozen=True)
class Window:
    """The range of an exponent, from ``low`` to ``high``."""

    low: End
    high: End


class GrowthSystem:
    """Relations between powers of one growing quantity.

    Constants do not count, and powers of logarithms only where this is requested. Equal powers violate a strict
    relation.

    Args:
        rows: the relations, each labelled by its text.
        unit: the growing quantity.
        positive: further quantities that grow; parameters are then positive numbers. If None, exponents of quantities
            and parameters may be any numbers.

    Examples:
        >>> from .expressions import monomial, relation
        >>> w = GrowthSystem([relation("x**2 <= d"), relation("1 << x")], "d").window(monomial("x"))
        >>> w.low, w.high.value
        (End(value=Fraction(0, 1), binding=('1 << x',), open=True), Fraction(1, 2))
    """

    def __init__(self, rows: Iterable[Relation], unit: str, positive: Iterable[str] | None = None) -> None:
        self._unit, self._rows = unit, [(row, m, log_form(m, unit)) for row in rows for m in row.terms]
        names = (name for *_, x in self._rows for product in x for name in product.split(TIMES) if name)
        self.unknowns = tuple(dict.fromkeys(names))
        parameters = (name for row, *_ in self._rows for name in sorted(row.parameters))
        held = () if positive is None else dict.fromkeys((*positive, *parameters))
        self._facts = [_make_clause(_GIVEN, {name: Fraction(1)}, ">") for name in held]

    def core(
        self, strict: bool = False, logs: bool = False, loose: bool = False, more: Sequence[Clause] = ()
    ) -> tuple[str, ...]:
        """Returns the labels of a smallest contradictory set of relations; empty if the relations are consistent.

        Args:
            strict: whether equal powers violate a strict relation (``<<``).
            logs: whether powers of logarithms count, as non-negative unknowns.
            loose: whether strict relations are omitted.
            more: further constraints on the exponents to take into account.
        """
        given, rows = [*self._facts, *more], list[Clause]()
        for row, m, sizes in self._rows:
            if not (row.strict and loose):
                logarithms = [(f"log {a}".replace(TIMES, " "), e) for a, e in m.logs if logs and e.is_Rational]
                inside = {name: Fraction(str(e)) for name, e in logarithms}
                given += [_make_clause(_GIVEN, {name: Fraction(1)}, ">=") for name in inside]
                rows.append(_make_clause(row.text, {**sizes, **inside}, "<" if strict and row.strict else "<="))
        solver, labels = ClauseSolver(), list(dict.fromkeys(clause.label for clause in rows))

        def is_refuted(kept: Sequence[str]) -> bool:
            return solver.can_hold([*given, *(clause for clause in rows if clause.label in kept)]) is False

        if not is_refuted(labels):
            return ()
        for label in tuple(reversed(labels)):
            if is_refuted(rest := [name for name in labels if name != label]):
                labels = rest
        return tuple(labels)

    def windows(self) -> dict[str, Window]:
        """Returns the range of the exponent of each quantity and of each parameter in an exponent, by name. The
        system must be consistent.
        """
        return {name: self._window({name: Fraction(1)}) for name in self.unknowns}

    def window(self, m: Monomial) -> Window:
        """Returns the range of a monomial's exponent. The system must be consistent.

        Raises:
            UsageError: a quantity that occurs in no relation.
        """
        sizes = log_form(m, self._unit)
        check_names("quantity", sorted(sizes.keys() - {_ONE}), sorted(self.unknowns))
        return self._window(sizes)

    def _window(self, sizes: Form) -> Window:
        return Window(self._end(sizes, 1), self._end(sizes, -1))

    def _end(self, sizes: Form, side: int) -> End:
        """Returns one end of the range of a linear form: the lower end if ``side`` is 1, the upper end if it is -1."""
        turned = {name: side * x for name, x in sizes.items()}
        rows = [_make_clause(row.text, x, "<=") for row, _, x in self._rows]
        try:
            least = ClauseSolver().least(_SIZE, [*rows, _make_clause(_GIVEN, {**turned, _SIZE: Fraction(-1)}, "=")])
        except Undecided:
            return End(None)
        assert least is not None
        beyond = [_make_clause(_GIVEN, {**turned, _ONE: turned.get(_ONE, Fraction(0)) - least}, "<")]
        plain = self.core(loose=True, more=beyond)
        return End(side * least, plain or self.core(more=beyond), not plain)


def have_gap(groups: Iterable[Iterable[Monomial]], growing: Sequence[str]) -> bool:
    """Tests whether some values of the growing quantities lie in none of several cells.

    At such values every cell has a condition that is violated.

    Args:
        groups: for each cell, monomials that must be at most 1 in it.
        growing: quantities that grow.
    """
    forms = [[log_form(m, growing[0]) for m in group] for group in groups]
    names = {name for group in forms for x in group for product in x for name in product.split(TIMES) if name}
    apart = [Clause(_GIVEN, tuple(_make_linear(x, ">") for x in group), "") for group in forms]
    facts = [_make_clause(_GIVEN, {name: Fraction(1)}, ">") for name in sorted(names)]
    return ClauseSolver().can_hold([*facts, *apart]) is True


def check_linear(m: Monomial, unit: str, where: str) -> None:
    """Checks that the logarithm of a monomial is linear in exponents of quantities and parameters.

    Raises:
        UsageError: it is not; the message begins with ``where``.
    """
    for name, e in m.powers:
        if name != unit and not e.is_Rational:
            raise UsageError(f"{where}: the exponent {e} of {name} contains a parameter; only exponents of {unit} may")
    e = sympy.expand(m[unit])
    if e.free_symbols and not (e.is_polynomial() and sympy.Poly(e).total_degree() == 1):
        names = ", ".join(sorted(map(str, e.free_symbols)))
        raise UsageError(
            f"{where}: the exponent {m[unit]} of {unit} is not linear in {names}; give values of some of them"
        )


@lru_cache(maxsize=2**12)
def log_form(m: Monomial, unit: str) -> Form:
    """Returns the logarithm of a monomial, divided by log(unit), as a linear form. The coefficient of the monomial is
    ignored.

    Where an exponent has a denominator with parameters, the form is multiplied by this denominator, which is
    positive, so that signs stay.
    """
    total = sympy.Add(*(e * (1 if name == unit else parameter(name)) for name, e in m.powers))
    whole = sympy.expand(total) if total.is_polynomial() else _sign_numerator(total)
    symbols = sorted(whole.free_symbols, key=str)
    terms = sympy.Poly(whole, *symbols).terms() if symbols else [((), whole)]
    return {TIMES.join(str(s) for s, n in zip(symbols, powers, strict=True) for _ in range(n)): Fraction(str(x))
            for powers, x in terms if x}  # fmt: skip


@lru_cache(maxsize=2**14)
def find_sign(e: Expr) -> int | None:
    """Returns the sign of a rational function of positive parameters: 1, 0, -1, or None if it depends on them.

    Examples:
        >>> from .expressions import exponent
        >>> find_sign(exponent("-2*beta/(2*beta + d)")), find_sign(exponent("beta - d"))
        (-1, None)
    """
    e = simplify_exponent(e)
    if e.is_number:
        return int(sympy.sign(e))
    product = 1
    for factor in sympy.Mul.make_args(sympy.factor(_sign_numerator(e))):
        base, power = factor.as_base_exp()
        signs = {int(sympy.sign(t.as_coeff_Mul()[0])) for t in sympy.Add.make_args(sympy.expand(base))}
        if len(signs) != 1:
            return None
        product *= signs.pop() if power % 2 else 1
    return product


def _sign_numerator(e: Expr) -> Expr:
    """Returns a polynomial that has the sign of a rational function of positive parameters."""
    above, below = sympy.fraction(sympy.together(e))
    below = sympy.factor(below)
    return above if sympy.sign(below) == 1 or below.is_positive else sympy.expand(above * below)


def _make_linear(sizes: Form, sense: Sense) -> Linear:
    scale = lcm(*(x.denominator for x in sizes.values()))
    counts = tuple((name, int(x * scale)) for name, x in sizes.items() if x and name != _ONE)
    return Linear(counts, sense, sizes.get(_ONE, Fraction(0)) * scale)


def _make_clause(label: str, sizes: Form, sense: Sense) -> Clause:
    return Clause(label, (_make_linear(sizes, sense),), "")
