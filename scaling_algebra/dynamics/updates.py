"""The steps of a training run: what the optimizer makes of the gradients of every tensor.

Read next: ``steps.py`` (signs and singular directions of gradients), ``products.py`` (a step in a product).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import partial
from itertools import zip_longest

from scaling_algebra.counting.kernels import Exhausted
from scaling_algebra.counting.signals import EntrySize, Scalar, Signal

from .products import Increment
from .run import BeyondPowerCounting, TrainingRun
from .steps import Step, apart, crossed, entrywise, signs, turned, vanishes

HALF = Fraction(1, 2)


class TensorSteps:
    """All steps of the tensors of a run, computed on demand and kept."""

    def __init__(self, run: TrainingRun) -> None:
        self.run, self.network, self.algebra = run, run.network, run.algebra
        self.point, self.optimizer = run.point, run.optimizer

    def of(self, role: str, t: int) -> list[Increment]:
        """Increments of the first t steps."""
        increments = []
        for step in range(0 if role in self.point.frozen else t):
            increments += self.run.ledger.remembered(
                (self.run.context.name, "step", role, step), partial(self._step, role, step)
            )
        return increments

    def _step(self, role: str, step: int) -> list[Increment]:
        """One step of a tensor, a product for each use."""
        scalars = self.scalars(role, step)
        return self.within(role, self.stepped(role, step, scalars)) if scalars else []

    def within(self, role: str, made: list[Increment]) -> list[Increment]:
        """A step, if the way back to a constraint changes no exponent.

        Law: the way back multiplies a row, a column or a matrix by norm / norm with the step. This is Theta(1) where
        the step is no larger than the weights in the norm of the constraint. A step of rank one is as large in the
        spectral as in the Frobenius norm; random weights are smaller by the root of their shorter side. The norm of a
        row of many entries is that of its mean square; one of few follows the gradient of its own row.

        Raises:
            BeyondPowerCounting: the step is larger, so that the way back shrinks the weights by a power; or norms of
                many rows are those of few entries.
        """
        rule, b = self.optimizer.of(role), self.point.b[role]
        if not made or b is None or rule.relative or not rule.constrains(self.network, role):
            return made
        live, symbol = self.algebra.drop_fixed, self.network.tensors[role].symbol
        one, normed = rule.matrix(self.network, role), rule.constrained_indices(self.network, role)
        if not live(normed) and live(one.rows + one.columns):
            raise BeyondPowerCounting(
                f"{rule.name} takes norms of few entries of {symbol}, which follow the gradients of these entries"
            )
        size = self._largest([self.run.products.entry(role, x.factors, x.scalars) for x in made]).packed
        if rule.constraint == "spectral" and size is not None:
            sides = [self.network.size(side) for side in (one.rows, one.columns)]
            size += self.algebra.pack_powers(dict((min(sides, key=lambda x: x.on(self.algebra.ray)) ** HALF).terms))
        if size is not None and self.algebra.exponent(size) > self.algebra.exponent(self.algebra.pack(-b, {}, {})):
            raise BeyondPowerCounting(
                f"a step of {symbol} is larger than its weights, which {rule.name} brings back to their norm: it "
                "shrinks them by a power"
            )
        return made

    def scalars(self, role: str, step: int) -> tuple[Scalar, ...]:
        """The factors of the gradient of a step; none if it is exactly zero."""
        stays = self.point.b[role] is None and self.optimizer.of(role).constrains(self.network, role)
        return () if stays or all(map(vanishes, self.run.factors(role, step))) else self.rate(role, step)

    def raw_gradient_size(self, role: str, t: int) -> EntrySize:
        """Entry size of the gradient of a tensor.

        Law: the largest of its uses; rms(u v) = rms(u) rms(v) where no index is summed, for polynomials of Gaussians.
        """
        return self._largest([self.run.products.entry(role, factors) for factors in self.run.factors(role, t)])

    def update_size(self, role: str, t: int) -> EntrySize:
        """Entry size of ``W_t - W_0``."""
        return self._largest([size for _, size in self.update_sizes(role, t)])

    def update_sizes(self, role: str, t: int) -> list[tuple[Increment, EntrySize]]:
        """Every step of ``W_t - W_0`` with its entry size."""
        return [(step, self.run.products.entry(role, step.factors, step.scalars)) for step in self.of(role, t)]

    def _largest(self, sizes: Sequence[EntrySize]) -> EntrySize:
        """Entry size of a sum, from those of its terms."""
        packed = sorted((x.packed for x in sizes if x.packed is not None), key=self.algebra.exponent)
        if len(packed) > 1 and self.algebra.exponent(packed[-2]) == self.algebra.exponent(packed[-1]):
            self.run.note("generic-constants")
        return EntrySize(max(packed, default=None), all(x.certain for x in sizes))

    def size(self, role: str, t: int) -> Scalar:
        """Entry size of a tensor after t updates; Theta(1) at least for one that starts at zero."""
        b = self.point.b[role]
        start = 0 if b is None else self.algebra.pack(-b, {}, {f"b.{role}": -1})
        moved = self.update_size(role, t)
        size = start if moved.packed is None else max(start, moved.packed)
        return Scalar(f"size of {role} before step {t + 1}", size, moved.certain)

    def learning_rate(self, role: str) -> list[Scalar]:
        """The learning rate of a tensor, and the factor of its shape."""
        rates = [Scalar(f"lr of {role}", self.algebra.pack(-self.point.c[role], {}, {f"c.{role}": -1}))]
        if shape := self.optimizer.of(role).shape_factor(self.network, role, self.algebra.ray).terms:
            rates.append(Scalar(f"factor of the shape of {role}", self.algebra.pack_powers(dict(shape))))
        return rates

    def rate(self, role: str, step: int) -> tuple[Scalar, ...]:
        """The factors of the gradient of a step."""
        rule, rates = self.optimizer.of(role), self.learning_rate(role)
        if rule.keeps_norm:
            rates.append(self.size(role, 0))
        elif rule.relative:
            self.run.note("tensor-floor")
            rates.append(self.size(role, step))
        if not rule.normalises:
            return tuple(rates)
        read = [
            self.run.ledger.remembered((self.run.context.name, "g", role, k), partial(self.gradient_size, role, k))
            for k in range(step)
        ]
        read.append(self.gradient_size(role, step))
        sizes = [x.packed for x in read if x.packed is not None]
        if read[-1].packed is None:  # not zero, but nothing is known of it
            raise Exhausted
        epsilon = self.algebra.pack(-self.point.d[role], {}, {f"d.{role}": -1})
        divisor = rule.normaliser(
            sizes, epsilon, self.algebra.pack_powers(dict(rule.entry_count_root(self.network, role).terms))
        )
        certain = all(x.certain for x in read)
        return *rates, Scalar(f"1/normaliser of {role} at step {step + 1}", -divisor, certain)

    def gradient_size(self, role: str, step: int) -> EntrySize:
        """Entry size of the gradient of a step, certified elsewhere if it can be."""
        size = self.run.context.certified(f"g{self.network.tensors[role].symbol}", step)
        return self.raw_gradient_size(role, step) if size is None else EntrySize(size)

    def stepped(self, role: str, step: int, scalars: tuple[Scalar, ...]) -> list[Increment]:
        """One step of a tensor, with these factors of its gradient."""
        gradients, uses = self.run.factors(role, step), self.network.uses(role)
        shares: Sequence[Scalar | None] = ()
        rule = self.optimizer.of(role)
        if rule.assumes:
            self.run.note(rule.assumes)
        if rule.is_sign:
            gradients = signs(self.run, role, step, gradients)
        if rule.normalises == "matrix":
            shares = apart(self.run, role, gradients)
            gradients = [turned(self.run, x) for x in gradients] if rule.memory and step else gradients
        increments = []
        for use, factors, share in zip_longest(uses, gradients, shares):
            if vanishes(factors):
                continue
            multiples = (*scalars, share) if share is not None and (share.size or not share.certain) else scalars
            products: list[Step] = [((), factors)]
            if rule.normalises == "entry":
                names = (f"df/d{use.out}", *(x.name for x in use.factors))
                products = entrywise(self.run, factors, names, *self.curved(role, step, scalars))
            increments += [Increment(step, (*multiples, *more), x[0], x[1:]) for more, x in products]
        if rule.normalises == "entry" and len(uses) > 1:
            products = crossed(self.run, role, gradients, *self.curved(role, step, scalars))
            increments += [Increment(step, (*scalars, *more), x[0], x[1:]) for more, x in products]
        return increments

    def curved(self, role: str, step: int, scalars: tuple[Scalar, ...]) -> tuple[int, bool]:
        """Packed size of what a step divides by without its epsilon over that with it, and whether a step before had
        as much of what is not linear in its gradient."""
        run = [(k, self.scalars(role, k)) for k in range(step)]
        before = [self.divided(role, k, x) for k, x in run if x]
        share = max([*before, self.divided(role, step, scalars)], key=self.algebra.exponent)
        return share, any(self.algebra.exponent(x) == self.algebra.exponent(share) for x in before)

    def divided(self, role: str, step: int, scalars: tuple[Scalar, ...]) -> int:
        """Packed size of a gradient over what it is divided by, which is epsilon where the gradient is smaller."""
        own = self.raw_gradient_size(role, step)
        size = own.packed if own.certain else self.gradient_size(role, step).packed
        return 0 if size is None else min(0, self.algebra.pack(self.algebra.exponent(size + scalars[-1].size), {}, {}))

    def through(self, signal: str, step: int, via: str) -> Signal:
        """The gradient of an update that came through one statement."""
        return self.run.gradient(signal, step, via=via)


class DecayingSteps(TensorSteps):
    """Steps that hold what decoupled weight decay takes from the initial values.

    Law: W_t = (1 - lr decay)^t W_0 + updates, with lr decay Theta(1), so W_t - W_0 has a Theta(1) multiple of W_0.
    A frozen tensor is not in the optimizer, so it does not decay.
    """

    def of(self, role: str, t: int) -> list[Increment]:
        initial, stays = self.run.products.initial[role], role in self.network.frozen
        if not (t and self.optimizer.of(role).decoupled_decay) or initial.is_zero or stays:
            return super().of(role, t)
        return [*super().of(role, t), Increment(t - 1, (Scalar("weight decay", 0),), initial, ())]
