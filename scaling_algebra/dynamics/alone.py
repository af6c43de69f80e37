"""Training runs that isolate one cause: a single tensor or signal changes, or gradients are those of a single loss.

Law: let x be a function F(W, h) of the tensors W and of the signals h that enter a block. The piece of x that is due
to one of them is F with the present value of this one and initial values of all others, minus F with all initial
values. For ``x = W h`` the pieces are ``dW h_0`` (due to W) and ``W_0 dh`` (due to h). A piece is computed as the
change of x in a training run of its own, in which the others keep their initial values.
"""

from __future__ import annotations

from collections.abc import Collection
from copy import copy
from dataclasses import replace
from typing import Any

from scaling_algebra.counting.signals import Signal
from scaling_algebra.spec.networks.language import Factor

from .products import Increment, Stepping
from .run import Modes, TrainingRun, Which


class _SoleChange(TrainingRun):
    """Mixin for a training run in which only one tensor, or one signal that enters a part of the network (a block),
    changes. It gives the share of this cause in the change of the block's output.

    Attributes:
        whole: the run in which everything changes.
        changing: name of the tensor or signal that changes.
        outside: names of the signals that enter the block; within it they are inputs.
    """

    whole: TrainingRun
    changing: str
    outside: frozenset[str]

    def read_factor(self, factor: Factor, which: Which, t: int) -> Signal:
        if factor.name not in self.outside:
            return super().read_factor(factor, which, t)
        if which == "change" and factor.name != self.changing:
            return self.algebra.zeros(factor.indices)
        return self.whole.read_factor(factor, which if factor.name == self.changing else "initial", t)

    def change(self, signal: str, t: int) -> Signal:
        s = self.network.producer(signal)
        if t == 0 or s is None:
            return super().change(signal, t)
        return self.remember(("change", signal, t), f"{signal}.change@{t}", lambda: self.compute_change(s, t))


class _SingleTensorSteps:
    """The optimizer steps of a training run in which all tensors but one are frozen."""

    def __init__(self, whole: Stepping, role: str) -> None:
        self.whole, self.role = whole, role

    def increments(self, role: str, t: int) -> list[Increment]:
        """Returns the updates of the tensor ``role`` in the first t steps if it is the one that trains; otherwise an
        empty list.
        """
        return self.whole.increments(role, t) if role == self.role else []


def vary_only(run: TrainingRun, changing: str, outside: Collection[str]) -> Any:
    """Returns a copy of a training run in which only one tensor changes, or only one of the signals that enter a part
    of the network (a block).

    Args:
        run: the run in which everything changes.
        changing: name of the tensor, or one of ``outside``.
        outside: the signals that enter the block. All of them keep their initial values, except ``changing``.
    """
    one = _copy_with_mixin(run, _SoleChange)
    one.context = replace(
        run.context, ledger=run.ledger, name=f"{run.context.name} alone {changing}", certified=_certify_nothing
    )
    one.whole, one.changing, one.outside = run, changing, frozenset(outside)
    one.steps = _SingleTensorSteps(run.steps, changing)
    return one


class _SingleLoss(TrainingRun):
    """Mixin for a training run in which signals have the same values as in the full run, but gradients are those of one
    loss only.

    Attributes:
        whole: the run with the gradients of all losses.
        loss: name of the signal that is differentiated.
    """

    whole: TrainingRun
    loss: str

    def gradient(self, signal: str, t: int, modes: Modes | None = None, via: str = "") -> Signal:
        key = ("gradient by", self.loss, signal, t, tuple(sorted((modes or {}).items())), via)
        return self.remember(key, f"d{self.loss}/d{signal}@{t}", lambda: self._gradient(signal, t, modes or {}, via))

    def _gradient(self, signal: str, t: int, modes: Modes, via: str) -> Signal:
        if self.network.consumers(signal) or signal == self.loss:
            passed: Signal = super()._gradient(signal, t, modes, via)  # type: ignore[misc]
            return passed
        return self.algebra.zeros(self.network.signals[signal])


def select_loss(run: TrainingRun, loss: str) -> Any:
    """Returns a copy of a training run with the same values of signals, whose gradients are those of one loss only.

    Args:
        run: the run with the gradients of all losses.
        loss: name of the signal that is differentiated.
    """
    one = _copy_with_mixin(run, _SingleLoss)
    one.context = replace(run.context, ledger=run.ledger, start=None)
    one.whole, one.loss = run, loss
    return one


def _copy_with_mixin(run: TrainingRun, mixed: type) -> Any:
    """Returns a shallow copy of a training run, whose class inherits from the mixin ``mixed`` and from the class of
    ``run``, so that the methods of the mixin come first.
    """
    one: Any = copy(run)
    kind = f"{mixed.__name__[1:]}{type(run).__name__}"
    one.__class__ = _KINDS.setdefault((mixed, type(run)), type(kind, (mixed, type(run)), {}))
    return one


_KINDS: dict[tuple[type, type], type] = {}
"""Cache of the combined classes: (mixin, class of the run) -> class."""


def _certify_nothing(name: str, t: int) -> None:
    """Returns None for every quantity, in place of ``RunContext.certified``: sizes that are certified for the full run
    do not apply to a run in which only one thing changes."""
