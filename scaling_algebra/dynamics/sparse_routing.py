"""Sparse routing: K of M experts are active for a token, and every token of a batch has its own.

Model: a step averages over many tokens (more than any power of n that matters), each routed to K of M experts at
random, independently of the weights. The update of an expert is then an average over its share K/M of the batch, and
sums over experts inside an update run over all M with weight K/M, while a token sees its own K experts. With K = M both
are the block itself. Read next: ``trajectory.py`` (what it runs in), ``analysis.py`` (who asks for one).
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from scaling_algebra.counting.signals import Algebra, Scalar, Signal
from scaling_algebra.errors import UsageError
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.networks.language import Gate, Network
from scaling_algebra.spec.optimizers import Optimizer
from scaling_algebra.spec.scaling import Point

from .trajectory import Increment, Trajectory, unknowns

ALL, ACTIVE = "i", "j"
"""Index letters of all experts and of the experts active for one token."""


def algebra_for(network: Network, ray: Ray, gap: Fraction) -> Algebra:
    """The algebra whose letters and unknowns are those of a network.

    Raises:
        UsageError: K < M where the routing is part of the dynamics.
    """
    if not sparse(network, ray):
        return Algebra(ray, network.axes, unknowns(network), gap, network.tracked)
    if any(isinstance(s, Gate) and s.kind != "held" for s in network.statements):
        raise UsageError(f"{network.name} selects experts in a way of its own; give a ray with K = M")
    return Algebra(ray, active(network).axes, unknowns(network), gap, network.tracked + ACTIVE)


def trajectory_for(network: Network, algebra: Algebra, point: Point, optimizer: Optimizer) -> Trajectory:
    """Training of the block, as a token sees it."""
    made = RoutedTrajectory if sparse(network, algebra.ray) else Trajectory
    return made(network, algebra, point, optimizer)


def sparse(network: Network, ray: Ray) -> bool:
    """Does a vanishing share of the experts see a token?"""
    return bool(network.aggregates) and ray["K"] != ray["M"]


def active(network: Network) -> Network:
    """The network with the index of all experts replaced by the index of the active ones."""

    def swap(letters: str) -> str:
        return letters.replace(ALL, ACTIVE)

    return replace(
        network,
        tensors={
            role: replace(t, letters=swap(t.letters), fan_out=swap(t.fan_out), experts=swap(t.experts))
            for role, t in network.tensors.items()
        },
        axes={**network.axes, ACTIVE: "K"},
        signals={name: swap(letters) for name, letters in network.signals.items()},
    )


class RoutedTrajectory(Trajectory):
    """A trajectory of one token's signals, with updates that are averages over a batch of differently routed tokens."""

    def __init__(self, network: Network, algebra: Algebra, point: Point, optimizer: Optimizer) -> None:
        super().__init__(active(network), algebra, point, optimizer)
        self._batch = Trajectory(network, algebra, point, optimizer)
        share = algebra.scale({"K": 1, "M": -1})
        whole = self._multiplier.size + share
        self._batch._multiplier = Scalar("aggregation multiplier times K/M, the share of the batch", whole)

    def raw_gradient_size(self, role: str, t: int) -> int | None:
        size = self._batch.raw_gradient_size(role, t)
        self.sound = self.sound and self._batch.sound
        return size

    def factors(self, role: str, t: int) -> tuple[Signal, Signal]:
        left, right = self._batch.factors(role, t)
        return self._seen(left), self._seen(right)

    def _updates(self, role: str, t: int) -> list[Increment]:
        found = self._batch._updates(role, t)
        self.sound = self.sound and self._batch.sound
        return [replace(step, left=self._seen(step.left), right=self._seen(step.right)) for step in found]

    def _part(self, signal: str, step: int, via: str) -> Signal:
        return self._seen(self._batch._part(signal, step, via))

    def _seen(self, signal: Signal) -> Signal:
        """What a token sees of a signal over all experts: the entries of its own."""
        return self.algebra.restricted(signal, ALL, ACTIVE)
