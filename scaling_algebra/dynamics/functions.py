"""Rules of elementwise functions, of selections (top-K) and of softmax under training.

A function is represented by a polynomial with unknown (generic) coefficients: tanh by c_1 x + c_3 x^3 + ..., and relu,
whose odd part is linear, by c_1 x + c_2 x^2 + c_4 x^4 + ...
Read next: ``norms.py`` (functions that divide by the size of their argument), ``rules.py`` (all kinds of statements).
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
    """Rule of an elementwise function. It is represented by a generic polynomial, which has only odd powers for an odd
    function and only even powers for an even one.

    Law: let f(x) = sum_p c_p x^p with generic c_p. Then df = sum_p c_p sum_j x_0^j x_t^(p-1-j) dx and f' = sum_p p c_p
    x^(p-1). Since x_t = x_0 + dx has every monomial of x_0, the sum over j is x_t^(p-1) up to constants, so df is f'
    dx. Powers above the first are divided by the size of the argument if the function is homogeneous, or if it is
    unbounded and its argument exceeds O(1).
    """

    whole = True
    """True if the function depends on its whole argument, False if it ignores the mean of the argument."""

    def value(self, tr: TrainingRun, s: Statement, t: int) -> Signal:
        assert isinstance(s, Function)
        if t and not (s.kind.selects and self._find_selection_step(tr, s, t)):
            return tr.algebra.add([tr.initial(s.out), tr.change(s.out, t)])
        return self._select_entries(tr, s, self._make_polynomial(tr, s, t), t)

    def change(self, tr: TrainingRun, s: Statement, t: int) -> Signal:
        assert isinstance(s, Function)
        indices = tr.network.signals[s.out]
        if s.kind.selects and self._find_selection_step(tr, s, t) != 0:
            return tr.algebra.add([tr.value(s.out, t), tr.initial(s.out)])
        if reason := self.explain_unknown(tr, s, t):
            tr.note(reason)
            return self._select_entries(tr, s, tr.algebra.make_bounded(indices), 0)
        dx = self.scale_to_value(tr, s, self.read_argument(tr, s, "change", t))
        moved = self._select_entries(tr, s, tr.algebra.contract(self.find_slope(tr, s, t), dx, indices), 0)
        moved = self.project_out_mean(tr, s, moved, t)
        swapped = self._bound_swaps(tr, s, t) if s.kind.selects else None
        if swapped is None:
            return moved
        size = tr.algebra.rms(self.scale_to_value(tr, s, tr.algebra.constant(indices)))
        assert size is not None
        swaps = tr.algebra.make_bounded(indices, swapped + size)
        if self._changes_apart(tr, s, t):
            swaps = swaps.replace(lower_bound=swapped + size)
        else:
            tr.note(f"which entries {s.name} selects changes only if entries of similar value change differently")
        return tr.algebra.add([moved, swaps])

    def adjoint(self, tr: TrainingRun, s: Statement, k: int, above: Signal, t: int, modes: Modes) -> Signal:
        assert isinstance(s, Function)
        indices = tr.network.signals[s.out]
        if reason := self.explain_unknown(tr, s, t):
            raise BeyondPowerCounting(reason)
        above = self._select_entries(tr, s, self.scale_to_value(tr, s, self.project_out_mean(tr, s, above, t)), t)
        return self.project_out_mean(tr, s, tr.algebra.contract(self.find_slope(tr, s, t), above, indices), t)

    def find_slope(self, tr: TrainingRun, s: Function, t: int) -> Signal:
        """Returns the derivative of the function, elementwise, at its argument after t updates, as a polynomial whose
        powers are one less than those of the function."""
        key = ("slope", s.out, t)
        return tr.remember(
            key, f"slope of {s.out}@{t}", lambda: self._sum_powers(tr, s, t, {p - 1 for p in _list_degrees(tr, s) if p})
        )

    def _make_polynomial(self, tr: TrainingRun, s: Function, t: int) -> Signal:
        """Returns the value of the function after t updates as a polynomial of its argument. If the function also
        selects entries (top-K), the selection is not applied yet."""
        x, indices = self.read_argument(tr, s, "value", t), tr.network.signals[s.out]
        powers, parts = _list_degrees(tr, s), list[Signal]()
        if reason := self.explain_unknown(tr, s, t):
            tr.note(reason)
            powers, parts = frozenset({0}), [tr.algebra.make_bounded(indices)]
        if 0 in powers:
            parts.append(tr.with_name(mean_value(tr, s), "mean"))
        moving = {p - 1 for p in powers if p}
        if not moving:
            return tr.algebra.add(parts)
        moved = tr.algebra.contract(self._sum_powers(tr, s, t, moving), self.scale_to_value(tr, s, x), indices)
        return tr.algebra.add([*parts, tr.with_name(moved, f"slope times {s.inputs[0].name}@{t}")])

    def _sum_powers(self, tr: TrainingRun, s: Function, t: int, powers: set[int]) -> Signal:
        """Returns the sum of the given powers of the function's argument after t updates, elementwise, with unknown
        (generic) coefficients.

        Args:
            tr: the training run.
            s: the function.
            t: number of updates.
            powers: the powers; may include 0.
        """
        indices = tr.network.signals[s.out]
        if not powers:
            return tr.algebra.zeros(indices)
        tr.note("polynomials")
        if s.kind.homogeneous and all(self.read_argument(tr, s, "value", step).is_zero for step in {0, t}):
            tr.note(f"{s.inputs[0].name} is exactly zero at t={t}, where {s.name} has a kink and no slope")
            return tr.algebra.make_bounded(indices)
        parts, power = [], tr.algebra.constant(indices)
        for p in range(max(powers) + 1):
            if p:
                power = self._divide_by_size(
                    tr, s, tr.algebra.contract(self.read_argument(tr, s, "value", t), power, indices), t
                )
            if p in powers:
                parts.append(power)
        return tr.algebra.add(parts)

    def project_out_mean(self, tr: TrainingRun, s: Function, signal: Signal, t: int) -> Signal:
        """Subtracts the mean over the function's index from a change or a gradient, if the outputs of the function have
        a constant sum (softmax); otherwise returns it unchanged."""
        return signal

    def read_argument(self, tr: TrainingRun, s: Function, which: Which, t: int) -> Signal:
        """Returns the argument of the function: its initial value, its change or its value after t updates. Subclasses
        subtract the part on which the function does not depend, such as the mean for a softmax."""
        return tr.read_factor(s.inputs[0], which, t)

    def scale_to_value(self, tr: TrainingRun, s: Function, signal: Signal) -> Signal:
        """Multiplies a signal of order 1 by the size of the function's values, such as 1/n for a softmax over n
        entries."""
        return signal

    def explain_unknown(self, tr: TrainingRun, s: Function, t: int) -> str:
        """Tests whether a polynomial represents the function at its argument after t updates. Returns "" if it does,
        otherwise the reason why not; then nothing is known of the function except that its values are bounded.

        Raises:
            BeyondPowerCounting: not even that is known, since the function is steep, such as exp.
        """
        reason = (
            explain_saturation(tr, s, self.read_argument(tr, s, "value", t), t)
            if s.kind.bounded or s.kind.steep
            else ""
        )
        if s.kind.steep and (reason or any(map(tr.grows, tr.network.signals[s.out]))):
            if not reason and (tails := self.explain_heavy_tails(tr, s, t)):
                reason = f"{s.name} has no second moment: {tails}"
            if reason:
                raise BeyondPowerCounting(reason)
        return reason

    def explain_heavy_tails(self, tr: TrainingRun, s: Function, t: int) -> str:
        """Returns a reason why exp of the argument may have no finite second moment; "" if it has one.

        Law: a step changes x along its gradient, which contains the factor e^x if no normaliser bounds the step. If x
        is Theta(1) and then changes by Theta(1), nothing is known. Fails: if x has heavier tails than a Gaussian.
        """
        before = [self.read_argument(tr, s, "initial", 0), *([select_unbounded_change(tr, s, t - 1)] if t > 1 else [])]
        moved = t and tr.algebra.reaches_size(select_unbounded_change(tr, s, t))
        again = moved and (any(map(tr.algebra.reaches_size, before)) or tr.tails.change_degree(s.inputs[0].name, t) > 1)
        if not again and tr.tails.initial_degree(s.inputs[0].name) < 2:
            return ""
        return f"{s.inputs[0].name} has heavier tails at t={t} than a Gaussian"

    def _divide_by_size(self, tr: TrainingRun, s: Function, signal: Signal, t: int) -> Signal:
        """Divides a signal by the size of the function's argument, if the function is homogeneous or the argument
        exceeds O(1). The size is the larger one of those before training and after t updates.

        Raises:
            BeyondPowerCounting: a homogeneous function is applied to a number that changed and has no index that grows,
                so that its sign is not averaged.
        """
        if s.kind.homogeneous and t and not any(map(tr.grows, tr.network.signals[s.out])):
            raise BeyondPowerCounting(
                f"{s.inputs[0].name}, the argument of {s.name}, has no index that grows, so its sign is not averaged"
            )
        sizes = [(tr.algebra.rms(x), x) for x in (self.read_argument(tr, s, "value", step) for step in {0, t})]
        size, x = max(sizes, key=lambda pair: (pair[0] is not None, pair[0]))
        if size is None:
            if s.kind.homogeneous:
                raise BeyondPowerCounting(f"{s.inputs[0].name}, the argument of {s.name}, is of unknown size at t={t}")
            return signal
        if s.kind.homogeneous or tr.algebra.exponent(size) > 0:
            certain = tr.algebra.is_certified(x)
            return tr.algebra.scale_by(signal, Scalar(f"1/size of {s.inputs[0].name}@{t}", -size, certain))
        return signal

    # top-K selections: other entries are selected if the argument changed by at least its spread

    def _select_entries(self, tr: TrainingRun, s: Function, signal: Signal, t: int) -> Signal:
        """Sets those entries of a signal to zero that the function (a top-K selection) does not select after t updates.
        Returns the signal itself if the function does not select."""
        if not s.kind.selects:
            return signal
        tr.note("random-selection")
        indices = tr.network.signals[s.out]
        mask = tr.algebra.tensor(self.name_selection(tr, s, t), indices, 0)
        if (swapped := self._bound_swaps(tr, s, t)) is not None:
            mask = tr.algebra.add([mask, tr.algebra.make_bounded(indices, swapped)])
        return tr.algebra.contract(mask, signal, indices)

    def _bound_swaps(self, tr: TrainingRun, s: Function, t: int) -> int | None:
        """Returns an upper bound on the root-mean-square change of the 0/1 mask of selected entries, as an exponent of
        n packed into an integer, if training replaces only a small share of them. Returns None if the mask does not
        change, or if all entries are selected anew.

        Law: if the argument changes by a fraction of its spread, at most this fraction of the entries is swapped, each
        of which changes by Theta(1). The bound is attained if similar entries change differently, and nothing is
        swapped if the change is a function of the argument.
        """
        if not t or self._find_selection_step(tr, s, t):
            return None
        moved, spread = (self._measure_argument(tr, s, which, t) for which in ("change", "initial"))
        if moved is None or spread is None:
            return None
        return tr.algebra.pack(tr.algebra.exponent(moved - spread) / 2, {}, {})

    def name_selection(self, tr: TrainingRun, s: Function, t: int) -> str:
        """Returns the name of the 0/1 mask of the entries that the function (a top-K selection) selects. It contains
        the step at which they were selected, so that masks of different steps differ."""
        return f"{INDICATOR}{s.out}@{self._find_selection_step(tr, s, t)})"

    def _find_selection_step(self, tr: TrainingRun, s: Function, t: int) -> int:
        """Returns the step whose top-K selection is used after t updates: 0 as long as the initial selection is valid,
        or t if the argument has changed by as much as its spread, so that the entries are selected anew.

        Raises:
            BeyondPowerCounting: the argument changes by as much as its spread, but perhaps equal entries change alike,
                so that their order, and the selection, may stay; or the argument contains a bias that counts selected
                tokens, and changes by more than its initial spread.
        """
        if t == 0:
            return 0
        moved, spread = (self._measure_argument(tr, s, which, t) for which in ("change", "initial"))
        value = tr.algebra.exponent
        if moved is None or (spread is not None and value(moved) < value(spread)):
            return 0
        if tr.grows(s.over) and not self._changes_apart(tr, s, t):
            raise BeyondPowerCounting(
                f"which entries {s.name} selects changes only if entries of similar value change differently"
            )
        if s in find_selection_inputs(tr.network).values() and (spread is None or value(moved) > value(spread)):
            raise BeyondPowerCounting(
                f"{s.out}: the bias that counts selected tokens exceeds the scores by which they were selected"
            )
        return t

    def _changes_apart(self, tr: TrainingRun, s: Function, t: int) -> bool:
        """Whether entries of the function's argument with the same initial value may change differently, so that a
        top-K selection replaces some of them by others.
        """
        first, change = (self.read_argument(tr, s, which, t) for which in ("initial", "change"))
        return tr.algebra.varies_independently(change, first, s.over)

    def _measure_argument(self, tr: TrainingRun, s: Function, which: Which, t: int) -> int | None:
        """Returns the size of the function's argument before training (``which`` = "initial") or of its change
        ("change"), as an exponent of n packed into an integer; None if it is exactly zero.

        Raises:
            Exhausted: the size is not certified.
        """
        size = tr.context.certified(f"{s.inputs[0].name}.change", t) if which == "change" and self.whole else None
        if size is not None:
            return size
        signal = self.read_argument(tr, s, which, t)
        if not tr.algebra.is_certified(signal):
            raise Exhausted
        return tr.algebra.rms(signal)


class Softmax(Entrywise):
    """Rule of a softmax along an index with n entries.

    Law: phi = (1 + x + ...) / n for the argument x minus its mean, because a softmax distributes 1 over its entries and
    ignores a common shift. Its Jacobian diag(phi)(I - 1 phi^T) annihilates constants, and the change of phi and the
    gradient at the logits sum to zero. With a selection (top-K) only the selected entries are nonzero.
    Fails: along an index that grows, if e^x may lack a second moment (``explain_heavy_tails``).
    """

    whole = False

    def scale_to_value(self, tr: TrainingRun, s: Function, signal: Signal) -> Signal:
        if not tr.grows(s.over):
            return signal
        share = tr.algebra.pack_powers({tr.context.shares.get(s.out, tr.network.indices[s.over]): -1})
        return tr.algebra.scale_by(signal, Scalar(f"1/entries along {s.over}", share))

    def read_argument(self, tr: TrainingRun, s: Function, which: Which, t: int) -> Signal:
        return tr.algebra.subtract_mean(super().read_argument(tr, s, which, t), s.over)

    def explain_unknown(self, tr: TrainingRun, s: Function, t: int) -> str:
        if (reason := super().explain_unknown(tr, s, t)) or not tr.grows(s.over):
            return reason
        if s.kind.spared:
            tr.note("bounded-logits")
            return ""
        if not (tails := self.explain_heavy_tails(tr, s, t)):
            return ""
        unless = f"({s.kind.named_bounded} assumes that it does not)"
        return f"a {s.kind.kind} along an index that grows has no second moment: {tails} {unless}"

    def project_out_mean(self, tr: TrainingRun, s: Function, signal: Signal, t: int) -> Signal:
        return tr.algebra.subtract_mean(signal, s.over, self.name_selection(tr, s, t) if s.kind.selects else "")


SOFTMAX = Softmax()


class Centre:
    """Rule of the function that subtracts the mean along an index. Law: the function is linear and symmetric, so it
    also gives the change from the change of its argument, and the gradient at its argument from that at its output.
    """

    def value(self, tr: TrainingRun, s: Statement, t: int) -> Signal:
        assert isinstance(s, Function)
        return tr.algebra.subtract_mean(tr.read_factor(s.inputs[0], "value", t), s.over)

    def change(self, tr: TrainingRun, s: Statement, t: int) -> Signal:
        assert isinstance(s, Function)
        return tr.algebra.subtract_mean(tr.read_factor(s.inputs[0], "change", t), s.over)

    def adjoint(self, tr: TrainingRun, s: Statement, k: int, above: Signal, t: int, modes: Modes) -> Signal:
        assert isinstance(s, Function)
        return tr.algebra.subtract_mean(above, s.over)


_LEAST_DEGREE = 4
"""Minimum degree of the polynomial for a function of a norm's output.

Law: a layer norm removes from the gradient at its output y everything that is constant or a multiple of y. This is the
whole slope 1 + y of a square. The slope of relu, silu or gelu has further terms, such as y^3.
"""


def explain_saturation(tr: TrainingRun, s: Statement, argument: Signal, t: int) -> str:
    """Returns the reason why powers of n do not describe the output of a bounded or steep function (such as tanh or
    exp), if its argument exceeds O(1) after t updates; otherwise "". All that is known of a bounded function then is
    that its values are bounded.
    """
    size = tr.algebra.rms(argument)
    if size is None or tr.algebra.exponent(size) <= 0:
        return ""
    reach = f"{s.inputs[0].name} ~ n^({tr.algebra.exponent(size)}) at t={t}"
    how = f"{s.name} grows" if isinstance(s, Function) and s.kind.steep else "the gate saturates"
    return f"{how} faster than any power: {reach}"


def select_unbounded_change(tr: TrainingRun, s: Function, t: int) -> Signal:
    """Returns the part of the change of a function's argument that may have heavy tails: the change without the direct
    contribution of optimizer steps that normalise each entry, since the entries of these are bounded. For a softmax the
    mean over its index is subtracted."""
    (source,) = s.inputs
    producer, moved = tr.network.producer(source.name), tr.read_factor(source, "change", t)
    if (
        isinstance(producer, Product)
        and producer.tensor
        and tr.optimizer.of(producer.tensor.name).normalises == "entry"
    ):
        passed = tr.part(producer, "init", "change", t)
        moved = tr.algebra.rename_indices(passed, tr.network.signals[producer.out], source.indices)
    return tr.algebra.subtract_mean(moved, s.over) if s.kind.kind == "softmax" else moved


def mean_value(tr: TrainingRun, s: Function) -> Signal:
    """Returns the constant term of the polynomial that represents a function: 1/n for a softmax over n entries, 1 (up
    to a constant) for any other function.
    """
    whole = tr.algebra.constant(tr.network.signals[s.out])
    return SOFTMAX.scale_to_value(tr, s, whole) if s.kind.kind == "softmax" else whole


def _list_degrees(tr: TrainingRun, s: Function) -> frozenset[int]:
    """Returns the powers of the argument in the polynomial that represents a function, such as {1, 2} for relu or {1,
    3} for tanh. The highest power depends on the network and the settings."""
    powers, degrees = s.kind.powers, tr.context.degrees
    if is_linear(tr.network, s):
        return frozenset({1})
    if degrees == "lowest":
        return powers & {0, 1}
    more, most = 2 if degrees == "raised" else 0, max(count_multiplicity(tr.network).values())
    most = max(most, _LEAST_DEGREE) if reads_normed(tr.network, s) else most
    return powers | {q for p in powers if p > 1 for q in range(p, max(p, most) + more + 1, 2)}
