"""The optimizer steps of a training run, computed from the gradients of each tensor.

For each use of a tensor, SGD with learning rate eta gives one increment ``eta * g x``, and Adam ``eta * g x /
normaliser``. Optimizers that use signs or orthogonalised matrices change the factors g and x as well (``steps.py``).
Read next: ``steps.py`` (signs and singular directions of gradients), ``products.py`` (multiplies increments).
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
from .steps import (
    Step,
    add_raised_directions,
    expand_cross_terms,
    expand_entrywise,
    scale_singular_values,
    sign_factors,
    vanishes,
)

HALF = Fraction(1, 2)


class TensorSteps:
    """The optimizer steps of all tensors in a training run, computed on demand and cached."""

    def __init__(self, run: TrainingRun) -> None:
        self.run, self.network, self.algebra = run, run.network, run.algebra
        self.point, self.optimizer = run.point, run.optimizer

    def increments(self, role: str, t: int) -> list[Increment]:
        """Returns the updates of a tensor in the first t steps; an empty list if it is frozen."""
        increments = []
        for step in range(0 if role in self.point.frozen else t):
            increments += self.run.ledger.remember(
                (self.run.context.name, "step", role, step), partial(self._make_step, role, step)
            )
        return increments

    def _make_step(self, role: str, step: int) -> list[Increment]:
        """Returns the update of a tensor in one step, as a sum of increments (products of scalars, a gradient and
        inputs), at least one for each use of the tensor; empty if the gradient is exactly zero."""
        scalars = self.list_step_scalars(role, step)
        return self.check_constraint(role, self.make_increments(role, step, scalars)) if scalars else []

    def check_constraint(self, role: str, increments: list[Increment]) -> list[Increment]:
        """Returns the increments of a step unchanged, after checking that projecting the weights back to a given norm
        changes no exponent.

        Law: the projection multiplies each row, each column or the whole matrix by (norm before) / (norm after the
        step). This factor is Theta(1) if, in the norm that is kept, the step is no larger than the weights. For the
        spectral norm: that of a step of rank one equals its Frobenius norm, whereas that of random weights is smaller
        than theirs by the root of the shorter side. The norm of a row with many entries is given by their mean square;
        that of a row with few entries depends on the gradients of these entries, and is not covered.

        Args:
            role: the parameter.
            increments: the increments of the step.

        Raises:
            BeyondPowerCounting: the step is larger than the weights, so the projection shrinks them by a power of n; or
                each of the norms that are kept is that of few entries.
        """
        rule, b = self.optimizer.of(role), self.point.b[role]
        if not increments or b is None or rule.relative or not rule.constrains(self.network, role):
            return increments
        live, symbol = self.algebra.drop_fixed, self.network.tensors[role].symbol
        one, normed = rule.matrix(self.network, role), rule.constrained_indices(self.network, role)
        if not live(normed) and live(one.rows + one.columns):
            raise BeyondPowerCounting(
                f"{rule.name} keeps norms of {symbol} that consist of few entries, so projecting them back depends on "
                "the gradients of these entries"
            )
        size = self._find_largest(
            [self.run.products.measure_entry(role, x.factors, x.scalars) for x in increments]
        ).packed
        if rule.constraint == "spectral" and size is not None:
            sides = [self.network.size(side) for side in (one.rows, one.columns)]
            size += self.algebra.pack_powers(dict((min(sides, key=lambda x: x.on(self.algebra.ray)) ** HALF).terms))
        if size is not None and self.algebra.exponent(size) > self.algebra.exponent(self.algebra.pack(-b, {}, {})):
            raise BeyondPowerCounting(
                f"a step of {symbol} is larger than its weights; projecting them back to their norm, as {rule.name} "
                "does, shrinks them by a power of n"
            )
        return increments

    def list_step_scalars(self, role: str, step: int) -> tuple[Scalar, ...]:
        """Returns the scalar factors by which one step of a tensor multiplies its gradient; empty if the step is
        exactly zero."""
        stays = self.point.b[role] is None and self.optimizer.of(role).constrains(self.network, role)
        return (
            ()
            if stays or all(map(vanishes, self.run.gradient_factors(role, step)))
            else self.list_gradient_scalars(role, step)
        )

    def raw_gradient_size(self, role: str, t: int) -> EntrySize:
        """Returns the root-mean-square of the entries of a tensor's gradient after t updates.

        Law: the gradient is as large as the largest of its products, one for each use; rms(u v) = rms(u) rms(v) if no
        index is summed, for polynomials of Gaussians.
        """
        return self._find_largest(
            [self.run.products.measure_entry(role, factors) for factors in self.run.gradient_factors(role, t)]
        )

    def update_size(self, role: str, t: int) -> EntrySize:
        """Returns the root-mean-square of the entries of ``W_t - W_0``."""
        return self._find_largest([size for _, size in self.update_sizes(role, t)])

    def update_sizes(self, role: str, t: int) -> list[tuple[Increment, EntrySize]]:
        """Returns the increments whose sum is ``W_t - W_0`` (products of scalars, a gradient and inputs), each with the
        root-mean-square of its entries."""
        return [
            (step, self.run.products.measure_entry(role, step.factors, step.scalars))
            for step in self.increments(role, t)
        ]

    def _find_largest(self, sizes: Sequence[EntrySize]) -> EntrySize:
        """Returns the size of a sum, given the sizes of its terms: it is the largest of these."""
        packed = sorted((x.packed for x in sizes if x.packed is not None), key=self.algebra.exponent)
        if len(packed) > 1 and self.algebra.exponent(packed[-2]) == self.algebra.exponent(packed[-1]):
            self.run.note("generic-constants")
        return EntrySize(max(packed, default=None), all(x.certain for x in sizes))

    def measure_tensor(self, role: str, t: int) -> Scalar:
        """Returns the size of a tensor's entries after t updates, as a scalar factor for optimizers whose steps are
        relative to it. A tensor that starts at zero counts as at least Theta(1), since such optimizers set a minimum.
        """
        b = self.point.b[role]
        start = 0 if b is None else self.algebra.pack(-b, {}, {f"b.{role}": -1})
        moved = self.update_size(role, t)
        size = start if moved.packed is None else max(start, moved.packed)
        return Scalar(f"size of {role} before step {t + 1}", size, moved.certain)

    def list_learning_rate(self, role: str) -> list[Scalar]:
        """Returns the scalar factors of a step that do not depend on the gradient: the learning rate of the tensor and,
        if the optimizer has one, its factor for the tensor's shape."""
        rates = [Scalar(f"lr of {role}", self.algebra.pack(-self.point.c[role], {}, {f"c.{role}": -1}))]
        if shape := self.optimizer.of(role).shape_factor(self.network, role, self.algebra.ray).terms:
            rates.append(Scalar(f"shape factor of {role}", self.algebra.pack_powers(dict(shape))))
        return rates

    def list_gradient_scalars(self, role: str, step: int) -> tuple[Scalar, ...]:
        """Returns the scalar factors by which a step multiplies a nonzero gradient: the learning rate and, if the
        optimizer uses them, the size of the tensor and 1/normaliser.

        Raises:
            Exhausted: the size of the gradient, and so the normaliser, is unknown.
        """
        rule, rates = self.optimizer.of(role), self.list_learning_rate(role)
        if rule.keeps_norm:
            rates.append(self.measure_tensor(role, 0))
        elif rule.relative:
            self.run.note("tensor-floor")
            rates.append(self.measure_tensor(role, step))
        if not rule.normalises:
            return tuple(rates)
        read = [
            self.run.ledger.remember((self.run.context.name, "g", role, k), partial(self.gradient_size, role, k))
            for k in range(step)
        ]
        read.append(self.gradient_size(role, step))
        sizes = [x.packed for x in read if x.packed is not None]
        if read[-1].packed is None:  # nonzero, but of unknown size
            raise Exhausted
        epsilon = self.algebra.pack(-self.point.d[role], {}, {f"d.{role}": -1})
        divisor = rule.normaliser(
            sizes, epsilon, self.algebra.pack_powers(dict(rule.entry_count_root(self.network, role).terms))
        )
        certain = all(x.certain for x in read)
        return *rates, Scalar(f"1/normaliser of {role} at step {step + 1}", -divisor, certain)

    def gradient_size(self, role: str, step: int) -> EntrySize:
        """Returns the size of the gradient's entries in a step: the certified size if there is one, otherwise the size
        that this training run gives."""
        size = self.run.context.certified(f"g{self.network.tensors[role].symbol}", step)
        return self.raw_gradient_size(role, step) if size is None else EntrySize(size)

    def make_increments(self, role: str, step: int, scalars: tuple[Scalar, ...]) -> list[Increment]:
        """Returns the update of a tensor in one step, as increments: products of scalars, a gradient and inputs, whose
        sum is the update.

        Args:
            role: the parameter.
            step: number of the step, starting at 0.
            scalars: the factors from ``list_step_scalars``.
        """
        gradients, uses = self.run.gradient_factors(role, step), self.network.uses(role)
        shares: Sequence[Scalar | None] = ()
        rule = self.optimizer.of(role)
        if rule.assumes:
            self.run.note(rule.assumes)
        if rule.is_sign:
            gradients = sign_factors(self.run, role, step, gradients)
        if rule.normalises == "matrix":
            shares = scale_singular_values(self.run, role, gradients)
            gradients = [add_raised_directions(self.run, x) for x in gradients] if rule.memory and step else gradients
        increments = []
        for use, factors, share in zip_longest(uses, gradients, shares):
            if vanishes(factors):
                continue
            multiples = (*scalars, share) if share is not None and (share.size or not share.certain) else scalars
            products: list[Step] = [((), factors)]
            if rule.normalises == "entry":
                names = (f"df/d{use.out}", *(x.name for x in use.factors))
                products = expand_entrywise(self.run, factors, names, *self.find_nonlinear_share(role, step, scalars))
            increments += [Increment(step, (*multiples, *more), x[0], x[1:]) for more, x in products]
        if rule.normalises == "entry" and len(uses) > 1:
            products = expand_cross_terms(self.run, role, gradients, *self.find_nonlinear_share(role, step, scalars))
            increments += [Increment(step, (*scalars, *more), x[0], x[1:]) for more, x in products]
        return increments

    def find_nonlinear_share(self, role: str, step: int, scalars: tuple[Scalar, ...]) -> tuple[int, bool]:
        """Returns how large the nonlinear part of an optimizer step is (a step that normalises each entry is a
        nonlinear function of the gradient), and whether it was as large in an earlier step.

        The first result is the size of the gradient divided by its normaliser, at that step so far at which it is
        largest, as an exponent of n packed into an integer: 0 if the gradient is at least as large as epsilon, negative
        if epsilon exceeds it. The second is True if an earlier step has this largest size.

        Args:
            role: the parameter.
            step: number of the step.
            scalars: the factors from ``list_step_scalars``.
        """
        run = [(k, self.list_step_scalars(role, k)) for k in range(step)]
        before = [self.divide_gradient(role, k, x) for k, x in run if x]
        share = max([*before, self.divide_gradient(role, step, scalars)], key=self.algebra.exponent)
        return share, any(self.algebra.exponent(x) == self.algebra.exponent(share) for x in before)

    def divide_gradient(self, role: str, step: int, scalars: tuple[Scalar, ...]) -> int:
        """Returns the size of a tensor's gradient divided by the optimizer's normaliser, as an exponent of n packed
        into an integer: 0 if the normaliser is the size of the gradient, negative if epsilon exceeds it."""
        own = self.raw_gradient_size(role, step)
        size = own.packed if own.certain else self.gradient_size(role, step).packed
        return 0 if size is None else min(0, self.algebra.pack(self.algebra.exponent(size + scalars[-1].size), {}, {}))

    def read_gradient_via(self, signal: str, step: int, via: str) -> Signal:
        """Returns the gradient at a signal in one step, restricted to the path through the statement that computes the
        signal ``via``."""
        return self.run.gradient(signal, step, via=via)


class DecayingSteps(TensorSteps):
    """Optimizer steps that include the decay of initial values by decoupled weight decay.

    Law: W_t = (1 - lr * decay)^t W_0 + updates, where the product lr * decay is Theta(1). So W_t - W_0 contains a
    Theta(1) multiple of W_0. A frozen tensor is not in the optimizer and does not decay.
    """

    def increments(self, role: str, t: int) -> list[Increment]:
        initial, stays = self.run.products.initial[role], role in self.network.frozen
        if not (t and self.optimizer.of(role).decoupled_decay) or initial.is_zero or stays:
            return super().increments(role, t)
        return [*super().increments(role, t), Increment(t - 1, (Scalar("weight decay", 0),), initial, ())]
