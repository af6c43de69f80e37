"""Unrolls training exactly: forward, backward and update signals of a network at every step.

The backward pass is the derivative of the network, so no gradient is written by hand. A gradient of a tensor stays a
product of the gradient at its output and of what it acted on, one product for every use of the tensor.
Read next: ``rules.py`` (what each kind of statement does), ``quantities.py`` (the named parts), ``newton.py`` (which
parameters make them Theta(1)).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import product, zip_longest

from scaling_algebra.counting.kernels import Exhausted
from scaling_algebra.counting.signals import Algebra, Scalar, Signal
from scaling_algebra.spec.axes import AXES
from scaling_algebra.spec.networks.language import DATA, Factor, Function, Mode, Network, Product, Term
from scaling_algebra.spec.optimizers import Trained
from scaling_algebra.spec.scaling import Point

from .ledger import Ledger
from .rules import BeyondPowerCounting as BeyondPowerCounting
from .rules import Modes, Which, over, rule
from .steps import apart, signs

Known = Callable[[str, int], "int | None"]
"""Packed size of a quantity after t updates where it is certified, else None."""


_MODES: tuple[Mode, ...] = ("init", "update")


def unknowns(network: Network) -> tuple[str, ...]:
    """Names of b, c, d of every tensor, and of the multipliers: ``("b.input", ..., "alpha")``."""
    return (*(f"{x}.{role}" for x in "bcd" for role in network.tensors), *network.free_multipliers)


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


class Trajectory:
    """All signals of a training run, computed on demand and kept.

    Standing assumptions (MSSP paper, J.2): loss derivative Theta(1); one sample; functions as their rule says.
    """

    def __init__(self, network: Network, algebra: Algebra, point: Point, optimizer: Trained) -> None:
        self.network, self.algebra, self.point, self.optimizer = network, algebra, point, optimizer
        self.growing: frozenset[str] = frozenset()
        """Axes that count as growing whatever the ray says."""
        self.raised = False
        """Are the polynomials that stand for functions two degrees higher?"""
        self.shares: dict[str, str] = {}
        """The axis over which shares sum to one, where it is not that of their index."""
        self._initial: dict[str, Signal] = {}
        for role, tensor in network.tensors.items():
            b = point.b[role]
            if b is None:
                self._initial[role] = algebra.nothing(tensor.letters)
            else:
                size = algebra.pack(-b, {}, {f"b.{role}": -1})
                own = tensor.letters.replace(tensor.experts, "") if role in point.tied else tensor.letters
                self._initial[role] = algebra.tensor(role, tensor.letters, size, own)
        aggregated = {m for s in network.aggregations for m in s.multipliers}
        self._multipliers = {
            name: Scalar(
                "aggregation multiplier" if name in aggregated else f"multiplier {name}",
                algebra.pack(-point.multipliers.get(name, Fraction(0)), {}, {name: -1}),
            )
            for name in network.free_multipliers
        }
        self.sound = True
        """Every entry size read since this was last set is certified (signals carry this themselves)."""
        self.ledger, self._name = Ledger(algebra), ""
        self.known: Known | None = None
        """Certified sizes from elsewhere; where there are none, those of this run are taken."""

    # forward ---------------------------------------------------------------------------------------------------

    def tensor(self, role: str) -> Signal:
        """The initial tensor of a role."""
        return self._initial[role]

    def initial(self, signal: str) -> Signal:
        """Value before training."""
        return self.value(signal, 0)

    def value(self, signal: str, t: int) -> Signal:
        """Value after t updates."""
        statement = self.network.producer(signal)
        if statement is None:
            return self._data()
        return self.kept(("value", signal, t), f"{signal}@{t}", lambda: rule(statement).value(self, statement, t))

    def change(self, signal: str, t: int) -> Signal:
        """Value after t updates minus the initial value."""
        statement = self.network.producer(signal)
        if t == 0 or statement is None:
            return self.algebra.nothing(self.network.signals[signal])
        key = ("change", signal, t)
        return self.kept(key, f"{signal}.change@{t}", lambda: rule(statement).change(self, statement, t))

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
            [self._part(statement, term, mode, which, t, x) for term in self.network.terms(statement)]
        )

    def regated(self, statement: Product, t: int) -> Signal:
        """``(gates_t - gates_0) * the rest at t``.

        A held gate counts where nothing that is summed grows: else its fluctuations average out (standing assumption
        B2 of MSSP paper, J.2).
        """
        letters, parts = self.network.signals[statement.out], []
        weights = self.network.terms(statement)[0].weights
        summed = [x for x in statement.letters if x not in letters]
        averaged = any(self.grows(x) for x in summed)
        for k, weight in enumerate(weights):
            if averaged and self.network.is_held(weight.name):
                continue
            others = list(statement.factors)
            others.remove(weight)
            before = [self.at(x, "value" if x not in weights or x in weights[:k] else "initial", t) for x in others]
            parts.append(self.algebra.product([self.at(weight, "change", t), *before], letters))
        scalars = self._scalars(statement.multipliers)
        return self.algebra.scaled(self.algebra.add(parts or [self.algebra.nothing(letters)]), *scalars)

    def change_via(self, signal: str, t: int, via: str) -> Signal:
        """Part of the effective update of one tensor times one signal whose gradients came through one statement."""
        statement = self.network.producer(signal)
        assert isinstance(statement, Product) and statement.tensor
        x, letters = self.at(statement.factors[0], "initial", 0), self.network.signals[signal]
        parts = []
        for step in self._updates(statement.tensor.name, t):
            alone = replace(step, gradient=self._through_alone(signal, step.step, via))
            parts.append(self._applied([(statement.tensor, alone)], [], [x], letters))
        return self.algebra.add(parts) if parts else self.algebra.nothing(letters)

    def _through_alone(self, signal: str, step: int, via: str) -> Signal:
        """The gradient of an update that came through one statement."""
        return self.gradient(signal, step, via=via)

    def spread(self, function: Function, t: int) -> Signal:
        """The argument of a function minus its mean along the index that it goes along."""
        (x,) = function.inputs
        return self.algebra.centred(self.at(x, "value", t), function.over)

    def relative(self, signal: Signal, source: str, t: int) -> Signal:
        """A signal over the size of another one after t updates.

        Raises:
            Exhausted: that size is not certified.
        """
        whole = self.value(source, t)
        if not self.algebra.certified(whole):
            raise Exhausted
        return self.algebra.scaled(signal, Scalar(f"1/rms of {source}@{t}", -(self.algebra.rms(whole) or 0)))

    def normalised(self, function: Function, signal: Signal, t: int) -> Signal:
        """A part of the argument of a norm, divided as the norm divides."""
        return over(self, function, signal, t)

    def decaying(self) -> Trajectory:
        """The same run, with weight decay as one more step of every tensor along itself."""
        return self.ledger.remembered((self._name, "decaying"), self._with_decay)

    def _with_decay(self) -> Trajectory:
        other = _Decaying(self.network, self.algebra, self.point, self.optimizer)
        other.ledger, other._name, other.known = self.ledger, f"{self._name} with decay", self.known
        return other

    def powers(self, function: Function) -> frozenset[int]:
        """Powers of the argument in the polynomial that stands for a function."""
        powers = function.kind.powers
        return powers | {p + 2 for p in powers if p > 1} if self.raised else powers

    def grows(self, letter: str) -> bool:
        """Does what an index runs over grow?"""
        axis = self.network.letters[letter]
        return axis in self.growing or (axis in AXES and self.algebra.ray[axis] > 0)

    def lean_on(self, known: Known) -> None:
        """Take certified sizes from elsewhere."""
        self.known = known

    def measure(self, signal: str, t: int) -> tuple[int | None, bool]:
        """The size of a signal that something is divided by, and whether it is certified."""
        known = self.known and self.known(signal, t)
        if known is not None:
            return known, True
        whole = self.value(signal, t)
        if whole.zero:
            return None, True
        size = self.algebra.rms(whole)
        return size, size is not None and self.algebra.certified(whole)

    def inner(self, left: Signal, right: Signal) -> Signal:
        """The inner product of two signals over all indices but the expert's.

        Raises:
            ValueError: they have other indices.
        """
        experts = "".join(x for x, axis in self.network.letters.items() if axis in ("M", "K"))
        if set(left.letters) - set(experts) != set(right.letters) - set(experts):
            raise ValueError("an inner product of signals with different indices")
        kept = "".join(x for x in experts if x in left.letters + right.letters)
        return self.algebra.contract(left, right, kept)

    # backward --------------------------------------------------------------------------------------------------

    def gradient(self, signal: str, t: int, modes: Modes | None = None, via: str = "") -> Signal:
        """Derivative of the output with respect to a signal after t updates.

        Args:
            modes: keep only this part of these tensors (the others are whole).
            via: only through the statement that computes this signal.
        """
        modes = dict(modes or {})
        key = ("gradient", signal, t, tuple(sorted(modes.items())), via)
        kept = [f"{self.network.tensors[r].symbol} {m}" for r, m in modes.items()] + ([f"via {via}"] if via else [])
        name = f"df/d{signal}@{t}" + (f" ({', '.join(kept)})" if kept else "")
        return self.kept(key, name, lambda: self._gradient(signal, t, modes, via))

    def transposed(
        self, statement: Product, k: int, above: Signal, t: int, modes: Modes, out: str | None = None
    ) -> Signal:
        """The adjoint of a product with respect to its k-th factor: the product of ``above`` and the others, these
        written out to the tensors, so that a tensor meets the gradient before anything else does. Letters missing from
        ``out`` are summed."""
        out = statement.factors[k].letters if out is None else out
        parts = []
        for term in self.network.terms(statement, without=k):
            kept = [(modes[x.name],) if x.name in modes else _MODES for x in term.tensors]
            signals = [self.at(x, "value", t) for x in term.signals]
            signals += [self.at(x, "initial" if self.network.is_held(x.name) else "value", t) for x in term.weights]
            for mode in product(*kept):
                parts.append(self._multiplied(term, mode, [above], signals, out, t))
        return self.algebra.add(parts)

    def raw_gradient_size(self, role: str, t: int) -> int | None:
        """Packed entry size of the gradient of a tensor; None if exactly zero.

        Law: the largest of its uses; rms(u v) = rms(u) rms(v) where no index is summed, for polynomials of Gaussians.
        """
        return self._largest([self.entry(role, factors) for factors in self.factors(role, t)])

    def _largest(self, sizes: Sequence[int | None]) -> int | None:
        """Packed size of a sum, from those of its terms."""
        found = sorted((x for x in sizes if x is not None), key=self.algebra.value)
        if len(found) > 1 and self.algebra.value(found[-2]) == self.algebra.value(found[-1]):
            self.note("generic-constants")
        return max(found, default=None)

    def update_size(self, role: str, t: int) -> int | None:
        """Packed entry size of ``W_t - W_0``."""
        return self._largest([size for _, size in self.update_sizes(role, t)])

    def update_sizes(self, role: str, t: int) -> list[tuple[Increment, int]]:
        """Every step of ``W_t - W_0`` that is not zero, with its packed entry size."""
        found = []
        for step in self._updates(role, t):
            size = self.entry(role, step.factors)
            self.sound = self.sound and all(x.certain for x in step.scalars)
            if size is not None:
                found.append((step, sum(x.size for x in step.scalars) + size))
        return found

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
        found = []
        own = self.network.tensors[role].letters
        for statement in self.network.uses(role):
            assert statement.tensor
            out = self.network.signals[statement.out]
            signals = [self.multiplied(above(statement.out), statement.multipliers)]
            letters = [out, *(x.letters for x in statement.factors)]
            signals += [acted(x) for x in statement.factors]
            renamed = dict(zip(statement.tensor.letters, own, strict=True))
            for x in "".join(letters):
                if x not in renamed:
                    clash = x in own
                    taken = own + "".join(renamed) + "".join(renamed.values()) + "".join(letters)
                    renamed[x] = self.network.spare(self.network.axes[x], taken) if clash else x
            found.append(
                tuple(
                    self.relabelled(s, old, "".join(renamed[x] for x in old))
                    for s, old in zip(signals, letters, strict=True)
                )
            )
        return found

    # inside ----------------------------------------------------------------------------------------------------

    def named(self, signal: Signal, name: str) -> Signal:
        """The same signal under a name for explanations."""
        return signal.but(name=name)

    def note(self, text: str) -> None:
        """Notes what is assumed (``spec/assumptions.py``), or why something is not known, of all that rests on this."""
        self.algebra.notes.add(text)

    def kept(self, key: tuple[object, ...], name: str, compute: Callable[[], Signal]) -> Signal:
        """A result, computed once and named for explanations."""
        return self.ledger.remembered((self._name, *key), lambda: self.named(compute(), name))

    def _data(self) -> Signal:
        """The input: constant, but for a mark that it depends on the indices that functions go along."""
        letters = self.network.signals[DATA]
        tracked = "".join(x for x in letters if x in self.network.tracked)
        return self.algebra.marked(DATA, letters, tracked) if tracked else self.algebra.constant(letters)

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
        modes: list[tuple[Mode, ...]] = [_MODES[:1] * len(term.tensors)]
        if mode == "update":  # the first k as they are now, the next one by its update, the rest as they were
            modes = []
            for k in range(len(term.tensors)):
                for before in product(_MODES, repeat=k):
                    modes.append((*before, _MODES[1], *_MODES[:1] * (len(term.tensors) - k - 1)))
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
            initial = [self._used(x, self._initial[x.name]) for x, step in chosen if step is None]
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
        text = " ".join(
            f"{'d' * (m == 'update')}{s}{'_0' * (m == 'init')}{back}" for s, m in zip(symbols, modes, strict=True)
        )
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
        own = "".join(dict.fromkeys(c for s in meeting for c in s.letters if c in kept))
        tag = f"{'backward' if above else 'forward'} {' '.join(x.name for x, _ in steps)}"
        inner = self.algebra.product(self.covered(meeting, own), own, tag)
        return self.algebra.scaled(self.algebra.product(self.covered([inner, *rest], out), out), *scalars)

    def _in_use(self, x: Factor, step: Increment, taken: str) -> tuple[Signal, list[Signal]]:
        """The factors of an increment in the letters that the tensor has in an equation."""
        renamed = dict(zip(self.network.tensors[x.name].letters, x.letters, strict=True))
        for s in step.factors:
            for c in s.letters:
                if c not in renamed:
                    axis = self.network.letters[c]
                    free = c not in taken and c not in renamed.values()
                    renamed[c] = c if free else self.network.spare(axis, taken + "".join(renamed.values()))
        relabel = [self.relabelled(s, s.letters, "".join(renamed[c] for c in s.letters)) for s in step.factors]
        return relabel[0], relabel[1:]

    def _used(self, x: Factor, whole: Signal) -> Signal:
        return self.relabelled(whole, self.network.tensors[x.name].letters, x.letters)

    def covered(self, operands: list[Signal], out: str) -> list[Signal]:
        """Operands of a product without the ones that are 1, with one for each letter that nothing else has."""
        kept = [s for s in operands if not self._one(s)]
        there = {c for s in kept for c in s.letters}
        wanted = dict.fromkeys("".join(s.letters for s in operands) + self.algebra.live(out))
        missing = "".join(c for c in wanted if c not in there)
        return [*kept, self.algebra.constant(missing)] if missing or not kept else kept

    def _one(self, s: Signal) -> bool:
        return s.made is not None and s.made.rule == "constant" and set(s.terms.values()) == {0}

    def entries(self, role: str, factors: Sequence[Signal]) -> Sequence[Signal]:
        """A product of factors in the letters of a tensor, multiplied out where its size is not that of the factors."""
        own = self.algebra.live(self.network.tensors[role].letters)
        if any(c not in own for s in factors for c in s.letters) or any(self._repeats(s) for s in factors):
            return [self.algebra.product(self.covered(list(factors), own), own)]
        return factors

    def entry(self, role: str, factors: Sequence[Signal]) -> int | None:
        """Packed entry size of a product of factors, in the letters of a tensor."""
        factors = self.entries(role, factors)
        self.sound = self.sound and all(map(self.algebra.certified, factors))
        sizes = [self.algebra.rms(s) for s in factors]
        return None if None in sizes else sum(x for x in sizes if x is not None)

    def _repeats(self, s: Signal) -> bool:
        """Two open indices of one axis: the diagonal may be larger than the rest."""
        axes = [self.network.letters[c] for c in s.letters]
        return len(set(axes)) < len(axes)

    def _gradient(self, signal: str, t: int, modes: Modes, via: str) -> Signal:
        letters = self.network.signals[signal]
        uses = [(s, k) for s, k in self.network.consumers(signal) if via in ("", s.out)]
        if not uses:
            return self.algebra.constant(letters)  # the output itself
        paths = []
        for s, k in uses:
            above = self.gradient(s.out, t, modes)
            passed = rule(s).adjoint(self, s, k, above, t, modes)
            found = self.relabelled(passed, s.inputs[k].letters, letters)
            paths.append(self.named(found, f"through {s.out}"))
        return self.algebra.add(paths)

    def _size(self, role: str, t: int) -> int:
        """Packed entry size of a tensor after t updates; Theta(1) at least for one that starts at zero."""
        b = self.point.b[role]
        start = 0 if b is None else self.algebra.pack(-b, {}, {f"b.{role}": -1})
        moved = self.update_size(role, t)
        return start if moved is None else max(start, moved)

    def _updates(self, role: str, t: int) -> list[Increment]:
        """Increments of the first t steps."""
        found = []
        for step in range(t):
            found += self.ledger.remembered((self._name, "step", role, step), partial(self._step, role, step))
        return found

    def scalars(self, role: str, step: int) -> tuple[Scalar, ...]:
        """What the gradient of a step is multiplied by; nothing if it is exactly zero."""
        if all(any(x.zero for x in factors) for factors in self.factors(role, step)):
            return ()
        return self._rate(role, step)

    def _step(self, role: str, step: int) -> list[Increment]:
        """One step of a tensor, a product for each use."""
        scalars = self.scalars(role, step)
        return self._stepped(role, step, scalars) if scalars else []

    def _rate(self, role: str, step: int) -> tuple[Scalar, ...]:
        """What the gradient of a step is multiplied by."""
        rates = [Scalar(f"lr of {role}", self.algebra.pack(-self.point.c[role], {}, {f"c.{role}": -1}))]
        rule = self.optimizer.of(role)
        if shape := rule.shaped(self.network, role, self.algebra.ray).terms:
            rates.append(Scalar(f"factor of the shape of {role}", self.algebra.scale(dict(shape))))
        if rule.relative:
            self.note("tensor-floor")
            rates.append(Scalar(f"size of {role} before step {step + 1}", self._size(role, step)))
        if not rule.normalises:
            return tuple(rates)
        read = [
            self.ledger.remembered((self._name, "g", role, k), partial(self._gradient_size, role, k))
            for k in range(step)
        ]
        read.append(self._gradient_size(role, step))
        sizes = [size for size, _ in read if size is not None]
        if read[-1][0] is None:  # not zero, but nothing is known of it
            raise Exhausted
        epsilon = self.algebra.pack(-self.point.d[role], {}, {f"d.{role}": -1})
        divisor = rule.normaliser(sizes, epsilon, self.algebra.scale(dict(rule.entries(self.network, role).terms)))
        certain = all(known for _, known in read)
        return *rates, Scalar(f"1/normaliser of {role} at step {step + 1}", -divisor, certain)

    def _gradient_size(self, role: str, step: int) -> tuple[int | None, bool]:
        """Entry size of the gradient of a step, and whether it is certified."""
        known = self.known and self.known(f"g{self.network.tensors[role].symbol}", step)
        if known is not None:
            return known, True
        self.sound, sound = True, self.sound
        size = self.raw_gradient_size(role, step)
        self.sound, certain = sound, self.sound
        return size, certain

    def _stepped(self, role: str, step: int, scalars: tuple[Scalar, ...]) -> list[Increment]:
        gradients, uses = self.factors(role, step), self.network.uses(role)
        shares: Sequence[Scalar | None] = ()
        rule = self.optimizer.of(role)
        if rule.assumes:
            self.note(rule.assumes)
        if rule.signs:
            gradients = signs(self, role, step, gradients)
        if rule.normalises == "matrix":
            shares = apart(self, role, gradients)
        found = []
        for use, factors, share in zip_longest(uses, gradients, shares):
            if any(s.zero for s in factors):
                continue
            if rule.normalises == "entry" and self.network.norms:
                names = (f"df/d{use.out}", *(x.name for x in use.factors))
                factors = tuple(map(self._signed, factors, names))
            own = (*scalars, share) if share is not None and share.size else scalars
            found.append(Increment(step, own, factors[0], factors[1:]))
        return found

    def _signed(self, s: Signal, name: str) -> Signal:
        """A factor of a normalised step: the factor itself, and what is nonlinear in its sign, a Gaussian of its own.

        Law: sign(u) is a multiple of u plus higher Hermite parts, uncorrelated with all that is linear in u. Where a
        norm removes the direction of u these are what is left; else they are never larger than the linear part.
        """
        size = self.algebra.rms(s)
        if size is None or not s.letters or self._one(s):
            return s
        return self.named(self.algebra.add([s, self.algebra.tensor(f"sign({name})", s.letters, size)]), s.name)


class _Decaying(Trajectory):
    """A run whose updates hold what decoupled weight decay takes from the initial values.

    Law: W_t = (1 - lr decay)^t W_0 + updates, with lr decay Theta(1), so W_t - W_0 has a Theta(1) multiple of W_0.
    """

    def _updates(self, role: str, t: int) -> list[Increment]:
        initial = self._initial[role]
        if not (t and self.optimizer.of(role).decoupled_decay) or initial.zero:
            return super()._updates(role, t)
        return [*super()._updates(role, t), Increment(t - 1, (Scalar("weight decay", 0),), initial, ())]
