"""Turns desiderata into clauses over the unknown exponents: b (init std), c (learning rate) and alpha (aggregation
multiplier).

A clause is a disjunction of linear inequalities that every parameterization meeting the demand satisfies. The sizes
used hold at every parameter point (``formulas/graded.py``), so omitting clauses can only prove less, never more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise, product

from scaling_algebra.counting.graded import Bounds, FormAlgebra
from scaling_algebra.counting.kernels import Exhausted
from scaling_algebra.dynamics.quantities import Quantity, find_quantity, list_quantities
from scaling_algebra.dynamics.run import RunContext
from scaling_algebra.formulas.graded import FormTrajectory, size_of
from scaling_algebra.formulas.search import UpperBounds
from scaling_algebra.linear.clauses import Clause
from scaling_algebra.linear.linear import Linear, Sense
from scaling_algebra.spec.desiderata import Demand, Structure
from scaling_algebra.spec.networks.language import Network, Product
from scaling_algebra.spec.optimizers import OPTIMIZERS
from scaling_algebra.spec.powers import Form

_WORK = (200, 2_000)
"""Limits on the work for one product: when the exact size of a quantity is computed, and when it is only bounded."""
_TOTAL = 100_000
"""Limit on the work for all products in one quantity."""
_PARTS = ("propagating", "effective", "cross")
"""Parts of the change of the output of a linear map or an aggregation."""


class Facts:
    """Derives clauses (disjunctions of linear inequalities between unknown exponents) from demands, by bounds on the
    sizes of the quantities that the demands restrict. Subclasses compute these bounds.
    """

    def __init__(self, network: Network) -> None:
        self.network, self._table = network, list_quantities(network)
        self._remembered: dict[tuple[str, int], Bounds | None] = {}

    def atom(self, form: Form, sense: Sense, *more: tuple[str, int]) -> Linear:
        """Returns the linear inequality or equation that compares the exponent of a monomial, plus further terms, with
        zero.

        Args:
            form: the formula of the monomial: powers of the axes and multiples of the unknown exponents.
            sense: the relation, such as ``<=``.
            more: further terms, as pairs (unknown, coefficient).
        """
        raise NotImplementedError

    def bounds(self, name: str, t: int) -> Bounds | None:
        """Returns lower and upper bounds on the size of a quantity after t updates, as formulas that are linear in the
        unknown exponents; None if no bounds are known."""
        if (name, t) not in self._remembered:
            self._remembered[name, t] = self._bounds(find_quantity(self._table, name), t)
        return self._remembered[name, t]

    def _bounds(self, quantity: Quantity, t: int) -> Bounds | None:
        raise NotImplementedError

    def of(self, demand: Demand) -> list[Clause]:
        """Returns the clauses that hold wherever a demand is met. They follow from the demand and the bounds on the
        sizes of the quantities that it restricts."""
        if demand.kind == "scale":
            return []
        if demand.kind == "balanced":
            return self._balance(demand)
        name, clauses, reached, complete = demand.label, [], [], demand.kind == "theta"
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
                reached += [self.atom(f, ">=") for f in bounds.upper]
        if complete:
            clauses.append(Clause(name, tuple(reached), f"{' + '.join(demand.quantities)} reaches Theta(1)"))
        return clauses

    def _parts(self, signal: str) -> list[str]:
        """Returns names of quantities whose sum is the change of a signal: ``.propagating``, ``.effective`` and
        ``.cross`` for a product with tensors, otherwise ``.change`` itself."""
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
            clauses += [Clause(name, (self.atom(f, "<=", size),), f"lower bound on {q}") for f in bounds.lower]
            clauses.append(Clause(name, tuple(self.atom(f, ">=", size) for f in bounds.upper), f"upper bound on {q}"))
        for one, two in pairwise(shared):
            for sense in ("<=", ">="):
                equal = Linear(((one, 1), (two, -1)), sense)
                clauses.append(
                    Clause(name, (equal,), f"{one.removeprefix('log ')} and {two.removeprefix('log ')} have one size")
                )
        return clauses


class RayFacts(Facts):
    """Derives clauses that hold on one ray, at all exponents of init stds, learning rates and multipliers, for given
    tensors that start at zero or alike in all experts (the *structure*).

    Nonlinear functions are represented by the linear term of their polynomial; networks for which this is not enough
    are refused (``demands.first_power``).
    """

    def __init__(self, network: Network, forms: FormAlgebra, demands: Iterable[Demand], structure: Structure) -> None:
        super().__init__(network)
        self.forms = forms
        forms.set_budget(replace(forms.budget, max_total_nodes=_TOTAL))
        first, kinds = RunContext(degrees="lowest"), (frozenset[str](), bounded_changes(demands))
        self._runs = [FormTrajectory(network, forms, structure, x, context=first) for x in kinds]

    def atom(self, form: Form, sense: Sense, *more: tuple[str, int]) -> Linear:
        return Linear((*form.unknowns, *more), sense, form.power.on(self.forms.ray))

    def _bounds(self, quantity: Quantity, t: int) -> Bounds | None:
        """Returns the exact size of a quantity, as formulas that are linear in the unknown exponents, if this takes
        little work.

        Otherwise it returns bounds on the size; in these, sizes of changes that are demanded to be O(1) occur as
        further unknowns. Returns None if no bounds are known.
        """
        for run, work in zip(self._runs, _WORK, strict=True):
            self.forms.set_budget(replace(self.forms.budget, max_nodes=work))
            with suppress(Exhausted), run.ledger.question():
                return run.bounds(quantity, t)
        return None


class AllRays(Facts):
    """Derives clauses that hold on every ray, at all exponents, for training by gradient descent with given tensors
    that start at zero or alike in all experts.

    The exponent of each monomial is linear in the rates of the axes and in the unknown exponents, and is a lower bound
    on the size of its quantity on every ray. The upper bounds, which are used to demand that a quantity reaches
    Theta(1), are complete for all rays (``formulas/search.py``).

    Args:
        network: the network.
        demands: the demands. Sizes of changes that they restrict to O(1) may occur as unknowns.
        structure: which tensors start at zero or alike in all experts (tied).
        fixed: axes that do not grow; all others do.
    """

    def __init__(
        self, network: Network, demands: Sequence[Demand], structure: Structure, fixed: frozenset[str] = frozenset()
    ) -> None:
        super().__init__(network)
        self._search = UpperBounds(network, OPTIMIZERS["sgd"], structure, fixed=fixed, sized=bounded_changes(demands))

    def atom(self, form: Form, sense: Sense, *more: tuple[str, int]) -> Linear:
        return Linear.of({**dict(form.power.terms), **dict(form.unknowns), **dict(more)}, sense)

    def _bounds(self, quantity: Quantity, t: int) -> Bounds | None:
        with suppress(Exhausted):
            return self._search.bounds(quantity, t)
        return None


def bounded_changes(demands: Iterable[Demand]) -> frozenset[str]:
    """Returns the signals whose changes must be O(1) according to some demand."""
    return frozenset(q.removesuffix(".change") for d in demands for q in d.quantities if q.endswith(".change"))
