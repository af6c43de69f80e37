"""Scaling axes, rays and regimes: how every dimension of the network grows with n.

Read next: ``powers.py`` (powers of the axes), ``signals.py`` (where dimensions become weights of sums).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from scaling_algebra.arguments import check_arguments, parse_pairs
from scaling_algebra.errors import UsageError, find_entry, quote_value, unknown_name
from scaling_algebra.limits import parse_rational

AXES: dict[str, str] = {
    "N": "width",
    "N_e": "expert width",
    "M": "number of experts",
    "K": "active experts",
    "L": "depth",
}
"""Axes that may grow and have rules of their own, with their meaning. Input dimension, batch and steps are Theta(1)."""
FIXED: dict[str, str] = {"D": "input dimension", "S": "tokens", "E": "head dimension", "R": "rank", "C": "constant"}
"""Axes that do not grow, with their meaning."""
NAME = re.compile(r"[A-Za-z]\w{0,39}", re.ASCII)
"""Names of a reader's own axes, such as ``rank`` or ``heads``: they grow where a ray gives them a rate."""


def named_axis(name: str) -> bool:
    """May an axis be called that?"""
    return isinstance(name, str) and bool(NAME.fullmatch(name))


def ordered(axes: Iterable[str]) -> list[str]:
    """Axes in the order in which they are printed: those of ``AXES``, then others by name.

    Examples:
        >>> ordered({"rank", "M", "heads", "N"})
        ['N', 'M', 'heads', 'rank']
    """
    rank = {axis: k for k, axis in enumerate(AXES)}
    return sorted(axes, key=lambda axis: (rank.get(axis, len(rank)), axis))


def about(axis: str) -> str:
    """The meaning of an axis: that of the letters that have one, else its own name."""
    return AXES.get(axis) or FIXED.get(axis) or axis


@dataclass(frozen=True)
class Ray:
    """A way to grow: each axis is ``n**rate``.

    Args:
        rates: exact rate of every axis that the network has (``lacks`` says which are missing); K defaults to M (all
            experts active up to a constant factor; smaller: ``dynamics/sparse_routing.py``) and L to 0.
        name: what reports call it.

    Raises:
        UsageError: an unknown axis, a negative or inexact rate, no growing axis, or K above M.

    Examples:
        >>> Ray({"N": 1, "N_e": "1/2", "M": 1})["N_e"]
        Fraction(1, 2)
    """

    rates: Mapping[str, Fraction | int | str]
    name: str = ""
    _exact: dict[str, Fraction] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.rates, Mapping):
            raise UsageError(f"the rates are {self.rates!r}; give a dict, or a text to Ray.parse")
        exact: dict[str, Fraction] = {}
        for axis, rate in self.rates.items():
            if axis in FIXED or not named_axis(axis):
                raise unknown_name("axis that grows", axis if isinstance(axis, str) else quote_value(axis), AXES)
            exact[axis] = _rational(axis, rate)
        if "M" in exact:
            exact.setdefault("K", exact["M"])
        exact.setdefault("L", Fraction(0))
        if "K" in exact and "M" not in exact:
            raise UsageError("the ray has K but leaves out M: active experts are some of M experts; give M, too")
        if "K" in exact and exact["K"] > exact["M"]:
            raise UsageError(
                f"the ray has K={exact['K']} but M={exact['M']}: only M experts can be active; give K <= M"
            )
        if not any(exact.values()):
            raise UsageError("no axis grows on this ray; give at least one positive rate, for example N=1")
        axes = ordered({*AXES, *exact})
        object.__setattr__(self, "_exact", {axis: exact.get(axis, Fraction(0)) for axis in axes})
        object.__setattr__(self, "rates", {axis: exact[axis] for axis in axes if axis in exact})

    def __getitem__(self, axis: str) -> Fraction:
        """The rate of an axis; 0 where the ray leaves it out."""
        return self._exact.get(axis, Fraction(0))

    @property
    def axes(self) -> tuple[str, ...]:
        """Every axis that a power on this ray may have."""
        return tuple(self._exact)

    @property
    def largest(self) -> Fraction:
        """The largest rate. A ray times a constant is the same ray, so what is small is small against this one."""
        return max(self._exact.values())

    def lacks(self, axes: Iterable[str]) -> tuple[str, ...]:
        """The growing axes among these that the ray leaves out."""
        return tuple(axis for axis in AXES if axis in set(axes) and axis not in self.rates)

    def __hash__(self) -> int:
        return hash(tuple(self._exact.items()))

    @classmethod
    @check_arguments
    def parse(cls, text: str) -> Ray:
        """``"N=1,N_e=1/2,M=1/2"`` (spaces allowed).

        Raises:
            UsageError: not a list of ``axis=rate``, or any error of the constructor.
        """
        return cls(parse_pairs("the rate", text.split(","), "N=1,N_e=1/2,M=1/2"))

    def __repr__(self) -> str:
        return f"<Ray: {self}>"

    def __str__(self) -> str:
        rates = ",".join(f"{axis}={rate}" for axis, rate in self.rates.items())
        return f"regime {self.name} ({rates})" if self.name else rates


def _rational(axis: str, rate: Fraction | int | str) -> Fraction:
    if isinstance(rate, float):
        raise TypeError(
            f"the rate of {axis} is the float {rate!r}; exponents are exact: give an int, a Fraction or a string"
        )
    try:
        exact = parse_rational(rate)
    except ValueError as error:
        raise UsageError(f"the rate of {axis} is {quote_value(rate)}, {error}; write it as 1, 1/2 or 0.5") from None
    if exact < 0:
        raise UsageError(f"the rate of {axis} is {exact}, but axes do not shrink; rates are >= 0")
    return exact


REGIMES: dict[str, Ray] = {
    "I": Ray({"N": 1, "N_e": 1, "M": 0, "K": 0}, "I"),
    "II": Ray({"N": 1, "N_e": 0, "M": 1, "K": 1}, "II"),
    "III": Ray({"N": 1, "N_e": 1, "M": 1, "K": 1}, "III"),
}
"""Regimes I to III. Source: MSSP paper, section 2."""


def regime(name: str) -> Ray:
    """The regime called ``name`` (I, II, III, in any case).

    Raises:
        UsageError: no such regime.
    """
    return find_entry("regime", name, REGIMES)
