"""Monomials that are at most 1: linear inequalities between logarithms, whose coefficients may hold parameters.

z3 decides them exactly, in units of the logarithm of one quantity that grows. Who asks: ``circuits.py`` (where do terms
balance?), ``feasible.py`` (which exponents are allowed?).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any

import sympy

from .monomials import Expr, Monomial, simplified, written

PATIENCE = 2_000_000
"""Steps (rlimit) that z3 may take where parameters make a question nonlinear: the same on every machine."""


@dataclass(frozen=True)
class Inequality:
    """``ratio <= 1`` up to constants and, unless they are asked about, powers of logarithms.

    Attributes:
        strict: both sides of equal power do not meet it. label: whose it is; several may share one.
        alone: the quantity that is written on one side; empty where only the sign of an exponent decides.
    """

    ratio: Monomial
    strict: bool = False
    label: str = ""
    alone: str = ""

    @property
    def bound(self) -> tuple[str, Monomial] | None:
        """``<=`` or ``>=``, and what the quantity that stands alone is compared with; None where none can."""
        of = sign(self.ratio[self.alone]) if self.alone else None
        return None if of is None else ("<=" if of > 0 else ">=", self.ratio.power.solved(self.alone))

    def holds(self, logs: Mapping[str, float]) -> bool:
        """At logarithms of the quantities."""
        return self.ratio.power.log_at(logs) <= 1e-12

    def __str__(self) -> str:
        if not self.alone:
            whole = _polynomial(self).primitive()[1]
            up = sympy.Add(*(t for t in sympy.Add.make_args(whole) if t.as_coeff_Mul()[0] > 0))
            return f"{written(up)} > {written(sympy.Add(up, -whole))}"
        return f"{self.ratio} <= 1" if self.bound is None else f"{self.alone} {self.bound[0]} {self.bound[1]}"


def decided(ratio: Monomial, growing: Iterable[str]) -> Inequality | bool:
    """``ratio <= 1`` up to constants: True or False where the signs of exponents of growing quantities decide it."""
    growing = list(growing)
    powers = dict(ratio.powers)
    if powers.keys() <= set(growing):
        signs = {sign(e) for e in powers.values()}
        if signs <= {-1} or signs == {1}:
            return signs != {1}
        if len(powers) == 1:
            return Inequality(Monomial.of({growing[0]: next(iter(powers.values()))}), True)
    order = [n for n in powers if n not in growing] + [n for n in reversed(growing) if n in powers]
    signed = [n for n in order if sign(powers[n]) is not None]
    return Inequality(ratio.power, True, alone=next(iter([*signed, *powers])))


@lru_cache(maxsize=2**14)
def sign(e: Expr) -> int | None:
    """Of a rational function of positive parameters: 1, 0, -1, or None where it depends on them.

    Examples:
        >>> from .expressions import exponent
        >>> sign(exponent("-2*beta/(2*beta + d)")), sign(exponent("beta - d"))
        (-1, None)
    """
    e = simplified(e)
    if e.is_number:
        return int(sympy.sign(e))
    product = 1
    for factor in sympy.Mul.make_args(sympy.factor(_numerator(e))):
        base, power = factor.as_base_exp()
        signs = {int(sympy.sign(t.as_coeff_Mul()[0])) for t in sympy.Add.make_args(sympy.expand(base))}
        if len(signs) != 1:
            return None
        product *= signs.pop() if power % 2 else 1
    return product


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


class Inequalities:
    """Inequalities, kept for many questions to z3.

    Args:
        unit: the quantity whose logarithm is 1.
        growing: quantities with a positive one; where there are any, parameters are positive, too, else unknowns.
        strict: strict inequalities do not hold where both sides are equal.
        logs: logarithms count, each as an unknown that is not negative.

    Examples:
        >>> from .expressions import monomial
        >>> rows = [Inequality(monomial("x**2/d"), label="a"), Inequality(monomial("1/x"), True, "b")]
        >>> w = Inequalities(rows, "d").window(monomial("x"))
        >>> w.low, w.high
        (End(value=Fraction(0, 1), binding=('b',), open=True), End(value=Fraction(1, 2), binding=('a',), open=False))
    """

    def __init__(
        self,
        inequalities: Iterable[Inequality],
        unit: str,
        growing: Collection[str] = (),
        strict: bool = False,
        logs: bool = False,
    ) -> None:
        import z3

        self._z3, self._context, self._unit, self._logs = z3, z3.Context(), unit, logs
        self._positive = bool(growing)
        self._facts = [self._real(f"log {name}") > 0 for name in growing if name != unit]
        self._rows: dict[str, list[Any]] = {}
        self._loose = []
        for i in inequalities:
            self._loose += [] if i.strict or i.label in self._rows else [i.label]
            self._rows.setdefault(i.label, []).append(self._holds(i, strict and i.strict))

    def core(self, labels: Collection[str] | None = None, *more: Any) -> tuple[str, ...]:
        """Labels of a smallest contradictory set, with more conditions; empty if none is found.

        Args:
            labels: of inequalities that may be in it.
        """
        left = {label: rows for label, rows in self._rows.items() if labels is None or label in labels}
        if not self._refuted(left, *more):
            return ()
        for label in list(left):
            rest = {other: rows for other, rows in left.items() if other != label}
            left = rest if self._refuted(rest, *more) else left
        return tuple(left)

    def _refuted(self, rows: Mapping[str, Sequence[Any]], *more: Any) -> bool:
        """Asked of a new solver, without assumptions: else z3 does not keep to its budget where parameters are many."""
        solver = self._z3.Solver(ctx=self._context)
        solver.set("rlimit", PATIENCE)
        solver.add([*self._facts, *(x for listed in rows.values() for x in listed), *more])
        return bool(solver.check() == self._z3.unsat)

    def outside(self, groups: Iterable[Iterable[Inequality]]) -> bool:
        """Is there a place at which in every group one does not hold?"""
        z3 = self._z3
        solver = z3.Solver(ctx=self._context)
        solver.set("rlimit", PATIENCE)
        apart = [z3.Not(z3.And([self._holds(i, False) for i in group])) for group in groups]
        solver.add([*self._facts, *(x for rows in self._rows.values() for x in rows), *apart])
        return bool(solver.check() == z3.sat)

    def window(self, m: Monomial) -> Window:
        """The exponents that a monomial may have; there must be some."""
        return Window(self._end(m, -1), self._end(m, 1))

    @cached_property
    def _search(self) -> Any:
        search = self._z3.Optimize(ctx=self._context)
        search.add([x for rows in self._rows.values() for x in rows])
        return search

    def _end(self, m: Monomial, side: int) -> End:
        form = side * self._form(m)
        self._search.push()
        bound = self._search.maximize(form)
        self._search.check()
        value = None if "oo" in str(self._search.upper(bound)) else self._search.model().eval(form, True)
        self._search.pop()
        if value is None:
            return End(None)
        plain = self.core(self._loose, form > value)
        return End(side * Fraction(str(value)), plain or self.core(None, form > value), not plain)

    def _holds(self, i: Inequality, strict: bool) -> Any:
        form = self._form(i.ratio) if i.alone or not self._positive else -self._number(_polynomial(i))
        return form < 0 if strict else form <= 0

    def _form(self, m: Monomial) -> Any:
        """The logarithm of a monomial, without its constant."""
        parts = [self._number(e) * (1 if n == self._unit else self._real(f"log {n}")) for n, e in m.powers]
        for argument, e in m.logs if self._logs else ():
            size = self._real(f"log log {argument}")
            self._facts.append(size >= 0)
            parts.append(self._number(e) * size)
        return self._z3.Sum([*parts, self._number(sympy.S.Zero)])

    def _real(self, name: str) -> Any:
        return self._z3.Real(name, self._context)

    def _number(self, e: Expr) -> Any:
        """A rational function, with parameters as unknowns."""
        if e.is_Rational:
            return self._z3.RealVal(str(e), self._context)
        if e.is_Symbol:
            self._facts += [self._real(str(e)) > 0] if self._positive else []
            return self._real(str(e))
        if e.is_Pow and e.args[1] < 0:
            return 1 / self._number(1 / e)
        parts = [self._number(x) for x in (e.args[:1] * int(e.args[1]) if e.is_Pow else e.args)]
        return self._z3.Sum(parts) if e.is_Add else self._z3.Product(parts)


def _polynomial(i: Inequality) -> Expr:
    """What is above zero where an inequality on parameters alone holds."""
    return sympy.expand(_numerator(-i.ratio.powers[0][1]))


def _numerator(e: Expr) -> Expr:
    """A polynomial of the sign of a rational function."""
    above, below = sympy.fraction(sympy.together(e))
    below = sympy.factor(below)
    return above if sympy.sign(below) == 1 or below.is_positive else sympy.expand(above * below)
