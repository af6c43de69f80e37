"""Upper bounds on all sizes that hold after any number of updates, found without expanding products into monomials.

Changes of signals and gradients are represented by a bound on their size; initial tensors and initial signals are
exact. All bounds are exponents, packed into integers (``counting/packing.py``). The size of a product is bounded by
Cauchy-Schwarz or, if an initial tensor acts, by its operator norm (of all experts together if they act on one
vector). A function is bounded by its Lipschitz constant, a norm by its divisor before training, a step of signs by
its entries, and a step with orthogonalised matrices by its operator norm. If one more update does not exceed these
bounds, they hold at every later step, by induction. The output of a norm is O(1) for every argument. If the argument
may outgrow its initial size, or depends on the output of such a norm, a gradient through it has a bound only if a
lower bound on the divisor is known (``Analysis.bounds``).
Read next: ``analysis.py`` (compares answers with the bounds), ``proofs/every_step.py`` (demands at every step),
``counting/contracting.py`` (the bound of a product).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from fractions import Fraction
from functools import partial
from itertools import product
from math import ceil
from typing import TypeGuard

from scaling_algebra.counting.algebra import Algebra
from scaling_algebra.counting.kernels import Exhausted
from scaling_algebra.counting.signals import EntrySize, Scalar, Signal
from scaling_algebra.spec.networks.auxiliary import find_selection_inputs
from scaling_algebra.spec.networks.language import Factor, Function, Mode, Network, Product, Statement
from scaling_algebra.spec.networks.terms import expand_product, is_held

from .functions import mean_value, select_unbounded_change
from .norms import read_normed
from .parts import find_dependencies
from .products import Increment
from .quantities import Quantity
from .rules import find_rule
from .run import BeyondPowerCounting, Modes
from .steps import vanishes
from .trajectory import Trajectory
from .updates import TensorSteps

_MODES: tuple[Mode, ...] = ("init", "update")
ROUNDS = 6
"""Maximum number of passes over all bounds; if they still grow, there are no bounds. Those of the shipped networks
are constant after at most 4 passes."""
FAR = 8
"""Bounds above this multiple of the largest given exponent count as infinite. Bounds that grow without limit mostly
exceed it within two passes."""

Bounded = tuple[str, str]
"""Key of a bound: ``("change", signal)`` or ``("gradient", signal)``."""


class _BoundSteps(TensorSteps):
    """The optimizer steps of a training run in which every size is only bounded from above. A single update
    (``Increment``) stands for the sum of all updates so far, as an upper bound."""

    run: BoundRun

    def increments(self, role: str, t: int) -> list[Increment]:
        """Returns updates whose sizes bound the sum of all updates of a tensor. Exponents ignore a constant number of
        updates, so these bound a single update.

        The result is cached until one of the bounds from which it was computed grows.
        """
        if not t or role in self.point.frozen:
            return []
        if role not in self.run.updates_of:
            outer, self.run.read = self.run.read, set()
            self.run.updates_of[role] = self._make_update(role), self.run.read
            for key in self.run.read:
                self.run.update_readers[key].add(role)
            self.run.read = outer
        self.run.read |= self.run.updates_of[role][1]
        return self.run.updates_of[role][0]

    def _make_update(self, role: str) -> list[Increment]:
        """Returns increments whose sizes bound one update of a tensor; an empty list if the update is exactly zero.

        Raises:
            BeyondPowerCounting: the optimizer's steps have no bound.
        """
        rule, rates = self.optimizer.of(role), self.list_learning_rate(role)
        if self.point.b[role] is None and rule.constrains(self.network, role):
            return []
        if rule.keeps_norm:
            rates.append(self.measure_tensor(role, 0))
        elif rule.relative:
            raise BeyondPowerCounting(
                f"the steps of {rule.name} for {self.network.tensors[role].symbol} are relative to its size and have "
                "no upper bound"
            )
        if not rule.normalises:
            return self.make_increments(role, 1, tuple(rates))
        if rule.epsilon:  # the normaliser is at least epsilon, and at least the gradient
            epsilon = Scalar(f"1/eps of {role}", self.algebra.pack(self.point.d[role], {}, {f"d.{role}": 1}))
            largest = self.run.bound_gradient(role)
            if largest is None or self.algebra.exponent(largest + epsilon.size) <= 0:
                return self.make_increments(role, 1, (*rates, epsilon))
        if all(map(vanishes, self.run.gradient_factors(role, 1))):
            return []
        return self.check_constraint(role, [self._make_normalised(role, tuple(rates))])

    def find_nonlinear_share(self, role: str, step: int, scalars: tuple[Scalar, ...]) -> tuple[int, bool]:
        return self.divide_gradient(role, step, scalars), False

    def gradient_size(self, role: str, step: int) -> EntrySize:
        return EntrySize(self.run.bound_gradient(role))

    def _make_normalised(self, role: str, rates: tuple[Scalar, ...]) -> Increment:
        """Returns an increment that bounds one optimizer step of a tensor, if the normalisation alone determines its
        size: each entry is normalised (signs), or all singular values are (orthogonalised matrices).

        Law: the entries of a sign are 1. Each row and each column of an orthogonalised matrix has norm 1, so the matrix
        is bounded like a product of two vectors of norm 1. For an optimizer that preserves the norm of the tensor, the
        entries are 1 relative to it.
        """
        rule, live = self.optimizer.of(role), self.algebra.drop_fixed
        if rule.normalises == "entry":
            return Increment(1, rates, Signal(live(self.network.tensors[role].indices), {}, 0), ())
        one, sides = rule.matrix(self.network, role), list[Signal]()
        for indices in (one.rows, one.columns):
            powers: dict[str, Fraction] = {}
            for axis in (self.network.axes[x] for x in indices if live(x) and not rule.keeps_norm):
                powers[axis] = powers.get(axis, Fraction(0)) - Fraction(1, 2)
            sides.append(Signal(live(one.copies + indices), {}, self.algebra.pack_powers(powers)))
        return Increment(1, rates, sides[0], (sides[1],))


class BoundRun(Trajectory):
    """A training run in which changes and gradients are represented by upper bounds on their sizes, valid after any
    number of updates. Methods are called with ``t = 1``, which stands for every t > 0.

    Attributes:
        bounds: the upper bounds, as exponents of n packed into integers, by ``("change", signal)`` or ``("gradient",
            signal)``. A change or gradient without an entry is exactly zero.
        outgrown: maps each norm whose argument may outgrow its initial size to this argument.
        why: the reason why there are no bounds; "" if they hold.
        assumes: assumptions beyond power counting on which the bounds depend.
        read: keys of those ``bounds`` that the current computation has used.
        updates_of: maps a tensor to its cached updates and to the keys of the bounds from which they were computed.
        update_readers: maps the key of a bound to the tensors whose updates were computed from it.
    """

    stepping = _BoundSteps

    def __post_init__(self) -> None:
        super().__post_init__()
        self.bounds: dict[Bounded, int] = {}
        self._readers: defaultdict[Bounded, set[Bounded]] = defaultdict(set)
        self.update_readers: defaultdict[Bounded, set[str]] = defaultdict(set)
        self.read, self.updates_of = set[Bounded](), dict[str, tuple[list[Increment], set[Bounded]]]()
        self._made, self.why = dict[Hashable, Signal | None](), ""
        self.outgrown = dict[str, str]()
        scale = self.algebra.ray.largest
        # stands for a missing bound; it scales with the ray
        self._endless = self.algebra.pack(4 * scale * ceil(_growth_limit(self) / scale), {}, {})
        self.assumes: set[str] = set()

    def find_fixed_point(self) -> bool:
        """Increases the bounds, starting from zero, until one more update does not exceed them.

        A bound is recomputed only if a bound from which it was computed has grown.

        Returns:
            True if such bounds were found; False if they grow without limit.

        Raises:
            Exhausted: the size of a divisor is unknown, or a product takes too much work.
            BeyondPowerCounting: a rule has no bound.
        """
        value, passes, far = self.algebra.exponent, _list_updates(self), _growth_limit(self)
        stale, outgrown = set(passes), len(self.outgrown)
        for _ in range(ROUNDS):
            for key, update in passes.items():
                if key not in stale:
                    continue
                stale.remove(key)
                self.read = set()
                size = self.algebra.upper_bound(update())
                if size is not None and self.outgrown and key[0] == "gradient" and value(size) > far:
                    size = self._endless
                for x in self.read:
                    self._readers[x].add(key)
                if size is not None and (key not in self.bounds or value(size) > value(self.bounds[key])):
                    if value(size) > far and size != self._endless:
                        return False
                    self.bounds[key] = size
                    stale |= self._readers[key]
                    for role in self.update_readers.pop(key, ()):
                        self.updates_of.pop(role, None)
                if len(self.outgrown) > outgrown:  # divisors of norms computed from this one may differ, too
                    stale, outgrown, self.updates_of = set(passes), len(self.outgrown), {}
            if not stale:
                return True
        return False

    def settle(self) -> None:
        """Computes upper bounds that one more update does not exceed. If there are none, sets ``why`` to the reason."""
        try:
            with self.algebra.collect_notes() as self.assumes:
                self.why = "" if self.find_fixed_point() else "found no upper bounds that hold at every step"
        except (Exhausted, BeyondPowerCounting) as reason:
            self.why = f"undecided: {str(reason) or 'bounding a product takes too much work'}"
        if self.why and self.outgrown:
            norm, source = next(iter(self.outgrown.items()))
            self.why = f"undecided: {_explain_outgrown(source, norm)}"

    def bound_quantity(self, quantity: Quantity) -> int | None:
        """Returns an upper bound on a quantity after any number of updates, as an exponent of n packed into an integer;
        None if the quantity is exactly zero.

        Raises:
            BeyondPowerCounting: the divisor of a norm has no lower bound.
        """
        size = self._bound_quantity(quantity)
        if size is not None and self.outgrown and self.algebra.exponent(size) > _growth_limit(self):
            norm, source = next(iter(self.outgrown.items()))
            raise BeyondPowerCounting(_explain_outgrown(source, norm))
        return size

    def _bound_quantity(self, quantity: Quantity) -> int | None:
        """Returns the same as ``bound_quantity``, but where the divisor of a norm has no lower bound, it returns a very
        large exponent that stands for "unbounded"."""
        if not quantity.tensor:
            return self.algebra.upper_bound(quantity.read(self, 1))
        if quantity.name.startswith("g"):
            return self.bound_gradient(quantity.tensor)
        steps = self.steps.increments(quantity.tensor, 1)
        return self._bound_entries(((x.factors, x.scalars) for x in steps), quantity.tensor)

    def bound_gradient(self, role: str) -> int | None:
        """Returns an upper bound on the entries of the gradient of a tensor, as an exponent of n packed into an
        integer; None if the gradient is exactly zero."""
        return self._bound_entries(((factors, ()) for factors in self.gradient_factors(role, 1)), role)

    def _bound_entries(
        self, products: Iterable[tuple[tuple[Signal, ...], tuple[Scalar, ...]]], role: str
    ) -> int | None:
        """Returns an upper bound on the entries of a sum of products, as an exponent of n packed into an integer; None
        if all products are exactly zero.

        Args:
            products: for each product the signals and the scalars that are multiplied.
            role: the parameter, whose indices each entry of the sum has.
        """
        totals = []
        for factors, scalars in products:
            sizes = [self.algebra.upper_bound(s) for s in self.products.expand_entries(role, factors)]
            if None not in sizes:
                totals.append(sum(x for x in sizes if x is not None) + sum(x.size for x in scalars))
        return max(totals, key=self.algebra.exponent, default=None)

    # functions -------------------------------------------------------------------------------------------------

    def compute_change(self, s: Statement, t: int) -> Signal:
        """Returns a signal whose size bounds the change of a statement's output after any number of updates.

        Law: with a constant C, |f(x) - f(x_0)| <= C |x - x_0| for every function f that a network may use, and <= C if
        f is bounded or a norm. A top-K selection may choose other entries after an update; these change by at most C.
        """
        if not _has_bounded_slope(s):
            return find_rule(s).change(self, s, 1)
        moved = self.algebra.upper_bound(self.read_factor(s.inputs[0], "change", 1))
        if moved is None:
            return self.algebra.zeros(self.network.signals[s.out])
        if s.kind.selects:
            moved = 0
        if s.kind.kind == "norm":
            return self._make_bounded(s.out, min(0, self._find_factor(s) + moved, key=self.algebra.exponent))
        return self._make_bounded(
            s.out, self._find_factor(s) + (min(0, moved, key=self.algebra.exponent) if s.kind.bounded else moved)
        )

    def adjoint(self, s: Function, above: Signal) -> Signal:
        """Returns a signal whose size bounds the gradient at the argument of an elementwise function, a softmax or a
        norm, given the gradient ``above`` at its output."""
        size = self.algebra.upper_bound(above)
        if size is None:
            return self.algebra.zeros(self.network.signals[s.out])
        size += self._find_factor(s)
        if s.out in self.outgrown and s.out in self.context.divisors:
            size = max(size, self.context.divisors[s.out].gradient, key=self.algebra.exponent)
        return self._make_bounded(s.out, size)

    def divide_by_norm(self, function: Function, signal: Signal, t: int) -> Signal:
        if function.out not in find_affected_norms(self):
            return super().divide_by_norm(function, signal, t)
        return self.algebra.scale_by(
            signal, Scalar(f"1/rms of {function.inputs[0].name}", _inverse_divisor(self, function))
        )

    def _find_factor(self, s: Function) -> int:
        """Returns the size of the slope of a function, which bounds how much it enlarges changes and gradients:
        1/(number of entries) for a softmax along an index that grows, 1/divisor for a norm, otherwise 1. It is an
        exponent of n packed into an integer.

        Law: a norm divides by the initial size of its argument, unless the change of the argument is larger. If the
        argument of a softmax is O(1), and has no heavy tails along an index that grows, all outputs of the softmax
        have the same size up to constants. Under the same condition, exp has bounded moments.

        Raises:
            BeyondPowerCounting: the argument of a softmax or exp may grow, or has heavy tails.
            Exhausted: the initial size of a norm's argument is not certified.
        """
        assert s.source
        moved = self.algebra.upper_bound(self.read_factor(s.source, "change", 1))
        if s.kind.kind == "norm":
            first = read_normed(self, s, "initial", 0)
            size = self.algebra.rms(first)
            if size is None or not self.algebra.is_certified(first):
                raise Exhausted
            if moved is not None and self.algebra.exponent(moved) > self.algebra.exponent(size):
                self.outgrown[s.out] = s.source.name
            return -size if s.out not in find_affected_norms(self) else _inverse_divisor(self, s)
        if s.kind.kind == "softmax" or s.kind.steep:
            start, value = self.algebra.upper_bound(self.read_factor(s.source, "initial", 0)), self.algebra.exponent
            if any(x is not None and value(x) > 0 for x in (start, moved)):
                read = "argument" if s.kind.steep else "logits"
                raise BeyondPowerCounting(f"{s.source.name}, the {read} of {s.out}, may grow beyond O(1)")
            if s.kind.spared:
                self.note("bounded-logits")
            elif any(map(self.grows, s.over or self.network.signals[s.out])) and (
                self.tails.initial_degree(s.source.name) > 1
                or _may_reach_one(self.algebra, select_unbounded_change(self, s, 1))
            ):
                unless = "" if s.kind.steep else f" ({s.kind.named_bounded} assumes that it has none)"
                raise BeyondPowerCounting(f"{s.source.name} may have heavy tails along an index that grows{unless}")
        return self.algebra.rms(mean_value(self, s)) or 0

    def _make_bounded(self, signal: str, size: int) -> Signal:
        """Returns a signal with the indices of the signal named ``signal``, of which only an upper bound on its size is
        known."""
        return Signal(self.algebra.drop_fixed(self.network.signals[signal]), {}, size)

    # signals ---------------------------------------------------------------------------------------------------

    def value(self, signal: str, t: int) -> Signal:
        if t == 0 or self.network.producer(signal) is None:
            return super().value(signal, t)
        return self.algebra.add([self.initial(signal), self.change(signal, t)])

    def change(self, signal: str, t: int) -> Signal:
        if t == 0 or self.network.producer(signal) is None:
            return super().change(signal, t)
        return self._read_bound("change", signal)

    def gradient(self, signal: str, t: int, modes: Modes | None = None, via: str = "") -> Signal:
        if modes or via or not self.network.consumers(signal):
            return super().gradient(signal, t, modes, via)
        return self._read_bound("gradient", signal)

    def transpose_product(
        self, statement: Product, k: int, above: Signal, t: int, modes: Modes, out: str | None = None
    ) -> Signal:
        """Returns the gradient at the k-th factor of a product, as in ``TrainingRun``.

        If the output of the product is used only in a weighted sum over experts, the gradient at this output
        (``above``) is replaced by its own factors: the gradient at the sum, and the weights. Then the initial tensor of
        all experts acts on one vector, the gradient at the sum, and the bound is sharper.
        """
        written = [] if modes else _expand_gradient(self, statement.out, t)
        if not written:
            return super().transpose_product(statement, k, above, t, modes, out)
        parts, out = [], statement.factors[k].indices if out is None else out
        for term in expand_product(self.network, statement, without=k):
            others = [
                *(self.read_factor(x, "value", t) for x in term.signals),
                *(_read_gate(self, x, t) for x in term.weights),
            ]
            for mode in product(*[_MODES] * len(term.tensors)):
                parts.append(
                    self.products.multiply_term(term, mode, written, others, out, partial(self.steps.increments, t=t))
                )
        return self.algebra.add(parts)

    def _read_bound(self, what: str, signal: str) -> Signal:
        """Returns an unknown signal whose size is the current bound on a change or a gradient, and records that this
        bound was used.

        Args:
            what: "change" or "gradient".
            signal: name of the signal.
        """
        self.read.add((what, signal))
        indices = self.algebra.drop_fixed(self.network.signals[signal])
        zero = dict.fromkeys(_find_zero_sum_indices(self.network, what, signal) & set(indices), Signal(indices, {}))
        return Signal(indices, {}, self.bounds.get((what, signal)), name=f"{what} of {signal}", without_centred=zero)

    def _gradient(self, signal: str, t: int, modes: Modes, via: str) -> Signal:
        if signal in find_selection_inputs(self.network):
            return self._make_bounded(signal, 0)
        uses = [(s, k) for s, k in self.network.consumers(signal) if via in ("", s.out)]
        if not t or not any(_has_bounded_slope(s) for s, _ in uses):
            return super()._gradient(signal, t, modes, via)
        paths = []
        for s, k in uses:
            above = self.gradient(s.out, t, modes)
            passed = (
                self.adjoint(s, above) if _has_bounded_slope(s) else find_rule(s).adjoint(self, s, k, above, t, modes)
            )
            paths.append(self.algebra.rename_indices(passed, s.inputs[k].indices, self.network.signals[signal]))
        return self.algebra.add(paths)

    def compute_once(self, rule: Hashable, signal: Signal, compute: Callable[[], Signal]) -> Signal:
        if (key := (rule, signal.content)) not in self._made:
            made = compute()
            self._made[key] = None if made is signal else made
        return self._made[key] or signal

    def change_via(self, signal: str, t: int, via: str) -> Signal:
        """Returns an upper bound on the part of the change of a signal ``W x`` that comes from gradients on one path: W
        is updated by those gradients only that came through the signal ``via``.

        Raises:
            BeyondPowerCounting: the optimizer divides the step by the size of the whole gradient, which may be smaller
                than its part through ``via``.
        """
        statement = self.network.producer(signal)
        assert isinstance(statement, Product) and statement.tensor
        rule = self.optimizer.of(statement.tensor.name)
        if rule.normalises and not rule.epsilon:
            raise BeyondPowerCounting(
                f"{rule.name} divides by the size of the whole gradient, so a part of it has no upper bound"
            )
        return super().change_via(signal, t, via)


def _has_bounded_slope(s: Statement) -> TypeGuard[Function]:
    """Whether a statement is an elementwise function, a softmax or a norm, whose change and gradient are bounded by its
    slope. Statements of other kinds are bounded by their training rules (``rules.py``)."""
    return isinstance(s, Function) and s.kind.kind in ("entrywise", "softmax", "norm")


def find_affected_norms(run: BoundRun) -> frozenset[str]:
    """Returns the outputs of the norms whose divisor after an update may differ from the initial one: norms whose
    argument may outgrow its initial size, and all norms that are computed from their outputs."""
    norms = (s for s in run.network.functions if s.kind.kind == "norm")
    return frozenset(s.out for s in norms if not find_dependencies(run.network, s.out).isdisjoint(run.outgrown))


def find_changed_norms(run: BoundRun) -> dict[str, str]:
    """Returns the norms whose divisor may change during training (``find_affected_norms``), as a map from the output of
    each norm to its argument. Omitted are norms with a lower bound on the divisor that holds at every step, unless
    their own argument may outgrow its initial size.
    """
    shaken = find_affected_norms(run)
    norms = {s.out: s.inputs[0].name for s in run.network.functions if s.out in shaken}
    return {x: y for x, y in norms.items() if x in run.outgrown or x not in run.context.divisors}


def _inverse_divisor(run: BoundRun, s: Function) -> int:
    """Returns an upper bound on 1/divisor after any update, as an exponent of n packed into an integer, for a norm
    whose divisor may change during training (``find_affected_norms``). If nothing is known about the divisor, it is a
    very large exponent that stands for "unbounded"."""
    known = run.context.divisors.get(s.out)
    return run._endless if known is None else -known.size


def _growth_limit(run: BoundRun) -> Fraction:
    """Returns the exponent above which a bound counts as unbounded: ``FAR`` times the largest of the rates of the axes
    and the exponents of init stds, learning rates, epsilons and multipliers."""
    p = run.point
    exponents = (*p.b.values(), *p.c.values(), *p.d.values(), *p.multipliers.values())
    return FAR * max(run.algebra.ray.largest, *(abs(x) for x in exponents if x is not None))


def _explain_outgrown(source: str, norm: str) -> str:
    """Returns the message that says that the argument of a norm (the signal ``source``) may outgrow its initial
    size.
    """
    return f"{source} may outgrow its initial size, by which {norm} divides it"


def _list_updates(run: BoundRun) -> dict[Bounded, Callable[[], Signal]]:
    """Returns the functions that recompute the bounds, by the key of the bound (``("change", signal)`` or
    ``("gradient", signal)``): changes in the order of the forward pass, then gradients in the order of the backward
    pass."""
    passes: dict[Bounded, Callable[[], Signal]] = {}
    for statement in run.network.statements:
        passes["change", statement.out] = partial(run.compute_change, statement, 1)
    for statement in reversed(run.network.statements):
        if run.network.consumers(statement.out):
            passes["gradient", statement.out] = partial(run._gradient, statement.out, 1, {}, "")
    return passes


def _expand_gradient(run: BoundRun, signal: str, t: int) -> list[Signal]:
    """Returns the factors of the gradient at a signal, if the signal is used once, in a product with weights but no
    tensor: for ``y[a] = sum_i p[i] x[i,a]``, the gradient at x is the gradient at y times p. Otherwise returns an empty
    list."""
    readers = run.network.consumers(signal)
    if len(readers) != 1:
        return []
    ((reader, at),) = readers
    if not isinstance(reader, Product) or reader.tensor:
        return []
    indices, gates = reader.factors[at].indices, [x for k, x in enumerate(reader.factors) if k != at]
    above = run.network.signals[reader.out]
    if indices != run.network.signals[signal] or not set(indices).issuperset(
        above.join(x.indices for x in gates) + above
    ):
        return []
    factors = [run.gradient(reader.out, t), *(_read_gate(run, x, t) for x in gates)]
    return [run.products.apply_multipliers(factors[0], reader.multipliers), *factors[1:]]


def _read_gate(run: BoundRun, factor: Factor, t: int) -> Signal:
    """Returns the value after t updates of a factor (a signal, not a tensor) of a product. For a gate that is
    represented by its mean, this is the initial value.
    """
    return run.read_factor(factor, "initial" if is_held(run.network, factor.name) else "value", t)


def _find_zero_sum_indices(network: Network, what: str, signal: str) -> set[str]:
    """Returns the indices over which the change of a signal (``what`` = "change") or the gradient at it ("gradient")
    sums to zero: changes of the outputs of a softmax do, and gradients at its argument (the logits)."""
    statements = [network.producer(signal)] if what == "change" else [s for s, _ in network.consumers(signal)]
    if not all(isinstance(s, Function) and s.kind.kind == "softmax" and not s.kind.selects for s in statements):
        return set()
    return set.intersection(*({s.over} for s in statements if isinstance(s, Function)))


def _may_reach_one(algebra: Algebra, s: Signal) -> bool:
    """Whether the upper bound on the size of a signal is n^0 or larger, so that the signal need not be small."""
    size = algebra.upper_bound(s)
    return size is not None and algebra.exponent(size) >= 0
