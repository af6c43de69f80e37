"""Monomials that are at most 1: linear inequalities between logarithms, whose coefficients may hold parameters.

z3 decides them exactly, in units of the logarithm of one quantity that grows. Who asks: ``circuits.py`` (where do terms
balance?), ``windows.py`` (which exponents are allowed?).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
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
        direction = sign(self.ratio[self.alone]) if self.alone else None
        return None if direction is None else ("<=" if direction > 0 else ">=", self.ratio.power.solved(self.alone))

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
    """The sign of a rational function of positive parameters: 1, 0, -1, or None where it depends on them.

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


def contradiction(conditions: Iterable[Inequality], growing: Sequence[str]) -> tuple[str, ...]:
    """Labels of a smallest set of conditions, strict ones as they are, that contradict each other for large quantities
    and positive parameters; empty if none is found."""
    z3 = _Encoded(growing)
    left: dict[str, list[Any]] = {}
    for c in conditions:
        left.setdefault(c.label, []).append(z3.holds(c, c.strict))
    if not z3.refuted(left):
        return ()
    for label in list(left):
        rest = {name: rows for name, rows in left.items() if name != label}
        left = rest if z3.refuted(rest) else left
    return tuple(left)


def leave_gaps(groups: Iterable[Iterable[Inequality]], growing: Sequence[str]) -> bool:
    """Is there a place at which in every group one does not hold?"""
    z3 = _Encoded(growing)
    apart = [z3.library.Not(z3.library.And([z3.holds(c, False) for c in group])) for group in groups]
    return bool(z3.check(apart) == z3.library.sat)


class _Encoded:
    """Logarithms of growing quantities as unknowns of z3, in units of the first one's, parameters as positive ones."""

    def __init__(self, growing: Sequence[str]) -> None:
        import z3

        self.library, self._context, self._unit = z3, z3.Context(), growing[0]
        self._facts = [self._real(f"log {name}") > 0 for name in growing[1:]]

    def refuted(self, rows: Mapping[str, Sequence[Any]]) -> bool:
        return bool(self.check([x for listed in rows.values() for x in listed]) == self.library.unsat)

    def check(self, formulas: Sequence[Any]) -> Any:
        """Asked of a new solver, without assumptions: else z3 does not keep to its budget where parameters are many."""
        solver = self.library.Solver(ctx=self._context)
        solver.set("rlimit", PATIENCE)
        solver.add([*self._facts, *formulas])
        return solver.check()

    def holds(self, i: Inequality, strict: bool) -> Any:
        form = self._form(i.ratio) if i.alone else -self._number(_polynomial(i))
        return form < 0 if strict else form <= 0

    def _form(self, m: Monomial) -> Any:
        """The logarithm of a monomial, without its constant."""
        parts = [self._number(e) * (1 if n == self._unit else self._real(f"log {n}")) for n, e in m.powers]
        return self.library.Sum([*parts, self._number(sympy.S.Zero)])

    def _real(self, name: str) -> Any:
        return self.library.Real(name, self._context)

    def _number(self, e: Expr) -> Any:
        """A rational function, with parameters as unknowns."""
        if e.is_Rational:
            return self.library.RealVal(str(e), self._context)
        if e.is_Symbol:
            self._facts.append(self._real(str(e)) > 0)
            return self._real(str(e))
        if e.is_Pow and e.args[1] < 0:
            return 1 / self._number(1 / e)
        parts = [self._number(x) for x in (e.args[:1] * int(e.args[1]) if e.is_Pow else e.args)]
        return self.library.Sum(parts) if e.is_Add else self.library.Product(parts)


def _polynomial(i: Inequality) -> Expr:
    """A polynomial, above zero where an inequality on parameters alone holds."""
    return sympy.expand(_numerator(-i.ratio.powers[0][1]))


def _numerator(e: Expr) -> Expr:
    """A polynomial of the sign of a rational function."""
    above, below = sympy.fraction(sympy.together(e))
    below = sympy.factor(below)
    return above if sympy.sign(below) == 1 or below.is_positive else sympy.expand(above * below)
