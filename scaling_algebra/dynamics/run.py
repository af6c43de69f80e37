"""A training run, as what happens to each statement reads it: signals in their letters, products, gradients of tensors.

How values, changes and gradients follow from one another is open here. Read next: ``rules.py`` and ``steps.py`` (what
a statement and an optimizer make of it), ``trajectory.py`` (runs them).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import product
from typing import Literal, NamedTuple, TypeVar

from scaling_algebra.counting.algebra import Algebra
from scaling_algebra.counting.signals import Signal
from scaling_algebra.spec.networks.indices import rename_apart
from scaling_algebra.spec.networks.language import Factor, Mode, Network, Product, Statement
from scaling_algebra.spec.networks.multipliers import find_free_multipliers
from scaling_algebra.spec.networks.terms import Term, expand_product, is_held
from scaling_algebra.spec.optimizers import OptimizerSpec
from scaling_algebra.spec.scaling import Point

from .ledger import Ledger
from .products import Products, Stepping
from .tails import Tails

S = TypeVar("S", bound=Statement)
Which = Literal["initial", "change", "value"]
"""A signal before training, its change, or what it is now."""
Degrees = Literal["usual", "raised", "lowest"]
Modes = Mapping[str, Mode]
"""Role -> the part of the tensor that is kept; of the others the whole."""
Certified = Callable[[str, int], "int | None"]
"""Packed size of a quantity after t updates where it is certified, else None."""
MODES: tuple[Mode, ...] = ("init", "update")


class BeyondPowerCounting(Exception):
    """Something that no power of n follows: a saturated gate, or a difference that may cancel."""


def unknowns(network: Network) -> tuple[str, ...]:
    """Names of b, of c and d of what trains, and of the multipliers: ``("b.input", ..., "alpha")``."""
    trained = [role for role in network.tensors if role not in network.frozen]
    names = {"b": [*network.tensors], "c": trained, "d": trained}
    return (*(f"{x}.{role}" for x, roles in names.items() for role in roles), *find_free_multipliers(network))


class Divisor(NamedTuple):
    """A norm after any update.

    Attributes:
        size: packed lower bound on what it divides by.
        gradient: packed bound on the gradient at its argument before training.
    """

    size: int
    gradient: int


@dataclass(frozen=True)
class RunContext:
    """The settings of a training run by its caller.

    Attributes:
        growing: axes that count as growing whatever the ray says.
        degrees: of the polynomials that stand for functions: as many as the products of the network may see, two more,
            or cut behind the first power (``parts.py``).
        shares: softmax -> the axis over which its shares sum to one, where it is not that of its index.
        certified: sizes from elsewhere; where there are none, those of the run are taken.
        divisors: of bounds: norms that divide by something else after an update than at the start.
        start: a run that has the same values and gradients before training, which are taken from it.
        ledger, name: where the run remembers its results, and under which name; by default in a ledger of its own.
    """

    growing: frozenset[str] = frozenset()
    degrees: Degrees = "usual"
    shares: Mapping[str, str] = field(default_factory=dict)
    certified: Certified = lambda name, t: None
    divisors: Mapping[str, Divisor] = field(default_factory=dict)
    start: TrainingRun | None = None
    ledger: Ledger | None = None
    name: str = ""


PLAIN = RunContext()


@dataclass(eq=False)
class TrainingRun:
    """Signals and tensors of a training run, in the letters that equations have.

    Standing assumptions (MSSP paper, J.2): loss derivative Theta(1); one sample; functions as their rule says.
    """

    network: Network
    algebra: Algebra
    point: Point
    optimizer: OptimizerSpec
    context: RunContext = PLAIN
    steps: Stepping = field(init=False)
    decays = False
    """Changes of tensors hold a multiple of what they start with, above -1."""

    def __post_init__(self) -> None:
        network, algebra, point = self.network, self.algebra, self.point
        self.ledger = self.context.ledger or Ledger(algebra)
        self.products = Products(network, algebra, point)

    @cached_property
    def tails(self) -> Tails:
        """The tails of signals."""
        return Tails(self.network, self.optimizer, self.grows)

    def initial(self, signal: str) -> Signal:
        """Value before training."""
        return self.value(signal, 0)

    def value(self, signal: str, t: int) -> Signal:
        """Value after t updates."""
        raise NotImplementedError

    def change(self, signal: str, t: int) -> Signal:
        """Value after t updates minus the initial value."""
        raise NotImplementedError

    def moved(self, statement: Statement, t: int) -> Signal:
        """The change of the output of a statement, from those of what it reads and of its tensors."""
        raise NotImplementedError

    def own(self, statement: S) -> S:
        """A statement in the letters of this run."""
        own = self.network.producer(statement.out)
        assert isinstance(own, type(statement))
        return own

    def at(self, factor: Factor, which: Which, t: int) -> Signal:
        """A signal in the letters it has in an equation."""
        read = {"initial": lambda: self.initial(factor.name), "change": lambda: self.change(factor.name, t)}
        whole = read.get(which, lambda: self.value(factor.name, t))()
        return self.algebra.relabelled(whole, self.network.signals[factor.name], factor.indices)

    def part(self, statement: Product, mode: Mode, which: Which, t: int, x: Signal | None = None) -> Signal:
        """A part of a product, with gates at their initial values: tensors by ``mode``, signals by ``which``.

        Law: a product of changes is a sum over its factors, each changed with what stands before at its present value.

        Args:
            x: instead of the signals, where there is one.
        """
        s = self.own(statement)
        return self.algebra.add([self._part(s, term, mode, which, t, x) for term in expand_product(self.network, s)])

    def gate_change(self, statement: Product, t: int) -> Signal:
        """``(gates_t - gates_0) * the rest at t``.

        A held gate counts where nothing that is summed grows: else its fluctuations average out (standing assumption
        B2 of MSSP paper, J.2).
        """
        statement, indices, parts = self.own(statement), self.network.signals[statement.out], []
        weights = expand_product(self.network, statement)[0].weights
        summed = [x for x in statement.indices if x not in indices]
        averaged = any(self.grows(x) for x in summed)
        for k, weight in enumerate(weights):
            if averaged and is_held(self.network, weight.name):
                continue
            others = list(statement.factors)
            others.remove(weight)
            before = [self.at(x, "value" if x not in weights or x in weights[:k] else "initial", t) for x in others]
            parts.append(self.algebra.product([self.at(weight, "change", t), *before], indices))
        whole = self.algebra.add(parts or [self.algebra.nothing(indices)])
        return self.algebra.scaled(whole, *self.products.scalars(statement.multipliers))

    def grows(self, index: str) -> bool:
        """Does what an index runs over grow?"""
        axis = self.network.indices[index]
        return axis in self.context.growing or self.algebra.ray[axis] > 0

    def gradient(self, signal: str, t: int, modes: Modes | None = None, via: str = "") -> Signal:
        """Derivative of the output with respect to a signal after t updates.

        Args:
            modes: keep only this part of these tensors (the others are whole).
            via: only through the statement that computes this signal.
        """
        raise NotImplementedError

    def transposed(
        self, statement: Product, k: int, above: Signal, t: int, modes: Modes, out: str | None = None
    ) -> Signal:
        """The adjoint of a product with respect to its k-th factor: the product of ``above`` and the others, these
        written out to the tensors, so that a tensor meets the gradient before anything else does. Letters missing from
        ``out`` are summed."""
        out, updates = statement.factors[k].indices if out is None else out, partial(self.steps.of, t=t)
        parts = []
        for term in expand_product(self.network, statement, without=k):
            kept = [(modes[x.name],) if x.name in modes else MODES for x in term.tensors]
            signals = [self.at(x, "value", t) for x in term.signals]
            signals += [self.at(x, "initial" if is_held(self.network, x.name) else "value", t) for x in term.weights]
            for mode in product(*kept):
                parts.append(self.products.written(term, mode, [above], signals, out, updates))
        return self.algebra.add(parts)

    def factors(
        self,
        role: str,
        t: int,
        above: Callable[[str], Signal] | None = None,
        acted: Callable[[Factor], Signal] | None = None,
    ) -> list[tuple[Signal, ...]]:
        """The gradient of a tensor as one product for each use: the gradient at its output, and what it acts on, in
        the letters of the tensor (letters that it does not have are summed).

        Args:
            above: what is read of a signal for its gradient; ``acted``: for its value.
        """
        above = above or partial(self.gradient, t=t)
        acted = acted or partial(self.at, which="value", t=t)
        products = []
        kept = self.network.tensors[role].indices
        for statement in self.network.uses(role):
            assert statement.tensor
            out = self.network.signals[statement.out]
            signals = [self.products.multiplied(above(statement.out), statement.multipliers)]
            indices = [out, *(x.indices for x in statement.factors)]
            signals += [acted(x) for x in statement.factors]
            read, own = "".join(indices), statement.tensor.indices
            renamed = rename_apart(self.network, own, kept, read, avoid=own + read)
            products.append(
                tuple(
                    self.algebra.relabelled(s, old, "".join(renamed[x] for x in old))
                    for s, old in zip(signals, indices, strict=True)
                )
            )
        return products

    def named(self, signal: Signal, name: str) -> Signal:
        """A signal under a name for explanations."""
        return signal.but(name=name)

    def note(self, text: str) -> None:
        """Notes what is assumed (``spec/glossary.py``), or why something is not known, of all that rests on this."""
        self.algebra.notes.add(text)

    def kept(self, key: tuple[object, ...], name: str, compute: Callable[[], Signal]) -> Signal:
        """A result, computed once and named for explanations."""
        return self.ledger.remembered((self.context.name, *key), lambda: self.named(compute(), name))

    def once(self, rule: Hashable, signal: Signal, compute: Callable[[], Signal]) -> Signal:
        """What a rule makes of a signal; signals that are counted alike are made once where none is explained."""
        return compute()

    def _part(self, s: Product, term: Term, mode: Mode, which: Which, t: int, x: Signal | None) -> Signal:
        out = self.network.signals[s.out]
        weights = [self.at(w, "initial", 0) for w in term.weights]
        if x is not None:
            (only,) = term.signals
            choices = [[self.algebra.relabelled(x, self.network.signals[only.name], only.indices)]]
        elif which == "change":
            changes = [self.at(f, "change", t) for f in term.signals]
            initial, now = ([self.at(f, w, t) for f in term.signals] for w in ("initial", "value"))
            choices = [[*now[:k], changes[k], *initial[k + 1 :]] for k in range(len(changes)) if not changes[k].zero]
        else:
            choices = [[self.at(f, which, t) for f in term.signals]]
        modes: list[tuple[Mode, ...]] = [MODES[:1] * len(term.tensors)]
        if mode == "update":  # the first k as they are now, the next one by its update, the rest as they were
            modes = []
            for k in range(len(term.tensors)):
                for before in product(MODES, repeat=k):
                    modes.append((*before, MODES[1], *MODES[:1] * (len(term.tensors) - k - 1)))
        updates = partial(self.steps.of, t=t)
        parts = [
            self.products.written(term, m, [], [*weights, *signals], out, updates) for m in modes for signals in choices
        ]
        return self.algebra.add(parts) if parts else self.algebra.nothing(out)
