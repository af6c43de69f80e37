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
    """A network at one step of training, with its signals and their parts; results are cached.

    Attributes:
        model: the network.
        now: the weights W_t, by tensor.
        start: the initial weights W_0, by tensor, shrunk by the weight decay since then.
        noise: noise signals of this step.
        first: the network before the first update; None if this object is it.
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
        """Returns the value of every signal by name, (S, *indices)."""
        return self.model.signals(self.now, self.noise)

    def alone(self, changing: str, outside: Collection[str]) -> Moment:
        """Returns the network as if, since the start, only one tensor or one signal had changed.

        Args:
            changing: name of the tensor or signal.
            outside: signals that are taken as inputs and not computed: the one named ``changing`` has its present
                value, the others their initial values.
        """
        now = {role: self.now[role] if role == changing else w for role, w in self.start.items()}
        initial = self.initial()
        given = {x: (self.signals() if x == changing else initial)[x] for x in outside}
        signals = self.model.signals(now, (self.first or self).noise, given)
        return replace(self, now=now, known={("signals",): signals, ("initial",): initial})

    @cache_result
    def initial(self) -> Signals:
        """Returns the values of all signals before the first update, by name; with weight decay, those that the decayed
        initial weights give.
        """
        if self.first is None or self.start is self.first.now:
            return (self.first or self).signals()
        return self.model.signals(self.start, self.first.noise)

    @cache_result
    def change(self, name: str) -> Tensor:
        """Returns a signal minus its initial value."""
        return self.signals()[name] - self.initial()[name]

    def of_token(self, model: TorchNetwork, first: Moment | None) -> Moment:
        """Returns the network as one token sees it: only with the K experts that the token is routed to.

        Args:
            model: the equations of the network for one token.
            first: the result of this method before the first update; None if this object is at that step.
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
        """Returns the network with W_0 as it was initialised, not shrunk by weight decay, so that changes are measured
        from it.
        """
        return replace(self, start=self.first.now, known=self.get_lasting()) if self.first else self

    def get_lasting(self) -> dict[tuple[Any, ...], Any]:
        """Returns the cache reduced to the present signals. They do not depend on the initial weights, so they stay
        valid in a copy of the network with other initial weights.
        """
        return {("signals",): self.signals()}

    def argument(self, function: Function) -> tuple[Tensor, int]:
        """Returns the argument of a function, with indices in the order of the function's output, and the dimension
        along which the function acts, such as that of a softmax.
        """
        (x,), indices = function.inputs, self.network.signals[function.out]
        return self.model.permute_axes(self.signals()[x.name], x.indices, indices), 1 + indices.index(function.over)

    def part(self, s: Product, modes: Sequence[Mode], *which: str) -> Tensor:
        """Returns the sum of some parts of a product of a tensor and signals, such as W_0 dx or dW x_0.

        Args:
            s: the product.
            modes: the parts of the tensor: its initial value ("init"), its update ("update") or both.
            which: the parts of the other factors: "initial" signals, their "change", or "regated" (present signals
                times the change of gates).
        """
        terms = expand_product(self.network, s)
        found = [x for term in terms for mode in modes for name in which for x in self._part(s.out, term, mode, name)]
        return add_tensors(found) if found else torch.zeros_like(self.signals()[s.out])

    @cache_result
    def _part(self, out: str, term: Term, mode: Mode, which: str) -> list[Tensor]:
        """Returns one part of a term as a list of summands, which is empty if the part is exactly zero.

        ``mode`` is the part of the tensors and ``which`` that of the other factors, as for ``part``.
        """
        return [x for column in self._columns(term, which) for x in self._product(out, term, mode, column)]

    def _columns(self, term: Term, which: str) -> Iterator[list[Labelled]]:
        """Yields, for every summand of one part of a term, its factors other than tensors. ``which`` is as for
        ``part``.

        Law: the change of a product is a sum over its factors. In each summand one factor is replaced by its change,
        those before it have their present value, and those after it their initial value.
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
        """Returns a product of a tensor and one signal, with ``x`` in place of the signal and with gates at their
        initial values. ``mode`` says whether the tensor is W_0 or W_t - W_0.
        """
        (term,) = expand_product(self.network, s)
        operands = [(term.signals[0].indices, x), *((g.indices, self.initial()[g.name]) for g in term.weights)]
        found = self._product(s.out, term, mode, operands)
        return found[0] if found else torch.zeros_like(self.signals()[s.out])

    def _product(self, out: str, term: Term, mode: Mode, operands: Sequence[Labelled]) -> list[Tensor]:
        """Multiplies operands by the tensors of a term, with their values W_0 if ``mode`` is "init", or W_t - W_0 if
        it is
        "update". Returns a list with the product as its only entry, or an empty list if the product is exactly zero.
        """
        indices = self.network.signals[out]
        if mode == "init":
            return [multiply_term(self.model, self.start, term, operands, indices)]
        if self.first is None or not term.tensors:
            return []
        now, start = (multiply_term(self.model, x, term, operands, indices) for x in (self.now, self.start))
        return [now - start]


def multiply_term(model: TorchNetwork, weights: Weights, term: Term, operands: Sequence[Labelled], out: str) -> Tensor:
    """Returns the product of the tensors and multipliers of a term (one way to write a product in terms of tensors and
    signals) with further operands, summed over the indices that are not in ``out``.

    Args:
        model: the network.
        weights: values of the tensors.
        term: the term.
        operands: the further factors, with their indices.
        out: indices of the result.
    """
    scale, todo = model.multiplier(term.multipliers), list(operands) or [("", model.x.new_ones(1))]
    if scale != 1:
        k = min(range(len(todo)), key=lambda k: todo[k][1].numel())
        todo[k] = todo[k][0], scale * todo[k][1]
    return contract([*((x.indices, weights[x.name]) for x in term.tensors), *todo], out, model.sizes)
