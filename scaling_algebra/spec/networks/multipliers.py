"""Multipliers of a network that are unknowns, and those that are a choice of gauge.

Law: a product is unchanged if its tensor is divided by the factor that multiplies its multipliers. Factors that leave
every product unchanged are the gauge freedom. Multipliers use it up in the order in which they appear: one that uses up
freedom is a gauge and stays 1. What is given uses up freedom first, and another member of its class is derived.
Source: abc-symmetry, Yang and Hu (2021), Tensor Programs IV, Sec. 3.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction

from .language import Network, Product, remembered

SHARE = "K/M"
"""The multiplier of sums over experts in a batch of which every token has K of M; no unknown."""


@remembered
def free_multipliers(network: Network) -> tuple[str, ...]:
    """Multipliers that are unknowns: all but the gauges, which stay 1."""
    return tuple(m for m in network.multipliers if m not in {*gauges(network), SHARE})


@remembered
def gauges(network: Network) -> tuple[str, ...]:
    """Multipliers that are a choice of gauge, after what is given: the scale of a tensor takes their place."""
    held = (x if x in network.multipliers else _scale(x.rpartition(".")[0]) for x in sorted(network.held))
    return _taking_up(network, held)


@remembered
def choices(network: Network) -> tuple[str, ...]:
    """Multipliers that are a choice of gauge where nothing is given."""
    return _taking_up(network, ())


def needs(network: Network, multiplier: str) -> bool:
    """Is a multiplier an unknown whatever is given?"""
    return multiplier not in choices(network) and multiplier != SHARE


def opened(network: Network) -> tuple[str, ...]:
    """Multipliers that are unknowns because something of their class is given."""
    return tuple(m for m in choices(network) if m not in gauges(network))


def hold_names(network: Network, names: Iterable[str]) -> Network:
    """The network where inits and rates of some tensors (``ROLE.init``, ``ROLE.lr``) and some multipliers are given;
    itself where no multiplier is a choice of gauge."""
    if not choices(network):
        return network
    scaled = {s.tensor.name for s in network.linear if s.tensor and {*s.multipliers} - {SHARE}}
    known = {*network.multipliers, *(f"{role}.{x}" for role in scaled for x in ("init", "lr"))}
    return replace(network, held=frozenset(names) & known)


def _taking_up(network: Network, held: Iterable[str]) -> tuple[str, ...]:
    """The multipliers that take up freedom after what is held."""
    space: list[dict[str, Fraction]] = []
    for s in network.statements:
        if isinstance(s, Product):
            names = [*([_scale(s.tensor.name)] if s.tensor else []), *(m for m in s.multipliers if m != SHARE)]
            _adds(space, {name: Fraction(names.count(name)) for name in names})
    for name in held:
        _adds(space, {name: Fraction(1)})
    return tuple(m for m in network.multipliers if m != SHARE and _adds(space, {m: Fraction(1)}))


def _scale(role: str) -> str:
    return f"tensor {role}"  # no name of a multiplier


def _adds(space: list[dict[str, Fraction]], row: dict[str, Fraction]) -> bool:
    """Is a row independent of the rows before it? Then it is appended, reduced by them (Gaussian elimination)."""
    for other in space:
        first = next(iter(other))
        if factor := row.get(first, Fraction(0)):
            row = {k: row.get(k, Fraction(0)) - factor * other.get(k, Fraction(0)) for k in {**row, **other}}
    row = {k: x for k, x in row.items() if x}
    if row:
        scale = next(iter(row.values()))
        space.append({k: x / scale for k, x in row.items()})
    return bool(row)
