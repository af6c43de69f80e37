"""Functions under training: entry by entry, with a selection, or a softmax along an index.

Read next: ``norms.py`` (functions that divide by the size of what they read), ``rules.py`` (all kinds of statements).
"""

from __future__ import annotations

from scaling_algebra.counting.kernels import INDICATOR, Exhausted
from scaling_algebra.counting.signals import Scalar, Signal
from scaling_algebra.spec.networks.ancestors import is_linear
from scaling_algebra.spec.networks.auxiliary import find_selection_inputs
from scaling_algebra.spec.networks.indices import count_multiplicity, reads_normed
from scaling_algebra.spec.networks.language import Function, Product, Statement

from .run import BeyondPowerCounting, Modes, TrainingRun, Which


class Entrywise:
    """A function as the generic polynomial of its parity class.

    Law: f(x) = sum_p c_p x^p with generic c_p; so df = sum_p c_p sum_j x_0^j x_t^(p-1-j) dx and f' = sum_p p c_p
    x^(p-1). As x_t = x_0 + dx has every kernel of x_0, that sum over j is x_t^(p-1) up to constants, and df is f' dx.
    Every power above the first is over the size of the argument where a function is homogeneous, and where it is not
    bounded and its argument is beyond O(1).
    """

    whole = True
    """The function sees all of its argument."""

    def value(self, tr: TrainingRun, s: Statement, t: int) -> Signal:
        assert isinstance(s, Function)
        if t and not (s.kind.selects and self._drawn(tr, s, t)):
            return tr.algebra.add([tr.initial(s.out), tr.change(s.out, t)])
        return self._selected(tr, s, self._polynomial(tr, s, t), t)

    def change(self, tr: TrainingRun, s: Statement, t: int) -> Signal:
        assert isinstance(s, Function)
        indices = tr.network.signals[s.out]
        if s.kind.selects and self._drawn(tr, s, t) != 0:
            return tr.algebra.add([tr.value(s.out, t), tr.initial(s.out)])
        if reason := self.beyond(tr, s, t):
            tr.note(reason)
            return self._selected(tr, s, tr.algebra.unknown(indices), 0)
        dx = self.shared(tr, s, self.argument(tr, s, "change", t))
        moved = self._selected(tr, s, tr.algebra.contract(self.slope(tr, s, t), dx, indices), 0)
        moved = self.balanced(tr, s, moved, t)
        swapped = self._swapped(tr, s, t) if s.kind.selects else None
        if swapped is None:
            return moved
        size = tr.algebra.rms(self.shared(tr, s, tr.algebra.constant(indices)))
        assert size is not None
        swaps = tr.algebra.unknown(indices, swapped + size)
        if self._apart(tr, s, t):
            swaps = swaps.but(least=swapped + size)
        else:
            tr.note(f"{s.name} swaps entries only where what is alike moves apart")
        return tr.algebra.add([moved, swaps])

    def adjoint(self, tr: TrainingRun, s: Statement, k: int, above: Signal, t: int, modes: Modes) -> Signal:
        assert isinstance(s, Function)
        indices = tr.network.signals[s.out]
        if reason := self.beyond(tr, s, t):
            raise BeyondPowerCounting(reason)
        above = self._selected(tr, s, self.shared(tr, s, self.balanced(tr, s, above, t)), t)
        return self.balanced(tr, s, tr.algebra.contract(self.slope(tr, s, t), above, indices), t)

    def slope(self, tr: TrainingRun, s: Function, t: int) -> Signal:
        """The derivative, entry by entry: powers one less than those of the function."""
        key = ("slope", s.out, t)
        return tr.kept(
            key, f"slope of {s.out}@{t}", lambda: self._powers(tr, s, t, {p - 1 for p in _degrees(tr, s) if p})
        )

    def _polynomial(self, tr: TrainingRun, s: Function, t: int) -> Signal:
        """The value from its argument."""
        x, indices = self.argument(tr, s, "value", t), tr.network.signals[s.out]
        powers, parts = _degrees(tr, s), list[Signal]()
        if reason := self.beyond(tr, s, t):
            tr.note(reason)
            powers, parts = frozenset({0}), [tr.algebra.unknown(indices)]
        if 0 in powers:
            parts.append(tr.named(mean(tr, s), "mean"))
        moving = {p - 1 for p in powers if p}
        if not moving:
            return tr.algebra.add(parts)
        moved = tr.algebra.contract(self._powers(tr, s, t, moving), self.shared(tr, s, x), indices)
        return tr.algebra.add([*parts, tr.named(moved, f"slope times {s.inputs[0].name}@{t}")])

    def _powers(self, tr: TrainingRun, s: Function, t: int, powers: set[int]) -> Signal:
        """The sum of powers of the argument."""
        indices = tr.network.signals[s.out]
        if not powers:
            return tr.algebra.nothing(indices)
        tr.note("polynomials")
        if s.kind.homogeneous and all(self.argument(tr, s, "value", step).zero for step in {0, t}):
            tr.note(f"{s.name} of {s.inputs[0].name}, which is exactly zero at t={t}: any slope at a kink is a choice")
            return tr.algebra.unknown(indices)
        parts, power = [], tr.algebra.constant(indices)
        for p in range(max(powers) + 1):
            if p:
                power = self._over(tr, s, tr.algebra.contract(self.argument(tr, s, "value", t), power, indices), t)
            if p in powers:
                parts.append(power)
        return tr.algebra.add(parts)

    def balanced(self, tr: TrainingRun, s: Function, signal: Signal, t: int) -> Signal:
        """The rest of a change or of a gradient where the function keeps a sum."""
        return signal

    def argument(self, tr: TrainingRun, s: Function, which: Which, t: int) -> Signal:
        """The part of the argument that the function sees."""
        return tr.at(s.inputs[0], which, t)

    def shared(self, tr: TrainingRun, s: Function, signal: Signal) -> Signal:
        """A part of the value, in the size of the value's entries."""
        return signal

    def beyond(self, tr: TrainingRun, s: Function, t: int) -> str:
        """Why nothing but that its values are bounded is known of a bounded function; empty if more is.

        Raises:
            BeyondPowerCounting: nothing is known of a steep function.
        """
        reason = saturated(tr, s, self.argument(tr, s, "value", t), t) if s.kind.bounded or s.kind.steep else ""
        if s.kind.steep and (reason or any(map(tr.grows, tr.network.signals[s.out]))):
            if not reason and (tails := self.heavy(tr, s, t)):
                reason = f"{s.name} has no second moment: {tails}"
            if reason:
                raise BeyondPowerCounting(reason)
        return reason

    def heavy(self, tr: TrainingRun, s: Function, t: int) -> str:
        """What is said of an argument of which e to its power may have no second moment; empty if it has one.

        Law: a step moves x by its gradient, so by e^x, where no normaliser bounds it: where x is Theta(1) and then
        moves by Theta(1), nothing is known. Fails: where x has heavier tails than a Gaussian.
        """
        before = [self.argument(tr, s, "initial", 0), *([unbounded(tr, s, t - 1)] if t > 1 else [])]
        moved = t and tr.algebra.reaches(unbounded(tr, s, t))
        again = moved and (any(map(tr.algebra.reaches, before)) or tr.tails.change(s.inputs[0].name, t) > 1)
        if not again and tr.tails.initial(s.inputs[0].name) < 2:
            return ""
        return f"{s.inputs[0].name} has heavier tails at t={t} than a Gaussian"

    def _over(self, tr: TrainingRun, s: Function, signal: Signal, t: int) -> Signal:
        """Divided by the size of the argument, where the function does that: of the present or, where that was larger,
        of the initial one.

        Raises:
            BeyondPowerCounting: a homogeneous function of a number that moved, whose sign nothing averages.
        """
        if s.kind.homogeneous and t and not any(map(tr.grows, tr.network.signals[s.out])):
            raise BeyondPowerCounting(f"{s.name} of {s.inputs[0].name}, which has no index that grows")
        sizes = [(tr.algebra.rms(x), x) for x in (self.argument(tr, s, "value", step) for step in {0, t})]
        size, x = max(sizes, key=lambda pair: (pair[0] is not None, pair[0]))
        if size is None:
            if s.kind.homogeneous:
                raise BeyondPowerCounting(f"{s.name} of {s.inputs[0].name}, of unknown size at t={t}")
            return signal
        if s.kind.homogeneous or tr.algebra.value(size) > 0:
            certain = tr.algebra.certified(x)
            return tr.algebra.scaled(signal, Scalar(f"1/size of {s.inputs[0].name}@{t}", -size, certain))
        return signal

    # a top-K selection: drawn anew when the argument moved by at least its spread

    def _selected(self, tr: TrainingRun, s: Function, signal: Signal, t: int) -> Signal:
        """The part of a signal that the selection in force leaves."""
        if not s.kind.selects:
            return signal
        tr.note("random-selection")
        indices = tr.network.signals[s.out]
        mask = tr.algebra.tensor(self.selected(tr, s, t), indices, 0)
        if (swapped := self._swapped(tr, s, t)) is not None:
            mask = tr.algebra.add([mask, tr.algebra.unknown(indices, swapped)])
        return tr.algebra.contract(mask, signal, indices)

    def _swapped(self, tr: TrainingRun, s: Function, t: int) -> int | None:
        """Packed size of the change of a selection that is not drawn anew; None if nothing moved.

        Law: an argument that moved by a share of its spread swaps at most that share of the entries, each by Theta(1);
        as much where entries that are alike move apart, and none where the change is a function of the argument.
        """
        if not t or self._drawn(tr, s, t):
            return None
        moved, spread = (self._moved(tr, s, which, t) for which in ("change", "initial"))
        if moved is None or spread is None:
            return None
        return tr.algebra.pack(tr.algebra.value(moved - spread) / 2, {}, {})

    def selected(self, tr: TrainingRun, s: Function, t: int) -> str:
        return f"{INDICATOR}{s.out}@{self._drawn(tr, s, t)})"

    def _drawn(self, tr: TrainingRun, s: Function, t: int) -> int:
        """The step at which the selection in force at t was drawn.

        Raises:
            BeyondPowerCounting: the argument moves where it was selected, perhaps so that nothing is drawn anew; or it
                moves by a count of what was drawn, which is larger than what it was drawn by.
        """
        if t == 0:
            return 0
        moved, spread = (self._moved(tr, s, which, t) for which in ("change", "initial"))
        value = tr.algebra.value
        if moved is None or (spread is not None and value(moved) < value(spread)):
            return 0
        if tr.grows(s.over) and not self._apart(tr, s, t):
            raise BeyondPowerCounting(f"{s.name} draws anew only where what is alike moves apart")
        if s in find_selection_inputs(tr.network).values() and (spread is None or value(moved) > value(spread)):
            raise BeyondPowerCounting(f"{s.out} was drawn by scores below a bias that counts what it drew")
        return t

    def _apart(self, tr: TrainingRun, s: Function, t: int) -> bool:
        """Does the change of the argument vary where its initial value does not?"""
        first, change = (self.argument(tr, s, which, t) for which in ("initial", "change"))
        return tr.algebra.varies_apart(change, first, s.over)

    def _moved(self, tr: TrainingRun, s: Function, which: Which, t: int) -> int | None:
        """Packed size of the argument at the start or of its change.

        Raises:
            Exhausted: it is not certified.
        """
        size = tr.context.certified(f"{s.inputs[0].name}.change", t) if which == "change" and self.whole else None
        if size is not None:
            return size
        signal = self.argument(tr, s, which, t)
        if not tr.algebra.certified(signal):
            raise Exhausted
        return tr.algebra.rms(signal)


class Softmax(Entrywise):
    """Law: softmax shares 1 among the entries of its index and ignores a common shift: phi is (1 + x + ...) / entries
    of the argument x less its mean. Its Jacobian diag(phi)(I - 1 phi^T) annihilates constants, and what it makes sums
    to zero: a change of shares and a gradient; of a selection only the selected ones are left.
    Fails: along an index that grows, where e^x may have no second moment (``heavy``).
    """

    whole = False

    def shared(self, tr: TrainingRun, s: Function, signal: Signal) -> Signal:
        if not tr.grows(s.over):
            return signal
        share = tr.algebra.scale({tr.context.shares.get(s.out, tr.network.indices[s.over]): -1})
        return tr.algebra.scaled(signal, Scalar(f"1/entries along {s.over}", share))

    def argument(self, tr: TrainingRun, s: Function, which: Which, t: int) -> Signal:
        return tr.algebra.centred(super().argument(tr, s, which, t), s.over)

    def beyond(self, tr: TrainingRun, s: Function, t: int) -> str:
        if (reason := super().beyond(tr, s, t)) or not tr.grows(s.over):
            return reason
        if s.kind.spared:
            tr.note("bounded-logits")
            return ""
        if not (tails := self.heavy(tr, s, t)):
            return ""
        unless = f"({s.kind.named_bounded} assumes it has not)"
        return f"a {s.kind.kind} along an index that grows has no second moment: {tails} {unless}"

    def balanced(self, tr: TrainingRun, s: Function, signal: Signal, t: int) -> Signal:
        return tr.algebra.centred(signal, s.over, self.selected(tr, s, t) if s.kind.selects else "")


SOFTMAX = Softmax()
_LEFT = 4
"""The least degree of a polynomial that stands for a function of what a norm makes.

Law: a layer norm takes from the gradient at its output y what is constant and what is a multiple of y, which is all of
the slope 1 + y of a square. The slope of relu, silu or gelu has more, such as y^3."""


def saturated(tr: TrainingRun, s: Statement, argument: Signal, t: int) -> str:
    """The excess of a bounded function's argument over O(1), if any: then its values are bounded, and no more is
    known of them."""
    size = tr.algebra.rms(argument)
    if size is None or tr.algebra.value(size) <= 0:
        return ""
    reach = f"{s.inputs[0].name} ~ n^({tr.algebra.value(size)}) at t={t}"
    how = f"{s.name} grows" if isinstance(s, Function) and s.kind.steep else "the gate saturates"
    return f"{how} faster than any power: {reach}"


def unbounded(tr: TrainingRun, s: Function, t: int) -> Signal:
    """The change of what a function reads, for a softmax less its mean, without what entries of updates that are
    bounded make of it themselves."""
    (source,) = s.inputs
    producer, moved = tr.network.producer(source.name), tr.at(source, "change", t)
    if (
        isinstance(producer, Product)
        and producer.tensor
        and tr.optimizer.of(producer.tensor.name).normalises == "entry"
    ):
        passed = tr.part(producer, "init", "change", t)
        moved = tr.algebra.relabelled(passed, tr.network.signals[producer.out], source.indices)
    return tr.algebra.centred(moved, s.over) if s.kind.kind == "softmax" else moved


def mean(tr: TrainingRun, s: Function) -> Signal:
    """The mean of a function that has one: a constant."""
    whole = tr.algebra.constant(tr.network.signals[s.out])
    return SOFTMAX.shared(tr, s, whole) if s.kind.kind == "softmax" else whole


def _degrees(tr: TrainingRun, s: Function) -> frozenset[int]:
    """Powers of the argument in the polynomial that stands for a function."""
    powers, degrees = s.kind.powers, tr.context.degrees
    if is_linear(tr.network, s):
        return frozenset({1})
    if degrees == "lowest":
        return powers & {0, 1}
    more, most = 2 if degrees == "raised" else 0, max(count_multiplicity(tr.network).values())
    most = max(most, _LEFT) if reads_normed(tr.network, s) else most
    return powers | {q for p in powers if p > 1 for q in range(p, max(p, most) + more + 1, 2)}
