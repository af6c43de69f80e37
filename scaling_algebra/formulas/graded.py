"""Sizes of signals at every parameter point at once: maxima of linear forms in the unknown b, c and alpha.

A signal is split by how often each unknown enters (its grade). All monomials of one grade move together when parameters
change, so they are pruned as safely as at one point, and the rest is the complete max-plus form. If it is too large, a
change that must be O(1) may be replaced by its size, a new unknown. The divisor of a step (Adam's normaliser) is a
maximum itself, and also a new unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

from scaling_algebra.counting.graded import Bounds, FormAlgebra, Sizes, split
from scaling_algebra.counting.kernels import Exhausted
from scaling_algebra.counting.signals import Scalar, Signal
from scaling_algebra.dynamics.quantities import Quantity
from scaling_algebra.dynamics.run import PLAIN, RunContext, unknowns
from scaling_algebra.dynamics.trajectory import Trajectory
from scaling_algebra.dynamics.updates import TensorSteps
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.desiderata import Structure
from scaling_algebra.spec.networks.indices import centred, tracked
from scaling_algebra.spec.networks.language import Network
from scaling_algebra.spec.optimizers import OPTIMIZERS, Trained

STEPS = 4
"""Steps whose divisors are told apart."""


def size_of(signal: str) -> str:
    """The unknown s of a signal: its later changes have the size n^-s."""
    return f"size.{signal}"


def divisor(role: str, step: int) -> str:
    """The unknown v of a tensor: at a step, counted from 0, its gradient is divided by n^-v."""
    return f"v.{role}.{step}"


def form_algebra(
    network: Network,
    ray: Ray,
    growing: frozenset[str] = frozenset(),
    most: int | None = None,
) -> FormAlgebra:
    """The algebra whose unknowns are those of a network, what its steps divide by, and the sizes of its signals.

    Args:
        growing: axes whose indices are kept even where they do not grow on the ray.
        most: forms that a product may have.
    """
    letters = network.letters
    steps = (divisor(role, step) for role in network.tensors for step in range(STEPS))
    names = (*unknowns(network), *steps, *(size_of(x) for x in network.signals))
    kept = "".join(x for x, axis in letters.items() if axis in growing)
    return FormAlgebra(ray, letters, names, kept + tracked(network), most, centred(network))


class _FormSteps(TensorSteps):
    """Steps with unknown learning rates and divisors."""

    def rate(self, role: str, step: int) -> tuple[Scalar, ...]:
        rates = [Scalar(f"lr of {role}", self.algebra.pack(Fraction(0), {}, {f"c.{role}": -1}))]
        if self.optimizer.of(role).normalises:
            size = self.algebra.pack(Fraction(0), {}, {divisor(role, step): 1})
            rates.append(Scalar(f"1/normaliser of {role} at step {step + 1}", size))
        return tuple(rates)


class FormTrajectory(Trajectory):
    """Training with unknown b, c and alpha, and unknown divisors where the optimizer normalises.

    Args:
        sized: signals whose changes after the first update are taken by their size alone.
    """

    stepping = _FormSteps

    def __init__(
        self,
        network: Network,
        algebra: FormAlgebra,
        structure: Structure,
        sized: frozenset[str] = frozenset(),
        optimizer: Trained = OPTIMIZERS["sgd"],
        context: RunContext = PLAIN,
    ) -> None:
        self.forms, self._sized = algebra, sized
        super().__init__(network, algebra, structure.point(network, {}), optimizer, context)

    def relative(self, signal: Signal, source: str, t: int) -> Signal:
        """Raises Exhausted: the quotient of two maxima of forms is none."""
        raise Exhausted

    def weighed(self, loss: str, signal: str, t: int) -> Signal:
        """Raises Exhausted: the quotient of two maxima of forms is none."""
        raise Exhausted

    def bounds(self, quantity: Quantity, t: int) -> Bounds:
        """Forms of the size of a quantity.

        Raises:
            Exhausted: the forms are too many for the work left to the algebra.
        """
        read = quantity.read(self, t)
        assert isinstance(read, Signal)
        return self.forms.bounds(read)

    def sizes(self, quantity: Quantity, t: int) -> Sizes:
        """The size of a quantity, grade by grade: of a tensor's update or gradient the size of an entry.

        Law: rms(u v) = rms(u) rms(v) where no index is summed.

        Raises:
            Exhausted: it takes more work than the rung of the algebra has.
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
            return self.forms.sized(self.network.signals[signal], size_of(signal))
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
    grade, inner = split(packed)
    return {g + grade: (None if low is None else low + inner, high + inner) for g, (low, high) in sizes.items()}


def _largest(several: Iterable[Sizes]) -> Sizes:
    largest: Sizes = {}
    for sizes in several:
        for g, (low, high) in sizes.items():
            least, most = largest.get(g, (None, high))
            largest[g] = max((x for x in (low, least) if x is not None), default=None), max(high, most)
    return largest
