"""Sizes of two models, and the ray between them.

Read next: ``recipe.py`` (the numbers of every tensor), ``files.py`` (sizes of published configurations).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import combinations, product

from scaling_algebra import limits
from scaling_algebra.arguments import parse_pairs
from scaling_algebra.errors import UsageError, quote_value, unknown_name_error
from scaling_algebra.spec.axes import AXES, FIXED, Ray, describe_axis, is_axis_name, sort_axes

Sizes = Mapping[str, int]
"""Size of every axis that a model has."""

FINEST = 64
"""Largest denominator of a rate that approximates a ratio of logarithms."""
_COEFFICIENTS = ((2, 1), (1, 2), (1, 1), (1, 1, 1))
"""Coefficients, up to signs, of the walls whose sides a ray must keep: 2 M = N, M = N, M + N_e = N."""


def read_sizes(given: str | Mapping[str, int], label: str) -> dict[str, int]:
    """Reads sizes such as ``"N=1024,N_e=512,M=64,K=8"``, or a dict of them. K is M if it is omitted.

    Args:
        given: the sizes.
        label: the model that has them, for messages.

    Raises:
        UsageError: a name is no axis that grows, a size is no positive integer, or K exceeds M.

    Examples:
        >>> read_sizes("N=1024, N_e=512, M=64", "base")
        {'N': 1024, 'N_e': 512, 'M': 64, 'K': 64}
    """
    named = _pairs(given, label) if isinstance(given, str) else given
    if not isinstance(named, Mapping):
        raise UsageError(
            f"the {label} is {quote_value(given)}; give sizes such as 'N=1024,N_e=512,M=64,K=8', or a dict"
        )
    sizes: dict[str, int] = {}
    for axis, size in named.items():
        if axis in FIXED or not is_axis_name(axis):
            raise unknown_name_error(f"axis in the {label}", axis if isinstance(axis, str) else quote_value(axis), AXES)
        sizes[axis] = limits.check_range(f"{axis} of the {label}", size, 1, limits.SIZE)
    if "K" in sizes and sizes["K"] > sizes.get("M", 0):
        raise UsageError(f"the {label} has K={sizes['K']} but M={sizes.get('M', 0)}: only M experts can be active")
    if "M" in sizes:
        sizes.setdefault("K", sizes["M"])
    return {axis: sizes[axis] for axis in sort_axes(sizes)}


def _pairs(text: str, label: str) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for axis, size in parse_pairs(f"the {label}", text.split(","), "N=1024,M=64").items():
        try:
            sizes[axis] = limits.parse_integer(size)
        except ValueError as error:
            raise UsageError(f"{axis} of the {label} is {size!r}, {error}; give a whole number") from None
    return sizes


def every_axis(sizes: Sizes) -> dict[str, int]:
    """Completes sizes with 1 for every axis that a model does not have."""
    return {axis: sizes.get(axis, 1) for axis in sort_axes({*AXES, *sizes})}


@dataclass(frozen=True)
class Way:
    """The growth of a model from its base to its target.

    Attributes:
        base: sizes of the base.
        target: sizes of the target, with the same axes.
        ray: rates proportional to log(target/base) of each axis; None if an axis shrinks or K grows faster than M,
            since
            such a ray is not permitted.
        exact: True if the rates are exactly in the ratio of these logarithms. Otherwise they are the simplest
            rationals for
            which the same formulas are valid.
    """

    base: Sizes
    target: Sizes
    ray: Ray | None
    exact: bool = True

    @cached_property
    def own_rays(self) -> tuple[Ray, Ray]:
        """The ray on which the sizes of the base lie (rates proportional to their logarithms), and that of the target.

        The depth L is included only if it changes. If all sizes of the base are 1, every power is 1 there, and the
        ray of the target is returned for both.
        """
        depth = self.base.get("L") != self.target.get("L")
        first, last = ({a: Fraction(n if a != "L" or depth else 1) for a, n in x.items()} for x in self.sizes)
        if max(last.values()) == 1:  # nothing grows
            assert self.ray is not None
            return self.ray, self.ray
        end = through(last)[0]
        return through(first)[0] if max(first.values()) > 1 else end, end

    @property
    def sizes(self) -> tuple[Sizes, Sizes]:
        """The sizes of the base and of the target."""
        return self.base, self.target


def way(base: Sizes, target: Sizes) -> Way:
    """Returns the growth from a base to a target: both sizes, and the ray along which one grows into the other.

    Raises:
        UsageError: the axes differ, or the target is smaller.
    """
    for has, one, lacks, other in (("base", base, "target", target), ("target", target, "base", base)):
        if missing := sort_axes(one.keys() - other.keys()):
            named = ", ".join(a if describe_axis(a) == a else f"{a} ({describe_axis(a)})" for a in missing)
            kept = ",".join(f"{a}={one[a]}" for a in missing if a != "K" or one[a] != one.get("M"))
            raise UsageError(
                f"the {has} has {named}, but the {lacks} does not; add {kept} to the {lacks} if it does not change"
            )
    ratios = {axis: Fraction(target[axis], base[axis]) for axis in base}
    if all(x == 1 for x in ratios.values()):  # every factor is 1 on any ray
        first = "N" if "N" in base else next(iter(base))
        return Way(base, target, through({axis: Fraction(2 if axis == first else 1) for axis in base})[0])
    if all(x <= 1 for x in ratios.values()):
        raise UsageError("the base is larger than the target; swap them: hyperparameters are tuned on the smaller one")
    if min(ratios.values()) < 1 or ratios.get("K", 0) > ratios.get("M", 0):
        return Way(base, target, None)
    ray, exact = through(ratios)
    return Way(base, target, ray, exact)


def through(ratios: Mapping[str, Fraction]) -> tuple[Ray, bool]:
    """Returns the ray whose rates are proportional to the logarithms of the growth factors, and whether it is exact.

    Law: a formula is valid on a cone of rays, so rates may be replaced by others in the same cone. Irrational rates are
    replaced by the simplest rational ones on the same side of the boundaries between cones; sides are compared in
    integers.

    Examples:
        >>> ray, exact = through({"N": Fraction(4), "N_e": Fraction(2), "M": Fraction(4), "K": Fraction(1)})
        >>> str(ray), exact
        ('N=1,N_e=1/2,M=1,K=0,L=0', True)
        >>> ray, exact = through({"N": Fraction(4), "N_e": Fraction(3, 2), "M": Fraction(3), "K": Fraction(1)})
        >>> str(ray), exact
        ('N=1,N_e=1/3,M=3/4,K=0,L=0', False)
    """
    logs = {axis: math.log(x) for axis, x in ratios.items()}
    top = max(logs, key=lambda axis: logs[axis])
    for finest in range(1, FINEST + 1):
        rates = {axis: Fraction(x / logs[top]).limit_denominator(finest) for axis, x in logs.items()}
        if _same_sides(rates, ratios):
            break
    exact = all(ratios[axis] ** r.denominator == ratios[top] ** r.numerator for axis, r in rates.items())
    return Ray(rates), exact


def _same_sides(rates: Mapping[str, Fraction], ratios: Mapping[str, Fraction]) -> bool:
    """Tests whether rates of axes may replace the logarithms of growth factors, because the same formulas are valid
    for both.

    This is so if both lie on the same side of every simple boundary between cones, such as M = N or M + N_e = N.

    Args:
        rates: candidate rates of the axes.
        ratios: growth factors of the axes, whose logarithms are the true rates.
    """
    for coefficients in _COEFFICIENTS:
        for axes in combinations(rates, len(coefficients)):
            for signs in product((-1, 1), repeat=len(axes)):
                chosen = [(axis, c * sign) for axis, c, sign in zip(axes, coefficients, signs, strict=True)]
                rate = sum((c * rates[axis] for axis, c in chosen), Fraction(0))
                size = math.prod((ratios[axis] ** c for axis, c in chosen), start=Fraction(1))
                if (rate > 0, rate < 0) != (size > 1, size < 1):
                    return False
    return all(rate > 0 or ratios[axis] == 1 for axis, rate in rates.items())
