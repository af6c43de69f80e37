"""Products of signals and tensors in the letters that equations have: what meets first, and what it is called.

Read next: ``run.py`` (what the signals are), ``scaling_algebra/counting/algebra.py`` (a product of two of them).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Protocol

from scaling_algebra.counting.algebra import Algebra
from scaling_algebra.counting.signals import EntrySize, Scalar, Signal
from scaling_algebra.spec.networks.indices import find_aggregations, rename_apart
from scaling_algebra.spec.networks.language import Factor, Mode, Network
from scaling_algebra.spec.networks.multipliers import SHARE, find_free_multipliers
from scaling_algebra.spec.networks.terms import Term
from scaling_algebra.spec.scaling import Point


@dataclass(frozen=True, slots=True)
class Increment:
    """One step of one use of one tensor: ``scalars * gradient * inputs``, in the letters of the tensor.

    Attributes:
        gradient: at the output of the statement that uses the tensor.
        inputs: what the tensor acts on there. Letters that the tensor does not have are summed.
    """

    step: int
    scalars: tuple[Scalar, ...]
    gradient: Signal
    inputs: tuple[Signal, ...]

    @property
    def factors(self) -> tuple[Signal, ...]:
        return (self.gradient, *self.inputs)


class Stepping(Protocol):
    """What an optimizer makes of the gradients of a run (``updates.py``)."""

    def of(self, role: str, t: int) -> list[Increment]:
        """Increments of the first t steps of a tensor."""


Updates = Callable[[str], Sequence[Increment]]
"""The increments of a tensor so far."""


class Products:
    """Products at a point.

    Attributes:
        initial: the initial tensors by role.
    """

    def __init__(self, network: Network, algebra: Algebra, point: Point) -> None:
        self.network, self.algebra = network, algebra
        self.initial = dict[str, Signal]()
        for role, tensor in network.tensors.items():
            b = point.b[role]
            if b is None:
                self.initial[role] = algebra.nothing(tensor.indices)
            else:
                size = algebra.pack(-b, {}, {f"b.{role}": -1})
                varying = tensor.indices.replace(tensor.experts, "") if role in point.tied else tensor.indices
                self.initial[role] = algebra.tensor(role, tensor.indices, size, varying)
        counted = {*find_free_multipliers(network), SHARE}
        self._multipliers = dict[str, Scalar]()
        for name in (x for x in network.multipliers if x in counted):
            aggregated = any(name in s.multipliers for s in find_aggregations(network))
            size = algebra.pack(-point.multipliers.get(name, Fraction(0)), {}, {name: -1})
            self._multipliers[name] = Scalar("aggregation multiplier" if aggregated else f"multiplier {name}", size)
        if SHARE in self._multipliers:
            share = Scalar("times K/M, the share of the batch", algebra.scale({"K": 1, "M": -1}))
            self._multipliers[SHARE] = share

    def scalars(self, multipliers: Sequence[str]) -> list[Scalar]:
        """Named multipliers."""
        return [self._multipliers[m] for m in multipliers if m in self._multipliers]

    def multiplied(self, signal: Signal, multipliers: Sequence[str]) -> Signal:
        """A signal times named multipliers."""
        scalars = self.scalars(multipliers)
        return self.algebra.scaled(signal, *scalars) if scalars else signal

    def written(
        self, term: Term, modes: Sequence[Mode], above: list[Signal], others: list[Signal], out: str, updates: Updates
    ) -> Signal:
        """``tensors * others``, with these parts of the tensors; ``above``: the gradient, in a backward pass.

        An update meets, in a forward pass, what it acts on with what it acted on, and in a backward pass the gradient
        with that of its step: inner products, which are tagged for explanations.
        """
        symbols = [self.network.tensors[x.name].symbol for x in term.tensors]
        acted = " ".join(s.name or "x" for s in (above or others) if s.made is None or s.made.rule != "constant")
        back = "^T" if above else ""
        alternatives: list[list[tuple[Factor, Increment | None]]] = []
        for x, mode in zip(term.tensors, modes, strict=True):
            taken: list[Increment | None] = [None] if mode == "init" else list(updates(x.name))
            alternatives.append([(x, step) for step in taken])
        parts = []
        for chosen in product(*alternatives):
            steps = [(x, step) for x, step in chosen if step is not None]
            initial = [self._used(x) for x, step in chosen if step is None]
            if not steps:
                whole = self.product([*initial, *above, *others], out)
            else:
                whole = self.applied(steps, above, [*initial, *others], out)
                text = ", ".join(f"step {step.step + 1} of d{self.network.tensors[x.name].symbol}" for x, step in steps)
                text = f"({text})^T {acted}" if above else f"{text}, times {acted}"
                whole = whole.but(name=text)
            parts.append(whole)
        whole = self.algebra.add(parts) if parts else self.algebra.nothing(out)
        pairs = zip(symbols, modes, strict=True)
        text = " ".join(f"d{s}{back}" if mode == "update" else f"{s}_0{back}" for s, mode in pairs)
        name = f"{text} {acted}".strip()
        return self.multiplied(whole, term.multipliers).but(name=name)

    def applied(
        self, steps: list[tuple[Factor, Increment]], above: list[Signal], others: list[Signal], out: str
    ) -> Signal:
        """``increments * others`` of several tensors, as in ``written``."""
        gradients: list[Signal] = []
        inputs: list[Signal] = []
        scalars: list[Scalar] = []
        for x, step in steps:
            there = (*above, *others, *gradients, *inputs)
            gradient, acted = self._in_use(x, step, "".join(s.indices for s in there) + out)
            gradients.append(gradient)
            inputs += acted
            scalars += step.scalars
        meeting, rest = ([*gradients, *above], [*inputs, *others]) if above else ([*inputs, *others], gradients)
        kept = "".join(s.indices for s in rest) + self.algebra.live(out)
        shared = "".join(dict.fromkeys(c for s in meeting for c in s.indices if c in kept))
        tag = f"{'backward' if above else 'forward'} {' '.join(x.name for x, _ in steps)}"
        inner = self.product(meeting, shared, tag)
        return self.algebra.scaled(self.product([inner, *rest], out), *scalars)

    def _in_use(self, x: Factor, step: Increment, taken: str) -> tuple[Signal, list[Signal]]:
        """The factors of an increment in the letters that the tensor has in an equation."""
        own, inner = self.network.tensors[x.name].indices, "".join(s.indices for s in step.factors)
        renamed = rename_apart(self.network, own, x.indices, inner, taken)
        relabel = [self.algebra.relabelled(s, s.indices, "".join(renamed[c] for c in s.indices)) for s in step.factors]
        return relabel[0], relabel[1:]

    def _used(self, x: Factor) -> Signal:
        """An initial tensor in the letters that it has in an equation."""
        return self.algebra.relabelled(self.initial[x.name], self.network.tensors[x.name].indices, x.indices)

    def product(self, operands: Sequence[Signal], out: str, tag: str = "") -> Signal:
        """A product, without the operands that are 1, and with 1 for each letter that nothing else has."""
        kept = [s for s in operands if s.made is None or s.made.rule != "constant" or set(s.terms.values()) != {0}]
        there = {c for s in kept for c in s.indices}
        wanted = dict.fromkeys("".join(s.indices for s in operands) + self.algebra.live(out))
        missing = "".join(c for c in wanted if c not in there)
        return self.algebra.product(
            [*kept, *([self.algebra.constant(missing)] if missing or not kept else [])], out, tag
        )

    def entries(self, role: str, factors: Sequence[Signal]) -> Sequence[Signal]:
        """A product of factors in the letters of a tensor, multiplied out where its size is not that of the factors."""
        indices = self.algebra.live(self.network.tensors[role].indices)
        if any(c not in indices for s in factors for c in s.indices) or any(self._repeats(s) for s in factors):
            return [self.product(factors, indices)]
        return factors

    def entry(self, role: str, factors: Sequence[Signal], scalars: Sequence[Scalar] = ()) -> EntrySize:
        """The entry size of a product of factors and scalars, in the letters of a tensor."""
        factors = self.entries(role, factors)
        certain = all(map(self.algebra.certified, factors)) and all(x.certain for x in scalars)
        sizes = [*map(self.algebra.rms, factors), *(x.size for x in scalars)]
        return EntrySize(None if None in sizes else sum(x for x in sizes if x is not None), certain)

    def _repeats(self, s: Signal) -> bool:
        """Two open indices of one axis: the diagonal may be larger than the rest."""
        axes = [self.network.indices[c] for c in s.indices]
        return len(set(axes)) < len(axes)
