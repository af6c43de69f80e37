"""Sparse routing: K of M experts are active for a token, and every token of a batch has its own.

Model: a step averages over many tokens (more than any power of n that matters), each routed to K of M experts at
random, independently of the weights. The update of an expert is then an average over its share K/M of the batch, and
sums over experts inside an update run over all M with weight K/M, while a token sees its own K experts. With K = M both
are the network itself. That is exact where nothing behind a sum over active experts is a function of it, or a product
of two such signals: its mean over tokens is not the product of their means. Gates may be functions.
A selection (top-K) is the routing, and a softmax with one is normalised over the active experts, another over all.
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
from scaling_algebra.spec.optimizers import OptimizerSpec
from scaling_algebra.spec.scaling import Point

from .bounds import BoundRun
from .products import Increment
from .run import BeyondPowerCounting, Modes, RunContext, TrainingRun, Which, unknowns
from .trajectory import Trajectory
from .updates import TensorSteps


def algebra_for(
    network: Network, ray: Ray, gap: Fraction, growing: frozenset[str] = frozenset(), routed: bool = False
) -> Algebra:
    """The algebra whose letters and unknowns are those of a network.

    Args:
        growing: axes whose indices are kept even where they do not grow on the ray.
        routed: K counts as less than M whatever the ray says.

    Raises:
        UsageError: K < M where the routing is part of the dynamics.
    """
    if not (routed or sparse(network, ray)):
        kept = "".join(x for x, axis in network.indices.items() if axis in growing | centred_axes(network))
        return Algebra(
            ray, network.indices, unknowns(network), gap, tracked_indices(network) + kept, centred_axes(network)
        )
    if mask := next((s for s in network.functions if s.masks), None):
        raise UsageError(f"{network.name}: {mask.out} selects by scores of its own; give a ray with K = M")
    if function := behind(network):
        raise UsageError(
            f"{network.name}: {function.out} is a function of a sum over active experts, and every token has its own; "
            "give a ray with K = M"
        )
    if function := unselected(network):
        raise UsageError(
            f"{network.name}: {function.out} is not zero at experts that a token does not select; give a ray with K = M"
        )
    seen, among = active(network)
    indices = {**network.indices, **seen.indices}
    kept = "".join(x for x, axis in indices.items() if axis in growing | centred_axes(network))
    return Algebra(
        ray, indices, unknowns(network), gap, tracked_indices(network) + "".join(among) + kept, centred_axes(network)
    )


def trajectory_for(
    network: Network,
    algebra: Algebra,
    point: Point,
    optimizer: OptimizerSpec,
    context: RunContext,
    routed: bool = False,
) -> Trajectory:
    """Training of the block, as a token sees it. ``routed``: as for ``algebra_for``."""
    kind = RoutedTrajectory if routed or sparse(network, algebra.ray) else Trajectory
    return kind(network, algebra, point, optimizer, context)


def bounds_for(
    network: Network,
    algebra: Algebra,
    point: Point,
    optimizer: OptimizerSpec,
    context: RunContext,
    routed: bool = False,
) -> BoundRun:
    """A run of upper bounds. ``routed``: as for ``algebra_for``."""
    kind = RoutedBounds if routed or sparse(network, algebra.ray) else BoundRun
    return kind(network, algebra, point, optimizer, context)


def sparse(network: Network, ray: Ray) -> bool:
    """Does a vanishing share of the experts see a token?"""
    return bool(find_aggregations(network)) and ray["K"] != ray["M"]


def active(network: Network) -> tuple[Network, dict[str, str]]:
    """The network with every index of all experts replaced by one of the active experts, and which replaces which."""
    taken = "".join(network.indices)
    spare = (x for x in SPARE if x not in taken)
    among = {next(spare): x for x, axis in network.axes.items() if axis == "M"}
    names = {x: x for x in network.indices} | {x: new for new, x in among.items()}
    swap = str.maketrans(names)

    def statement(s: Statement) -> Statement:
        s = _routed(network, s)
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


def _routes(network: Network, s: Statement) -> bool:
    """Does it select experts? A selection along another index is a function like others."""
    return isinstance(s, Function) and s.kind.selects and network.axes[s.over] == "M"


def _routed(network: Network, s: Statement) -> Statement:
    """A statement without the selection that is the routing."""
    return replace(s, name=s.name.removeprefix("topk_")) if isinstance(s, Function) and _routes(network, s) else s


def averaged(network: Network) -> Network:
    """The network over all experts, whose sums over experts are those of a batch: each with weight K/M."""

    def shared(s: Statement) -> Statement:
        if isinstance(s, Product) and any(network.axes[x] == "M" for x in set(s.indices) - set(network.signals[s.out])):
            return replace(s, multipliers=(*s.multipliers, SHARE))
        return _routed(network, s)

    return replace(network, statements=tuple(map(shared, network.statements)))


def behind(network: Network) -> Statement | None:
    """A function of what a sum over experts made, or a product of two such signals, if there is one."""
    summed = {s.out for s in find_aggregations(network)}
    for s in network.statements:
        read = [x for x in s.inputs if x.name in summed]
        if (isinstance(s, Function) and s in network.live and read) or (isinstance(s, Product) and len(read) > 1):
            return s
        summed |= {s.out} if read else set()
    return None


def unselected(network: Network) -> Function | None:
    """A function with f(0) != 0 of what is zero at experts that are not selected, if a sum over experts has no other
    factor that is zero there."""
    zero, made = set[str](), dict[str, Function]()
    for s in network.statements:
        read = [x.name for x in s.inputs]
        vanishes = any(x in zero for x in read) if isinstance(s, Product) else bool(read) and zero.issuperset(read)
        by = next((made[x] for x in read if x in made), None)
        if isinstance(s, Product) and any(network.axes[x] == "M" for x in network.summed_indices(s)):
            if by and not vanishes:
                return by
        elif _routes(network, s):
            zero.add(s.out)
        elif vanishes and isinstance(s, Function) and 0 in s.kind.powers:
            made[s.out] = s
        elif vanishes:
            zero.add(s.out)
        elif by:
            made[s.out] = by
    return None


class RoutedTrajectory(Trajectory):
    """A trajectory of one token's signals, with updates that are averages over a batch of differently routed tokens."""

    def __post_init__(self) -> None:
        network = self.network
        self.network, self._among = active(network)
        super().__post_init__()
        shares = {s.out: "K" for s in network.live if s.kind.kind == "softmax" and _routes(network, s)}
        self._batch = self._over_all(
            averaged(network), replace(self.context, shares=shares, start=None, ledger=self.ledger, name="batch")
        )
        self._whole = {
            s.out
            for s in network.live
            if s.kind.kind == "softmax" and not s.kind.selects and s.over in self._among.values()
        }
        """Shares of all experts."""
        self.steps = _SeenSteps(self, self._batch.steps, self._seen)

    def _over_all(self, network: Network, context: RunContext) -> Trajectory:
        """The run over all experts of a batch."""
        return Trajectory(network, self.algebra, self.point, self.optimizer, context)

    def value(self, signal: str, t: int) -> Signal:
        return self._seen(self._batch.value(signal, t)) if signal in self._whole else super().value(signal, t)

    def change(self, signal: str, t: int) -> Signal:
        return self._seen(self._batch.change(signal, t)) if signal in self._whole else super().change(signal, t)

    def _gradient(self, signal: str, t: int, modes: Modes, via: str) -> Signal:
        for s, _ in self.network.consumers(signal):
            if s.out in self._whole and via in ("", s.out):
                raise BeyondPowerCounting(
                    f"{s.out} has shares of all experts, and a token has the gradients of its own"
                )
        return super()._gradient(signal, t, modes, via)

    def decaying(self) -> Trajectory:
        raise BeyondPowerCounting("weight decay at K < M is not covered")

    def factors(
        self,
        role: str,
        t: int,
        above: Callable[[str], Signal] | None = None,
        acted: Callable[[Factor], Signal] | None = None,
    ) -> list[tuple[Signal, ...]]:
        return [tuple(map(self._seen, product)) for product in self._batch.factors(role, t, above, acted)]

    def _seen(self, signal: Signal) -> Signal:
        """The entries of a signal over all experts that a token sees: those of its own."""
        self.note("random-routing")
        for new, old in self._among.items():
            signal = self.algebra.restricted(signal, old, new)
        return signal


class _SeenSteps(TensorSteps):
    """What a token sees of the steps of a batch.

    Args:
        seen: the entries of a signal over all experts that a token sees.
    """

    def __init__(self, run: TrainingRun, batch: TensorSteps, seen: Callable[[Signal], Signal]) -> None:
        super().__init__(run)
        self._batch, self._seen = batch, seen

    def of(self, role: str, t: int) -> list[Increment]:
        steps, seen = self._batch.of(role, t), self._seen
        return [replace(x, gradient=seen(x.gradient), inputs=tuple(map(seen, x.inputs))) for x in steps]

    def raw_gradient_size(self, role: str, t: int) -> EntrySize:
        return self._batch.raw_gradient_size(role, t)

    def through(self, signal: str, step: int, via: str) -> Signal:
        return self._seen(self._batch.through(signal, step, via))


class RoutedBounds(RoutedTrajectory, BoundRun):
    """Upper bounds of one token's signals, from those of the batch.

    Law: before any sum over active experts a token's signals are those of the batch at its own experts, which are as
    large as at all of them: a matrix of all experts acts on one vector there, with its operator norm.
    """

    _batch: BoundRun

    @cached_property
    def _alike(self) -> frozenset[str]:
        """Signals that no sum over active experts is behind."""
        network, behind = self._batch.network, set[str]()
        for s in network.statements:
            along = network.summed_indices(s) if isinstance(s, Product) else s.over if isinstance(s, Function) else ""
            behind |= (
                {s.out}
                if any(network.axes[x] == "M" for x in along) or any(x.name in behind for x in s.inputs)
                else set()
            )
        return frozenset(network.signals) - behind

    def moved(self, s: Statement, t: int) -> Signal:
        if s.out not in self._alike:
            return super().moved(s, t)
        size = self._batch.bounds.get(("change", s.out))
        return self.algebra.nothing(self.network.signals[s.out]) if size is None else self._sized(s.out, size)

    def part(self, statement: Product, mode: Mode, which: Which, t: int, x: Signal | None = None) -> Signal:
        if statement.out not in self._alike or x is not None:
            return super().part(statement, mode, which, t, x)
        return self._seen(self._batch.part(statement, mode, which, t))

    def _over_all(self, network: Network, context: RunContext) -> BoundRun:
        return BoundRun(network, self.algebra, self.point, self.optimizer, context)

    def settled(self) -> bool:
        return self._batch.settled() and super().settled()
