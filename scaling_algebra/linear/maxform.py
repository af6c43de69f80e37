"""Writes a size as a maximum of monomials on all rays of a cone, with a proof that none is missing.

Law: the part of a size with one combination of unknowns (its grade) is a maximum of monomials, hence convex in the
rates. If it equals the known monomials at the corners of every cone on which one of them leads, it exceeds them
nowhere. So sizes are computed at corners until no new monomial appears.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from scaling_algebra.spec.powers import Form, Power

from .cone import Cone
from .linear import Linear, Vector, direction, dot

_ROUNDS = 20
Counts = tuple[tuple[str, int], ...]
Grades = Mapping[Counts, tuple[Form | None, Fraction]]
"""At one ray, for every grade: the leading monomial (None if unknown), and an upper bound on the size."""


@dataclass(frozen=True)
class MaxForm:
    """A size as a function of the ray: the maximum of monomials in the axes and the unknown exponents, valid on all
    rays of a cone.

    Attributes:
        forms: the monomials. Each is, on some ray, larger than all others with the same unknowns.
        slack: None if no monomial is missing. Otherwise the size may exceed the largest monomial by a factor of at most
            (product of all axes)^slack; only combinations of unknowns that occur in `forms` are counted.
    """

    forms: tuple[Form, ...]
    slack: Fraction | None = None


def max_form(ask: Callable[[Vector], Grades], cone: Cone, first: Sequence[Vector]) -> MaxForm | None:
    """Finds the monomials whose maximum is a given size on all rays of a cone; None if too many rays would have to be
    tried.

    Args:
        ask: computes the size at one ray: for each combination of unknowns, the largest monomial (None if unknown) and
            an upper bound.
        cone: the rays on which the result must be valid.
        first: rays at which the size is computed first; the corners of the cone and of its parts follow.
    """
    powers: dict[Counts, dict[Power, None]] = {}
    answers: dict[Vector, Grades] = {}
    todo = list(first)
    for _ in range(_ROUNDS):
        for rates in todo:
            answers[rates] = ask(rates)
            for counts, (form, _) in answers[rates].items():
                monomials = powers.setdefault(counts, {})
                if form is not None:
                    monomials[form.power] = None
        ends = {g: {p: leading(cone, p, grade).rays for p in grade} for g, grade in powers.items()}
        todo = [
            r for r in dict.fromkeys(r for x in ends.values() for rays in x.values() for r in rays) if r not in answers
        ]
        if not todo:
            forms = (Form(p, g) for g, grade in ends.items() for p in grade if _alone(cone.axes, p, grade))
            return MaxForm(tuple(forms), _slack(cone.axes, powers, answers))
    return None


def leading(cone: Cone, power: Power, others: Iterable[Power]) -> Cone:
    """Returns the part of a cone on which a monomial (a power of each axis) is at least as large as the others."""
    apart = (direction(power[axis] - x[axis] for axis in cone.axes) for x in others if x != power)
    return cone.between(*(Linear.of(dict(zip(cone.axes, values, strict=True)), ">=") for values in apart))


def _alone(axes: Sequence[str], power: Power, ends: Mapping[Power, Sequence[Vector]]) -> bool:
    """Returns whether a monomial (a power of each axis) is larger than each of the others on some ray. This is tested
    at the sum of the rays ``ends[power]``; for each monomial, ``ends`` has the rays that span the cone on which it is
    at least as large as the others.
    """
    inner = [sum(x) for x in zip(*ends[power], strict=True)]
    size = _size(axes, power, inner)
    return bool(inner) and all(size > _size(axes, p, inner) for p in ends if p != power)


def _size(axes: Sequence[str], power: Power, rates: Sequence[int]) -> Fraction | int:
    return dot([power[axis] for axis in axes], rates) if rates else 0


def _slack(
    axes: Sequence[str], powers: Mapping[Counts, Iterable[Power]], answers: Mapping[Vector, Grades]
) -> Fraction | None:
    """Returns by how much the upper bounds exceed the known monomials at the rays tried, as the power of the product of
    all axes that covers the difference; None if they do not exceed them. If some combination of unknowns has an upper
    bound but no known monomial to compare it with, the result is 0.

    Args:
        axes: the axes.
        powers: the known monomials (a power of each axis), by the combination of unknowns that they contain.
        answers: for each ray tried, the largest monomial and the upper bound for each combination of unknowns.
    """
    worst = Fraction(0)
    for rates, grades in answers.items():
        top = max(rates)
        for counts, (_, high) in grades.items():
            largest = max((_size(axes, p, rates) for p in powers[counts]), default=None)
            if largest is None:
                return Fraction(0)
            worst = max(worst, (high * top - largest) / sum(rates))
    return worst or None
