"""The layer-wise system of alignment exponents: the readable road to the numbers the solver finds.

Source: MSSP paper, App. I.1.2 (eq. I.3). Read next: ``newton.py`` (starts from it, and lets it choose between axes
that grow alike).
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

from scaling_algebra.dynamics.analysis import Analysis
from scaling_algebra.dynamics.sparse_routing import sparse
from scaling_algebra.spec.axes import AXES, Ray
from scaling_algebra.spec.desiderata import Structure
from scaling_algebra.spec.networks.language import Aggregate, Linear, Network
from scaling_algebra.spec.powers import Power

from .demands import HORIZON


def layerwise(look: Analysis, structure: Structure) -> dict[str, Power]:
    """The readable road to the same numbers: alignment exponents of every layer, read off the engine.

    Law: |W_0 dx| = fan_in^q |W_0| |dx| and |dW x| = fan_in^p |dW| |x| with activations Theta(1), so the init std is
    fan_in^-q and entries of dW are fan_in^-p; a gradient at a signal is one over its number of entries, since its
    inner product with a Theta(1) change is Theta(1). Source: MSSP paper, App. I.1.2 (eq. I.3).
    Where several axes grow at one rate this decides which of them carries a power; the solver keeps an entry only if
    it equals the solution on the ray.
    """
    network, normalises = look.network, look.optimizer.normalises

    def last(name: str) -> Fraction | None:
        return look(name, HORIZON).exponent

    def alignment(total: Fraction | None, parts: Iterable[Fraction | None], over: Power) -> Fraction | None:
        rate, known = over.on(look.ray), list(parts)
        if total is None or None in known:
            return None
        return (total - sum((x for x in known if x is not None), Fraction(0))) / rate if rate else Fraction(0)

    def updated(signal: str) -> Fraction | None:
        parts = (look.maybe(f"{signal}.{part}", HORIZON) for part in ("effective", "cross"))
        return max((x for x in parts if x is not None), default=None)

    powers: dict[str, Power] = {}
    above = {a.source: a for a in network.aggregates}
    for aggregate in network.aggregates[:1]:
        experts = summed(network, aggregate, look.ray)
        s = alignment(updated(aggregate.out), (updated(aggregate.source), -look.point.alpha), experts)
        if s is not None:
            powers["alpha"] = experts * s
    for statement in network.statements:
        if not isinstance(statement, Linear):
            continue
        role, out, tensor = statement.tensor, statement.out, network.tensors[statement.tensor]
        fan_in = axes_power(network, tensor.fan_in)
        b = look.point.b[role]
        source = None if statement.source == "data" else last(f"{statement.source}.change")
        q = (
            Fraction(0)
            if statement.source == "data"
            else alignment(last(f"{out}.propagating"), (None if b is None else -b, source), fan_in)
        )
        if q is not None:
            powers[f"b.{role}"] = fan_in * q
            if out in structure.exempt and "alpha" in powers:
                aggregate = above[out]
                experts = summed(network, aggregate, look.ray)
                parts = (last(f"{out}.propagating"), -look.point.alpha)
                over = alignment(last(f"{aggregate.out}.propagating"), parts, experts)
                if over is not None:
                    powers[f"b.{role}"] += experts * over + -powers["alpha"]
        p = alignment(updated(out), (last(f"d{tensor.symbol}"), Fraction(0)), fan_in)
        gradient = axes_power(network, network.signals[out])
        if p is not None:
            step = {
                "": -gradient,
                "entry": Power(),
                "matrix": -axes_power(network, tensor.fan_in + tensor.fan_out) * Fraction(1, 2),
            }
            powers[f"c.{role}"] = fan_in * p + step[normalises]
        powers[f"d.{role}"] = gradient
    return powers


def summed(network: Network, statement: Aggregate, ray: Ray) -> Power:
    """Number of experts that an aggregation sums."""
    return Power.of({"K": 1}) if sparse(network, ray) else axes_power(network, network.signals[statement.gate])


def axes_power(network: Network, letters: str) -> Power:
    total = Power()
    for x in letters:
        if network.axes[x] in AXES:
            total += Power.of({network.axes[x]: 1})
    return total
