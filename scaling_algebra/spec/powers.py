"""Exact powers of the axes, such as ``M N_e^(-1/2)``. On a ray they are powers of n."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

from scaling_algebra.arguments import check_arguments
from scaling_algebra.errors import UsageError, quote_value, unknown_name_error
from scaling_algebra.limits import LONGEST, parse_rational

from .axes import AXES, Ray, sort_axes

if TYPE_CHECKING:
    import sympy

_FACTOR = re.compile(
    r"\s*(?P<by>[*/]?)\s*(?:1(?!\d|/\d)|(?P<axis>[A-Za-z]\w*)(?:\^(?P<open>\(?)(?P<e>-?\d+(?:/\d+)?)(?P<close>\)?))?)",
    re.ASCII,
)
"""One factor of a written power: an axis with an exponent, or 1."""
_SYMBOLS = {"b": "sigma", "c": "lr", "d": "eps", "v": "v"}


@dataclass(frozen=True)
class Power:
    """A product of rational powers of the axes.

    Attributes:
        terms: pairs (axis, exponent) in printing order, without zero exponents.

    Examples:
        >>> p = Power.of({"M": 1, "N": Fraction(-1, 2)})
        >>> str(p), str(p**2), str(p * p), str(1 / p), str(p / p)
        ('M N^(-1/2)', 'M^2 N^-1', 'M^2 N^-1', 'N^(1/2) M^-1', '1')
    """

    terms: tuple[tuple[str, Fraction], ...] = ()

    def __post_init__(self) -> None:
        if type(self.terms) is not tuple:
            raise UsageError(
                f"Power(...) takes pairs (axis, exponent), not {quote_value(self.terms)}; write Power.parse('N^-1/2')"
            )

    @classmethod
    def of(cls, exponents: Mapping[str, Fraction | int]) -> Power:
        """Builds a power from the exponent of each axis.

        Raises:
            TypeError: an exponent is a float, which is inexact.
        """
        if any(isinstance(e, float) for e in exponents.values()):
            raise TypeError(f"exponents must be exact rationals (int or Fraction), got {dict(exponents)!r}")
        return cls(tuple((axis, Fraction(exponents[axis])) for axis in sort_axes(exponents) if exponents[axis] != 0))

    @classmethod
    @check_arguments
    def parse(cls, text: str, axes: tuple[str, ...] = tuple(AXES)) -> Power:
        """Parses ``"M N^-1/2"``, ``"M/N"``, ``"N^(-1/2)"`` or ``"1"``.

        Args:
            text: the power.
            axes: the axes that may occur.

        Raises:
            UsageError: the text is no product of powers of these axes.

        Examples:
            >>> str(Power.parse("M N_e^-1/2")), str(Power.parse("1/N")), str(Power.parse("1"))
            ('M N_e^(-1/2)', 'N^-1', '1')
        """
        if len(text) > (most := LONGEST * len(AXES)):
            raise UsageError(f"the power {text!r} is longer than {most} characters; write each axis once")
        power, at, text = cls(), 0, text.strip()
        wrong = UsageError(f"cannot read the power {text!r}; write for example N^-1/2, M N^-1, M/N or 1")
        while at < len(text) or not at:
            factor = _FACTOR.match(text, at)
            if factor is None or bool(factor["open"]) != bool(factor["close"]) or (not at and factor["by"]):
                raise wrong
            if axis := factor["axis"]:
                if axis not in axes:
                    raise unknown_name_error(f"axis in the power {text!r}", axis, axes)
                try:
                    exponent = parse_rational(factor["e"] or 1)
                except ValueError as error:
                    raise UsageError(f"cannot read the power {text!r}, {factor['e']} is {error}") from None
                power *= cls.of({axis: -exponent if factor["by"] == "/" else exponent})
            at = factor.end()
        return power

    def __getitem__(self, axis: str) -> Fraction:
        return dict(self.terms).get(axis, Fraction(0))

    def __mul__(self, other: Power) -> Power:
        if not isinstance(other, Power):
            return NotImplemented
        return Power.of({axis: self[axis] + other[axis] for axis, _ in (*self.terms, *other.terms)})

    def __pow__(self, exponent: Fraction | int) -> Power:
        return Power.of({axis: e * exponent for axis, e in self.terms})

    def __truediv__(self, other: Power) -> Power:
        return self * other**-1

    def __rtruediv__(self, one: Literal[1]) -> Power:
        return self**-1 if one == 1 else NotImplemented

    def on(self, ray: Ray) -> Fraction:
        """Returns the exponent of n on a ray."""
        return sum((e * ray[axis] for axis, e in self.terms), Fraction(0))

    def at(self, sizes: Mapping[str, float]) -> float:
        """Evaluates the power at these sizes of the axes.

        Examples:
            >>> Power.parse("M N^-1/2").at({"N": 1024, "M": 8})
            0.25
        """
        return math.prod((float(sizes[axis]) ** float(e) for axis, e in self.terms), start=1.0)

    def ratio(self, base: Mapping[str, float], target: Mapping[str, float]) -> float:
        """Returns the factor by which the power changes from the base sizes to the target sizes.

        Examples:
            >>> Power.parse("M N^-1/2").ratio({"N": 1024, "M": 8}, {"N": 4096, "M": 8})
            0.5
        """
        return self.at({axis: target[axis] / base[axis] for axis, _ in self.terms})

    @property
    def expr(self) -> sympy.Expr:
        """The power as a sympy expression in positive symbols.

        Examples:
            >>> Power.parse("M N^-1/2").expr
            M/sqrt(N)
        """
        return _multiply_symbols(self.terms)

    def __repr__(self) -> str:
        return f"<Power: {self}>"

    def __str__(self) -> str:
        return " ".join(axis if e == 1 else f"{axis}^{format_exponent(e)}" for axis, e in self.sort_terms()) or "1"

    @property
    def latex(self) -> str:
        """The power in LaTeX: ``M^{1/2} N_{e}^{-1/2}``."""
        factors = []
        for axis, e in self.sort_terms():
            name, _, index = axis.partition("_")
            base = f"{name}_{{{index}}}" if index else name
            factors.append(base if e == 1 else f"{base}^{{{e}}}")
        return " ".join(factors) or "1"

    def sort_terms(self) -> list[tuple[str, Fraction]]:
        """Sorts terms with positive exponents first, as people write them: ``M N^-1``."""
        return sorted(self.terms, key=lambda term: term[1] < 0)


@dataclass(frozen=True, slots=True)
class Form:
    """The exponent of a monomial: a power of the axes times unknown parameters.

    Its value on a ray is ``power.on(ray)`` plus the sum of count * value over ``unknowns``.

    Attributes:
        power: the power of the axes.
        unknowns: pairs (unknown exponent, count), such as ``("b.router", 1)``.
    """

    power: Power
    unknowns: tuple[tuple[str, int], ...]

    @property
    def expr(self) -> sympy.Expr:
        """The quantity as a sympy expression in the axes and the symbols of ``name_symbol``."""
        return _multiply_symbols([*self.power.terms, *((name_symbol(u), Fraction(-n)) for u, n in self.unknowns)])


def name_symbol(unknown: str) -> str:
    """Returns the name of the quantity whose exponent an unknown is: ``sigma_input`` for ``b.input``, ``multiplier``
    for ``alpha``.

    Examples:
        >>> name_symbol("c.expert_in"), name_symbol("v.router.0")
        ('lr_expert_in', 'v_router_0')
    """
    letter, _, rest = unknown.partition(".")
    return f"{_SYMBOLS[letter]}_{rest.replace('.', '_')}" if rest else unknown.replace("alpha", "multiplier")


def _multiply_symbols(powers: Iterable[tuple[str, Fraction]]) -> sympy.Expr:
    """Returns the product of powers of positive sympy symbols."""
    import sympy

    factors = (sympy.Symbol(x, positive=True) ** sympy.Rational(e.numerator, e.denominator) for x, e in powers)
    return sympy.Mul(*factors)


def format_exponent(e: Fraction) -> str:
    """Formats an exponent, in brackets if it is a fraction: ``-1``, ``(1/2)``."""
    return str(e) if e.denominator == 1 else f"({e})"
