"""A training run of any network, read part by part: torch tensors for the names that the engine has exponents for.

``TorchRun`` is a ``Run`` (``dynamics/quantities.py``): one table of names is read off exponents and off tensors. Parts
follow from W_t = W_0 + dW by contraction, gradients and their parts from the chain rule; the same gradients train the
network. With decoupled weight decay W_0 means the decayed initial value, so that dW is the part driven by gradients and
every split is an identity.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from scaling_algebra.spec.networks.language import Function, Mode, Product
from scaling_algebra.spec.optimizers import Trained
from scaling_algebra.verify.networks.contraction import Labelled, contract, contract_into
from scaling_algebra.verify.networks.reading import TorchNetwork
from scaling_algebra.verify.networks.scales import LOSS_SLOPE

from .columns import SignalEntries
from .gradients import Gradients, Modes, WantedParts
from .parts import Moment
from .updates import Updates, size


class NotMeasured(Exception):
    """A part that this optimizer does not leave apart."""


@dataclass(frozen=True)
class Step:
    """A moment, and the gradients there.

    Attributes:
        moment, gradients: as a token sees them.
        batch: gradients of all tokens, which train the weights; the same unless K < M.
        raw: of the loss with respect to the weights, by role, as products of tensors.
    """

    moment: Moment
    gradients: Gradients
    batch: Gradients
    raw: Mapping[str, list[Labelled]]


class TorchRun:
    """A training run of a network: ``step`` makes an update, everything else reads. ``t`` is the number of updates.

    Args:
        steps: number of updates to come.
        keep: may earlier steps be read later on? That takes a copy of the weights for each.
    """

    def __init__(self, model: TorchNetwork, rule: Trained, steps: int, keep: bool = False) -> None:
        self.model, self.network, self.rule, self.keep = model, model.network, rule, keep
        self.stepper = model.optimizer(rule)
        self.updates = Updates(model.network, rule, model.weights, self.stepper, steps, keep)
        self.coefficients = self.updates.coefficients
        self.asked = WantedParts(model.network)
        self.token = None if model.active == model.draw.dims.get("M", 0) else model.of_token()
        self.first_noise = model.noise()
        self.steps: list[Step | None] = []
        self._paths: dict[tuple[str, str], list[Tensor]] = {}
        self._decays = any(stepped.decoupled_decay for stepped in rule.rules)
        self._read(self.first_noise)

    @torch.no_grad()
    def step(self) -> None:
        """One update of all tensors."""
        last = self.steps[-1]
        assert last is not None
        if self._decays and len(self.steps) == 1:
            self.first = last.moment.formed()
        if not self.keep:
            self.steps[-1] = None
        self.updates.step(last.raw)
        del last
        self._read(self.model.noise())

    @torch.no_grad()
    def _read(self, noise: Mapping[str, Tensor]) -> None:
        """Forward and backward at the present weights; leaves the gradient of the loss in the parameters."""
        moment = Moment(self.model, self.updates.now(), dict(noise), self.first_noise, bool(self.steps))
        gradients, raw = Gradients(moment, self.asked), {}
        for role, w in reversed(self.model.weights.items()):  # from the output: what passed a tensor is there again
            (letters, first), *rest = gradients.of_weight(role)
            raw[role] = [(letters, LOSS_SLOPE * first), *rest]
            w.grad = torch.empty_like(w) if w.grad is None else w.grad
            contract_into(raw[role], self.network.tensors[role].letters, w.grad)
        if self.token is None:
            self.steps.append(Step(moment, gradients, gradients, raw))
        else:
            seen = moment.of_token(self.token)
            self.steps.append(Step(seen, Gradients(seen, self.asked), gradients, raw))
        for (signal, via), past in self._paths.items():
            past.append(gradients.read(signal, {}, via).entries)

    @torch.no_grad()
    def follow(self, signal: str, via: str) -> None:
        """Remembers the gradient at a signal on a path; asked before the first step."""
        if self.coefficients is not None and (signal, via) not in self._paths:
            self._paths[signal, via] = [self._at(0).batch.read(signal, {}, via).entries]

    # forward ---------------------------------------------------------------------------------------------------

    def initial(self, signal: str) -> SignalEntries:
        """A signal before training."""
        return self._moment(len(self.steps) - 1).before(signal)

    def value(self, signal: str, t: int) -> SignalEntries:
        """A signal after t updates."""
        return self._moment(t).now(signal)

    def change(self, signal: str, t: int) -> SignalEntries:
        """A signal after t updates minus its initial value."""
        return self._moment(t).change(signal)

    def part(self, statement: Product, mode: Mode, which: str, t: int, x: SignalEntries | None = None) -> SignalEntries:
        """A part of a product, with gates at their initial values.

        Law: a product of changes is a sum over its factors, each changed with what stands before at its present value.
        """
        m, own = self._moment(t), self._own(statement)
        return m.part(own, mode, which) if x is None else m.acting(own, mode, x.entries)

    def regated(self, statement: Product, t: int) -> SignalEntries:
        """``(gates_t - gates_0) * the rest at t``."""
        return self._moment(t).regated(self._own(statement))

    def change_via(self, signal: str, t: int, via: str) -> SignalEntries:
        """The part of a first-layer signal's change whose gradients came through the signal ``via``.

        Raises:
            NotMeasured: the optimizer is not linear in the gradients, or the path was not followed.
        """
        statement = self.network.producer(signal)
        assert isinstance(statement, Product) and statement.tensor
        if self.coefficients is None:
            raise NotMeasured(f"{self.rule.name} mixes the paths of a gradient")
        if (signal, via) not in self._paths:
            raise NotMeasured(f"{signal} through {via} was not followed")
        letters, tensor, sizes = self.network.signals[signal], statement.tensor, self.model.sizes
        data = [(x.letters, self._moment(t).value(x.name)) for x in statement.factors]
        scale = LOSS_SLOPE * self.model.multiplier(statement.multipliers) ** 2
        whole = torch.zeros_like(self._paths[signal, via][0])
        for c, g in zip(self.coefficients.of(tensor.name), self._paths[signal, via], strict=False):
            moved = contract([(letters, scale * c * g), *data], tensor.letters, sizes)
            whole = whole + contract([(tensor.letters, moved), *data], letters, sizes)
        return self._signal(signal, whole)

    def spread(self, function: Function, t: int) -> SignalEntries:
        """The argument of a function minus its mean along the index that it goes along."""
        x = self._argument(function, t)
        along = 1 + self.network.signals[function.out].index(function.over)
        return self._signal(function.out, x - x.mean(along, keepdim=True))

    def relative(self, signal: SignalEntries, source: str, t: int) -> SignalEntries:
        """A signal over the root-mean-square of another, in each replica."""
        return signal.over(self.value(source, t).rms())

    def normalised(self, function: Function, signal: SignalEntries, t: int) -> SignalEntries:
        """A part of the argument of a norm, divided as the norm divides."""
        x, letters = self._argument(function, t), self.network.signals[function.out]
        along = 1 + letters.index(function.over)
        x = x - x.mean(along, keepdim=True) if function.kind.centres else x
        part = self.model.turned(signal.entries, function.inputs[0].letters, letters)
        return SignalEntries(letters, part / x.square().mean(along, keepdim=True).sqrt())

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
    def gradient(self, signal: str, t: int, modes: Modes | None = None, via: str = "") -> SignalEntries:
        """Derivative of the output with respect to a signal: with these parts of these tensors above it, on the path
        through the signal ``via``."""
        return self._at(t).gradients.read(signal, modes, via)

    def differences(self, t: int, replicas: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Gradients of the first replicas by the chain rule and by torch, at signals and with respect to tensors."""
        signals, weights = self.by_autograd(t, replicas)
        for name, theirs in signals.items():
            yield self._at(t).batch.read(name).entries[:replicas], theirs
        for role, theirs in weights.items():
            letters = self.network.tensors[role].letters
            ours = [(x, w[:replicas]) for x, w in self._at(t).raw[role]]
            yield contract(ours, letters, self.model.sizes), theirs

    def by_autograd(self, t: int, replicas: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The gradients of the first replicas as torch has them, at signals and of the loss with respect to tensors:
        what those by the chain rule must equal."""
        m = self._at(t).batch.moment
        weights = {role: w.now[:replicas].requires_grad_() for role, w in m.weights.items()}
        noise = {name: x[:replicas].requires_grad_() for name, x in m.noise.items()}
        with torch.enable_grad():
            signals = self.model.signals(weights, noise)
            names = [s.out for s in self.network.statements]
            sources = [*(signals[x] for x in names), *weights.values()]
            found = torch.autograd.grad(signals[self.network.output].sum(), sources, allow_unused=True)
        made = [torch.zeros_like(x) if g is None else g for g, x in zip(found, sources, strict=True)]
        raw = {role: LOSS_SLOPE * g for role, g in zip(weights, made[len(names) :], strict=True)}
        return dict(zip(names, made, strict=False)), raw

    def alone(self, changing: str, outside: Collection[str]) -> TorchRun:
        """The run in which one tensor, or one of the signals that come from outside, alone changes."""
        run = copy(self)
        run.steps = [None if s is None else replace(s, moment=s.moment.alone(changing, outside)) for s in self.steps]
        return run

    def decaying(self) -> TorchRun:
        """The same run, relative to initial values that do not decay."""
        run = copy(self)
        if len(self.steps) > 1:
            run.steps = [
                None if s is None else replace(s, moment=s.moment.relative_to(*self.first)) for s in self.steps
            ]
        return run

    def update_size(self, role: str, t: int) -> Tensor:
        """Entry size of ``W_t - W_0`` of each replica, (S,)."""
        m = self._moment(t) if self.token is None else self._at(t).batch.moment
        return m.weights[role].update_size()

    def raw_gradient_size(self, role: str, t: int) -> Tensor:
        """Entry size of the gradient of a tensor, of each replica."""
        return size(self._at(t).raw[role], self.network.tensors[role].letters, self.model.weights[role][0].numel())

    # inside ----------------------------------------------------------------------------------------------------

    def _at(self, t: int) -> Step:
        step = self.steps[t]
        if step is None:
            raise NotMeasured(f"step {t} is over; keep the steps of this run")
        return step

    def _own(self, statement: Product) -> Product:
        """The statement of this network that makes the same signal."""
        own = self.network.producer(statement.out)
        assert isinstance(own, Product)
        return own

    def _moment(self, t: int) -> Moment:
        return self._at(t).moment

    def _signal(self, name: str, entries: Tensor) -> SignalEntries:
        return SignalEntries(self.network.signals[name], entries)

    def _argument(self, function: Function, t: int) -> Tensor:
        (x,) = function.inputs
        return self.model.turned(self._moment(t).value(x.name), x.letters, self.network.signals[function.out])
