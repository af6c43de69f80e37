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
from scaling_algebra.spec.desiderata import Structure, horizon
from scaling_algebra.spec.networks.language import DATA, Network, Product
from scaling_algebra.spec.networks.roles import experts
from scaling_algebra.spec.powers import Power

_LEARNED = ("effective", "cross")
"""Parts of an output that an update of its tensor makes."""


def layerwise(look: Analysis, structure: Structure) -> dict[str, Power]:
    """The readable road to the same numbers: alignment exponents of every layer, read off the engine.

    Law: |W_0 dx| = fan_in^q |W_0| |dx| and |dW x| = fan_in^p |dW| |x| with activations Theta(1), so the init std is
    fan_in^-q and entries of dW are fan_in^-p; a gradient at a signal is one over its number of entries, since its
    inner product with a Theta(1) change is Theta(1). Source: MSSP paper, App. I.1.2 (eq. I.3).
    Where several axes grow at one rate this decides which of them carries a power; the solver keeps an entry only if
    it equals the solution on the ray.
    """
    network = look.network
    t = horizon(network, structure)

    def last(name: str) -> Fraction | None:
        return look.quick(name, t).size

    def alignment(total: Fraction | None, parts: Iterable[Fraction | None], over: Power) -> Fraction | None:
        rate, known = over.on(look.ray), list(parts)
        if total is None or None in known:
            return None
        return (total - sum((x for x in known if x is not None), Fraction(0))) / rate if rate else Fraction(0)

    def updated(signal: str) -> Fraction | None:
        learned = [name for part in _LEARNED if (name := f"{signal}.{part}") in look.table]
        return look.leading(learned or [f"{signal}.change"], t).size

    powers: dict[str, Power] = {}
    counts = summed(network, look.ray)
    for e in experts(network):
        for multiplier in set(e.aggregation.multipliers) & set(counts) - set(powers):
            over = counts[multiplier]
            sizes = (updated(e.source), -look.point.multipliers[multiplier])
            s = alignment(updated(e.aggregation.out), sizes, over)
            if s is not None:
                powers[multiplier] = over**s
    for statement in network.statements:
        if not isinstance(statement, Product) or statement.tensor or len(statement.factors) != 1:
            continue
        for multiplier in set(statement.multipliers) & set(counts) - set(powers):
            sizes = (last(f"{statement.factors[0].name}.change"), -look.point.multipliers[multiplier])
            s = alignment(last(f"{statement.out}.change"), sizes, counts[multiplier])
            if s is not None:
                powers[multiplier] = counts[multiplier] ** s
    above = {e.source: e.aggregation for e in experts(network)}
    for statement in network.linear:
        assert statement.tensor
        role, out, tensor = statement.tensor.name, statement.out, network.tensors[statement.tensor.name]
        if f"d.{role}" in powers or len(statement.factors) != 1:
            continue  # the first use of a tensor speaks for it
        fan_in, read = axes_power(network, tensor.fan_in), statement.factors[0].name
        b = look.point.b[role]
        source = None if read == DATA else last(f"{read}.change")
        q = (
            Fraction(0)
            if read == DATA
            else alignment(last(f"{out}.propagating"), (None if b is None else -b, source), fan_in)
        )
        if q is not None:
            powers[f"b.{role}"] = fan_in**q
            aggregate = above.get(out)
            multiplier = next((m for m in aggregate.multipliers if m in powers), "") if aggregate else ""
            if out in structure.exempt and aggregate and multiplier:
                parts = (last(f"{out}.propagating"), -look.point.multipliers[multiplier])
                more = alignment(last(f"{aggregate.out}.propagating"), parts, counts[multiplier])
                if more is not None:
                    powers[f"b.{role}"] *= counts[multiplier] ** more / powers[multiplier]
        p = alignment(updated(out), (last(f"d{tensor.symbol}"), Fraction(0)), fan_in)
        gradient = gradient_power(network, statement)
        if p is not None:
            rule = look.optimizer.of(role)
            step = (
                rule.shaped(network, role, look.ray) / rule.entries(network, role) if rule.normalises else 1 / gradient
            )
            powers[f"c.{role}"] = fan_in**p * step
            if rule.relative and b is not None:
                powers[f"c.{role}"] /= powers.get(f"b.{role}", Power())
        powers[f"d.{role}"] = gradient
    return powers


def summed(network: Network, ray: Ray) -> dict[str, Power]:
    """How many terms the sum has that each multiplier stands before."""
    found: dict[str, Power] = {}
    for statement in network.statements:
        if isinstance(statement, Product):
            letters = "".join(x for x in statement.letters if x not in network.signals[statement.out])
            over = (
                Power.of({"K": 1})
                if sparse(network, ray) and network.experts(statement)
                else axes_power(network, letters)
            )
            found |= {m: over for m in statement.multipliers if m in network.free_multipliers}
    return found


def gradient_power(network: Network, statement: Product) -> Power:
    """One over the gradient of a tensor at full alignment: the entries of the signal that it makes, of those only one
    that share its weights: their gradients add up."""
    assert statement.tensor
    return axes_power(network, "".join(x for x in network.signals[statement.out] if x in statement.tensor.letters))


def axes_power(network: Network, letters: str) -> Power:
    """The product of the sizes of some indices."""
    total = Power()
    for x in letters:
        if network.axes[x] in AXES:
            total *= Power.of({network.axes[x]: 1})
    return total
