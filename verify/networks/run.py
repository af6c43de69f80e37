"""Trains a network with real optimizer steps and measures its signals and their parts.

``Trainer`` does the steps, with gradients by the chain rule. ``TorchRun`` reads them; it has the interface ``Run`` of
``dynamics/quantities.py``, so the same table of names is evaluated on exponents and on tensors. With decoupled weight
decay W_0 means the decayed initial value, so that dW consists of gradients, and every split is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from scaling_algebra.spec.networks.language import Function, Mode, Product
from scaling_algebra.spec.networks.terms import find_product
from scaling_algebra.spec.optimizers import Optimizer, OptimizerSpec

from .backward import Backward
from .contraction import contract
from .moment import Moment, compute_rms
from .steppers import find_stepper, get_shrinkage
from .torch_network import TorchNetwork


class NotMeasured(Exception):
    """Raised if a part of a signal cannot be measured with this optimizer, or if the weights of its step were not
    kept.
    """


def is_linear(trained: OptimizerSpec) -> bool:
    """Whether every update is a linear combination of past gradients with fixed coefficients."""
    return isinstance(trained, Optimizer) and not trained.normalises and not trained.decoupled_decay


@dataclass(frozen=True)
class SignalEntries:
    """The values of a signal in every replica.

    Attributes:
        `indices`: the names of its indices, one character each.
        entries: its entries, (S, *indices).
    """

    indices: str
    entries: Tensor

    def rms(self) -> Tensor:
        """Returns the root mean square over the entries of each replica, (S,)."""
        return compute_rms(self.entries)


Moments = tuple[Backward, Backward]
"""The network as one token sees it, and as all tokens do (whose gradients train it). Both are the same unless K < M."""
View = Callable[[Backward], Backward]


class Trainer:
    """Trains a network with a real optimizer.

    Args:
        model: the network.
        rule: the optimizer, or several by tensor.
        keep: whether signals at earlier steps can still be read, which takes a copy of the weights for each step.

    Attributes:
        states: the network after 0, 1, 2, ... updates; None for a step that was not kept.
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
        """Adds the network with the weights ``now`` to ``states`` and returns it, and sets the gradients of all
        parameters for the next step of the optimizer.
        """
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
        """Updates all tensors once."""
        batch = get_state(self.states, -1)[1]
        for (signal, via), path in self.paths.items():
            (group,) = path.param_groups
            layer = find_product(self.model.network, signal)
            group["params"][0].grad = batch.of_use(layer, batch.gradient(signal, {}, via))
            path.step()
        if not self.keep:
            self.states[-1] = None
            for moment in filter(None, self.first):
                moment.known = moment.get_lasting()
        del batch
        self.stepper.step()
        for group in self.stepper.param_groups:
            if group.get("weight_decay") or "kept" in group:
                role = group["symbol"]
                self.start = {**self.start, role: self.start[role] * get_shrinkage(group)}
        now = {role: w.detach().clone() if self.keep else w.detach() for role, w in self.model.weights.items()}
        known = self._read(now)[0].known
        for (signal, via), path in self.paths.items():
            known["path", signal, via] = path.param_groups[0]["params"][0].clone()

    @torch.no_grad()
    def follow(self, signal: str, via: str) -> None:
        """Starts to train a copy of the tensor that makes ``signal``, which gets only the part of each gradient that
        passed through the signal ``via``.

        ``TorchRun.change_via`` reads the copy. Call this before the first step. Nothing is done if the optimizer is not
        linear in the gradients.
        """
        tensor = find_product(self.model.network, signal).tensor
        for group in self.stepper.param_groups if is_linear(self.rule) else ():
            if tensor and group["symbol"] == tensor.name:
                weight = torch.zeros_like(self.start[tensor.name])
                get_state(self.states, 0)[0].known["path", signal, via] = weight.clone()
                self.paths[signal, via] = find_stepper(self.rule.rules[0])([{**group, "params": [weight]}])


def get_state(states: Sequence[Moments | None], t: int) -> Moments:
    """Returns the network after t updates.

    Raises:
        NotMeasured: the weights of this step were not kept.
    """
    if (found := states[t]) is None:
        raise NotMeasured(f"the state after update {t} was not kept; create the run with keep=True")
    return found


class TorchRun:
    """A training run of a network whose signals can be read, whole or in parts. In its methods ``t`` is a number of
    updates.

    Args:
        model: the network.
        rule: the optimizer, or several by tensor.
        keep: whether signals at earlier steps can still be read.
    """

    def __init__(self, model: TorchNetwork, rule: OptimizerSpec, keep: bool = False) -> None:
        self.model, self.network, self.trainer = model, model.network, Trainer(model, rule, keep)
        self.states = self.trainer.states

    # forward ---------------------------------------------------------------------------------------------------

    def initial(self, signal: str) -> SignalEntries:
        """Returns the value of a signal before the first update."""
        return self._signal(signal, self._moment(-1).initial()[signal])

    def value(self, signal: str, t: int) -> SignalEntries:
        """Returns a signal after t updates."""
        return self._signal(signal, self._moment(t).signals()[signal])

    def change(self, signal: str, t: int) -> SignalEntries:
        """Returns a signal after t updates minus its initial value."""
        return self._signal(signal, self._moment(t).change(signal))

    def part(self, statement: Product, mode: Mode, which: str, t: int, x: SignalEntries | None = None) -> SignalEntries:
        """Returns a part of a product of a tensor and signals after t updates, such as W_0 dx or dW x_0, with gates at
        their initial values.

        Args:
            statement: the product.
            mode: the part of the tensor: its initial value ("init") or its update ("update").
            which: the part of the signals: "initial", their "change", or "value", the sum of both.
            t: number of updates done.
            x: if given, it takes the place of the product's only signal.
        """
        state, own = self._moment(t), find_product(self.network, statement.out)
        names = ("initial", "change") if which == "value" else (which,)
        entries = state.part(own, [mode], *names) if x is None else state.apply_term(own, mode, x.entries)
        return self._signal(own.out, entries)

    def gate_change(self, statement: Product, t: int) -> SignalEntries:
        """Returns the part of a product that is due to a change of its gates: (gates_t - gates_0) times the other
        factors after t updates.
        """
        own = find_product(self.network, statement.out)
        return self._signal(own.out, self._moment(t).part(own, ["init", "update"], "regated"))

    def change_via(self, signal: str, t: int, via: str) -> SignalEntries:
        """Returns the part of a signal's change after t updates that is due to gradients which passed through the
        signal ``via``. The signal must be computed from the data directly.

        Raises:
            NotMeasured: the optimizer is not linear in the gradients, or ``Trainer.follow`` was not called for these
                signals.
        """
        s, state = find_product(self.network, signal), get_state(self.states, t)[0]
        if ("path", signal, via) not in state.known:
            raise NotMeasured(
                f"the path of {signal} through {via} was not followed, or {self.trainer.rule.name} is not linear in "
                "the gradients"
            )
        factors = [(x.indices, state.moment.signals()[x.name]) for x in s.factors]
        operands = [*((x.indices, state.known["path", signal, via]) for x in (s.tensor,) if x), *factors]
        moved = contract(operands, self.network.signals[signal], self.model.sizes)
        return self._signal(signal, self.model.multiplier(s.multipliers) * moved)

    def spread(self, function: Function, t: int) -> SignalEntries:
        """Returns the argument of a function minus its mean along the index that the function acts along."""
        x, along = self._moment(t).argument(function)
        return self._signal(function.out, x - x.mean(along, keepdim=True))

    def relative(self, signal: SignalEntries, source: str, t: int) -> SignalEntries:
        """Returns ``signal`` divided, in each replica, by the rms of the signal ``source`` after t updates; exact zeros
        stay zero.
        """
        x, size = signal.entries, self.value(source, t).rms()
        return SignalEntries(signal.indices, x.where(x == 0, x / size.view(-1, *[1] * (x.ndim - 1)).to(x)))

    def divide_by_norm(self, function: Function, signal: SignalEntries, t: int) -> SignalEntries:
        """Divides ``signal``, a part of the argument of a norm such as RMSNorm, by the rms of the whole argument, as
        the norm does.
        """
        x, along = self._moment(t).argument(function)
        x = x - x.mean(along, keepdim=True) if function.kind.centres else x
        part = self.model.permute_axes(signal.entries, function.inputs[0].indices, self.network.signals[function.out])
        return self._signal(function.out, part / x.square().mean(along, keepdim=True).sqrt())

    def inner(self, left: SignalEntries, right: SignalEntries) -> SignalEntries:
        """Returns the inner product of two signals over all indices except those of experts.

        Raises:
            ValueError: they have different indices.
        """
        experts = {x for x, axis in self.network.indices.items() if axis in ("M", "K")}
        if set(left.indices) - experts != set(right.indices) - experts:
            raise ValueError("an inner product needs two signals with the same indices")
        kept = "".join(x for x in dict.fromkeys(left.indices + right.indices) if x in experts)
        sides = [(left.indices, left.entries), (right.indices, right.entries)]
        return SignalEntries(kept, contract(sides, kept, self.model.sizes))

    # backward --------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def gradient(self, signal: str, t: int, modes: Mapping[str, Mode] | None = None, via: str = "") -> SignalEntries:
        """Returns the derivative of the loss with respect to a signal, or a part of it, after t updates (see
        ``Backward.gradient``).
        """
        return self._signal(signal, get_state(self.states, t)[0].gradient(signal, modes or {}, via))

    @torch.no_grad()
    def vary_only(self, changing: str, outside: Collection[str]) -> TorchRun:
        """Returns a copy of the run in which, at each step, only one tensor or one signal has changed since the start.

        Args:
            changing: name of the tensor or signal.
            outside: signals that are taken as inputs and not computed; all but ``changing`` have their initial values.
        """
        return build_view(self, lambda x: replace(x, moment=x.moment.alone(changing, outside), known={}))

    def for_loss(self, loss: str) -> TorchRun:
        """Returns a copy of the run in which gradients are those of one loss only, the output or an extra loss; the
        weights are the same.
        """

        def own(x: Backward) -> Backward:
            return replace(x, loss=loss, known={})

        return build_view(self, own, own)

    def loss_gradient_ratio(self, loss: str, signal: str, t: int) -> SignalEntries:
        """Raises NotMeasured in any case: the engine predicts the ratio of the gradient of an extra loss to that of the
        output, but in a training run the two gradients are measured separately.
        """
        raise NotMeasured(f"the ratio is not measured; measure the gradients of {loss} and of the output instead")

    def relative_to_undecayed(self) -> TorchRun:
        """Returns a copy of the run in which changes are measured from the initial weights as they were, not shrunk by
        weight decay.
        """
        return build_view(self, ignore_decay, ignore_decay)

    @torch.no_grad()
    def update_size(self, role: str, t: int) -> Tensor:
        """Returns the rms of the entries of W_t - W_0 of each replica, (S,)."""
        batch = get_state(self.states, t)[1].moment
        return torch.cat([compute_rms((a - b)[None]) for a, b in zip(batch.now[role], batch.start[role], strict=True)])

    def raw_gradient_size(self, role: str, t: int) -> Tensor:
        """Returns the rms of the entries of a tensor's gradient, of each replica, (S,)."""
        return compute_rms(get_state(self.states, t)[1].of_weight(role))

    def _moment(self, t: int) -> Moment:
        return get_state(self.states, t)[0].moment

    def _signal(self, name: str, entries: Tensor) -> SignalEntries:
        return SignalEntries(self.network.signals[name], entries)


def ignore_decay(x: Backward) -> Backward:
    """Returns the same network and gradients, with changes of weights measured from the initial values as they were,
    not shrunk by weight decay.
    """
    return replace(x, moment=x.moment.without_decay(), known={})


def build_view(run: TorchRun, token: View, batch: View = lambda x: x) -> TorchRun:
    """Returns a copy of a training run in which the network at each step is replaced by a modified one.

    Args:
        run: the run.
        token: modifies the network as one token sees it (with its K experts).
        batch: modifies the network as all tokens see it (with all M experts).
    """
    view = copy(run)
    view.states = [both and (token(both[0]), batch(both[1])) for both in run.states]
    return view
