"""Sizes of signals at every parameter point at once: maxima of linear forms in the unknown b, c and alpha.

A signal is split by the power of each unknown (its grade). All monomials of one grade scale alike when parameters
change, so they can be pruned as safely as at one point; the union over grades is the complete max-plus form. If it is
too large, a change that must be O(1) may be replaced by its size, a new unknown. The divisor of a step (Adam's
normaliser) is a maximum itself, and also a new unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

from scaling_algebra.counting.graded import Bounds, FormAlgebra, Sizes, split_grade
from scaling_algebra.counting.kernels import Exhausted
from scaling_algebra.counting.signals import Scalar, Signal
from scaling_algebra.dynamics.quantities import Quantity
from scaling_algebra.dynamics.run import PLAIN, RunContext, unknowns
from scaling_algebra.dynamics.trajectory import Trajectory
from scaling_algebra.dynamics.updates import TensorSteps
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.desiderata import Structure
from scaling_algebra.spec.networks.indices import centred_axes, tracked_indices
from scaling_algebra.spec.networks.language import Network
from scaling_algebra.spec.optimizers import OPTIMIZERS, OptimizerSpec

STEPS = 4
"""Number of steps with a normaliser symbol of their own."""


def size_of(signal: str) -> str:
    """Returns the name of the unknown s of a signal whose later changes have the size n^-s."""
    return f"size.{signal}"


def divisor(role: str, step: int) -> str:
    """Returns the name of the unknown v of a tensor whose gradient is divided by n^-v at a step, counted from 0."""
    return f"v.{role}.{step}"


def form_algebra(
    network: Network,
    ray: Ray,
    growing: frozenset[str] = frozenset(),
    most: int | None = None,
) -> FormAlgebra:
    """Makes the algebra whose unknowns are those of a network, its divisors, and the sizes of its signals.

    Args:
        network: the network.
        ray: the ray.
        growing: axes whose indices are kept even if they do not grow on the ray.
        most: maximum number of forms of a product.
    """
    indices = network.indices
    steps = (divisor(role, step) for role in network.tensors for step in range(STEPS))
    names = (*unknowns(network), *steps, *(size_of(x) for x in network.signals))
    kept = "".join(x for x, axis in indices.items() if axis in growing)
    return FormAlgebra(ray, indices, names, kept + tracked_indices(network), most, centred_axes(network))


class _FormSteps(TensorSteps):
    """Steps with unknown learning rates and divisors."""

    def rate(self, role: str, step: int) -> tuple[Scalar, ...]:
        rates = [Scalar(f"lr of {role}", self.algebra.pack(Fraction(0), {}, {f"c.{role}": -1}))]
        if self.optimizer.of(role).normalises:
            size = self.algebra.pack(Fraction(0), {}, {divisor(role, step): 1})
            rates.append(Scalar(f"1/normaliser of {role} at step {step + 1}", size))
        return tuple(rates)


class FormTrajectory(Trajectory):
    """Training with unknown b, c and alpha, and unknown divisors if the optimizer normalises.

    Args:
        network: the network.
        algebra: the algebra of forms.
        structure: the discrete choices.
        sized: signals whose changes after the first update are represented by their size alone.
        optimizer: the optimizer.
        context: options of the run.
    """

    stepping = _FormSteps

    def __init__(
        self,
        network: Network,
        algebra: FormAlgebra,
        structure: Structure,
        sized: frozenset[str] = frozenset(),
        optimizer: OptimizerSpec = OPTIMIZERS["sgd"],
        context: RunContext = PLAIN,
    ) -> None:
        self.forms, self._sized = algebra, sized
        super().__init__(network, algebra, structure.point(network, {}), optimizer, context)

    def relative(self, signal: Signal, source: str, t: int) -> Signal:
        """Raises Exhausted, since the quotient of two maxima of forms is no maximum of forms."""
        raise Exhausted

    def loss_gradient_ratio(self, loss: str, signal: str, t: int) -> Signal:
        """Raises Exhausted, since the quotient of two maxima of forms is no maximum of forms."""
        raise Exhausted

    def bounds(self, quantity: Quantity, t: int) -> Bounds:
        """Returns lower and upper bounds on a quantity as forms.

        Raises:
            Exhausted: there are too many forms for the remaining budget.
        """
        read = quantity.read(self, t)
        assert isinstance(read, Signal)
        return self.forms.bounds(read)

    def sizes(self, quantity: Quantity, t: int) -> Sizes:
        """Returns the size of a quantity by grade; for an update or a gradient of a tensor the size of an entry.

        Law: rms(u v) = rms(u) rms(v) if no index is summed.

        Raises:
            Exhausted: it takes more work than the budget allows.
        """
        role = quantity.tensor
        if not role:
            return self.forms.sizes(quantity.read(self, t))
        if quantity.name.startswith("g"):
            return _largest(self._outer(role, factors) for factors in self.factors(role, t))
        steps = self.steps.of(role, t)
        return _largest(_times(self._outer(role, x.factors), sum(y.size for y in x.scalars)) for x in steps)

    def change(self, signal: str, t: int) -> Signal:
        if t > 1 and signal in self._sized:
            return self.forms.bound_by_unknown(self.network.signals[signal], size_of(signal))
        return super().change(signal, t)

    def _outer(self, role: str, factors: Sequence[Signal]) -> Sizes:
        sizes: Sizes = {0: (0, 0)}
        for s in self.products.entries(role, factors):
            sizes = _product(sizes, self.forms.sizes(s))
        return sizes


def _product(a: Sizes, b: Sizes) -> Sizes:
    return _largest(
        {g + h: (None if low_a is None or low_b is None else low_a + low_b, high_a + high_b)}
        for g, (low_a, high_a) in a.items()
        for h, (low_b, high_b) in b.items()
    )


def _times(sizes: Sizes, packed: int) -> Sizes:
    grade, inner = split_grade(packed)
    return {g + grade: (None if low is None else low + inner, high + inner) for g, (low, high) in sizes.items()}


def _largest(several: Iterable[Sizes]) -> Sizes:
    largest: Sizes = {}
    for sizes in several:
        for g, (low, high) in sizes.items():
            least, most = largest.get(g, (None, high))
            largest[g] = max((x for x in (low, least) if x is not None), default=None), max(high, most)
    return largest
