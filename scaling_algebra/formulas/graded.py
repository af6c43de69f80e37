"""Sizes of signals as functions of unknown parameters: maxima of linear forms in the exponents b (init std), c
(learning rate) and alpha (multiplier).

A signal is split into grades: a grade contains the monomials with the same powers of the unknowns. Two of them differ
only by a power of the axes, so on one ray the same one is larger for all parameters, and the other can be dropped.
The size of the signal is the maximum over all grades. If it has too many terms, a change that must be O(1) may be
replaced by a new unknown for its size. The number by which an update divides the gradient (as in Adam) is a maximum
itself, and is also represented by a new unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

from scaling_algebra.counting.graded import Bounds, FormAlgebra, GradeSizes, split_grade
from scaling_algebra.counting.kernels import Exhausted
from scaling_algebra.counting.signals import Scalar, Signal
from scaling_algebra.dynamics.quantities import Quantity
from scaling_algebra.dynamics.run import PLAIN, RunContext, name_unknowns
from scaling_algebra.dynamics.trajectory import Trajectory
from scaling_algebra.dynamics.updates import TensorSteps
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.desiderata import Structure
from scaling_algebra.spec.networks.indices import centred_axes, tracked_indices
from scaling_algebra.spec.networks.language import Network
from scaling_algebra.spec.optimizers import OPTIMIZERS, OptimizerSpec

STEPS = 4
"""Number of steps for which the normaliser is an unknown of its own."""


def size_of(signal: str) -> str:
    """Returns the name of the unknown that stands for the size of a signal's change after the first update.

    The unknown is s in size = n^-s. It keeps formulas short where the change itself has too many terms.
    """
    return f"size.{signal}"


def divisor(role: str, step: int) -> str:
    """Returns the name of the unknown that stands for the number by which a step divides the gradient of a tensor.

    The unknown is v in number = n^-v.

    Args:
        role: the tensor.
        step: number of the step, counted from 0.
    """
    return f"v.{role}.{step}"


def form_algebra(
    network: Network, ray: Ray, growing: frozenset[str] = frozenset(), most: int | None = None
) -> FormAlgebra:
    """Makes the object that computes sizes of signals as linear forms in unknown exponents.

    The unknowns are the exponents of the network's parameters, of the numbers by which its steps divide gradients
    (``divisor``), and of the changes of its signals (``size_of``).

    Args:
        network: the network.
        ray: the ray.
        growing: axes whose indices are kept even if they do not grow on the ray.
        most: maximum number of linear forms in one product.
    """
    indices = network.indices
    steps = (divisor(role, step) for role in network.tensors for step in range(STEPS))
    names = (*name_unknowns(network), *steps, *(size_of(x) for x in network.signals))
    kept = "".join(x for x, axis in indices.items() if axis in growing)
    return FormAlgebra(ray, indices, names, kept + tracked_indices(network), most, centred_axes(network))


class _FormSteps(TensorSteps):
    """Computes the updates of tensors in a ``FormTrajectory``, where learning rates and the numbers by which the
    optimizer divides gradients are unknowns.
    """

    def list_gradient_scalars(self, role: str, step: int) -> tuple[Scalar, ...]:
        rates = [Scalar(f"lr of {role}", self.algebra.pack(Fraction(0), {}, {f"c.{role}": -1}))]
        if self.optimizer.of(role).normalises:
            size = self.algebra.pack(Fraction(0), {}, {divisor(role, step): 1})
            rates.append(Scalar(f"1/normaliser of {role} at step {step + 1}", size))
        return tuple(rates)


class FormTrajectory(Trajectory):
    """A training run with unknown exponents of init stds, learning rates and multipliers.

    If the optimizer normalises, the numbers by which it divides gradients are unknowns, too.

    Args:
        network: the network.
        algebra: the algebra that represents sizes as linear forms.
        structure: tensors that start at zero or are shared by all experts.
        sized: signals whose change after the first update is replaced by an unknown for its size, to keep the number of
            terms small.
        optimizer: the optimizer.
        context: further settings of the run, such as the axes that count as growing on any ray.
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
        """Raises Exhausted: a signal divided by the size of another one is a quotient of two maxima of linear forms.

        Such a quotient is not a maximum of linear forms.
        """
        raise Exhausted

    def loss_gradient_ratio(self, loss: str, signal: str, t: int) -> Signal:
        """Raises Exhausted: the ratio of the gradient of a loss to that of the output is a quotient of two maxima.

        A quotient of two maxima of linear forms is not a maximum of linear forms.
        """
        raise Exhausted

    def bounds(self, quantity: Quantity, t: int) -> Bounds:
        """Returns a lower and an upper bound on the exponent of a quantity after t updates.

        Both are maxima of linear forms in the unknown exponents.

        Raises:
            Exhausted: there are too many linear forms for the remaining work budget.
        """
        read = quantity.read(self, t)
        assert isinstance(read, Signal)
        return self.forms.bound_size(read)

    def sizes(self, quantity: Quantity, t: int) -> GradeSizes:
        """Returns lower and upper bounds on the size of a quantity after t updates.

        They are separate for each combination of powers of the unknowns (grade), such as sigma_input^2 lr_readout.

        For an update or a gradient of a tensor this is the size of one entry.

        Law: rms(u v) = rms(u) rms(v) if no index is summed.

        Raises:
            Exhausted: it takes more work than the budget allows.
        """
        role = quantity.tensor
        if not role:
            return self.forms.bound_grades(quantity.read(self, t))
        if quantity.name.startswith("g"):
            return _largest(self._outer(role, factors) for factors in self.gradient_factors(role, t))
        steps = self.steps.increments(role, t)
        return _largest(_times(self._outer(role, x.factors), sum(y.size for y in x.scalars)) for x in steps)

    def change(self, signal: str, t: int) -> Signal:
        if t > 1 and signal in self._sized:
            return self.forms.bound_by_unknown(self.network.signals[signal], size_of(signal))
        return super().change(signal, t)

    def _outer(self, role: str, factors: Sequence[Signal]) -> GradeSizes:
        sizes: GradeSizes = {0: (0, 0)}
        for s in self.products.expand_entries(role, factors):
            sizes = _product(sizes, self.forms.bound_grades(s))
        return sizes


def _product(a: GradeSizes, b: GradeSizes) -> GradeSizes:
    return _largest(
        {g + h: (None if low_a is None or low_b is None else low_a + low_b, high_a + high_b)}
        for g, (low_a, high_a) in a.items()
        for h, (low_b, high_b) in b.items()
    )


def _times(sizes: GradeSizes, packed: int) -> GradeSizes:
    grade, inner = split_grade(packed)
    return {g + grade: (None if low is None else low + inner, high + inner) for g, (low, high) in sizes.items()}


def _largest(several: Iterable[GradeSizes]) -> GradeSizes:
    largest: GradeSizes = {}
    for sizes in several:
        for g, (low, high) in sizes.items():
            least, most = largest.get(g, (None, high))
            largest[g] = max((x for x in (low, least) if x is not None), default=None), max(high, most)
    return largest
