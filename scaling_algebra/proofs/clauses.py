"""Desiderata as clauses over the unknown b, c and alpha, and z3 to solve them.

A clause is a disjunction of linear inequalities that every parameterization meeting the demand satisfies. The sizes
behind it hold at every parameter point (``formulas/graded.py``), so that leaving clauses out proves less, never more.
Read next: ``prover.py`` (adds clauses until the question is decided).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise, product
from operator import eq, ge, gt, le, lt, ne
from typing import Any, Literal

from scaling_algebra.counting.kernels import Exhausted
from scaling_algebra.dynamics.quantities import quantities, quantity
from scaling_algebra.formulas.graded import Bounds, FormAlgebra, FormTrajectory, size_of
from scaling_algebra.spec.desiderata import Demand, Structure
from scaling_algebra.spec.networks.language import Network, Product
from scaling_algebra.spec.powers import Form

_WORK = (200, 2_000)
"""Nodes of matching searches that one product may take: for the complete forms of a quantity, for its upper bounds."""
_TOTAL = 100_000
"""Nodes of all products that the forms of one quantity may need."""
_PARTS = ("propagating", "effective", "cross")
"""Parts of the change of what a linear map or an aggregation computes."""
_COMPARED = {"<=": le, ">=": ge, "!=": ne, "<": lt, ">": gt, "=": eq}
_SIMPLE = 48
"""A fraction is simple if its denominator divides this."""

Sense = Literal["<=", ">=", "!=", "<", ">", "="]


@dataclass(frozen=True)
class Atom:
    """``constant + sum of counts times unknowns``, compared with zero."""

    constant: Fraction
    counts: tuple[tuple[str, int], ...]
    sense: Sense


@dataclass(frozen=True)
class Clause:
    """At least one of the atoms holds.

    Attributes:
        label: the desideratum that demands it.
        because: the fact of the engine behind it.
    """

    label: str
    atoms: tuple[Atom, ...]
    because: str


class Undecided(Exception):
    """Something a proof needs is not known."""


def label(demand: Demand) -> str:
    """The name of a demand in proofs: ``mu-2: propagating update W2_0 dh1 = Theta(1)``."""
    return f"{demand.name}: {demand.because}"


def shortfall(name: str) -> str:
    """The unknown by which a demand with this label may fall short of Theta(1), where demands are relaxed."""
    return f"shortfall of {name}"


class Facts:
    """Clauses of demands, from bounds on the sizes of their quantities.

    Args:
        relaxed: instead of Theta(1), what a demand wants is at least n^-x, with an unknown ``shortfall`` x >= 0.
    """

    def __init__(self, network: Network, relaxed: bool = False) -> None:
        self.network, self.relaxed, self._table = network, relaxed, quantities(network)

    def atom(self, form: Form, sense: Sense, *more: tuple[str, int]) -> Atom:
        """A form, and more, compared with zero."""
        raise NotImplementedError

    def bounds(self, name: str, t: int) -> Bounds | None:
        """Forms that hold for a quantity after t updates; None if nothing is known."""
        raise NotImplementedError

    def of(self, demand: Demand) -> list[Clause]:
        """Clauses of a demand from the sizes of its quantities."""
        if demand.kind == "scale":
            return []
        if demand.kind == "balanced":
            return self._balance(demand)
        name, clauses, reached = label(demand), [], []
        complete, short = demand.kind == "theta", shortfall(label(demand))
        less = ((short, 1),) if self.relaxed else ()
        for q in demand.quantities:
            signal = q.removesuffix(".change")
            if signal in self.network.signals:
                clauses.append(Clause(name, (Atom(Fraction(0), ((size_of(signal), -1),), "<="),), f"{q} is O(1)"))
            parts = [q] if signal == q else self._parts(signal)
            for part, t in product(parts, range(demand.horizon + 1)):
                bounds = self.bounds(part, t)
                if bounds is None:
                    complete = False
                    continue
                clauses += [Clause(name, (self.atom(f, "<="),), f"{part} at t={t} is O(1)") for f in bounds.lower]
                reached += [self.atom(f, ">=", *less) for f in bounds.upper]
        clauses += [Clause(name, (Atom(Fraction(0), less, ">="),), "a shortfall is not negative")] if less else []
        if complete:
            clauses.append(Clause(name, tuple(reached), f"{' + '.join(demand.quantities)} reaches Theta(1)"))
        return clauses

    def _parts(self, signal: str) -> list[str]:
        """What the change of a signal is the sum of."""
        found = [x for x in (f"{signal}.{part}" for part in _PARTS) if x in self._table]
        return found if isinstance(self.network.producer(signal), Product) and found else [f"{signal}.change"]

    def _balance(self, demand: Demand) -> list[Clause]:
        name, clauses, shared = label(demand), [], []
        for q in demand.quantities:
            bounds = self.bounds(q, demand.horizon)
            if bounds is None or not bounds.lower:  # unknown, or perhaps exactly zero
                continue
            size = (f"log {q}", -1)
            shared.append(size[0])
            clauses += [Clause(name, (self.atom(f, "<=", size),), f"{q} is at least this") for f in bounds.lower]
            clauses.append(Clause(name, tuple(self.atom(f, ">=", size) for f in bounds.upper), f"{q} is at most this"))
        for one, two in pairwise(shared):
            for sense in ("<=", ">="):
                equal = Atom(Fraction(0), ((one, 1), (two, -1)), sense)
                clauses.append(
                    Clause(name, (equal,), f"{one.removeprefix('log ')} and {two.removeprefix('log ')} agree")
                )
        return clauses


class RayFacts(Facts):
    """What holds on one ray, at every parameter point, under one structure."""

    def __init__(
        self,
        network: Network,
        forms: FormAlgebra,
        demands: Iterable[Demand],
        structure: Structure,
        relaxed: bool = False,
    ) -> None:
        super().__init__(network, relaxed)
        self.forms = forms
        forms.climb(replace(forms.rung, total=_TOTAL))
        self._runs = [
            FormTrajectory(network, forms, structure),
            FormTrajectory(network, forms, structure, sized(demands)),
        ]
        self._known: dict[tuple[str, int], Bounds | None] = {}
        self._small: list[Form] = []
        if relaxed:
            self._small = self._arguments(demands)

    def atom(self, form: Form, sense: Sense, *more: tuple[str, int]) -> Atom:
        return Atom(form.power.on(self.forms.ray), (*form.unknowns, *more), sense)

    def bounds(self, name: str, t: int) -> Bounds | None:
        """Complete forms where little work suffices, else bounds with the sizes of changes as unknowns, else None."""
        if (name, t) not in self._known:
            self._known[name, t] = None
            for run, work in zip(self._runs, _WORK, strict=True):
                self.forms.work = work
                with suppress(Exhausted), run.ledger.question():
                    self._known[name, t] = run.bounds(quantity(self._table, name), t)
                    break
        found = self._known[name, t]
        return found and Bounds(self._lasting(found.lower), self._lasting(found.upper))

    def _arguments(self, demands: Iterable[Demand]) -> list[Form]:
        """Sizes of monomials in the arguments of functions, as far as these are demanded to be O(1)."""
        limited = {q for d in demands for q in d.quantities if d.kind in ("theta", "bounded")}
        names = {x.name for f in self.network.functions for x in f.inputs[:1] if x.name in limited}
        found = filter(None, (self.bounds(name, t) for name in sorted(names) for t in (0, 1)))
        return [f for bounds in found for f in bounds.lower if all(n < 0 for _, n in f.unknowns)]

    def _lasting(self, forms: tuple[Form, ...]) -> tuple[Form, ...]:
        """Without products of another form and an argument of a function, which is O(1): higher powers of it."""
        ray, by_counts = self.forms.ray, {frozenset(f.unknowns): f.power.on(self.forms.ray) for f in forms}

        def product_of_two(form: Form) -> bool:
            for small in self._small:
                rest = Counter(dict(form.unknowns))
                rest.subtract(dict(small.unknowns))
                size = by_counts.get(frozenset((u, n) for u, n in rest.items() if n))
                if size is not None and form.power.on(ray) <= size + small.power.on(ray):
                    return True
            return False

        return tuple(f for f in forms if not product_of_two(f)) if self._small else forms


def sized(demands: Iterable[Demand]) -> frozenset[str]:
    """The signals whose changes are demanded to be O(1)."""
    return frozenset(q.removesuffix(".change") for d in demands for q in d.quantities if q.endswith(".change"))


class ClauseSolver:
    """z3 over rational numbers, with one assumption for each label, in a context of its own: what other solvers of the
    process were asked before changes no answer.

    Args:
        unit: the largest rate of the ray; z3 counts in it, so that a ray times a constant gets the same answers.
    """

    def __init__(self, unit: Fraction = Fraction(1)) -> None:
        import z3

        self._z3, self._context = z3, z3.Context()
        self._solver = z3.SolverFor("QF_LRA", ctx=self._context)
        self._unit = unit
        self._labels: dict[str, Any] = {}
        self._reals: dict[str, Any] = {}
        self._known: dict[Atom, Any] = {}

    def add(self, clause: Clause) -> None:
        self._solver.add(self._z3.Implies(self._label(clause.label), self._any(clause.atoms)))

    def model(self, labels: Iterable[str], more: Iterable[Clause]) -> dict[str, Fraction] | None:
        """Values of the unknowns under the clauses with these labels, and more; None if there are none."""
        self._solver.push()
        for clause in more:
            self.add(clause)
        model = self._model(*(self._labels[name] for name in labels if name in self._labels))
        found = None if model is None else self._values(model)
        self._solver.pop()
        return found

    def anew(self, clauses: Iterable[Clause]) -> dict[str, Fraction] | None:
        """Values of the unknowns under clauses, by a solver that was asked nothing before; None if there are none.

        What it has learned from easy questions may cost z3 minutes at a hard one.
        """
        solver = self._z3.SolverFor("QF_LRA", ctx=self._context)
        for clause in clauses:
            solver.add(self._any(clause.atoms))
        model = self._model(solver=solver)
        return None if model is None else self._values(model)

    def least(self, name: str, clauses: Iterable[Clause]) -> Fraction | None:
        """The smallest value of an unknown under clauses; None if nothing meets them.

        Raises:
            Undecided: z3 gives up, or nothing bounds it from below.
        """
        search = self._z3.Optimize(ctx=self._context)
        for clause in clauses:
            search.add(self._any(clause.atoms))
        search.minimize(self._reals[name])
        answer = search.check()
        if answer == self._z3.unsat:
            return None
        if answer == self._z3.unknown:
            raise Undecided(f"z3 gave up: {search.reason_unknown()}")
        return self._value(search.model(), self._reals[name]) * self._unit

    def leave_out_one(self, labels: Iterable[str]) -> None:
        """From now on the clauses of exactly one of these labels need not hold."""
        self._solver.add(self._z3.PbEq([(self._z3.Not(self._label(name)), 1) for name in labels], 1))

    def where_left_out(self, name: str, atoms: Sequence[Atom]) -> None:
        """One of the atoms holds where the clauses of a label are left out."""
        self._solver.add(self._z3.Or(self._label(name), self._any(atoms)))

    def keep(self, name: str) -> None:
        """From now on the clauses of a label are not left out."""
        self._solver.add(self._label(name))

    def left_out(self) -> tuple[str, dict[str, Fraction]] | None:
        """A label that can be left out, and values of the unknowns without it; None if there is none."""
        model = self._model()
        if model is None:
            return None
        return next(n for n, x in self._labels.items() if self._z3.is_false(model.eval(x))), self._values(model)

    def core(self, more: Iterable[Clause]) -> tuple[str, ...]:
        """Labels of clauses that are unsatisfiable together with ``more``; none of them can be left out."""
        self._solver.push()
        for clause in more:
            self.add(clause)
        self._solver.set("core.minimize", True)  # it slows down every other question
        self._solver.check(*self._labels.values())
        found = {str(x) for x in self._solver.unsat_core()}
        self._solver.set("core.minimize", False)
        self._solver.pop()
        return tuple(name for name, x in self._labels.items() if str(x) in found)

    def _model(self, *assumed: Any, solver: Any = None) -> Any:
        """A model, with simple fractions one after the other as far as that goes; None if there is none."""
        solver = self._solver if solver is None else solver
        answer = solver.check(*assumed)
        if answer == self._z3.unknown:
            raise Undecided(f"z3 gave up: {solver.reason_unknown()}")
        if answer == self._z3.unsat:
            return None
        model, kept = solver.model(), list(assumed)
        for real in self._reals.values():
            value = self._value(model, real)
            if _SIMPLE % value.denominator:
                simple = real == str(Fraction(round(value * _SIMPLE), _SIMPLE))
                if solver.check(*kept, simple) == self._z3.sat:
                    model, kept = solver.model(), [*kept, simple]
        return model

    def _values(self, model: Any) -> dict[str, Fraction]:
        return {name: self._value(model, real) * self._unit for name, real in self._reals.items()}

    def _value(self, model: Any, real: Any) -> Fraction:
        value = model.eval(real, model_completion=True)
        return Fraction(value.numerator_as_long(), value.denominator_as_long())

    def _label(self, name: str) -> Any:
        if name not in self._labels:
            self._labels[name] = self._z3.Bool(name, self._context)
        return self._labels[name]

    def _any(self, atoms: Sequence[Atom]) -> Any:
        return (
            self._atom(atoms[0])
            if len(atoms) == 1
            else self._z3.Or([self._atom(atom) for atom in atoms], self._context)
        )

    def _atom(self, atom: Atom) -> Any:
        if atom not in self._known:
            for name, _ in atom.counts:
                if name not in self._reals:
                    self._reals[name] = self._z3.Real(name, self._context)
            total = self._z3.Sum([n * self._reals[name] for name, n in atom.counts])
            against = self._z3.RealVal(str(-atom.constant / self._unit), self._context)
            self._known[atom] = _COMPARED[atom.sense](total, against)
        return self._known[atom]
