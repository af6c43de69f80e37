"""A network at one step of training: every signal, split into its parts.

The parts of W_t x = W_0 x + dW x are computed by contractions with W_0 and with W_t, when first used. No rule of the
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


def compute_rms(x: Tensor) -> Tensor:
    """Returns the root mean square over the entries of each replica, (S, ...) -> (S,)."""
    if x.ndim == 1:
        return x.abs()
    size: Tensor = torch.linalg.vector_norm(x, dim=tuple(range(1, x.ndim)), dtype=torch.float64)
    return size / x[0].numel() ** 0.5


def add_tensors(parts: Sequence[Tensor]) -> Tensor:
    """Returns the sum of one or more tensors."""
    return sum(parts[1:], parts[0])


def cache_result(compute: Callable[..., T]) -> Callable[..., T]:
    """Wraps a method so that its results are cached in ``self.known``, by its name and arguments."""

    @wraps(compute)
    def compute_once(self: Any, *args: Any) -> T:
        key = compute.__name__, *args
        if key not in self.known:
            self.known[key] = compute(self, *args)
        found: T = self.known[key]
        return found

    return compute_once


@dataclass
class Moment:
    """A network after some updates; results are cached.

    Attributes:
        model: the network.
        now: the weights W_t, by tensor.
        start: the initial weights W_0, by tensor.
        noise: noise signals of this step.
        first: the state before the first update; None if this is it.
        known: the cache.
    """

    model: TorchNetwork
    now: Weights
    start: Weights
    noise: Signals
    first: Moment | None = None
    known: dict[tuple[Any, ...], Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.network = self.model.network

    @cache_result
    def signals(self) -> Signals:
        """Returns every signal, (S, *indices)."""
        return self.model.signals(self.now, self.noise)

    def alone(self, changing: str, outside: Collection[str]) -> Moment:
        """Returns the state in which only one thing has changed since the start: one tensor, or one signal in
        ``outside``.

        Args:
            changing: name of the tensor or signal.
            outside: signals that count as inputs here and may have changed.
        """
        now = {role: self.now[role] if role == changing else w for role, w in self.start.items()}
        initial = self.initial()
        given = {x: (self.signals() if x == changing else initial)[x] for x in outside}
        signals = self.model.signals(now, (self.first or self).noise, given)
        return replace(self, now=now, known={("signals",): signals, ("initial",): initial})

    @cache_result
    def initial(self) -> Signals:
        """Returns the values of all signals before the first update."""
        if self.first is None or self.start is self.first.now:
            return (self.first or self).signals()
        return self.model.signals(self.start, self.first.noise)

    @cache_result
    def change(self, name: str) -> Tensor:
        """Returns a signal minus its initial value."""
        return self.signals()[name] - self.initial()[name]

    def of_token(self, model: TorchNetwork, first: Moment | None) -> Moment:
        """Returns the state that one token sees, that is, with its own experts.

        Args:
            model: the network of one token.
            first: the token's state before the first update.
        """
        indices = {role: tensor.indices for role, tensor in self.network.tensors.items()}
        now, start = (
            {r: model.select_seen(indices[r], w) for r, w in weights.items()} for weights in (self.now, self.start)
        )
        if self.first and first and self.start is self.first.now:
            start = first.now
        noise = {name: model.select_seen(self.network.signals[name], x) for name, x in self.noise.items()}
        return Moment(model, now, start, noise, first)

    @cache_result
    def without_decay(self) -> Moment:
        """Returns the state with changes measured relative to initial weights to which no weight decay is applied."""
        return replace(self, start=self.first.now, known=self.get_lasting()) if self.first else self

    def get_lasting(self) -> dict[tuple[Any, ...], Any]:
        """Returns the cached signals. They stay valid in a copy with other initial weights."""
        return {("signals",): self.signals()}

    def argument(self, function: Function) -> tuple[Tensor, int]:
        """Returns the argument of a function, with indices ordered as in its output, and the dimension it acts
        along."""
        (x,), indices = function.inputs, self.network.signals[function.out]
        return self.model.permute_axes(self.signals()[x.name], x.indices, indices), 1 + indices.index(function.over)

    def part(self, s: Product, modes: Sequence[Mode], *which: str) -> Tensor:
        """Returns a part of a product, summed over ``modes`` and ``which``.

        Args:
            s: the product.
            modes: initial tensors ("init") or their updates ("update").
            which: the other factors: "initial" signals, their "change", or "regated" (present signals times the change
                of gates).
        """
        terms = expand_product(self.network, s)
        found = [x for term in terms for mode in modes for name in which for x in self._part(s.out, term, mode, name)]
        return add_tensors(found) if found else torch.zeros_like(self.signals()[s.out])

    @cache_result
    def _part(self, out: str, term: Term, mode: Mode, which: str) -> list[Tensor]:
        """Returns the summands of one part of a term (see ``part`` for ``mode`` and ``which``); an empty list if it is
        exactly zero.
        """
        return [x for column in self._columns(term, which) for x in self._product(out, term, mode, column)]

    def _columns(self, term: Term, which: str) -> Iterator[list[Labelled]]:
        """Yields the operands, besides tensors, of every summand of one part of a term (see ``part`` for ``which``).

        Law: a product of changes is a sum over its factors: each factor in turn is changed, those before it have their
        present value, and those after it their initial value.
        """
        old, new = self.initial().__getitem__, self.signals().__getitem__
        others, gates = (*term.weights, *term.signals), len(term.weights)
        columns = [[old] * len(others)] if which == "initial" else []
        for k, x in enumerate(others if self.first else ()):
            if which == "regated" and k < gates:
                columns.append([*[new] * k, self.change, *[old] * (gates - k - 1), *[new] * len(term.signals)])
            elif which == "change" and k >= gates and x.name != DATA:
                columns.append([*[old] * gates, *[new] * (k - gates), self.change, *[old] * (len(others) - k - 1)])
        yield from ([(x.indices, value(x.name)) for x, value in zip(others, c, strict=True)] for c in columns)

    def apply_term(self, s: Product, mode: Mode, x: Tensor) -> Tensor:
        """Returns a part of a product in which its only signal is replaced by ``x``, with gates at their initial
        values."""
        (term,) = expand_product(self.network, s)
        operands = [(term.signals[0].indices, x), *((g.indices, self.initial()[g.name]) for g in term.weights)]
        found = self._product(s.out, term, mode, operands)
        return found[0] if found else torch.zeros_like(self.signals()[s.out])

    def _product(self, out: str, term: Term, mode: Mode, operands: Sequence[Labelled]) -> list[Tensor]:
        """Returns the product of operands with W_0, or with W_t - W_0, in a list; empty if it is exactly zero."""
        indices = self.network.signals[out]
        if mode == "init":
            return [multiply_term(self.model, self.start, term, operands, indices)]
        if self.first is None or not term.tensors:
            return []
        now, start = (multiply_term(self.model, x, term, operands, indices) for x in (self.now, self.start))
        return [now - start]


def multiply_term(model: TorchNetwork, weights: Weights, term: Term, operands: Sequence[Labelled], out: str) -> Tensor:
    """Returns the product of a term's tensors, its multipliers and further operands, summed to the indices ``out``."""
    scale, todo = model.multiplier(term.multipliers), list(operands) or [("", model.x.new_ones(1))]
    if scale != 1:
        k = min(range(len(todo)), key=lambda k: todo[k][1].numel())
        todo[k] = todo[k][0], scale * todo[k][1]
    return contract([*((x.indices, weights[x.name]) for x in term.tensors), *todo], out, model.sizes)
