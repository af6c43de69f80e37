"""Upper bounds on every size that hold after any number of updates, without counting a matching.

Of the changes of signals and of the gradients only a bound on their size is kept; initial tensors and initial signals
are exact. A product is bounded by Cauchy-Schwarz and, where an initial tensor acts, by its operator norm: that of all
experts at once where they act on one vector. A function is bounded by its Lipschitz constant and its slope, a norm by
what it divides by at the start, a step of signs by its entries and one of singular directions by its operator norm. If
one more update from these bounds does not exceed them, they hold at every later step, by induction.
What a norm makes is O(1) whatever it reads. Where its argument may outgrow the start, or is made of what such a norm
makes, a gradient through it is bounded if a lower bound on what it divides by is known (``Analysis.bounds``), else not.
Read next: ``analysis.py`` (holds answers against them), ``proofs/every_step.py`` (what is demanded at every step),
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

from .functions import mean, unbounded
from .norms import normed
from .parts import ancestors
from .products import Increment
from .quantities import Quantity
from .rules import rule
from .run import BeyondPowerCounting, Modes
from .steps import vanishes
from .trajectory import Trajectory
from .updates import TensorSteps

_BOTH: tuple[Mode, ...] = ("init", "update")
ROUNDS = 6
"""Updates of the bounds, before they count as growing without end; on the networks that ship they settle within 4."""
FAR = 8
"""Times the largest exponent that is given: what a bound exceeds that grows without end, most within two updates."""

Bounded = tuple[str, str]
"""A bounded thing: ``("change", signal)`` or ``("gradient", signal)``."""


class _BoundSteps(TensorSteps):
    """One step that stands for all so far."""

    run: BoundRun

    def of(self, role: str, t: int) -> list[Increment]:
        """All updates so far: as many as one for the exponents. They are made again where a bound that they read has
        grown."""
        if not t or role in self.point.frozen:
            return []
        if role not in self.run.stepped:
            outer, self.run.read = self.run.read, set()
            self.run.stepped[role] = self._updated(role), self.run.read
            for key in self.run.read:
                self.run.steppers[key].add(role)
            self.run.read = outer
        self.run.read |= self.run.stepped[role][1]
        return self.run.stepped[role][0]

    def _updated(self, role: str) -> list[Increment]:
        rule, rates = self.optimizer.of(role), self.learning_rate(role)
        if self.point.b[role] is None and rule.constrains(self.network, role):
            return []
        if rule.keeps_norm:
            rates.append(self.size(role, 0))
        elif rule.relative:
            raise BeyondPowerCounting("steps that are relative to the size of a tensor have no bound")
        if not rule.normalises:
            return self.stepped(role, 1, tuple(rates))
        if rule.epsilon:  # a normaliser is at least epsilon, and at least the gradient
            epsilon = Scalar(f"1/eps of {role}", self.algebra.pack(self.point.d[role], {}, {f"d.{role}": 1}))
            largest = self.run.gradient_bound(role)
            if largest is None or self.algebra.value(largest + epsilon.size) <= 0:
                return self.stepped(role, 1, (*rates, epsilon))
        if all(map(vanishes, self.run.factors(role, 1))):
            return []
        return self.within(role, [self._normalised(role, tuple(rates))])

    def curved(self, role: str, step: int, scalars: tuple[Scalar, ...]) -> tuple[int, bool]:
        return self.divided(role, step, scalars), False

    def gradient_size(self, role: str, step: int) -> EntrySize:
        return EntrySize(self.run.gradient_bound(role))

    def _normalised(self, role: str, rates: tuple[Scalar, ...]) -> Increment:
        """A step that is normalised altogether, by its entries or by its operator norm.

        Law: entries of a sign are 1; of singular directions each row and column has norm 1, so they act as the product
        of two vectors of that norm; relative to the norm of a tensor their entries are 1, too.
        """
        rule, live = self.optimizer.of(role), self.algebra.live
        if rule.normalises == "entry":
            return Increment(1, rates, Signal(live(self.network.tensors[role].indices), {}, 0), ())
        one, sides = rule.matrix(self.network, role), list[Signal]()
        for indices in (one.rows, one.columns):
            powers: dict[str, Fraction] = {}
            for axis in (self.network.axes[x] for x in indices if live(x) and not rule.keeps_norm):
                powers[axis] = powers.get(axis, Fraction(0)) - Fraction(1, 2)
            sides.append(Signal(live(one.copies + indices), {}, self.algebra.scale(powers)))
        return Increment(1, rates, sides[0], (sides[1],))


class BoundRun(Trajectory):
    """Training after any number of updates: ``t = 1`` stands for every later step.

    Attributes:
        bounds: packed bounds known so far, on what is not exactly zero.
        outgrown: norms whose argument may become larger than it is at the start, each with that argument.
        why: what stands in the way of bounds; empty if they hold.
        assumes: what they rest on beyond counting powers.
        stepped: the updates of a tensor, and the bounds that they were made from.
        steppers: bound -> the tensors whose updates were made from it.
    """

    stepping = _BoundSteps

    def __post_init__(self) -> None:
        super().__post_init__()
        self.bounds: dict[Bounded, int] = {}
        self._readers: defaultdict[Bounded, set[Bounded]] = defaultdict(set)
        self.steppers: defaultdict[Bounded, set[str]] = defaultdict(set)
        self.read, self.stepped = set[Bounded](), dict[str, tuple[list[Increment], set[Bounded]]]()
        self._made, self.why = dict[Hashable, Signal | None](), ""
        self.outgrown = dict[str, str]()
        scale = self.algebra.ray.largest  # on a multiple of a ray it is that multiple
        self._endless = self.algebra.pack(4 * scale * ceil(_far(self) / scale), {}, {})  # stands for no bound
        self.assumes: set[str] = set()

    def settled(self) -> bool:
        """Updates the bounds, from zero upwards, until one more update keeps them; False if they grow without end.

        A bound is updated again where one that it was read from has grown.

        Raises:
            Exhausted: what is divided by is not known, or a product takes too much work.
            BeyondPowerCounting: a rule has no bound.
        """
        value, passes, far = self.algebra.value, _passes(self), _far(self)
        stale, outgrown = set(passes), len(self.outgrown)
        for _ in range(ROUNDS):
            for key, update in passes.items():
                if key not in stale:
                    continue
                stale.remove(key)
                self.read = set()
                size = self.algebra.bound(update())
                if size is not None and self.outgrown and key[0] == "gradient" and value(size) > far:
                    size = self._endless
                for x in self.read:
                    self._readers[x].add(key)
                if size is not None and (key not in self.bounds or value(size) > value(self.bounds[key])):
                    if value(size) > far and size != self._endless:
                        return False
                    self.bounds[key] = size
                    stale |= self._readers[key]
                    for role in self.steppers.pop(key, ()):
                        self.stepped.pop(role, None)
                if len(self.outgrown) > outgrown:  # norms behind it divide by something else, too
                    stale, outgrown, self.stepped = set(passes), len(self.outgrown), {}
            if not stale:
                return True
        return False

    def settle(self) -> None:
        """Looks for bounds that one more update keeps, and keeps why there are none."""
        try:
            with self.algebra.accounting() as self.assumes:
                self.why = "" if self.settled() else "no bounds that one more update keeps were found"
        except (Exhausted, BeyondPowerCounting) as reason:
            self.why = f"undecided: {str(reason) or 'the bounds of a product take too much work'}"
        if self.why and self.outgrown:
            norm, source = next(iter(self.outgrown.items()))
            self.why = f"undecided: {_outgrows(source, norm)}"

    def largest(self, quantity: Quantity) -> int | None:
        """Packed bound on the size of a quantity at every step; None for exactly zero.

        Raises:
            BeyondPowerCounting: what a norm divides by has no lower bound.
        """
        size = self._largest(quantity)
        if size is not None and self.outgrown and self.algebra.value(size) > _far(self):
            norm, source = next(iter(self.outgrown.items()))
            raise BeyondPowerCounting(_outgrows(source, norm))
        return size

    def _largest(self, quantity: Quantity) -> int | None:
        if not quantity.tensor:
            return self.algebra.bound(quantity.read(self, 1))
        if quantity.name.startswith("g"):
            return self.gradient_bound(quantity.tensor)
        steps = self.steps.of(quantity.tensor, 1)
        return self._entries(((x.factors, x.scalars) for x in steps), quantity.tensor)

    def gradient_bound(self, role: str) -> int | None:
        """Packed bound on the entries of the gradient of a tensor."""
        return self._entries(((factors, ()) for factors in self.factors(role, 1)), role)

    def _entries(self, products: Iterable[tuple[tuple[Signal, ...], tuple[Scalar, ...]]], role: str) -> int | None:
        """Packed bound on the entries of a sum of products in the letters of a tensor."""
        totals = []
        for factors, scalars in products:
            sizes = [self.algebra.bound(s) for s in self.products.entries(role, factors)]
            if None not in sizes:
                totals.append(sum(x for x in sizes if x is not None) + sum(x.size for x in scalars))
        return max(totals, key=self.algebra.value, default=None)

    # functions -------------------------------------------------------------------------------------------------

    def moved(self, s: Statement, t: int) -> Signal:
        """The change of a statement's output after one more update.

        Law: |f(x) - f(x_0)| <= C |x - x_0| for all functions of the language, and <= C where they are bounded, as what
        a norm makes is; a selection that may be drawn anew changes what it selects altogether.
        """
        if not _bounded(s):
            return rule(s).change(self, s, 1)
        moved = self.algebra.bound(self.at(s.inputs[0], "change", 1))
        if moved is None:
            return self.algebra.nothing(self.network.signals[s.out])
        if s.kind.selects:
            moved = 0
        if s.kind.kind == "norm":
            return self._sized(s.out, min(0, self._share(s) + moved, key=self.algebra.value))
        return self._sized(s.out, self._share(s) + (min(0, moved, key=self.algebra.value) if s.kind.bounded else moved))

    def adjoint(self, s: Function, above: Signal) -> Signal:
        """The gradient at the argument of a function: slopes are bounded."""
        size = self.algebra.bound(above)
        if size is None:
            return self.algebra.nothing(self.network.signals[s.out])
        size += self._share(s)
        if s.out in self.outgrown and s.out in self.context.divisors:
            size = max(size, self.context.divisors[s.out].gradient, key=self.algebra.value)
        return self._sized(s.out, size)

    def divide_by_norm(self, function: Function, signal: Signal, t: int) -> Signal:
        if function.out not in find_shaken(self):
            return super().divide_by_norm(function, signal, t)
        return self.algebra.scaled(signal, Scalar(f"1/rms of {function.inputs[0].name}", _turned(self, function)))

    def _share(self, s: Function) -> int:
        """Packed size of what a function multiplies by: the share of one entry of a softmax, one over the divisor of a
        norm.

        Law: a norm divides by what its argument is at the start, if the change of that is not larger; shares of a
        softmax are alike up to constants, and exp has bounded moments, while the argument is O(1) and, where an index
        grows, has no heavy tails.

        Raises:
            BeyondPowerCounting: the argument may become larger than that, or have heavy tails.
        """
        assert s.source
        moved = self.algebra.bound(self.at(s.source, "change", 1))
        if s.kind.kind == "norm":
            first = normed(self, s, "initial", 0)
            size = self.algebra.rms(first)
            if size is None or not self.algebra.certified(first):
                raise Exhausted
            if moved is not None and self.algebra.value(moved) > self.algebra.value(size):
                self.outgrown[s.out] = s.source.name
            return -size if s.out not in find_shaken(self) else _turned(self, s)
        if s.kind.kind == "softmax" or s.kind.steep:
            start, value = self.algebra.bound(self.at(s.source, "initial", 0)), self.algebra.value
            if any(x is not None and value(x) > 0 for x in (start, moved)):
                read = "argument" if s.kind.steep else "logits"
                raise BeyondPowerCounting(f"{s.source.name}, the {read} of {s.out}, may grow")
            if s.kind.spared:
                self.note("bounded-logits")
            elif any(map(self.grows, s.over or self.network.signals[s.out])) and (
                self.tails.initial(s.source.name) > 1 or _reaches(self.algebra, unbounded(self, s, 1))
            ):
                unless = "" if s.kind.steep else f" ({s.kind.named_bounded} assumes it has not)"
                raise BeyondPowerCounting(f"{s.source.name} may have heavy tails along an index that grows{unless}")
        return self.algebra.rms(mean(self, s)) or 0

    def _sized(self, signal: str, size: int) -> Signal:
        """A signal of which only a bound on the size is known."""
        return Signal(self.algebra.live(self.network.signals[signal]), {}, size)

    # what is known ---------------------------------------------------------------------------------------------

    def value(self, signal: str, t: int) -> Signal:
        if t == 0 or self.network.producer(signal) is None:
            return super().value(signal, t)
        return self.algebra.add([self.initial(signal), self.change(signal, t)])

    def change(self, signal: str, t: int) -> Signal:
        if t == 0 or self.network.producer(signal) is None:
            return super().change(signal, t)
        return self._bounded("change", signal)

    def gradient(self, signal: str, t: int, modes: Modes | None = None, via: str = "") -> Signal:
        if modes or via or not self.network.consumers(signal):
            return super().gradient(signal, t, modes, via)
        return self._bounded("gradient", signal)

    def transposed(
        self, statement: Product, k: int, above: Signal, t: int, modes: Modes, out: str | None = None
    ) -> Signal:
        """As for the exact run, but the gradient above is written out where a weighted sum is all that reads the
        statement: there an initial tensor of all experts meets the gradient of the sum, one vector."""
        written = [] if modes else _written(self, statement.out, t)
        if not written:
            return super().transposed(statement, k, above, t, modes, out)
        parts, out = [], statement.factors[k].indices if out is None else out
        for term in expand_product(self.network, statement, without=k):
            others = [*(self.at(x, "value", t) for x in term.signals), *(_gate(self, x, t) for x in term.weights)]
            for mode in product(*[_BOTH] * len(term.tensors)):
                parts.append(self.products.written(term, mode, written, others, out, partial(self.steps.of, t=t)))
        return self.algebra.add(parts)

    def _bounded(self, what: str, signal: str) -> Signal:
        self.read.add((what, signal))
        indices = self.algebra.live(self.network.signals[signal])
        zero = dict.fromkeys(_sums_to_zero(self.network, what, signal) & set(indices), Signal(indices, {}))
        return Signal(indices, {}, self.bounds.get((what, signal)), name=f"{what} of {signal}", centred=zero)

    def _gradient(self, signal: str, t: int, modes: Modes, via: str) -> Signal:
        if signal in find_selection_inputs(self.network):
            return self._sized(signal, 0)
        uses = [(s, k) for s, k in self.network.consumers(signal) if via in ("", s.out)]
        if not t or not any(_bounded(s) for s, _ in uses):
            return super()._gradient(signal, t, modes, via)
        paths = []
        for s, k in uses:
            above = self.gradient(s.out, t, modes)
            passed = self.adjoint(s, above) if _bounded(s) else rule(s).adjoint(self, s, k, above, t, modes)
            paths.append(self.algebra.relabelled(passed, s.inputs[k].indices, self.network.signals[signal]))
        return self.algebra.add(paths)

    def once(self, rule: Hashable, signal: Signal, compute: Callable[[], Signal]) -> Signal:
        if (key := (rule, signal.content)) not in self._made:
            made = compute()
            self._made[key] = None if made is signal else made
        return self._made[key] or signal

    def change_via(self, signal: str, t: int, via: str) -> Signal:
        """The part of a step that came by one path: a part of a gradient may be larger than the whole, and a step that
        is normalised altogether divides by that."""
        statement = self.network.producer(signal)
        assert isinstance(statement, Product) and statement.tensor
        rule = self.optimizer.of(statement.tensor.name)
        if rule.normalises and not rule.epsilon:
            raise BeyondPowerCounting(f"a part of a step of {rule.name} has no bound")
        return super().change_via(signal, t, via)


def _bounded(s: Statement) -> TypeGuard[Function]:
    """Is a statement a function whose slope is bounded? Others are bounded as their rule says."""
    return isinstance(s, Function) and s.kind.kind in ("entrywise", "softmax", "norm")


def find_shaken(run: BoundRun) -> frozenset[str]:
    """Returns the norms that may be outgrown, and those behind: an update may take away what they divide by."""
    norms = (s for s in run.network.functions if s.kind.kind == "norm")
    return frozenset(s.out for s in norms if not ancestors(run.network, s.out).isdisjoint(run.outgrown))


def find_unsettled(run: BoundRun) -> dict[str, str]:
    """Returns the norms that divide by something else after an update than at the start, or may do so, each with its
    argument."""
    shaken = find_shaken(run)
    norms = {s.out: s.inputs[0].name for s in run.network.functions if s.out in shaken}
    return {x: y for x, y in norms.items() if x in run.outgrown or x not in run.context.divisors}


def _turned(run: BoundRun, s: Function) -> int:
    """Returns a packed bound on one over what a norm divides by after an update, where that is not what it starts
    with."""
    known = run.context.divisors.get(s.out)
    return run._endless if known is None else -known.size


def _far(run: BoundRun) -> Fraction:
    """An exponent that a bound which settles stays below."""
    p = run.point
    exponents = (*p.b.values(), *p.c.values(), *p.d.values(), *p.multipliers.values())
    return FAR * max(run.algebra.ray.largest, *(abs(x) for x in exponents if x is not None))


def _outgrows(source: str, norm: str) -> str:
    return f"{source} may outgrow what {norm} divides it by at the start"


def _passes(run: BoundRun) -> dict[Bounded, Callable[[], Signal]]:
    """The update of every bound, in the order of a forward and a backward pass."""
    passes: dict[Bounded, Callable[[], Signal]] = {}
    for statement in run.network.statements:
        passes["change", statement.out] = partial(run.moved, statement, 1)
    for statement in reversed(run.network.statements):
        if run.network.consumers(statement.out):
            passes["gradient", statement.out] = partial(run._gradient, statement.out, 1, {}, "")
    return passes


def _written(run: BoundRun, signal: str, t: int) -> list[Signal]:
    """The gradient at a signal as a product, where all that reads it is a product with gates."""
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
    factors = [run.gradient(reader.out, t), *(_gate(run, x, t) for x in gates)]
    return [run.products.multiplied(factors[0], reader.multipliers), *factors[1:]]


def _gate(run: BoundRun, factor: Factor, t: int) -> Signal:
    return run.at(factor, "initial" if is_held(run.network, factor.name) else "value", t)


def _sums_to_zero(network: Network, what: str, signal: str) -> set[str]:
    """Letters along which a change of shares, or the gradient at what shares are made of, sums to zero."""
    statements = [network.producer(signal)] if what == "change" else [s for s, _ in network.consumers(signal)]
    if not all(isinstance(s, Function) and s.kind.kind == "softmax" and not s.kind.selects for s in statements):
        return set()
    return set.intersection(*({s.over} for s in statements if isinstance(s, Function)))


def _reaches(algebra: Algebra, s: Signal) -> bool:
    size = algebra.bound(s)
    return size is not None and algebra.value(size) >= 0
