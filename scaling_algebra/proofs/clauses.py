"""Desiderata as clauses over the unknown b, c and alpha.

A clause is a disjunction of linear inequalities that every parameterization meeting the demand satisfies. The sizes
behind it hold at every parameter point (``formulas/graded.py``), so that leaving clauses out proves less, never more.
Read next: ``prover.py`` (adds clauses until the question is decided).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise, product

from scaling_algebra.counting.kernels import Exhausted
from scaling_algebra.dynamics.quantities import Quantity, quantities, quantity
from scaling_algebra.formulas.graded import Bounds, FormAlgebra, FormTrajectory, size_of
from scaling_algebra.formulas.search import UpperBounds
from scaling_algebra.linear.clauses import Clause
from scaling_algebra.linear.linear import Linear, Sense
from scaling_algebra.spec.desiderata import Demand, Structure
from scaling_algebra.spec.networks.language import Network, Product
from scaling_algebra.spec.optimizers import OPTIMIZERS
from scaling_algebra.spec.powers import Form

_WORK = (200, 2_000)
"""Nodes of matching searches that one product may take: for the complete forms of a quantity, for its upper bounds."""
_TOTAL = 100_000
"""Nodes of all products that the forms of one quantity may need."""
_PARTS = ("propagating", "effective", "cross")
"""Parts of the change of what a linear map or an aggregation computes."""


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
        self._remembered: dict[tuple[str, int], Bounds | None] = {}

    def atom(self, form: Form, sense: Sense, *more: tuple[str, int]) -> Linear:
        """A form, and more, compared with zero."""
        raise NotImplementedError

    def bounds(self, name: str, t: int) -> Bounds | None:
        """Forms that hold for a quantity after t updates; None if nothing is known."""
        if (name, t) not in self._remembered:
            self._remembered[name, t] = self._bounds(quantity(self._table, name), t)
        return self._remembered[name, t]

    def _bounds(self, quantity: Quantity, t: int) -> Bounds | None:
        raise NotImplementedError

    def of(self, demand: Demand) -> list[Clause]:
        """Clauses of a demand from the sizes of its quantities."""
        if demand.kind == "scale":
            return []
        if demand.kind == "balanced":
            return self._balance(demand)
        name, clauses, reached = demand.label, [], []
        complete, short = demand.kind == "theta", shortfall(demand.label)
        less = ((short, 1),) if self.relaxed else ()
        for q in demand.quantities:
            signal = q.removesuffix(".change")
            if signal in self.network.signals:
                clauses.append(Clause(name, (Linear(((size_of(signal), -1),), "<="),), f"{q} is O(1)"))
            parts = [q] if signal == q else self._parts(signal)
            for part, t in product(parts, range(demand.horizon + 1)):
                bounds = self.bounds(part, t)
                if bounds is None:
                    complete = False
                    continue
                clauses += [Clause(name, (self.atom(f, "<="),), f"{part} at t={t} is O(1)") for f in bounds.lower]
                reached += [self.atom(f, ">=", *less) for f in bounds.upper]
        clauses += [Clause(name, (Linear(less, ">="),), "a shortfall is not negative")] if less else []
        if complete:
            clauses.append(Clause(name, tuple(reached), f"{' + '.join(demand.quantities)} reaches Theta(1)"))
        return clauses

    def _parts(self, signal: str) -> list[str]:
        """What the change of a signal is the sum of."""
        parts = [x for x in (f"{signal}.{part}" for part in _PARTS) if x in self._table]
        return parts if isinstance(self.network.producer(signal), Product) and parts else [f"{signal}.change"]

    def _balance(self, demand: Demand) -> list[Clause]:
        name, clauses, shared = demand.label, [], []
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
                equal = Linear(((one, 1), (two, -1)), sense)
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
        self._small: list[Form] = []
        if relaxed:
            self._small = self._arguments(demands)

    def atom(self, form: Form, sense: Sense, *more: tuple[str, int]) -> Linear:
        return Linear((*form.unknowns, *more), sense, form.power.on(self.forms.ray))

    def bounds(self, name: str, t: int) -> Bounds | None:
        bounds = super().bounds(name, t)
        return bounds and Bounds(self._lasting(bounds.lower), self._lasting(bounds.upper))

    def _bounds(self, quantity: Quantity, t: int) -> Bounds | None:
        """Complete forms where little work suffices, else bounds with the sizes of changes as unknowns, else None."""
        for run, work in zip(self._runs, _WORK, strict=True):
            self.forms.climb(replace(self.forms.rung, work=work))
            with suppress(Exhausted), run.ledger.question():
                return run.bounds(quantity, t)
        return None

    def _arguments(self, demands: Iterable[Demand]) -> list[Form]:
        """Sizes of monomials in the arguments of functions, as far as these are demanded to be O(1)."""
        limited = {q for d in demands for q in d.quantities if d.kind in ("theta", "bounded")}
        names = {x.name for f in self.network.functions for x in f.inputs[:1] if x.name in limited}
        known_bounds = filter(None, (self.bounds(name, t) for name in sorted(names) for t in (0, 1)))
        return [f for bounds in known_bounds for f in bounds.lower if all(n < 0 for _, n in f.unknowns)]

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


class AllRays(Facts):
    """What holds on every ray, at every parameter point of gradient descent, under one structure.

    Every monomial is linear in rates and unknowns, and a lower bound of its quantity on every ray. The upper bounds,
    which say that something reaches Theta(1), are complete for all rays (``formulas/search.py``).

    Args:
        fixed: axes that do not grow; all others do.
    """

    def __init__(
        self, network: Network, demands: Sequence[Demand], structure: Structure, fixed: frozenset[str] = frozenset()
    ) -> None:
        super().__init__(network)
        self._search = UpperBounds(network, OPTIMIZERS["sgd"], structure, fixed=fixed, sized=sized(demands))

    def atom(self, form: Form, sense: Sense, *more: tuple[str, int]) -> Linear:
        return Linear.of({**dict(form.power.terms), **dict(form.unknowns), **dict(more)}, sense)

    def _bounds(self, quantity: Quantity, t: int) -> Bounds | None:
        with suppress(Exhausted):
            return self._search.bounds(quantity, t)
        return None


def sized(demands: Iterable[Demand]) -> frozenset[str]:
    """The signals whose changes are demanded to be O(1)."""
    return frozenset(q.removesuffix(".change") for d in demands for q in d.quantities if q.endswith(".change"))
