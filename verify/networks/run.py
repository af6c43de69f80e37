"""A training run of any network, measured: real optimizer steps, read in parts.

``TorchRun`` is a ``Run`` (``dynamics/quantities.py``): one table of names is read off exponents and off tensors. The
gradients by the chain rule, whose parts are read, train the network. With decoupled weight decay W_0 means the decayed
initial value, so that dW is driven by gradients and every split is an identity.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from scaling_algebra.spec.networks.auxiliary import buffers, counted
from scaling_algebra.spec.networks.language import Function, Mode, Product
from scaling_algebra.spec.optimizers import Optimizer, Trained

from .contraction import contract
from .moment import Moment, Wanted, rms
from .reading import TorchNetwork
from .scales import LOSS_SLOPE
from .steppers import shrinkage, stepper


class NotMeasured(Exception):
    """A part that this optimizer does not leave apart, or a step that is over."""


def linear(trained: Trained) -> bool:
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


class TorchRun:
    """A training run of a network: ``step`` makes an update, everything else reads. ``t`` is the number of updates.

    Args:
        keep: may earlier steps be read later on? That takes a copy of the weights for each.

    Attributes:
        states: as one token sees them, and as all tokens do, whose gradients train; the same unless K < M.
    """

    def __init__(self, model: TorchNetwork, rule: Trained, keep: bool = False) -> None:
        self.model, self.network, self.rule, self.keep = model, model.network, rule, keep
        self.stepper, self.wanted = model.optimizer(rule), Wanted(model.network)
        self.token = None if model.active == model.draw.dims.get("M", 0) else model.of_token()
        self.paths: dict[tuple[str, str], torch.optim.Optimizer] = {}
        self.start = {role: w.detach().clone() for role, w in model.weights.items()}
        self.states: list[tuple[Moment, Moment] | None] = []
        self.first: tuple[Moment, Moment] | tuple[None, None] = (None, None)
        self.first = self._read(self.start)

    @torch.no_grad()
    def _read(self, now: dict[str, Tensor]) -> tuple[Moment, Moment]:
        """Forward and backward at these weights; leaves the gradient of the loss in the parameters."""
        seen, first = self.first
        batch = Moment(self.model, self.wanted, now, self.start, self.model.noise(), first)
        self.states.append((batch if self.token is None else batch.of_token(self.token, seen), batch))
        for role, w in self.model.weights.items():
            w.grad = batch.of_weight(role)
        return self._at(-1)

    @torch.no_grad()
    def step(self) -> None:
        """One update of all tensors."""
        batch = self._at(-1)[1]
        for (signal, via), path in self.paths.items():
            (group,) = path.param_groups
            group["params"][0].grad = batch.of_use(self._layer(signal), batch.gradient(signal, {}, via))
            path.step()
        if not self.keep:
            self.states[-1] = None
            for state in filter(None, self.first):
                state.known = state.kept()
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
        """Steps a weight by the gradients through one path alone, which a linear optimizer does; asked before the
        first step."""
        tensor = self._layer(signal).tensor
        for group in self.stepper.param_groups if linear(self.rule) else ():
            if tensor and group["symbol"] == tensor.name:
                weight = torch.zeros_like(self.start[tensor.name])
                self._at(0)[0].known["path", signal, via] = weight.clone()
                self.paths[signal, via] = stepper(self.rule.rules[0])([{**group, "params": [weight]}])

    # forward ---------------------------------------------------------------------------------------------------

    def initial(self, signal: str) -> SignalEntries:
        """A signal before training."""
        return self._signal(signal, self._at(-1)[0].initial()[signal])

    def value(self, signal: str, t: int) -> SignalEntries:
        """A signal after t updates."""
        return self._signal(signal, self._at(t)[0].signals()[signal])

    def change(self, signal: str, t: int) -> SignalEntries:
        """A signal after t updates minus its initial value."""
        return self._signal(signal, self._at(t)[0].change(signal))

    def part(self, statement: Product, mode: Mode, which: str, t: int, x: SignalEntries | None = None) -> SignalEntries:
        """A part of a product, with gates at their initial values."""
        state, own = self._at(t)[0], self._layer(statement.out)
        names = ("initial", "change") if which == "value" else (which,)
        entries = state.part(own, [mode], *names) if x is None else state.acting(own, mode, x.entries)
        return self._signal(own.out, entries)

    def regated(self, statement: Product, t: int) -> SignalEntries:
        """``(gates_t - gates_0) * the rest at t``."""
        own = self._layer(statement.out)
        return self._signal(own.out, self._at(t)[0].part(own, ["init", "update"], "regated"))

    def change_via(self, signal: str, t: int, via: str) -> SignalEntries:
        """The part of a first-layer signal's change whose gradients came through the signal ``via``.

        Raises:
            NotMeasured: the optimizer is not linear in the gradients, or the path was not followed.
        """
        s, state = self._layer(signal), self._at(t)[0]
        if ("path", signal, via) not in state.known:
            raise NotMeasured(f"{signal} through {via} was not followed, or {self.rule.name} mixes paths")
        factors = [(x.letters, state.signals()[x.name]) for x in s.factors]
        operands = [*((x.letters, state.known["path", signal, via]) for x in (s.tensor,) if x), *factors]
        moved = contract(operands, self.network.signals[signal], self.model.sizes)
        return self._signal(signal, self.model.multiplier(s.multipliers) * moved)

    def spread(self, function: Function, t: int) -> SignalEntries:
        """The argument of a function minus its mean along the index that it goes along."""
        x, along = self._argument(function, t)
        return self._signal(function.out, x - x.mean(along, keepdim=True))

    def relative(self, signal: SignalEntries, source: str, t: int) -> SignalEntries:
        """A signal over the root-mean-square of another, in each replica; what is exactly zero stays so."""
        x, size = signal.entries, self.value(source, t).rms()
        return SignalEntries(signal.letters, x.where(x == 0, x / size.view(-1, *[1] * (x.ndim - 1)).to(x)))

    def normalised(self, function: Function, signal: SignalEntries, t: int) -> SignalEntries:
        """A part of the argument of a norm, divided as the norm divides."""
        x, along = self._argument(function, t)
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
        return self._signal(signal, self._at(t)[0].gradient(signal, modes or {}, via))

    def differences(self, t: int, replicas: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Gradients of the first replicas by the chain rule and by torch, at signals and with respect to tensors."""
        signals, weights = self.by_autograd(t, replicas)
        batch = self._at(t)[1]
        own, held = counted(self.network), buffers(self.network)  # no gradients, but counts
        yield from ((batch.gradient(x, {})[:replicas], theirs) for x, theirs in signals.items() if x not in own)
        yield from ((batch.of_weight(x)[:replicas], theirs) for x, theirs in weights.items() if x not in held)

    def by_autograd(self, t: int, replicas: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The gradients of the first replicas as torch has them, at signals and of the loss with respect to tensors:
        what those by the chain rule must equal."""
        batch = self._at(t)[1]
        weights = {role: w[:replicas].detach().requires_grad_() for role, w in batch.now.items()}
        noise = {name: x[:replicas].detach().requires_grad_() for name, x in batch.noise.items()}
        with torch.enable_grad():
            signals = self.model.signals(weights, noise)
            names = [s.out for s in self.network.statements]
            sources = [*(signals[x] for x in names), *weights.values()]
            losses = [signals[x].sum() for x in (self.network.output, *self.network.losses)]
            found = torch.autograd.grad(losses, sources, allow_unused=True)
        made = [torch.zeros_like(x) if g is None else g for g, x in zip(found, sources, strict=True)]
        raw = {role: LOSS_SLOPE * g for role, g in zip(weights, made[len(names) :], strict=True)}
        return dict(zip(names, made, strict=False)), raw

    @torch.no_grad()
    def alone(self, changing: str, outside: Collection[str]) -> TorchRun:
        """The run in which one tensor, or one of the signals that come from outside, alone changes."""
        run = copy(self)
        run.states = [states and (states[0].alone(changing, outside), states[1]) for states in self.states]
        return run

    def by(self, loss: str) -> TorchRun:
        """The same run, with gradients of one loss alone: of the output, or of a loss beside it."""
        run, own = copy(self), lambda x: replace(x, loss=loss, known=x.kept())
        run.states = [states and (own(states[0]), own(states[1])) for states in self.states]
        return run

    def weighed(self, loss: str, signal: str, t: int) -> SignalEntries:
        """Raises NotMeasured: both gradients are measured, each by itself."""
        raise NotMeasured(f"the gradients of {loss} and of the output are measured, each by itself")

    def decaying(self) -> TorchRun:
        """The same run, relative to initial values that do not decay."""
        run = copy(self)
        run.states = [states and (states[0].undecayed(), states[1].undecayed()) for states in self.states]
        return run

    @torch.no_grad()
    def update_size(self, role: str, t: int) -> Tensor:
        """Entry size of ``W_t - W_0`` of each replica, (S,)."""
        batch = self._at(t)[1]
        return torch.cat([rms((a - b)[None]) for a, b in zip(batch.now[role], batch.start[role], strict=True)])

    def raw_gradient_size(self, role: str, t: int) -> Tensor:
        """Entry size of the gradient of a tensor, of each replica."""
        return rms(self._at(t)[1].of_weight(role))

    # inside ----------------------------------------------------------------------------------------------------

    def _at(self, t: int) -> tuple[Moment, Moment]:
        states = self.states[t]
        if states is None:
            raise NotMeasured(f"step {t} is over; keep the steps of this run")
        return states

    def _layer(self, signal: str) -> Product:
        """The product of this network that makes a signal."""
        own = self.network.producer(signal)
        assert isinstance(own, Product)
        return own

    def _signal(self, name: str, entries: Tensor) -> SignalEntries:
        return SignalEntries(self.network.signals[name], entries)

    def _argument(self, function: Function, t: int) -> tuple[Tensor, int]:
        """The argument of a function with the letters of its output, and the dimension that it goes along."""
        (x,), letters = function.inputs, self.network.signals[function.out]
        argument = self.model.turned(self._at(t)[0].signals()[x.name], x.letters, letters)
        return argument, 1 + letters.index(function.over)
