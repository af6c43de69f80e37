"""The backward pass at one moment of training: gradients of the loss, whole or split by the tensors they pass through.

Parts are computed when first asked for. No rule of the engine is used here. Read next: ``run.py``.
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
from .moment import Moment, add_tensors, cache_result, multiply_term
from .scales import LOSS_SLOPE
from .torch_network import apply_function

Key = tuple[tuple[str, Mode], ...]
"""Which part (initial value or update) of which tensors a gradient passed through, such as (("expert_out",
"init"),); tensors that are not listed count with both parts."""


@cache_on_network
def find_tensors_above(network: Network, signal: str) -> frozenset[str]:
    """Returns the tensors that the gradient at a signal may pass through: those between this signal and the loss."""
    return frozenset[str]().union(
        *(find_tensors_above(network, s.out) | find_own_tensors(network, s, k) for s, k in network.consumers(signal))
    )


def find_own_tensors(network: Network, s: Statement, k: int) -> frozenset[str]:
    """Returns the tensors that multiply the k-th input of a statement, so that the gradient at this input passes
    through
    them: W in ``y = W x`` for the input x.
    """
    terms = expand_product(network, s, without=k) if isinstance(s, Product) else ()
    return frozenset(x.name for term in terms for x in term.tensors)


def restrict_key(key: Key, roles: frozenset[str]) -> Key:
    """Returns the entries of a key that are about the given tensors. A key says, for some tensors, which part of them
    (initial value or update) a gradient passed through.
    """
    return tuple((role, mode) for role, mode in key if role in roles)


@dataclass
class Backward:
    """Gradients with respect to every signal and every tensor at one step of training; results are cached.

    Attributes:
        moment: the network with its weights at this step.
        loss: name of the loss to differentiate, the output or an extra loss; empty for the sum of all.
        known: the cache.
    """

    moment: Moment
    loss: str = ""
    known: dict[tuple[Any, ...], Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.model, self.network = self.moment.model, self.moment.network

    def gradient(self, signal: str, modes: Mapping[str, Mode], via: str = "") -> Tensor:
        """Returns the derivative of the loss with respect to a signal, or a part of it.

        Args:
            signal: its name.
            modes: for tensors between the signal and the loss, whether to use their initial value ("init") or their
                update W_t - W_0 ("update") instead of W_t.
            via: if given, only the paths from ``signal`` to the loss that pass through this signal next are counted.
        """
        key = tuple(sorted(modes.items()))
        if not via:
            return self.at(signal, restrict_key(key, find_tensors_above(self.network, signal)))
        return add_tensors([self._through(s, k, key) for s, k in self.network.consumers(signal) if s.out == via])

    @cache_result
    def at(self, signal: str, key: Key = ()) -> Tensor:
        """Returns the gradient at a signal. The tensors named in ``key`` act with their initial value or their update
        only, as it says, and all others with W_t.
        """
        if mask := find_selection_inputs(self.network).get(signal):
            chosen, indices = self.moment.signals()[mask.out], self.network.signals[mask.out]
            count = chosen - chosen.mean(1 + indices.index(mask.over), keepdim=True)
            return self.model.permute_axes(count, indices, self.network.signals[signal])
        if not (uses := self.network.consumers(signal)):
            whole = self.moment.signals()[signal]
            return torch.ones_like(whole) if self.loss in ("", signal) else torch.zeros_like(whole)
        return add_tensors([self._through(s, k, key) for s, k in uses])

    def _through(self, s: Statement, k: int, key: Key) -> Tensor:
        """Returns the part of a signal's gradient that comes through one statement, which reads the signal as its k-th
        input. ``key`` is as for ``at``.
        """
        return self._compute_through(
            s,
            k,
            restrict_key(key, find_own_tensors(self.network, s, k)),
            restrict_key(key, find_tensors_above(self.network, s.out)),
        )

    @cache_result
    def _compute_through(self, s: Statement, k: int, part: Key, upper: Key) -> Tensor:
        """Computes ``_through`` for a key in two parts, so that results can be reused: ``part`` is about tensors of the
        statement, ``upper`` about tensors between the statement and the loss.
        """
        x, out, model = s.inputs[k], self.network.signals[s.out], self.model
        gradient = self.at(s.out, upper)
        if isinstance(s, Sum):
            return model.permute_axes(gradient, out, x.indices)
        if not isinstance(s, Product):
            with torch.enable_grad():
                argument = model.permute_axes(self.moment.signals()[x.name], x.indices, out).detach().requires_grad_()
                value = apply_function(s, out, argument)
                stops = not value.requires_grad
                (back,) = (0 * argument,) if stops else torch.autograd.grad(value, argument, gradient)
            return model.permute_axes(back, out, x.indices)
        if updated := next((role for role, mode in part if mode == "update"), ""):  # W_t minus W_0
            whole = tuple(x for x in part if x[0] != updated)
            init: Key = tuple((role, "init" if role == updated else mode) for role, mode in part)
            return self._compute_through(s, k, whole, upper) - self._compute_through(s, k, init, upper)
        weights = {**self.moment.now, **{role: self.moment.start[role] for role, _ in part}}
        terms: Sequence[Term] = expand_product(self.network, s, without=k)
        if not s.tensor and not part:  # signals as they are
            terms = (Term((), (), tuple(y for j, y in enumerate(s.factors) if j != k), s.multipliers),)
        signals = self.moment.signals()
        operands = [[(out, gradient), *((y.indices, signals[y.name]) for y in (*t.weights, *t.signals))] for t in terms]
        return add_tensors(
            [multiply_term(model, weights, t, o, x.indices) for t, o in zip(terms, operands, strict=True)]
        )

    @cache_result
    def of_weight(self, role: str) -> Tensor:
        """Returns the gradient of the loss with respect to a tensor, (S, *indices)."""
        return add_tensors([self.of_use(s, self.at(s.out)) for s in self.network.uses(role)])

    def of_use(self, s: Product, above: Tensor) -> Tensor:
        """Returns what one product contributes to the gradient of its tensor. Other products may use this tensor as
        well,
        and contribute to its gradient, too. ``above`` is the gradient at the output of the product.
        """
        assert s.tensor
        own = self.network.tensors[s.tensor.name]
        memory = self.model.get_memory_order(own).translate(str.maketrans(own.indices, s.tensor.indices))
        scaled = self.network.signals[s.out], LOSS_SLOPE * self.model.multiplier(s.multipliers) * above
        values = [(x.indices, self.moment.signals()[x.name]) for x in s.factors]
        return self.model.permute_axes(contract([scaled, *values], memory, self.model.sizes), memory, s.tensor.indices)
