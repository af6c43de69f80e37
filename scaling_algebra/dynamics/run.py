"""A training run, as what happens to each statement reads it: signals in their letters, products, gradients of tensors.

How values, changes and gradients follow from one another is open here. Read next: ``rules.py`` and ``steps.py`` (what
a statement and an optimizer make of it), ``trajectory.py`` (runs them).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, partial
from itertools import product
from typing import Literal

from scaling_algebra.counting.algebra import Algebra
from scaling_algebra.counting.signals import EntrySize, Scalar, Signal
from scaling_algebra.spec.networks.ancestors import passes
from scaling_algebra.spec.networks.indices import aggregations, apart, multiplicity, tracked
from scaling_algebra.spec.networks.language import Factor, Function, Mode, Network, Product, Statement
from scaling_algebra.spec.networks.multipliers import SHARE, free_multipliers
from scaling_algebra.spec.networks.terms import Term, is_held, written_out
from scaling_algebra.spec.optimizers import Trained
from scaling_algebra.spec.scaling import Point

from .ledger import Ledger
from .tails import Tails

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
    return (*(f"{x}.{role}" for x, roles in names.items() for role in roles), *free_multipliers(network))


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


@dataclass(frozen=True)
class RunContext:
    """The settings of a training run by its caller.

    Attributes:
        growing: axes that count as growing whatever the ray says.
        degrees: of the polynomials that stand for functions: as many as the products of the network may see, two more,
            or cut behind the first power (``parts.py``).
        shares: softmax -> the axis over which its shares sum to one, where it is not that of its index.
        certified: sizes from elsewhere; where there are none, those of the run are taken.
        start: a run that has the same values and gradients before training, which are taken from it.
        ledger, name: where the run remembers its results, and under which name; by default in a ledger of its own.
    """

    growing: frozenset[str] = frozenset()
    degrees: Degrees = "usual"
    shares: Mapping[str, str] = field(default_factory=dict)
    certified: Certified = lambda name, t: None
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
    optimizer: Trained
    context: RunContext = PLAIN
    decays = False
    """Changes of tensors hold a multiple of what they start with, above -1."""

    def __post_init__(self) -> None:
        network, algebra, point = self.network, self.algebra, self.point
        self.ledger = self.context.ledger or Ledger(algebra)
        self._initial: dict[str, Signal] = {}
        for role, tensor in network.tensors.items():
            b = point.b[role]
            if b is None:
                self._initial[role] = algebra.nothing(tensor.letters)
            else:
                size = algebra.pack(-b, {}, {f"b.{role}": -1})
                varying = tensor.letters.replace(tensor.experts, "") if role in point.tied else tensor.letters
                self._initial[role] = algebra.tensor(role, tensor.letters, size, varying)
        counted = {*free_multipliers(network), SHARE}
        self._multipliers = {name: self._multiplier(name) for name in network.multipliers if name in counted}

    def _multiplier(self, name: str) -> Scalar:
        if name == SHARE:
            return Scalar("times K/M, the share of the batch", self.algebra.scale({"K": 1, "M": -1}))
        aggregated = any(name in s.multipliers for s in aggregations(self.network))
        label = "aggregation multiplier" if aggregated else f"multiplier {name}"
        return Scalar(label, self.algebra.pack(-self.point.multipliers.get(name, Fraction(0)), {}, {name: -1}))

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

    def at(self, factor: Factor, which: Which, t: int) -> Signal:
        """A signal in the letters it has in an equation."""
        read = {"initial": lambda: self.initial(factor.name), "change": lambda: self.change(factor.name, t)}
        whole = read.get(which, lambda: self.value(factor.name, t))()
        return self.relabelled(whole, self.network.signals[factor.name], factor.letters)

    def part(self, statement: Product, mode: Mode, which: Which, t: int, x: Signal | None = None) -> Signal:
        """A part of a product, with gates at their initial values: tensors by ``mode``, signals by ``which``.

        Law: a product of changes is a sum over its factors, each changed with what stands before at its present value.

        Args:
            x: instead of the signals, where there is one.
        """
        return self.algebra.add(
            [self._part(statement, term, mode, which, t, x) for term in written_out(self.network, statement)]
        )

    def regated(self, statement: Product, t: int) -> Signal:
        """``(gates_t - gates_0) * the rest at t``.

        A held gate counts where nothing that is summed grows: else its fluctuations average out (standing assumption
        B2 of MSSP paper, J.2).
        """
        letters, parts = self.network.signals[statement.out], []
        weights = written_out(self.network, statement)[0].weights
        summed = [x for x in statement.letters if x not in letters]
        averaged = any(self.grows(x) for x in summed)
        for k, weight in enumerate(weights):
            if averaged and is_held(self.network, weight.name):
                continue
            others = list(statement.factors)
            others.remove(weight)
            before = [self.at(x, "value" if x not in weights or x in weights[:k] else "initial", t) for x in others]
            parts.append(self.algebra.product([self.at(weight, "change", t), *before], letters))
        scalars = self._scalars(statement.multipliers)
        return self.algebra.scaled(self.algebra.add(parts or [self.algebra.nothing(letters)]), *scalars)

    def powers(self, function: Function) -> frozenset[int]:
        """Powers of the argument in the polynomial that stands for a function."""
        powers, degrees = function.kind.powers, self.context.degrees
        if passes(self.network, function):
            return frozenset({1})
        if degrees == "lowest":
            return powers & {0, 1}
        more, most = 2 if degrees == "raised" else 0, max(multiplicity(self.network).values())
        return powers | {q for p in powers if p > 1 for q in range(p, max(p, most) + more + 1, 2)}

    def odd_powers(self, letters: str) -> range:
        """Powers of a signal in an odd function of it, entry by entry: as many as products see at an index that grows.
        At others nothing averages out, and what is linear is as large."""
        most = max((multiplicity(self.network)[x] for x in letters if self.grows(x)), default=1)
        more = self.context.degrees == "raised" and (most > 2 or not self.network.live)
        return range(1, 2 if self.context.degrees == "lowest" else most + (3 if more else 1), 2)

    def grows(self, letter: str) -> bool:
        """Does what an index runs over grow?"""
        axis = self.network.letters[letter]
        return axis in self.context.growing or self.algebra.ray[axis] > 0

    def measure(self, signal: str, t: int) -> tuple[int | None, bool]:
        """The size of a signal that something is divided by, and whether it is certified."""
        certified = self.context.certified(signal, t)
        if certified is not None:
            return certified, True
        whole = self.value(signal, t)
        if whole.zero:
            return None, True
        size = self.algebra.rms(whole)
        return size, size is not None and self.algebra.certified(whole)

    def gradient(self, signal: str, t: int, modes: Modes | None = None, via: str = "") -> Signal:
        """Derivative of the output with respect to a signal after t updates.

        Args:
            modes: keep only this part of these tensors (the others are whole).
            via: only through the statement that computes this signal.
        """
        raise NotImplementedError

    def _updates(self, role: str, t: int) -> list[Increment]:
        """Increments of the first t steps."""
        raise NotImplementedError

    def transposed(
        self, statement: Product, k: int, above: Signal, t: int, modes: Modes, out: str | None = None
    ) -> Signal:
        """The adjoint of a product with respect to its k-th factor: the product of ``above`` and the others, these
        written out to the tensors, so that a tensor meets the gradient before anything else does. Letters missing from
        ``out`` are summed."""
        out = statement.factors[k].letters if out is None else out
        parts = []
        for term in written_out(self.network, statement, without=k):
            kept = [(modes[x.name],) if x.name in modes else MODES for x in term.tensors]
            signals = [self.at(x, "value", t) for x in term.signals]
            signals += [self.at(x, "initial" if is_held(self.network, x.name) else "value", t) for x in term.weights]
            for mode in product(*kept):
                parts.append(self._multiplied(term, mode, [above], signals, out, t))
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
        indices = self.network.tensors[role].letters
        for statement in self.network.uses(role):
            assert statement.tensor
            out = self.network.signals[statement.out]
            signals = [self.multiplied(above(statement.out), statement.multipliers)]
            letters = [out, *(x.letters for x in statement.factors)]
            signals += [acted(x) for x in statement.factors]
            read, own = "".join(letters), statement.tensor.letters
            renamed = apart(self.network, own, indices, read, avoid=own + read)
            products.append(
                tuple(
                    self.relabelled(s, old, "".join(renamed[x] for x in old))
                    for s, old in zip(signals, letters, strict=True)
                )
            )
        return products

    def entries(self, role: str, factors: Sequence[Signal]) -> Sequence[Signal]:
        """A product of factors in the letters of a tensor, multiplied out where its size is not that of the factors."""
        letters = self.algebra.live(self.network.tensors[role].letters)
        if any(c not in letters for s in factors for c in s.letters) or any(self._repeats(s) for s in factors):
            return [self.algebra.product(self.covered(list(factors), letters), letters)]
        return factors

    def entry(self, role: str, factors: Sequence[Signal], scalars: Sequence[Scalar] = ()) -> EntrySize:
        """The entry size of a product of factors and scalars, in the letters of a tensor."""
        factors = self.entries(role, factors)
        certain = all(map(self.algebra.certified, factors)) and all(x.certain for x in scalars)
        sizes = [*map(self.algebra.rms, factors), *(x.size for x in scalars)]
        return EntrySize(None if None in sizes else sum(x for x in sizes if x is not None), certain)

    def _repeats(self, s: Signal) -> bool:
        """Two open indices of one axis: the diagonal may be larger than the rest."""
        axes = [self.network.letters[c] for c in s.letters]
        return len(set(axes)) < len(axes)

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

    def steady(self, name: str) -> Signal:
        """The input, or a constant: flat, but for a mark that it depends on the indices that functions go along."""
        letters = self.network.signals[name]
        followed = "".join(x for x in letters if x in tracked(self.network))
        return self.algebra.marked(name, letters, followed) if followed else self.algebra.constant(letters)

    def relabelled(self, signal: Signal, old: str, new: str) -> Signal:
        """A signal with its letters renamed."""
        return signal if old == new else self.algebra.relabelled(signal, old, new)

    def _scalars(self, multipliers: Sequence[str]) -> list[Scalar]:
        return [self._multipliers[m] for m in multipliers if m in self._multipliers]

    def multiplied(self, signal: Signal, multipliers: Sequence[str]) -> Signal:
        """A signal times named multipliers."""
        scalars = self._scalars(multipliers)
        return self.algebra.scaled(signal, *scalars) if scalars else signal

    def _part(self, s: Product, term: Term, mode: Mode, which: Which, t: int, x: Signal | None) -> Signal:
        out = self.network.signals[s.out]
        weights = [self.at(w, "initial", 0) for w in term.weights]
        if x is not None:
            (only,) = term.signals
            choices = [[self.relabelled(x, self.network.signals[only.name], only.letters)]]
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
        parts = [self._multiplied(term, m, [], [*weights, *signals], out, t) for m in modes for signals in choices]
        return self.algebra.add(parts) if parts else self.algebra.nothing(out)

    def _multiplied(
        self, term: Term, modes: Sequence[Mode], above: list[Signal], others: list[Signal], out: str, t: int
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
            taken: list[Increment | None] = [None] if mode == "init" else list(self._updates(x.name, t))
            alternatives.append([(x, step) for step in taken])
        parts = []
        for chosen in product(*alternatives):
            steps = [(x, step) for x, step in chosen if step is not None]
            initial = [self._used(x) for x, step in chosen if step is None]
            if not steps:
                operands = self.covered([*initial, *above, *others], out)
                whole = self.algebra.product(operands, out)
            else:
                whole = self._applied(steps, above, [*initial, *others], out)
                text = ", ".join(f"step {step.step + 1} of d{self.network.tensors[x.name].symbol}" for x, step in steps)
                text = f"({text})^T {acted}" if above else f"{text}, times {acted}"
                whole = self.named(whole, text)
            parts.append(whole)
        whole = self.algebra.add(parts) if parts else self.algebra.nothing(out)
        pairs = zip(symbols, modes, strict=True)
        text = " ".join(f"d{s}{back}" if mode == "update" else f"{s}_0{back}" for s, mode in pairs)
        name = f"{text} {acted}".strip()
        return self.named(self.multiplied(whole, term.multipliers), name)

    def _applied(
        self, steps: list[tuple[Factor, Increment]], above: list[Signal], others: list[Signal], out: str
    ) -> Signal:
        gradients: list[Signal] = []
        inputs: list[Signal] = []
        scalars: list[Scalar] = []
        for x, step in steps:
            there = (*above, *others, *gradients, *inputs)
            gradient, acted = self._in_use(x, step, "".join(s.letters for s in there) + out)
            gradients.append(gradient)
            inputs += acted
            scalars += step.scalars
        meeting, rest = ([*gradients, *above], [*inputs, *others]) if above else ([*inputs, *others], gradients)
        kept = "".join(s.letters for s in rest) + self.algebra.live(out)
        shared = "".join(dict.fromkeys(c for s in meeting for c in s.letters if c in kept))
        tag = f"{'backward' if above else 'forward'} {' '.join(x.name for x, _ in steps)}"
        inner = self.algebra.product(self.covered(meeting, shared), shared, tag)
        return self.algebra.scaled(self.algebra.product(self.covered([inner, *rest], out), out), *scalars)

    def _in_use(self, x: Factor, step: Increment, taken: str) -> tuple[Signal, list[Signal]]:
        """The factors of an increment in the letters that the tensor has in an equation."""
        own, inner = self.network.tensors[x.name].letters, "".join(s.letters for s in step.factors)
        renamed = apart(self.network, own, x.letters, inner, taken)
        relabel = [self.relabelled(s, s.letters, "".join(renamed[c] for c in s.letters)) for s in step.factors]
        return relabel[0], relabel[1:]

    def _used(self, x: Factor) -> Signal:
        """An initial tensor in the letters that it has in an equation."""
        return self.relabelled(self._initial[x.name], self.network.tensors[x.name].letters, x.letters)

    def covered(self, operands: list[Signal], out: str) -> list[Signal]:
        """Operands of a product without the ones that are 1, with one for each letter that nothing else has."""
        kept = [s for s in operands if not self._one(s)]
        there = {c for s in kept for c in s.letters}
        wanted = dict.fromkeys("".join(s.letters for s in operands) + self.algebra.live(out))
        missing = "".join(c for c in wanted if c not in there)
        return [*kept, self.algebra.constant(missing)] if missing or not kept else kept

    def _one(self, s: Signal) -> bool:
        return s.made is not None and s.made.rule == "constant" and set(s.terms.values()) == {0}
