"""Unrolls training exactly: forward, backward and update signals of a program at every step.

The backward pass is the derivative of the program (a multilinear network: remove the leaf), so no gradient is written
by hand. Every linear map splits as W_t x_t = W_0 x_0 + W_0 dx + dW x_0 + dW dx.
Read next: ``quantities.py`` (the named parts), ``solver.py`` (which parameters make them Theta(1)).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from scaling_algebra.counting.kernels import INDICATOR, Exhausted
from scaling_algebra.counting.signals import Algebra, Scalar, Signal
from scaling_algebra.spec.axes import AXES
from scaling_algebra.spec.networks.language import Aggregate, Gate, Linear, Mode, Noise, Norm, Program, Statement, Sum
from scaling_algebra.spec.optimizers import Optimizer
from scaling_algebra.spec.scaling import Point


def unknowns(program: Program) -> tuple[str, ...]:
    """Names of b, c, d of every tensor, and alpha: ``("b.input", ..., "alpha")``."""
    return (*(f"{x}.{role}" for x in "bcd" for role in program.tensors), "alpha")


class BeyondPowerCounting(Exception):
    """Something that no power of n follows: a saturated gate, or a difference that may cancel."""


@dataclass(frozen=True, slots=True)
class Increment:
    """One step of one tensor: ``scalars * left (x) right``, a rank-one update per expert."""

    step: int
    scalars: tuple[Scalar, ...]
    left: Signal
    right: Signal


class Trajectory:
    """All signals of a training run, computed on demand and kept.

    Standing assumptions (MSSP paper, J.2): loss derivative Theta(1); one sample; linear activations (a nonlinearity
    with non-zero mean slope changes no exponent); gates as their statement says.
    """

    def __init__(self, program: Program, algebra: Algebra, point: Point, optimizer: Optimizer) -> None:
        self.program, self.algebra, self.point, self.optimizer = program, algebra, point, optimizer
        self._initial: dict[str, Signal] = {}
        for role, tensor in program.tensors.items():
            b = point.b[role]
            if b is None:
                self._initial[role] = algebra.nothing(tensor.letters)
            else:
                size = algebra.pack(-b, {}, {f"b.{role}": -1})
                own = tensor.letters.replace(tensor.experts, "") if role in point.tied else tensor.letters
                self._initial[role] = algebra.tensor(role, tensor.letters, size, own)
        self._multiplier = Scalar("aggregation multiplier", algebra.pack(-point.alpha, {}, {"alpha": -1}))
        self._increments: dict[str, list[list[Increment]]] = {role: [] for role in program.tensors}
        self._gradients: dict[str, list[int]] = {role: [] for role in program.tensors}
        self.sound = True
        """Every gradient size so far was certified (normalising optimizers divide by them)."""
        self.normed = True
        """Every size a norm divided by was certified."""
        self._memo: dict[tuple[object, ...], Signal] = {}

    # forward ---------------------------------------------------------------------------------------------------

    def tensor(self, role: str) -> Signal:
        """The initial tensor of a role."""
        return self._initial[role]

    def initial(self, signal: str) -> Signal:
        """Value before training."""
        return self._kept(("initial", signal), f"{signal}@0", lambda: self._initial_value(signal))

    def change(self, signal: str, t: int) -> Signal:
        """Value after t updates minus the initial value."""
        if t == 0 or signal == "data":
            return self.algebra.nothing(self.program.signals[signal])
        return self._kept(("change", signal, t), f"{signal}.change@{t}", lambda: self._change(signal, t))

    def value(self, signal: str, t: int) -> Signal:
        """Value after t updates."""
        if t == 0 or signal == "data":
            return self.initial(signal)
        return self._kept(("value", signal, t), f"{signal}@{t}", lambda: self._value(signal, t))

    def apply(self, role: str, mode: Mode, x: Signal, t: int, out: str | None = None) -> Signal:
        """``W_0 x`` or ``(W_t - W_0) x`` for the tensor of a role; letters missing from ``out`` are summed at once."""
        out = self.program.signals[self.program.linear(role).out] if out is None else out
        symbol = self.program.tensors[role].symbol
        if mode == "init":
            return named(self.algebra.contract(self._initial[role], x, out), f"{symbol}_0 {x.name or 'x'}")
        parts = []
        for step in self._updates(role, t):
            shared = "".join(c for c in step.right.letters if c in step.left.letters)
            inner = self.algebra.contract(step.right, x, shared, tag=f"forward {role}")
            whole = self.algebra.scaled(self.algebra.contract(step.left, inner, out), *step.scalars)
            parts.append(named(whole, f"step {step.step + 1} of d{symbol}, times {x.name or 'x'}"))
        whole = self.algebra.add(parts) if parts else self.algebra.nothing(out)
        return named(whole, f"d{symbol} {x.name or 'x'}")

    def change_via(self, signal: str, t: int, via: str) -> Signal:
        """Part of the change of a first-layer signal that its gradient received through one statement."""
        how = self.program.producer(signal)
        assert isinstance(how, Linear) and self.program.producer(how.source) is None
        x = self.initial(how.source)
        parts = []
        for step in self._updates(how.tensor, t):
            left = self._part(signal, step.step, via)
            inner = self.algebra.contract(step.right, x, "", tag=f"forward {how.tensor}")
            whole = self.algebra.contract(left, inner, self.program.signals[signal])
            parts.append(self.algebra.scaled(whole, *step.scalars))
        return self.algebra.add(parts) if parts else self.algebra.nothing(self.program.signals[signal])

    def _part(self, signal: str, step: int, via: str) -> Signal:
        """The gradient of an update that came through one statement."""
        return self.gradient(signal, step, via=via)

    def aggregate(self, how: Aggregate, mode: Mode, x: Signal, t: int) -> Signal:
        """``M^-alpha sum_i phi_i W^i x_i`` for one part of the tensor before the aggregation.

        With held gates, the sum over experts and the product with the tensor are one contraction: its operator norm is
        known. Other gates enter with their initial values; ``regated`` is the rest.
        """
        inner = self.program.linear_into(how.source)
        if self._held(how):
            whole = self.apply(inner.tensor, mode, x, t, self.program.signals[how.out])
            return self.algebra.scaled(whole, self._multiplier)
        return self._weighted(how, self.initial(how.gate), self.apply(inner.tensor, mode, x, t))

    def regated(self, how: Aggregate, t: int) -> Signal:
        """``M^-alpha sum_i (phi_t - phi_0)_i h_t,i``; nothing with held gates."""
        if self._held(how):
            return self.algebra.nothing(self.program.signals[how.out])
        return self._weighted(how, self.change(how.gate, t), self.value(how.source, t))

    def normalised(self, how: Norm, signal: Signal, t: int) -> Signal:
        """A signal divided by the size of what a norm reads after t updates."""
        self.normed = self.normed and self.algebra.certified(self.value(how.source, t))
        return self._over(signal, how.source, t)

    def relative(self, signal: Signal, source: str, t: int) -> Signal:
        """A signal over the size of another one after t updates.

        Raises:
            Exhausted: that size is not certified.
        """
        if not self.algebra.certified(self.value(source, t)):
            raise Exhausted
        return self._over(signal, source, t)

    def _over(self, signal: Signal, source: str, t: int) -> Signal:
        size = self.algebra.rms(self.value(source, t)) or 0
        return self.algebra.scaled(signal, Scalar(f"1/rms of {source}@{t}", -size))

    # backward --------------------------------------------------------------------------------------------------

    def gradient(self, signal: str, t: int, modes: Mapping[str, Mode] | None = None, via: str = "") -> Signal:
        """Derivative of the output with respect to a signal after t updates.

        Args:
            modes: keep only this part of these tensors (the others are whole).
            via: only through the statement that computes this signal.
        """
        modes = dict(modes or {})
        key = ("gradient", signal, t, tuple(sorted(modes.items())), via)
        how = [f"{self.program.tensors[r].symbol} {m}" for r, m in modes.items()] + ([f"via {via}"] if via else [])
        name = f"df/d{signal}@{t}" + (f" ({', '.join(how)})" if how else "")
        return self._kept(key, name, lambda: self._gradient(signal, t, modes, via))

    def raw_gradient_size(self, role: str, t: int) -> int | None:
        """Packed entry size of the gradient of a tensor; None if exactly zero.

        Law: rms(u v^T) = rms(u) rms(v), since no index is summed and experts are exchangeable.
        """
        left, right = self.factors(role, t)
        self.sound = self.sound and self.algebra.certified(left) and self.algebra.certified(right)
        u, v = self.algebra.rms(left), self.algebra.rms(right)
        return None if u is None or v is None else u + v

    def update_size(self, role: str, t: int) -> int | None:
        """Packed entry size of ``W_t - W_0``."""
        return max((size for _, size in self.update_sizes(role, t)), default=None)

    def update_sizes(self, role: str, t: int) -> list[tuple[Increment, int]]:
        """Every step of ``W_t - W_0`` that is not zero, with its packed entry size."""
        found = []
        for step in self._updates(role, t):
            u, v = self.algebra.rms(step.left), self.algebra.rms(step.right)
            if u is not None and v is not None:
                found.append((step, sum(x.size for x in step.scalars) + u + v))
        return found

    def factors(self, role: str, t: int) -> tuple[Signal, Signal]:
        """The rank-one gradient of a tensor: (gradient at its output, its input)."""
        how = self.program.linear(role)
        return self.gradient(how.out, t), self.value(how.source, t)

    # inside: forward -------------------------------------------------------------------------------------------

    def _kept(self, key: tuple[object, ...], name: str, compute: Callable[[], Signal]) -> Signal:
        if key not in self._memo:
            self._memo[key] = named(compute(), name)
        return self._memo[key]

    def _initial_value(self, signal: str) -> Signal:
        how = self.program.producer(signal)
        if how is None:
            return self.algebra.constant(self.program.signals[signal])
        if isinstance(how, Linear):
            return self.apply(how.tensor, "init", self.initial(how.source), 0)
        if isinstance(how, Gate):
            return self._gated(how, 0)
        if isinstance(how, Sum):
            return self.algebra.add([self.initial(x) for x in how.inputs])
        if isinstance(how, Noise):
            return self._drawn_noise(how, 0)
        if isinstance(how, Norm):
            return self.normalised(how, self.initial(how.source), 0)
        return self.aggregate(how, "init", self.initial(self.program.linear_into(how.source).source), 0)

    def _value(self, signal: str, t: int) -> Signal:
        how = self.program.producer(signal)
        if isinstance(how, Noise):
            return self._drawn_noise(how, t)
        if isinstance(how, Sum):
            return self.algebra.add([self.value(x, t) for x in how.inputs])
        return self.algebra.add([self.initial(signal), self.change(signal, t)])

    def _change(self, signal: str, t: int) -> Signal:
        how = self.program.producer(signal)
        assert how is not None
        add = self.algebra.add
        if isinstance(how, Linear):
            propagated = self.apply(how.tensor, "init", self.change(how.source, t), t)
            return add([propagated, self.apply(how.tensor, "update", self.value(how.source, t), t)])
        if isinstance(how, Gate):
            return self._gate_change(how, t)
        if isinstance(how, Sum):
            return add([self.change(x, t) for x in how.inputs])
        if isinstance(how, Noise):
            return add([self._drawn_noise(how, t), self.initial(how.out)])
        if isinstance(how, Norm):
            return add([self.normalised(how, self.value(how.source, t), t), self.initial(how.out)])
        below = self.program.linear_into(how.source).source
        propagated = named(self.aggregate(how, "init", self.change(below, t), t), f"{how.out}.propagating")
        updated = named(self.aggregate(how, "update", self.value(below, t), t), f"{how.out} from updated tensors")
        return add([propagated, updated, named(self.regated(how, t), f"{how.out}.regated")])

    def _drawn_noise(self, how: Noise, t: int) -> Signal:
        """Along an axis that does not grow one leaf stands for the draws of all steps: a sum over finitely many entries
        is as large whether they are correlated or not."""
        letters = self.program.signals[how.out]
        grows = any(self.algebra.ray[self.program.axes[letter]] for letter in letters)
        return self.algebra.tensor(f"{how.out}@{t if grows else 0}", letters, 0)

    def _weighted(self, how: Aggregate, gate: Signal, x: Signal) -> Signal:
        whole = self.algebra.contract(gate, x, self.program.signals[how.out])
        return self.algebra.scaled(whole, self._multiplier)

    # inside: gates ---------------------------------------------------------------------------------------------

    def _held(self, how: Aggregate) -> bool:
        gate = self.program.producer(how.gate)
        return isinstance(gate, Gate) and gate.kind == "held"

    def _logits(self, how: Gate, x: Signal) -> Signal:
        """What of the argument a gate sees: softmax ignores a common shift."""
        return self.algebra.centred(x, self.program.signals[how.source][-1]) if how.kind == "softmax" else x

    def _gated(self, how: Gate, t: int) -> Signal:
        """Mean of the gate plus its linear part, times the selection."""
        letters = self.program.signals[how.out]
        if how.kind == "held":
            return self.algebra.constant(letters)
        logits = self._logits(how, self.value(how.source, t))
        size = self.algebra.rms(logits)
        if size is not None and self.algebra.value(size) > 0:
            reach = f"{how.source} ~ n^({self.algebra.value(size)}) at t={t}"
            raise BeyondPowerCounting(f"the gate saturates faster than any power: {reach}")
        parts = [named(self.algebra.constant(letters), "mean"), named(logits, f"slope times {how.source}@{t}")]
        whole = self.algebra.add(parts)
        return self.algebra.contract(self._selection(how, t), whole, letters) if how.selects else whole

    def _gate_change(self, how: Gate, t: int) -> Signal:
        if how.kind == "held":
            return self.change(how.source, t)
        if how.selects and self._drawn(how, t) != 0:
            return self.algebra.add([self._gated(how, t), self.initial(how.out)])
        self._gated(how, t)  # saturated?
        change = self._logits(how, self.change(how.source, t))
        return self.algebra.contract(self._selection(how, 0), change, change.letters) if how.selects else change

    def _drawn(self, how: Gate, t: int) -> int:
        """The step at which the selection in force at t was drawn."""
        if t == 0:
            return 0
        moved = self.algebra.rms(self._logits(how, self.change(how.source, t)))
        spread = self.algebra.rms(self._logits(how, self.initial(how.source)))
        if moved is None or (spread is not None and self.algebra.value(moved) < self.algebra.value(spread)):
            return 0
        return t

    def _selection(self, how: Gate, t: int) -> Signal:
        return self.algebra.tensor(self._selected(how, t), self.program.signals[how.out], 0)

    def _selected(self, how: Gate, t: int) -> str:
        return f"{INDICATOR}[{how.out}@{self._drawn(how, t)}]"

    # inside: backward ------------------------------------------------------------------------------------------

    def _gradient(self, signal: str, t: int, modes: Mapping[str, Mode], via: str) -> Signal:
        letters = self.program.signals[signal]
        paths = [s for s in self.program.consumers(signal) if via in ("", s.out)]
        if not paths:
            return self.algebra.constant(letters)  # the output itself
        return self.algebra.add([named(self._through(s, signal, t, modes), f"through {s.out}") for s in paths])

    def _through(self, how: Statement, signal: str, t: int, modes: Mapping[str, Mode]) -> Signal:
        above = self.gradient(how.out, t, modes)
        letters = self.program.signals[signal]
        assert not isinstance(how, Noise)  # it reads nothing
        if isinstance(how, Sum):
            return above
        if isinstance(how, Norm):
            return self._norm_jacobian(how, above, t)
        if isinstance(how, Gate):
            return self._gate_jacobian(how, above, t)
        if isinstance(how, Linear):
            return self._whole(how, above, t, modes)
        if how.gate == signal:  # <h3i, g3> as (W3^T g3) . h2: h3i itself is never formed (MSSP paper, App. I.9)
            inner = self.program.linear_into(how.source)
            below = self.program.signals[inner.source]
            per_expert = letters + "".join(x for x in below if x not in letters)
            back = self._whole(inner, above, t, modes, per_expert)
            whole = self.algebra.contract(back, self.value(inner.source, t), letters)
        else:
            gate = self.initial(how.gate) if self._held(how) else self.value(how.gate, t)
            whole = self.algebra.contract(gate, above, letters)
        return self.algebra.scaled(whole, self._multiplier)

    def _norm_jacobian(self, how: Norm, above: Signal, t: int) -> Signal:
        """Law: ``(above - x <x, above> / dim) / rms`` with x the normalised signal.

        Assumes: under a normalising optimizer x is a nonlinear function of the gradient, so that no direction of
        ``above`` is removed but for a part of its size, and the subtraction changes no exponent.
        Fails: else, where the subtracted part is as large as ``above``: they may cancel.
        """
        if self.optimizer.normalises:
            return self.normalised(how, above, t)
        x, letters = self.value(how.out, t), self.program.signals[how.out]
        inner = self.algebra.contract(x, above, "")
        dim = self.algebra.scale({self.program.axes[c]: -1 for c in letters})
        removed = self.algebra.scaled(self.algebra.contract(x, inner, letters), Scalar("1/dimension", dim))
        size, part = self.algebra.rms(above), self.algebra.bound(removed)
        if size is not None and part is not None and self.algebra.value(part) >= self.algebra.value(size):
            where = f"{how.out} and its gradient align at t={t}"
            raise BeyondPowerCounting(f"the norm may cancel the gradient: {where}")
        return self.normalised(how, self.algebra.add([above, removed]), t)

    def _gate_jacobian(self, how: Gate, above: Signal, t: int) -> Signal:
        """Law: softmax J = diag(phi)(I - 1 phi^T) annihilates constants; a selection leaves only the selected."""
        if how.kind == "held":
            return above
        if how.kind == "softmax":
            selection = self._selected(how, t) if how.selects else ""
            above = self.algebra.centred(above, self.program.signals[how.source][-1], selection)
        return self.algebra.contract(self.value(how.out, t), above, self.program.signals[how.source])

    def _whole(self, how: Linear, above: Signal, t: int, modes: Mapping[str, Mode], out: str | None = None) -> Signal:
        """``W_t^T above``, or one part of it; letters missing from ``out`` are summed."""
        parts: tuple[Mode, ...] = (modes[how.tensor],) if how.tensor in modes else ("init", "update")
        return self.algebra.add([self.transposed(how, mode, above, t, out) for mode in parts])

    def transposed(self, how: Linear, mode: Mode, above: Signal, t: int, out: str | None = None) -> Signal:
        """``W_0^T above`` or ``(W_t - W_0)^T above``; letters missing from ``out`` are summed."""
        out = self.program.signals[how.source] if out is None else out
        symbol = self.program.tensors[how.tensor].symbol
        if mode == "init":
            return named(self.algebra.contract(self._initial[how.tensor], above, out), f"{symbol}_0^T {above.name}")
        parts = []
        for step in self._updates(how.tensor, t):
            shared = "".join(c for c in step.left.letters if c in out)
            inner = self.algebra.contract(step.left, above, shared, tag=f"backward {how.tensor}")
            whole = self.algebra.scaled(self.algebra.contract(step.right, inner, out), *step.scalars)
            parts.append(named(whole, f"(step {step.step + 1} of d{symbol})^T {above.name}"))
        whole = self.algebra.add(parts) if parts else self.algebra.nothing(out)
        return named(whole, f"d{symbol}^T {above.name}")

    def _root_entries(self, role: str) -> int:
        """Packed square root of the number of entries of a tensor, per expert."""
        tensor = self.program.tensors[role]
        powers: dict[str, Fraction] = {}
        for axis in (self.program.axes[x] for x in tensor.fan_in + tensor.fan_out):
            if axis in AXES:
                powers[axis] = powers.get(axis, Fraction(0)) + Fraction(1, 2)
        return self.algebra.scale(powers)

    def _updates(self, role: str, t: int) -> list[Increment]:
        """Increments of the first t steps."""
        done = self._increments[role]
        while len(done) < t:
            step = len(done)
            size = self.raw_gradient_size(role, step)
            before = done[-1] if done else []
            if size is None:
                done.append(before)
                continue
            self._gradients[role].append(size)
            epsilon = self.algebra.pack(-self.point.d[role], {}, {f"d.{role}": -1})
            scalars = [Scalar(f"lr of {role}", self.algebra.pack(-self.point.c[role], {}, {f"c.{role}": -1}))]
            divisor = self.optimizer.normaliser(self._gradients[role], epsilon, self._root_entries(role))
            if divisor:
                scalars.append(Scalar(f"1/normaliser of {role} at step {step + 1}", -divisor))
            done.append([*before, Increment(step, tuple(scalars), *self.factors(role, step))])
        return done[t - 1] if t else []


def named(signal: Signal, name: str) -> Signal:
    """The same signal under a name for explanations."""
    return replace(signal, name=name)
