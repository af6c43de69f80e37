"""What any trained network computed, part by part: torch tensors for the names that the engine has exponents for.

``TorchRun`` is a ``Run`` (``dynamics/quantities.py``): one table of names is read off exponents and off tensors. Parts
follow from W_t = W_0 + dW by contraction, whole gradients from autograd, parts of gradients from the chain rule, with
every function linearised where it is. With decoupled weight decay W_0 means the decayed initial value, so that dW is
the part driven by gradients and every split is an identity.
Read next: ``networks/reading.py`` (the network), ``measuring/training.py`` (reads a run at every step).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field

import torch
from torch import Tensor

from scaling_algebra.spec.networks.language import DATA, Function, Mode, Product, Statement, Sum, Term
from scaling_algebra.spec.optimizers import Trained
from scaling_algebra.verify.networks.reading import Signals, TorchNetwork, applied, contract
from scaling_algebra.verify.networks.scales import LOSS_SLOPE
from scaling_algebra.verify.networks.steppers import shrinkage

from .parts import over, rms
from .updates import Coefficients, linear

Modes = Mapping[str, Mode]


class NotMeasured(Exception):
    """A part that this optimizer does not leave apart."""


@dataclass(frozen=True)
class SignalEntries:
    """Entries of a signal with its index letters, (S, *letters)."""

    letters: str
    entries: Tensor


@dataclass
class Moment:
    """A network after some updates.

    Attributes:
        start, now: W_0 (decayed as the optimizer decays it) and W_t, by role.
        initial, value: signals with W_0 and the first step's noise, and as they are now.
        gradients: of the output, by signal; ``raw``: of the loss, by role.
    """

    start: Mapping[str, Tensor]
    now: Mapping[str, Tensor]
    initial: Signals
    value: Signals
    gradients: Signals
    raw: Mapping[str, Tensor]
    computed: dict[tuple[object, ...], Tensor] = field(default_factory=dict)

    def kept(self, key: tuple[object, ...], compute: Callable[[], Tensor]) -> Tensor:
        """A value that is computed once and kept."""
        if key not in self.computed:
            self.computed[key] = compute()
        return self.computed[key]

    def update(self, role: str) -> Tensor:
        """W_t - W_0."""
        return self.kept(("update", role), lambda: self.now[role] - self.start[role])

    def part(self, role: str, mode: Mode | None) -> Tensor:
        """W_0, the update, or the whole."""
        return self.now[role] if mode is None else self.start[role] if mode == "init" else self.update(role)

    def change(self, signal: str) -> Tensor:
        """Value minus initial value."""
        return self.kept(("change", signal), lambda: self.value[signal] - self.initial[signal])


class TorchRun:
    """A training run of a network: ``step`` makes an update, everything else reads. ``t`` is the number of updates.

    Args:
        steps: number of updates to come.
        keep: may earlier steps be read later on? That takes a copy of the weights for each.
    """

    def __init__(self, model: TorchNetwork, rule: Trained, steps: int, keep: bool = False) -> None:
        self.model, self.network, self.rule, self.keep = model, model.network, rule, keep
        self.stepper = model.optimizer(rule)
        self.coefficients = Coefficients(self.stepper, steps) if linear(rule) else None
        self.start = {role: w.detach().clone() for role, w in model.weights.items()}
        self.first_noise = self.noise = model.noise()
        self.moments: list[Moment | None] = []
        self._paths: dict[tuple[str, str], list[Tensor]] = {}
        self._roles: dict[str, frozenset[str]] = {}
        self._read()

    def step(self) -> None:
        """One update of all tensors."""
        self.stepper.step()
        if self.coefficients is not None:
            self.coefficients.step()
        self.start = dict(self.start)
        for group in self.stepper.param_groups:
            role = group["symbol"]
            self.start[role] = self.start[role] * shrinkage(group)
        self.noise = self.model.noise()
        if not self.keep:
            self.moments[-1] = None
        self._read()

    def _read(self) -> None:
        """Forward and backward at the present weights; leaves the gradient of the loss in the parameters."""
        self.stepper.zero_grad()
        weights = dict(self.model.weights.items())
        signals = self.model.signals(weights, {name: x.requires_grad_() for name, x in self.noise.items()})
        names = [s.out for s in self.network.statements]
        outputs = [signals[x] for x in names]
        f = signals[self.network.output]
        sources = [*outputs, *weights.values()]
        allowed = torch.autograd.grad(f.sum(), sources, allow_unused=True)
        derivatives = [torch.zeros_like(x) if g is None else g for g, x in zip(allowed, sources, strict=True)]
        gradients = dict(zip(names, derivatives, strict=False))
        for w, g in zip(weights.values(), derivatives[len(outputs) :], strict=True):
            w.grad = LOSS_SLOPE * g
        with torch.no_grad():
            now = {role: w.detach().clone() if self.keep else w.detach() for role, w in weights.items()}
            value = {name: x.detach() for name, x in signals.items()}
            first = {name: x.detach() for name, x in self.first_noise.items()}
            initial = self.model.signals(self.start, first) if self.moments else value
            raw = {role: w.grad.clone() if self.keep else w.grad for role, w in weights.items() if w.grad is not None}
        if not self.moments:
            self.first = self.start, value
        self.moments.append(Moment(self.start, now, initial, value, gradients, raw))
        if self.coefficients is not None:
            for (signal, via), past in self._paths.items():
                past.append(self._gradient(signal, len(self.moments) - 1, {}, via))

    def follow(self, signal: str, via: str) -> None:
        """Remembers the gradient at a signal on a path; asked before the first step."""
        if self.coefficients is not None and (signal, via) not in self._paths:
            self._paths[signal, via] = [self._gradient(signal, t, {}, via) for t in range(len(self.moments))]

    # forward ---------------------------------------------------------------------------------------------------

    def initial(self, signal: str) -> SignalEntries:
        """A signal before training."""
        return self._signal(signal, self._moment(len(self.moments) - 1).initial[signal])

    def value(self, signal: str, t: int) -> SignalEntries:
        """A signal after t updates."""
        return self._signal(signal, self._moment(t).value[signal])

    def change(self, signal: str, t: int) -> SignalEntries:
        """A signal after t updates minus its initial value."""
        return self._signal(signal, self._moment(t).change(signal))

    def part(self, statement: Product, mode: Mode, which: str, t: int, x: SignalEntries | None = None) -> SignalEntries:
        """A part of a product, with gates at their initial values.

        Law: a product of changes is a sum over its factors, each changed with what stands before at its present value.
        """
        m = self._moment(t)
        if x is not None:
            return self._signal(statement.out, self._part(statement, mode, which, m, x.entries))
        key = ("part", statement.out, mode, which)
        return self._signal(statement.out, m.kept(key, lambda: self._part(statement, mode, which, m, None)))

    def _part(self, statement: Product, mode: Mode, which: str, m: Moment, replaced: Tensor | None) -> Tensor:
        whole = torch.zeros_like(m.value[statement.out])
        for term in self.network.terms(statement):
            for modes in self._modes(mode, len(term.tensors)):
                tensors = [(f.letters, m.part(f.name, k)) for f, k in zip(term.tensors, modes, strict=True)]
                for signals in self._choices(term, m, which, replaced):
                    operands = [*tensors, *self._initial(term, m), *signals]
                    whole = whole + self._contracted(statement, operands, term.multipliers)
        return whole

    def regated(self, statement: Product, t: int) -> SignalEntries:
        """``(gates_t - gates_0) * the rest at t``."""
        m = self._moment(t)
        weights = self.network.terms(statement)[0].weights
        others = [(x.letters, m.value[x.name]) for x in statement.factors if x not in weights]
        whole = torch.zeros_like(m.value[statement.out])
        for k, gate in enumerate(weights):
            before = [(x.letters, m.value[x.name]) for x in weights[:k]]
            behind = [(x.letters, m.initial[x.name]) for x in weights[k + 1 :]]
            operands = [(gate.letters, m.change(gate.name)), *before, *behind, *others]
            whole = whole + self._contracted(statement, operands, statement.multipliers)
        return self._signal(statement.out, whole)

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
        m = self._moment(t)
        data = [(x.letters, m.value[x.name]) for x in statement.factors]
        whole = torch.zeros_like(m.value[signal])
        past = self._paths[signal, via]
        for c, g in zip(self.coefficients.of(statement.tensor.name), past, strict=False):
            above = [(self.network.signals[signal], LOSS_SLOPE * c * g), *data]
            moved = self.model.multiplier(statement.multipliers) * self._contract(above, statement.tensor.letters)
            whole = whole + self._contracted(
                statement, [(statement.tensor.letters, moved), *data], statement.multipliers
            )
        return self._signal(signal, whole)

    def spread(self, function: Function, t: int) -> SignalEntries:
        """The argument of a function minus its mean along the index that it goes along."""
        x = self._argument(function, t)
        along = 1 + self.network.signals[function.out].index(function.over)
        return self._signal(function.out, x - x.mean(along, keepdim=True))

    def relative(self, signal: SignalEntries, source: str, t: int) -> SignalEntries:
        """A signal over the root-mean-square of another, in each replica."""
        return SignalEntries(signal.letters, over(signal.entries, rms(self._moment(t).value[source])))

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
        return SignalEntries(kept, self._contract([(left.letters, left.entries), (right.letters, right.entries)], kept))

    # backward --------------------------------------------------------------------------------------------------

    def gradient(self, signal: str, t: int, modes: Modes | None = None, via: str = "") -> SignalEntries:
        """Derivative of the output with respect to a signal: with these parts of these tensors above it, on the path
        through the signal ``via``. The whole is autograd's."""
        if not modes and not via:
            return self._signal(signal, self._moment(t).gradients[signal])
        return self._signal(signal, self._gradient(signal, t, modes or {}, via))

    def chained(self, signal: str, t: int) -> SignalEntries:
        """The whole gradient by the chain rule, as its parts are: what autograd's must equal."""
        return self._signal(signal, self._gradient(signal, t, {}, "", whole=False))

    def decaying(self) -> TorchRun:
        """The same run, relative to initial values that do not decay."""
        run, (start, initial) = copy(self), self.first
        run.moments = [
            None if m is None else Moment(start, m.now, initial, m.value, m.gradients, m.raw) for m in self.moments
        ]
        return run

    def update_size(self, role: str, t: int) -> Tensor:
        """Entry size of ``W_t - W_0`` of each replica, (S,)."""
        return rms(self._moment(t).update(role))

    def raw_gradient_size(self, role: str, t: int) -> Tensor:
        """Entry size of the gradient of a tensor, of each replica."""
        return rms(self._moment(t).raw[role])

    # inside ----------------------------------------------------------------------------------------------------

    def _moment(self, t: int) -> Moment:
        moment = self.moments[t]
        if moment is None:
            raise NotMeasured(f"step {t} is over; keep the steps of this run")
        return moment

    def _signal(self, name: str, entries: Tensor) -> SignalEntries:
        return SignalEntries(self.network.signals[name], entries)

    def _argument(self, function: Function, t: int) -> Tensor:
        (x,) = function.inputs
        return self.model.turned(self._moment(t).value[x.name], x.letters, self.network.signals[function.out])

    def _contract(self, operands: Sequence[tuple[str, Tensor]], out: str) -> Tensor:
        return contract(operands, out, self.model.sizes)

    def _contracted(
        self, statement: Product, operands: Sequence[tuple[str, Tensor]], multipliers: Sequence[str]
    ) -> Tensor:
        return self.model.multiplier(multipliers) * self._contract(operands, self.network.signals[statement.out])

    def _initial(self, term: Term, m: Moment) -> list[tuple[str, Tensor]]:
        return [(x.letters, m.initial[x.name]) for x in term.weights]

    def _modes(self, mode: Mode, count: int) -> list[tuple[Mode | None, ...]]:
        """The initial tensors; or their whole product minus the initial one, as a sum over the tensor that changed."""
        initial: list[Mode | None] = ["init"] * count
        if mode == "init":
            return [tuple(initial)]
        whole: list[Mode | None] = [None] * count
        return [(*whole[:k], "update", *initial[k + 1 :]) for k in range(count)]

    def _choices(self, term: Term, m: Moment, which: str, replaced: Tensor | None) -> list[list[tuple[str, Tensor]]]:
        signals = term.signals
        if replaced is not None:
            (only,) = signals
            return [[(only.letters, replaced)]]
        if which != "change":
            stage = m.initial if which == "initial" else m.value
            return [[(x.letters, stage[x.name]) for x in signals]]
        return [
            [(x.letters, m.value[x.name]) for x in signals[:k]]
            + [(signals[k].letters, m.change(signals[k].name))]
            + [(x.letters, m.initial[x.name]) for x in signals[k + 1 :]]
            for k in range(len(signals))
            if signals[k].name != DATA
        ]

    def _gradient(self, signal: str, t: int, modes: Modes, via: str, whole: bool = True) -> Tensor:
        m = self._moment(t)
        above = {role: mode for role, mode in modes.items() if role in self._above(signal)}
        if whole and not above and not via:
            return m.gradients[signal]
        key = ("gradient", signal, tuple(sorted(above.items())), via, whole)
        return m.kept(key, lambda: self._paths_of(signal, t, above, via, whole))

    def _paths_of(self, signal: str, t: int, modes: Modes, via: str, whole: bool) -> Tensor:
        m = self._moment(t)
        uses = [(s, k) for s, k in self.network.consumers(signal) if via in ("", s.out)]
        if not uses:
            return torch.ones_like(m.value[signal])
        total = torch.zeros_like(m.value[signal])
        for s, k in uses:
            total = total + self._adjoint(s, k, self._gradient(s.out, t, modes, "", whole), m, modes)
        return total

    def _adjoint(self, s: Statement, k: int, above: Tensor, m: Moment, modes: Modes) -> Tensor:
        """The gradient at the k-th input of a statement."""
        out, letters = self.network.signals[s.out], s.inputs[k].letters
        if isinstance(s, Sum):
            return self.model.turned(above, out, letters)
        if isinstance(s, Function):
            x = self.model.turned(m.value[s.inputs[k].name], letters, out)
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                (at_argument,) = torch.autograd.grad(applied(s, out, x), x, above)
            return self.model.turned(at_argument, out, letters)
        total = torch.zeros_like(m.value[s.inputs[k].name])
        for term in self._others(s, k, modes):
            tensors = [(x.letters, m.part(x.name, modes.get(x.name))) for x in term.tensors]
            signals = [(x.letters, m.value[x.name]) for x in (*term.weights, *term.signals)]
            contracted = self._contract([(out, above), *tensors, *signals], letters)
            total = total + self.model.multiplier(term.multipliers) * contracted
        return total

    def _others(self, s: Product, k: int, modes: Modes) -> Sequence[Term]:
        """The factors of a product but one, written out to their tensors where parts of these are asked for."""
        terms = self.network.terms(s, without=k)
        if s.tensor or any(x.name in modes for term in terms for x in term.tensors):
            return terms
        rest = tuple(x for j, x in enumerate(s.factors) if j != k)
        return (Term((), (), rest, s.multipliers),)

    def _above(self, signal: str) -> frozenset[str]:
        """Roles of the tensors that a gradient at a signal may come through."""
        if signal not in self._roles:
            roles: set[str] = set()
            for s, k in self.network.consumers(signal):
                roles |= self._above(s.out)
                if isinstance(s, Product):
                    roles |= {x.name for term in self.network.terms(s, without=k) for x in term.tensors}
            self._roles[signal] = frozenset(roles)
        return self._roles[signal]
