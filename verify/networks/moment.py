"""A network at one moment of training: every signal, in its parts.

The parts of W_t x = W_0 x + dW x come from contractions with W_0 and with W_t. All operands of a tensor are stacked,
since reading the tensor takes longest. No rule of the engine is used here. Read next:
``backward.py`` (the backward pass), ``run.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

from scaling_algebra.spec.networks.language import DATA, Function, Mode, Product
from scaling_algebra.spec.networks.terms import Term, written_out

from .contraction import Labelled, contract
from .torch_network import Signals, TorchNetwork

T = TypeVar("T")

COLUMN = "0"
"""The letter of columns, which are contracted with a tensor together. No network has it."""

Weights = dict[str, Tensor]


def rms(x: Tensor) -> Tensor:
    """Root-mean-square over the entries of each replica, (S, ...) -> (S,)."""
    if x.ndim == 1:
        return x.abs()
    size: Tensor = torch.linalg.vector_norm(x, dim=tuple(range(1, x.ndim)), dtype=torch.float64)
    return size / x[0].numel() ** 0.5


def added(parts: Sequence[Tensor]) -> Tensor:
    """The sum of one tensor or more."""
    return sum(parts[1:], parts[0])


def remembered(compute: Callable[..., T]) -> Callable[..., T]:
    """A method whose results are kept in ``known`` of its object."""

    @wraps(compute)
    def once(self: Any, *args: Any) -> T:
        key = compute.__name__, *args
        if key not in self.known:
            self.known[key] = compute(self, *args)
        found: T = self.known[key]
        return found

    return once


@dataclass
class Moment:
    """A network after some updates. What is computed is kept.

    Attributes:
        now, start: W_t and W_0 by role. noise: of this step.
        first: the state before the first update, if this is another one.
    """

    model: TorchNetwork
    now: Weights
    start: Weights
    noise: Signals
    first: Moment | None = None
    known: dict[tuple[Any, ...], Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.network = self.model.network

    @remembered
    def signals(self) -> Signals:
        """Every signal, (S, *letters)."""
        return self.model.signals(self.now, self.noise)

    def alone(self, changing: str, outside: Collection[str]) -> Moment:
        """The moment at which one tensor, or one of the signals that come from outside, alone has changed."""
        now, initial = (
            {role: self.now[role] if role == changing else w for role, w in self.start.items()},
            self.initial(),
        )
        given = {x: (self.signals() if x == changing else initial)[x] for x in outside}
        signals = self.model.signals(now, (self.first or self).noise, given)
        return replace(self, now=now, known={("signals",): signals, ("initial",): initial})

    @remembered
    def initial(self) -> Signals:
        """Every signal before training."""
        if self.first is None or self.start is self.first.now:
            return (self.first or self).signals()
        return self.model.signals(self.start, self.first.noise)

    @remembered
    def change(self, name: str) -> Tensor:
        """A signal minus its initial value."""
        return self.signals()[name] - self.initial()[name]

    def of_token(self, model: TorchNetwork, first: Moment | None) -> Moment:
        """The same moment as one token sees it, with the moment before the first update."""
        now, start = (
            {role: model.seen(self.network.tensors[role].letters, w) for role, w in weights.items()}
            for weights in (self.now, self.start)
        )
        if self.first and first and self.start is self.first.now:
            start = first.now
        noise = {name: model.seen(self.network.signals[name], x) for name, x in self.noise.items()}
        return Moment(model, now, start, noise, first)

    @remembered
    def undecayed(self) -> Moment:
        """The state relative to initial values that do not decay."""
        return replace(self, start=self.first.now, known=self.kept()) if self.first else self

    def kept(self) -> dict[tuple[Any, ...], Any]:
        """The part of ``known`` that holds for any initial values: the signals."""
        return {("signals",): self.signals()}

    def argument(self, function: Function) -> tuple[Tensor, int]:
        """The argument of a function with the letters of its output, and the dimension that it goes along."""
        (x,), letters = function.inputs, self.network.signals[function.out]
        return self.model.turned(self.signals()[x.name], x.letters, letters), 1 + letters.index(function.over)

    def part(self, s: Product, modes: Sequence[Mode], *which: str) -> Tensor:
        """A part of a product: initial tensors or their updates with ``initial`` signals, their ``change``, or present
        signals with gates that changed, ``regated``."""
        parts = self._parts(s)
        found = [parts[mode, name] for mode in modes for name in which if (mode, name) in parts]
        return added(found) if found else torch.zeros_like(self.signals()[s.out])

    @remembered
    def _parts(self, s: Product) -> dict[tuple[Mode, str], Tensor]:
        """All parts of a product that are not exactly zero."""
        parts: dict[tuple[Mode, str], list[Tensor]] = {}
        for term in written_out(self.network, s):
            names, columns = zip(*self._columns(term), strict=True)
            operands = [
                (COLUMN + x.letters, torch.stack([column[k](x.name) for column in columns], 1))
                for k, x in enumerate((*term.weights, *term.signals))
            ]
            for mode, x in self._modes(term, operands, COLUMN + self.network.signals[s.out]).items():
                for name, column in zip(names, x.unbind(1), strict=True):
                    parts.setdefault((mode, name), []).append(column)
        return {key: added(columns) for key, columns in parts.items()}

    def _columns(self, term: Term) -> Iterator[tuple[str, list[Callable[[str], Tensor]]]]:
        """The columns that the tensors of a product act on: a name, and for every other factor the value to take.

        Law: a product of changes is a sum over its factors, each changed with what stands before at its present value.
        """
        old, new = self.initial().__getitem__, self.signals().__getitem__
        gates, count = len(term.weights), len(term.weights) + len(term.signals)
        yield "initial", [old] * count
        for k, x in enumerate((*term.weights, *term.signals) if self.first else ()):
            if k < gates:
                yield "regated", [*[new] * k, self.change, *[old] * (gates - k - 1), *[new] * (count - gates)]
            elif x.name != DATA:
                yield "change", [*[old] * gates, *[new] * (k - gates), self.change, *[old] * (count - k - 1)]

    def acting(self, s: Product, mode: Mode, x: Tensor) -> Tensor:
        """A part of a product with another signal instead of its only one, and gates at their initial values."""
        (term,) = written_out(self.network, s)
        operands = [(term.signals[0].letters, x), *((g.letters, self.initial()[g.name]) for g in term.weights)]
        found = self._modes(term, operands, self.network.signals[s.out])
        return found[mode] if mode in found else torch.zeros_like(found["init"])

    def _modes(self, term: Term, operands: Sequence[Labelled], out: str) -> dict[Mode, Tensor]:
        """The products of operands with W_0 and with W_t - W_0."""
        init = multiplied(self.model, self.start, term, operands, out)
        if self.first is None or not term.tensors:
            return {"init": init}
        return {"init": init, "update": multiplied(self.model, self.now, term, operands, out) - init}


def multiplied(model: TorchNetwork, weights: Weights, term: Term, operands: Sequence[Labelled], out: str) -> Tensor:
    """The product of tensors and other operands, the smallest of which takes the multipliers."""
    scale, todo = model.multiplier(term.multipliers), list(operands) or [("", model.x.new_ones(1))]
    if scale != 1:
        k = min(range(len(todo)), key=lambda k: todo[k][1].numel())
        todo[k] = todo[k][0], scale * todo[k][1]
    return contract([*((x.letters, weights[x.name]) for x in term.tensors), *todo], out, model.sizes)
