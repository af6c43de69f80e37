"""Desiderata as clauses over the rates of the axes and the unknown b, c and alpha together: they hold on every ray.

Every monomial is linear in both, and a lower bound of its quantity on every ray, at every parameter point. The upper
bounds, which say that something reaches Theta(1), are complete for all rays (``formulas/search.py``).
Read next: ``queries.py`` (asks z3 about a cone of rays).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from scaling_algebra.counting.kernels import Exhausted
from scaling_algebra.dynamics.quantities import quantity
from scaling_algebra.formulas.graded import Bounds
from scaling_algebra.formulas.search import UpperBounds
from scaling_algebra.linear.clauses import Clause
from scaling_algebra.linear.linear import Linear, Sense
from scaling_algebra.proofs.clauses import Facts, sized
from scaling_algebra.spec.desiderata import Demand, Structure
from scaling_algebra.spec.networks.language import Network
from scaling_algebra.spec.optimizers import OPTIMIZERS
from scaling_algebra.spec.parameterizations import Parameterization
from scaling_algebra.spec.powers import Form


class AllRays(Facts):
    """What holds on every ray, at every parameter point of gradient descent, under one structure.

    Args:
        fixed: axes that do not grow; all others do.
    """

    def __init__(
        self, network: Network, demands: Sequence[Demand], structure: Structure, fixed: frozenset[str] = frozenset()
    ) -> None:
        super().__init__(network)
        self._search = UpperBounds(network, OPTIMIZERS["sgd"], structure, sized(demands), fixed)
        self._known: dict[tuple[str, int], Bounds | None] = {}

    def atom(self, form: Form, sense: Sense, *more: tuple[str, int]) -> Linear:
        return Linear.of({**dict(form.power.terms), **dict(form.unknowns), **dict(more)}, sense)

    def bounds(self, name: str, t: int) -> Bounds | None:
        """Forms that are sizes of monomials, and forms that nothing exceeds; None if these are too many."""
        if (name, t) not in self._known:
            try:
                self._known[name, t] = self._search.bounds(quantity(self._table, name), t)
            except Exhausted:
                self._known[name, t] = None
        return self._known[name, t]


@lru_cache(maxsize=64)
def clauses(
    network: Network, parameterization: Parameterization, structure: Structure, fixed: frozenset[str]
) -> tuple[Clause, ...]:
    """The clauses of all demands; rays that are not in them are those on which a fixed axis grows."""
    demands = parameterization.demanded(network, structure)
    facts = AllRays(network, demands, structure, fixed)
    return tuple(clause for demand in demands for clause in facts.of(demand))
