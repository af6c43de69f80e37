"""Sparse routing: K of M experts are active for a token, and the tokens of a batch have different experts.

Model: a step averages over many tokens (more than any relevant power of n), each of which is routed to K of M experts
at random, independently of the weights. So the update of an expert is an average over its share K/M of the batch. Sums
over experts inside an update run over all M experts with weight K/M, while the forward pass of a token has its own K
experts only. With K = M, batch and token have the same network, the original one. The model is exact unless the output
of a sum over active experts is the argument of a function, or two such outputs are multiplied: the mean of the result
over tokens is not the function, or the product, of the means. Functions that compute routing weights are covered.
A top-K selection over experts is the routing. A softmax with a selection is normalised over the active experts, any
other over all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import cached_property

from scaling_algebra.counting.algebra import Algebra
from scaling_algebra.counting.signals import EntrySize, Signal
from scaling_algebra.errors import UsageError
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.networks.indices import centred_axes, find_aggregations, tracked_indices
from scaling_algebra.spec.networks.language import SPARE, Factor, Function, Mode, Network, Product, Statement, Sum
from scaling_algebra.spec.networks.multipliers import SHARE

from .bounds import BoundRun
from .products import Increment
from .run import BeyondPowerCounting, Modes, RunContext, TrainingRun, Which, name_unknowns
from .trajectory import Trajectory
from .updates import TensorSteps


def make_algebra(
    network: Network, ray: Ray, gap: Fraction, growing: frozenset[str] = frozenset(), routed: bool = False
) -> Algebra:
    """Returns the algebra (it adds and multiplies signals) with the indices and unknown exponents of a network.

    Args:
        network: the network.
        ray: the ray.
        gap: monomials whose exponent is this far below that of the largest are dropped.
        growing: axes whose indices are kept even if they do not grow on the ray.
        routed: True to treat K as smaller than M on any ray.

    Raises:
        UsageError: K < M, and the model of this module does not cover the network.
    """
    if not (routed or is_sparse(network, ray)):
        kept = "".join(x for x, axis in network.indices.items() if axis in growing | centred_axes(network))
        return Algebra(
            ray, network.indices, name_unknowns(network), gap, tracked_indices(network) + kept, centred_axes(network)
        )
    if mask := next((s for s in network.functions if s.masks), None):
        raise UsageError(
            f"{network.name}: {mask.out} selects with scores that differ from its gates, which is not covered for "
            "K < M; give a ray with K = M"
        )
    if function := find_nonlinear_use(network):
        raise UsageError(
            f"{network.name}: {function.out} is a function of a sum over active experts, which differ between tokens; "
            "give a ray with K = M"
        )
    if function := find_nonzero_function(network):
        raise UsageError(
            f"{network.name}: {function.out} is not zero at experts that a token does not select; give a ray with K = M"
        )
    seen, among = select_active(network)
    indices = {**network.indices, **seen.indices}
    kept = "".join(x for x, axis in indices.items() if axis in growing | centred_axes(network))
    return Algebra(
        ray,
        indices,
        name_unknowns(network),
        gap,
        tracked_indices(network) + "".join(among) + kept,
        centred_axes(network),
    )


def select_classes(network: Network, ray: Ray, routed: bool = False) -> tuple[type[Trajectory], type[BoundRun]]:
    """Returns the class of the exact training run, and that of the training run in which every size is only bounded
    from above. For K < M these are classes for the signals of a single token.

    Args:
        network: the network.
        ray: the ray.
        routed: True to treat K as smaller than M on any ray.
    """
    return (RoutedTrajectory, RoutedBounds) if routed or is_sparse(network, ray) else (Trajectory, BoundRun)


def is_sparse(network: Network, ray: Ray) -> bool:
    """Whether a network has a sum over experts and K < M on the ray, so that a vanishing share of the experts is
    active."""
    return bool(find_aggregations(network)) and ray["K"] != ray["M"]


def select_active(network: Network) -> tuple[Network, dict[str, str]]:
    """Returns the network as a single token sees it: each index that runs over all M experts is replaced by a new one
    that runs over the K active experts. Also returns a map from the new indices to the old ones."""
    taken = "".join(network.indices)
    spare = (x for x in SPARE if x not in taken)
    among = {next(spare): x for x, axis in network.axes.items() if axis == "M"}
    names = {x: x for x in network.indices} | {x: new for new, x in among.items()}
    swap = str.maketrans(names)

    def statement(s: Statement) -> Statement:
        s = _drop_routing(network, s)
        if isinstance(s, Product):
            factors = tuple(x.rename_indices(names) for x in s.factors)
            return replace(s, tensor=s.tensor and s.tensor.rename_indices(names), factors=factors)
        if isinstance(s, Sum):
            return replace(s, terms=tuple(x.rename_indices(names) for x in s.terms))
        return replace(s, source=s.source and s.source.rename_indices(names), over=s.over.translate(swap))

    seen = replace(
        network,
        tensors={
            role: replace(
                t,
                indices=t.indices.translate(swap),
                fan_out=t.fan_out.translate(swap),
                experts=t.experts.translate(swap),
            )
            for role, t in network.tensors.items()
        },
        axes={x.translate(swap): "K" if axis == "M" else axis for x, axis in network.axes.items()},
        signals={name: indices.translate(swap) for name, indices in network.signals.items()},
        statements=tuple(map(statement, network.statements)),
        beside=network.indices,
    )
    return seen, among


def _is_routing(network: Network, s: Statement) -> bool:
    """Whether a statement selects the experts of a token. A selection along any other index is treated as an ordinary
    function."""
    return isinstance(s, Function) and s.kind.selects and network.axes[s.over] == "M"


def _drop_routing(network: Network, s: Statement) -> Statement:
    """Returns a statement without its selection, if it selects the experts of a token; otherwise the statement
    itself."""
    return replace(s, name=s.name.removeprefix("topk_")) if isinstance(s, Function) and _is_routing(network, s) else s


def weight_expert_sums(network: Network) -> Network:
    """Returns the network for the mean over a batch: all M experts are active, and each sum over experts has the weight
    K/M."""

    def add_weight(s: Statement) -> Statement:
        if isinstance(s, Product) and any(network.axes[x] == "M" for x in set(s.indices) - set(network.signals[s.out])):
            return replace(s, multipliers=(*s.multipliers, SHARE))
        return _drop_routing(network, s)

    return replace(network, statements=tuple(map(add_weight, network.statements)))


def find_nonlinear_use(network: Network) -> Statement | None:
    """Returns the first statement for which the model of sparse routing is not exact: a function of the output of a sum
    over experts, or a product of two such outputs; None if there is none. The model averages over tokens, and the mean
    of such a function is not the function of the mean."""
    summed = {s.out for s in find_aggregations(network)}
    for s in network.statements:
        read = [x for x in s.inputs if x.name in summed]
        if (isinstance(s, Function) and s in network.live and read) or (isinstance(s, Product) and len(read) > 1):
            return s
        summed |= {s.out} if read else set()
    return None


def find_nonzero_function(network: Network) -> Function | None:
    """Returns a function whose output is nonzero even at experts that a token does not select, and is summed over all
    experts without a factor that is zero there; None if there is none. In such a sum, experts that are not selected
    contribute.

    An example is ``sigmoid(topk(x))``, since sigmoid(0) = 1/2.
    """
    zero, made = set[str](), dict[str, Function]()
    for s in network.statements:
        read = [x.name for x in s.inputs]
        vanishes = any(x in zero for x in read) if isinstance(s, Product) else bool(read) and zero.issuperset(read)
        by = next((made[x] for x in read if x in made), None)
        if isinstance(s, Product) and any(network.axes[x] == "M" for x in network.summed_indices(s)):
            if by and not vanishes:
                return by
        elif _is_routing(network, s):
            zero.add(s.out)
        elif vanishes and isinstance(s, Function) and 0 in s.kind.powers:
            made[s.out] = s
        elif vanishes:
            zero.add(s.out)
        elif by:
            made[s.out] = by
    return None


class RoutedTrajectory(Trajectory):
    """A training run of the signals of one token, which has K of M experts. Updates are averaged over a batch of tokens
    with different experts.

    ``_batch`` is the training run of the batch, in which all experts are active. ``_among`` maps each index that runs
    over the active experts to the index over all experts that it replaces. ``_whole`` has the outputs of those
    softmaxes that are normalised over all experts instead of the active ones.
    """

    def __post_init__(self) -> None:
        network = self.network
        self.network, self._among = select_active(network)
        super().__post_init__()
        shares = {s.out: "K" for s in network.live if s.kind.kind == "softmax" and _is_routing(network, s)}
        self._batch = self._make_batch_run(
            weight_expert_sums(network),
            replace(self.context, shares=shares, start=None, ledger=self.ledger, name="batch"),
        )
        self._whole = {
            s.out
            for s in network.live
            if s.kind.kind == "softmax" and not s.kind.selects and s.over in self._among.values()
        }
        self.steps = _TokenSteps(self, self._batch.steps, self._select_own)

    def _make_batch_run(self, network: Network, context: RunContext) -> Trajectory:
        """Returns the training run of the whole batch, in which every expert gets some tokens and is therefore
        active."""
        return Trajectory(network, self.algebra, self.point, self.optimizer, context)

    def value(self, signal: str, t: int) -> Signal:
        return self._select_own(self._batch.value(signal, t)) if signal in self._whole else super().value(signal, t)

    def change(self, signal: str, t: int) -> Signal:
        return self._select_own(self._batch.change(signal, t)) if signal in self._whole else super().change(signal, t)

    def _gradient(self, signal: str, t: int, modes: Modes, via: str) -> Signal:
        for s, _ in self.network.consumers(signal):
            if s.out in self._whole and via in ("", s.out):
                raise BeyondPowerCounting(
                    f"{s.out} normalises over all experts, but with K < M a token has gradients of its own experts only"
                )
        return super()._gradient(signal, t, modes, via)

    def relative_to_undecayed(self) -> Trajectory:
        raise BeyondPowerCounting("weight decay is not covered for K < M; give a ray with K = M")

    def gradient_factors(
        self,
        role: str,
        t: int,
        above: Callable[[str], Signal] | None = None,
        acted: Callable[[Factor], Signal] | None = None,
    ) -> list[tuple[Signal, ...]]:
        return [
            tuple(map(self._select_own, product)) for product in self._batch.gradient_factors(role, t, above, acted)
        ]

    def _select_own(self, signal: Signal) -> Signal:
        """Returns the entries that belong to the K experts of one token, of a signal that has entries for all M
        experts."""
        self.note("random-routing")
        for new, old in self._among.items():
            signal = self.algebra.restrict_index(signal, old, new)
        return signal


class _TokenSteps(TensorSteps):
    """The optimizer steps of a batch, restricted to the experts of one token.

    Args:
        run: the training run of the token.
        batch: the optimizer steps of the batch.
        seen: a function that takes from a signal with entries for all experts those of the token's own experts.
    """

    def __init__(self, run: TrainingRun, batch: TensorSteps, seen: Callable[[Signal], Signal]) -> None:
        super().__init__(run)
        self._batch, self._select_own = batch, seen

    def increments(self, role: str, t: int) -> list[Increment]:
        steps, seen = self._batch.increments(role, t), self._select_own
        return [replace(x, gradient=seen(x.gradient), inputs=tuple(map(seen, x.inputs))) for x in steps]

    def raw_gradient_size(self, role: str, t: int) -> EntrySize:
        return self._batch.raw_gradient_size(role, t)

    def read_gradient_via(self, signal: str, step: int, via: str) -> Signal:
        return self._select_own(self._batch.read_gradient_via(signal, step, via))


class RoutedBounds(RoutedTrajectory, BoundRun):
    """A training run of the signals of one token in which every size is only bounded from above, by bounds for the
    whole batch.

    Law: before any sum over active experts, the signals of a token are those of the batch at the token's own experts,
    and have the same size. In the batch, the matrices of all experts together act on one vector, so their operator norm
    bounds the product.
    """

    _batch: BoundRun

    @cached_property
    def _before_sums(self) -> frozenset[str]:
        """Names of the signals that are computed without any sum over active experts."""
        network, behind = self._batch.network, set[str]()
        for s in network.statements:
            along = network.summed_indices(s) if isinstance(s, Product) else s.over if isinstance(s, Function) else ""
            behind |= (
                {s.out}
                if any(network.axes[x] == "M" for x in along) or any(x.name in behind for x in s.inputs)
                else set()
            )
        return frozenset(network.signals) - behind

    def compute_change(self, s: Statement, t: int) -> Signal:
        if s.out not in self._before_sums:
            return super().compute_change(s, t)
        size = self._batch.bounds.get(("change", s.out))
        return self.algebra.zeros(self.network.signals[s.out]) if size is None else self._make_bounded(s.out, size)

    def part(self, statement: Product, mode: Mode, which: Which, t: int, x: Signal | None = None) -> Signal:
        if statement.out not in self._before_sums or x is not None:
            return super().part(statement, mode, which, t, x)
        return self._select_own(self._batch.part(statement, mode, which, t))

    def _make_batch_run(self, network: Network, context: RunContext) -> BoundRun:
        return BoundRun(network, self.algebra, self.point, self.optimizer, context)

    def find_fixed_point(self) -> bool:
        return self._batch.find_fixed_point() and super().find_fixed_point()
