"""A network at one moment of training: every signal and every gradient, in its parts.

A part has initial tensors or their updates, W_t = W_0 + dW, from contractions with W_0 and with W_t. What is contracted
with a tensor is stacked, as reading a tensor takes longest. No rule of the engine is used here. Read next: ``run.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

from scaling_algebra.spec.networks.auxiliary import counted
from scaling_algebra.spec.networks.language import DATA, Mode, Network, Product, Statement, Sum
from scaling_algebra.spec.networks.roles import adjoints
from scaling_algebra.spec.networks.terms import Term, written_out

from .contraction import Labelled, contract
from .reading import Signals, TorchNetwork, applied
from .scales import LOSS_SLOPE

T = TypeVar("T")

COLUMN = "0"
"""The letter of columns, which are contracted with a tensor together. No network has it."""

Weights = dict[str, Tensor]
Key = tuple[tuple[str, Mode], ...]
"""Which part of which tensors a gradient came through; the whole of those that are not named."""


def rms(x: Tensor) -> Tensor:
    """Root-mean-square over the entries of each replica, (S, ...) -> (S,)."""
    if x.ndim == 1:
        return x.abs()
    size: Tensor = torch.linalg.vector_norm(x, dim=tuple(range(1, x.ndim)), dtype=torch.float64)
    return size / x[0].numel() ** 0.5


def added(parts: Sequence[Tensor]) -> Tensor:
    """The sum of one tensor or more."""
    return sum(parts[1:], parts[0])


def restricted(key: Key, roles: frozenset[str]) -> Key:
    """What a part says of these tensors."""
    return tuple((role, mode) for role, mode in key if role in roles)


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


class Wanted:
    """The parts of gradients that quantities have a name for, at every signal: they are computed together.

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
        """Roles of the tensors that it comes through there."""
        terms = written_out(self.network, s, without=k) if isinstance(s, Product) else ()
        return frozenset(x.name for term in terms for x in term.tensors)

    def through(self, s: Statement, k: int) -> list[Key]:
        """The parts at an input of a statement, on the path through it."""
        name, roles = s.inputs[k].name, self.roles(s, k)
        return sorted({restricted(key, roles) for key in self.at[name] | self.via.get((name, s.out), set())})


@dataclass
class Moment:
    """A network after some updates. What is computed is kept.

    Attributes:
        now, start: W_t and W_0 by role. noise: of this step.
        first: the state before the first update, if this is another one.
        loss: the output, or a loss beside it, whose gradients alone these are; empty for their sum.
    """

    model: TorchNetwork
    wanted: Wanted
    now: Weights
    start: Weights
    noise: Signals
    first: Moment | None = None
    loss: str = ""
    known: dict[tuple[Any, ...], Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.network = self.model.network

    # forward ---------------------------------------------------------------------------------------------------

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
        return Moment(model, self.wanted, now, start, noise, first)

    @remembered
    def undecayed(self) -> Moment:
        """The state relative to initial values that do not decay."""
        return replace(self, start=self.first.now, known=self.kept()) if self.first else self

    def kept(self) -> dict[tuple[Any, ...], Any]:
        """What is known of the signals as they are."""
        return {("signals",): self.signals()}

    def part(self, s: Product, modes: Sequence[Mode], *which: str) -> Tensor:
        """A part of a product: initial tensors or their updates with ``initial`` signals, their ``change``, or present
        signals with gates that changed, ``regated``."""
        parts = self._parts(s)
        found = [parts[mode, name] for mode in modes for name in which if (mode, name) in parts]
        return added(found) if found else torch.zeros_like(self.signals()[s.out])

    @remembered
    def _parts(self, s: Product) -> dict[tuple[Mode, str], Tensor]:
        """Those that are not exactly zero."""
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
        """What the tensors of a product act on: names, and a reading of every other factor.

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
        """What initial tensors and their updates make of other signals."""
        init = self._contract(self.start, term, operands, out)
        moved = self.first is not None and term.tensors
        return (
            {"init": init, "update": self._contract(self.now, term, operands, out) - init} if moved else {"init": init}
        )

    # backward --------------------------------------------------------------------------------------------------

    def gradient(self, signal: str, modes: Mapping[str, Mode], via: str = "") -> Tensor:
        """Derivative of the output with respect to a signal: with these parts of these tensors above it, on the path
        through the signal ``via``."""
        key = tuple(sorted(modes.items()))
        if not via:
            return self.gradients(signal)[restricted(key, self.wanted.above[signal])]
        uses = [use for use in self.network.consumers(signal) if use[0].out == via]
        return added([self._through(*use)[restricted(key, self.wanted.roles(*use))] for use in uses])

    @remembered
    def gradients(self, signal: str) -> dict[Key, Tensor]:
        """All parts of the gradient at a signal that are wanted."""
        if mask := counted(self.network).get(signal):
            chosen, letters = self.signals()[mask.out], self.network.signals[mask.out]
            count = chosen - chosen.mean(1 + letters.index(mask.over), keepdim=True)
            return dict.fromkeys(
                self.wanted.at[signal], self.model.turned(count, letters, self.network.signals[signal])
            )
        uses = [(self.wanted.roles(*use), self._through(*use)) for use in self.network.consumers(signal)]
        if not uses:
            whole = self.signals()[signal]
            return {(): torch.ones_like(whole) if self.loss in ("", signal) else torch.zeros_like(whole)}
        return {key: added([parts[restricted(key, roles)] for roles, parts in uses]) for key in self.wanted.at[signal]}

    @remembered
    def _through(self, s: Statement, k: int) -> dict[Key, Tensor]:
        """All parts at an input of a statement that are wanted, on the path through it."""
        above, keys, x, out = self.gradients(s.out), self.wanted.through(s, k), s.inputs[k], self.network.signals[s.out]
        if isinstance(s, Product):
            return self._through_product(s, k, above, keys)
        if isinstance(s, Sum):
            return {key: self.model.turned(above[key], out, x.letters) for key in keys}
        together = torch.stack([above[key] for key in keys], 1)
        with torch.enable_grad():
            argument = self.model.turned(self.signals()[x.name], x.letters, out)
            argument = argument.detach()[:, None].expand_as(together).requires_grad_()
            (back,) = torch.autograd.grad(applied(s, COLUMN + out, argument), argument, together)
        return {key: self.model.turned(g, out, x.letters) for key, g in zip(keys, back.unbind(1), strict=True)}

    def _through_product(self, s: Product, k: int, above: Mapping[Key, Tensor], keys: list[Key]) -> dict[Key, Tensor]:
        own, higher = self.wanted.own(s, k), self.wanted.above[s.out]
        ups = sorted({restricted(key, higher) for key in keys})
        columns = COLUMN + self.network.signals[s.out], torch.stack([above[key] for key in ups], 1)
        made: dict[Key, Tensor] = {}
        parts = {
            part: self._split(s, k, part, columns, made).unbind(1) for part in {restricted(key, own) for key in keys}
        }
        return {key: parts[restricted(key, own)][ups.index(restricted(key, higher))] for key in keys}

    def _split(self, s: Product, k: int, part: Key, columns: Labelled, made: dict[Key, Tensor]) -> Tensor:
        """What a part of the tensors of a product makes of gradients above; whole ones and initial ones are kept."""
        own = self.wanted.own(s, k)
        updated = frozenset([role for role, mode in part if mode == "update"][:1])
        if updated:  # W_t less W_0
            init: Key = tuple((role, "init" if role in updated else mode) for role, mode in part)
            whole = self._split(s, k, restricted(part, own - updated), columns, made)
            return whole - self._split(s, k, init, columns, made)
        if part not in made:
            weights = {role: (self.start if (role, "init") in part else self.now)[role] for role in own}
            terms: Sequence[Term] = written_out(self.network, s, without=k)
            if not s.tensor and not part:  # signals as they are
                terms = (Term((), (), tuple(x for j, x in enumerate(s.factors) if j != k), s.multipliers),)
            letters = COLUMN + s.inputs[k].letters
            made[part] = added([self._contract(weights, t, [columns, *self._values(t)], letters) for t in terms])
        return made[part]

    @remembered
    def of_weight(self, role: str) -> Tensor:
        """The gradient of the loss with respect to a tensor, (S, *letters)."""
        return added([self.of_use(s, self.gradients(s.out)[()]) for s in self.network.uses(role)])

    def of_use(self, s: Product, above: Tensor) -> Tensor:
        """The gradient of the loss with respect to the tensor of a product, from that at its output."""
        assert s.tensor
        own = self.network.tensors[s.tensor.name]
        memory = self.model.memory(own).translate(str.maketrans(own.letters, s.tensor.letters))
        scaled = self.network.signals[s.out], LOSS_SLOPE * self.model.multiplier(s.multipliers) * above
        values = [(x.letters, self.signals()[x.name]) for x in s.factors]
        return self.model.turned(contract([scaled, *values], memory, self.model.sizes), memory, s.tensor.letters)

    # inside ----------------------------------------------------------------------------------------------------

    def _values(self, term: Term) -> list[Labelled]:
        return [(x.letters, self.signals()[x.name]) for x in (*term.weights, *term.signals)]

    def _contract(self, weights: Weights, term: Term, operands: Sequence[Labelled], out: str) -> Tensor:
        """The product of tensors and other operands, the smallest of which takes the multipliers."""
        scale, todo = self.model.multiplier(term.multipliers), list(operands) or [("", self.model.x.new_ones(1))]
        if scale != 1:
            k = min(range(len(todo)), key=lambda k: todo[k][1].numel())
            todo[k] = todo[k][0], scale * todo[k][1]
        return contract([*((x.letters, weights[x.name]) for x in term.tensors), *todo], out, self.model.sizes)
