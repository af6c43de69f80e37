"""What training makes of each kind of statement: its value, its change, the gradient at what it reads, and its parts.

One table, ``RULES``. A rule is written once for every network: changes and gradients follow from the product rule, and
no signal, tensor or letter has a meaning of its own.
Read next: ``trajectory.py`` (runs the rules), ``quantities.py`` (names what they make).
"""

from __future__ import annotations

from typing import Protocol

from scaling_algebra.counting.kernels import INDICATOR, Exhausted
from scaling_algebra.counting.signals import Scalar, Signal
from scaling_algebra.spec.networks.language import Function, Product, Statement

from .run import BeyondPowerCounting, Modes, TrainingRun, Which


class Rule(Protocol):
    """The readings of one kind of statement. ``t`` counts updates."""

    def value(self, tr: TrainingRun, s: Statement, t: int) -> Signal:
        """The output after t updates."""

    def change(self, tr: TrainingRun, s: Statement, t: int) -> Signal:
        """The output after t > 0 updates minus the initial output."""

    def adjoint(self, tr: TrainingRun, s: Statement, k: int, above: Signal, t: int, modes: Modes) -> Signal:
        """Derivative of the network's output with respect to the k-th input, from the one with respect to the output
        of the statement, in the letters that the input has there."""


class _Product:
    """Law: the change of a product is the sum over its factors of its change, with what stands before at its present
    value and what stands behind at its initial one; the adjoint of a factor is the product of the others."""

    def value(self, tr: TrainingRun, s: Statement, t: int) -> Signal:
        assert isinstance(s, Product)
        if t:
            return tr.algebra.add([tr.initial(s.out), tr.change(s.out, t)])
        return tr.part(s, "init", "initial", 0)

    def change(self, tr: TrainingRun, s: Statement, t: int) -> Signal:
        assert isinstance(s, Product)
        propagated, updated = tr.part(s, "init", "change", t), tr.part(s, "update", "value", t)
        if s.tensor:
            return tr.algebra.add([propagated, updated])
        named = [(propagated, f"{s.out}.propagating"), (updated, f"{s.out} from updated tensors")]
        named.append((tr.regated(s, t), f"{s.out}.regated"))
        return tr.algebra.add([tr.named(x, name) for x, name in named])

    def adjoint(self, tr: TrainingRun, s: Statement, k: int, above: Signal, t: int, modes: Modes) -> Signal:
        assert isinstance(s, Product)
        found = tr.transposed(s, k, above, t, modes)
        for x in tr.network.balanced(s, k):
            found = tr.algebra.centred(found, x)
        return found


class _Sum:
    def value(self, tr: TrainingRun, s: Statement, t: int) -> Signal:
        return tr.algebra.add([tr.at(x, "value", t) for x in s.inputs])

    def change(self, tr: TrainingRun, s: Statement, t: int) -> Signal:
        return tr.algebra.add([tr.at(x, "change", t) for x in s.inputs])

    def adjoint(self, tr: TrainingRun, s: Statement, k: int, above: Signal, t: int, modes: Modes) -> Signal:
        return above


class _Gate:
    """A gate held at its mean and slope: its initial value is Theta(1) and independent of the weights, its change is
    that of its argument. Source: standing assumption B2 of MSSP paper, J.2."""

    def value(self, tr: TrainingRun, s: Statement, t: int) -> Signal:
        tr.note("held-gates")
        initial = tr.algebra.constant(tr.network.signals[s.out])
        return tr.algebra.add([initial, tr.change(s.out, t)]) if t else initial

    def change(self, tr: TrainingRun, s: Statement, t: int) -> Signal:
        tr.note("held-gates")
        change = tr.at(s.inputs[0], "change", t)
        saturated = _saturated(tr, s, change, t)
        return tr.algebra.unknown(tr.network.signals[s.out]) if saturated else change

    def adjoint(self, tr: TrainingRun, s: Statement, k: int, above: Signal, t: int, modes: Modes) -> Signal:
        tr.note("held-gates")
        if reason := _saturated(tr, s, tr.at(s.inputs[0], "change", t), t):
            raise BeyondPowerCounting(reason)
        return above


class _Entrywise:
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
        letters = tr.network.signals[s.out]
        if s.kind.selects and self._drawn(tr, s, t) != 0:
            return tr.algebra.add([tr.value(s.out, t), tr.initial(s.out)])
        if reason := self.beyond(tr, s, t):
            tr.note(reason)
            return self._selected(tr, s, tr.algebra.unknown(letters), 0)
        dx = self.shared(tr, s, self.argument(tr, s, "change", t))
        moved = self._selected(tr, s, tr.algebra.contract(self.slope(tr, s, t), dx, letters), 0)
        moved = self.balanced(tr, s, moved, t)
        swapped = self._swapped(tr, s, t) if s.kind.selects else None
        if swapped is None:
            return moved
        size = tr.algebra.rms(self.shared(tr, s, tr.algebra.constant(letters)))
        assert size is not None
        other = tr.algebra.unknown(letters, swapped + size)
        if self._apart(tr, s, t):
            other = other.but(least=swapped + size)
        else:
            tr.note(f"{s.name} swaps entries only where what is alike moves apart")
        return tr.algebra.add([moved, other])

    def adjoint(self, tr: TrainingRun, s: Statement, k: int, above: Signal, t: int, modes: Modes) -> Signal:
        assert isinstance(s, Function)
        letters = tr.network.signals[s.out]
        if reason := self.beyond(tr, s, t):
            raise BeyondPowerCounting(reason)
        above = self._selected(tr, s, self.shared(tr, s, self.balanced(tr, s, above, t)), t)
        return self.balanced(tr, s, tr.algebra.contract(self.slope(tr, s, t), above, letters), t)

    def slope(self, tr: TrainingRun, s: Function, t: int) -> Signal:
        """The derivative, entry by entry: powers one less than those of the function."""
        key = ("slope", s.out, t)
        return tr.kept(key, f"slope of {s.out}@{t}", lambda: self._powers(tr, s, t, {p - 1 for p in tr.powers(s) if p}))

    def _polynomial(self, tr: TrainingRun, s: Function, t: int) -> Signal:
        """The value from its argument."""
        x, letters = self.argument(tr, s, "value", t), tr.network.signals[s.out]
        powers, parts = tr.powers(s), list[Signal]()
        if reason := self.beyond(tr, s, t):
            tr.note(reason)
            powers, parts = frozenset({0}), [tr.algebra.unknown(letters)]
        if 0 in powers:
            parts.append(tr.named(mean(tr, s), "mean"))
        moving = {p - 1 for p in powers if p}
        if not moving:
            return tr.algebra.add(parts)
        moved = tr.algebra.contract(self._powers(tr, s, t, moving), self.shared(tr, s, x), letters)
        return tr.algebra.add([*parts, tr.named(moved, f"slope times {s.inputs[0].name}@{t}")])

    def _powers(self, tr: TrainingRun, s: Function, t: int, powers: set[int]) -> Signal:
        """The sum of powers of the argument."""
        tr.note("polynomials")
        letters = tr.network.signals[s.out]
        parts, power = [], tr.algebra.constant(letters)
        for p in range(max(powers) + 1):
            if p:
                power = self._over(tr, s, tr.algebra.contract(self.argument(tr, s, "value", t), power, letters), t)
            if p in powers:
                parts.append(power)
        return tr.algebra.add(parts)

    def balanced(self, tr: TrainingRun, s: Function, signal: Signal, t: int) -> Signal:
        """What is left of a change or of a gradient where the function keeps a sum."""
        return signal

    def argument(self, tr: TrainingRun, s: Function, which: Which, t: int) -> Signal:
        """What of the argument the function sees."""
        return tr.at(s.inputs[0], which, t)

    def shared(self, tr: TrainingRun, s: Function, signal: Signal) -> Signal:
        """A part of the value, in the size of the value's entries."""
        return signal

    def beyond(self, tr: TrainingRun, s: Function, t: int) -> str:
        """Why nothing but that its values are bounded is known of a bounded function; empty if more is."""
        return _saturated(tr, s, self.argument(tr, s, "value", t), t) if s.kind.bounded else ""

    def _over(self, tr: TrainingRun, s: Function, signal: Signal, t: int) -> Signal:
        """Divided by the size of the argument, where the function does that: of the present or, where that was larger,
        of the initial one.

        Raises:
            BeyondPowerCounting: a homogeneous function of a number that moved, whose sign nothing averages.
        """
        if s.kind.homogeneous and t and not any(map(tr.grows, tr.network.signals[s.out])):
            raise BeyondPowerCounting(f"{s.name} of {s.inputs[0].name}, which has no index that grows")
        sizes = [(tr.algebra.rms(x), x) for x in (self.argument(tr, s, "value", step) for step in {0, t})]
        size, x = max(sizes, key=lambda found: (found[0] is not None, found[0]))
        if size is None:
            if s.kind.homogeneous:
                raise BeyondPowerCounting(f"{s.name} of {s.inputs[0].name}, which is exactly zero at t={t}")
            return signal
        if s.kind.homogeneous or tr.algebra.value(size) > 0:
            certain = tr.algebra.certified(x)
            return tr.algebra.scaled(signal, Scalar(f"1/size of {s.inputs[0].name}@{t}", -size, certain))
        return signal

    # a top-K selection: drawn anew when the argument moved by at least its spread

    def _selected(self, tr: TrainingRun, s: Function, signal: Signal, t: int) -> Signal:
        """What the selection in force leaves of a signal."""
        if not s.kind.selects:
            return signal
        tr.note("random-selection")
        letters = tr.network.signals[s.out]
        mask = tr.algebra.tensor(self.selected(tr, s, t), letters, 0)
        if (swapped := self._swapped(tr, s, t)) is not None:
            mask = tr.algebra.add([mask, tr.algebra.unknown(letters, swapped)])
        return tr.algebra.contract(mask, signal, letters)

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
        return f"{INDICATOR}[{s.out}@{self._drawn(tr, s, t)}]"

    def _drawn(self, tr: TrainingRun, s: Function, t: int) -> int:
        """The step at which the selection in force at t was drawn.

        Raises:
            BeyondPowerCounting: the argument moves where it was selected, perhaps so that nothing is drawn anew.
        """
        if t == 0:
            return 0
        moved, spread = (self._moved(tr, s, which, t) for which in ("change", "initial"))
        value = tr.algebra.value
        if moved is None or (spread is not None and value(moved) < value(spread)):
            return 0
        if tr.grows(s.over) and not self._apart(tr, s, t):
            raise BeyondPowerCounting(f"{s.name} draws anew only where what is alike moves apart")
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
        known = tr.known(f"{s.inputs[0].name}.change", t) if tr.known and which == "change" and self.whole else None
        signal = None if known is not None else self.argument(tr, s, which, t)
        if signal is None:
            return known
        if not tr.algebra.certified(signal):
            raise Exhausted
        return tr.algebra.rms(signal)


class _Softmax(_Entrywise):
    """Law: softmax shares 1 among the entries of its index and ignores a common shift: phi is (1 + x + ...) / entries
    of the argument x less its mean. Its Jacobian diag(phi)(I - 1 phi^T) annihilates constants, and what it makes sums
    to zero: a change of shares and a gradient; of a selection only the selected ones are left.
    Fails: along an index that grows, where x has heavier tails than a Gaussian, since then e^x has no second moment. A
    step moves x by its gradient, so by e^x, where no normaliser bounds it: where x is Theta(1) and then moves by
    Theta(1), nothing is known.
    """

    whole = False

    def shared(self, tr: TrainingRun, s: Function, signal: Signal) -> Signal:
        if not tr.grows(s.over):
            return signal
        share = tr.algebra.scale({tr.shares.get(s.out, tr.network.letters[s.over]): -1})
        return tr.algebra.scaled(signal, Scalar(f"1/entries along {s.over}", share))

    def argument(self, tr: TrainingRun, s: Function, which: Which, t: int) -> Signal:
        return tr.algebra.centred(super().argument(tr, s, which, t), s.over)

    def beyond(self, tr: TrainingRun, s: Function, t: int) -> str:
        if (saturated := super().beyond(tr, s, t)) or not tr.grows(s.over):
            return saturated
        before = [self.argument(tr, s, "initial", 0), *([unbounded(tr, s, t - 1)] if t > 1 else [])]
        moved = t and tr.algebra.reaches(unbounded(tr, s, t))
        again = moved and (any(map(tr.algebra.reaches, before)) or tr.tails.change(s.inputs[0].name, t) > 1)
        if not again and tr.tails.initial(s.inputs[0].name) < 2:
            return ""
        tails = f"{s.inputs[0].name} has heavier tails at t={t} than a Gaussian"
        return f"a {s.kind.kind} along an index that grows has no second moment: {tails}"

    def balanced(self, tr: TrainingRun, s: Function, signal: Signal, t: int) -> Signal:
        return tr.algebra.centred(signal, s.over, self.selected(tr, s, t) if s.kind.selects else "")


class _Norm:
    """Division by the root-mean-square r along an index: y = x / r. A LayerNorm centres first.

    Law: the change of y and the gradient at x are orthogonal to x. A multiple of x in dx, or of y in the gradient, is
    removed exactly. What is left, v, is not along it: the change is (v - x_0 <x_0 + x_t, v> / (dim r_0 r)) / r_t with r
    the larger of r_0 and r_t, and the gradient (v - y <y, v> / dim) / r_t. They are as large as v / r_t; but what they
    share with x may cancel in later products.
    """

    def value(self, tr: TrainingRun, s: Statement, t: int) -> Signal:
        assert isinstance(s, Function)
        if of_few_entries(tr, s):
            return _DIRECTION.value(tr, s, t)
        return self._over(tr, s, self._argument(tr, s, "value", t), t)

    def change(self, tr: TrainingRun, s: Statement, t: int) -> Signal:
        assert isinstance(s, Function)
        if of_few_entries(tr, s):
            return _DIRECTION.change(tr, s, t)
        first, now = self._argument(tr, s, "initial", 0), self._argument(tr, s, "value", t)
        own = tr.algebra.reduced(self._argument(tr, s, "change", t), first)
        turned = self._along(tr, s, tr.algebra.add([first, now]), own, first)
        larger = min((0, t), key=lambda step: divisor(tr, s, step).size)
        turned = self._over(tr, s, self._over(tr, s, turned, 0), larger)
        return self._over(tr, s, self._orthogonal(tr, s, own, turned, first), t)

    def adjoint(self, tr: TrainingRun, s: Statement, k: int, above: Signal, t: int, modes: Modes) -> Signal:
        assert isinstance(s, Function)
        if of_few_entries(tr, s):
            return _DIRECTION.adjoint(tr, s, k, above, t, modes)
        y = tr.value(s.out, t)
        if tr.change(s.out, t).zero:  # what the tensors that read y learned is along y
            readers = [c.tensor.name for c, _ in tr.network.consumers(s.out) if isinstance(c, Product) and c.tensor]
            above = tr.gradient(s.out, t, {**dict.fromkeys(readers, "init"), **modes})
        own = tr.algebra.reduced(above, y)
        left = self._orthogonal(tr, s, own, self._along(tr, s, y, own, y), y)
        return self._over(tr, s, tr.algebra.centred(left, s.over) if s.kind.centres else left, t)

    def _orthogonal(self, tr: TrainingRun, s: Function, own: Signal, along: Signal, direction: Signal) -> Signal:
        """A signal less what it has along a direction, which is no larger and may cancel it in later products; of
        finitely many entries all may be along it."""
        left = tr.algebra.less_multiple(own, direction) if tr.grows(s.over) else tr.algebra.doubted(own, own)
        return tr.algebra.add([left, tr.algebra.doubted(along, along)])

    def _argument(self, tr: TrainingRun, s: Function, which: Which, t: int) -> Signal:
        return normed(tr, s, which, t)

    def _along(self, tr: TrainingRun, s: Function, a: Signal, b: Signal, direction: Signal) -> Signal:
        """``direction <a, b> / dim``."""
        letters = tr.network.signals[s.out]
        inner = tr.algebra.contract(a, b, letters.replace(s.over, ""))
        whole = tr.algebra.contract(direction, inner, letters)
        return tr.algebra.scaled(whole, Scalar("1/dimension", tr.algebra.scale({tr.network.axes[s.over]: -1})))

    def _over(self, tr: TrainingRun, s: Function, signal: Signal, t: int) -> Signal:
        return over(tr, s, signal, t)


class _Direction(_Entrywise):
    """A norm along an index that does not grow, of independent entries that meet others than their own.

    Law: y = x / r is odd and of degree zero in finitely many entries of x, and r is as random as they are; so y is
    (x + x^3 + ...) / r with generic coefficients. A change and a gradient lose what is along x: a share of what is
    independent of x, and perhaps all of what is a multiple of x. Fails: where y meets y along that index, or what a
    tensor learned from y (``of_few_entries``); there the rule of a growing index holds, which certifies less.
    """

    def argument(self, tr: TrainingRun, s: Function, which: Which, t: int) -> Signal:
        x = super().argument(tr, s, which, t)
        if which != "change":
            return x
        first = super().argument(tr, s, "initial", 0)
        own = tr.algebra.reduced(x, first)
        return tr.algebra.doubted(own, tr.algebra.multiples(own, first))

    def change(self, tr: TrainingRun, s: Statement, t: int) -> Signal:
        assert isinstance(s, Function)
        return self._over(tr, s, super().change(tr, s, t), t)

    def adjoint(self, tr: TrainingRun, s: Statement, k: int, above: Signal, t: int, modes: Modes) -> Signal:
        assert isinstance(s, Function)
        return over(tr, s, super().adjoint(tr, s, k, above, t, modes), t)

    def _polynomial(self, tr: TrainingRun, s: Function, t: int) -> Signal:
        return self._over(tr, s, super()._polynomial(tr, s, t), t)

    def _over(self, tr: TrainingRun, s: Function, signal: Signal, t: int) -> Signal:
        """Divided by the larger of the initial and the present size."""
        return tr.algebra.scaled(signal, min((divisor(tr, s, step) for step in {0, t}), key=lambda x: x.size))


_DIRECTION = _Direction()


class _Noise:
    """Along an axis that does not grow one leaf stands for the draws of all steps: a sum over finitely many entries is
    as large whether they are correlated or not."""

    def value(self, tr: TrainingRun, s: Statement, t: int) -> Signal:
        letters = tr.network.signals[s.out]
        grows = any(map(tr.grows, letters))
        return tr.algebra.tensor(f"{s.out}@{t if grows else 0}", letters, 0)

    def change(self, tr: TrainingRun, s: Statement, t: int) -> Signal:
        return tr.algebra.add([self.value(tr, s, t), tr.initial(s.out)])

    def adjoint(self, tr: TrainingRun, s: Statement, k: int, above: Signal, t: int, modes: Modes) -> Signal:
        raise AssertionError("noise reads nothing")


def of_few_entries(tr: TrainingRun, s: Function) -> bool:
    """The index that a norm goes along does not grow, and its output meets only entries that are independent of it.

    Law: x is what a tensor makes; every sum over the index is of y and of signals that this tensor has no part in.
    """
    made = tr.network.producer(s.inputs[0].name)
    if s.kind.centres or tr.grows(s.over) or not (isinstance(made, Product) and made.tensor):
        return False
    return tr.network.meets_others(s.out, tr.network.signals[s.out].index(s.over), made.tensor.name)


def unbounded(tr: TrainingRun, s: Function, t: int) -> Signal:
    """The change of what a function reads, less its mean, without what entries of updates that are bounded make of it
    themselves."""
    (source,) = s.inputs
    made = tr.network.producer(source.name)
    if isinstance(made, Product) and made.tensor and tr.optimizer.of(made.tensor.name).normalises == "entry":
        passed = tr.part(made, "init", "change", t)
        return tr.algebra.centred(tr.relabelled(passed, tr.network.signals[made.out], source.letters), s.over)
    return tr.algebra.centred(tr.at(source, "change", t), s.over)


def mean(tr: TrainingRun, s: Function) -> Signal:
    """The mean of a function that has one: a constant."""
    whole, found = tr.algebra.constant(tr.network.signals[s.out]), rule(s)
    return found.shared(tr, s, whole) if isinstance(found, _Entrywise) else whole


def normed(tr: TrainingRun, s: Function, which: Which, t: int) -> Signal:
    """What of its argument a norm sees."""
    x = tr.at(s.inputs[0], which, t)
    return tr.algebra.centred(x, s.over) if s.kind.centres else x


def divisor(tr: TrainingRun, s: Function, t: int) -> Scalar:
    """What a norm divides by.

    Raises:
        BeyondPowerCounting: it is exactly zero.
    """
    source = s.inputs[0].name
    if s.kind.centres:
        x = normed(tr, s, "value", t)
        size, certain = tr.algebra.rms(x), tr.algebra.certified(x)
    else:
        size, certain = tr.measure(source, t)
    if size is None and certain:
        raise BeyondPowerCounting(f"{s.name} divides by the size of {source}, exactly zero at t={t}")
    return Scalar(f"1/rms of {source}@{t}", -(size or 0), certain)


def over(tr: TrainingRun, s: Function, signal: Signal, t: int) -> Signal:
    """A signal divided by the size of what a norm reads."""
    return tr.algebra.scaled(signal, divisor(tr, s, t))


def _saturated(tr: TrainingRun, s: Statement, argument: Signal, t: int) -> str:
    """How far the argument of a bounded function is beyond O(1), if it is: then its values are bounded, and no more is
    known of them."""
    size = tr.algebra.rms(argument)
    if size is None or tr.algebra.value(size) <= 0:
        return ""
    reach = f"{s.inputs[0].name} ~ n^({tr.algebra.value(size)}) at t={t}"
    return f"the gate saturates faster than any power: {reach}"


RULES: dict[str, Rule] = {
    "product": _Product(),
    "sum": _Sum(),
    "gate": _Gate(),
    "entrywise": _Entrywise(),
    "softmax": _Softmax(),
    "norm": _Norm(),
    "noise": _Noise(),
}
"""The rule of each kind of statement, and of each kind of function."""


def rule(statement: Statement) -> Rule:
    """The rule of a statement."""
    if isinstance(statement, Function):
        return RULES[statement.kind.kind]
    return RULES["product" if isinstance(statement, Product) else "sum"]
