"""Exact powers of the axes: ``M N_e^(-1/2)`` is a value here, and a number only on a ray."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

from scaling_algebra.arguments import check_arguments
from scaling_algebra.errors import UsageError, quote_value, unknown_name
from scaling_algebra.limits import LONGEST, parse_rational

from .axes import AXES, Ray, ordered

if TYPE_CHECKING:
    import sympy

_FACTOR = re.compile(
    r"\s*(?P<by>[*/]?)\s*(?:1(?!\d|/\d)|(?P<axis>[A-Za-z]\w*)(?:\^(?P<open>\(?)(?P<e>-?\d+(?:/\d+)?)(?P<close>\)?))?)",
    re.ASCII,
)
"""One factor of a power as people write it: an axis with an exponent, or 1."""
_SYMBOLS = {"b": "sigma", "c": "lr", "d": "eps", "v": "v"}


@dataclass(frozen=True)
class Power:
    """A product of powers of the axes, as sorted (axis, exponent) pairs without zeros.

    Examples:
        >>> p = Power.of({"M": 1, "N": Fraction(-1, 2)})
        >>> str(p), str(p**2), str(p * p), str(1 / p), str(p / p)
        ('M N^(-1/2)', 'M^2 N^-1', 'M^2 N^-1', 'N^(1/2) M^-1', '1')
    """

    terms: tuple[tuple[str, Fraction], ...] = ()

    def __post_init__(self) -> None:
        if type(self.terms) is not tuple:
            raise UsageError(f"a power is made of pairs, not of {quote_value(self.terms)}; write Power.parse('N^-1/2')")

    @classmethod
    def of(cls, exponents: Mapping[str, Fraction | int]) -> Power:
        """Raises TypeError for a float: exponents are exact."""
        if any(isinstance(e, float) for e in exponents.values()):
            raise TypeError(f"exponents are exact rationals, got {dict(exponents)!r}")
        return cls(tuple((axis, Fraction(exponents[axis])) for axis in ordered(exponents) if exponents[axis] != 0))

    @classmethod
    @check_arguments
    def parse(cls, text: str, axes: tuple[str, ...] = tuple(AXES)) -> Power:
        """``"M N^-1/2"``, ``"M/N"``, ``"N^(-1/2)"`` or ``"1"``.

        Args:
            axes: those that it may have.

        Raises:
            UsageError: not a product of powers of the axes.

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
                    raise unknown_name(f"axis in the power {text!r}", axis, axes)
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
        """The exponent of n on a ray."""
        return sum((e * ray[axis] for axis, e in self.terms), Fraction(0))

    def at(self, sizes: Mapping[str, float]) -> float:
        """The number that it stands for at these sizes of its axes.

        Examples:
            >>> Power.parse("M N^-1/2").at({"N": 1024, "M": 8})
            0.25
        """
        return math.prod((float(sizes[axis]) ** float(e) for axis, e in self.terms), start=1.0)

    def ratio(self, base: Mapping[str, float], target: Mapping[str, float]) -> float:
        """The change from a base to a target: the factor on a tuned value.

        Examples:
            >>> Power.parse("M N^-1/2").ratio({"N": 1024, "M": 8}, {"N": 4096, "M": 8})
            0.5
        """
        return self.at({axis: target[axis] / base[axis] for axis, _ in self.terms})

    @property
    def expr(self) -> sympy.Expr:
        """As a sympy expression in positive symbols.

        Examples:
            >>> Power.parse("M N^-1/2").expr
            M/sqrt(N)
        """
        return _product(self.terms)

    def __repr__(self) -> str:
        return f"<Power: {self}>"

    def __str__(self) -> str:
        return " ".join(axis if e == 1 else f"{axis}^{exponent_text(e)}" for axis, e in self.ordered()) or "1"

    @property
    def latex(self) -> str:
        """``M^{1/2} N_{e}^{-1/2}``: an axis has at most one index."""
        factors = []
        for axis, e in self.ordered():
            name, _, index = axis.partition("_")
            base = f"{name}_{{{index}}}" if index else name
            factors.append(base if e == 1 else f"{base}^{{{e}}}")
        return " ".join(factors) or "1"

    def ordered(self) -> list[tuple[str, Fraction]]:
        """Terms with positive exponents first, as people write them: ``M N^-1``."""
        return sorted(self.terms, key=lambda term: term[1] < 0)


@dataclass(frozen=True, slots=True)
class Form:
    """The origin of an exponent: a power of the axes plus integer multiples of the unknowns.

    ``value`` on the ray = ``power`` on the ray + sum of ``unknowns[u]`` times the value of u.
    """

    power: Power
    unknowns: tuple[tuple[str, int], ...]

    @property
    def expr(self) -> sympy.Expr:
        """As a sympy expression in positive symbols: the axes, and those of ``symbol``."""
        return _product([*self.power.terms, *((symbol(u), Fraction(-n)) for u, n in self.unknowns)])


def symbol(unknown: str) -> str:
    """The name of what an unknown is the exponent of: ``sigma_input`` for ``b.input``, ``multiplier`` for ``alpha``.

    Examples:
        >>> symbol("c.expert_in"), symbol("v.router.0")
        ('lr_expert_in', 'v_router_0')
    """
    letter, _, rest = unknown.partition(".")
    return f"{_SYMBOLS[letter]}_{rest.replace('.', '_')}" if rest else unknown.replace("alpha", "multiplier")


def _product(powers: Iterable[tuple[str, Fraction]]) -> sympy.Expr:
    import sympy

    factors = (sympy.Symbol(x, positive=True) ** sympy.Rational(e.numerator, e.denominator) for x, e in powers)
    return sympy.Mul(*factors)


def exponent_text(e: Fraction) -> str:
    """``-1``, ``(1/2)``: brackets only where they are needed."""
    return str(e) if e.denominator == 1 else f"({e})"
