"""Certified sizes of named quantities: strategies narrow a bracket, the cheap ones first, until both bounds are equal.

``analysis("h2.change", 1)`` returns the bracket of h2_1 - h2_0. A *restricted run* (``parts.py``) gives lower bounds;
bounds on every step (``bounds.py``) give upper ones.
Read next: ``quantities.py`` (the quantities), ``runs.py`` (what one budget gives), ``newton.py`` and ``derivation.py``
(which ask for sizes).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property, partial
from itertools import count, islice
from typing import Any, NamedTuple

from scaling_algebra.counting.algebra import Algebra
from scaling_algebra.counting.kernels import Exhausted
from scaling_algebra.counting.signals import Budget, Signal
from scaling_algebra.counting.store import ResultCache
from scaling_algebra.errors import UsageError
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.glossary import ASSUMPTIONS
from scaling_algebra.spec.networks.language import Network
from scaling_algebra.spec.networks.library import MOE_BLOCK
from scaling_algebra.spec.optimizers import OptimizerSpec
from scaling_algebra.spec.scaling import Point
from scaling_algebra.waiting import iterate_with_progress

from .bounds import BoundRun, find_affected_norms, find_changed_norms
from .brackets import Bracket
from .budgets import (
    BUDGETS,
    FOUND,
    INITIAL_BUDGET,
    INITIAL_SIZE_WORK,
    NEAR,
    QUICK_BUDGETS,
    RESTRICTED_BUDGETS,
    SINGLE_RUN_WORK,
    SMALLEST_BUDGET,
    WITNESS_BUDGETS,
    WORK_LIMIT_REASON,
)
from .parts import ORDERS, SLOW, find_dependencies, find_signal, restricted_points
from .quantities import Quantity, list_decay_quantities, list_quantities
from .run import BeyondPowerCounting, Divisor
from .runs import Runs
from .sparse_routing import is_sparse
from .trajectory import Trajectory

_RAISED = "functions are represented by polynomials, and a degree higher by two gives"
_VANISHES = (
    "functions are represented by polynomials: it is exactly zero for these, but not with a degree higher by two"
)
_STANDING = frozenset({"polynomials", "first-hermite", "rank-one-sign"})
"""Names of the assumptions that a polynomial may represent a function, or its linear part an optimizer step."""
_CUBES = (
    "the cubic part of a sign may be the largest term of a product, and in a network with nonlinear functions only an "
    "upper bound on it is known"
)


class Query(NamedTuple):
    """A request for the size of a quantity after t updates.

    Attributes:
        analysis: the analysis that answers it.
        name: name of the quantity.
        t: number of updates.
    """

    analysis: Analysis
    name: str
    t: int


Strategy = Callable[[Query, Bracket], Bracket]
"""A function (query, bracket so far) -> narrowed bracket. A decided bracket is returned unchanged."""


class Method(NamedTuple):
    """A way to answer a query: a list of strategies, each of which narrows the bracket, that is, the lower and the
    upper bound on the size.

    Attributes:
        name: name of the method.
        strategies: maps names to strategies, in the order in which they run. A strategy may itself be a method, which
            runs only if the size is unknown so far.
        cached: True if answers by this method are cached.
    """

    name: str
    strategies: Mapping[str, Strategy | Method]
    cached: bool = True

    def __str__(self) -> str:
        return f"{self.name}: {', '.join(self.strategies)}"


class Analysis:
    """Computes sizes of the quantities of one training run, on demand: ``analysis("h2.change", 1)`` is the bracket of
    h2_1 - h2_0, that is, a lower and an upper bound on its exponent of n.

    Args:
        ray: the rate at which each axis grows.
        point: the exponents of all init stds, learning rates, epsilons and multipliers.
        optimizer: the optimizer.
        network: the network.
        algebras: the objects that add and multiply signals, taken from another analysis on the same ray with the
            same ``growing``, so that its cached products are used; None for new ones.
        growing: axes that count as growing on any ray. On a ray where they do not grow, sizes are then the limits of
            the sizes on neighbouring rays, on which they do.
        routed: True to treat K as smaller than M even on rays where it is not; sizes are then limits in the same
            sense.
        raised: True to increase the degree of polynomials that represent functions by two.
        whole: for a restricted run (``parts.py``), the analysis of the full run, whose algebras and upper bounds are
            used; None for a full run.
        budgets: limits on precision and work that may be used to answer a query, tried one after the other; the default
            ones if empty.
        without_divisors: True if no upper bound may use bounds on the divisors that norms have during training.

    Attributes:
        runs: the computations of the training run, one for each budget.
        restricted: the restricted runs, in which few tensors train and which give lower bounds.
        initial_sizes: for each quantity by which norms or optimizer steps divide, the bracket of its size before
            training.
        notes: assumptions of all answers so far.
        table: the named quantities, by name.
    """

    def __init__(
        self,
        ray: Ray,
        point: Point,
        optimizer: OptimizerSpec,
        network: Network = MOE_BLOCK,
        algebras: dict[Budget, Algebra] | None = None,
        growing: frozenset[str] = frozenset(),
        routed: bool = False,
        raised: bool = False,
        whole: Analysis | None = None,
        budgets: Sequence[Budget] = (),
        without_divisors: bool = False,
    ) -> None:
        if network.unread:
            raise UsageError(f"{network.unread}; only the shapes of this module are known, not its signals")
        self.ray, self.point, self.optimizer, self.network = ray, point, optimizer, network
        self.growing, self.routed, self.raised, self.whole, self.budgets = growing, routed, raised, whole, budgets
        self.without_divisors = without_divisors
        own = whole.table if whole is not None else list_quantities(network) | list_decay_quantities(network, optimizer)
        self.table: Mapping[str, Quantity] = own
        settings: dict[str, Any] = {"growing": growing, "routed": routed, "raised": raised}
        if whole is not None:
            algebras = whole.runs.algebras
            settings |= {"linear": RESTRICTED_BUDGETS[:1], "started": partial(whole.restricted.get_initial_run, self)}
        shared = {} if algebras is None else algebras
        self.runs: Runs = Runs(ray, point, optimizer, network, self.table, shared, self._certify_size, **settings)
        self.meter = self.runs.algebra(BUDGETS[0]).meter
        self.restricted: RestrictedRuns = RestrictedRuns(self)
        self.notes = set[str]()
        self._kept = ResultCache[tuple[str, str, int], Bracket](self.meter)
        self._uppers = ResultCache[tuple[str, int], Fraction | None](self.meter)
        self.initial_sizes = dict[str, Bracket]()

    def __call__(self, name: str, t: int, method: Method | None = None) -> Bracket:
        """Returns the bracket of a quantity after t updates: lower and upper bounds on its size, which are equal if the
        size is decided.

        Args:
            name: name of the quantity.
            t: number of updates.
            method: the method to use, by default ``CERTIFIED``.
        """
        method = method or CERTIFIED
        if not method.cached:
            return self._evaluate(name, t, method)
        return self._kept((method.name, name, t), partial(self._evaluate, name, t, method))

    def _evaluate(self, name: str, t: int, method: Method) -> Bracket:
        """Returns the bracket of a quantity after t updates: the strategies of a method narrow it one after the
        other."""
        bracket = Bracket()
        for strategy in method.strategies.values():
            if not isinstance(strategy, Method):
                bracket = strategy(Query(self, name, t), bracket)
            elif bracket.unknown:
                bracket = self(name, t, strategy)
        return bracket

    def is_certified(self, name: str, t: int) -> bool:
        """Whether the size of this quantity after t updates has already been computed by the method ``CERTIFIED``."""
        return (CERTIFIED.name, name, t) in self._kept

    def evaluate_all(self, steps: int, names: Iterable[str] | None = None) -> dict[str, tuple[Bracket, ...]]:
        """Returns the brackets (lower and upper bounds on the sizes) of quantities after 0, 1, ..., ``steps`` updates,
        by name.

        Args:
            steps: the largest number of updates.
            names: names of the quantities, by default all.
        """
        every = iterate_with_progress("certifying", "quantities", list(names or self.table))
        return {name: tuple(self(name, t) for t in range(steps + 1)) for name in every}

    @property
    def assumed(self) -> tuple[str, ...]:
        """Names of the assumptions, beyond power counting, on which any answer so far depends."""
        return tuple(x for x in ASSUMPTIONS if x in self.notes)

    def with_settings(self, **changes: Any) -> Analysis:
        """Returns a new analysis of the same training run with some arguments of the constructor replaced. Both share
        their cached products."""
        names = ("ray", "point", "optimizer", "network", "growing", "routed", "raised", "budgets", "without_divisors")
        asked = {name: getattr(self, name) for name in names}
        return Analysis(**{**asked, "algebras": self.runs.algebras, **changes})

    def with_budgets(self, budgets: Sequence[Budget]) -> Analysis:
        """Returns a new analysis that uses other budgets (limits on precision and work). The assumptions of its answers
        are recorded in this analysis, too."""
        run = self.with_settings(budgets=budgets)
        run.notes = self.notes
        return run

    @cached_property
    def higher(self) -> Analysis:
        """An analysis of the same training run in which functions are represented by polynomials of a degree higher
        by two, to check sizes that were found with the usual degree; this analysis itself if its degrees are already
        higher.
        """
        return (
            self
            if self.raised
            else self.with_settings(raised=True, without_divisors=self.without_divisors or self.whole is not None)
        )

    def read(self, name: str, t: int, budget: Budget) -> Bracket:
        """Returns a lower and an upper bound on the size of a quantity, from the training run with one budget alone.

        If the quantity is exactly zero in this run, and polynomials represent functions, it must also be zero with
        polynomials of a degree higher by two; otherwise the bracket is undecided.
        """
        found = self.runs.read(name, t, budget)
        if not found.zero or self.raised or self.whole is not None or _STANDING.isdisjoint(found.assumes):
            return found
        return found if self.higher.runs.read(name, t, budget).zero else Bracket(why=_VANISHES)

    # bounds on every step ---------------------------------------------------------------------------------------

    @cached_property
    def bounds(self) -> BoundRun:
        """The training run that gives upper bounds on all sizes, valid after any number of updates. If there are no
        such bounds, its ``why`` is the reason."""
        if self.whole is not None:
            return self.whole.bounds
        run = self.runs.bounds()
        if self.without_divisors or run.why or not run.outgrown or is_sparse(self.network, self.ray) or self.routed:
            return run
        return self.runs.bounds(_find_divisors(self, run))

    @cached_property
    def initial_bounds(self) -> BoundRun:
        """The training run that gives upper bounds on all sizes before training."""
        return self.runs.bounds(still=True) if self.whole is None else self.whole.initial_bounds

    def upper(self, name: str, t: int = 1) -> Fraction | None:
        """Returns an upper bound on the exponent of a quantity; None if there is no bound, or if the quantity is
        exactly zero.

        The bound holds after any number of updates for t > 0, and before training for t = 0.
        """
        return self._uppers((name, min(t, 1)), partial(self._bound_above, name, _bounds_at(self, t)))

    def _bound_above(self, name: str, bounds: BoundRun) -> Fraction | None:
        """Returns the upper bound on the exponent of a quantity that is provided by a given run of upper bounds
        (``Analysis.bounds``); None if it provides none, or if the quantity is exactly zero."""
        decays = name.endswith(".with-decay")  # no bound includes the decay of initial values
        if bounds.why or name not in self.table or decays:
            return None
        try:
            with bounds.algebra.collect_notes() as notes:
                largest = bounds.bound_quantity(self.table[name])
        except (Exhausted, BeyondPowerCounting):
            return None
        bounds.assumes.update(notes)
        self.notes |= bounds.assumes
        return None if largest is None else bounds.algebra.exponent(largest)

    def below_epsilon(self, role: str) -> bool:
        """Whether the gradient of a tensor is at most as large as epsilon at every step."""
        largest = self.upper(f"g{self.network.tensors[role].symbol}")
        return largest is not None and largest <= -self.point.d[role]

    def meets_bound(self, name: str, size: Fraction | None, t: int = 1) -> bool:
        """Whether a size, as an exponent of n, equals the upper bound on the quantity after t updates (``upper``).

        In a restricted run, learning rates are smaller by a power of n (``SLOW``). There the size may be smaller than
        the bound by a product of such powers.
        """
        upper = self.upper(name, t)
        if size is None or upper is None or self.whole is None:
            return size is not None and size == upper
        order = (upper - size) / (self.ray.largest * SLOW)
        return order.denominator == 1 and 0 <= order <= ORDERS

    def _certify_size(self, algebra: Algebra, name: str, t: int) -> int | None:
        """Returns the size of a quantity as an exponent of n packed into one integer, if the size is decided; otherwise
        None. Training runs call this for sizes by which they divide. The assumptions of the size are recorded in
        ``algebra``.

        For a gradient that never exceeds epsilon, the size of epsilon is returned, since the optimizer divides by
        their sum.

        Raises:
            Exhausted: no work is left.
        """
        role = self.table[name].tensor if name in self.table else ""
        if role and name.startswith("g") and self.optimizer.of(role).epsilon and self.below_epsilon(role):
            algebra.notes.update(self.bounds.assumes)
            return algebra.pack(-self.point.d[role], {}, {f"d.{role}": -1})
        begins_alike = self.whole is not None and not t and self.point.zero == self.whole.point.zero
        asked = self.whole if self.whole is not None and begins_alike else self
        answer = asked(name, t) if t else _bracket_initial_size(asked, name)
        if self.meter.is_exceeded:
            raise Exhausted
        algebra.notes.update(answer.assumes)
        if answer.size is None or answer.form is None:
            return None
        return algebra.pack(answer.size, dict(answer.form.power.terms), dict(answer.form.unknowns))

    # runs of an answer --------------------------------------------------------------------------------------------

    def run(self, name: str, t: int) -> Trajectory:
        """Returns a training run with a single budget that is enough to certify the size of a quantity. If there are
        several, one that dropped no monomial as large as this size is preferred.

        Raises:
            LookupError: there is no such run: the size is undecided, or its proof combines an upper bound with a
                restricted run.
        """
        with self.meter.limit_work(SINGLE_RUN_WORK if self(name, t, RESTRICTED).decided else None):
            return self._find_single_run(name, t)

    def _find_single_run(self, name: str, t: int) -> Trajectory:
        """Returns the same as the method ``run`` (a training run with a single budget that certifies the size of a
        quantity), but does not limit the work of the search.
        """
        decided: list[Budget] = []
        for budget in BUDGETS if t else (*BUDGETS, INITIAL_BUDGET):
            if self.runs.read(name, t, budget).decided:
                run = self.runs.run_for(budget)
                with run.ledger.question():
                    read = self.runs.evaluate(name, t, run)
                if not isinstance(read, Signal) or run.algebra.keeps_all_leading(read):
                    return run
                decided.append(budget)
        decided = decided or [budget for budget in BUDGETS if read_with_bounds(self, name, t, budget).decided][:1]
        if not decided:
            raise LookupError(f"the size of {name} at t={t} is undecided, or no computation with one budget proves it")
        return self.runs.run_for(next((budget for budget in decided if budget.max_kernels is None), decided[0]))

    def powers(self, name: str, t: int) -> tuple[tuple[Fraction, bool], ...]:
        """Returns the exponents of n of the terms that make up a quantity after t updates: (exponent, True) for each
        monomial that was computed, and (upper bound, False) for all dropped terms together.

        Raises:
            LookupError: no run certifies the size of the quantity, or it takes more work than is left.
        """
        try:
            run = self.run(name, t)
            with run.ledger.question():
                read = self.runs.evaluate(name, t, run)
        except Exhausted:
            raise LookupError(f"computing {name} at t={t} takes more work than is left") from None
        if isinstance(read, Signal):
            return run.algebra.list_exponents(read)
        return () if read.packed is None else ((run.algebra.exponent(read.packed), False),)


class RestrictedRuns:
    """Creates the restricted runs of a full run, each once. In a restricted run only few tensors train, so a size is
    easy to compute there. It is a lower bound on the size in the full run if norms and optimizer steps divide by
    numbers of the same sizes in both runs (``parts.py``).
    """

    def __init__(self, whole: Analysis) -> None:
        self.whole = whole
        self._points: dict[str, tuple[list[Point], Iterator[Point]]] = {}
        self._parts = ResultCache[tuple[frozenset[str], frozenset[str]], Analysis](whole.meter)
        self._alike = ResultCache[frozenset[str], bool](whole.meter)
        self._starts: dict[tuple[frozenset[str], Budget], Trajectory] = {}

    def rank_points(self, name: str, steps: Collection[int]) -> Iterator[tuple[int, Point]]:
        """Yields pairs (number of updates, restricted point) at which a quantity may be as large as in the full run. A
        restricted point is a choice of exponents with which only few tensors train.

        Pairs with few updates come first. The first point is the likeliest and is tried with one more update than the
        others.

        Args:
            name: name of the quantity.
            steps: the allowed numbers of updates.
        """
        signal = find_signal(self.whole.network, self.whole.table[name])
        for least in range(min(steps) - 1, max(steps) + 1):
            for k, point in enumerate(self._iterate_points(signal)):
                if (step := least if k else least + 1) in steps:
                    yield step, point

    def _iterate_points(self, signal: str) -> Iterator[Point]:
        """Yields the points of ``restricted_points``: choices of exponents with which few tensors train, the likeliest
        to change the signal first. They are cached, and a point is computed only when it is needed."""
        points = restricted_points(self.whole.network, self.whole.point, signal)
        made, rest = self._points.setdefault(signal, ([], points))
        for k in count():
            made += islice(rest, max(0, k + 1 - len(made)))
            if k == len(made):
                return
            yield made[k]

    def find_at(self, point: Point, name: str, step: int, t: int) -> Analysis | None:
        """Returns the analysis of the restricted run at a point, if a size found in it is a lower bound on the size in
        the full run; otherwise None.

        Args:
            point: the choice of exponents with which only few tensors train.
            name: name of the quantity.
            step: number of updates in the restricted run.
            t: number of updates in the full run.
        """
        part = self._parts((point.zero, point.frozen), partial(self.make_restricted, point))
        return part if self.divisors_agree(part, step) and self._outgrown_norms_agree(part, name, step, t) else None

    def _outgrown_norms_agree(self, part: Analysis, name: str, step: int, t: int) -> bool:
        """Whether certain norms have the same divisors in a restricted run (``part``) as in the full run: those on
        which the quantity depends and whose argument may outgrow its initial size.

        Law: if the argument of a norm outgrows its initial size, its change is the largest term for any positive
        constant of the learning rate. So a run in which this argument does not train is not a limit of the full run.
        These norms matter after one update: for a signal, those in its own forward pass; for an update, none, since
        it was computed from initial values; for gradients, and for everything after more updates, all norms.
        """
        analysis, norms, quantity = self.whole, find_changed_norms(self.whole.bounds), self.whole.table[name]
        if not t or not norms:
            return True
        signal = "" if quantity.tensor else find_signal(analysis.network, quantity)
        if step < 2 and (signal or (quantity.tensor and name.startswith("d"))):
            reached = (
                find_dependencies(analysis.network, signal, part.point.zero & part.point.frozen)
                if signal
                else frozenset()
            )
            norms = {x: y for x, y in norms.items() if x in reached}
        centring = {s.out for s in analysis.network.norms if s.kind.centres}
        if not step or not centring.isdisjoint(norms):
            return not norms
        sizes = ((y, part(y, k)) for y in norms.values() for k in range(1, step + 1))
        return all(x.decided and part.meets_bound(y, x.size) for y, x in sizes)

    def make_restricted(self, point: Point) -> Analysis:
        """Returns the analysis of the restricted run at a point (a choice of exponents with which few tensors train).
        Its learning rates are multiplied by a small negative power of n (``SLOW``), so that a monomial that contains
        more learning rates than another is smaller and cannot cancel it."""
        slow = {role: c + self.whole.ray.largest * SLOW for role, c in point.c.items()}
        return self.whole.with_settings(point=replace(point, c=slow), whole=self.whole, raised=False, budgets=())

    def divisors_agree(self, part: Analysis, t: int) -> bool:
        """Whether all divisors in the first t updates have the same size in a restricted run (``part``, in which few
        tensors train) as in the full run. Only then are sizes in it lower bounds for the full run.

        Divisors are the sizes of the arguments of norms and of homogeneous functions, and the optimizer's normalisers.
        Law: a normaliser that is epsilon is epsilon at every step. An entrywise normaliser is the size of the gradient;
        the first gradient does not depend on which tensors train, but its size may depend on which tensors start at
        zero.
        """
        whole = self.whole
        learning = whole.network.tensors.keys() - part.point.frozen
        rules = {role: whole.optimizer.of(role) for role in learning}
        by_size = [role for role, x in rules.items() if x.normalises and not (x.epsilon and whole.below_epsilon(role))]
        if t and any(t > 1 or rules[role].normalises != "entry" or rules[role].relative for role in by_size):
            return False
        if (
            t
            and part.point.zero != whole.point.zero
            and not all(self._first_gradients_agree(part, role) for role in by_size)
        ):
            return False
        return self._alike(part.point.zero, partial(self._read_sizes_agree, part))

    def _first_gradients_agree(self, part: Analysis, role: str) -> bool:
        """Whether the initial gradient of a tensor has the same size in a restricted run (``part``, in which few
        tensors train) as in the full run."""
        gradient = f"g{self.whole.network.tensors[role].symbol}"
        size = _bracket_initial_size(self.whole, gradient).size
        return size is not None and _bracket_initial_size(part, gradient).size == size

    def _read_sizes_agree(self, part: Analysis) -> bool:
        """Whether the arguments of all norms and homogeneous functions have the same initial sizes in a restricted run
        (``part``, in which few tensors train) as in the full run."""
        functions = (f for f in self.whole.network.functions if f.kind.kind == "norm" or f.kind.homogeneous)
        read = [f.inputs[0].name for f in functions]
        return all(
            (own := _bracket_initial_size(part, x)).decided and own.size == _bracket_initial_size(self.whole, x).size
            for x in read
        )

    def get_initial_run(self, part: Analysis, budget: Budget) -> Trajectory:
        """Returns the run from which restricted runs (in which few tensors train) take their values before training.
        All restricted runs in which the same tensors start at zero share it.

        It answers no query itself, so its work is charged to none.
        """
        key = part.point.zero, budget
        if key not in self._starts:
            self._starts[key] = part.runs.make_run(budget)
        return self._starts[key]


# strategies -----------------------------------------------------------------------------------------------------


def _find_divisors(whole: Analysis, run: BoundRun) -> dict[str, Divisor]:
    """Returns, for the norms whose divisor changes during training, bounds on this divisor and on the gradient at the
    norm's argument, by the name of the norm's output.

    The sizes in these bounds come from an analysis that assumes nothing about the divisors. A norm that subtracts the
    mean is omitted: its argument may exceed its divisor, since an update that is constant along the index has no effect
    on the divisor.

    Args:
        whole: the analysis of the full run.
        run: the run of upper bounds that hold without knowledge of these divisors.
    """
    analysis, divisors = whole.with_settings(without_divisors=True), dict[str, Divisor]()
    analysis.bounds = run
    shaken = find_affected_norms(run)
    with whole.meter.pause_counting():
        for s in (s for s in whole.network.functions if s.out in shaken and not s.kind.centres):
            found, gradient = analysis(s.inputs[0].name, 1, RESTRICTED), analysis.runs.bound_gradient(s)
            if found.size is not None and gradient is not None:
                divisors[s.out] = Divisor(run.algebra.pack(found.size, {}, {}), gradient)
                whole.notes |= found.assumes
    return divisors


def _bracket_initial_size(analysis: Analysis, name: str) -> Bracket:
    """Returns a lower and an upper bound on the size that a quantity has before training, for quantities by which norms
    or optimizer steps divide, such as a gradient.

    Many queries need it, so its work is charged to none of them; ``INITIAL_SIZE_WORK`` limits it instead.
    """
    if name not in analysis.initial_sizes:
        with analysis.meter.pause_counting(), analysis.meter.limit_work(INITIAL_SIZE_WORK):
            analysis.initial_sizes[name] = analysis(name, 0)
    return analysis.initial_sizes[name]


def _bounds_at(analysis: Analysis, t: int) -> BoundRun:
    """Returns the training run that gives upper bounds on all sizes after t updates: one for t = 0, and another one,
    whose bounds hold after any number of updates, for t > 0."""
    return analysis.bounds if t else analysis.initial_bounds


def read_with_bounds(analysis: Analysis, name: str, t: int, budget: Budget) -> Bracket:
    """Returns a lower and an upper bound on the size of a quantity from the training run with one budget.

    If the largest monomial found there is as large as the upper bound that holds at every step (``Analysis.upper``),
    the size is decided: it is this bound.
    """
    found = analysis.read(name, t, budget)
    if t and not found.decided and found.low is not None and analysis.meets_bound(name, found.lead):
        found = replace(found, high=found.low, why="", assumes=found.assumes | analysis.bounds.assumes)
    if found.decided:
        analysis.notes |= found.assumes
    return found


def find_exact_zero(q: Query, known: Bracket) -> Bracket:
    """Answers a query about the size after one update, if a run with a small budget shows that the quantity is still
    exactly zero. Otherwise, and for any other number of updates, returns the bracket so far (``known``).
    """
    return _find_cheap_zero(q.analysis, q.name, 1) if q.t == 1 and not known.decided else known


def _find_cheap_zero(analysis: Analysis, name: str, t: int) -> Bracket:
    """Tests with little work whether a quantity is exactly zero after t updates. If so, returns the decided bracket,
    otherwise an undecided one. Only full runs in which some tensor starts at zero are tested."""
    found = (
        read_with_bounds(analysis, name, t, WITNESS_BUDGETS[0])
        if analysis.point.zero and analysis.whole is None
        else Bracket()
    )
    return found if found.zero else Bracket()


def search_restricted_runs(q: Query, known: Bracket) -> Bracket:
    """Decides a size by restricted runs, in which few tensors train: if a monomial in one of them is as large as the
    upper bound that holds at every step, the size is this bound. If none is, returns the bracket so far (``known``).

    Each further update takes much more work, so all restricted runs are tried with few updates before any is tried with
    more. Only the one in which the quantity is most likely to be large is always tried with one more update than the
    others.
    """
    analysis, name, t = q
    if known.decided:
        return known
    if t > 2 and (earlier := analysis(name, t - 1, RESTRICTED)).decided:
        return earlier
    steps = (t,) if not t or t > 2 or _find_cheap_zero(analysis, name, t - 1).zero else range(t + 1)
    if analysis.whole is not None or not analysis.network.norms or analysis.upper(name, t) is None:
        return known
    begun = set[frozenset[str]]()
    for step, point in analysis.restricted.rank_points(name, steps):
        if analysis.meter.is_exceeded:
            break
        if not step and point.zero in begun:  # restricted runs with the same zero tensors agree before training
            continue
        if (part := analysis.restricted.find_at(point, name, step, t)) is None:
            continue
        found = part(name, step, WITNESS)
        if found.low is not None and part.meets_bound(name, found.lead, t):
            assumes, upper = (
                found.assumes | _bounds_at(analysis, t).assumes | {"generic-constants"},
                analysis.upper(name, t),
            )
            analysis.notes |= assumes
            return replace(found, low=upper, high=upper, lead=upper, assumes=assumes)
        if not step:
            begun.add(point.zero)
    return known


def search_few_monomials(q: Query, known: Bracket) -> Bracket:
    """Finds the largest monomial of a quantity with small budgets. It is a lower bound on the size if nothing can
    cancel it. Returns the bracket so far (``known``) if no larger monomial is found."""
    analysis, name, t = q
    if known.decided:
        return known
    # with raised degrees, monomials have as many leaves as the products have signals
    few = analysis.whole is not None or (analysis.raised and not t)
    allowed = RESTRICTED_BUDGETS if few else WITNESS_BUDGETS
    for budget in (x for x in allowed if t < 2 or not x.bounds_inner_products):
        found = read_with_bounds(analysis, name, t, budget)
        if found.lead is not None and found.low is not None and (known.lead is None or found.lead > known.lead):
            known = found
        if found.decided or (analysis.whole is not None and not analysis.meets_bound(name, found.lead, t)):
            break
    return known


def use_lower_bound(q: Query, known: Bracket) -> Bracket:
    """Searches for a lower bound on the size if nothing at all is known about it; returns ``known`` if something is, or
    if no bound is found.

    For a size before training it does so only if the quantity is the gradient of a tensor, and the argument of some
    norm may outgrow its initial size.
    """
    analysis, name, t = q
    method = WITNESS if t else RESTRICTED if _is_outgrown_gradient(analysis, name) else None
    found = analysis(name, t, method) if known.unknown and method else known
    return known if found.low is None else found


def _is_outgrown_gradient(analysis: Analysis, name: str) -> bool:
    """Whether a quantity is the gradient of a tensor, in a full run in which the argument of some norm may outgrow its
    initial size."""
    of_tensor = name.startswith("g") and bool(analysis.table[name].tensor)
    return of_tensor and analysis.whole is None and not analysis.raised and bool(analysis.bounds.outgrown)


def increase_budget(q: Query, known: Bracket, budgets: Sequence[Budget] = ()) -> Bracket:
    """Tries larger and larger budgets (limits on precision and work) until one decides the size or none can. Returns
    the bracket from the last budget, with the best lower bound from all.

    Args:
        q: the query.
        known: the bracket so far.
        budgets: the budgets, by default those of the analysis.
    """
    analysis, name, t = q
    low, lead = known.low, known.lead
    usual = BUDGETS[:1] if analysis.whole is not None else analysis.budgets or BUDGETS
    if not t and analysis.network.norms:
        usual = (usual[0], INITIAL_BUDGET, *usual[1:])
    for budget in () if known.decided else budgets or usual:
        known = read_with_bounds(analysis, name, t, budget)
        if known.decided:
            return known
        if known.why and budget.max_kernels is None:
            break
        if known.low is not None:
            low = known.low if low is None else max(low, known.low)
        lead = known.lead if lead is None else lead
    return replace(known, low=low, lead=known.lead if known.lead is not None else lead)


def check_raised_degrees(q: Query, known: Bracket) -> Bracket:
    """Checks a decided size that was computed with polynomials in place of functions: if polynomials of a degree higher
    by two give a larger size, returns an undecided bracket, otherwise ``known``."""
    analysis, name, t = q
    if analysis.raised or known.size is None or not analysis.runs.is_nonlinear:
        return known
    if any(known.size == run.higher.upper(name, t) for run in (analysis.whole, analysis) if run is not None):
        return known
    higher, open_ = analysis.higher(name, t, WITNESS), partial(replace, known, low=None, high=None)
    if t and analysis.network.live and analysis.runs.has_nonlinear_steps(signs=True) and not higher.decided:
        return open_(why=_CUBES)
    if higher.lead is not None and higher.lead > known.size:
        return open_(why=f"{_RAISED} n^({higher.lead}) instead of n^({known.size})")
    return known


def fall_back_to_bound(q: Query, known: Bracket) -> Bracket:
    """Returns the final bracket of a query. If the size is still undecided, the upper bound is the one that holds at
    every step, and ``why`` says why no certificate was found."""
    analysis, name, t = q
    notes = known.assumes & ASSUMPTIONS.keys()
    if known.decided:
        return replace(known, assumes=notes)
    high = analysis.upper(name) if t else None
    why = known.why or min(known.assumes - ASSUMPTIONS.keys(), default="") or explain_open(known.lead, high)
    return Bracket(known.low, high, None, notes, why)


def explain_open(lead: Fraction | None, high: Fraction | None) -> str:
    """Explains why a size is undecided, in one line: which power of n the largest monomials found have, and how large
    the other terms may be.

    Args:
        lead: exponent of the largest monomial that was found; None if none was.
        high: upper bound on the exponent of the size; None if there is none.
    """
    if lead is None:
        return WORK_LIMIT_REASON
    if high is not None and high <= lead:
        return f"{FOUND}n^({lead}) were found, which other terms may cancel"
    rest = "have no upper bound" if high is None else f"are only known to be at most n^({high})"
    return f"{FOUND}n^({lead}) were found, but other terms {rest}"


def read_leading_kernel(q: Query, known: Bracket, budgets: Sequence[Budget] = QUICK_BUDGETS) -> Bracket:
    """Returns the bracket with the largest monomial that any of the given budgets finds, or ``known`` if the monomial
    found before is larger. The result need not be certified: other terms may cancel this monomial.
    """
    analysis, name, t = q
    for budget in budgets:
        found = analysis.read(name, t, budget)
        if found.decided or known.lead is None or (found.lead is not None and found.lead > known.lead):
            known = found
        if found.decided or found.why:
            break
    return known


def recall_certified(q: Query, known: Bracket) -> Bracket:
    """Answers a query by its certified answer if it has been answered by ``CERTIFIED`` before; otherwise returns the
    bracket so far (``known``)."""
    return q.analysis(q.name, q.t) if q.analysis.is_certified(q.name, q.t) else known


RESTRICTED = Method("restricted runs", {"restricted runs": search_restricted_runs})
WITNESS = Method(
    "lower bound",
    {"exact zero": find_exact_zero, "restricted runs": RESTRICTED, "few monomials": search_few_monomials},
    cached=False,
)
CERTIFIED = Method(
    "certified",
    {
        "lower bound": use_lower_bound,
        "increasing budgets": increase_budget,
        "higher degrees": check_raised_degrees,
        "bound on every step": fall_back_to_bound,
    },
)
QUICKLY = Method(
    "quickly",
    {
        "earlier answer": recall_certified,
        "lower bound": use_lower_bound,
        "first budget": partial(increase_budget, budgets=BUDGETS[:1]),
    },
    cached=False,
)
MINIMAL = Method("minimal", {"smallest budget": partial(increase_budget, budgets=(SMALLEST_BUDGET,))}, cached=False)
LEAD = Method("lead", {"leading kernel": read_leading_kernel, "lower bound": use_lower_bound, "certified": CERTIFIED})
METHODS = (CERTIFIED, QUICKLY, LEAD, WITNESS, RESTRICTED, MINIMAL)
"""All methods. Their answers are, in this order: certified; certified if the first budget suffices; possibly
uncertified, for a search; a lower bound; a lower bound from restricted runs; certified if the smallest budget
suffices."""


def limit_lead(work: int, gap: Fraction = NEAR) -> Method:
    """Returns a method that finds the largest monomial of a quantity with little work. If one product takes more than
    this work, the size is unknown.

    Args:
        work: maximum number of nodes that the search for the monomials of one product may visit.
        gap: monomials whose exponent is this far below that of the largest are dropped. With 0 only the largest ones
            are kept, which is cheap and still gives a lower bound.
    """
    budget = replace(BUDGETS[0], gap=gap, max_nodes=work)
    return Method(f"lead within {work} at {gap}", {"leading kernel": partial(read_leading_kernel, budgets=(budget,))})
