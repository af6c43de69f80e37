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
        sized: signals whose changes after the first update are replaced by an unknown for their size, which keeps the
            number of monomials small.
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
        """Returns the size of a quantity after t updates as a maximum of monomials, valid on every ray.

        Raises:
            Exhausted: there are too many monomials.
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
        """Returns the training run on the ray with these integer rates of the growing axes. The second argument is
        the work budget of the run.

        Init stds, learning rates and multipliers are unknowns in it.
        """
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
        """Selects which bound on a size on a ray becomes a monomial of the result: the lower one, since the quantity
        certainly has this size. It is None if there is no lower bound.
        """
        return lower


class UpperBounds(FormulaSearch):
    """Computes upper bounds on the sizes of quantities, as maxima of monomials that are valid on every ray.

    The changes of some signals after the first update are represented by an unknown for their size
    (``graded.size_of``).

    Law: the engine bounds a size by sums and maxima of linear functions of the rates of the axes, and here omits no
    term. The bound on a product is one such function (``bound_product``): if a factor is an initial tensor, it is
    the bound by the operator norm, which never exceeds that by Cauchy-Schwarz. So the whole bound is a convex
    function of the rates, and its values on the rays that span a cone limit it on the whole cone.
    """

    def bounds(self, quantity: Quantity, t: int) -> Bounds:
        """Returns monomials whose maximum is an upper bound on a quantity after t updates, valid on every ray. Those
        of them that are also lower bounds are returned as such.

        Raises:
            Exhausted: there are too many monomials.
        """
        upper = self._forms(quantity, t, _WHOLE).forms
        return Bounds(tuple(form for form in upper if form in self._exact), upper)

    @cached_property
    def _exact(self) -> set[Form]:
        """The upper bounds found so far that equal the lower bound on some ray, so that the quantity has this size."""
        return set()

    def _select_bound(self, lower: Form | None, upper: Form) -> Form | None:
        """Selects which bound on a size on a ray becomes a monomial of the result: the upper one. It is added to
        ``_exact`` if the lower bound equals it.
        """
        self._exact.update({upper} if lower == upper else ())
        return upper


def winning(forms: tuple[Form, ...], axes: tuple[str, ...]) -> tuple[Form, ...]:
    """Selects those monomials that are larger than all others on some ray, for some values of the unknowns.

    For each monomial z3 decides exactly whether there are such a ray and such values (linear real arithmetic).
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
