"""Unrolls training exactly: forward, backward and update signals of a program at every step.

The backward pass is the derivative of the program (a multilinear network: remove the leaf), so no gradient is written
by hand. Every linear map splits as W_t x_t = W_0 x_0 + W_0 dx + dW x_0 + dW dx.
Read next: ``quantities.py`` (the named parts), ``solver.py`` (which parameters make them Theta(1)).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from .axes import Ray
from .optimizers import Optimizer
from .programs import Aggregate, Gate, Linear, Program
from .signals import Algebra, Signal

Mode = Literal["init", "update"]


@dataclass(frozen=True)
class Point:
    """Numbers for the unknowns on one ray: sigma ~ n^-b, lr ~ n^-c, eps ~ n^-d, aggregation multiplier n^-alpha.

    Attributes:
        b: init exponent by role; None is zero init.
        tied: roles whose initial values all experts share.
    """

    b: Mapping[str, Fraction | None]
    c: Mapping[str, Fraction]
    d: Mapping[str, Fraction]
    alpha: Fraction
    tied: frozenset[str] = frozenset()


def unknowns(program: Program) -> tuple[str, ...]:
    """Names of b, c, d of every tensor, and alpha: ``("b.input", ..., "alpha")``."""
    return (*(f"{x}.{role}" for x in "bcd" for role in program.tensors), "alpha")


def algebra_for(program: Program, ray: Ray, gap: Fraction) -> Algebra:
    """The algebra whose letters and unknowns are those of a program."""
    return Algebra(ray, program.axes, unknowns(program), gap)


@dataclass(frozen=True, slots=True)
class Increment:
    """One step of one tensor: ``scale * left (x) right``, a rank-one update per expert."""

    scale: int
    left: Signal
    right: Signal


class Trajectory:
    """All signals of a training run, computed on demand and kept.

    Standing assumptions (MSSP paper, J.2): loss derivative, gates and gate slopes are Theta(1); one sample; linear
    activations (a nonlinearity with non-zero mean slope changes no exponent).
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
        self._multiplier = algebra.pack(-point.alpha, {}, {"alpha": -1})
        self._increments: dict[str, list[list[Increment]]] = {role: [] for role in program.tensors}
        self._steps: dict[str, list[int]] = {role: [] for role in program.tensors}
        self._gradients: dict[str, list[int]] = {role: [] for role in program.tensors}
        self.sound = True
        """Every gradient size so far was certified (normalising optimizers divide by them)."""
        self._memo: dict[tuple[object, ...], Signal] = {}

    # forward ---------------------------------------------------------------------------------------------------

    def initial(self, signal: str) -> Signal:
        """Value before training."""
        return self._kept(("initial", signal), lambda: self._initial_value(signal))

    def change(self, signal: str, t: int) -> Signal:
        """Value after t updates minus the initial value."""
        if t == 0 or signal == "data":
            return self.algebra.nothing(self.program.signals[signal])
        return self._kept(("change", signal, t), lambda: self._change(signal, t))

    def value(self, signal: str, t: int) -> Signal:
        """Value after t updates."""
        if t == 0 or signal == "data":
            return self.initial(signal)
        return self._kept(
            ("value", signal, t), lambda: self.algebra.add([self.initial(signal), self.change(signal, t)])
        )

    def apply(self, role: str, mode: Mode, x: Signal, t: int, out: str | None = None) -> Signal:
        """``W_0 x`` or ``(W_t - W_0) x`` for the tensor of a role; letters missing from ``out`` are summed at once."""
        out = self.program.signals[self.program.linear(role).out] if out is None else out
        if mode == "init":
            return self.algebra.contract(self._initial[role], x, out)
        parts = []
        for step in self._updates(role, t):
            inner = self.algebra.contract(
                step.right, x, "".join(c for c in step.right.letters if c in step.left.letters)
            )
            parts.append(self.algebra.shift(self.algebra.contract(step.left, inner, out), step.scale))
        return self.algebra.add(parts) if parts else self.algebra.nothing(out)

    def change_via(self, signal: str, t: int, via: str) -> Signal:
        """Part of the change of a first-layer signal that its gradient received through one statement."""
        how = self.program.producer(signal)
        assert isinstance(how, Linear) and self.program.producer(how.source) is None
        x = self.initial(how.source)
        parts = []
        for k, step in enumerate(self._updates(how.tensor, t)):
            left = self.gradient(signal, self._steps[how.tensor][k], via=via)
            inner = self.algebra.contract(step.right, x, "")
            parts.append(
                self.algebra.shift(self.algebra.contract(left, inner, self.program.signals[signal]), step.scale)
            )
        return self.algebra.add(parts) if parts else self.algebra.nothing(self.program.signals[signal])

    def aggregate(self, mode: Mode, x: Signal, t: int) -> Signal:
        """``M^-alpha sum_i phi_i W^i x_i`` with Theta(1) gates, for one part of the tensor before the aggregation.

        The sum over experts and the product with the tensor are one contraction: its operator norm is known.
        """
        how = self.program.aggregate
        inner = self.program.producer(how.source)
        assert isinstance(inner, Linear)
        return self.algebra.shift(self.apply(inner.tensor, mode, x, t, self.program.signals[how.out]), self._multiplier)

    # backward --------------------------------------------------------------------------------------------------

    def gradient(self, signal: str, t: int, modes: Mapping[str, Mode] | None = None, via: str | None = None) -> Signal:
        """Derivative of the output with respect to a signal after t updates.

        Args:
            modes: keep only this part of these tensors (the others are whole).
            via: only through the statement that computes this signal.
        """
        modes = dict(modes or {})
        key = ("gradient", signal, t, tuple(sorted(modes.items())), via)
        return self._kept(key, lambda: self._gradient(signal, t, modes, via))

    def raw_gradient_size(self, role: str, t: int) -> int | None:
        """Packed entry size of the gradient of a tensor; None if exactly zero.

        Law: rms(u v^T) = rms(u) rms(v), since no index is summed and experts are exchangeable.
        """
        left, right = self._factors(role, t)
        self.sound = self.sound and self.algebra.certified(left) and self.algebra.certified(right)
        u, v = self.algebra.rms(left), self.algebra.rms(right)
        return None if u is None or v is None else u + v

    def update_size(self, role: str, t: int) -> int | None:
        """Packed entry size of ``W_t - W_0``."""
        sizes = []
        for step in self._updates(role, t):
            u, v = self.algebra.rms(step.left), self.algebra.rms(step.right)
            if u is not None and v is not None:
                sizes.append(step.scale + u + v)
        return max(sizes, default=None)

    # inside ----------------------------------------------------------------------------------------------------

    def _kept(self, key: tuple[object, ...], compute: Callable[[], Signal]) -> Signal:
        if key not in self._memo:
            self._memo[key] = compute()
        return self._memo[key]

    def _initial_value(self, signal: str) -> Signal:
        how = self.program.producer(signal)
        if how is None:
            return self.algebra.constant(self.program.signals[signal])
        if isinstance(how, Linear):
            return self.apply(how.tensor, "init", self.initial(how.source), 0)
        if isinstance(how, Gate):
            return self.algebra.constant(self.program.signals[signal])
        return self.aggregate("init", self.initial(self._below(how)), 0)

    def _change(self, signal: str, t: int) -> Signal:
        how = self.program.producer(signal)
        assert how is not None
        if isinstance(how, Linear):
            propagated = self.apply(how.tensor, "init", self.change(how.source, t), t)
            return self.algebra.add([propagated, self.apply(how.tensor, "update", self.value(how.source, t), t)])
        if isinstance(how, Gate):
            return self.change(how.source, t)
        propagated = self.aggregate("init", self.change(self._below(how), t), t)
        return self.algebra.add([propagated, self.aggregate("update", self.value(self._below(how), t), t)])

    def _below(self, how: Aggregate) -> str:
        """The signal that the tensor before an aggregation reads."""
        inner = self.program.producer(how.source)
        assert isinstance(inner, Linear)
        return inner.source

    def _gradient(self, signal: str, t: int, modes: Mapping[str, Mode], via: str | None) -> Signal:
        letters = self.program.signals[signal]
        paths = [s for s in self.program.consumers(signal) if via in (None, s.out)]
        if not paths:
            return self.algebra.constant(letters)  # the output itself
        return self.algebra.add([self._through(s, signal, t, modes) for s in paths])

    def _through(self, how: Linear | Gate | Aggregate, signal: str, t: int, modes: Mapping[str, Mode]) -> Signal:
        above = self.gradient(how.out, t, modes)
        letters = self.program.signals[signal]
        if isinstance(how, Gate):
            return above
        if isinstance(how, Linear):
            return self._whole(how, above, t, modes)
        if how.gate == signal:  # <h3i, g3> as (W3^T g3) . h2: h3i itself is never formed (MSSP paper, App. I.9)
            inner = self.program.producer(how.source)
            assert isinstance(inner, Linear)
            back = self._whole(inner, above, t, modes)
            whole = self.algebra.contract(back, self.value(inner.source, t), letters)
        else:
            whole = self.algebra.contract(self.algebra.constant(self.program.signals[how.gate]), above, letters)
        return self.algebra.shift(whole, self._multiplier)

    def _whole(self, how: Linear, above: Signal, t: int, modes: Mapping[str, Mode]) -> Signal:
        """``W_t^T above``, or one part of it."""
        parts: tuple[Mode, ...] = (modes[how.tensor],) if how.tensor in modes else ("init", "update")
        return self.algebra.add([self._transposed(how, mode, above, t) for mode in parts])

    def _transposed(self, how: Linear, mode: Mode, above: Signal, t: int) -> Signal:
        out = self.program.signals[how.source]
        if mode == "init":
            return self.algebra.contract(self._initial[how.tensor], above, out)
        parts = []
        for step in self._updates(how.tensor, t):
            inner = self.algebra.contract(step.left, above, "".join(c for c in step.left.letters if c in out))
            parts.append(self.algebra.shift(self.algebra.contract(step.right, inner, out), step.scale))
        return self.algebra.add(parts) if parts else self.algebra.nothing(out)

    def _factors(self, role: str, t: int) -> tuple[Signal, Signal]:
        """The rank-one gradient of a tensor: (gradient at its output, its input)."""
        how = self.program.linear(role)
        return self.gradient(how.out, t), self.value(how.source, t)

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
            self._steps[role].append(step)
            epsilon = self.algebra.pack(-self.point.d[role], {}, {f"d.{role}": -1})
            scale = self.algebra.pack(-self.point.c[role], {}, {f"c.{role}": -1})
            scale -= self.optimizer.normaliser(self._gradients[role], epsilon)
            done.append([*before, Increment(scale, *self._factors(role, step))])
        return done[t - 1] if t else []
