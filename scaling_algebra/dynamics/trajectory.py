"""Unrolls training exactly: forward, backward and update signals of a network at every step.

The backward pass is the derivative of the network, so no gradient is written by hand. A gradient of a tensor stays a
product of the gradient at its output and of what it acted on, one product for every use of the tensor.
Read next: ``rules.py`` (what each kind of statement does), ``quantities.py`` (the named parts), ``newton.py`` (which
parameters make them Theta(1)).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest

from scaling_algebra.counting.kernels import Exhausted
from scaling_algebra.counting.signals import EntrySize, Scalar, Signal
from scaling_algebra.spec.desiderata import HORIZON
from scaling_algebra.spec.networks.auxiliary import counted
from scaling_algebra.spec.networks.indices import tracked
from scaling_algebra.spec.networks.language import Function, Product, Statement
from scaling_algebra.spec.networks.roles import gradient_name

from .alone import alone, by_loss
from .norms import over
from .products import Increment
from .rules import ENTRYWISE, rule
from .run import Modes, TrainingRun
from .steps import Step, apart, crossed, entrywise, signs, turned, vanishes


class Trajectory(TrainingRun):
    """All signals of a training run, computed on demand and kept: what ``quantities.Run`` says, of exponents."""

    def value(self, signal: str, t: int) -> Signal:
        statement = self.network.producer(signal)
        if statement is None:
            letters = self.network.signals[signal]  # the input, or a constant: flat, but along what functions go along
            followed = "".join(x for x in letters if x in tracked(self.network))
            return self.algebra.marked(signal, letters, followed) if followed else self.algebra.constant(letters)
        if t == 0 and self.context.start is not None:
            return self.context.start.value(signal, 0)
        return self.kept(("value", signal, t), f"{signal}@{t}", lambda: rule(statement).value(self, statement, t))

    def change(self, signal: str, t: int) -> Signal:
        statement = self.network.producer(signal)
        if t == 0 or statement is None:
            return self.algebra.nothing(self.network.signals[signal])
        key = ("change", signal, t)
        return self.kept(key, f"{signal}.change@{t}", lambda: self.moved(statement, t))

    def moved(self, statement: Statement, t: int) -> Signal:
        return rule(statement).change(self, statement, t)

    def change_via(self, signal: str, t: int, via: str) -> Signal:
        """Part of the effective update of one tensor times one signal whose gradients came through one statement."""
        statement = self.network.producer(signal)
        assert isinstance(statement, Product) and statement.tensor
        x, letters = self.at(statement.factors[0], "initial", 0), self.network.signals[signal]
        parts = []
        for step in self._updates(statement.tensor.name, t):
            alone = replace(step, gradient=self._through_alone(signal, step.step, via))
            parts.append(self.products.applied([(statement.tensor, alone)], [], [x], letters))
        return self.algebra.add(parts) if parts else self.algebra.nothing(letters)

    def _through_alone(self, signal: str, step: int, via: str) -> Signal:
        """The gradient of an update that came through one statement."""
        return self.gradient(signal, step, via=via)

    def spread(self, function: Function, t: int) -> Signal:
        function = self.own(function)
        return self.algebra.centred(self.at(function.inputs[0], "value", t), function.over)

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
        return over(self, function, signal, t)

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

    def alone(self, changing: str, outside: Collection[str]) -> Trajectory:
        run: Trajectory = alone(self, changing, outside)
        return run

    def by(self, loss: str) -> Trajectory:
        run: Trajectory = self.ledger.remembered((self.context.name, "by", loss), lambda: by_loss(self, loss))
        return run

    def weighed(self, loss: str, signal: str, t: int) -> Signal:
        """The gradient of a loss beside the output at a signal, over the largest of that of the output in the first
        updates.

        Raises:
            Exhausted: that size is not certified.
        """
        main, sizes = self.by(self.network.output), list[int]()
        for k in range(max(t, HORIZON) + 1):
            size = self.context.certified(f"{gradient_name(self.network, signal)}.by-{self.network.output}", k)
            whole = main.gradient(signal, k) if size is None else None
            if whole is not None and not whole.zero:
                size = self.algebra.rms(whole)
                if size is None or not self.algebra.certified(whole):
                    raise Exhausted
            sizes += [] if size is None else [size]
        if not sizes:
            return self.algebra.nothing(self.network.signals[signal])
        size = max(sizes, key=self.algebra.value)
        return self.algebra.scaled(self.by(loss).gradient(signal, t), Scalar(f"1/rms of df/d{signal}", -size))

    def decaying(self) -> Trajectory:
        """The same run, with weight decay as one more step of every tensor along itself."""
        context = replace(self.context, ledger=self.ledger, name=f"{self.context.name} with decay")
        run = partial(_Decaying, self.network, self.algebra, self.point, self.optimizer, context)
        return self.ledger.remembered((self.context.name, "decaying"), run)

    def gradient(self, signal: str, t: int, modes: Modes | None = None, via: str = "") -> Signal:
        modes = dict(modes or {})
        if t == 0 and self.context.start is not None:
            return self.context.start.gradient(signal, 0, modes, via)
        key = ("gradient", signal, t, tuple(sorted(modes.items())), via)
        kept = [f"{self.network.tensors[r].symbol} {m}" for r, m in modes.items()] + ([f"via {via}"] if via else [])
        name = f"df/d{signal}@{t}" + (f" ({', '.join(kept)})" if kept else "")
        return self.kept(key, name, lambda: self._gradient(signal, t, modes, via))

    def raw_gradient_size(self, role: str, t: int) -> EntrySize:
        """Entry size of the gradient of a tensor.

        Law: the largest of its uses; rms(u v) = rms(u) rms(v) where no index is summed, for polynomials of Gaussians.
        """
        return self._largest([self.products.entry(role, factors) for factors in self.factors(role, t)])

    def _largest(self, sizes: Sequence[EntrySize]) -> EntrySize:
        """Entry size of a sum, from those of its terms."""
        packed = sorted((x.packed for x in sizes if x.packed is not None), key=self.algebra.value)
        if len(packed) > 1 and self.algebra.value(packed[-2]) == self.algebra.value(packed[-1]):
            self.note("generic-constants")
        return EntrySize(max(packed, default=None), all(x.certain for x in sizes))

    def update_size(self, role: str, t: int) -> EntrySize:
        return self._largest([size for _, size in self.update_sizes(role, t)])

    def update_sizes(self, role: str, t: int) -> list[tuple[Increment, EntrySize]]:
        """Every step of ``W_t - W_0`` with its entry size."""
        return [(step, self.products.entry(role, step.factors, step.scalars)) for step in self._updates(role, t)]

    def _gradient(self, signal: str, t: int, modes: Modes, via: str) -> Signal:
        letters = self.network.signals[signal]
        if mask := counted(self.network).get(signal):
            return self.count(mask, letters, t)
        uses = [(s, k) for s, k in self.network.consumers(signal) if via in ("", s.out)]
        if not uses:
            return self.algebra.constant(letters)  # the output itself
        paths = []
        for s, k in uses:
            above = self.gradient(s.out, t, modes)
            passed = rule(s).adjoint(self, s, k, above, t, modes)
            path = self.algebra.relabelled(passed, s.inputs[k].letters, letters)
            paths.append(self.named(path, f"through {s.out}"))
        return self.algebra.add(paths)

    def count(self, mask: Function, letters: str, t: int) -> Signal:
        """The count of tokens that a selection takes at every entry, less the mean: a buffer's steps follow it."""
        chosen = self.algebra.tensor(ENTRYWISE.selected(self, mask, t), letters, 0)
        return self.algebra.centred(chosen, mask.over) if mask.over in chosen.letters else chosen

    def _size(self, role: str, t: int) -> Scalar:
        """Entry size of a tensor after t updates; Theta(1) at least for one that starts at zero."""
        b = self.point.b[role]
        start = 0 if b is None else self.algebra.pack(-b, {}, {f"b.{role}": -1})
        moved = self.update_size(role, t)
        size = start if moved.packed is None else max(start, moved.packed)
        return Scalar(f"size of {role} before step {t + 1}", size, moved.certain)

    def _updates(self, role: str, t: int) -> list[Increment]:
        """Increments of the first t steps."""
        increments = []
        for step in range(0 if role in self.point.frozen else t):
            increments += self.ledger.remembered(
                (self.context.name, "step", role, step), partial(self._step, role, step)
            )
        return increments

    def scalars(self, role: str, step: int) -> tuple[Scalar, ...]:
        """The factors of the gradient of a step; none if it is exactly zero."""
        stays = self.optimizer.of(role).sphere and self.point.b[role] is None
        return () if stays or all(map(vanishes, self.factors(role, step))) else self._rate(role, step)

    def _step(self, role: str, step: int) -> list[Increment]:
        """One step of a tensor, a product for each use."""
        scalars = self.scalars(role, step)
        return self._stepped(role, step, scalars) if scalars else []

    def _learning_rate(self, role: str) -> list[Scalar]:
        """The learning rate of a tensor, and the factor of its shape."""
        rates = [Scalar(f"lr of {role}", self.algebra.pack(-self.point.c[role], {}, {f"c.{role}": -1}))]
        if shape := self.optimizer.of(role).shaped(self.network, role, self.algebra.ray).terms:
            rates.append(Scalar(f"factor of the shape of {role}", self.algebra.scale(dict(shape))))
        return rates

    def _rate(self, role: str, step: int) -> tuple[Scalar, ...]:
        """The factors of the gradient of a step."""
        rule, rates = self.optimizer.of(role), self._learning_rate(role)
        if rule.sphere:
            rates.append(self._size(role, 0))
        elif rule.relative:
            self.note("tensor-floor")
            rates.append(self._size(role, step))
        if not rule.normalises:
            return tuple(rates)
        read = [
            self.ledger.remembered((self.context.name, "g", role, k), partial(self._gradient_size, role, k))
            for k in range(step)
        ]
        read.append(self._gradient_size(role, step))
        sizes = [x.packed for x in read if x.packed is not None]
        if read[-1].packed is None:  # not zero, but nothing is known of it
            raise Exhausted
        epsilon = self.algebra.pack(-self.point.d[role], {}, {f"d.{role}": -1})
        divisor = rule.normaliser(sizes, epsilon, self.algebra.scale(dict(rule.entries(self.network, role).terms)))
        certain = all(x.certain for x in read)
        return *rates, Scalar(f"1/normaliser of {role} at step {step + 1}", -divisor, certain)

    def _gradient_size(self, role: str, step: int) -> EntrySize:
        """Entry size of the gradient of a step, certified elsewhere if it can be."""
        size = self.context.certified(f"g{self.network.tensors[role].symbol}", step)
        return self.raw_gradient_size(role, step) if size is None else EntrySize(size)

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
            gradients = [turned(self, x) for x in gradients] if rule.memory and step else gradients
        increments = []
        for use, factors, share in zip_longest(uses, gradients, shares):
            if vanishes(factors):
                continue
            multiples = (*scalars, share) if share is not None and (share.size or not share.certain) else scalars
            products: list[Step] = [((), factors)]
            if rule.normalises == "entry":
                names = (f"df/d{use.out}", *(x.name for x in use.factors))
                products = entrywise(self, factors, names, *self._curved(role, step, scalars))
            increments += [Increment(step, (*multiples, *more), x[0], x[1:]) for more, x in products]
        if rule.normalises == "entry" and len(uses) > 1:
            products = crossed(self, role, gradients, *self._curved(role, step, scalars))
            increments += [Increment(step, (*scalars, *more), x[0], x[1:]) for more, x in products]
        return increments

    def _curved(self, role: str, step: int, scalars: tuple[Scalar, ...]) -> tuple[int, bool]:
        """Packed size of what a step divides by without its epsilon over that with it, and whether a step before had
        as much of what is not linear in its gradient."""
        run = [(k, self.scalars(role, k)) for k in range(step)]
        before = [self._divided(role, k, x) for k, x in run if x]
        share = max([*before, self._divided(role, step, scalars)], key=self.algebra.value)
        return share, any(self.algebra.value(x) == self.algebra.value(share) for x in before)

    def _divided(self, role: str, step: int, scalars: tuple[Scalar, ...]) -> int:
        """Packed size of a gradient over what it is divided by, which is epsilon where the gradient is smaller."""
        own = self.raw_gradient_size(role, step)
        size = own.packed if own.certain else self._gradient_size(role, step).packed
        return 0 if size is None else min(0, self.algebra.pack(self.algebra.value(size + scalars[-1].size), {}, {}))


class _Decaying(Trajectory):
    """A run whose updates hold what decoupled weight decay takes from the initial values.

    Law: W_t = (1 - lr decay)^t W_0 + updates, with lr decay Theta(1), so W_t - W_0 has a Theta(1) multiple of W_0.
    A frozen tensor is not in the optimizer, so it does not decay.
    """

    decays = True

    def _updates(self, role: str, t: int) -> list[Increment]:
        initial, stays = self.products.initial[role], role in self.network.frozen
        if not (t and self.optimizer.of(role).decoupled_decay) or initial.zero or stays:
            return super()._updates(role, t)
        return [*super()._updates(role, t), Increment(t - 1, (Scalar("weight decay", 0),), initial, ())]
