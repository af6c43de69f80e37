"""Scaling axes, rays and regimes: how every dimension of the network grows with n.

Read next: ``powers.py`` (powers of the axes), ``signals.py`` (where dimensions become weights of sums).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from scaling_algebra.arguments import check_arguments, parse_pairs
from scaling_algebra.errors import UsageError, find_entry, quote_value, unknown_name_error
from scaling_algebra.limits import parse_rational

AXES: dict[str, str] = {
    "N": "width",
    "N_e": "expert width",
    "M": "number of experts",
    "K": "active experts",
    "L": "depth",
}
"""Axes that may grow and have rules of their own, with their meaning. Batch and steps are Theta(1)."""
FIXED: dict[str, str] = {"D": "input dimension", "S": "tokens", "E": "head dimension", "R": "rank", "C": "constant"}
"""Axes that do not grow, with their meaning."""
NAME = re.compile(r"[A-Za-z]\w{0,39}", re.ASCII)
"""Pattern of the user's own axes, such as ``rank`` or ``heads``. They grow if a ray gives them a positive rate."""


def is_axis_name(name: str) -> bool:
    """Tests whether a value can be the name of an axis."""
    return isinstance(name, str) and bool(NAME.fullmatch(name))


def sort_axes(axes: Iterable[str]) -> list[str]:
    """Sorts axes into the order in which they are printed: those of ``AXES`` first, then others by name.

    Examples:
        >>> sort_axes({"rank", "M", "heads", "N"})
        ['N', 'M', 'heads', 'rank']
    """
    rank = {axis: k for k, axis in enumerate(AXES)}
    return sorted(axes, key=lambda axis: (rank.get(axis, len(rank)), axis))


def describe_axis(axis: str) -> str:
    """Returns the meaning of an axis of this package, such as "width"; for any other axis its name."""
    return AXES.get(axis) or FIXED.get(axis) or axis


@dataclass(frozen=True)
class Ray:
    """A way to grow the network: each axis has the size ``n**rate`` up to a constant factor, as n grows.

    Args:
        rates: exact rate of every axis of the network (``find_missing_axes`` lists those without one). K defaults to M
            (all experts active up to a constant factor; smaller K: ``dynamics/sparse_routing.py``), L to 0.
        name: the name of the ray in reports, such as "III".

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
            if axis in FIXED or not is_axis_name(axis):
                raise unknown_name_error("axis that grows", axis if isinstance(axis, str) else quote_value(axis), AXES)
            exact[axis] = _read_rate(axis, rate)
        if "M" in exact:
            exact.setdefault("K", exact["M"])
        exact.setdefault("L", Fraction(0))
        if "K" in exact and "M" not in exact:
            raise UsageError("the ray gives K but not M; give M, too, since K of M experts are active")
        if "K" in exact and exact["K"] > exact["M"]:
            raise UsageError(
                f"the ray has K={exact['K']} but M={exact['M']}; at most M experts can be active, so give K <= M"
            )
        if not any(exact.values()):
            raise UsageError("no axis grows on this ray; give at least one positive rate, for example N=1")
        axes = sort_axes({*AXES, *exact})
        object.__setattr__(self, "_exact", {axis: exact.get(axis, Fraction(0)) for axis in axes})
        object.__setattr__(self, "rates", {axis: exact[axis] for axis in axes if axis in exact})

    def __getitem__(self, axis: str) -> Fraction:
        """Returns the rate of an axis; 0 if the ray does not name it."""
        return self._exact.get(axis, Fraction(0))

    @property
    def axes(self) -> tuple[str, ...]:
        """Every axis of ``AXES`` and of the ray, those with rate 0 included."""
        return tuple(self._exact)

    @property
    def largest(self) -> Fraction:
        """The largest rate. As all rates times a constant give the same ray, tolerances are relative to it."""
        return max(self._exact.values())

    def find_missing_axes(self, axes: Iterable[str]) -> tuple[str, ...]:
        """Returns those of the given axes that have no rate on this ray. K and L always have one, as they have a
        default.
        """
        return tuple(axis for axis in AXES if axis in set(axes) and axis not in self.rates)

    def __hash__(self) -> int:
        return hash(tuple(self._exact.items()))

    @classmethod
    @check_arguments
    def parse(cls, text: str) -> Ray:
        """Parses a text such as ``"N=1,N_e=1/2,M=1/2"``; spaces are allowed.

        Raises:
            UsageError: the text is no list of ``axis=rate``, or the constructor refuses the rates.
        """
        return cls(parse_pairs("the rate", text.split(","), "N=1,N_e=1/2,M=1/2"))

    def __repr__(self) -> str:
        return f"<Ray: {self}>"

    def __str__(self) -> str:
        rates = ",".join(f"{axis}={rate}" for axis, rate in self.rates.items())
        return f"regime {self.name} ({rates})" if self.name else rates


def _read_rate(axis: str, rate: Fraction | int | str) -> Fraction:
    if isinstance(rate, float):
        raise TypeError(
            f"the rate of {axis} is the float {rate!r}; exponents are exact: give an int, a Fraction or a string"
        )
    try:
        exact = parse_rational(rate)
    except ValueError as error:
        raise UsageError(f"the rate of {axis} is {quote_value(rate)}, {error}; write it as 1, 1/2 or 0.5") from None
    if exact < 0:
        raise UsageError(f"the rate of {axis} is {exact}, but axes cannot shrink; give a rate of 0 or more")
    return exact


REGIMES: dict[str, Ray] = {
    "I": Ray({"N": 1, "N_e": 1, "M": 0, "K": 0}, "I"),
    "II": Ray({"N": 1, "N_e": 0, "M": 1, "K": 1}, "II"),
    "III": Ray({"N": 1, "N_e": 1, "M": 1, "K": 1}, "III"),
}
"""Regimes I to III. Source: MSSP paper, section 2."""


def regime(name: str) -> Ray:
    """Returns the ray of regime I, II or III; ``name`` may be in lower case.

    Raises:
        UsageError: there is no such regime.
    """
    return find_entry("regime", name, REGIMES)
