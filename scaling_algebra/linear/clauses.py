"""Disjunctions of linear inequalities, solved by z3. No other module calls z3."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from operator import mul
from typing import Any

from .linear import COMPARED, Linear

_SIMPLE = 48
"""A fraction counts as simple if its denominator divides this number."""
TIMES = "*"
"""Separates the unknowns in the name of a product: ``p*x``."""
STEPS = 2_000_000
"""Resource limit (rlimit) of z3 for clauses with products. Unlike a time limit it gives the same answer on every
machine."""


@dataclass(frozen=True)
class Clause:
    """A disjunction of linear inequalities, at least one of which must hold.

    Attributes:
        label: name of the demand that requires it.
        atoms: the inequalities of which at least one must hold.
        because: what it says about the network in words, such as ``h at t=1 is O(1)``.
    """

    label: str
    atoms: tuple[Linear, ...]
    because: str


class Undecided(Exception):
    """Raised if a proof needs something that is not known, such as an undecided size. The message says what."""


class ClauseSolver:
    """Finds rational values of unknowns that satisfy clauses. Each clause has the name of a demand as its label, so
    that one can ask about the clauses of some demands only (``possible``).

    It uses a z3 context of its own, so that other solvers in the process cannot change its answers.

    Args:
        clauses: clauses to begin with.
        unit: the largest of the rates at which the axes grow. z3 gets all exponents divided by it, so that a ray
            times a constant gets the same answers.
    """

    def __init__(self, clauses: Iterable[Clause] = (), unit: Fraction = Fraction(1)) -> None:
        import z3

        self._z3, self._context = z3, z3.Context()
        self._solver = z3.SolverFor("QF_LRA", ctx=self._context)
        self._unit = unit
        self._labels: dict[str, Any] = {}
        self._reals: dict[str, Any] = {}
        self._atoms: dict[Linear, Any] = {}
        self.clauses: list[Clause] = []
        for clause in clauses:
            self.add(clause)

    def add(self, clause: Clause) -> None:
        self.clauses.append(clause)
        self._assert(clause)

    def model(self, more: Iterable[Clause] = ()) -> dict[str, Fraction] | None:
        """Returns values of the unknowns that satisfy all clauses plus `more`; None if there are none."""
        with self._beside(more):
            model = self._model(*self._labels.values())
            return None if model is None else self._values(model)

    def possible(self, labels: Iterable[str]) -> bool:
        """Returns whether the clauses with these labels can be satisfied together."""
        return bool(self._solver.check(*(self._label(name) for name in labels)) == self._z3.sat)

    def can_hold(self, clauses: Iterable[Clause]) -> bool | None:
        """Returns whether the given clauses, without any others, can be satisfied together. They may contain products
        of unknowns (``p*x``). Returns None if z3 does not decide it within the resource limit ``STEPS``.

        Each call gets a new z3 solver that ignores the labels of the clauses, since with labels z3 exceeds its limit.
        """
        solver = self._z3.Solver(ctx=self._context)
        solver.set("rlimit", STEPS)
        solver.add([self._any(clause.atoms) for clause in clauses])
        answer = solver.check()
        return None if answer == self._z3.unknown else bool(answer == self._z3.sat)

    def least(self, name: str, clauses: Iterable[Clause]) -> Fraction | None:
        """Returns the smallest value that the unknown ``name`` can have if the given clauses, and no others, hold;
        None if they cannot be satisfied.

        Raises:
            Undecided: z3 gives up, or the unknown has no lower bound.
        """
        search = self._z3.Optimize(ctx=self._context)
        for clause in clauses:
            search.add(self._any(clause.atoms))
        bound = search.minimize(self._reals[name])
        answer = search.check()
        if answer == self._z3.unsat:
            return None
        if answer == self._z3.unknown:
            raise Undecided(f"z3 gave up: {search.reason_unknown()}")
        if "oo" in str(search.lower(bound)):
            raise Undecided(f"{name} has no lower bound")
        return self._value(search.model(), self._reals[name]) * self._unit

    def conflict(self, more: Sequence[Clause] = ()) -> tuple[tuple[str, ...], tuple[Clause, ...]]:
        """Adds the clauses `more` for the time of this call. Returns a minimal set of labels whose clauses contradict
        each other, and all clauses with these labels."""
        with self._beside(more):
            self._solver.set("core.minimize", True)  # it slows down every other question
            self._solver.check(*self._labels.values())
            needed = {str(x) for x in self._solver.unsat_core()}
            self._solver.set("core.minimize", False)
        core = tuple(name for name, x in self._labels.items() if str(x) in needed)
        return core, tuple(c for c in (*self.clauses, *more) if c.label in core)

    @contextmanager
    def _beside(self, more: Iterable[Clause]) -> Iterator[None]:
        """Context manager in which the clauses `more` hold as well; they are removed at its end."""
        self._solver.push()
        for clause in more:
            self._assert(clause)
        try:
            yield
        finally:
            self._solver.pop()

    def _assert(self, clause: Clause) -> None:
        self._solver.add(self._z3.Implies(self._label(clause.label), self._any(clause.atoms)))

    def _model(self, *assumed: Any) -> Any:
        """Returns a z3 model (values of the unknowns), with as many values as possible rounded to simple fractions;
        None if there is no model. Each clause counts only if the z3 variable that stands for its label is in
        ``assumed``.

        Raises:
            Undecided: z3 gives up.
        """
        solver = self._solver
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

    def _any(self, atoms: Sequence[Linear]) -> Any:
        return (
            self._to_z3(atoms[0])
            if len(atoms) == 1
            else self._z3.Or([self._to_z3(atom) for atom in atoms], self._context)
        )

    def _to_z3(self, atom: Linear) -> Any:
        if atom not in self._atoms:
            total = self._z3.Sum([n * self._product(name) for name, n in atom.counts])
            against = self._z3.RealVal(str(-atom.constant / self._unit), self._context)
            self._atoms[atom] = COMPARED[atom.sense](total, against)
        return self._atoms[atom]

    def _product(self, names: str) -> Any:
        for name in names.split(TIMES):
            if name not in self._reals:
                self._reals[name] = self._z3.Real(name, self._context)
        return reduce(mul, (self._reals[name] for name in names.split(TIMES)))
