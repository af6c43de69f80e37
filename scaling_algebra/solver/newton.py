"""From desiderata to exponents: exact Newton iteration on max-plus equations, then a certified check of every demand.

At a point each demanded quantity is a linear form in the unknown b, c, d, alpha: the monomial that wins there. Setting
the forms to Theta(1) is a linear system, its solution the next point. A quantity is a maximum of such forms, so the
iteration is Newton's method on convex piecewise linear functions: at a fixed point every demand that fixes an unknown
holds, and the same linear system, solved per axis, gives the powers of the axes. Nothing is read from a table.
Read next: ``desiderata.py`` (the demands), ``api.py`` (what users call).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from scaling_algebra.counting.packing import Form
from scaling_algebra.counting.signals import Algebra
from scaling_algebra.dynamics.analysis import Analysis
from scaling_algebra.dynamics.sparse_routing import sparse
from scaling_algebra.dynamics.trajectory import Point, unknowns
from scaling_algebra.spec.axes import AXES, Ray
from scaling_algebra.spec.desiderata import Demand, Goal, Structure, interventions
from scaling_algebra.spec.networks.language import Aggregate, Linear, Program
from scaling_algebra.spec.optimizers import OPTIMIZERS, Optimizer
from scaling_algebra.spec.parameterizations import Scaling, TensorScaling
from scaling_algebra.spec.powers import Power

HORIZON = 2
"""Updates after which every demand must hold: with a zero readout the hidden tensors first move at t = 2."""
_LAZY = Fraction(2)
_ROUNDS = 24
_AHEAD = 5_000
"""Nodes of matching searches spent on the update after the horizon."""


class Infeasible(Exception):
    """No parameterization met the demands: the first demand that failed is the message."""


class NotFound(Infeasible):
    """The search found no parameterization, which proves nothing by itself: ``proofs.settled`` may."""

    def __init__(self, goal: Goal, program: Program, ray: Ray, rule: Optimizer, failure: str) -> None:
        self.goal, self.program, self.ray, self.rule, self.failure = goal, program, ray, rule, failure
        super().__init__(self.said("searched, not proved"))

    def said(self, how: str) -> str:
        """One line: what is missing, how that is known, and the demand that fails without any intervention."""
        return f"found no {self.goal.title} for {self.rule.name} on {self.ray} ({how}): {self.failure}"


@dataclass(frozen=True)
class Fixing:
    """What fixes one unknown: a demand, the quantity and step at which it binds, the form that is set to Theta(1)."""

    demand: Demand
    quantity: str
    step: int
    form: Form


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
    """Solves demands for one program, ray and optimizer; products of kernels are shared between all attempts."""

    def __init__(self, program: Program, ray: Ray, optimizer: Optimizer) -> None:
        self.program, self.ray, self.optimizer = program, ray, optimizer
        self._algebras: dict[Fraction, Algebra] = {}

    def solve(self, goal: Goal, zero_readout: bool) -> Solution:
        """The parameterization that meets a goal with the fewest interventions in the structure.

        Raises:
            Infeasible: none of the structures works; the message names what failed without any intervention.
        """
        base = Structure(zero=frozenset({"readout"}) if zero_readout else frozenset())
        options = interventions(self.program, base) if goal.structural else [base]
        rejected: list[tuple[Structure, str]] = []
        start: dict[str, Fraction] | None = None
        for structure in options:
            demands = goal.demands(self.program, structure)
            failure = ""
            for values in [start] if start else [self._aligned(), self._lazy()]:
                try:
                    look, forms = self._newton(demands, structure, values)
                    start = start or self._values(look.point)
                    _check(demands, look, certified=False)
                    _look_ahead(demands, self._look(look.point).limited(_AHEAD))
                    _check(demands, look, certified=True)
                except Infeasible as problem:
                    failure = str(problem)
                    continue
                return Solution(self._scaling(look, forms, structure), structure, forms, tuple(rejected))
            rejected.append((structure, failure))
        raise Infeasible(rejected[0][1])

    # inside ----------------------------------------------------------------------------------------------------

    def _newton(
        self, demands: Iterable[Demand], structure: Structure, start: Mapping[str, Fraction]
    ) -> tuple[Analysis, dict[str, Fixing]]:
        demands = list(demands)
        wanted = [d for d in demands if d.fixes and (d.kind != "scale" or self.optimizer.epsilon)]
        names = [d.fixes for d in wanted]
        values = self._after_descent(demands, structure, start) if self.optimizer.epsilon else dict(start)
        for _ in range(_ROUNDS):
            look = self._look(self._point(values, structure))
            forms = {}
            for demand in wanted:
                fixing = _largest(look, demand)
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

    def _after_descent(
        self, demands: Iterable[Demand], structure: Structure, start: Mapping[str, Fraction]
    ) -> dict[str, Fraction]:
        """Where an optimizer with an epsilon starts: at the solution of gradient descent.

        Law: with epsilon at the largest gradient (mu-3) every normaliser is epsilon, and a run is one of gradient
        descent with c - d for c. So where gradient descent has no solution, neither has this optimizer.
        """
        plain = Solver(self.program, self.ray, OPTIMIZERS["sgd"])
        plain._algebras = self._algebras
        counted = {f"c.{role}": start[f"c.{role}"] - start[f"d.{role}"] for role in self.program.tensors}
        look, _ = plain._newton(demands, structure, {**start, **counted})
        values = self._values(look.point)
        for role, tensor in self.program.tensors.items():
            sizes = (look.lower(f"g{tensor.symbol}", t).exponent for t in range(1, HORIZON + 1))
            values[f"d.{role}"] = -max((x for x in sizes if x is not None), default=Fraction(0))
            values[f"c.{role}"] += values[f"d.{role}"]
        return values

    def _look(self, point: Point) -> Analysis:
        return Analysis(self.ray, point, self.optimizer, self.program, self._algebras)

    def _aligned(self) -> dict[str, Fraction]:
        """The layer-wise law at full alignment: init of the spectral condition, entries of an update 1/fan_in where a
        gradient is one over the number of entries of its signal, and an aggregation that takes the mean.

        Law: std = min(1, sqrt(rows / columns)) / sqrt(columns) for the operator of all experts stacked.
        Source: Yang, Simon and Bernstein (2023), A spectral condition for feature learning. Only a start: the
        iteration moves every unknown to where its demand holds.
        """
        values = {name: Fraction(0) for name in unknowns(self.program)}
        normalises = self.optimizer.normalises
        for role, tensor in self.program.tensors.items():
            how = self.program.linear(role)
            columns = _axes_power(self.program, tensor.fan_in).on(self.ray)
            rows = _axes_power(self.program, "".join(x for x in tensor.letters if x not in tensor.fan_in)).on(self.ray)
            entries = _axes_power(self.program, tensor.fan_in + tensor.fan_out).on(self.ray)
            gradient = _axes_power(self.program, self.program.signals[how.out]).on(self.ray)
            values[f"b.{role}"] = columns / 2 + max(Fraction(0), columns - rows) / 2
            values[f"c.{role}"] = columns - {"": gradient, "entry": Fraction(0), "matrix": entries / 2}[normalises]
            values[f"d.{role}"] = gradient
        for aggregate in self.program.aggregates[:1]:
            values["alpha"] = _summed(self.program, aggregate, self.ray).on(self.ray)
        return values

    def _lazy(self) -> dict[str, Fraction]:
        """Variance-preserving inits and vanishing learning rates: every form starts at first order in the updates."""
        values = dict.fromkeys(unknowns(self.program), Fraction(0))
        for role, tensor in self.program.tensors.items():
            values[f"b.{role}"] = _axes_power(self.program, tensor.fan_in).on(self.ray) / 2
            values[f"c.{role}"] = _LAZY
        return values

    def _values(self, point: Point) -> dict[str, Fraction]:
        found = {f"b.{role}": b for role, b in point.b.items() if b is not None}
        found |= {f"c.{role}": c for role, c in point.c.items()} | {f"d.{role}": d for role, d in point.d.items()}
        return found | {"alpha": point.alpha}

    def _point(self, values: Mapping[str, Fraction], structure: Structure) -> Point:
        roles = self.program.tensors
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
            for role in self.program.tensors
        }
        return Scaling(
            tensors, powers.get("alpha", Power()), tuple(r for r in self.program.tensors if r in structure.tied)
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


def layerwise(look: Analysis, structure: Structure) -> dict[str, Power]:
    """The readable road to the same numbers: alignment exponents of every layer, read off the engine.

    Law: |W_0 dx| = fan_in^q |W_0| |dx| and |dW x| = fan_in^p |dW| |x| with activations Theta(1), so the init std is
    fan_in^-q and entries of dW are fan_in^-p; a gradient at a signal is one over its number of entries, since its
    inner product with a Theta(1) change is Theta(1). Source: MSSP paper, App. I.1.2 (eq. I.3).
    Where several axes grow at one rate this decides which of them carries a power; the solver keeps an entry only if
    it equals the solution on the ray.
    """
    program, normalises = look.program, look.optimizer.normalises

    def last(name: str) -> Fraction | None:
        return look(name, HORIZON).exponent

    def alignment(total: Fraction | None, parts: Iterable[Fraction | None], over: Power) -> Fraction | None:
        rate, known = over.on(look.ray), list(parts)
        if total is None or None in known:
            return None
        return (total - sum((x for x in known if x is not None), Fraction(0))) / rate if rate else Fraction(0)

    def updated(signal: str) -> Fraction | None:
        parts = (look.maybe(f"{signal}.{part}", HORIZON) for part in ("effective", "cross"))
        return max((x for x in parts if x is not None), default=None)

    found: dict[str, Power] = {}
    above = {a.source: a for a in program.aggregates}
    for aggregate in program.aggregates[:1]:
        experts = _summed(program, aggregate, look.ray)
        s = alignment(updated(aggregate.out), (updated(aggregate.source), -look.point.alpha), experts)
        if s is not None:
            found["alpha"] = experts * s
    for how in program.statements:
        if not isinstance(how, Linear):
            continue
        role, out, tensor = how.tensor, how.out, program.tensors[how.tensor]
        fan_in = _axes_power(program, tensor.fan_in)
        b = look.point.b[role]
        source = None if how.source == "data" else last(f"{how.source}.change")
        q = (
            Fraction(0)
            if how.source == "data"
            else alignment(last(f"{out}.propagating"), (None if b is None else -b, source), fan_in)
        )
        if q is not None:
            found[f"b.{role}"] = fan_in * q
            if out in structure.exempt and "alpha" in found:
                aggregate = above[out]
                experts = _summed(program, aggregate, look.ray)
                parts = (last(f"{out}.propagating"), -look.point.alpha)
                over = alignment(last(f"{aggregate.out}.propagating"), parts, experts)
                if over is not None:
                    found[f"b.{role}"] += experts * over + -found["alpha"]
        p = alignment(updated(out), (last(f"d{tensor.symbol}"), Fraction(0)), fan_in)
        gradient = _axes_power(program, program.signals[out])
        if p is not None:
            step = {
                "": -gradient,
                "entry": Power(),
                "matrix": -_axes_power(program, tensor.fan_in + tensor.fan_out) * Fraction(1, 2),
            }
            found[f"c.{role}"] = fan_in * p + step[normalises]
        found[f"d.{role}"] = gradient
    return found


def _summed(program: Program, how: Aggregate, ray: Ray) -> Power:
    """Number of experts that an aggregation sums."""
    return Power.of({"K": 1}) if sparse(program, ray) else _axes_power(program, program.signals[how.gate])


def _axes_power(program: Program, letters: str) -> Power:
    total = Power()
    for x in letters:
        if program.axes[x] in AXES:
            total += Power.of({program.axes[x]: 1})
    return total


def _check(demands: Iterable[Demand], look: Analysis, certified: bool) -> None:
    """Lower bounds are quick and mostly enough to reject; certificates decide."""
    for demand in demands:
        failure = violation(demand, look, certified)
        if failure:
            raise Infeasible(failure)


def _look_ahead(demands: Iterable[Demand], look: Analysis) -> None:
    """Growth from step to step can start below the horizon and pass it: nothing may diverge one update later either, as
    far as a little work shows. Lower bounds are enough to reject."""
    for demand in demands:
        for name in demand.quantities if demand.kind in ("theta", "bounded") else ():
            later = look.lower(name, HORIZON + 1).exponent
            if later is not None and later > 0:
                raise Infeasible(f"{demand.name}: {demand.because}, but {name} ~ n^({later}) at t={HORIZON + 1}")


def violation(demand: Demand, look: Analysis, certified: bool = True, horizon: int = HORIZON) -> str:
    """Why a demand fails, or an empty string."""
    ask = look if certified else look.lower
    answers = {name: [ask(name, t) for t in range(horizon + 1)] for name in demand.quantities}
    for name, row in answers.items():
        for t, answer in enumerate(row):
            if certified and not answer.decided:
                return f"{demand.name}: {name} at t={t} is undecided"
    if demand.kind == "scale":
        return ""
    if demand.kind == "balanced":
        last = {name: row[-1].exponent for name, row in answers.items() if row[-1].exponent is not None}
        if len(set(last.values())) > 1:
            low, high = min(last, key=lambda k: last[k]), max(last, key=lambda k: last[k])
            return f"{demand.name}: {demand.because}, but {low} ~ n^({last[low]}) and {high} ~ n^({last[high]})"
        return ""
    top = max((a.exponent for row in answers.values() for a in row if a.exponent is not None), default=None)
    if top is None and demand.kind == "bounded":
        return ""
    if top is None or top > 0 or (demand.kind == "theta" and top < 0):
        size = "exactly zero" if top is None else f"n^({top})"
        return f"{demand.name}: {demand.because}, but {' + '.join(demand.quantities)} ~ {size}"
    return ""


def _largest(look: Analysis, demand: Demand) -> Fixing | None:
    """The form that must become Theta(1): of the first step at which the quantity diverges, else of its largest step.

    A divergence feeds every later step, so the earliest one is the one to correct. None if all are exactly zero.
    """
    best: tuple[Fraction, Fixing] | None = None
    for t in range(1 if demand.kind == "scale" else 0, HORIZON + 1):
        for name in demand.quantities:
            answer = look.lower(name, t)
            if answer.exponent is not None and answer.form is not None and (best is None or answer.exponent > best[0]):
                best = answer.exponent, Fixing(demand, name, t, _scaled(demand, answer.form))
        if demand.kind == "theta" and best is not None and best[0] > 0:
            break
    return None if best is None else best[1]


def _scaled(demand: Demand, form: Form) -> Form:
    """For a ``scale`` demand: the form of n^d times the quantity."""
    if demand.kind != "scale":
        return form
    counts = dict(form.unknowns)
    counts[demand.fixes] = counts.get(demand.fixes, 0) + 1
    return Form(form.power, tuple(counts.items()))


Row = tuple[dict[str, int], Fraction]
"""Integer coefficients by unknown, and the right-hand side."""


def solve_linear(rows: Iterable[Row], names: list[str]) -> dict[str, Fraction] | None:
    """The exact solution of the first independent rows; None if they leave an unknown free."""
    solved: dict[str, tuple[dict[str, Fraction], Fraction]] = {}
    for row, rhs in rows:
        left = {name: Fraction(n) for name, n in row.items() if n}
        right = rhs
        for name in [n for n in left if n in solved]:
            factor = left.pop(name)
            other, value = solved[name]
            right -= factor * value
            for k, x in other.items():
                left[k] = left.get(k, Fraction(0)) - factor * x
        left = {k: x for k, x in left.items() if x}
        if not left:
            continue
        pivot = next(iter(left))
        scale = left.pop(pivot)
        new = ({k: x / scale for k, x in left.items()}, right / scale)
        for name, (other, value) in solved.items():
            if pivot in other:
                factor = other.pop(pivot)
                merged = {
                    k: other.get(k, Fraction(0)) - factor * new[0].get(k, Fraction(0)) for k in {**other, **new[0]}
                }
                solved[name] = ({k: x for k, x in merged.items() if x}, value - factor * new[1])
        solved[pivot] = new
    return {name: solved[name][1] for name in names} if all(n in solved and not solved[n][0] for n in names) else None
