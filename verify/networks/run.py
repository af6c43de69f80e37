"""A training run of any network, measured: real optimizer steps, read in parts.

``Trainer`` makes the steps, with gradients by the chain rule; ``TorchRun`` reads them, as a ``Run`` of
``dynamics/quantities.py``: one table of names is read off exponents and off tensors. With decoupled weight decay W_0
means the decayed initial value, so that dW is driven by gradients and every split is an identity.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from scaling_algebra.spec.networks.language import Function, Mode, Product
from scaling_algebra.spec.networks.terms import product_of
from scaling_algebra.spec.optimizers import Optimizer, OptimizerSpec

from .backward import Backward
from .contraction import contract
from .moment import Moment, rms
from .steppers import shrinkage, stepper
from .torch_network import TorchNetwork


class NotMeasured(Exception):
    """A part cannot be measured with this optimizer, or the step is over."""


def linear(trained: OptimizerSpec) -> bool:
    """Is every update a sum of past gradients with fixed coefficients, by one optimizer?"""
    return isinstance(trained, Optimizer) and not trained.normalises and not trained.decoupled_decay


@dataclass(frozen=True)
class SignalEntries:
    """Entries of a signal with its index letters, (S, *letters)."""

    letters: str
    entries: Tensor

    def rms(self) -> Tensor:
        """Root-mean-square over the entries of each replica, (S,)."""
        return rms(self.entries)


Moments = tuple[Backward, Backward]
"""As one token sees the network, and as all tokens do, whose gradients train; the same unless K < M."""
View = Callable[[Backward], Backward]


class Trainer:
    """Real optimizer steps of a network.

    Args:
        keep: may earlier steps be read later on? That takes a copy of the weights for each.

    Attributes:
        states: after every update; None for a step that is over.
    """

    def __init__(self, model: TorchNetwork, rule: OptimizerSpec, keep: bool = False) -> None:
        self.model, self.rule, self.keep = model, rule, keep
        self.stepper = model.optimizer(rule)
        self.token = None if model.active == model.draw.dims.get("M", 0) else model.of_token()
        self.paths: dict[tuple[str, str], torch.optim.Optimizer] = {}
        self.start = {role: w.detach().clone() for role, w in model.weights.items()}
        self.states: list[Moments | None] = []
        self.first: tuple[Moment, Moment] | tuple[None, None] = (None, None)
        seen, batch = self._read(self.start)
        self.first = seen.moment, batch.moment

    @torch.no_grad()
    def _read(self, now: dict[str, Tensor]) -> Moments:
        """Forward and backward at these weights; leaves the gradient of the loss in the parameters."""
        seen, first = self.first
        moment = Moment(self.model, now, self.start, self.model.noise(), first)
        batch = Backward(moment)
        both = batch if self.token is None else Backward(moment.of_token(self.token, seen)), batch
        self.states.append(both)
        for role, w in self.model.weights.items():
            w.grad = batch.of_weight(role)
        return both

    @torch.no_grad()
    def step(self) -> None:
        """One update of all tensors."""
        batch = at(self.states, -1)[1]
        for (signal, via), path in self.paths.items():
            (group,) = path.param_groups
            layer = product_of(self.model.network, signal)
            group["params"][0].grad = batch.of_use(layer, batch.gradient(signal, {}, via))
            path.step()
        if not self.keep:
            self.states[-1] = None
            for moment in filter(None, self.first):
                moment.known = moment.kept()
        del batch
        self.stepper.step()
        for group in self.stepper.param_groups:
            if group.get("weight_decay") or "kept" in group:
                role = group["symbol"]
                self.start = {**self.start, role: self.start[role] * shrinkage(group)}
        now = {role: w.detach().clone() if self.keep else w.detach() for role, w in self.model.weights.items()}
        known = self._read(now)[0].known
        for (signal, via), path in self.paths.items():
            known["path", signal, via] = path.param_groups[0]["params"][0].clone()

    @torch.no_grad()
    def follow(self, signal: str, via: str) -> None:
        """Also trains a weight by the gradients through one path alone, if the optimizer is linear. Call it before the
        first step."""
        tensor = product_of(self.model.network, signal).tensor
        for group in self.stepper.param_groups if linear(self.rule) else ():
            if tensor and group["symbol"] == tensor.name:
                weight = torch.zeros_like(self.start[tensor.name])
                at(self.states, 0)[0].known["path", signal, via] = weight.clone()
                self.paths[signal, via] = stepper(self.rule.rules[0])([{**group, "params": [weight]}])


def at(states: Sequence[Moments | None], t: int) -> Moments:
    """The network after t updates.

    Raises:
        NotMeasured: the step is over and was not kept.
    """
    if (found := states[t]) is None:
        raise NotMeasured(f"step {t} is over; keep the steps of this run")
    return found


class TorchRun:
    """A training run of a network, as it is read. ``t`` is the number of updates.

    Args:
        keep: may earlier steps be read later on?
    """

    def __init__(self, model: TorchNetwork, rule: OptimizerSpec, keep: bool = False) -> None:
        self.model, self.network, self.trainer = model, model.network, Trainer(model, rule, keep)
        self.states = self.trainer.states

    # forward ---------------------------------------------------------------------------------------------------

    def initial(self, signal: str) -> SignalEntries:
        """A signal before training."""
        return self._signal(signal, self._moment(-1).initial()[signal])

    def value(self, signal: str, t: int) -> SignalEntries:
        """A signal after t updates."""
        return self._signal(signal, self._moment(t).signals()[signal])

    def change(self, signal: str, t: int) -> SignalEntries:
        """A signal after t updates minus its initial value."""
        return self._signal(signal, self._moment(t).change(signal))

    def part(self, statement: Product, mode: Mode, which: str, t: int, x: SignalEntries | None = None) -> SignalEntries:
        """A part of a product, with gates at their initial values."""
        state, own = self._moment(t), product_of(self.network, statement.out)
        names = ("initial", "change") if which == "value" else (which,)
        entries = state.part(own, [mode], *names) if x is None else state.acting(own, mode, x.entries)
        return self._signal(own.out, entries)

    def regated(self, statement: Product, t: int) -> SignalEntries:
        """``(gates_t - gates_0) * the rest at t``."""
        own = product_of(self.network, statement.out)
        return self._signal(own.out, self._moment(t).part(own, ["init", "update"], "regated"))

    def change_via(self, signal: str, t: int, via: str) -> SignalEntries:
        """The part of a first-layer signal's change whose gradients came through the signal ``via``.

        Raises:
            NotMeasured: the optimizer is not linear in the gradients, or the path was not followed.
        """
        s, state = product_of(self.network, signal), at(self.states, t)[0]
        if ("path", signal, via) not in state.known:
            raise NotMeasured(f"{signal} through {via} was not followed, or {self.trainer.rule.name} mixes paths")
        factors = [(x.letters, state.moment.signals()[x.name]) for x in s.factors]
        operands = [*((x.letters, state.known["path", signal, via]) for x in (s.tensor,) if x), *factors]
        moved = contract(operands, self.network.signals[signal], self.model.sizes)
        return self._signal(signal, self.model.multiplier(s.multipliers) * moved)

    def spread(self, function: Function, t: int) -> SignalEntries:
        """The argument of a function minus its mean along the index that it goes along."""
        x, along = self._moment(t).argument(function)
        return self._signal(function.out, x - x.mean(along, keepdim=True))

    def relative(self, signal: SignalEntries, source: str, t: int) -> SignalEntries:
        """A signal over the root-mean-square of another, in each replica; what is exactly zero stays so."""
        x, size = signal.entries, self.value(source, t).rms()
        return SignalEntries(signal.letters, x.where(x == 0, x / size.view(-1, *[1] * (x.ndim - 1)).to(x)))

    def normalised(self, function: Function, signal: SignalEntries, t: int) -> SignalEntries:
        """A part of the argument of a norm, divided as the norm divides."""
        x, along = self._moment(t).argument(function)
        x = x - x.mean(along, keepdim=True) if function.kind.centres else x
        part = self.model.turned(signal.entries, function.inputs[0].letters, self.network.signals[function.out])
        return self._signal(function.out, part / x.square().mean(along, keepdim=True).sqrt())

    def inner(self, left: SignalEntries, right: SignalEntries) -> SignalEntries:
        """The inner product of two signals over all indices but the expert's.

        Raises:
            ValueError: they have other indices.
        """
        experts = {x for x, axis in self.network.letters.items() if axis in ("M", "K")}
        if set(left.letters) - experts != set(right.letters) - experts:
            raise ValueError("an inner product of signals with different indices")
        kept = "".join(x for x in dict.fromkeys(left.letters + right.letters) if x in experts)
        sides = [(left.letters, left.entries), (right.letters, right.entries)]
        return SignalEntries(kept, contract(sides, kept, self.model.sizes))

    # backward --------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def gradient(self, signal: str, t: int, modes: Mapping[str, Mode] | None = None, via: str = "") -> SignalEntries:
        """Derivative of the output with respect to a signal: with these parts of these tensors above it, on the path
        through the signal ``via``."""
        return self._signal(signal, at(self.states, t)[0].gradient(signal, modes or {}, via))

    @torch.no_grad()
    def alone(self, changing: str, outside: Collection[str]) -> TorchRun:
        """The run in which one tensor, or one of the signals that come from outside, alone changes."""
        return viewed(self, lambda x: replace(x, moment=x.moment.alone(changing, outside), known={}))

    def by(self, loss: str) -> TorchRun:
        """The same run, with gradients of one loss alone: of the output, or of a loss beside it."""

        def own(x: Backward) -> Backward:
            return replace(x, loss=loss, known={})

        return viewed(self, own, own)

    def loss_gradient_ratio(self, loss: str, signal: str, t: int) -> SignalEntries:
        """Raises NotMeasured: both gradients are measured, each by itself."""
        raise NotMeasured(f"the gradients of {loss} and of the output are measured, each by itself")

    def decaying(self) -> TorchRun:
        """The same run, relative to initial values that do not decay."""
        return viewed(self, undecayed, undecayed)

    @torch.no_grad()
    def update_size(self, role: str, t: int) -> Tensor:
        """Entry size of ``W_t - W_0`` of each replica, (S,)."""
        batch = at(self.states, t)[1].moment
        return torch.cat([rms((a - b)[None]) for a, b in zip(batch.now[role], batch.start[role], strict=True)])

    def raw_gradient_size(self, role: str, t: int) -> Tensor:
        """Entry size of the gradient of a tensor, of each replica."""
        return rms(at(self.states, t)[1].of_weight(role))

    def _moment(self, t: int) -> Moment:
        return at(self.states, t)[0].moment

    def _signal(self, name: str, entries: Tensor) -> SignalEntries:
        return SignalEntries(self.network.signals[name], entries)


def undecayed(x: Backward) -> Backward:
    """The same gradients, with changes relative to initial values that do not decay."""
    return replace(x, moment=x.moment.undecayed(), known={})


def viewed(run: TorchRun, token: View, batch: View = lambda x: x) -> TorchRun:
    """A view of a run: ``token`` replaces what one token sees, and ``batch`` what all tokens see."""
    view = copy(run)
    view.states = [both and (token(both[0]), batch(both[1])) for both in run.states]
    return view
