"""A network at one moment of training: every signal, in its parts.

The parts of W_t x = W_0 x + dW x come from contractions with W_0 and with W_t, computed on first use. No rule of the
engine is used here. Read next: ``backward.py`` (the backward pass), ``run.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

from scaling_algebra.spec.networks.language import DATA, Function, Mode, Product
from scaling_algebra.spec.networks.terms import Term, expand_product

from .contraction import Labelled, contract
from .torch_network import Signals, TorchNetwork

T = TypeVar("T")

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


def once(compute: Callable[..., T]) -> Callable[..., T]:
    """A method whose results are kept in ``known`` of its object."""

    @wraps(compute)
    def kept(self: Any, *args: Any) -> T:
        key = compute.__name__, *args
        if key not in self.known:
            self.known[key] = compute(self, *args)
        found: T = self.known[key]
        return found

    return kept


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

    @once
    def signals(self) -> Signals:
        """Every signal, (S, *letters)."""
        return self.model.signals(self.now, self.noise)

    def alone(self, changing: str, outside: Collection[str]) -> Moment:
        """The moment at which one tensor, or one of the signals that come from outside, alone has changed."""
        now = {role: self.now[role] if role == changing else w for role, w in self.start.items()}
        initial = self.initial()
        given = {x: (self.signals() if x == changing else initial)[x] for x in outside}
        signals = self.model.signals(now, (self.first or self).noise, given)
        return replace(self, now=now, known={("signals",): signals, ("initial",): initial})

    @once
    def initial(self) -> Signals:
        """Every signal before training."""
        if self.first is None or self.start is self.first.now:
            return (self.first or self).signals()
        return self.model.signals(self.start, self.first.noise)

    @once
    def change(self, name: str) -> Tensor:
        """A signal minus its initial value."""
        return self.signals()[name] - self.initial()[name]

    def of_token(self, model: TorchNetwork, first: Moment | None) -> Moment:
        """The same moment as one token sees it, with the moment before the first update."""
        letters = {role: tensor.letters for role, tensor in self.network.tensors.items()}
        now, start = ({r: model.seen(letters[r], w) for r, w in weights.items()} for weights in (self.now, self.start))
        if self.first and first and self.start is self.first.now:
            start = first.now
        noise = {name: model.seen(self.network.signals[name], x) for name, x in self.noise.items()}
        return Moment(model, now, start, noise, first)

    @once
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
        terms = expand_product(self.network, s)
        found = [x for term in terms for mode in modes for name in which for x in self._part(s.out, term, mode, name)]
        return added(found) if found else torch.zeros_like(self.signals()[s.out])

    @once
    def _part(self, out: str, term: Term, mode: Mode, which: str) -> list[Tensor]:
        """The summands of a part of a term; none if it is exactly zero."""
        return [x for column in self._columns(term, which) for x in self._product(out, term, mode, column)]

    def _columns(self, term: Term, which: str) -> Iterator[list[Labelled]]:
        """The operands of the tensors of a term.

        Law: a product of changes is a sum over its factors, each changed with what stands before at its present value.
        """
        old, new = self.initial().__getitem__, self.signals().__getitem__
        others, gates = (*term.weights, *term.signals), len(term.weights)
        columns = [[old] * len(others)] if which == "initial" else []
        for k, x in enumerate(others if self.first else ()):
            if which == "regated" and k < gates:
                columns.append([*[new] * k, self.change, *[old] * (gates - k - 1), *[new] * len(term.signals)])
            elif which == "change" and k >= gates and x.name != DATA:
                columns.append([*[old] * gates, *[new] * (k - gates), self.change, *[old] * (len(others) - k - 1)])
        yield from ([(x.letters, value(x.name)) for x, value in zip(others, c, strict=True)] for c in columns)

    def acting(self, s: Product, mode: Mode, x: Tensor) -> Tensor:
        """A part of a product with another signal instead of its only one, and gates at their initial values."""
        (term,) = expand_product(self.network, s)
        operands = [(term.signals[0].letters, x), *((g.letters, self.initial()[g.name]) for g in term.weights)]
        found = self._product(s.out, term, mode, operands)
        return found[0] if found else torch.zeros_like(self.signals()[s.out])

    def _product(self, out: str, term: Term, mode: Mode, operands: Sequence[Labelled]) -> list[Tensor]:
        """The product of operands with W_0, or with W_t - W_0; empty if it is exactly zero."""
        letters = self.network.signals[out]
        if mode == "init":
            return [multiplied(self.model, self.start, term, operands, letters)]
        if self.first is None or not term.tensors:
            return []
        now, start = (multiplied(self.model, x, term, operands, letters) for x in (self.now, self.start))
        return [now - start]


def multiplied(model: TorchNetwork, weights: Weights, term: Term, operands: Sequence[Labelled], out: str) -> Tensor:
    """The product of tensors and other operands, the smallest of which takes the multipliers."""
    scale, todo = model.multiplier(term.multipliers), list(operands) or [("", model.x.new_ones(1))]
    if scale != 1:
        k = min(range(len(todo)), key=lambda k: todo[k][1].numel())
        todo[k] = todo[k][0], scale * todo[k][1]
    return contract([*((x.letters, weights[x.name]) for x in term.tensors), *todo], out, model.sizes)
