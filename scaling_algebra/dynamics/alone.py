"""Runs in which one tensor or one signal alone changes, the pieces of a sum over experts; gradients of one loss alone.

Law: with F(W, h) a function of the tensors W and of the signals h that enter, the piece of x is F where x alone has its
present value, minus F where all have their initial ones. Every domain reads it by its own rules of change.
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


class _Alone(TrainingRun):
    """Mixed into the class of a run."""

    whole: TrainingRun
    changing: str
    outside: frozenset[str]

    def at(self, factor: Factor, which: Which, t: int) -> Signal:
        if factor.name not in self.outside:
            return super().at(factor, which, t)
        if which == "change" and factor.name != self.changing:
            return self.algebra.nothing(factor.indices)
        return self.whole.at(factor, which if factor.name == self.changing else "initial", t)

    def change(self, signal: str, t: int) -> Signal:
        s = self.network.producer(signal)
        if t == 0 or s is None:
            return super().change(signal, t)
        return self.kept(("change", signal, t), f"{signal}.change@{t}", lambda: self.moved(s, t))


class _OneTensor:
    """The steps of one tensor alone."""

    def __init__(self, whole: Stepping, role: str) -> None:
        self.whole, self.role = whole, role

    def of(self, role: str, t: int) -> list[Increment]:
        """Increments of the first t steps."""
        return self.whole.of(role, t) if role == self.role else []


def alone(run: TrainingRun, changing: str, outside: Collection[str]) -> Any:
    """A run of the same kind.

    Args:
        changing: the role of a tensor, or a signal that comes from outside.
        outside: signals that keep their initial values, but for that one.
    """
    one = _copied(run, _Alone)
    one.context = replace(run.context, ledger=run.ledger, name=f"{run.context.name} alone {changing}", certified=_none)
    one.whole, one.changing, one.outside = run, changing, frozenset(outside)
    one.steps = _OneTensor(run.steps, changing)
    return one


class _ByLoss(TrainingRun):
    """Mixed into the class of a run: the values of the whole run, and gradients of one loss alone."""

    whole: TrainingRun
    loss: str

    def gradient(self, signal: str, t: int, modes: Modes | None = None, via: str = "") -> Signal:
        key = ("gradient by", self.loss, signal, t, tuple(sorted((modes or {}).items())), via)
        return self.kept(key, f"d{self.loss}/d{signal}@{t}", lambda: self._gradient(signal, t, modes or {}, via))

    def _gradient(self, signal: str, t: int, modes: Modes, via: str) -> Signal:
        if self.network.consumers(signal) or signal == self.loss:
            passed: Signal = super()._gradient(signal, t, modes, via)  # type: ignore[misc]
            return passed
        return self.algebra.nothing(self.network.signals[signal])


def by_loss(run: TrainingRun, loss: str) -> Any:
    """A run of the same kind with the same values, and gradients of one loss alone."""
    one = _copied(run, _ByLoss)
    one.context = replace(run.context, ledger=run.ledger, start=None)
    one.whole, one.loss = run, loss
    return one


def _copied(run: TrainingRun, mixed: type) -> Any:
    """A copy of a run, with a class mixed into its own."""
    one: Any = copy(run)
    kind = f"{mixed.__name__[1:]}{type(run).__name__}"
    one.__class__ = _KINDS.setdefault((mixed, type(run)), type(kind, (mixed, type(run)), {}))
    return one


_KINDS: dict[tuple[type, type], type] = {}
"""The class of such a run, for every class of runs."""


def _none(name: str, t: int) -> None:
    """Sizes of the whole run are not those of this one."""
