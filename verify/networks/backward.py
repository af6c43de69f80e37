"""The backward pass at one moment of training: gradients of the loss, whole or in parts by the tensors on their way.

A part is computed when it is first asked for. No rule of the engine is used here. Read next: ``run.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from scaling_algebra.spec.networks.auxiliary import find_selection_inputs
from scaling_algebra.spec.networks.language import Mode, Network, Product, Statement, Sum, cache_on_network
from scaling_algebra.spec.networks.terms import Term, expand_product

from .contraction import contract
from .moment import Moment, added, multiplied, once
from .scales import LOSS_SLOPE
from .torch_network import applied

Key = tuple[tuple[str, Mode], ...]
"""The parts of tensors that a gradient came through, such as (("expert_out", "init"),). Others are whole."""


@cache_on_network
def above(network: Network, signal: str) -> frozenset[str]:
    """Roles of the tensors that a gradient at a signal may come through."""
    return frozenset[str]().union(*(above(network, s.out) | own(network, s, k) for s, k in network.consumers(signal)))


def own(network: Network, s: Statement, k: int) -> frozenset[str]:
    """Roles of the tensors of a statement that the gradient at its k-th input comes through."""
    terms = expand_product(network, s, without=k) if isinstance(s, Product) else ()
    return frozenset(x.name for term in terms for x in term.tensors)


def restricted(key: Key, roles: frozenset[str]) -> Key:
    """The key with these tensors alone."""
    return tuple((role, mode) for role, mode in key if role in roles)


@dataclass
class Backward:
    """Gradients at every signal and of every tensor. What is computed is kept.

    Attributes:
        loss: the only loss that is differentiated, the output or one beside it; empty for their sum.
    """

    moment: Moment
    loss: str = ""
    known: dict[tuple[Any, ...], Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.model, self.network = self.moment.model, self.moment.network

    def gradient(self, signal: str, modes: Mapping[str, Mode], via: str = "") -> Tensor:
        """Derivative of the output with respect to a signal: with these parts of these tensors above it, on the path
        through the signal ``via``."""
        key = tuple(sorted(modes.items()))
        if not via:
            return self.at(signal, restricted(key, above(self.network, signal)))
        return added([self._through(s, k, key) for s, k in self.network.consumers(signal) if s.out == via])

    @once
    def at(self, signal: str, key: Key = ()) -> Tensor:
        """A part of the gradient at a signal."""
        if mask := find_selection_inputs(self.network).get(signal):
            chosen, letters = self.moment.signals()[mask.out], self.network.signals[mask.out]
            count = chosen - chosen.mean(1 + letters.index(mask.over), keepdim=True)
            return self.model.turned(count, letters, self.network.signals[signal])
        if not (uses := self.network.consumers(signal)):
            whole = self.moment.signals()[signal]
            return torch.ones_like(whole) if self.loss in ("", signal) else torch.zeros_like(whole)
        return added([self._through(s, k, key) for s, k in uses])

    def _through(self, s: Statement, k: int, key: Key) -> Tensor:
        """A part of the gradient at an input of a statement, on the path through it."""
        return self._made(s, k, restricted(key, own(self.network, s, k)), restricted(key, above(self.network, s.out)))

    @once
    def _made(self, s: Statement, k: int, part: Key, upper: Key) -> Tensor:
        """The same, by the parts of its own tensors and of those above."""
        x, out, model = s.inputs[k], self.network.signals[s.out], self.model
        gradient = self.at(s.out, upper)
        if isinstance(s, Sum):
            return model.turned(gradient, out, x.letters)
        if not isinstance(s, Product):
            with torch.enable_grad():
                argument = model.turned(self.moment.signals()[x.name], x.letters, out).detach().requires_grad_()
                value = applied(s, out, argument)
                stops = not value.requires_grad
                (back,) = (0 * argument,) if stops else torch.autograd.grad(value, argument, gradient)
            return model.turned(back, out, x.letters)
        if updated := next((role for role, mode in part if mode == "update"), ""):  # W_t less W_0
            whole = tuple(x for x in part if x[0] != updated)
            init: Key = tuple((role, "init" if role == updated else mode) for role, mode in part)
            return self._made(s, k, whole, upper) - self._made(s, k, init, upper)
        weights = {**self.moment.now, **{role: self.moment.start[role] for role, _ in part}}
        terms: Sequence[Term] = expand_product(self.network, s, without=k)
        if not s.tensor and not part:  # signals as they are
            terms = (Term((), (), tuple(y for j, y in enumerate(s.factors) if j != k), s.multipliers),)
        signals = self.moment.signals()
        operands = [[(out, gradient), *((y.letters, signals[y.name]) for y in (*t.weights, *t.signals))] for t in terms]
        return added([multiplied(model, weights, t, o, x.letters) for t, o in zip(terms, operands, strict=True)])

    @once
    def of_weight(self, role: str) -> Tensor:
        """The gradient of the loss with respect to a tensor, (S, *letters)."""
        return added([self.of_use(s, self.at(s.out)) for s in self.network.uses(role)])

    def of_use(self, s: Product, above: Tensor) -> Tensor:
        """The gradient of the loss with respect to the tensor of a product, from that at its output."""
        assert s.tensor
        own = self.network.tensors[s.tensor.name]
        memory = self.model.memory(own).translate(str.maketrans(own.letters, s.tensor.letters))
        scaled = self.network.signals[s.out], LOSS_SLOPE * self.model.multiplier(s.multipliers) * above
        values = [(x.letters, self.moment.signals()[x.name]) for x in s.factors]
        return self.model.turned(contract([scaled, *values], memory, self.model.sizes), memory, s.tensor.letters)
