"""Products of signals and tensors in an equation, and the order in which the factors are multiplied.

In ``h = W x`` after two steps, W is W_0 plus two *increments* ``lr g_k x_k``. A product with an increment first
contracts x with x_k (in a backward pass: the gradient with g_k).
Read next: ``run.py`` (which signals there are), ``scaling_algebra/counting/algebra.py`` (the product of two signals).
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
    """The update of a tensor in one optimizer step, as a product ``scalars * gradient * inputs`` with the indices of
    the tensor. A tensor that the network uses several times has one increment for each use.

    Attributes:
        step: number of the step, starting at 0.
        scalars: deterministic factors, such as the learning rate.
        gradient: gradient at the output of the statement that uses the tensor.
        inputs: signals that the tensor multiplies there. Indices that the tensor does not have are summed.
    """

    step: int
    scalars: tuple[Scalar, ...]
    gradient: Signal
    inputs: tuple[Signal, ...]

    @property
    def factors(self) -> tuple[Signal, ...]:
        """The gradient, followed by the inputs: the signals whose product is the update, up to scalars."""
        return (self.gradient, *self.inputs)


class Stepping(Protocol):
    """Protocol for the optimizer steps of a training run (``updates.py``)."""

    def increments(self, role: str, t: int) -> list[Increment]:
        """Returns the updates of a tensor in the first t steps."""


Updates = Callable[[str], Sequence[Increment]]
"""A function that returns the increments of a tensor so far."""


class Products:
    """Multiplies signals and tensors, for one choice of the exponents of init stds and multipliers.

    Attributes:
        initial: maps each parameter to its initial tensor, as a signal.
    """

    def __init__(self, network: Network, algebra: Algebra, point: Point) -> None:
        self.network, self.algebra = network, algebra
        self.initial = dict[str, Signal]()
        for role, tensor in network.tensors.items():
            b = point.b[role]
            if b is None:
                self.initial[role] = algebra.zeros(tensor.indices)
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
            share = Scalar("share K/M of the batch", algebra.pack_powers({"K": 1, "M": -1}))
            self._multipliers[SHARE] = share

    def list_scalars(self, multipliers: Sequence[str]) -> list[Scalar]:
        """Returns the scalar factors for the named multipliers. Only multipliers whose exponent is a free parameter,
        and the share K/M, have one; multipliers that are constant numbers are skipped."""
        return [self._multipliers[m] for m in multipliers if m in self._multipliers]

    def apply_multipliers(self, signal: Signal, multipliers: Sequence[str]) -> Signal:
        """Multiplies a signal by the multipliers with the given names."""
        scalars = self.list_scalars(multipliers)
        return self.algebra.scale_by(signal, *scalars) if scalars else signal

    def multiply_term(
        self, term: Term, modes: Sequence[Mode], above: list[Signal], others: list[Signal], out: str, updates: Updates
    ) -> Signal:
        """Returns the product of tensors and signals in one term of an equation, where each tensor is replaced by its
        initial value or by the sum of its updates, as ``modes`` says.

        An update is a product of a gradient and inputs. In the forward pass the inputs are first multiplied with the
        signal to which the tensor is applied; in the backward pass the gradient is first multiplied with the gradient
        from above. Each of these inner products gets a name that explanations show.

        Args:
            term: the term.
            modes: for each tensor, "init" (the initial tensor) or "update" (the sum of its updates).
            above: the gradient in a backward pass, else [].
            others: the other factors.
            out: indices of the result.
            updates: returns the updates of a tensor so far.
        """
        symbols = [self.network.tensors[x.name].symbol for x in term.tensors]
        acted = " ".join(s.name or "x" for s in (above or others) if s.origin is None or s.origin.rule != "constant")
        back = "^T" if above else ""
        alternatives: list[list[tuple[Factor, Increment | None]]] = []
        for x, mode in zip(term.tensors, modes, strict=True):
            taken: list[Increment | None] = [None] if mode == "init" else list(updates(x.name))
            alternatives.append([(x, step) for step in taken])
        parts = []
        for chosen in product(*alternatives):
            steps = [(x, step) for x, step in chosen if step is not None]
            initial = [self._relabel_initial(x) for x, step in chosen if step is None]
            if not steps:
                whole = self.multiply([*initial, *above, *others], out)
            else:
                whole = self.apply_increments(steps, above, [*initial, *others], out)
                text = ", ".join(f"step {step.step + 1} of d{self.network.tensors[x.name].symbol}" for x, step in steps)
                text = f"({text})^T {acted}" if above else f"{text}, times {acted}"
                whole = whole.replace(name=text)
            parts.append(whole)
        whole = self.algebra.add(parts) if parts else self.algebra.zeros(out)
        pairs = zip(symbols, modes, strict=True)
        text = " ".join(f"d{s}{back}" if mode == "update" else f"{s}_0{back}" for s, mode in pairs)
        name = f"{text} {acted}".strip()
        return self.apply_multipliers(whole, term.multipliers).replace(name=name)

    def apply_increments(
        self, steps: list[tuple[Factor, Increment]], above: list[Signal], others: list[Signal], out: str
    ) -> Signal:
        """Returns the product of updates of several tensors with other signals.

        Args:
            steps: the tensors as they appear in the equation, each with one update.
            above: the gradient in a backward pass, else [].
            others: the other factors.
            out: indices of the result.
        """
        gradients: list[Signal] = []
        inputs: list[Signal] = []
        scalars: list[Scalar] = []
        for x, step in steps:
            there = (*above, *others, *gradients, *inputs)
            gradient, acted = self._relabel_increment(x, step, "".join(s.indices for s in there) + out)
            gradients.append(gradient)
            inputs += acted
            scalars += step.scalars
        meeting, rest = ([*gradients, *above], [*inputs, *others]) if above else ([*inputs, *others], gradients)
        kept = "".join(s.indices for s in rest) + self.algebra.drop_fixed(out)
        shared = "".join(dict.fromkeys(c for s in meeting for c in s.indices if c in kept))
        tag = f"{'backward' if above else 'forward'} {' '.join(x.name for x, _ in steps)}"
        inner = self.multiply(meeting, shared, tag)
        return self.algebra.scale_by(self.multiply([inner, *rest], out), *scalars)

    def _relabel_increment(self, x: Factor, step: Increment, taken: str) -> tuple[Signal, list[Signal]]:
        """Returns the gradient and the inputs of an update, with their indices renamed to those that the tensor has in
        an equation.

        Args:
            x: the tensor in the equation.
            step: the update.
            taken: indices that are in use already, so that summed indices must not get their names.
        """
        own, inner = self.network.tensors[x.name].indices, "".join(s.indices for s in step.factors)
        renamed = rename_apart(self.network, own, x.indices, inner, taken)
        relabel = [
            self.algebra.rename_indices(s, s.indices, "".join(renamed[c] for c in s.indices)) for s in step.factors
        ]
        return relabel[0], relabel[1:]

    def _relabel_initial(self, x: Factor) -> Signal:
        """Returns an initial tensor with its indices renamed to those that it has in an equation."""
        return self.algebra.rename_indices(self.initial[x.name], self.network.tensors[x.name].indices, x.indices)

    def multiply(self, operands: Sequence[Signal], out: str, tag: str = "") -> Signal:
        """Returns a product of signals. Factors that are 1 are skipped; if only such a factor has an index, the result
        is constant along this index.

        Args:
            operands: the factors.
            out: indices of the result; all others are summed.
            tag: name of the product for explanations.
        """
        kept = [s for s in operands if s.origin is None or s.origin.rule != "constant" or set(s.terms.values()) != {0}]
        there = {c for s in kept for c in s.indices}
        wanted = dict.fromkeys("".join(s.indices for s in operands) + self.algebra.drop_fixed(out))
        missing = "".join(c for c in wanted if c not in there)
        return self.algebra.contract_all(
            [*kept, *([self.algebra.constant(missing)] if missing or not kept else [])], out, tag
        )

    def expand_entries(self, role: str, factors: Sequence[Signal]) -> Sequence[Signal]:
        """Returns signals whose sizes, multiplied, give the size of an entry of a product: the product of
        ``factors``, with the indices of the tensor ``role``.

        These are the factors themselves if each entry is a product of one entry of each factor: rms(u_i v_j) = rms(u)
        rms(v). If an index is summed, or two indices of a factor have the same axis, the product is computed, and
        returned alone.
        """
        indices = self.algebra.drop_fixed(self.network.tensors[role].indices)
        if any(c not in indices for s in factors for c in s.indices) or any(self._repeats_axis(s) for s in factors):
            return [self.multiply(factors, indices)]
        return factors

    def measure_entry(self, role: str, factors: Sequence[Signal], scalars: Sequence[Scalar] = ()) -> EntrySize:
        """Returns the root-mean-square of the entries of a product of signals and scalars that has the indices of a
        tensor.

        Args:
            role: the parameter.
            factors: the signals; the product is not formed if no index is summed.
            scalars: deterministic factors.
        """
        factors = self.expand_entries(role, factors)
        certain = all(map(self.algebra.is_certified, factors)) and all(x.certain for x in scalars)
        sizes = [*map(self.algebra.rms, factors), *(x.size for x in scalars)]
        return EntrySize(None if None in sizes else sum(x for x in sizes if x is not None), certain)

    def _repeats_axis(self, s: Signal) -> bool:
        """Whether two indices of a signal run along the same axis; then entries at which both are equal (the
        diagonal) may be larger than the others.
        """
        axes = [self.network.indices[c] for c in s.indices]
        return len(set(axes)) < len(axes)
