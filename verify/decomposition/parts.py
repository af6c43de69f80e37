"""A network at one moment of training: every signal, and its parts by what changed.

Of a product, initial tensors and their updates act on the initial signals, on their changes, and on present signals
with changed gates. All of these are columns of one product with each tensor, and every part is a sum of columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from scaling_algebra.spec.networks.language import Factor, Function, Mode, Network, Product, Sum, Term
from scaling_algebra.verify.networks.contraction import Labelled, Products, contract
from scaling_algebra.verify.networks.reading import Signals, TorchNetwork, kept_apart

from .columns import COLUMN, Columns, Group, SignalEntries
from .updates import TrainedWeight

INITIAL, CHANGE, REGATED = "initial", "change", "regated"
"""What tensors act on: initial signals; their changes; present signals, whose gates have changed."""


MODES: tuple[Mode, Mode] = ("init", "update")
Key = tuple[Mode, str]
"""Which part of the tensors acts on what."""


@dataclass
class Moment:
    """A network after some updates. What is computed is kept.

    Attributes:
        weights: by role.
        noise, first_noise: of this step and of the first one, by signal.
        moved: has there been an update?
        reference: signals that changes are relative to; None for those that the initial weights make.
    """

    model: TorchNetwork
    weights: Mapping[str, TrainedWeight]
    noise: Signals
    first_noise: Signals
    moved: bool
    reference: Signals | None = None
    known: Products = field(default_factory=Products)
    _parts: dict[str, Columns] = field(default_factory=dict)
    _values: Signals = field(default_factory=dict)
    _initial: Signals = field(default_factory=dict)
    _changes: Signals = field(default_factory=dict)

    @property
    def network(self) -> Network:
        return self.model.network

    def value(self, signal: str) -> Tensor:
        """A signal as it is now, (S, *letters)."""
        if signal not in self._values:
            s = self.network.producer(signal)
            if isinstance(s, Product):
                columns = self.parts(s)
                if signal not in self._values:
                    self._values[signal] = columns.sum(columns.keys).entries
            else:
                self._values[signal] = self._made(signal, s, self.value, self.noise)
        return self._values[signal]

    def initial(self, signal: str) -> Tensor:
        """A signal before training."""
        if not self.moved:
            return self.value(signal)
        if signal not in self._initial:
            s = self.network.producer(signal)
            if isinstance(s, Product):
                self._initial[signal] = self.part(s, "init", INITIAL).entries
            else:
                self._initial[signal] = self._made(signal, s, self.initial, self.first_noise)
        return self._initial[signal]

    def _made(self, signal: str, s: Function | Sum | None, read: Callable[[str], Tensor], noise: Signals) -> Tensor:
        if s is None:
            return self.model.steady(signal, len(next(iter(self.weights.values())).now))
        return self.model.made(s, read, noise)

    def now(self, signal: str) -> SignalEntries:
        """A signal as it is now, which may stay a sum of columns."""
        s = self.network.producer(signal)
        if isinstance(s, Product) and kept_apart(self.network, s):
            columns = self.parts(s)
            return columns.sum(columns.keys)
        return SignalEntries(self.network.signals[signal], self.value(signal))

    def of_token(self, model: TorchNetwork) -> Moment:
        """The same moment as one token sees it."""

        def seen(noise: Signals) -> Signals:
            return {name: model.seen(self.network.signals[name], x) for name, x in noise.items()}

        weights = {role: w.seen(model.seen) for role, w in self.weights.items()}
        return Moment(model, weights, seen(self.noise), seen(self.first_noise), self.moved)

    def before(self, signal: str) -> SignalEntries:
        """A signal before training, which may stay a sum of columns."""
        s = self.network.producer(signal)
        if isinstance(s, Product) and kept_apart(self.network, s):
            return self.part(s, "init", INITIAL)
        return SignalEntries(self.network.signals[signal], self.initial(signal))

    def formed(self) -> tuple[dict[str, Tensor], Signals]:
        """Copies of the weights, and every signal."""
        weights = {role: w.now.clone() for role, w in self.weights.items()}
        return weights, {s.out: self.value(s.out) for s in self.network.statements}

    def relative_to(self, weights: Mapping[str, Tensor], signals: Signals) -> Moment:
        """The same moment, with updates and changes relative to these."""
        moved = {role: replace(w, start=weights[role], moved=True) for role, w in self.weights.items()}
        return replace(self, weights=moved, reference=signals)

    def change(self, signal: str) -> SignalEntries:
        """A signal minus its initial value."""
        letters, s = self.network.signals[signal], self.network.producer(signal)
        if self.reference is not None:
            return SignalEntries(letters, self.value(signal) - self.reference[signal])
        if isinstance(s, Product):
            columns = self.parts(s)
            return columns.sum(key for key in columns.keys if key != ("init", INITIAL))
        if signal not in self._changes:
            self._changes[signal] = self.value(signal) - self.initial(signal)
        return SignalEntries(letters, self._changes[signal])

    def part(self, statement: Product, mode: Mode, which: str) -> SignalEntries:
        """A part of a product: with initial tensors or their updates, and what ``which`` names."""
        chosen = (INITIAL, CHANGE) if which == "value" else (which,)
        columns = self.parts(statement)
        return columns.sum(key for key in columns.keys if key[0] == mode and key[1] in chosen)

    def regated(self, statement: Product) -> SignalEntries:
        """The part of a product by the change of its gates."""
        columns = self.parts(statement)
        return columns.sum(key for key in columns.keys if key[1] == REGATED)

    def acting(self, statement: Product, mode: Mode, x: Tensor) -> SignalEntries:
        """A part of a product with another signal instead of its only one, and gates at their initial values."""
        (term,) = self.network.terms(statement)
        (only,) = term.signals
        scaled = self.model.multiplier(term.multipliers) * x
        operands = [*((g.letters, self.initial(g.name)) for g in term.weights), (only.letters, scaled)]
        letters = self.network.signals[statement.out]
        if not x.any():
            return SignalEntries(letters, torch.zeros_like(self.value(statement.out)))
        _, init, update = self.applied(term.tensors, operands, letters)
        whole = init if mode == "init" else update
        return SignalEntries(letters, torch.zeros_like(init) if whole is None else whole)

    def parts(self, statement: Product) -> Columns:
        """What initial tensors and their updates make of everything that they act on."""
        if statement.out not in self._parts:
            self._parts[statement.out] = self._columns(statement)
        return self._parts[statement.out]

    def applied(
        self, tensors: Sequence[Factor], operands: Sequence[Labelled], out: str, known: Products | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """What tensors make of other signals: as they are now, initially, and by their updates (None for nothing)."""
        now = self._contract([*((x.letters, self.weights[x.name].now) for x in tensors), *operands], out, known)
        if not any(self.weights[x.name].moved for x in tensors):
            return now, now, None
        if len(tensors) == 1 and self.weights[tensors[0].name].start is None:
            update = self._contract([*self.weights[tensors[0].name].update(tensors[0].letters), *operands], out, known)
            return now, now - update, update
        start = [(x.letters, self._start(x.name)) for x in tensors]
        init = self._contract([*start, *operands], out, known)
        return now, init, now - init

    # inside ----------------------------------------------------------------------------------------------------

    def _start(self, role: str) -> Tensor:
        start = self.weights[role].start
        assert start is not None  # gradients are kept only of tensors that are never multiplied with another one
        return start

    def _contract(self, operands: Sequence[Labelled], out: str, known: Products | None = None) -> Tensor:
        return contract(operands, out, self.model.sizes, known)

    def _columns(self, statement: Product) -> Columns:
        letters = self.network.signals[statement.out]
        apart = kept_apart(self.network, statement)
        groups, keys, total = list[Group](), dict[Key, list[int]](), None

        def add(mode: Mode, names: Sequence[str], *terms: tuple[int, tuple[Labelled, ...]]) -> None:
            first = sum(group.count for group in groups)
            for k, name in enumerate(names, first):
                keys.setdefault((mode, name), []).append(k)
            groups.append(Group(terms, len(names)))

        for term in self.network.terms(statement):
            names, operands = self._acted(term)
            if apart:
                (x,) = term.tensors
                weight = self.weights[x.name]
                for mode in MODES if weight.moved else MODES[:1]:
                    add(mode, names, *((sign, (*w, *operands)) for sign, w in weight.signed(mode, x.letters)))
                continue
            now, init, update = self.applied(term.tensors, operands, COLUMN + letters)
            total = now.sum(1) if total is None else total + now.sum(1)
            add("init", names, (1, ((COLUMN + letters, init),)))
            if update is not None:
                add("update", names, (1, ((COLUMN + letters, update),)))
        if total is not None:
            self._values[statement.out] = total
        experts = "".join(x for x in letters if self.network.axes[x] in ("M", "K")) if apart else ""
        like = groups[0].terms[0][1][0][1]
        return Columns(letters, tuple(groups), {k: tuple(v) for k, v in keys.items()}, self.model.sizes, like, experts)

    def _acted(self, term: Term) -> tuple[list[str], list[Labelled]]:
        """The names of all columns, and the factors that are no tensors: with ``COLUMN`` where there are several."""
        factors = (*term.weights, *term.signals)
        gates, count = len(term.weights), len(factors)
        stages: dict[str, Callable[[str], Tensor]] = {
            "old": self.initial,
            "new": self.value,
            "moved": lambda name: self.change(name).entries,
        }
        chosen = [(INITIAL, ["old"] * count)]
        if self.moved:
            for k in range(gates, count):
                if self.network.producer(factors[k].name):
                    moved = ["old"] * gates + ["new"] * (k - gates) + ["moved"] + ["old"] * (count - k - 1)
                    chosen.append((CHANGE, moved))
            for k in range(gates):
                chosen.append(
                    (REGATED, ["new"] * k + ["moved"] + ["old"] * (gates - k - 1) + ["new"] * (count - gates))
                )
        scale = self.model.multiplier(term.multipliers)
        operands = list[Labelled]()
        for k, factor in enumerate(factors):
            read = [stages[stage[k]](factor.name) for _, stage in chosen]
            x = read[0] if len(read) == 1 else torch.stack(read, 1)
            letters = factor.letters if len(read) == 1 else COLUMN + factor.letters
            operands.append((letters, x if k or scale == 1 else scale * x))
        return [name for name, _ in chosen], operands
