"""The backward pass at one moment of training: gradients of the loss, each in parts by the tensors it came through.

The parts that quantities have a name for are computed together. No rule of the engine is used here. Read next:
``run.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from scaling_algebra.spec.networks.auxiliary import counted
from scaling_algebra.spec.networks.language import Mode, Network, Product, Statement, Sum
from scaling_algebra.spec.networks.roles import adjoints
from scaling_algebra.spec.networks.terms import Term, written_out

from .contraction import Labelled, contract
from .moment import COLUMN, Moment, added, multiplied, remembered
from .scales import LOSS_SLOPE
from .torch_network import applied

Key = tuple[tuple[str, Mode], ...]
"""The parts of tensors that a gradient came through, such as (("expert_out", "init"),). Others are whole."""


def restricted(key: Key, roles: frozenset[str]) -> Key:
    """The key with these tensors alone."""
    return tuple((role, mode) for role, mode in key if role in roles)


class Wanted:
    """The parts of the gradient at every signal that some quantity names. They are computed together.

    Attributes:
        at: parts at a signal; ``via``: those on the path through another one.
        above: roles of the tensors that a gradient at a signal may come through.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self.above: dict[str, frozenset[str]] = dict.fromkeys((network.output, *network.losses), frozenset())
        for s in reversed(network.statements):
            for k, x in enumerate(s.inputs):
                self.above[x.name] = self.above.get(x.name, frozenset()) | self.roles(s, k)
        self.at: dict[str, set[Key]] = {name: {()} for name in self.above}
        self.via: dict[tuple[str, str], set[Key]] = {}
        for a in adjoints(network):
            wanted = self.via.setdefault((a.signal, a.via), set()) if a.via else self.at[a.signal]
            wanted |= {tuple(sorted(modes.items())) for modes in a.parts.values()}
        for s in network.statements:
            for k in range(len(s.inputs)):
                self.at[s.out] |= {restricted(key, self.above[s.out]) for key in self.through(s, k)}

    def roles(self, s: Statement, k: int) -> frozenset[str]:
        """Roles of the tensors that a gradient at an input of a statement may come through."""
        return self.above[s.out] | self.own(s, k)

    def own(self, s: Statement, k: int) -> frozenset[str]:
        """Roles of the tensors of the statement itself that the gradient at an input comes through."""
        terms = written_out(self.network, s, without=k) if isinstance(s, Product) else ()
        return frozenset(x.name for term in terms for x in term.tensors)

    def through(self, s: Statement, k: int) -> list[Key]:
        """The parts at an input of a statement, on the path through it."""
        name, roles = s.inputs[k].name, self.roles(s, k)
        return sorted({restricted(key, roles) for key in self.at[name] | self.via.get((name, s.out), set())})


@dataclass
class Backward:
    """Gradients at every signal and of every tensor. What is computed is kept.

    Attributes:
        loss: the only loss that is differentiated, the output or one beside it; empty for their sum.
    """

    moment: Moment
    wanted: Wanted
    loss: str = ""
    known: dict[tuple[Any, ...], Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.model, self.network = self.moment.model, self.moment.network

    def gradient(self, signal: str, modes: Mapping[str, Mode], via: str = "") -> Tensor:
        """Derivative of the output with respect to a signal: with these parts of these tensors above it, on the path
        through the signal ``via``."""
        key = tuple(sorted(modes.items()))
        if not via:
            return self.at(signal)[restricted(key, self.wanted.above[signal])]
        uses = [use for use in self.network.consumers(signal) if use[0].out == via]
        return added([self._through(*use)[restricted(key, self.wanted.roles(*use))] for use in uses])

    @remembered
    def at(self, signal: str) -> dict[Key, Tensor]:
        """All wanted parts of the gradient at a signal."""
        if mask := counted(self.network).get(signal):
            chosen, letters = self.moment.signals()[mask.out], self.network.signals[mask.out]
            count = chosen - chosen.mean(1 + letters.index(mask.over), keepdim=True)
            own = self.model.turned(count, letters, self.network.signals[signal])
            return dict.fromkeys(self.wanted.at[signal], own)
        uses = [(self.wanted.roles(*use), self._through(*use)) for use in self.network.consumers(signal)]
        if not uses:
            whole = self.moment.signals()[signal]
            return {(): torch.ones_like(whole) if self.loss in ("", signal) else torch.zeros_like(whole)}
        return {key: added([parts[restricted(key, roles)] for roles, parts in uses]) for key in self.wanted.at[signal]}

    @remembered
    def _through(self, s: Statement, k: int) -> dict[Key, Tensor]:
        """All wanted parts of the gradient at an input of a statement, on the path through it."""
        above, keys, x, out = self.at(s.out), self.wanted.through(s, k), s.inputs[k], self.network.signals[s.out]
        if isinstance(s, Product):
            return self._through_product(s, k, above, keys)
        if isinstance(s, Sum):
            return {key: self.model.turned(above[key], out, x.letters) for key in keys}
        together = torch.stack([above[key] for key in keys], 1)
        with torch.enable_grad():
            argument = self.model.turned(self.moment.signals()[x.name], x.letters, out)
            argument = argument.detach()[:, None].expand_as(together).requires_grad_()
            (back,) = torch.autograd.grad(applied(s, COLUMN + out, argument), argument, together)
        return {key: self.model.turned(g, out, x.letters) for key, g in zip(keys, back.unbind(1), strict=True)}

    def _through_product(self, s: Product, k: int, above: Mapping[Key, Tensor], keys: list[Key]) -> dict[Key, Tensor]:
        own, higher = self.wanted.own(s, k), self.wanted.above[s.out]
        ups = sorted({restricted(key, higher) for key in keys})
        columns = COLUMN + self.network.signals[s.out], torch.stack([above[key] for key in ups], 1)
        made: dict[Key, Tensor] = {}
        mine = {restricted(key, own) for key in keys}
        parts = {part: self._split(s, k, part, columns, made).unbind(1) for part in mine}
        return {key: parts[restricted(key, own)][ups.index(restricted(key, higher))] for key in keys}

    def _split(self, s: Product, k: int, part: Key, columns: Labelled, made: dict[Key, Tensor]) -> Tensor:
        """The gradients above, multiplied by a part of the tensors of a product. ``made`` keeps them for tensors W_t
        and W_0, whose difference is the updated part."""
        own = self.wanted.own(s, k)
        updated = frozenset([role for role, mode in part if mode == "update"][:1])
        if updated:  # W_t less W_0
            init: Key = tuple((role, "init" if role in updated else mode) for role, mode in part)
            whole = self._split(s, k, restricted(part, own - updated), columns, made)
            return whole - self._split(s, k, init, columns, made)
        if part not in made:
            weights = {role: (self.moment.start if (role, "init") in part else self.moment.now)[role] for role in own}
            terms: Sequence[Term] = written_out(self.network, s, without=k)
            if not s.tensor and not part:  # signals as they are
                terms = (Term((), (), tuple(x for j, x in enumerate(s.factors) if j != k), s.multipliers),)
            out, model = COLUMN + s.inputs[k].letters, self.model
            made[part] = added([multiplied(model, weights, t, [columns, *self._values(t)], out) for t in terms])
        return made[part]

    @remembered
    def of_weight(self, role: str) -> Tensor:
        """The gradient of the loss with respect to a tensor, (S, *letters)."""
        return added([self.of_use(s, self.at(s.out)[()]) for s in self.network.uses(role)])

    def of_use(self, s: Product, above: Tensor) -> Tensor:
        """The gradient of the loss with respect to the tensor of a product, from that at its output."""
        assert s.tensor
        own = self.network.tensors[s.tensor.name]
        memory = self.model.memory(own).translate(str.maketrans(own.letters, s.tensor.letters))
        scaled = self.network.signals[s.out], LOSS_SLOPE * self.model.multiplier(s.multipliers) * above
        values = [(x.letters, self.moment.signals()[x.name]) for x in s.factors]
        return self.model.turned(contract([scaled, *values], memory, self.model.sizes), memory, s.tensor.letters)

    def _values(self, term: Term) -> list[Labelled]:
        return [(x.letters, self.moment.signals()[x.name]) for x in (*term.weights, *term.signals)]
