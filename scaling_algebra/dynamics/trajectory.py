"""The exact training run: all signals of the forward pass, the backward pass and the updates, at every step.

The backward pass is the derivative of the network, so no gradient is written by hand. The gradient of a tensor is
stored as products (gradient at the output) * (input), one for each use of the tensor.
Read next: ``rules.py`` (the effect of training on each kind of statement), ``quantities.py`` (named parts),
``newton.py`` (which exponents make them Theta(1)).
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

from .alone import select_loss, vary_only
from .norms import apply_divisor
from .rules import ENTRYWISE, find_rule
from .run import Modes, TrainingRun
from .updates import DecayingSteps, TensorSteps


class Trajectory(TrainingRun):
    """The signals of a training run as sums of monomials with exponents of n, computed on demand and cached. It
    implements the protocol ``quantities.Run``."""

    stepping: type[TensorSteps] = TensorSteps
    steps: TensorSteps

    def __post_init__(self) -> None:
        super().__post_init__()
        self.steps = self.stepping(self)

    def value(self, signal: str, t: int) -> Signal:
        statement = self.network.producer(signal)
        if statement is None:
            return self.algebra.make_fixed_numbers(signal, self.network.signals[signal])  # an input or a constant
        if t == 0 and self.context.start is not None:
            return self.context.start.value(signal, 0)
        return self.remember(
            ("value", signal, t), f"{signal}@{t}", lambda: find_rule(statement).value(self, statement, t)
        )

    def change(self, signal: str, t: int) -> Signal:
        statement = self.network.producer(signal)
        if t == 0 or statement is None:
            return self.algebra.zeros(self.network.signals[signal])
        key = ("change", signal, t)
        return self.remember(key, f"{signal}.change@{t}", lambda: self.compute_change(statement, t))

    def compute_change(self, statement: Statement, t: int) -> Signal:
        return find_rule(statement).change(self, statement, t)

    def change_via(self, signal: str, t: int, via: str) -> Signal:
        """Returns the part of the change of a signal ``W x`` that comes from gradients on one path: W is updated by
        those gradients only that came through the signal ``via``, and x has its initial value."""
        statement = self.network.producer(signal)
        assert isinstance(statement, Product) and statement.tensor
        x, indices = self.read_factor(statement.factors[0], "initial", 0), self.network.signals[signal]
        parts = []
        for step in self.steps.increments(statement.tensor.name, t):
            alone = replace(step, gradient=self.steps.read_gradient_via(signal, step.step, via))
            parts.append(self.products.apply_increments([(statement.tensor, alone)], [], [x], indices))
        return self.algebra.add(parts) if parts else self.algebra.zeros(indices)

    def spread(self, function: Function, t: int) -> Signal:
        function = self.own_statement(function)
        return self.algebra.subtract_mean(self.read_factor(function.inputs[0], "value", t), function.over)

    def relative(self, signal: Signal, source: str, t: int) -> Signal:
        """Returns a signal divided by the size of the signal ``source`` after t updates.

        Raises:
            Exhausted: the size of ``source`` is not certified.
        """
        whole = self.value(source, t)
        if not self.algebra.is_certified(whole):
            raise Exhausted
        return self.algebra.scale_by(signal, Scalar(f"1/rms of {source}@{t}", -(self.algebra.rms(whole) or 0)))

    def divide_by_norm(self, function: Function, signal: Signal, t: int) -> Signal:
        return apply_divisor(self, function, signal, t)

    def inner(self, left: Signal, right: Signal) -> Signal:
        """Returns the inner product of two signals. It sums over all indices except those of experts.

        Raises:
            ValueError: the signals have different indices.
        """
        experts = "".join(x for x, axis in self.network.indices.items() if axis in EXPERTS)
        if set(left.indices) - set(experts) != set(right.indices) - set(experts):
            raise ValueError("the signals of an inner product have different indices")
        kept = "".join(x for x in experts if x in left.indices + right.indices)
        return self.algebra.contract(left, right, kept)

    def vary_only(self, changing: str, outside: Collection[str]) -> Trajectory:
        run: Trajectory = vary_only(self, changing, outside)
        return run

    def for_loss(self, loss: str) -> Trajectory:
        run: Trajectory = self.ledger.remember((self.context.name, "by", loss), lambda: select_loss(self, loss))
        return run

    def loss_gradient_ratio(self, loss: str, signal: str, t: int) -> Signal:
        """Returns the gradient of an auxiliary loss at a signal after t updates, divided by the size of the gradient of
        the network's output at this signal. For the latter, the largest size that it has at any of the steps up to t
        (at least ``HORIZON`` steps) is used.

        Raises:
            Exhausted: the size of the output's gradient is not certified.
        """
        main, sizes = self.for_loss(self.network.output), list[int]()
        for k in range(max(t, HORIZON) + 1):
            size = self.context.certified(f"{gradient_name(self.network, signal)}.by-{self.network.output}", k)
            whole = main.gradient(signal, k) if size is None else None
            if whole is not None and not whole.is_zero:
                size = self.algebra.rms(whole)
                if size is None or not self.algebra.is_certified(whole):
                    raise Exhausted
            sizes += [] if size is None else [size]
        if not sizes:
            return self.algebra.zeros(self.network.signals[signal])
        size = max(sizes, key=self.algebra.exponent)
        return self.algebra.scale_by(self.for_loss(loss).gradient(signal, t), Scalar(f"1/rms of df/d{signal}", -size))

    def relative_to_undecayed(self) -> Trajectory:
        """Returns a run of the same training in which changes are measured from the values at the start of training: a
        tensor changes by W_t - W_0. In all other runs, its change is W_t minus what weight decay has left of W_0."""
        context = replace(self.context, ledger=self.ledger, name=f"{self.context.name} with decay")
        run = partial(_DecayingTrajectory, self.network, self.algebra, self.point, self.optimizer, context)
        return self.ledger.remember((self.context.name, "decaying"), run)

    def gradient(self, signal: str, t: int, modes: Modes | None = None, via: str = "") -> Signal:
        modes = dict(modes or {})
        if t == 0 and self.context.start is not None:
            return self.context.start.gradient(signal, 0, modes, via)
        key = ("gradient", signal, t, tuple(sorted(modes.items())), via)
        kept = [f"{self.network.tensors[r].symbol} {m}" for r, m in modes.items()] + ([f"via {via}"] if via else [])
        name = f"df/d{signal}@{t}" + (f" ({', '.join(kept)})" if kept else "")
        return self.remember(key, name, lambda: self._gradient(signal, t, modes, via))

    def raw_gradient_size(self, role: str, t: int) -> EntrySize:
        return self.steps.raw_gradient_size(role, t)

    def update_size(self, role: str, t: int) -> EntrySize:
        return self.steps.update_size(role, t)

    def _gradient(self, signal: str, t: int, modes: Modes, via: str) -> Signal:
        indices = self.network.signals[signal]
        if mask := find_selection_inputs(self.network).get(signal):
            return self.count_selections(mask, indices, t)
        uses = [(s, k) for s, k in self.network.consumers(signal) if via in ("", s.out)]
        if not uses:
            return self.algebra.constant(indices)  # the output itself
        paths = []
        for s, k in uses:
            above = self.gradient(s.out, t, modes)
            passed = find_rule(s).adjoint(self, s, k, above, t, modes)
            path = self.algebra.rename_indices(passed, s.inputs[k].indices, indices)
            paths.append(self.with_name(path, f"through {s.out}"))
        return self.algebra.add(paths)

    def count_selections(self, mask: Function, indices: str, t: int) -> Signal:
        """Returns, for each entry of a top-K selection, the number of tokens that select it, minus the mean over all
        entries. A balancing bias is updated by this number instead of a gradient.

        Args:
            mask: the function that selects the entries.
            indices: indices of the bias.
            t: number of updates.
        """
        chosen = self.algebra.tensor(ENTRYWISE.name_selection(self, mask, t), indices, 0)
        return self.algebra.subtract_mean(chosen, mask.over) if mask.over in chosen.indices else chosen


class _DecayingTrajectory(Trajectory):
    """A training run in which weight decay counts as an update, so that the updates of a tensor contain a multiple of
    its initial value."""

    decays = True
    stepping = DecayingSteps
