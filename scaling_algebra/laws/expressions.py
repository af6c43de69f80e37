"""Parses sums of monomials exactly: ``N**(-2*beta/d) + N/n``, and relations such as ``C = n*N``.

A text is parsed with ``ast`` against a list of allowed nodes, and never evaluated. For any other text every parser
raises UsageError: one line that quotes it. Read next: ``monomials.py`` (the results), ``balance.py`` (which terms of a
sum balance).
"""

from __future__ import annotations

import ast
import operator
import re
import warnings
from collections.abc import Callable
from functools import reduce
from itertools import accumulate
from typing import TypeVar

import sympy

from scaling_algebra.errors import UsageError
from scaling_algebra.limits import parse_rational

from .monomials import Expr, Monomial, Posynomial, Relation, parameter, simplify_exponent

LONG, DEEP, TERMS, DIGITS, LARGEST = 2_000, 40, 200, 300, 10**6
"""Maximum numbers of characters of an expression, nested brackets, monomials, and digits of a coefficient; maximum
numerator or denominator in an exponent.
"""
RELATIONS = ("<<", ">>", "<=", ">=", "=")
FUNCTIONS = ("log", "exp", "sqrt")
_STRANGE = re.compile(r"[^\w\s.,+*/^()'\"-]", re.ASCII)
_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}
Value = TypeVar("Value")


def expression(text: str) -> Posynomial:
    """Parses a sum of monomials.

    Examples:
        >>> str(expression("N**(-2*beta/d) + (N/n)^(1/2)"))
        'N^(-2*beta/d) + N^(1/2)/n^(1/2)'
    """
    parser = _Parser(text)
    total = Posynomial.of(parser.read(parser.terms))
    if both := parser.bases & parser.exponents:
        raise parser.wrong(f"{min(both)} is used in a base and in an exponent; use different names")
    return total


def monomial(text: str) -> Monomial:
    """Parses one monomial."""
    total = expression(text)
    if len(total.terms) != 1:
        raise UsageError(f"{_quote(text)} is a sum; give one monomial, such as 6*n*N")
    return total.terms[0]


def exponent(text: str) -> Expr:
    """Parses a number or a rational function of parameters: ``2*beta/d``.

    Examples:
        >>> exponent("beta/(beta + d)"), exponent("-0.5")
        (beta/(beta + d), -1/2)
    """
    parser = _Parser(text)
    return simplify_exponent(parser.read(parser.exponent))


def relation(text: str) -> Relation:
    """Parses two sums with a sign of ``RELATIONS`` between them; the larger side must be one monomial."""
    parts = re.split(r"(<<|>>|<=|>=|==?)", text) if isinstance(text, str) and len(text) <= LONG else []
    if len(parts) != 3:
        raise UsageError(
            f"{_quote(text)} is not a relation; write two expressions with one of {', '.join(RELATIONS)} between "
            "them, such as C = n*N"
        )  # fmt: skip
    left, right, sign = expression(parts[0]).terms, expression(parts[2]).terms, parts[1]
    ordered = {"<": [(left, right)], ">": [(right, left)], "=": [(left, right), (right, left)]}[sign[0]]
    if any(len(large) != 1 for _, large in ordered):
        raise UsageError(f"{_quote(text)} has a sum on its larger side; rewrite it with one monomial there")
    ratios = tuple(t / large[0] for small, large in ordered for t in small)
    return Relation(ratios, text.strip(), sign in ("<<", ">>"), sign[0] == "=")


class _Parser:
    """Parses one text. Its methods take a node of the syntax tree and raise UsageError if they do not allow it.

    Attributes:
        text: the text.
        source: the text as Python code.
        bases: names that occur in bases of powers; these are quantities.
        exponents: names that occur in exponents; these are parameters.
    """

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise UsageError(f"{text!r} is not an expression; write a text such as 'N**(-2*beta/d) + N/n'")
        self.text = text.strip()
        self.source = self.text.replace("^", "**")
        self.bases: set[str] = set()
        self.exponents: set[str] = set()
        depths = accumulate({"(": 1, ")": -1}.get(x, 0) for x in self.text[:LONG])
        for says, wrong in (
            (f"longer than {LONG} characters", len(self.text) > LONG),
            ("letters, digits and signs must be ASCII, on one line", not (text.isascii() and self.text.isprintable())),
            ("it is empty", not self.text),
            (f"cannot read {(_STRANGE.search(self.text) or '?')[0]!r}", _STRANGE.search(self.text)),
            (f"brackets are nested more than {DEEP} deep", max(depths, default=0) > DEEP),
        ):
            if wrong:
                raise self.wrong(says)
        try:
            with warnings.catch_warnings(action="ignore"):
                self.tree = ast.parse(self.source, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise self.wrong("this is not a valid expression") from None

    def wrong(self, what: str) -> UsageError:
        """Returns an error whose message is ``what``, followed by a quotation of the text."""
        return UsageError(
            f"{_quote(self.text)}: {what}; write sums of products of powers, such as N**(-2*beta/d) + N/n"
        )

    def read(self, as_what: Callable[[ast.expr], Value]) -> Value:
        """Parses the whole text and returns what ``as_what`` (a method below, such as ``terms``) makes of it."""
        try:
            return as_what(self.tree)
        except RecursionError:
            raise self.wrong("it is nested too deeply") from None

    def terms(self, node: ast.expr) -> list[Monomial]:
        """Converts a node to the monomials of a sum."""
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
                return self.check_terms(self.terms(node.left) + self.terms(node.right))
            case ast.BinOp(op=ast.Mult()):
                return self.product(self.terms(node.left), self.terms(node.right))
            case ast.BinOp(op=ast.Div()):
                below = self.single(node.right, "division by a sum is not supported")
                return self.check_terms([a / below for a in self.terms(node.left)])
            case ast.BinOp(op=ast.Pow()):
                return self.power(node.left, self.exponent(node.right))
            case ast.Call(func=ast.Name(id="sqrt"), args=[argument], keywords=[]):
                return self.power(argument, sympy.Rational(1, 2))
            case ast.Call(func=ast.Name(id="exp"), args=[argument], keywords=[]):
                return self.check_terms([Monomial(sympy.exp(self.number(argument)))])
            case ast.Call(func=ast.Name(id="log"), args=[argument], keywords=[]):
                inside = self.single(argument, "the logarithm of a sum is not supported")
                if not inside.quantities:
                    raise self.wrong("the logarithm of a constant is not supported; write its value")
                return [Monomial.of({}, logs=[(inside, sympy.S.One)])]
            case ast.Call():
                raise self.wrong(f"the only functions are {', '.join(FUNCTIONS)}, with one argument")
            case ast.BinOp(op=ast.Sub()) | ast.UnaryOp(op=ast.USub()):
                raise self.wrong("minus signs are not allowed: sizes are sums of positive monomials")
        raise self.wrong(f"cannot read {ast.unparse(node)!r}")

    def power(self, base: ast.expr, e: Expr) -> list[Monomial]:
        """Returns the terms of ``base**e``; a sum with a positive integer exponent is expanded."""
        terms = self.terms(base)
        if len(terms) == 1:
            if terms[0].coefficient != 1 and e.is_number and abs(e) > DIGITS:
                raise self.wrong(f"a number to the power {e} is not supported")
            return self.check_terms([terms[0] ** e])
        if not (e.is_Integer and 0 < e <= DEEP):
            raise self.wrong("a sum can only be raised to a small positive integer")
        return reduce(self.product, [terms] * int(e))

    def product(self, left: list[Monomial], right: list[Monomial]) -> list[Monomial]:
        """Expands the product of two sums."""
        return self.check_terms([a * b for a in left for b in right])

    def exponent(self, node: ast.expr) -> Expr:
        """Converts a node to a rational function of parameters."""
        match node:
            case ast.Constant():
                return self.number(node)
            case ast.Name(id=name):
                self.exponents.add(name)
                return parameter(name)
            case ast.UnaryOp(op=ast.USub()):
                return -self.exponent(node.operand)
            case ast.UnaryOp(op=ast.UAdd()):
                return self.exponent(node.operand)
            case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div()):
                left, right = self.exponent(node.left), self.exponent(node.right)
                if isinstance(node.op, ast.Div) and sympy.cancel(right) == 0:
                    raise self.wrong("an exponent divides by zero")
                return self.check_exponent(_OPERATORS[type(node.op)](left, right))
            case ast.Call(func=ast.Name(id="log" | "ln")):
                raise self.wrong("logarithms in exponents are not supported; write a number instead")
            case ast.BinOp(op=ast.Pow()):
                base, e = self.exponent(node.left), self.exponent(node.right)
                if not (e.is_Integer and 0 < e <= 10):
                    raise self.wrong("in an exponent, only small integer powers are supported")
                return self.check_exponent(base**e)
        raise self.wrong(f"cannot read the exponent {ast.unparse(node)!r}")

    def check_exponent(self, e: Expr) -> Expr:
        """Returns an exponent unchanged; refuses one that is too large."""
        if sympy.count_ops(e) > TERMS or any(max(abs(x.p), x.q) > LARGEST for x in e.atoms(sympy.Rational)):
            raise self.wrong("an exponent is too large")
        return e

    def single(self, node: ast.expr, what: str) -> Monomial:
        """Converts a node to one monomial; raises UsageError with the message ``what`` if it is a sum."""
        terms = self.terms(node)
        if len(terms) != 1:
            raise self.wrong(what)
        return terms[0]

    def check_terms(self, terms: list[Monomial]) -> list[Monomial]:
        """Returns monomials unchanged; refuses too many, and numbers that are too large."""
        if len(terms) > TERMS:
            raise self.wrong(f"more than {TERMS} terms")
        for t in terms:
            if any(max(abs(x.p), x.q) > 10**DIGITS for x in t.coefficient.atoms(sympy.Rational)):
                raise self.wrong(f"a coefficient of more than {DIGITS} digits")
            for _, e in t.powers:
                self.check_exponent(e)
        return terms

    def number(self, node: ast.expr) -> Expr:
        """Converts a literal exactly: 0.5 is 1/2."""
        text = ast.get_source_segment(self.source, node) or ""
        try:
            value = parse_rational(text)
        except ValueError as error:
            raise self.wrong(f"{_quote(text)} is {error}") from None
        return sympy.Rational(value.numerator, value.denominator)


def _quote(text: object) -> str:
    """Quotes a text for a message, shortened."""
    quoted = str(text)
    return repr(quoted if len(quoted) <= 80 else f"{quoted[:80]}...")
