"""Sizes of signals under a derived parameterization, on every ray of the cone where its formula holds: ``every_ray``.

Law: with parameters that are powers of the axes, a size is a maximum of monomials in the axes alone. Like every size it
is found at the corners of the cones on which one of them leads (``search.py``), here with the engine on one ray, which
certifies more than it does with unknown parameters.
Assumes: where the optimizer normalises, that it divides by epsilon, as the cone is proved for (``convexity.py``).
Read next: ``solver/cones.py`` (the cone), ``presentation.py`` (how it is printed).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import combinations
from typing import Any

from scaling_algebra import limits
from scaling_algebra.counting.kernels import Exhausted
from scaling_algebra.counting.signals import Rung
from scaling_algebra.documents import Rendered
from scaling_algebra.documents.blocks import ZERO, Piece, Text
from scaling_algebra.dynamics.analysis import Analysis
from scaling_algebra.dynamics.quantities import Quantity, quantity
from scaling_algebra.errors import UsageError
from scaling_algebra.linear.cone import Cone
from scaling_algebra.linear.linear import Linear, Vector, direction, eliminate
from scaling_algebra.linear.maxform import Counts
from scaling_algebra.solver.cones import cone, rays_of
from scaling_algebra.solver.demands import HORIZON
from scaling_algebra.solver.derivation import solved
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.configuration import Configuration
from scaling_algebra.spec.desiderata import Structure
from scaling_algebra.spec.networks.library import MOE_BLOCK
from scaling_algebra.spec.powers import Form, Power
from scaling_algebra.spec.scaling import Scaling
from scaling_algebra.spec.trained import single

from .notation import maximum
from .search import QUOTIENT, FormulaSearch

_CONES = "a cone of rays"
_ORDER = ("N", "M", "N_e")
"""Axes in which powers are written where rays lie on a wall, the first that suffice."""


@dataclass(frozen=True)
class Largest:
    """The size of a signal on a cone: the largest of some monomials.

    Attributes:
        powers: each leads somewhere; empty: exactly zero.
        decided: False where the engine certifies no size at some corner; then nothing is claimed.
    """

    powers: tuple[Power, ...]
    decided: bool = True

    def on(self, ray: Ray) -> Fraction | None:
        """The exponent of n on a ray of the cone; None for exactly zero."""
        if not self.decided:
            raise UsageError("the size is undecided, which has no exponent")
        return max((p.on(ray) for p in self.powers), default=None)

    @property
    def piece(self) -> Piece:
        """For documents: ``max(M^(-1/2), N_e N^-1)``."""
        if not self.powers:
            return ZERO if self.decided else "undecided"
        inside = ", ".join(p.latex for p in self.powers)
        return self.powers[0] if len(self.powers) == 1 else Text(str(self), rf"$\max({inside})$")

    def __str__(self) -> str:
        if not self.powers:
            return "0" if self.decided else "undecided"
        return maximum(list(map(str, self.powers)))


@dataclass(frozen=True, repr=False)
class EveryRay(Rendered):
    """Sizes of signals at t = 0, 1, ..., steps on a cone of rays.

    Attributes:
        configuration: what was asked, on a ray of the cone.
        structure: what is zero or tied there.
        cone: all rays (with K = M) on which the formula of that ray meets every demand.
        scaling: the formula.
        sizes: by quantity, one for every step.
    """

    configuration: Configuration
    structure: Structure
    cone: Cone
    scaling: Scaling
    steps: int
    sizes: Mapping[str, tuple[Largest, ...]]

    def as_json(self) -> dict[str, Any]:
        """The JSON contract: sizes as lists of exponents by axis."""
        cells = {name: [x.powers if x.decided else "undecided" for x in row] for name, row in self.sizes.items()}
        rays = [ray.rates for ray in rays_of(self.cone)]
        head = {**self.configuration.as_json(), "structure": self.structure, "cone": self.cone.inequalities}
        return {**head, "rays": rays, "steps": list(range(self.steps + 1)), "quantities": cells}

    @property
    def about(self) -> str:
        return str(self.configuration)


def every_ray(
    configuration: Configuration, *, steps: int = HORIZON, quantities: Sequence[str] | None = None
) -> EveryRay:
    """Sizes of signals on all rays on which the formula of one ray is the parameterization.

    Examples:
        >>> configuration = Configuration.of(None, "sgd", "mup", ray="N=1,N_e=3/4,M=1/2")
        >>> answer = every_ray(configuration, steps=1, quantities=["h3.A2.1"])
        >>> print(answer.cone, "|", *answer.sizes["h3.A2.1"])
        M <= N, N_e <= N, N_e + M >= N | 0 M^-1

    Raises:
        UsageError: another network than the block, K < M, a parameterization that is not derived or has exponents or a
            readout init of its own, an optimizer that normalises without an epsilon, more steps than are proved, no
            cone, or no such quantity.
        Infeasible: as ``derive``.
    """
    _covered(configuration)
    limits.within("steps with every ray", steps, 0, HORIZON)
    search = _searched(configuration)
    names = [name for name in search.table if QUOTIENT not in name] if quantities is None else list(quantities)
    if quotients := [name for name in names if QUOTIENT in name]:
        raise UsageError(f"no formula for {quotients[0]}: a quotient of maxima is none; ask for its parts")
    wanted = {name: quantity(search.table, name) for name in names}
    sizes = {name: tuple(search.largest(what, t) for t in range(steps + 1)) for name, what in wanted.items()}
    return EveryRay(configuration, search.structure, search.held, search.scaling, steps, sizes)


# inside ------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def _searched(configuration: Configuration) -> Inserted:
    """Raises UsageError: no cone."""
    solution, optimizer = solved(configuration), single(configuration.optimizer, _CONES)
    held = cone(solution.scaling, optimizer, configuration.parameterization, solution.structure)
    if held is None:
        raise UsageError(
            f"the formula on {configuration.ray} is proved on no cone of rays; ask for this ray alone, or another"
        )
    return Inserted(configuration, solution.structure, solution.scaling, held)


class Inserted(FormulaSearch):
    """The search for monomials with the parameters of one formula inserted, on the cone that some rays span."""

    def __init__(self, configuration: Configuration, structure: Structure, scaling: Scaling, held: Cone) -> None:
        still = frozenset(axis for k, axis in enumerate(held.axes) if not any(rates[k] for rates in held.rays))
        super().__init__(configuration.network, single(configuration.optimizer, _CONES), structure, fixed=still)
        self.scaling, self.held = scaling, held
        sides = ({axis: n for axis, n in side.counts if axis in self.axes} for side in held.sides)
        self.cone = Cone(self.axes, tuple(map(Linear.of, sides, (side.sense for side in held.sides))))
        self.first = [direction([sum(x) for x in zip(*self.cone.rays, strict=True)]), *self.cone.rays]
        self.basis = self._basis()
        self._looks: dict[Vector, Analysis] = {}

    @property
    def table(self) -> Mapping[str, Quantity]:
        return self._look(self.first[0]).table

    def largest(self, what: Quantity, t: int) -> Largest:
        """The size of a quantity after t updates."""
        try:
            maximum = self._forms(what, t, Rung(Fraction(0)))
        except Exhausted:
            return Largest((), decided=False)
        order = sorted((form.power for form in maximum.forms), key=lambda p: [-abs(e) for _, e in p.terms])
        return Largest(tuple(order[::-1]))

    def _sizes(
        self, quantity: Quantity, t: int, rates: Vector, rung: Rung
    ) -> dict[Counts, tuple[Form | None, Fraction]]:
        answer = self._look(rates)(quantity.name, t)
        if not answer.decided:
            raise Exhausted
        if answer.size is None or answer.form is None:
            return {}
        power = self._written(self.scaling.size(answer.form), self.basis)
        assert power is not None
        return {(): (Form(power, ()), answer.size)}

    def _look(self, rates: Vector) -> Analysis:
        if rates not in self._looks:
            ray = self.ray(rates)
            point = self.scaling.point(ray)
            self._looks[rates] = Analysis(ray, point, self.optimizer, self.network, growing=self.growing)
        return self._looks[rates]

    def _basis(self) -> tuple[str, ...]:
        """Axes whose powers tell sizes on the cone apart: the first in which every power can be written."""
        order = [axis for axis in _ORDER if axis in self.axes]
        bases = (axes for count in range(1, len(self.axes) + 1) for axes in combinations(order, count))
        return next(b for b in bases if all(self._written(Power.of({axis: 1}), b) is not None for axis in self.axes))

    def _written(self, power: Power, basis: Sequence[str]) -> Power | None:
        """A power of some axes that is this one on every ray of the cone, if there is one."""
        ends = [dict(zip(self.axes, rates, strict=True)) for rates in self.cone.rays]
        sizes = [sum((e * at.get(a, 0) for a, e in power.terms), Fraction(0)) for at in ends]
        rows = [({axis: at[axis] for axis in basis}, size) for at, size in zip(ends, sizes, strict=True)]
        exponents, consistent = eliminate(rows)
        return Power.of({axis: exponents[axis][1] for axis in basis if axis in exponents}) if consistent else None


def _covered(configuration: Configuration) -> None:
    """Raises UsageError for what no cone is proved of."""
    rule, step = configuration.parameterization, single(configuration.optimizer, _CONES)
    if configuration.network != MOE_BLOCK:
        raise UsageError(f"cones of rays are proved for the network moe, not for {configuration.network.name}")
    if configuration.ray["K"] != configuration.ray["M"]:
        raise UsageError("cones of rays are proved for K = M; leave K out of the ray")
    rule.check_derived(configuration.network)
    if configuration.given or configuration.readout_init != rule.readout_init:
        raise UsageError(
            f"cones of rays are proved for {rule.title} as it is derived, with readout init {rule.readout_init}; leave "
            "out given exponents and another readout init"
        )
    if step.normalises and not step.epsilon:
        raise UsageError(f"{step.name} normalises without an epsilon: no cone of rays is proved; take adam or sgd")
