"""Checks whether the base is large enough: whether subleading terms of the signals are small at the user's sizes.

Law: the size of a signal is a sum of monomials in the axes with positive coefficients. In a signal of size Theta(1)
the leading one is 1, and any other one, such as (M/N)^(1/2), becomes small for large models. If it is not small
at the base, the numbers tuned there suit the sum of both and not the leading one alone.
Assumes: all constants are 1.
Read next: ``recipe.py`` (the powers), ``Runs.list_lower_forms`` (finds the monomials),
``verify/judging/mixtures.py`` (the same question for measured sizes).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from scaling_algebra import limits
from scaling_algebra.counting.kernels import Exhausted
from scaling_algebra.dynamics.analysis import Analysis
from scaling_algebra.dynamics.run import BeyondPowerCounting
from scaling_algebra.solver.demands import Infeasible
from scaling_algebra.solver.derivation import Derivation, derive
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.powers import Power
from scaling_algebra.spec.records import convert_to_json
from scaling_algebra.spec.scaling import Scaling

from .sizes import Sizes, Way, every_axis, through

SMALL = Fraction(1, 10)
"""A term below this fraction of the leading one is small."""


@dataclass(frozen=True)
class NextTerm:
    """A subleading term in the size of a signal that must be Theta(1), up to a constant.

    Attributes:
        ratio: the term divided by the leading term: a power of the axes.
        base: the value of the ratio at the base.
        target: the value of the ratio at the target.
        small_from: the sizes of its growing axes above which the ratio is below ``SMALL``; None if no ray leads from
            base to target, or if these sizes are out of reach.
        of: the signals whose size has this term, each with the number of updates after which it has it.
    """

    ratio: Power
    base: float
    target: float
    small_from: Mapping[str, float] | None
    of: tuple[tuple[str, int], ...]

    def as_json(self) -> dict[str, Any]:
        """Returns the JSON record: the ratio as exponents by axis, signals as texts."""
        sizes = None if self.small_from is None else {axis: round(x) for axis, x in self.small_from.items()}
        record: dict[str, Any] = convert_to_json(
            {**vars(self), "small_from": sizes, "of": [f"{x}@{t}" for x, t in self.of]}
        )
        return record


@dataclass(frozen=True)
class NextTerms:
    """The subleading terms that are not small at the user's sizes.

    Attributes:
        terms: the terms, the largest at the base first.
        unknown: signals whose subleading terms are unknown.
        examined: False if nothing was examined, because the parameterization is defined and not derived, or because
            all sizes of the base are 1.
    """

    terms: tuple[NextTerm, ...] = ()
    unknown: tuple[str, ...] = ()
    examined: bool = False


def next_terms(d: Derivation, way: Way) -> NextTerms:
    """Finds, for every signal that must be Theta(1), the largest subleading term of its size.

    A term is listed if its ratio to the leading term falls from base to target and is not small at one of the two. Each
    ratio is listed once.

    Method: the monomials of a size are determined on the ray on which the sizes of the base lie, with the
    parameterization derived there. If there is none, as for MSSP on most rays, the parameterization of the recipe is
    used, and axes that do not grow count as constants. Ratios below the inverse square root of the largest size are
    ignored.
    """
    start = None if d.network.unread else _own_ray(d, way)
    if start is None:
        return NextTerms()
    ray, scaling, constant = start
    base, target = every_axis(way.base), every_axis(way.target)
    signals: dict[Power, list[tuple[str, int]]] = {}
    unknown = []
    for name, t, sizes in _iterate_demanded(d, ray, scaling):
        if t is None:
            unknown.append(name)
            continue
        free = tuple(dict.fromkeys(Power.of({x: e for x, e in p.terms if x not in constant}) for p in sizes))
        ratios = [x for x in _ratios(free, way.ray or ray, base) if max(x.at(base), x.at(target)) >= SMALL]
        if ratios:
            signals.setdefault(max(ratios, key=lambda x: x.at(base)), []).append((name, t))
    terms = [
        NextTerm(x, x.at(base), x.at(target), _small_from(x, base, way.ray), tuple(of)) for x, of in signals.items()
    ]
    return NextTerms(tuple(sorted(terms, key=lambda x: -x.base)), tuple(unknown), True)


def _ratios(sizes: Sequence[Power], ray: Ray, base: Sizes) -> Iterator[Power]:
    """Yields the quotient of each monomial and the leading one, if this quotient becomes smaller along the ray.

    A monomial whose quotient does not become smaller only changes the size by a constant factor.

    Args:
        sizes: the monomials of one size.
        ray: the ray.
        base: sizes of the base; of several monomials that grow alike on the ray, the largest one there is the leading
            one.
    """
    lead = max(sizes, key=lambda p: (p.on(ray), p.at(base)))
    return (p / lead for p in sizes if p.on(ray) < lead.on(ray))


def _iterate_demanded(d: Derivation, ray: Ray, scaling: Scaling) -> Iterator[tuple[str, int | None, list[Power]]]:
    """Yields every signal that must be Theta(1), with the monomials of its size.

    Sizes of all signals after one update are computed first. If one of them takes too much work, it is not tried
    after further updates, which would take more.

    Yields:
        (signal, updates, monomials): the monomials are those after the latest update for which they are known. If they
        are not known after any update, ``updates`` is None and there are no monomials.
    """
    rule, look = d.configuration.parameterization, Analysis(ray, scaling.point(ray), d.optimizer, d.network)
    demands = rule.list_demands(d.network, rule.base_structure(d.network, d.configuration.readout_init))
    last = {name: x.horizon for x in demands if x.kind == "theta" for name in x.quantities}
    known = dict[str, tuple[int, list[Power]]]()
    for t in range(1, max(last.values(), default=0) + 1):
        for name in (name for name, horizon in last.items() if t <= horizon and (t == 1 or name in known)):
            with suppress(Exhausted, BeyondPowerCounting):
                known[name] = t, [scaling.size(form) for form in look.runs.list_lower_forms(name, t)]
    for name in last:
        if name not in known:
            yield name, None, []
        elif known[name][1]:
            yield name, *known[name]


def _own_ray(d: Derivation, way: Way) -> tuple[Ray, Scaling, frozenset[str]] | None:
    """Derives the parameterization on the ray on which the sizes of the base lie.

    Returns:
        (ray, powers derived on it, axes that count as constants on it); None if there is no such ray, or if the
        parameterization is defined by a table and not derived.
    """
    configuration = d.configuration
    if not configuration.parameterization.derived:
        return None
    axes = {axis: Fraction(size) for axis, size in way.base.items() if axis != "L" or "L" in d.network.axes.values()}
    if not configuration.parameterization.structural and max(axes.values()) > 1:
        try:
            ray = through(axes)[0]
            return ray, d.apply_law(ray) or derive(configuration.but(ray=ray)).scaling, frozenset()
        except Infeasible:
            pass
    still = frozenset(axis for axis in axes if way.ray is not None and not way.ray[axis])
    grown = {axis: Fraction(1) if axis in still else size for axis, size in axes.items()}
    return (through(grown)[0], d.scaling, still) if max(grown.values()) > 1 else None


def _small_from(ratio: Power, sizes: Sizes, ray: Ray | None) -> dict[str, float] | None:
    """Returns the sizes on a ray from which on a ratio of terms is below ``SMALL``; None if they are out of reach."""
    if ray is None:
        return None
    grown = max(math.log(ratio.at(sizes) / float(SMALL)) / -float(ratio.on(ray)), 0.0)
    logs = {axis: math.log(sizes[axis]) + grown * float(ray[axis]) for axis, _ in ratio.terms if ray[axis]}
    return {axis: math.exp(x) for axis, x in logs.items()} if max(logs.values()) < math.log(limits.SIZE) else None
