"""Unrolls training exactly: forward, backward and update signals of a network at every step.

The backward pass is the derivative of the network (a multilinear network: remove the leaf), so no gradient is written
by hand. Every linear map splits as W_t x_t = W_0 x_0 + W_0 dx + dW x_0 + dW dx.
Read next: ``quantities.py`` (the named parts), ``newton.py`` (which parameters make them Theta(1)).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from scaling_algebra.counting.kernels import INDICATOR, Exhausted
from scaling_algebra.counting.signals import Algebra, Scalar, Signal
from scaling_algebra.spec.axes import AXES
from scaling_algebra.spec.networks.language import Aggregate, Gate, Linear, Mode, Network, Noise, Norm, Statement, Sum
from scaling_algebra.spec.optimizers import Optimizer
from scaling_algebra.spec.scaling import Point


def unknowns(network: Network) -> tuple[str, ...]:
    """Names of b, c, d of every tensor, and alpha: ``("b.input", ..., "alpha")``."""
    return (*(f"{x}.{role}" for x in "bcd" for role in network.tensors), "alpha")


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

    def __init__(self, network: Network, algebra: Algebra, point: Point, optimizer: Optimizer) -> None:
        self.network, self.algebra, self.point, self.optimizer = network, algebra, point, optimizer
        self._initial: dict[str, Signal] = {}
        for role, tensor in network.tensors.items():
            b = point.b[role]
            if b is None:
                self._initial[role] = algebra.nothing(tensor.letters)
            else:
                size = algebra.pack(-b, {}, {f"b.{role}": -1})
                own = tensor.letters.replace(tensor.experts, "") if role in point.tied else tensor.letters
                self._initial[role] = algebra.tensor(role, tensor.letters, size, own)
        self._multiplier = Scalar("aggregation multiplier", algebra.pack(-point.alpha, {}, {"alpha": -1}))
        self._increments: dict[str, list[list[Increment]]] = {role: [] for role in network.tensors}
        self._gradients: dict[str, list[int]] = {role: [] for role in network.tensors}
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
            return self.algebra.nothing(self.network.signals[signal])
        return self._kept(("change", signal, t), f"{signal}.change@{t}", lambda: self._change(signal, t))

    def value(self, signal: str, t: int) -> Signal:
        """Value after t updates."""
        if t == 0 or signal == "data":
            return self.initial(signal)
        return self._kept(("value", signal, t), f"{signal}@{t}", lambda: self._value(signal, t))

    def apply(self, role: str, mode: Mode, x: Signal, t: int, out: str | None = None) -> Signal:
        """``W_0 x`` or ``(W_t - W_0) x`` for the tensor of a role; letters missing from ``out`` are summed at once."""
        out = self.network.signals[self.network.linear(role).out] if out is None else out
        symbol = self.network.tensors[role].symbol
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
        statement = self.network.producer(signal)
        assert isinstance(statement, Linear) and self.network.producer(statement.source) is None
        x = self.initial(statement.source)
        parts = []
        for step in self._updates(statement.tensor, t):
            left = self._part(signal, step.step, via)
            inner = self.algebra.contract(step.right, x, "", tag=f"forward {statement.tensor}")
            whole = self.algebra.contract(left, inner, self.network.signals[signal])
            parts.append(self.algebra.scaled(whole, *step.scalars))
        return self.algebra.add(parts) if parts else self.algebra.nothing(self.network.signals[signal])

    def _part(self, signal: str, step: int, via: str) -> Signal:
        """The gradient of an update that came through one statement."""
        return self.gradient(signal, step, via=via)

    def aggregate(self, statement: Aggregate, mode: Mode, x: Signal, t: int) -> Signal:
        """``M^-alpha sum_i phi_i W^i x_i`` for one part of the tensor before the aggregation.

        With held gates, the sum over experts and the product with the tensor are one contraction: its operator norm is
        known. Other gates enter with their initial values; ``regated`` is the rest.
        """
        inner = self.network.linear_into(statement.source)
        if self._held(statement):
            whole = self.apply(inner.tensor, mode, x, t, self.network.signals[statement.out])
            return self.algebra.scaled(whole, self._multiplier)
        return self._weighted(statement, self.initial(statement.gate), self.apply(inner.tensor, mode, x, t))

    def regated(self, statement: Aggregate, t: int) -> Signal:
        """``M^-alpha sum_i (phi_t - phi_0)_i h_t,i``; nothing with held gates."""
        if self._held(statement):
            return self.algebra.nothing(self.network.signals[statement.out])
        return self._weighted(statement, self.change(statement.gate, t), self.value(statement.source, t))

    def normalised(self, statement: Norm, signal: Signal, t: int) -> Signal:
        """A signal divided by the size of what a norm reads after t updates."""
        self.normed = self.normed and self.algebra.certified(self.value(statement.source, t))
        return self._over(signal, statement.source, t)

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
        statement = [f"{self.network.tensors[r].symbol} {m}" for r, m in modes.items()] + (
            [f"via {via}"] if via else []
        )
        name = f"df/d{signal}@{t}" + (f" ({', '.join(statement)})" if statement else "")
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
        statement = self.network.linear(role)
        return self.gradient(statement.out, t), self.value(statement.source, t)

    # inside: forward -------------------------------------------------------------------------------------------

    def _kept(self, key: tuple[object, ...], name: str, compute: Callable[[], Signal]) -> Signal:
        if key not in self._memo:
            self._memo[key] = named(compute(), name)
        return self._memo[key]

    def _initial_value(self, signal: str) -> Signal:
        statement = self.network.producer(signal)
        if statement is None:
            return self.algebra.constant(self.network.signals[signal])
        if isinstance(statement, Linear):
            return self.apply(statement.tensor, "init", self.initial(statement.source), 0)
        if isinstance(statement, Gate):
            return self._gated(statement, 0)
        if isinstance(statement, Sum):
            return self.algebra.add([self.initial(x) for x in statement.inputs])
        if isinstance(statement, Noise):
            return self._drawn_noise(statement, 0)
        if isinstance(statement, Norm):
            return self.normalised(statement, self.initial(statement.source), 0)
        return self.aggregate(statement, "init", self.initial(self.network.linear_into(statement.source).source), 0)

    def _value(self, signal: str, t: int) -> Signal:
        statement = self.network.producer(signal)
        if isinstance(statement, Noise):
            return self._drawn_noise(statement, t)
        if isinstance(statement, Sum):
            return self.algebra.add([self.value(x, t) for x in statement.inputs])
        return self.algebra.add([self.initial(signal), self.change(signal, t)])

    def _change(self, signal: str, t: int) -> Signal:
        statement = self.network.producer(signal)
        assert statement is not None
        add = self.algebra.add
        if isinstance(statement, Linear):
            propagated = self.apply(statement.tensor, "init", self.change(statement.source, t), t)
            return add([propagated, self.apply(statement.tensor, "update", self.value(statement.source, t), t)])
        if isinstance(statement, Gate):
            return self._gate_change(statement, t)
        if isinstance(statement, Sum):
            return add([self.change(x, t) for x in statement.inputs])
        if isinstance(statement, Noise):
            return add([self._drawn_noise(statement, t), self.initial(statement.out)])
        if isinstance(statement, Norm):
            return add([self.normalised(statement, self.value(statement.source, t), t), self.initial(statement.out)])
        below = self.network.linear_into(statement.source).source
        propagated = named(self.aggregate(statement, "init", self.change(below, t), t), f"{statement.out}.propagating")
        updated = named(
            self.aggregate(statement, "update", self.value(below, t), t), f"{statement.out} from updated tensors"
        )
        return add([propagated, updated, named(self.regated(statement, t), f"{statement.out}.regated")])

    def _drawn_noise(self, statement: Noise, t: int) -> Signal:
        """Along an axis that does not grow one leaf stands for the draws of all steps: a sum over finitely many entries
        is as large whether they are correlated or not."""
        letters = self.network.signals[statement.out]
        grows = any(self.algebra.ray[self.network.axes[letter]] for letter in letters)
        return self.algebra.tensor(f"{statement.out}@{t if grows else 0}", letters, 0)

    def _weighted(self, statement: Aggregate, gate: Signal, x: Signal) -> Signal:
        whole = self.algebra.contract(gate, x, self.network.signals[statement.out])
        return self.algebra.scaled(whole, self._multiplier)

    # inside: gates ---------------------------------------------------------------------------------------------

    def _held(self, statement: Aggregate) -> bool:
        gate = self.network.producer(statement.gate)
        return isinstance(gate, Gate) and gate.kind == "held"

    def _logits(self, statement: Gate, x: Signal) -> Signal:
        """What of the argument a gate sees: softmax ignores a common shift."""
        return self.algebra.centred(x, self.network.signals[statement.source][-1]) if statement.normalised else x

    def _gated(self, statement: Gate, t: int) -> Signal:
        """Mean of the gate plus its linear part, times the selection."""
        letters = self.network.signals[statement.out]
        if statement.kind == "held":
            return self.algebra.constant(letters)
        logits = self._logits(statement, self.value(statement.source, t))
        size = self.algebra.rms(logits)
        if size is not None and self.algebra.value(size) > 0:
            reach = f"{statement.source} ~ n^({self.algebra.value(size)}) at t={t}"
            raise BeyondPowerCounting(f"the gate saturates faster than any power: {reach}")
        parts = [named(self.algebra.constant(letters), "mean"), named(logits, f"slope times {statement.source}@{t}")]
        whole = self.algebra.add(parts)
        return self.algebra.contract(self._selection(statement, t), whole, letters) if statement.selects else whole

    def _gate_change(self, statement: Gate, t: int) -> Signal:
        if statement.kind == "held":
            return self.change(statement.source, t)
        if statement.selects and self._drawn(statement, t) != 0:
            return self.algebra.add([self._gated(statement, t), self.initial(statement.out)])
        self._gated(statement, t)  # saturated?
        change = self._logits(statement, self.change(statement.source, t))
        return (
            self.algebra.contract(self._selection(statement, 0), change, change.letters)
            if statement.selects
            else change
        )

    def _drawn(self, statement: Gate, t: int) -> int:
        """The step at which the selection in force at t was drawn."""
        if t == 0:
            return 0
        moved = self.algebra.rms(self._logits(statement, self.change(statement.source, t)))
        spread = self.algebra.rms(self._logits(statement, self.initial(statement.source)))
        if moved is None or (spread is not None and self.algebra.value(moved) < self.algebra.value(spread)):
            return 0
        return t

    def _selection(self, statement: Gate, t: int) -> Signal:
        return self.algebra.tensor(self._selected(statement, t), self.network.signals[statement.out], 0)

    def _selected(self, statement: Gate, t: int) -> str:
        return f"{INDICATOR}[{statement.out}@{self._drawn(statement, t)}]"

    # inside: backward ------------------------------------------------------------------------------------------

    def _gradient(self, signal: str, t: int, modes: Mapping[str, Mode], via: str) -> Signal:
        letters = self.network.signals[signal]
        paths = [s for s in self.network.consumers(signal) if via in ("", s.out)]
        if not paths:
            return self.algebra.constant(letters)  # the output itself
        return self.algebra.add([named(self._through(s, signal, t, modes), f"through {s.out}") for s in paths])

    def _through(self, statement: Statement, signal: str, t: int, modes: Mapping[str, Mode]) -> Signal:
        above = self.gradient(statement.out, t, modes)
        letters = self.network.signals[signal]
        assert not isinstance(statement, Noise)  # it reads nothing
        if isinstance(statement, Sum):
            return above
        if isinstance(statement, Norm):
            return self._norm_jacobian(statement, above, t)
        if isinstance(statement, Gate):
            return self._gate_jacobian(statement, above, t)
        if isinstance(statement, Linear):
            return self._whole(statement, above, t, modes)
        if statement.gate == signal:  # <h3i, g3> as (W3^T g3) . h2: h3i itself is never formed (MSSP paper, App. I.9)
            inner = self.network.linear_into(statement.source)
            below = self.network.signals[inner.source]
            per_expert = letters + "".join(x for x in below if x not in letters)
            back = self._whole(inner, above, t, modes, per_expert)
            whole = self.algebra.contract(back, self.value(inner.source, t), letters)
        else:
            gate = self.initial(statement.gate) if self._held(statement) else self.value(statement.gate, t)
            whole = self.algebra.contract(gate, above, letters)
        return self.algebra.scaled(whole, self._multiplier)

    def _norm_jacobian(self, statement: Norm, above: Signal, t: int) -> Signal:
        """Law: ``(above - x <x, above> / dim) / rms`` with x the normalised signal.

        Assumes: under a normalising optimizer x is a nonlinear function of the gradient, so that no direction of
        ``above`` is removed but for a part of its size, and the subtraction changes no exponent.
        Fails: else, where the subtracted part is as large as ``above``: they may cancel.
        """
        if self.optimizer.normalises:
            return self.normalised(statement, above, t)
        x, letters = self.value(statement.out, t), self.network.signals[statement.out]
        inner = self.algebra.contract(x, above, "")
        dim = self.algebra.scale({self.network.axes[c]: -1 for c in letters})
        removed = self.algebra.scaled(self.algebra.contract(x, inner, letters), Scalar("1/dimension", dim))
        size, part = self.algebra.rms(above), self.algebra.bound(removed)
        if size is not None and part is not None and self.algebra.value(part) >= self.algebra.value(size):
            where = f"{statement.out} and its gradient align at t={t}"
            raise BeyondPowerCounting(f"the norm may cancel the gradient: {where}")
        return self.normalised(statement, self.algebra.add([above, removed]), t)

    def _gate_jacobian(self, statement: Gate, above: Signal, t: int) -> Signal:
        """Law: softmax J = diag(phi)(I - 1 phi^T) annihilates constants; a selection leaves only the selected."""
        if statement.kind == "held":
            return above
        if statement.normalised:
            selection = self._selected(statement, t) if statement.selects else ""
            above = self.algebra.centred(above, self.network.signals[statement.source][-1], selection)
        return self.algebra.contract(self.value(statement.out, t), above, self.network.signals[statement.source])

    def _whole(
        self, statement: Linear, above: Signal, t: int, modes: Mapping[str, Mode], out: str | None = None
    ) -> Signal:
        """``W_t^T above``, or one part of it; letters missing from ``out`` are summed."""
        parts: tuple[Mode, ...] = (modes[statement.tensor],) if statement.tensor in modes else ("init", "update")
        return self.algebra.add([self.transposed(statement, mode, above, t, out) for mode in parts])

    def transposed(self, statement: Linear, mode: Mode, above: Signal, t: int, out: str | None = None) -> Signal:
        """``W_0^T above`` or ``(W_t - W_0)^T above``; letters missing from ``out`` are summed."""
        out = self.network.signals[statement.source] if out is None else out
        symbol = self.network.tensors[statement.tensor].symbol
        if mode == "init":
            return named(
                self.algebra.contract(self._initial[statement.tensor], above, out), f"{symbol}_0^T {above.name}"
            )
        parts = []
        for step in self._updates(statement.tensor, t):
            shared = "".join(c for c in step.left.letters if c in out)
            inner = self.algebra.contract(step.left, above, shared, tag=f"backward {statement.tensor}")
            whole = self.algebra.scaled(self.algebra.contract(step.right, inner, out), *step.scalars)
            parts.append(named(whole, f"(step {step.step + 1} of d{symbol})^T {above.name}"))
        whole = self.algebra.add(parts) if parts else self.algebra.nothing(out)
        return named(whole, f"d{symbol}^T {above.name}")

    def _root_entries(self, role: str) -> int:
        """Packed square root of the number of entries of a tensor, per expert."""
        tensor = self.network.tensors[role]
        powers: dict[str, Fraction] = {}
        for axis in (self.network.axes[x] for x in tensor.fan_in + tensor.fan_out):
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
