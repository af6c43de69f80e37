"""From desiderata to exponents: exact Newton iteration on max-plus equations, then a certified check of every demand.

At a point each demanded quantity is a linear form in the unknown b, c, d, alpha: the monomial that wins there. Setting
the forms to Theta(1) is a linear system, its solution the next point. A quantity is a maximum of such forms, so the
iteration is Newton's method on convex piecewise linear functions: at a fixed point every demand that fixes an unknown
holds, and the same linear system, solved per axis, gives the powers of the axes. Nothing is read from a table.
Read next: ``demands.py`` (how demands fare at a point), ``derivation.py`` (what users call).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from scaling_algebra.counting.signals import Algebra
from scaling_algebra.dynamics.analysis import Analysis
from scaling_algebra.dynamics.trajectory import unknowns
from scaling_algebra.spec.axes import AXES, Ray
from scaling_algebra.spec.desiderata import Demand, Structure, interventions
from scaling_algebra.spec.networks.language import Network
from scaling_algebra.spec.optimizers import OPTIMIZERS, Optimizer
from scaling_algebra.spec.parameterizations import Parameterization
from scaling_algebra.spec.powers import Power
from scaling_algebra.spec.scaling import Point, Scaling, TensorScaling

from .demands import HORIZON, Fixing, Infeasible, check, largest, look_ahead
from .layerwise import axes_power, layerwise, summed
from .linear import Row, solve_linear

_LAZY = Fraction(2)
_ROUNDS = 24
_AHEAD = 5_000
"""Nodes of matching searches spent on the update after the horizon."""


@dataclass(frozen=True)
class Solution:
    """A parameterization that meets every demand.

    Attributes:
        scaling: powers of the axes.
        structure: the discrete choices.
        fixed_by: what fixes each unknown.
        rejected: structures tried before, each with the demand it failed.
    """

    scaling: Scaling
    structure: Structure
    fixed_by: Mapping[str, Fixing]
    rejected: tuple[tuple[Structure, str], ...]


class Solver:
    """Solves demands for one network, ray and optimizer; products of kernels are shared between all attempts."""

    def __init__(self, network: Network, ray: Ray, optimizer: Optimizer) -> None:
        self.network, self.ray, self.optimizer = network, ray, optimizer
        self._algebras: dict[Fraction, Algebra] = {}

    def solve(self, parameterization: Parameterization) -> Solution:
        """What meets the demands of a parameterization with the fewest interventions in the structure.

        Raises:
            Infeasible: none of the structures works; the message names what failed without any intervention.
        """
        base = parameterization.base_structure(parameterization.readout_init)
        options = interventions(self.network, base) if parameterization.structural else [base]
        rejected: list[tuple[Structure, str]] = []
        start: dict[str, Fraction] | None = None
        for structure in options:
            demands = parameterization.demanded(self.network, structure)
            failure = ""
            for values in [start] if start else [self.aligned(), self._lazy()]:
                try:
                    look, forms = self.iterate(demands, structure, values)
                    start = start or self._values(look.point)
                    check(demands, look, certified=False)
                    look_ahead(demands, self._look(look.point).limited(_AHEAD))
                    check(demands, look, certified=True)
                except Infeasible as problem:
                    failure = str(problem)
                    continue
                return Solution(self._scaling(look, forms, structure), structure, forms, tuple(rejected))
            rejected.append((structure, failure))
        raise Infeasible(rejected[0][1])

    def iterate(
        self, demands: Iterable[Demand], structure: Structure, start: Mapping[str, Fraction]
    ) -> tuple[Analysis, dict[str, Fixing]]:
        """Newton's method from a start: the engine at the point where it ends, and what fixes each unknown there.

        Raises:
            Infeasible: it does not end, or the demands leave an unknown free.
        """
        demands = list(demands)
        wanted = [d for d in demands if d.fixes and (d.kind != "scale" or self.optimizer.epsilon)]
        names = [d.fixes for d in wanted]
        values = self._after_descent(demands, structure, start) if self.optimizer.epsilon else dict(start)
        for _ in range(_ROUNDS):
            look = self._look(self._point(values, structure))
            forms = {}
            for demand in wanted:
                fixing = largest(look, demand)
                if fixing is None:
                    raise Infeasible(f"{demand.name}: {demand.because}, but it is exactly zero")
                forms[demand.fixes] = fixing
            rows = [(dict(x.form.unknowns), -x.form.power.on(self.ray)) for x in forms.values()]
            if all(sum(n * values[u] for u, n in row.items()) == rhs for row, rhs in rows):
                if solve_linear(rows, names) is None:
                    raise Infeasible("the demands that fix the unknowns leave one of them free")
                return look, forms
            rows.sort(key=lambda row: sum(map(abs, row[0].values())))
            keep: list[Row] = [({name: 1}, values[name]) for name in names]  # for directions the forms leave open
            values |= solve_linear(rows + keep, names) or {}
        raise Infeasible("the demands that fix the unknowns have no common solution")

    def aligned(self) -> dict[str, Fraction]:
        """The layer-wise law at full alignment: init of the spectral condition, entries of an update 1/fan_in where a
        gradient is one over the number of entries of its signal, and an aggregation that takes the mean.

        Law: std = min(1, sqrt(rows / columns)) / sqrt(columns) for the operator of all experts stacked.
        Source: Yang, Simon and Bernstein (2023), A spectral condition for feature learning. Only a start: the
        iteration moves every unknown to where its demand holds.
        """
        values = {name: Fraction(0) for name in unknowns(self.network)}
        normalises = self.optimizer.normalises
        for role, tensor in self.network.tensors.items():
            statement = self.network.linear(role)
            columns = axes_power(self.network, tensor.fan_in).on(self.ray)
            rows = axes_power(self.network, "".join(x for x in tensor.letters if x not in tensor.fan_in)).on(self.ray)
            entries = axes_power(self.network, tensor.fan_in + tensor.fan_out).on(self.ray)
            gradient = axes_power(self.network, self.network.signals[statement.out]).on(self.ray)
            values[f"b.{role}"] = columns / 2 + max(Fraction(0), columns - rows) / 2
            values[f"c.{role}"] = columns - {"": gradient, "entry": Fraction(0), "matrix": entries / 2}[normalises]
            values[f"d.{role}"] = gradient
        for aggregate in self.network.aggregates[:1]:
            values["alpha"] = summed(self.network, aggregate, self.ray).on(self.ray)
        return values

    # inside ----------------------------------------------------------------------------------------------------

    def _after_descent(
        self, demands: Iterable[Demand], structure: Structure, start: Mapping[str, Fraction]
    ) -> dict[str, Fraction]:
        """Where an optimizer with an epsilon starts: at the solution of gradient descent.

        Law: with epsilon at the largest gradient (mu-3) every normaliser is epsilon, and a run is one of gradient
        descent with c - d for c. So where gradient descent has no solution, neither has this optimizer.
        """
        plain = Solver(self.network, self.ray, OPTIMIZERS["sgd"])
        plain._algebras = self._algebras
        counted = {f"c.{role}": start[f"c.{role}"] - start[f"d.{role}"] for role in self.network.tensors}
        look, _ = plain.iterate(demands, structure, {**start, **counted})
        values = self._values(look.point)
        for role, tensor in self.network.tensors.items():
            sizes = (look.lower(f"g{tensor.symbol}", t).exponent for t in range(1, HORIZON + 1))
            values[f"d.{role}"] = -max((x for x in sizes if x is not None), default=Fraction(0))
            values[f"c.{role}"] += values[f"d.{role}"]
        return values

    def _look(self, point: Point) -> Analysis:
        return Analysis(self.ray, point, self.optimizer, self.network, self._algebras)

    def _lazy(self) -> dict[str, Fraction]:
        """Variance-preserving inits and vanishing learning rates: every form starts at first order in the updates."""
        values = dict.fromkeys(unknowns(self.network), Fraction(0))
        for role, tensor in self.network.tensors.items():
            values[f"b.{role}"] = axes_power(self.network, tensor.fan_in).on(self.ray) / 2
            values[f"c.{role}"] = _LAZY
        return values

    def _values(self, point: Point) -> dict[str, Fraction]:
        found = {f"b.{role}": b for role, b in point.b.items() if b is not None}
        found |= {f"c.{role}": c for role, c in point.c.items()} | {f"d.{role}": d for role, d in point.d.items()}
        return found | {"alpha": point.alpha}

    def _point(self, values: Mapping[str, Fraction], structure: Structure) -> Point:
        roles = self.network.tensors
        return Point(
            {r: None if r in structure.zero else values.get(f"b.{r}", Fraction(0)) for r in roles},
            {r: values[f"c.{r}"] for r in roles},
            {r: values.get(f"d.{r}", Fraction(0)) for r in roles},
            values["alpha"],
            structure.tied,
        )

    def _scaling(self, look: Analysis, forms: Mapping[str, Fixing], structure: Structure) -> Scaling:
        """Powers of the axes: the forms axis by axis. Where axes grow alike these cannot tell them apart, and the
        layer-wise system decides if it meets the solution with half-integer powers."""
        powers, values = by_axis(forms), self._values(look.point)
        for name, power in layerwise(look, structure).items():
            plain = all((2 * e).denominator == 1 for _, e in power.terms)
            if name in powers and power.on(self.ray) == values[name] and plain:
                powers[name] = power
        fixed = {axis for axis in AXES if not self.ray[axis]}  # their powers are constants: nothing determines them
        powers = {name: Power.of({a: e for a, e in p.terms if a not in fixed}) for name, p in powers.items()}
        tensors = {
            role: TensorScaling(
                None if look.point.b[role] is None else -powers[f"b.{role}"],
                -powers[f"c.{role}"],
                -powers[f"d.{role}"] if f"d.{role}" in powers else None,
            )
            for role in self.network.tensors
        }
        return Scaling(
            tensors, powers.get("alpha", Power()), tuple(r for r in self.network.tensors if r in structure.tied)
        )


def by_axis(forms: Mapping[str, Fixing]) -> dict[str, Power]:
    """The linear system of the winning forms, solved once per axis instead of once for the ray."""
    powers: dict[str, dict[str, Fraction]] = {name: {} for name in forms}
    for axis in AXES:
        solved = solve_linear([(dict(x.form.unknowns), -x.form.power[axis]) for x in forms.values()], list(forms))
        assert solved is not None
        for name, x in solved.items():
            powers[name][axis] = x
    return {name: Power.of(p) for name, p in powers.items()}
