"""Finds all monomials in the size of a quantity, valid on every ray and for all parameters.

Training is computed on several rays with unknown parameters, until no new monomial appears.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property

from scaling_algebra.counting.graded import Bounds
from scaling_algebra.counting.kernels import Exhausted
from scaling_algebra.counting.signals import Budget
from scaling_algebra.dynamics.quantities import Quantity
from scaling_algebra.dynamics.run import RunContext
from scaling_algebra.linear.clauses import Clause, ClauseSolver
from scaling_algebra.linear.cone import Cone
from scaling_algebra.linear.linear import SIDES, Linear, Vector, direction
from scaling_algebra.linear.maxform import Counts, MaxForm, max_form
from scaling_algebra.spec.axes import Ray, sort_axes
from scaling_algebra.spec.desiderata import Structure
from scaling_algebra.spec.networks.indices import list_growing_axes
from scaling_algebra.spec.networks.language import Network
from scaling_algebra.spec.optimizers import Optimizer
from scaling_algebra.spec.powers import Form

from .graded import FormTrajectory, form_algebra

_RUNGS = (
    Budget(Fraction(1, 2), max_nodes=5_000, max_total_nodes=40_000),
    Budget(Fraction(1), max_nodes=20_000, max_total_nodes=60_000),
    Budget(Fraction(2), max_nodes=50_000, max_total_nodes=200_000),
)
_COARSE = Budget(Fraction(1, 2), max_kernels=12, max_leaves=12, max_nodes=5_000, max_total_nodes=60_000)
"""`_RUNGS` are the budgets tried in turn until nothing is missing. If they take too much work, `_COARSE` keeps few
kernels and bounds the rest.
"""
_WHOLE = Budget(Fraction(1, 2), max_nodes=200_000, max_total_nodes=300_000, keeps_all=True)


QUOTIENT = "normalised"
"""Part of the names of quotients by a size, which are no maxima of monomials."""


class FormulaSearch:
    """Computes the size of quantities of a network with one optimizer, on all rays.

    Args:
        network: the network.
        optimizer: the optimizer.
        structure: tensors that start at zero or are shared by all experts.
        fixed: axes that do not grow.
        sized: signals whose changes after the first update are represented by an unknown for their size.
    """

    def __init__(
        self,
        network: Network,
        optimizer: Optimizer,
        structure: Structure,
        fixed: frozenset[str] = frozenset(),
        sized: frozenset[str] = frozenset(),
    ) -> None:
        self.network, self.optimizer, self.structure = network, optimizer, structure
        self.fixed, self.sized = fixed, sized
        axes = {*list_growing_axes(network)} - {"K", "L"} - fixed
        self.axes = tuple(sort_axes(axes))
        self.growing = frozenset(self.axes) | ({"K"} if "M" in axes else set())
        self.cone = Cone(self.axes)
        self.first = [tuple([1] * len(self.axes)), direction(range(len(self.axes) + 3, 3, -1)), *self.cone.rays]
        self._runs: dict[tuple[Vector, Budget], FormTrajectory] = {}

    def forms(self, quantity: Quantity, t: int) -> MaxForm:
        """Finds the monomials of a quantity after t updates.

        Raises:
            Exhausted: there are too many.
        """
        best: MaxForm | None = None
        for rung in _RUNGS:
            try:
                best = self._forms(quantity, t, rung)
            except Exhausted:
                break
            if best.slack is None:
                return best
        return best or self._forms(quantity, t, _COARSE)

    def run(self, rates: Vector, rung: Budget = _RUNGS[0]) -> FormTrajectory:
        """Returns the training run on a ray with unknown parameters, computed with a work budget."""
        key = rates, rung
        if key not in self._runs:
            algebra = form_algebra(self.network, self.ray(rates), self.growing)
            algebra.set_budget(rung)
            context = RunContext(self.growing)
            self._runs[key] = FormTrajectory(
                self.network, algebra, self.structure, self.sized, optimizer=self.optimizer, context=context
            )
        return self._runs[key]

    def ray(self, rates: Sequence[int]) -> Ray:
        """Returns the ray with these integer rates of the axes that grow."""
        top = max(rates)
        return Ray({axis: Fraction(x, top) for axis, x in zip(self.axes, rates, strict=True)})

    # inside --------------------------------------------------------------------------------------------------------

    def _forms(self, quantity: Quantity, t: int, rung: Budget) -> MaxForm:
        maximum = max_form(lambda rates: self._sizes(quantity, t, rates, rung), self.cone, self.first)
        if maximum is None:
            raise Exhausted
        return maximum

    def _sizes(
        self, quantity: Quantity, t: int, rates: Vector, rung: Budget
    ) -> dict[Counts, tuple[Form | None, Fraction]]:
        run = self.run(rates, rung)
        with run.ledger.question():
            sizes = run.sizes(quantity, t)
        largest = {}
        for grade, (low, high) in sizes.items():
            upper = run.forms.to_form(grade, high)
            lower = None if low is None else run.forms.to_form(grade, low)
            largest[upper.unknowns] = self._select_bound(lower, upper), run.forms.exponent(high)
        return largest

    def _select_bound(self, lower: Form | None, upper: Form) -> Form | None:
        """Selects the bound that counts as a monomial of the formula: here the lower one, which is attained."""
        return lower


class UpperBounds(FormulaSearch):
    """Upper bounds on the sizes of quantities that are valid on every ray.

    The changes of some signals after the first update are represented by an unknown for their size
    (``graded.size_of``).

    Law: the engine bounds sizes by sums and maxima of linear functions of the rates. Nothing is dropped, and the bound
    of a product is one such function (of the bounds in ``bound_product``, an operator norm never exceeds
    Cauchy-Schwarz). So the bound is convex, and its values at corners bound it everywhere.
    """

    def bounds(self, quantity: Quantity, t: int) -> Bounds:
        """Returns the monomials whose sizes are known, and upper bounds that cover all monomials, after t updates.

        Raises:
            Exhausted: there are too many.
        """
        upper = self._forms(quantity, t, _WHOLE).forms
        return Bounds(tuple(form for form in upper if form in self._exact), upper)

    @cached_property
    def _exact(self) -> set[Form]:
        """The upper bounds that are attained by a monomial on some ray."""
        return set()

    def _select_bound(self, lower: Form | None, upper: Form) -> Form | None:
        """Selects the upper bound, and records whether it is the size of a monomial."""
        self._exact.update({upper} if lower == upper else ())
        return upper


def winning(forms: tuple[Form, ...], axes: tuple[str, ...]) -> tuple[Form, ...]:
    """Selects the linear forms that are the largest one on some ray, for some values of the unknowns.

    Law: one query of linear real arithmetic for each form; z3 decides it exactly.
    """
    if len(forms) < 2:
        return forms
    solver = ClauseSolver(Clause("rays", (Linear(((axis, 1),), ">="),), "") for axis in axes)
    for k, form in enumerate(forms):
        counts = {"top": Fraction(1)} | {axis: -e for axis, e in form.power.terms}
        counts |= {u: Fraction(-n) for u, n in form.unknowns}
        solver.add(Clause(f"below {k}", (Linear.of(counts, ">"),), ""))
        for sense in SIDES:
            solver.add(Clause(f"top {k}", (Linear.of(counts, sense),), ""))
    below = [f"below {k}" for k in range(len(forms))]
    labels = (("rays", f"top {k}", *below[:k], *below[k + 1 :]) for k in range(len(forms)))
    return tuple(form for form, names in zip(forms, labels, strict=True) if solver.possible(names))
