"""Gradients of the output by the chain rule, whole and by parts of the tensors that they came through.

All parts of a gradient that anybody asks for come back together, as columns of one product with each tensor; every
function is linearised where it is. A gradient that only the sum over experts passes on stays a product.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from math import prod

import torch
from torch import Tensor

from scaling_algebra.spec.networks.language import Function, Mode, Network, Product, Statement, Sum, Term
from scaling_algebra.spec.networks.roles import adjoints
from scaling_algebra.verify.networks.contraction import Labelled, contract
from scaling_algebra.verify.networks.reading import applied, kept_apart

from .columns import COLUMN, OTHER, Columns, Group, SignalEntries, renamed
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
                self._at[signal] = self._columns(signal, [(self.network.signals[signal], one)], 1, {(): (0,)})
            else:
                self._at[signal] = self._forked(signal, uses)
        return self._at[signal]

    def at_use(self, signal: str, use: Use) -> Columns:
        """All parts at a use of a signal."""
        if use not in self._at_use:
            s, k = use
            above = self.at(s.out)
            letters, own = s.inputs[k].letters, self.network.signals[signal]
            (group,) = above.groups
            if isinstance(s, Product):
                operands, count, keys = self._through_product(s, k, above)
            elif isinstance(s, Sum):
                operands, count, keys = list(group.operands), group.count, dict(above.keys)
            else:
                operands, count, keys = self._through_function(s, k, above), group.count, dict(above.keys)
            self._at_use[use] = self._columns(signal, renamed(operands, letters, own), count, keys)
        return self._at_use[use]

    def of_weight(self, role: str) -> list[Labelled]:
        """The gradient of the output with respect to a tensor, as a product of tensors with its letters."""
        letters, found = self.network.tensors[role].letters, list[list[Labelled]]()
        for s in self.network.uses(role):
            assert s.tensor
            above = self.at(s.out)
            (group,) = above.groups
            ((_, (first, *rest)),) = group.summed(above.keys[()])
            scaled = (first[0], self.moment.model.multiplier(s.multipliers) * first[1])
            values = [(x.letters, self.moment.value(x.name)) for x in s.factors]
            found.append(renamed([scaled, *rest, *values], s.tensor.letters, letters))
        if len(found) == 1:
            return found[0]
        sizes = self.moment.model.sizes
        return [(letters, torch.stack([contract(x, letters, sizes) for x in found]).sum(0))]

    # inside ----------------------------------------------------------------------------------------------------

    def _columns(
        self, signal: str, operands: Sequence[Labelled], count: int, keys: Mapping[Key, tuple[int, ...]]
    ) -> Columns:
        letters, model = self.network.signals[signal], self.moment.model
        experts = "".join(x for x in letters if self.network.axes[x] in ("M", "K"))
        if len(operands) == 1 and COLUMN not in operands[0][0]:
            operands = [(COLUMN + operands[0][0], operands[0][1].unsqueeze(1))]
        return Columns(letters, (Group(((1, tuple(operands)),), count),), keys, model.sizes, operands[0][1], experts)

    def _forked(self, signal: str, uses: Sequence[Use]) -> Columns:
        """The sum over several uses."""
        wanted, roles = sorted(self.asked.at[signal]), [self.asked.roles(*use) for use in uses]
        columns, letters = [self.at_use(signal, use) for use in uses], self.network.signals[signal]
        parts = []
        for key in wanted:
            each = [c.sum([restricted(key, r)]).entries for c, r in zip(columns, roles, strict=True)]
            parts.append(torch.stack(each).sum(0))
        keys = {key: (k,) for k, key in enumerate(wanted)}
        return self._columns(signal, [(COLUMN + letters, torch.stack(parts, 1))], len(wanted), keys)

    def _through_function(self, s: Function, k: int, above: Columns) -> list[Labelled]:
        """In the letters of the use."""
        out, x = self.network.signals[s.out], s.inputs[k]
        (group,) = above.groups
        together = contract(group.operands, COLUMN + out, self.moment.model.sizes)
        argument = self.moment.model.turned(self.moment.value(x.name), x.letters, out)
        with torch.enable_grad():
            argument = argument.detach()[:, None].expand_as(together).requires_grad_()
            (back,) = torch.autograd.grad(applied(s, COLUMN + out, argument), argument, together)
        return [(COLUMN + out, back)]

    def _through_product(
        self, s: Product, k: int, above: Columns
    ) -> tuple[list[Labelled], int, dict[Key, tuple[int, ...]]]:
        """In the letters of the use."""
        m, own, wanted = self.moment, self.asked.own(s, k), self.asked.at_use[s, k]
        sums = {key: completions(key, wanted) for key in wanted}
        base = [key for key in wanted if sums[key] == [key]]
        if not m.moved:
            base = [key for key in base if all(mode == "init" for _, mode in key)]
        higher = self.asked.above(s.out)
        (group,) = above.groups
        ups = sorted({restricted(key, higher) for key in base}, key=lambda key: above.keys[key])
        operands = list(group.operands)
        if [above.keys[key] for key in ups] != [(j,) for j in range(group.count)]:
            mixing = operands[0][1].new_zeros(group.count, len(ups))
            for j, key in enumerate(ups):
                mixing[list(above.keys[key]), j] = 1
            operands = [*renamed(operands, COLUMN, OTHER), (OTHER + COLUMN, mixing.expand(len(operands[0][1]), -1, -1))]
        modes = sorted({restricted(key, own) for key in base})
        columns = {
            key: (modes.index(restricted(key, own)) * len(ups) + ups.index(restricted(key, higher)),) for key in base
        }
        keys = {key: tuple(k for part in sums[key] for k in columns.get(part, ())) for key in wanted}
        letters = s.inputs[k].letters
        terms = self._others(s, k, modes)
        if kept_apart(self.network, self.network.producer(s.inputs[k].name)) and not any(t.tensors for t in terms):
            (term,) = terms
            return [*operands, *self._values(term, operands[0])], len(ups), keys
        totals = [self._part(term, operands, modes, COLUMN + letters) for term in terms]
        parts = [torch.stack(same).sum(0) if len(same) > 1 else same[0] for same in zip(*totals, strict=True)]
        return [(COLUMN + letters, torch.cat(parts, 1) if len(parts) > 1 else parts[0])], len(ups) * len(modes), keys

    def _values(self, term: Term, columns: Labelled) -> list[Labelled]:
        """The signals of a product with its multipliers; these alone where there are none."""
        scale = self.moment.model.multiplier(term.multipliers)
        signals = [(x.letters, self.moment.value(x.name)) for x in (*term.weights, *term.signals)]
        if scale == 1:
            return signals
        if not signals:
            return [("", columns[1].new_full((len(columns[1]),), scale))]
        (letters, first), *rest = signals
        return [(letters, scale * first), *rest]

    def _part(self, term: Term, above: Sequence[Labelled], modes: Sequence[Key], out: str) -> list[Tensor]:
        """The gradient through one product, with each of these parts of its tensors, (S, columns, *letters)."""
        m, made, found = self.moment, dict[tuple[int, ...], Tensor](), list[Tensor]()
        rest = [*above, *self._values(term, above[0])]

        def through(tensors: Sequence[Labelled]) -> Tensor:
            key = tuple(id(x) for _, x in tensors)
            if key not in made:
                made[key] = contract([*tensors, *rest], out, m.model.sizes, m.known)
            return made[key]

        for key in modes:
            chosen = dict(key)
            choices = [m.weights[x.name].signed(chosen.get(x.name), x.letters) for x in term.tensors]
            total: Tensor | None = None
            for choice in product(*choices):
                part = through([x for _, some in choice for x in some])
                sign = prod(sign for sign, _ in choice)
                total = (part if sign > 0 else -part) if total is None else total + part if sign > 0 else total - part
            assert total is not None
            found.append(total)
        return found

    def _others(self, s: Product, k: int, modes: Sequence[Key]) -> Sequence[Term]:
        """The factors of a product but one, written out to their tensors where parts of these are asked for, or where
        they are not formed."""
        rest = tuple(x for j, x in enumerate(s.factors) if j != k)
        apart = any(kept_apart(self.network, self.network.producer(x.name)) for x in rest)
        if s.tensor or apart or any(modes):
            return self.network.terms(s, without=k)
        return (Term((), (), rest, s.multipliers),)
