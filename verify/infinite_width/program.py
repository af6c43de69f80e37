"""Computes the training of a network of infinite width from its equations: forward pass, gradients and updates.

Every growing axis is as large as n. A quantity is ``n^power`` times numbers, with an upper bound on the power of the
neglected terms: a signal has a limit if its power is 0 and the bound is below it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from math import prod
from typing import Any

import numpy as np
import torch
from torch.nn import Parameter

from scaling_algebra.errors import UsageError
from scaling_algebra.solver.derivation import Derivation
from scaling_algebra.spec.networks.ancestors import find_tensors
from scaling_algebra.spec.networks.language import DATA, Factor, Function, Network, Product, Sum, Tensor
from scaling_algebra.spec.optimizers import Optimizer
from scaling_algebra.verify.measuring.sizes import FIXED
from scaling_algebra.verify.networks.replicas import ReplicaDraw, sample_input
from scaling_algebra.verify.networks.scales import FIXED_SIZES
from scaling_algebra.verify.networks.steppers import build_group, build_optimizer, find_stepper

from .contraction import HALF, NONE, Contractions, Leading, add_leading, get_limits, rename_indices, take_limit
from .functions import evaluate, evaluate_numbers, evaluate_slope
from .fusing import fuse_products
from .stepping import Stepped
from .vectors import Diverges, GaussianMatrix, NotCovered, Particles, Points, Space, Values

SAMPLES = 2**16
"""Number of samples of the Gaussians of one expert."""
POINTS, PAIRS = (2**14, 2**11), 2**25
"""Number of points along an index, and its maximum if steps are normalised; maximum number of pairs of points of all
matrices in that case."""

OPTIONS = "weight_decay", "dampening", "nesterov", "maximize"
"""Options of optimizers that the limit does not support: decay for all, the others for SGD only."""
INSTEAD = "scalecalc verify trains it at finite width"
"""Advice in messages if a limit cannot be computed."""
LARGE = 1e12
"""A signal above this diverges: inputs have unit length and targets are of size one."""


@dataclass
class LimitTensor:
    """A tensor of the infinitely wide network in training.

    A tensor with at most one growing index has a value, ``current``. A matrix with two is stored as the initial
    Gaussian matrix and a list of rank-one updates.

    Attributes:
        tensor: the tensor of the network.
        `indices`: its indices.
        rate: learning rate as (number, power of n); None if the tensor is not trained.
        grow: the growing indices; the expert index is omitted if all experts start with the same values.
        start: initial value; None for a matrix.
        current: current value; None for a matrix.
        momentum: momentum of the optimizer; None for a matrix, or before the first step.
        matrices: initial matrices, by the values of the indices that do not grow; empty if it is no matrix.
        extra: power of n of the entries of a matrix, relative to n^(-1/2).
        updates: for each gradient of a matrix so far, the factors of this rank-one matrix.
        shares: coefficient of each of ``updates`` in the current matrix, without the power of n of the rate.
        buffer: coefficient of each of ``updates`` in the momentum of the matrix.
        decay: factor by which the optimizer multiplies its momentum in every step; 0 without momentum.
        stepped: sum of all steps, for an optimizer that normalises entries, such as Adam; otherwise None.
    """

    tensor: Tensor
    indices: str
    rate: tuple[float, Fraction] | None
    grow: str = ""
    start: Leading | None = None
    current: Leading | None = None
    momentum: Leading | None = None
    matrices: dict[tuple[int, ...], GaussianMatrix] = field(default_factory=dict)
    extra: Fraction = Fraction(0)
    updates: list[tuple[Leading, ...]] = field(default_factory=list)
    shares: Values = field(default_factory=lambda: np.zeros(0))
    buffer: Values = field(default_factory=lambda: np.zeros(0))
    decay: float = 0.0
    stepped: Stepped | None = None


@dataclass(frozen=True)
class LimitState:
    """The signals for one input, and the gradients of the output at signals, after some updates, by name.

    A signal with growing indices is given by the rms of its entries along them.
    """

    signals: Mapping[str, Values]
    gradients: Mapping[str, Values]


class Limit:
    """A network of infinite width, which can be trained.

    Args:
        derivation: network, ray, optimizer, and the powers of n of init stds and learning rates.
        inputs: (samples, *dimensions of the data).
        lr: the learning rate of every tensor, without its power of n; all other constants are 1.
        seed: seed of the tensors that do not grow; the limit depends on their values.
        draw: seed of the samples or points at which random variables are evaluated.
        points: whether expectations are means over points (see ``Points``) in any case; by default only if the
            optimizer normalises its steps, as Adam does.

    Attributes:
        made: names of the signals that statements (equations of the network) compute.
        constants: values of the signals that no statement computes, other than the data.

    Raises:
        UsageError: an axis grows at another rate than the width, or an optimizer or a statement has no rule here.
    """

    def __init__(
        self, derivation: Derivation, inputs: Values, lr: float, seed: int = 0, draw: int = 0, points: bool = False
    ) -> None:
        self.network, scaling = derivation.network, derivation.scaling
        ray = derivation.ray
        indices = self.network.indices
        self.growing = frozenset(x for x, axis in indices.items() if axis not in FIXED_SIZES and ray[axis])
        self.network = fuse_products(self.network, self.growing)
        axes = {self.network.axes[x] for x in self.growing if x in self.network.axes}
        if "L" in axes:
            raise UsageError(
                "L grows on this ray: the limit of many layers is not computed; give a ray such as N=1,L=0"
            )
        if len({ray[axis] for axis in axes}) > 1:
            raise UsageError(
                f"axes grow at different rates ({ray}); give a ray on which all grow alike, such as N=1,M=1"
            )
        self.normalised = [rule for rule in derivation.optimizer.rules if rule.torch != "SGD"]
        self.points = bool(points or self.normalised)
        self._check_steps(derivation.optimizer.rules, axes)
        self.rate = ray[min(axes)] if axes else Fraction(1)
        self.ray, self.inputs, self.draw = ray, inputs, draw
        fixed = {x: FIXED_SIZES.get(axis, FIXED) for x, axis in indices.items() if x not in self.growing}
        spaces = self._spaces(axes, frozenset(scaling.tied), fixed)
        self.products = Contractions(indices, self.growing, fixed, spaces)
        self.multipliers = {m: self._number(1 / p) for m, p in scaling.multipliers.items()}
        self._check(frozenset(scaling.tied))
        self.made = [s.out for s in self.network.statements]
        self.constants = {x: _build_constant(self.network, x, fixed) for x in self.network.constants}
        drawn, self.weights = np.random.default_rng(seed), dict[str, LimitTensor]()
        for role, tensor in self.network.tensors.items():
            powers = scaling.tensors[role]
            rate = None if powers.lr is None else self._number(powers.lr)
            rate = None if rate is None else (lr * rate[0], rate[1])
            std = (0.0, Fraction(0)) if powers.init_std is None else self._number(powers.init_std)
            alike = tensor.experts if role in scaling.tied else ""
            self.weights[role] = weight = self._draw_weight(tensor, rate, std, alike, drawn)
            rule = derivation.optimizer.of(role)
            weight.decay = float(rule.options.get("momentum", 0.0))
            if rate is not None and rule in self.normalised:
                eps = None if powers.eps is None else self._number(powers.eps)
                weight.stepped = Stepped.of(rule, self.products.zero(tensor.indices), rate, eps)

    def _spaces(
        self, axes: Iterable[str], tied: frozenset[str], fixed: Mapping[str, int]
    ) -> dict[str, Space | Particles]:
        """Returns, for every growing axis, what represents the random entries along it.

        If integration is at points, these are points for all axes. Otherwise they are samples along experts, and
        exact combinations of Gaussians (``Space``) along other axes.

        Args:
            axes: the growing axes.
            tied: the tensors whose initial values all experts share.
            fixed: sizes of the indices that do not grow.
        """
        if self.points:
            return {axis: Points(self._points(fixed), self.draw, axis) for axis in sorted(axes)}
        indices, sources = self.network.indices, list[str]()
        for role, tensor in self.network.tensors.items():
            own = set(tensor.indices) - (set(tensor.experts) if role in tied else set())
            sources += [tensor.symbol] if any(indices[x] == "M" for x in own) else []
        return {axis: Particles(sources, SAMPLES, draw=self.draw) if axis == "M" else Space() for axis in sorted(axes)}

    @property
    def sampled(self) -> bool:
        """Whether some expectations are estimated as means over samples or points, rather than computed exactly."""
        return any(isinstance(space, Particles) for space in self.products.spaces.values())

    def _points(self, fixed: Mapping[str, int]) -> int:
        """Returns the number of points that represent a growing index.

        With an optimizer that normalises entries, every matrix needs a value for each pair of points, so the number is
        limited such that these fit into memory. ``fixed`` has the sizes of the other indices.
        """
        if not self.normalised:
            return POINTS[0]
        matrices = [t for t in self.network.tensors.values() if len(self.growing & set(t.indices)) == 2]
        pairs = sum(prod(fixed.get(x, 1) for x in t.indices) for t in matrices)
        return min(POINTS[1], 2 ** int(np.log2(PAIRS / max(1, pairs)) / 2))

    def _check_steps(self, rules: Iterable[Optimizer], axes: Iterable[str]) -> None:
        """Checks that the limit supports the optimizers of all tensors.

        Raises:
            UsageError: the limit does not support the optimizer of some tensor.
        """
        scalars = [x for x, own in self.network.signals.items() if x != DATA and not set(own) & self.growing]
        for rule in rules:
            find_stepper(rule)  # raises if there is no such class
        for rule in self.normalised:
            if (
                rule.normalises != "entry"
                or rule.untrained
                or rule.acts_on_matrices
                or rule.relative
                or rule.decoupled_decay
            ):
                raise UsageError(
                    f"the optimizer is {rule.name}: the limit is computed of steps of entries without weight decay; "
                    "give sgd, momentum, adam, rmsprop or signsgd"
                )
            if rule.is_sign and len(scalars) > 1:
                raise UsageError(
                    f"{rule.name} without an epsilon normalises the noise of the gradient at {scalars[0]}: no limit is "
                    "computed; give adam or rmsprop with --epsilon derived"
                )
        for rule in rules:
            numbers = build_optimizer([build_group(rule, Parameter(torch.zeros(1)), 1.0, 1.0, 0.0)]).param_groups[0]
            for option in OPTIONS if rule not in self.normalised else OPTIONS[:1]:
                if value := numbers.get(option):
                    has, none = ("true", "false") if value is True else (value, 0)
                    raise UsageError(
                        f"{rule.name} steps with {option} = {has}, which the limit does not support; set {option} to "
                        f"{none} in its options"
                    )
        if self.normalised and "M" in axes:
            raise UsageError(
                "the number of experts grows, and for this the limit is computed only with sgd or momentum; choose one "
                "of them, or give --regime I"
            )

    def _number(self, power: Any) -> tuple[float, Fraction]:
        """Returns a product of powers of axes as (number, power of n); the number comes from axes that do not
        grow.
        """
        fixed = {axis: 1 if self.ray[axis] else FIXED for axis, _ in power.terms}
        return float(power.at(fixed)), power.on(self.ray) / self.rate

    def _check(self, tied: frozenset[str]) -> None:
        for s in self.network.statements:
            grow = [x for x in self.network.signals[s.out] if x in self.growing]
            if len(grow) > 1 and (self.points or not (len(grow) == 2 and any(map(self.products.is_sampled, grow)))):
                raise UsageError(f"the signal {s.out} has two indices that grow: its limit is not computed; {INSTEAD}")
        for role, tensor in self.network.tensors.items():
            if len(self.growing & set(tensor.indices)) > 2 + (role in tied):
                alike = "where experts start alike (--parameterization mssp) it is"
                mend = alike if tensor.experts in self.growing else INSTEAD
                raise UsageError(
                    f"the tensor {tensor.symbol} has three indices that grow: its limit is not computed; {mend}"
                )
        for s in self.network.functions:
            along = s.over in self.growing
            if len(self.growing & set(self.network.signals[s.out])) > 1:
                raise UsageError(f"{s.name} at {s.out} has two indices that grow: its limit is not computed; {INSTEAD}")
            chooses = s.kind.selects and self.growing & set(self.network.signals[s.out])
            known = s.kind.kind in ("gate", "entrywise", "softmax") or (s.kind.kind == "norm" and along)
            if not known or chooses or s.kind.centres:
                raise UsageError(f"the limit has no rule for {s.name} at {s.out}; {INSTEAD}")
            if s.kind.kind == "softmax" and along and not self.products.is_sampled(s.over):
                raise UsageError(
                    f"the softmax at {s.out} goes along an index that grows: its limit is not computed; {INSTEAD}"
                )

    def _draw_weight(
        self, tensor: Tensor, rate: Any, std: tuple[float, Fraction], alike: str, drawn: np.random.Generator
    ) -> LimitTensor:
        indices, grow = tensor.indices, "".join(x for x in tensor.indices if x in self.growing and x != alike)
        fixed = "".join(x for x in indices if x not in self.growing)
        shape = [self.products.sizes[x] for x in fixed]
        weight, (size, power) = LimitTensor(tensor, indices, rate, grow), std
        power = power if size else NONE
        if len(grow) < 2:
            once = [1 if x == alike else n for x, n in zip(fixed, shape, strict=True)]
            if grow:
                space, count = self.products.space(grow), prod(once)
                values = space.gaussians(count, tensor.symbol)
                values = values.reshape(*once, -1)
                values = np.broadcast_to(values, (*shape, values.shape[-1]))
            else:
                values = np.broadcast_to(drawn.standard_normal(once), shape)
            weight.start = weight.current = Leading(fixed, grow, size * values, power)
        elif size:
            spaces = (self.products.space(grow[0]), self.products.space(grow[1]))
            weight.extra = power + HALF
            for index in np.ndindex(*shape):
                of = tuple(0 if x == alike else k for x, k in zip(fixed, index, strict=True))
                weight.matrices[index] = (
                    weight.matrices[of] if of in weight.matrices else GaussianMatrix(size, spaces, tensor.symbol)
                )
        return weight

    def _through(self, role: str, indices: str, operands: Sequence[Leading], out: str, where: str) -> Leading:
        """Multiplies signals with the current value of a tensor and sums over indices, as a statement does.

        Args:
            role: the tensor.
            indices: the indices of the tensor in the statement.
            operands: the signals.
            out: indices of the result.
            where: name of the statement in messages.
        """
        weight = self.weights[role]
        names = dict(zip(weight.indices, indices, strict=True))
        if weight.current is not None:
            return self.products.contract([weight.current.rename_indices(names), *operands], out, where)
        parts = []
        if weight.matrices:
            parts.append(self._matrix(weight, names, operands, out, where))
        if weight.stepped:
            parts.append(self.products.contract([weight.stepped.change.rename_indices(names), *operands], out, where))
        for k, factors in enumerate(weight.updates):
            if weight.shares[k] and weight.rate is not None:
                spare = {x: chr(0x2100 + i) for i, x in enumerate(_find_inside(factors, weight.indices))}
                self.products.sizes.update({new: self.products.sizes[old] for old, new in spare.items()})
                taken = [q.rename_indices({**spare, **names}) for q in factors]
                parts.append(
                    self.products.contract([*taken, *operands], out, where).times(weight.shares[k], weight.rate[1])
                )
        return add_leading(parts) if parts else self.products.zero(out)

    def _matrix(
        self, weight: LimitTensor, names: Mapping[str, str], operands: Sequence[Leading], out: str, where: str
    ) -> Leading:
        """Multiplies signals with the initial value of a matrix, as an expectation over its random entries.

        Args:
            weight: the matrix.
            names: for each index of the matrix, its name in the statement.
            operands: the signals. Growing indices that connect them with the matrix's input are summed first.
            out: indices of the result.
            where: name of the statement in messages.
        """
        row, column = (names[x] for x in weight.grow)
        sides = {x: {q.over for q in operands if x in q.over} for x in (column, row)}
        transposed = not sides[column] or (sides[column] != {column} and sides[row] == {row})
        source, target = (row, column) if transposed else (column, row)
        inner = {source}
        while more := {x for q in operands if inner & set(q.over) for x in q.over} - inner - set(out):
            inner |= more
        taken, others = [q for q in operands if inner & set(q.over)], [q for q in operands if not inner & set(q.over)]
        if not any(source in q.over for q in taken):
            raise NotCovered(f"{where} reads a matrix that is not applied to a signal, which is not supported")
        fixed = "".join(names[k] for k in weight.indices if names[k] not in self.growing)
        elsewhere = {*out, *fixed, *(x for q in others for x in q.indices)}
        indices = "".join(dict.fromkeys(x for q in taken for x in q.indices if x in elsewhere))
        left = "".join(dict.fromkeys(x for q in taken for x in q.over if x in out))
        x = self.products.contract(taken, indices + left.replace(source, "") + source, where)
        if x.over != source:
            raise NotCovered(
                f"{where} multiplies a matrix with a signal that has two growing indices, which is not supported"
            )
        return self.products.contract([self._image(weight, fixed, x, target, transposed), *others], out, where)

    def _image(self, weight: LimitTensor, fixed: str, x: Leading, target: str, transposed: bool) -> Leading:
        indices = "".join(dict.fromkeys(fixed + x.indices))
        shape, images = [self.products.sizes[k] for k in indices], []
        for index in np.ndindex(*shape):
            at = dict(zip(indices, index, strict=True))
            matrix = weight.matrices[tuple(at[k] for k in fixed)]
            images.append(matrix.times(x.values[tuple(at[k] for k in x.indices)], transposed))
        space = self.products.space(target)
        values = np.stack([space.pad(y) for y in images]).reshape(*shape, -1)
        power = NONE if x.power == NONE else x.power + weight.extra
        return Leading(indices, target, values, power, max(x.size - HALF, x.rest) + weight.extra)

    # passes ---------------------------------------------------------------------------------------------------------

    def forward(self, data: Values) -> dict[str, Leading]:
        """Computes every signal of one sample.

        Raises:
            NotCovered: a signal has no limit that can be computed here.
            Diverges: a signal has an entry above ``LARGE``.
        """
        signals = {DATA: Leading(self.network.signals[DATA], "", data), **self.constants}
        for s in self.network.statements:
            indices = self.network.signals[s.out]
            if isinstance(s, Product):
                operands = [rename_indices(signals[f.name], self.network.signals[f.name], f) for f in s.factors]
                signals[s.out] = self._product(s, operands, indices)
            elif isinstance(s, Sum):
                terms = [rename_indices(signals[f.name], self.network.signals[f.name], f) for f in s.terms]
                signals[s.out] = add_leading([self.products.contract([q], indices, s.out) for q in terms])
            else:
                assert s.source is not None
                q = rename_indices(signals[s.source.name], self.network.signals[s.source.name], s.source)
                signals[s.out] = _apply_function(self.products, s, self.products.contract([q], indices, s.out))
            _check_limit(s.out, signals[s.out])
        return signals

    def _product(self, s: Product, operands: Sequence[Leading], indices: str) -> Leading:
        if s.tensor:
            q = self._through(s.tensor.name, s.tensor.indices, operands, indices, s.out)
        else:
            q = self.products.contract(operands, indices, s.out)
        for m in s.multipliers:
            q = q.times(*self.multipliers.get(m, (1.0, Fraction(0))))
        return q

    def backward(self, signals: Mapping[str, Leading]) -> tuple[dict[str, Leading], list[tuple[str, Any]]]:
        """Computes the gradients of the output with respect to every signal and every tensor.

        Returns:
            The gradients at signals by name, and pairs (name of a tensor, gradient). The gradient of a matrix with two
            growing indices is the tuple of the factors of a rank-one matrix.
        """
        found = {self.network.output: [Leading("", "", np.ones(()))]}
        gradients, tensors = dict[str, Leading](), list[tuple[str, Any]]()
        for s in reversed(self.network.statements):
            if s.out not in found:
                continue
            indices = self.network.signals[s.out]
            above = gradients[s.out] = add_leading(found[s.out])
            inputs = [(f, rename_indices(signals[f.name], self.network.signals[f.name], f)) for f in s.inputs]
            for k, (f, q) in enumerate(inputs):
                if f.name == DATA or not find_tensors(self.network, f.name):
                    continue
                if isinstance(s, Product):
                    operands = [above, *(x for j, (_, x) in enumerate(inputs) if j != k)]
                    pulled = self._product(s, operands, f.indices)
                elif isinstance(s, Sum):
                    pulled = self.products.contract([above], f.indices, s.out)
                else:
                    pulled = self.products.contract(
                        [_pull_back(self.products, s, self.products.contract([q], indices, s.out), above)],
                        f.indices,
                        "",
                    )
                own = pulled.rename_indices(dict(zip(f.indices, self.network.signals[f.name], strict=True)))
                found.setdefault(f.name, []).append(own)
            if isinstance(s, Product) and s.tensor and self.weights[s.tensor.name].rate is not None:
                scaled = above
                for m in s.multipliers:
                    scaled = scaled.times(*self.multipliers.get(m, (1.0, Fraction(0))))
                factors = [scaled, *(q for _, q in inputs)]
                tensors.append((s.tensor.name, self._at_tensor(s.tensor, factors, s.out)))
        return gradients, tensors

    def _at_tensor(self, use: Factor, factors: Sequence[Leading], where: str) -> Any:
        weight = self.weights[use.name]
        names = dict(zip(use.indices, weight.indices, strict=True))
        if weight.current is not None:
            return self.products.contract(factors, use.indices, where).rename_indices(names)
        inside = _find_inside(factors, use.indices)
        spare = {x: chr(0x2200 + i) for i, x in enumerate(inside)}
        self.products.sizes.update({new: self.products.sizes[old] for old, new in spare.items()})
        return tuple(q.rename_indices({**spare, **names}) for q in factors)

    # training -------------------------------------------------------------------------------------------------------

    def train(self, steps: int, targets: Values | None) -> Iterator[tuple[LimitState, ...]]:
        """Trains the network, and yields the signals and gradients of all samples after 0, 1, ... updates.

        Args:
            steps: number of updates.
            targets: targets (samples,) of the loss 1/2 (f - y)^2, averaged over samples; None for the loss f.

        Raises:
            NotCovered: the limit cannot be computed after the states that were yielded.
        """
        for step in range(steps + 1):
            states, slopes, gradients = list[LimitState](), list[float](), list[Any]()
            for data in self.inputs:
                signals = self.forward(data)
                grads, tensors = self.backward(signals)
                states.append(self._state(signals, grads))
                gradients.append(tensors)
                f = float(get_limits(signals[self.network.output]))
                slopes.append(1.0 if targets is None else f - targets[len(slopes)])
            yield tuple(states)
            if step < steps:
                self._step([(x / len(slopes), tensors) for x, tensors in zip(slopes, gradients, strict=True)])

    def _state(self, signals: Mapping[str, Leading], gradients: Mapping[str, Leading]) -> LimitState:
        scalars = {name: get_limits(q) if not (q := signals[name]).over else self._rms(q) for name in self.made}
        slopes = {name: get_limits(q) for name, q in gradients.items() if not q.over and name != self.network.output}
        return LimitState(scalars, slopes)

    def _rms(self, q: Leading) -> Values:
        return self.products.lengths(q) if q.power == 0 else np.zeros(q.values.shape[: len(q.indices)])

    def _step(self, samples: Sequence[tuple[float, list[tuple[str, Any]]]]) -> None:
        for weight in self.weights.values():
            weight.buffer = weight.decay * weight.buffer
            if weight.momentum is not None:
                weight.momentum = weight.momentum.times(weight.decay)
        found: dict[str, Leading] = {}  # sums over samples; each one is as large as all pairs of points
        for slope, tensors in samples:
            for role, gradient in tensors:
                weight = self.weights[role]
                if weight.stepped:
                    factors = gradient if weight.current is None else [gradient]
                    whole = self.products.contract(factors, weight.indices, role).times(slope)
                    found[role] = add_leading([found[role], whole]) if role in found else whole
                elif weight.current is None:
                    weight.updates.append(gradient)
                    weight.shares, weight.buffer = np.append(weight.shares, 0.0), np.append(weight.buffer, slope)
                elif slope:
                    before = [weight.momentum] if weight.momentum else []
                    weight.momentum = add_leading([*before, gradient.times(slope)])
        for role, weight in self.weights.items():
            if weight.rate is None:
                continue
            rate, power = weight.rate
            if weight.stepped and role in found:
                weight.stepped.step(found[role], weight.tensor.symbol)
                if weight.start is not None:
                    weight.current = add_leading([weight.start, weight.stepped.change])
            weight.shares = weight.shares - rate * weight.buffer
            if weight.current is not None and weight.momentum is not None:
                weight.current = add_leading([weight.current, weight.momentum.times(-rate, power)])


def _find_inside(factors: Iterable[Leading], indices: str) -> str:
    return "".join(dict.fromkeys(x for q in factors for x in q.indices if x not in indices))


def _build_constant(network: Network, name: str, sizes: Mapping[str, int]) -> Leading:
    """Returns the value of a constant (an input that is not data), the same as in training at finite width.

    Args:
        network: the network.
        name: the constant.
        sizes: sizes of the indices that do not grow.

    Raises:
        UsageError: the constant has a growing index.
    """
    indices = network.signals[name]
    if grow := set(indices) - set(sizes):
        raise UsageError(
            f"the constant {name} has the index {min(grow)}, which grows: its limit is not computed; {INSTEAD}"
        )
    return Leading(indices, "", sample_input(network, sizes, ReplicaDraw({}, [0], [0]), name).numpy())


def _check_limit(name: str, q: Leading) -> None:
    if q.power > 0:
        raise NotCovered(f"{name} grows as n^{q.power} and has no limit")
    if q.rest >= 0:
        raise NotCovered(f"{name} is a random sum of size n^{q.rest}, whose limit is random")
    if not np.abs(q.values).max(initial=0.0) <= LARGE:  # nor is it of NaN
        raise Diverges


def _apply_function(products: Contractions, s: Function, q: Leading) -> Leading:
    if s.kind.kind == "norm":
        lengths = products.lengths(q)
        if q.power == NONE or not lengths.all():
            raise NotCovered(f"{s.out} divides by zero")
        return replace(q, values=q.values / lengths[..., None], power=Fraction(0), rest=q.rest - q.power)
    if s.kind.kind == "softmax" and q.over:
        e = np.exp(take_limit(q).values)
        return Leading(q.indices, q.over, e / e.mean(-1, keepdims=True), Fraction(-1), q.rest - 1)
    if q.over:
        return products.apply(partial(evaluate, s.kind), [take_limit(q)], q.indices, q.over, s.out)
    return Leading(q.indices, "", evaluate_numbers(s, q.indices, get_limits(q)), rest=q.rest)


def _pull_back(products: Contractions, s: Function, q: Leading, above: Leading) -> Leading:
    """Returns the gradient with respect to the argument of a function.

    Args:
        products: computes products in the limit.
        s: the statement of the function.
        q: the argument.
        above: the gradient with respect to the function's value.
    """
    if s.kind.kind == "norm":
        unit, lengths = _apply_function(products, s, q), products.lengths(q)
        along = products.inner(unit, above, q.over)
        removed = products.contract([unit, along.times(-1.0, Fraction(-1))], q.indices + q.over, s.out)
        whole = add_leading([above, removed])
        return replace(whole, values=whole.values / lengths[..., None]).times(1.0, -q.power)
    if s.kind.kind == "softmax" and q.over:
        shares = _apply_function(products, s, q)
        mean = products.contract([shares, above], q.indices, s.out)
        whole = add_leading([above, products.contract([mean.times(-1.0)], q.indices + q.over, s.out)])
        return products.entrywise([shares, whole], q.over, s.out)
    if q.over:
        at = products.apply(
            partial(evaluate_slope, s.kind), [take_limit(q)], q.indices, q.over, f"the slope at {s.out}"
        )
        return products.entrywise([at, above], q.over, f"the gradient at {s.out}")
    above = products.contract([above], q.indices, s.out)
    values = evaluate_numbers(s, q.indices, get_limits(q), above.values)
    return replace(above, values=values, power=above.power if values.any() else NONE)
