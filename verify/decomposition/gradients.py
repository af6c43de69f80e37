"""Gradients of the output by the chain rule, whole and by parts of the tensors that they came through.

All parts of a gradient that anybody asks for come back together, as columns of one product with each tensor; every
function is linearised where it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from itertools import product
from operator import add

import torch
from torch import Tensor

from scaling_algebra.spec.networks.language import Function, Mode, Network, Product, Statement, Sum, Term
from scaling_algebra.spec.networks.roles import adjoints
from scaling_algebra.verify.networks.contraction import Labelled, contract
from scaling_algebra.verify.networks.reading import applied

from .columns import COLUMN, Columns, SignalEntries
from .parts import MODES, Moment

Modes = Mapping[str, Mode]
Key = tuple[tuple[str, Mode], ...]
"""Which part of which tensors a gradient came through."""
Use = tuple[Statement, int]


class WantedParts:
    """The parts of gradients that are wanted, at every use of every signal: those that quantities have a name for."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.at_use: dict[Use, set[Key]] = {}
        self.at: dict[str, set[Key]] = {}
        self._above: dict[str, frozenset[str]] = {}
        for s in network.linear:
            self.ask(s.out, ())
        for adjoint in adjoints(network):
            for modes in ({}, *adjoint.parts.values()):
                self.ask(adjoint.signal, tuple(sorted(modes.items())), adjoint.via)

    def ask(self, signal: str, key: Key, via: str = "") -> bool:
        """Wants a part; False if it was wanted already."""
        uses = self.uses(signal, via)
        new = False
        if not via:
            key = self._restricted(key, self.above(signal))
            new = key not in self.at.setdefault(signal, set())
            self.at[signal].add(key)
        for s, k in uses:
            own = self._restricted(key, self.roles(s, k))
            wanted = self.at_use.setdefault((s, k), set())
            if own not in wanted:
                new = True
                wanted.add(own)
                self.ask(s.out, own)
        return new

    def uses(self, signal: str, via: str = "") -> list[Use]:
        """The uses of a signal: all, or those on the path through another one."""
        return [(s, k) for s, k in self.network.consumers(signal) if via in ("", s.out)]

    def above(self, signal: str) -> frozenset[str]:
        """Roles of the tensors that a gradient at a signal may come through."""
        if signal not in self._above:
            self._above[signal] = frozenset().union(*(self.roles(*use) for use in self.uses(signal)))
        return self._above[signal]

    def roles(self, s: Statement, k: int) -> frozenset[str]:
        """Roles of the tensors that a gradient at an input of a statement may come through."""
        return self.above(s.out) | self.own(s, k)

    def own(self, s: Statement, k: int) -> frozenset[str]:
        """Roles of the tensors that it comes through there."""
        if not isinstance(s, Product):
            return frozenset()
        return frozenset(x.name for term in self.network.terms(s, without=k) for x in term.tensors)

    def _restricted(self, key: Key, roles: frozenset[str]) -> Key:
        return restricted(key, roles)


def restricted(key: Key, roles: Iterable[str]) -> Key:
    """What a part says of these tensors."""
    return tuple((role, mode) for role, mode in key if role in roles)


def completions(key: Key, wanted: Iterable[Key]) -> list[Key]:
    """Parts that are wanted too, and whose sum is this one; itself where there are none."""
    every = set(wanted)
    roles = [role for role, _ in max(every, key=len)]
    given = dict(key)
    if not given.keys() < set(roles):
        return [key]
    choices = [(given[role],) if role in given else MODES for role in roles]
    found: list[Key] = [tuple(zip(roles, modes, strict=True)) for modes in product(*choices)]
    return found if set(found) <= every else [key]


class Gradients:
    """The gradients at one moment of training."""

    def __init__(self, moment: Moment, asked: WantedParts) -> None:
        self.moment, self.asked, self.network = moment, asked, moment.network
        self._at: dict[str, Columns] = {}
        self._at_use: dict[Use, Columns] = {}

    def read(self, signal: str, modes: Modes | None = None, via: str = "") -> SignalEntries:
        """Derivative of the output with respect to a signal: with these parts of these tensors above it, on the path
        through the signal ``via``."""
        key = tuple(sorted((modes or {}).items()))
        if self.asked.ask(signal, key, via):
            self._at.clear()
            self._at_use.clear()
        if not via:
            return self.at(signal).sum([restricted(key, self.asked.above(signal))])
        uses = self.asked.uses(signal, via)
        found = [self.at_use(signal, use).sum([restricted(key, self.asked.roles(*use))]) for use in uses]
        if len(found) == 1:
            return found[0]
        return SignalEntries(found[0].letters, torch.stack([x.entries for x in found]).sum(0))

    def at(self, signal: str) -> Columns:
        """All parts at a signal that are wanted."""
        if signal not in self._at:
            uses = self.asked.uses(signal)
            if len(uses) == 1:
                self._at[signal] = self.at_use(signal, uses[0])
            elif not uses:
                one = torch.ones_like(self.moment.value(signal))
                self._at[signal] = Columns(self.network.signals[signal], one[:, None], {(): (0,)})
            else:
                self._at[signal] = self._forked(signal, uses)
        return self._at[signal]

    def at_use(self, signal: str, use: Use) -> Columns:
        """All parts at a use of a signal."""
        if use not in self._at_use:
            s, k = use
            above = self.at(s.out)
            keys: Mapping[Key, tuple[int, ...]] = above.keys
            if isinstance(s, Product):
                entries, keys = self._through_product(s, k, above)
            elif isinstance(s, Sum):
                order = [above.letters.index(x) for x in s.inputs[k].letters]
                entries = above.entries.permute(0, 1, *(2 + x for x in order))
            else:
                entries = self._through_function(s, k, above)
            self._at_use[use] = Columns(self.network.signals[signal], entries, keys)
        return self._at_use[use]

    def of_weight(self, role: str, slope: float) -> Tensor:
        """The gradient of the output, times a number, with respect to a tensor, (S, *letters)."""
        found, model = list[Tensor](), self.moment.model
        for s in self.network.uses(role):
            assert s.tensor
            above = self.at(s.out).sum([()])
            values = [(x.letters, self.moment.value(x.name)) for x in s.factors]
            scaled = (above.letters, slope * model.multiplier(s.multipliers) * above.entries)
            found.append(contract([scaled, *values], s.tensor.letters, model.sizes))
        return found[0] if len(found) == 1 else torch.stack(found).sum(0)

    # inside ----------------------------------------------------------------------------------------------------

    def _forked(self, signal: str, uses: Sequence[Use]) -> Columns:
        """The sum over several uses."""
        wanted, roles = sorted(self.asked.at[signal]), [self.asked.roles(*use) for use in uses]
        columns, letters = [self.at_use(signal, use) for use in uses], self.network.signals[signal]
        parts = []
        for key in wanted:
            each = [c.sum([restricted(key, r)]).entries for c, r in zip(columns, roles, strict=True)]
            parts.append(torch.stack(each).sum(0))
        return Columns(letters, torch.stack(parts, 1), {key: (k,) for k, key in enumerate(wanted)})

    def _through_function(self, s: Function, k: int, above: Columns) -> Tensor:
        """In the letters of the use."""
        out, x = self.network.signals[s.out], s.inputs[k]
        argument = self.moment.model.turned(self.moment.value(x.name), x.letters, out)
        with torch.enable_grad():
            argument = argument.detach()[:, None].expand_as(above.entries).requires_grad_()
            (back,) = torch.autograd.grad(applied(s, COLUMN + out, argument), argument, above.entries)
        order = [out.index(c) for c in x.letters]
        return back.permute(0, 1, *(2 + c for c in order))

    def _through_product(self, s: Product, k: int, above: Columns) -> tuple[Tensor, dict[Key, tuple[int, ...]]]:
        """In the letters of the use."""
        m, own, wanted = self.moment, self.asked.own(s, k), self.asked.at_use[s, k]
        sums = {key: completions(key, wanted) for key in wanted}
        base = [key for key in wanted if sums[key] == [key]]
        if not m.moved:
            base = [key for key in base if all(mode == "init" for _, mode in key)]
        higher = self.asked.above(s.out)
        ups = sorted({restricted(key, higher) for key in base}, key=lambda key: above.keys[key])
        entries = above.entries
        if [above.keys[key] for key in ups] != [(j,) for j in range(entries.shape[1])]:
            entries = torch.stack([above.sum([key]).entries for key in ups], 1)
        modes = sorted({restricted(key, own) for key in base})
        columns = {
            key: (modes.index(restricted(key, own)) * len(ups) + ups.index(restricted(key, higher)),) for key in base
        }
        keys = {key: tuple(k for part in sums[key] for k in columns.get(part, ())) for key in wanted}
        terms = self.network.terms(s, without=k)
        if not s.tensor and not any(modes):  # factors are written out to their tensors where parts of these are wanted
            terms = (Term((), (), tuple(x for j, x in enumerate(s.factors) if j != k), s.multipliers),)
        through, letters = (COLUMN + above.letters, entries), s.inputs[k].letters
        parts = [reduce(add, (self._part(t, through, dict(key), letters) for t in terms)) for key in modes]
        return torch.cat(parts, 1), keys

    def _part(self, term: Term, above: Labelled, modes: Modes, letters: str) -> Tensor:
        """The gradient through one product with these parts of its tensors, (S, columns, *letters)."""
        m = self.moment
        weights = [(x.letters, m.weights[x.name].part(modes.get(x.name))) for x in term.tensors]
        signals = [(x.letters, m.value(x.name)) for x in (*term.weights, *term.signals)]
        scaled = (above[0], m.model.multiplier(term.multipliers) * above[1])
        return contract([*weights, scaled, *signals], COLUMN + letters, m.model.sizes)
