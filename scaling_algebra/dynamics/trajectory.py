"""Unrolls training exactly: forward, backward and update signals of a network at every step.

The backward pass is the derivative of the network, so no gradient is written by hand. A gradient of a tensor stays a
product of the gradient at its output and of what it acted on, one product for every use of the tensor.
Read next: ``rules.py`` (what each kind of statement does), ``quantities.py`` (the named parts), ``newton.py`` (which
parameters make them Theta(1)).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial

from scaling_algebra.counting.kernels import Exhausted
from scaling_algebra.counting.signals import EntrySize, Scalar, Signal
from scaling_algebra.spec.desiderata import HORIZON
from scaling_algebra.spec.networks.auxiliary import find_selection_inputs
from scaling_algebra.spec.networks.indices import EXPERTS
from scaling_algebra.spec.networks.language import Function, Product, Statement
from scaling_algebra.spec.networks.roles import gradient_name

from .alone import alone, by_loss
from .norms import over
from .rules import ENTRYWISE, rule
from .run import Modes, TrainingRun
from .updates import DecayingSteps, TensorSteps


class Trajectory(TrainingRun):
    """All signals of a training run, computed on demand and kept: what ``quantities.Run`` says, of exponents."""

    stepping: type[TensorSteps] = TensorSteps
    steps: TensorSteps

    def __post_init__(self) -> None:
        super().__post_init__()
        self.steps = self.stepping(self)

    def value(self, signal: str, t: int) -> Signal:
        statement = self.network.producer(signal)
        if statement is None:
            return self.algebra.given(signal, self.network.signals[signal])  # the input, or a constant
        if t == 0 and self.context.start is not None:
            return self.context.start.value(signal, 0)
        return self.kept(("value", signal, t), f"{signal}@{t}", lambda: rule(statement).value(self, statement, t))

    def change(self, signal: str, t: int) -> Signal:
        statement = self.network.producer(signal)
        if t == 0 or statement is None:
            return self.algebra.nothing(self.network.signals[signal])
        key = ("change", signal, t)
        return self.kept(key, f"{signal}.change@{t}", lambda: self.moved(statement, t))

    def moved(self, statement: Statement, t: int) -> Signal:
        return rule(statement).change(self, statement, t)

    def change_via(self, signal: str, t: int, via: str) -> Signal:
        """Part of the effective update of one tensor times one signal whose gradients came through one statement."""
        statement = self.network.producer(signal)
        assert isinstance(statement, Product) and statement.tensor
        x, indices = self.at(statement.factors[0], "initial", 0), self.network.signals[signal]
        parts = []
        for step in self.steps.of(statement.tensor.name, t):
            alone = replace(step, gradient=self.steps.through(signal, step.step, via))
            parts.append(self.products.applied([(statement.tensor, alone)], [], [x], indices))
        return self.algebra.add(parts) if parts else self.algebra.nothing(indices)

    def spread(self, function: Function, t: int) -> Signal:
        function = self.own(function)
        return self.algebra.centred(self.at(function.inputs[0], "value", t), function.over)

    def relative(self, signal: Signal, source: str, t: int) -> Signal:
        """A signal over the size of another one after t updates.

        Raises:
            Exhausted: that size is not certified.
        """
        whole = self.value(source, t)
        if not self.algebra.certified(whole):
            raise Exhausted
        return self.algebra.scaled(signal, Scalar(f"1/rms of {source}@{t}", -(self.algebra.rms(whole) or 0)))

    def divide_by_norm(self, function: Function, signal: Signal, t: int) -> Signal:
        return over(self, function, signal, t)

    def inner(self, left: Signal, right: Signal) -> Signal:
        """The inner product of two signals over all indices but the expert's.

        Raises:
            ValueError: they have other indices.
        """
        experts = "".join(x for x, axis in self.network.indices.items() if axis in EXPERTS)
        if set(left.indices) - set(experts) != set(right.indices) - set(experts):
            raise ValueError("an inner product of signals with different indices")
        kept = "".join(x for x in experts if x in left.indices + right.indices)
        return self.algebra.contract(left, right, kept)

    def alone(self, changing: str, outside: Collection[str]) -> Trajectory:
        run: Trajectory = alone(self, changing, outside)
        return run

    def by(self, loss: str) -> Trajectory:
        run: Trajectory = self.ledger.remembered((self.context.name, "by", loss), lambda: by_loss(self, loss))
        return run

    def loss_gradient_ratio(self, loss: str, signal: str, t: int) -> Signal:
        """The gradient of a loss beside the output at a signal, over the largest of that of the output in the first
        updates.

        Raises:
            Exhausted: that size is not certified.
        """
        main, sizes = self.by(self.network.output), list[int]()
        for k in range(max(t, HORIZON) + 1):
            size = self.context.certified(f"{gradient_name(self.network, signal)}.by-{self.network.output}", k)
            whole = main.gradient(signal, k) if size is None else None
            if whole is not None and not whole.zero:
                size = self.algebra.rms(whole)
                if size is None or not self.algebra.certified(whole):
                    raise Exhausted
            sizes += [] if size is None else [size]
        if not sizes:
            return self.algebra.nothing(self.network.signals[signal])
        size = max(sizes, key=self.algebra.value)
        return self.algebra.scaled(self.by(loss).gradient(signal, t), Scalar(f"1/rms of df/d{signal}", -size))

    def decaying(self) -> Trajectory:
        """The same run, with weight decay as one more step of every tensor along itself."""
        context = replace(self.context, ledger=self.ledger, name=f"{self.context.name} with decay")
        run = partial(_Decaying, self.network, self.algebra, self.point, self.optimizer, context)
        return self.ledger.remembered((self.context.name, "decaying"), run)

    def gradient(self, signal: str, t: int, modes: Modes | None = None, via: str = "") -> Signal:
        modes = dict(modes or {})
        if t == 0 and self.context.start is not None:
            return self.context.start.gradient(signal, 0, modes, via)
        key = ("gradient", signal, t, tuple(sorted(modes.items())), via)
        kept = [f"{self.network.tensors[r].symbol} {m}" for r, m in modes.items()] + ([f"via {via}"] if via else [])
        name = f"df/d{signal}@{t}" + (f" ({', '.join(kept)})" if kept else "")
        return self.kept(key, name, lambda: self._gradient(signal, t, modes, via))

    def raw_gradient_size(self, role: str, t: int) -> EntrySize:
        return self.steps.raw_gradient_size(role, t)

    def update_size(self, role: str, t: int) -> EntrySize:
        return self.steps.update_size(role, t)

    def _gradient(self, signal: str, t: int, modes: Modes, via: str) -> Signal:
        indices = self.network.signals[signal]
        if mask := find_selection_inputs(self.network).get(signal):
            return self.count(mask, indices, t)
        uses = [(s, k) for s, k in self.network.consumers(signal) if via in ("", s.out)]
        if not uses:
            return self.algebra.constant(indices)  # the output itself
        paths = []
        for s, k in uses:
            above = self.gradient(s.out, t, modes)
            passed = rule(s).adjoint(self, s, k, above, t, modes)
            path = self.algebra.relabelled(passed, s.inputs[k].indices, indices)
            paths.append(self.named(path, f"through {s.out}"))
        return self.algebra.add(paths)

    def count(self, mask: Function, indices: str, t: int) -> Signal:
        """The count of tokens that a selection takes at every entry, less the mean: a buffer's steps follow it."""
        chosen = self.algebra.tensor(ENTRYWISE.selected(self, mask, t), indices, 0)
        return self.algebra.centred(chosen, mask.over) if mask.over in chosen.indices else chosen


class _Decaying(Trajectory):
    """A run with weight decay."""

    decays = True
    stepping = DecayingSteps
