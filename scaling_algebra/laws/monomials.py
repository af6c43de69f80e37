"""Exact monomials, sums of them, and relations between sums.

A name in a base is a quantity, which grows; a name in an exponent is a parameter, which is a positive number.
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
"""Coefficients to powers with a larger numerator or denominator become decimals."""


def parameter(name: str) -> Expr:
    """Returns the positive sympy symbol of a parameter or quantity."""
    return sympy.Symbol(name, positive=True)


@dataclass(frozen=True)
class Monomial:
    """``coefficient * product of quantity**exponent * product of log(monomial)**exponent``.

    Attributes:
        coefficient: a positive sympy number, or a product of such numbers to powers with parameters.
        powers: pairs (quantity, exponent), sorted, without zeros. Exponents are sympy Rationals or rational functions
            of parameters.
        logs: pairs (argument of a logarithm, exponent).

    Examples:
        >>> from .expressions import monomial
        >>> m = monomial("6*N**(-2*beta/d)/n")
        >>> str(m), m["N"], str(m.substitute({"n": monomial("C/N")}))
        ('6*N^(-2*beta/d)/n', -2*beta/d, '6*N^((-2*beta + d)/d)/C')
    """

    coefficient: Expr = sympy.S.One
    powers: tuple[tuple[str, Expr], ...] = ()
    logs: tuple[tuple[Monomial, Expr], ...] = ()

    @classmethod
    def of(
        cls, powers: Mapping[str, Expr], coefficient: Expr = sympy.S.One, logs: Iterable[tuple[Monomial, Expr]] = ()
    ) -> Monomial:
        """Builds a monomial with simplified, sorted exponents without zeros. Use it instead of the constructor."""
        added: dict[Monomial, Expr] = {}
        for argument, e in logs:
            added[argument] = simplify_exponent(added.get(argument, sympy.S.Zero) + e)
        simple = {name: simplify_exponent(e) for name, e in powers.items()}
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
        return Monomial.of(
            powers, _raise_coefficient(self.coefficient, exponent), ((a, e * exponent) for a, e in self.logs)
        )

    def substitute(self, values: Mapping[str, Any]) -> Monomial:
        """Substitutes monomials for quantities, also inside logarithms, and numbers or expressions for parameters."""
        at = {parameter(name): read_exact(x) for name, x in values.items() if not isinstance(x, Monomial)}
        logs = ((a.substitute(values), e.xreplace(at)) for a, e in self.logs)
        powers = {name: e.xreplace(at) for name, e in self.powers}
        inside = {name: x for name in powers if isinstance(x := values.get(name), Monomial)}
        rest = {name: e for name, e in powers.items() if name not in inside}
        product = Monomial.of(rest, self.coefficient.xreplace(at), logs)
        for name, x in inside.items():
            product *= x ** powers[name]
        return product

    def solve_for(self, quantity: str) -> Monomial:
        """Returns the value of a quantity at which this monomial is 1. The quantity must have a nonzero exponent."""
        rest = Monomial.of({n: e for n, e in self.powers if n != quantity}, self.coefficient, self.logs)
        solution: Monomial = rest ** (-1 / self[quantity])
        return solution

    @property
    def power(self) -> Monomial:
        """The monomial without coefficient and logarithms."""
        return Monomial(powers=self.powers)

    def at(self, values: Mapping[str, float]) -> float:
        """Evaluates the monomial at given values of its quantities; a quantity without a value is 1.

        It must have no parameters; logarithms are ignored.
        """
        return prod((values.get(n, 1.0) ** _number(e) for n, e in self.powers), start=_number(self.coefficient))

    def record(self) -> dict[str, Any]:
        """Returns the JSON record: exponents and prefactor."""
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
        """The monomial as a sympy expression in positive symbols."""
        factors = [parameter(name) ** e for name, e in self.powers]
        return sympy.Mul(self.coefficient, *factors, *(sympy.log(a.expr) ** e for a, e in self.logs))

    def __str__(self) -> str:
        number = write_exponent(self.coefficient.xreplace({sympy.E: sympy.Symbol("exp(1)")}))
        factors = [] if self.coefficient == 1 else [f"({number})" if self.coefficient.is_Add else number]
        below = [(name, e) for name, e in self.powers if e.is_number and e < 0]
        factors += [_write_power(name, e) for name, e in self.powers if (name, e) not in below]
        factors += [_write_power(f"log({a})", e) for a, e in self.logs]
        return ("*".join(factors) or "1") + "".join(f"/{_write_power(name, -e)}" for name, e in below)


@dataclass(frozen=True)
class Posynomial:
    """A sum of monomials in the order in which it is written; terms with equal powers are added up."""

    terms: tuple[Monomial, ...]

    @classmethod
    def of(cls, terms: Iterable[Monomial]) -> Posynomial:
        added: dict[Any, Expr] = {}
        for t in terms:
            added[t.powers, t.logs] = added.get((t.powers, t.logs), sympy.S.Zero) + t.coefficient
        return cls(tuple(Monomial(c, *key) for key, c in added.items()))

    def substitute(self, values: Mapping[str, Any]) -> Posynomial:
        return Posynomial.of(t.substitute(values) for t in self.terms)

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
    """A relation ``sum <= monomial`` or ``monomial = monomial``, stored as monomials that are at most 1.

    Each term of the smaller side, divided by the larger side, is such a monomial; for ``=`` the quotient of the two
    sides and its inverse are.

    Attributes:
        text: the relation as written.
        strict: True for ``<<`` and ``>>``.
        equation: True for ``=``.
    """

    text: str = ""
    strict: bool = False
    equation: bool = False

    def substitute(self, values: Mapping[str, Any]) -> Relation:
        return replace(self, terms=tuple(m.substitute(values) for m in self.terms))

    def solve_for(self, quantity: str) -> Monomial:
        """Returns the monomial that a quantity equals in an equation.

        Raises:
            UsageError: this is no equation, or does not determine the quantity.

        Examples:
            >>> from .expressions import relation
            >>> str(relation("C = 6*n*N**2").solve_for("N"))
            'sqrt(6)/6*C^(1/2)/n^(1/2)'
        """
        ratio = self.terms[0]
        if not self.equation or ratio[quantity] == 0 or any(quantity in a.quantities for a, _ in ratio.logs):
            raise UsageError(
                f"the constraint {self.text!r} cannot be solved for {quantity}; give an equation that contains "
                f"{quantity}"
            )
        return ratio.solve_for(quantity)

    def __str__(self) -> str:
        return self.text


def read_exact(value: object) -> Expr:
    """Converts an exact number to sympy. A text is parsed here, since sympy would run it as code.

    Raises:
        TypeError: a float, or an expression with one.
        UsageError: anything else that is not a number.
    """
    if isinstance(value, float) or (isinstance(value, sympy.Expr) and value.has(sympy.Float)):
        raise TypeError(
            f"{quote_value(value)} is a float, but exponents must be exact; give an int, a Fraction or a text"
        )
    if isinstance(value, sympy.Expr):
        return value
    try:
        number = parse_rational(value)
    except ValueError as error:
        raise UsageError(f"{quote_value(value)} is {error}; give an exact number, such as 1/2") from None
    return sympy.Rational(number.numerator, number.denominator)


@lru_cache(maxsize=2**14)
def simplify_exponent(e: Expr) -> Expr:
    """Returns a rational function in lowest terms, factored or expanded, whichever is shorter."""
    e = read_exact(e)
    return e if e.is_Number or e.is_Symbol else min(sympy.factor(e), sympy.cancel(e), key=sympy.count_ops)


def write_exponent(e: Expr) -> str:
    """Writes a number or an exponent as text that ``exponent`` reads back."""
    return str(e).replace("**", "^")


def _raise_coefficient(number: Expr, exponent: Expr) -> Expr:
    """Raises a coefficient to a power, exactly where this is feasible.

    An irrational number to a power with a large numerator or denominator becomes a decimal, since its exact root would
    take minutes and hundreds of digits to write out.
    """
    fine = exponent.is_Rational and max(abs(exponent.p), exponent.q) > _FINE
    decimal = number.is_number and number != 1 and not exponent.is_Integer and (fine or number.has(sympy.Float))
    return sympy.Float(float(number) ** float(exponent)) if decimal else number**exponent


@lru_cache(maxsize=2**14)
def _number(e: Expr) -> float:
    return float(e)


def _write_power(name: str, e: Expr) -> str:
    """Writes ``name^e``, with brackets around the exponent where they are needed."""
    return (
        name
        if e == 1
        else f"{name}^{e}"
        if e.is_Symbol or (e.is_Integer and e > 0)
        else f"{name}^({write_exponent(e)})"
    )
