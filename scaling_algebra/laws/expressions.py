"""Sums of monomials as people write them, exact: ``N**(-2*beta/d) + N/n`` and relations such as ``C = n*N``.

What is read is parsed with ``ast`` against a list of what is allowed; nothing is evaluated.
Read next: ``monomials.py`` (what is read), ``balance.py`` (what balances in a sum).
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable, Iterable
from typing import TypeVar

import sympy

from scaling_algebra.errors import UsageError
from scaling_algebra.limits import rational

from .monomials import Expr, Monomial, Relation, Sum, exact, parameter, simplified, written

__all__ = [
    "Expr", "Monomial", "Relation", "Sum", "exact",
    "exponent", "expression", "monomial", "parameter", "relation", "simplified", "written",
]  # fmt: skip

LONG, DEEP, TERMS, DIGITS = 2_000, 40, 200, 300
"""Most characters of an expression, nested brackets, monomials, and digits of a coefficient."""
RELATIONS = ("<<", ">>", "<=", ">=", "=")
_STRANGE = re.compile(r"[^\w\s.,+*/^()'\"-]", re.ASCII)
FUNCTIONS = ("log", "exp", "sqrt")
Read = TypeVar("Read")


def expression(text: str) -> Sum:
    """A sum of monomials.

    Raises:
        UsageError: anything else, in one line that quotes it.

    Examples:
        >>> str(expression("N**(-2*beta/d) + (N/n)^(1/2)"))
        'N^(-2*beta/d) + N^(1/2)/n^(1/2)'
    """
    return _Reader(text).sum()


def monomial(text: str) -> Monomial:
    """One monomial.

    Raises:
        UsageError: anything else.
    """
    found = expression(text)
    if len(found.terms) != 1:
        raise UsageError(f"{_shown(text)} is a sum; one monomial is needed here, such as 6*n*N")
    return found.terms[0]


def exponent(text: str) -> Expr:
    """A number or a rational function of parameters: ``2*beta/d``.

    Raises:
        UsageError: anything else.

    Examples:
        >>> exponent("beta/(beta + d)"), exponent("-0.5")
        (beta/(beta + d), -1/2)
    """
    reader = _Reader(text)
    found: Expr = reader.shallow(reader.exponent)
    return simplified(found)


def relation(text: str) -> Relation:
    """Two sums with a sign of ``RELATIONS`` between them.

    Raises:
        UsageError: anything else.
    """
    if isinstance(text, str) and len(text) <= LONG:
        parts = re.split(r"(<<|>>|<=|>=|==?)", text)
        if len(parts) == 3:
            sign = "=" if parts[1] == "==" else parts[1]
            return Relation(expression(parts[0]), sign, expression(parts[2]), text.strip())
    signs = ", ".join(RELATIONS)
    raise UsageError(f"{_shown(text)} is no relation; write two expressions with one of {signs} between, as C = n*N")


class _Reader:
    """Reads one text; every method takes a node of its tree."""

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise UsageError(f"{text!r} is no expression; write a text such as 'N**(-2*beta/d) + N/n'")
        self.text = text.strip()
        if len(self.text) > LONG:
            raise self.wrong(f"longer than {LONG} characters")
        if not self.text.isascii() or not self.text.isprintable():
            raise self.wrong("letters, digits and signs must be ASCII, on one line")
        if not self.text:
            raise self.wrong("it is empty")
        if strange := _STRANGE.search(self.text):
            raise self.wrong(f"cannot read {strange[0]!r}")
        self.source = self.text.replace("^", "**")
        if max(_depths(self.source)) > DEEP:
            raise self.wrong(f"more than {DEEP} brackets in each other")
        try:
            with warnings.catch_warnings(action="ignore"):
                self.tree = ast.parse(self.source, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise self.wrong("it cannot be read") from None
        self.bases: set[str] = set()
        self.exponents: set[str] = set()

    def wrong(self, what: str) -> UsageError:
        return UsageError(f"{_shown(self.text)}: {what}; write sums of products of powers, as N**(-2*beta/d) + N/n")

    def sum(self) -> Sum:
        found = Sum.of(self.shallow(self.terms))
        if both := self.bases & self.exponents:
            raise self.wrong(f"{min(both)} stands in a base and in an exponent; give one of them another name")
        return found

    def shallow(self, read: Callable[[ast.expr], Read]) -> Read:
        """What is read of the whole text."""
        try:
            return read(self.tree)
        except RecursionError:
            raise self.wrong("it is nested too deep") from None

    def terms(self, node: ast.expr) -> list[Monomial]:
        """A node as monomials."""
        match node:
            case ast.Constant():
                if (value := self.number(node)) <= 0:
                    raise self.wrong(f"the coefficient {value} is not positive")
                return [Monomial(value)]
            case ast.Name(id=name):
                self.bases.add(name)
                return [Monomial.of({name: sympy.S.One})]
            case ast.UnaryOp(op=ast.UAdd()):
                return self.terms(node.operand)
            case ast.BinOp(op=ast.Add()):
                return self.few(self.terms(node.left) + self.terms(node.right))
            case ast.BinOp(op=ast.Mult()):
                left, right = self.terms(node.left), self.terms(node.right)
                return self.few([a * b for a in left for b in right])
            case ast.BinOp(op=ast.Div()):
                below = self.single(node.right, "a sum below a line")
                return self.few([a * below**sympy.S.NegativeOne for a in self.terms(node.left)])
            case ast.BinOp(op=ast.Pow()):
                return self.power(node.left, self.exponent(node.right))
            case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in FUNCTIONS:
                return self.called(name, argument)
            case ast.Call():
                raise self.wrong(f"the functions are {', '.join(FUNCTIONS)}, of one argument")
            case ast.BinOp(op=ast.Sub()) | ast.UnaryOp(op=ast.USub()):
                raise self.wrong("a minus between terms: sizes are sums of positive monomials")
        raise self.wrong(f"cannot read {ast.unparse(node)!r}")

    def called(self, name: str, argument: ast.expr) -> list[Monomial]:
        if name == "sqrt":
            return self.power(argument, sympy.Rational(1, 2))
        if name == "exp":
            return self.few([Monomial(sympy.exp(self.number(argument)))])
        inside = self.single(argument, "the logarithm of a sum")
        if not inside.quantities:
            raise self.wrong("the logarithm of a constant; write a number")
        return [Monomial.of({}, logs=[(inside, sympy.S.One)])]

    def power(self, base: ast.expr, e: Expr) -> list[Monomial]:
        found = self.terms(base)
        if len(found) == 1:
            if found[0].coefficient != 1 and e.is_number and abs(e) > DIGITS:
                raise self.wrong(f"a number to the power {e}")
            return self.few([found[0] ** e])
        if not (e.is_Integer and 0 < e <= DEEP):
            raise self.wrong("a sum to a power that is no small whole number")
        product = found
        for _ in range(int(e) - 1):
            product = self.few([a * b for a in product for b in found])
        return product

    def exponent(self, node: ast.expr) -> Expr:
        """A node as a rational function of parameters."""
        match node:
            case ast.Constant():
                return self.number(node)
            case ast.Name(id=name):
                self.exponents.add(name)
                return parameter(name)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd()):
                found = self.exponent(node.operand)
                return -found if isinstance(node.op, ast.USub) else found
            case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div()):
                left, right = self.exponent(node.left), self.exponent(node.right)
                if isinstance(node.op, ast.Div) and sympy.cancel(right) == 0:
                    raise self.wrong("an exponent divides by zero")
                kind = type(node.op)
                found = {ast.Add: left + right, ast.Sub: left - right, ast.Mult: left * right}.get(kind)
                return self.bounded(left / right if found is None else found)
            case ast.BinOp(op=ast.Pow()):
                base, e = self.exponent(node.left), self.exponent(node.right)
                if not (e.is_Integer and 0 < e <= 10):
                    raise self.wrong("an exponent has a power that is no small whole number")
                return self.bounded(base**e)
        raise self.wrong(f"cannot read the exponent {ast.unparse(node)!r}")

    def bounded(self, e: Expr) -> Expr:
        if sympy.count_ops(e) > TERMS or any(max(abs(x.p), x.q) > 10**12 for x in e.atoms(sympy.Rational)):
            raise self.wrong("an exponent is too large")
        return e

    def single(self, node: ast.expr, what: str) -> Monomial:
        found = self.terms(node)
        if len(found) != 1:
            raise self.wrong(what)
        return found[0]

    def few(self, found: list[Monomial]) -> list[Monomial]:
        if len(found) > TERMS:
            raise self.wrong(f"more than {TERMS} terms")
        for t in found:
            if any(max(abs(x.p), x.q) > 10**DIGITS for x in t.coefficient.atoms(sympy.Rational)):
                raise self.wrong(f"a coefficient of more than {DIGITS} digits")
            for _, e in t.powers:
                self.bounded(e)
        return found

    def number(self, node: ast.expr) -> Expr:
        """A literal, exact: 0.5 is 1/2."""
        text = ast.get_source_segment(self.source, node) or ""
        try:
            value = rational(text)
        except ValueError as error:
            raise self.wrong(f"{_shown(text)} is {error}") from None
        return sympy.Rational(value.numerator, value.denominator)


def _shown(text: object) -> str:
    quoted = str(text)
    return repr(quoted if len(quoted) <= 80 else f"{quoted[:80]}...")


def _depths(text: str) -> Iterable[int]:
    depth = 0
    yield depth
    for x in text:
        depth += {"(": 1, ")": -1}.get(x, 0)
        yield depth
