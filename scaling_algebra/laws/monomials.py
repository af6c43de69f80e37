"""Exact monomials, sums of them, and relations between sums: the language of laws and assumptions.

A name in a base is a quantity, which grows; a name in an exponent is a parameter, a positive number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any

import sympy

from scaling_algebra.errors import UsageError, quote_value
from scaling_algebra.limits import parse_rational

Expr = Any
"""A sympy expression."""
_FINE = 1000
"""Exponents with larger numerators or denominators make decimals of coefficients."""


def parameter(name: str) -> Expr:
    """A name that stands in exponents, or a quantity, as a positive sympy symbol."""
    return sympy.Symbol(name, positive=True)


@dataclass(frozen=True)
class Monomial:
    """``coefficient * product of quantity**exponent * product of log(monomial)**exponent``.

    Attributes:
        coefficient: a positive sympy number, or such a number to powers that hold parameters.
        powers: exponents by quantity, sorted, without zeros; sympy Rationals or rational functions of parameters.
        logs: exponents of logarithms by their argument.

    Examples:
        >>> from .expressions import monomial
        >>> m = monomial("6*N**(-2*beta/d)/n")
        >>> str(m), m["N"], str(m.substituted({"n": monomial("C/N")}))
        ('6*N^(-2*beta/d)/n', -2*beta/d, '6*N^((-2*beta + d)/d)/C')
    """

    coefficient: Expr = sympy.S.One
    powers: tuple[tuple[str, Expr], ...] = ()
    logs: tuple[tuple[Monomial, Expr], ...] = ()

    @classmethod
    def of(
        cls, powers: Mapping[str, Expr], coefficient: Expr = sympy.S.One, logs: Iterable[tuple[Monomial, Expr]] = ()
    ) -> Monomial:
        """A monomial with its exponents simplified, sorted and without zeros. Every monomial is made here."""
        added: dict[Monomial, Expr] = {}
        for argument, e in logs:
            added[argument] = simplified(added.get(argument, sympy.S.Zero) + e)
        simple = {name: simplified(e) for name, e in powers.items()}
        return cls(
            coefficient,
            tuple(sorted((name, e) for name, e in simple.items() if e != 0)),
            tuple(sorted(((a, e) for a, e in added.items() if e != 0), key=str)),
        )

    def __getitem__(self, quantity: str) -> Expr:
        return dict(self.powers).get(quantity, sympy.S.Zero)

    def __mul__(self, other: Monomial) -> Monomial:
        together = {name: self[name] + other[name] for name, _ in (*self.powers, *other.powers)}
        return Monomial.of(together, self.coefficient * other.coefficient, (*self.logs, *other.logs))

    def __truediv__(self, other: Monomial) -> Monomial:
        inverse: Monomial = other**sympy.S.NegativeOne
        return self * inverse

    def __pow__(self, exponent: Expr, /) -> Monomial:
        powers = {name: e * exponent for name, e in self.powers}
        return Monomial.of(powers, _raised(self.coefficient, exponent), ((a, e * exponent) for a, e in self.logs))

    def substituted(self, values: Mapping[str, Any]) -> Monomial:
        """With monomials for quantities, in logarithms too, and with numbers or expressions for parameters."""
        at = {parameter(name): exact(x) for name, x in values.items() if not isinstance(x, Monomial)}
        logs = ((a.substituted(values), e.xreplace(at)) for a, e in self.logs)
        powers = {name: e.xreplace(at) for name, e in self.powers}
        inside = {name: x for name in powers if isinstance(x := values.get(name), Monomial)}
        rest = {name: e for name, e in powers.items() if name not in inside}
        product = Monomial.of(rest, self.coefficient.xreplace(at), logs)
        for name, x in inside.items():
            product *= x ** powers[name]
        return product

    def solved(self, quantity: str) -> Monomial:
        """The value of a quantity where this monomial is 1; the quantity's exponent must not be 0."""
        rest = Monomial.of({n: e for n, e in self.powers if n != quantity}, self.coefficient, self.logs)
        solution: Monomial = rest ** (-1 / self[quantity])
        return solution

    @property
    def power(self) -> Monomial:
        """Without the coefficient and logarithms."""
        return Monomial(powers=self.powers)

    def at(self, values: Mapping[str, float]) -> float:
        """Its size at numbers, 1 if left out. There must be no parameters and logarithms."""
        return prod((values.get(n, 1.0) ** _number(e) for n, e in self.powers), start=_number(self.coefficient))

    def record(self) -> dict[str, Any]:
        """For JSON."""
        return {"powers": dict(self.powers), "prefactor": self.coefficient}

    @property
    def quantities(self) -> frozenset[str]:
        return frozenset(dict(self.powers)).union(*(a.quantities for a, _ in self.logs))

    @property
    def parameters(self) -> frozenset[str]:
        exponents = [self.coefficient, *(e for _, e in self.powers), *(e for _, e in self.logs)]
        names = (str(s) for e in exponents for s in e.free_symbols)
        return frozenset(names).union(*(a.parameters for a, _ in self.logs))

    @property
    def expr(self) -> Expr:
        """As a sympy expression in positive symbols."""
        factors = [parameter(name) ** e for name, e in self.powers]
        return sympy.Mul(self.coefficient, *factors, *(sympy.log(a.expr) ** e for a, e in self.logs))

    def __str__(self) -> str:
        number = written(self.coefficient.xreplace({sympy.E: sympy.Symbol("exp(1)")}))
        factors = [] if self.coefficient == 1 else [f"({number})" if self.coefficient.is_Add else number]
        below = [(name, e) for name, e in self.powers if e.is_number and e < 0]
        factors += [_power(name, e) for name, e in self.powers if (name, e) not in below]
        factors += [_power(f"log({a})", e) for a, e in self.logs]
        return ("*".join(factors) or "1") + "".join(f"/{_power(name, -e)}" for name, e in below)


@dataclass(frozen=True)
class Posynomial:
    """A sum of monomials, equal powers added up, in the order in which they are written."""

    terms: tuple[Monomial, ...]

    @classmethod
    def of(cls, terms: Iterable[Monomial]) -> Posynomial:
        added: dict[Any, Expr] = {}
        for t in terms:
            added[t.powers, t.logs] = added.get((t.powers, t.logs), sympy.S.Zero) + t.coefficient
        return cls(tuple(Monomial(c, *key) for key, c in added.items()))

    def substituted(self, values: Mapping[str, Any]) -> Posynomial:
        return Posynomial.of(t.substituted(values) for t in self.terms)

    @property
    def quantities(self) -> frozenset[str]:
        return frozenset[str]().union(*(t.quantities for t in self.terms))

    @property
    def parameters(self) -> frozenset[str]:
        return frozenset[str]().union(*(t.parameters for t in self.terms))

    @property
    def expr(self) -> Expr:
        return sympy.Add(*(t.expr for t in self.terms))

    def __str__(self) -> str:
        return " + ".join(map(str, self.terms))


@dataclass(frozen=True)
class Relation(Posynomial):
    """Monomials that are at most 1: one for each term of the smaller side of ``sum <= monomial``, both ways for ``=``.

    Attributes:
        text: as it is written. strict: ``<<`` or ``>>``.
    """

    text: str = ""
    strict: bool = False
    equation: bool = False

    def substituted(self, values: Mapping[str, Any]) -> Relation:
        return replace(self, terms=tuple(m.substituted(values) for m in self.terms))

    def solved(self, quantity: str) -> Monomial:
        """The monomial that a quantity equals in an equation.

        Examples:
            >>> from .expressions import relation
            >>> str(relation("C = 6*n*N**2").solved("N"))
            'sqrt(6)/6*C^(1/2)/n^(1/2)'
        """
        ratio = self.terms[0]
        if not self.equation or ratio[quantity] == 0 or any(quantity in a.quantities for a, _ in ratio.logs):
            raise UsageError(f"the constraint {self.text!r} does not give {quantity} as a power of the rest")
        return ratio.solved(quantity)

    def __str__(self) -> str:
        return self.text


def exact(value: object) -> Expr:
    """The sympy expression of an exact number. A text is parsed here, since sympy would run it as code.

    Raises:
        TypeError: a float, or an expression that holds one.
        UsageError: anything else.
    """
    if isinstance(value, float) or (isinstance(value, sympy.Expr) and value.has(sympy.Float)):
        raise TypeError(f"{quote_value(value)} is inexact, and exponents are exact: give an int, a Fraction or a text")
    if isinstance(value, sympy.Expr):
        return value
    try:
        number = parse_rational(value)
    except ValueError as error:
        raise UsageError(f"{quote_value(value)} is {error}; give an exact number, such as 1/2") from None
    return sympy.Rational(number.numerator, number.denominator)


@lru_cache(maxsize=2**14)
def simplified(e: Expr) -> Expr:
    """A rational function in lowest terms, products kept as they are written shortest."""
    e = exact(e)
    return e if e.is_Number or e.is_Symbol else min(sympy.factor(e), sympy.cancel(e), key=sympy.count_ops)


def written(e: Expr) -> str:
    """A number or an exponent as a text that ``exponent`` reads back."""
    return str(e).replace("**", "^")


def _raised(number: Expr, exponent: Expr) -> Expr:
    """Return a coefficient to a power: exactly, but for numbers to powers of more digits than decimals with two have,
    whose roots take minutes and hundreds of digits to write out."""
    fine = exponent.is_Rational and max(abs(exponent.p), exponent.q) > _FINE
    decimal = number.is_number and number != 1 and not exponent.is_Integer and (fine or number.has(sympy.Float))
    return sympy.Float(float(number) ** float(exponent)) if decimal else number**exponent


@lru_cache(maxsize=2**14)
def _number(e: Expr) -> float:
    return float(e)


def _power(name: str, e: Expr) -> str:
    return name if e == 1 else f"{name}^{e}" if e.is_Symbol or (e.is_Integer and e > 0) else f"{name}^({written(e)})"
