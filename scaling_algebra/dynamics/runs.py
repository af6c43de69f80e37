"""The computations of one training run at different budgets, and the bracket of a quantity that each of them gives.

Read next: ``analysis.py`` (reads the runs, the cheap ones first), ``sparse_routing.py`` (creates a run).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from scaling_algebra.counting.algebra import Algebra
from scaling_algebra.counting.kernels import Exhausted
from scaling_algebra.counting.signals import Budget, EntrySize, Signal
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.networks.ancestors import count_depth
from scaling_algebra.spec.networks.auxiliary import find_buffers
from scaling_algebra.spec.networks.language import Function, Network
from scaling_algebra.spec.optimizers import OptimizerSpec
from scaling_algebra.spec.powers import Form
from scaling_algebra.spec.scaling import Point

from .bounds import BoundRun
from .brackets import NOTHING, Bracket, bracket_monomial
from .budgets import BUDGETS, INITIAL_BUDGET, QUICK_BUDGETS
from .quantities import Quantity, find_quantity
from .run import BeyondPowerCounting, Degrees, Divisor, RunContext
from .sparse_routing import make_algebra, select_classes
from .steps import SQUARED, list_odd_powers
from .trajectory import Trajectory

_ORTHOGONAL = "a norm may cancel it, since norms remove multiples of their argument"
NONE: Mapping[str, Divisor] = {}
_LONG = 8
"""Number of tensors on the longest path above which a monomial may have one more leaf for each further tensor."""
_FRAMES, _DEEPEST = 200, 60_000
"""Number of Python stack frames allowed for each statement, and maximum in total. Signals are evaluated recursively."""


@dataclass(eq=False)
class Runs:
    """The computations of one training run at one point of the scaling, one for each budget.

    Attributes:
        ray: the ray.
        point: the exponents of the scaling.
        optimizer: the optimizer.
        network: the network.
        table: the named quantities.
        algebras: one algebra for each budget; all share a cache of products.
        certified: a function (algebra, name, t) that returns a size if any run certifies it, as an exponent of n packed
            into an integer; otherwise None.
        growing: see ``Analysis``.
        routed: see ``Analysis``.
        raised: see ``Analysis``.
        linear: budgets for which functions are represented by polynomials of degree one.
        started: returns, for a budget, the run from which values and gradients before training are taken; None to
            compute them.
    """

    ray: Ray
    point: Point
    optimizer: OptimizerSpec
    network: Network
    table: Mapping[str, Quantity]
    algebras: dict[Budget, Algebra]
    certified: Callable[[Algebra, str, int], int | None]
    growing: frozenset[str] = frozenset()
    routed: bool = False
    raised: bool = False
    linear: tuple[Budget, ...] = ()
    started: Callable[[Budget], Trajectory | None] = lambda budget: None
    _runs: dict[Budget, Trajectory] = field(default_factory=dict)

    def algebra(self, budget: Budget) -> Algebra:
        """Returns the algebra for a budget. In a deep network it allows more leaves of a monomial than the budget,
        because a monomial contains the tensors on the path to a signal."""
        if budget not in self.algebras:
            some = next(iter(self.algebras.values()), None)
            some = some or make_algebra(self.network, self.ray, budget.gap, self.growing, self.routed)
            more = max(0, count_depth(self.network) - _LONG)
            self.algebras[budget] = some.with_budget(
                replace(budget, max_leaves=None if budget.max_leaves is None else budget.max_leaves + more)
            )
        return self.algebras[budget]

    def run_for(self, budget: Budget) -> Trajectory:
        """Returns the training run for a budget. It is created at the first call."""
        if budget not in self._runs:
            self._runs[budget] = self.make_run(budget, self.started(budget))
        return self._runs[budget]

    def make_run(self, budget: Budget, start: Trajectory | None = None) -> Trajectory:
        """Creates the training run for a budget.

        Args:
            budget: the budget.
            start: another run from which values and gradients before training are taken; None to compute them.
        """
        algebra = self.algebra(budget)
        degrees: Degrees = "lowest" if budget in self.linear else "raised" if self.raised else "usual"
        context = RunContext(self.growing, degrees, certified=partial(self.certified, algebra), start=start)
        trajectory, _ = select_classes(self.network, self.ray, self.routed)
        return trajectory(self.network, algebra, self.point, self.optimizer, context)

    def bounds(self, divisors: Mapping[str, Divisor] = NONE, still: bool = False) -> BoundRun:
        """Returns the training run in which every size is only bounded from above. Its ``why`` is the reason if there
        are no bounds.

        Args:
            divisors: bounds for norms whose divisor after an update differs from the initial one.
            still: True for bounds before the first update.
        """
        algebra = self.algebra(BUDGETS[0])
        context = RunContext(degrees="raised" if self.raised else "usual", divisors=divisors)
        with self.allow_deep_recursion(), algebra.meter.pause_counting():
            point = replace(self.point, frozen=frozenset(self.network.tensors)) if still else self.point
            _, bound_run = select_classes(self.network, self.ray, self.routed)
            run = bound_run(self.network, algebra.with_budget(BUDGETS[0]), point, self.optimizer, context)
            run.settle()
        return run

    def bound_gradient(self, s: Function) -> int | None:
        """Returns an upper bound, before training, on the gradient that reaches the argument of a function through this
        function, as an exponent of n packed into an integer; None if no bound is known."""
        sizes, source = list[int](), s.inputs[0].name
        for budget in (BUDGETS[0], INITIAL_BUDGET):
            run = self.run_for(budget)
            try:
                with run.ledger.question(), self.allow_deep_recursion(), run.algebra.meter.pause_counting():
                    size = run.algebra.upper_bound(run.gradient(source, 0, via=s.out))
                    sizes += [] if size is None else [size]
            except (Exhausted, BeyondPowerCounting):
                continue
        return min(sizes, key=self.algebra(BUDGETS[0]).exponent, default=None)

    def read(self, name: str, t: int, budget: Budget) -> Bracket:
        """Returns the bracket of a quantity that the training run with one budget gives."""
        run = self.run_for(budget)
        try:
            with run.ledger.question():
                read, notes = self.evaluate(name, t, run), frozenset(run.algebra.notes)
        except Exhausted:
            return Bracket()
        except BeyondPowerCounting as reason:
            return Bracket(why=str(reason))
        algebra, why = run.algebra, ""
        if isinstance(read, Signal):
            packed, certain, below = algebra.rms(read), algebra.is_certified(read), algebra.is_lower_bound(read)
            if not certain and algebra.is_led_by_doubt(read):
                why = SQUARED if SQUARED in notes or not self.network.norms else _ORTHOGONAL
        else:
            packed, certain, below = read.packed, read.certain, read.certain
        if packed is None:
            end = NOTHING if certain else None
            return Bracket(end, end, assumes=notes, why=why)
        return bracket_monomial(algebra.exponent(packed), algebra.form(packed), certain, below, why, notes)

    def evaluate(self, name: str, t: int, run: Trajectory) -> Signal | EntrySize:
        """Returns a quantity in a training run: the entry size for an update or a gradient of a tensor, a signal for
        any other."""
        with self.allow_deep_recursion():
            read: Signal | EntrySize = find_quantity(self.table, name).read(run, t)
        return read

    @contextmanager
    def allow_deep_recursion(self) -> Iterator[None]:
        """Raises Python's recursion limit to the depth that the network may need."""
        before = sys.getrecursionlimit()
        sys.setrecursionlimit(max(before, min(_FRAMES * len(self.network.statements), _DEEPEST)))
        try:
            yield
        finally:
            sys.setrecursionlimit(before)

    @cached_property
    def is_nonlinear(self) -> bool:
        """True if a function, or an optimizer step, is represented by a polynomial of a degree above one."""
        return self.has_nonlinear_steps() or any(f.stands_for for f in self.network.functions)

    def has_nonlinear_steps(self, signs: bool = False) -> bool:
        """Whether the optimizer normalises each entry of the gradient, and the nonlinear part of its steps may change a
        size.

        It may if at least three signals are multiplied along an index that grows. The steps of a buffer (a balancing
        bias) have two values only and count as linear.

        Args:
            signs: True to consider only optimizers that use nothing but the sign of the gradient.
        """
        run, rules = self.run_for(BUDGETS[0]), self.optimizer.of
        tensors, held = self.network.tensors.items(), find_buffers(self.network)
        trained = ((rules(role), x.indices) for role, x in tensors if role not in held)
        entries = (x for rule, x in trained if (rule.is_sign if signs else rule.normalises == "entry"))
        return any(len(list_odd_powers(run, indices)) > 1 for indices in entries)

    def list_lower_forms(self, name: str, t: int) -> tuple[Form, ...]:
        """Returns monomials each of which is a lower bound on the size of a signal, on every ray and at every point of
        the scaling.

        The list is empty if the signal is exactly zero, and for quantities that are sizes of tensors instead of
        signals.

        Raises:
            Exhausted: finding them takes more work than a lower bound may.
            BeyondPowerCounting: the quantity is not a power of n.
        """
        run = self.run_for(QUICK_BUDGETS[-1])
        with run.ledger.question():
            read = self.evaluate(name, t, run)
        return run.algebra.list_forms(read) if isinstance(read, Signal) else ()

    def list_step_factors(self, role: str, t: int) -> tuple[Bracket, ...]:
        """Returns the brackets of the scalar factors by which the optimizer multiplies the gradient after t updates;
        empty if the gradient is exactly zero.

        These factors are the learning rate and, if the optimizer uses them, the size of the tensor and 1/normaliser.
        """
        factors: tuple[Bracket, ...] = ()
        for budget in BUDGETS:
            run = self.run_for(budget)
            try:
                with run.ledger.question(), self.allow_deep_recursion():
                    scalars = run.steps.list_step_scalars(role, t)
            except (Exhausted, BeyondPowerCounting):
                factors = (Bracket(),)
                continue
            value, form = run.algebra.exponent, run.algebra.form
            factors = tuple(bracket_monomial(value(x.size), form(x.size), x.certain, x.certain) for x in scalars)
            if all(x.decided for x in factors):
                break
        return factors
