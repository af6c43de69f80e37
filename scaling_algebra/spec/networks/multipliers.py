"""Which multipliers of a network are unknowns, and which are a choice of gauge.

Law: a product is unchanged if its multiplier is multiplied, and its tensor divided, by the same factor. All changes of
factors that leave every product unchanged are the gauge freedom. Values fixed by the user use up freedom first, then
multipliers in order of appearance: one that uses up freedom is a gauge and stays 1, any other is an unknown.
Source: abc-symmetry, Yang and Hu (2021), Tensor Programs IV, Sec. 3.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction

from .language import Network, Product, cache_on_network

SHARE = "K/M"
"""The factor of a sum over experts in a batch of whose M experts each token uses K; it is not an unknown."""


@cache_on_network
def find_free_multipliers(network: Network) -> tuple[str, ...]:
    """Returns the multipliers whose powers must be derived.

    The others are ``K/M``, which is known, and those that stay 1 since a tensor can absorb them (``find_gauges``).
    """
    return tuple(m for m in network.multipliers if m not in {*find_gauges(network), SHARE})


@cache_on_network
def find_gauges(network: Network) -> tuple[str, ...]:
    """Returns the multipliers that stay 1, since a change of a tensor's init std and learning rate can replace them.

    A multiplier is not among them if the user fixes it, or fixes the settings that could replace it (``Network.held``).
    """
    held = (x if x in network.multipliers else _name_scale(x.rpartition(".")[0]) for x in sorted(network.held))
    return _choose_gauges(network, held)


@cache_on_network
def find_default_gauges(network: Network) -> tuple[str, ...]:
    """Returns the multipliers that would stay 1 (``find_gauges``) if the user fixed nothing."""
    return _choose_gauges(network, ())


def is_always_unknown(network: Network, multiplier: str) -> bool:
    """Tests whether a multiplier is an unknown whatever the user fixes, since no tensor can replace it."""
    return multiplier not in find_default_gauges(network) and multiplier != SHARE


def find_freed(network: Network) -> tuple[str, ...]:
    """Returns the multipliers that stay 1 by default, but not with the settings that the user fixes.

    The user then fixes the multiplier itself, or a setting that could absorb it: the init std or learning rate of a
    tensor, or another multiplier.
    """
    return tuple(m for m in find_default_gauges(network) if m not in find_gauges(network))


def hold_names(network: Network, names: Iterable[str]) -> Network:
    """Returns the network with these settings marked as fixed by the user (``Network.held``).

    Args:
        network: the network.
        names: multipliers, ``ROLE.init`` and ``ROLE.lr``. Settings of a tensor that no multiplier multiplies are
            ignored, since they can replace no multiplier.
    """
    if not find_default_gauges(network):
        return network
    scaled = {s.tensor.name for s in network.linear if s.tensor and {*s.multipliers} - {SHARE}}
    known = {*network.multipliers, *(f"{role}.{x}" for role in scaled for x in ("init", "lr"))}
    return replace(network, held=frozenset(names) & known)


def _choose_gauges(network: Network, held: Iterable[str]) -> tuple[str, ...]:
    """Returns the multipliers that stay 1, in order of appearance.

    A number can be moved from a multiplier to a tensor, or back, without a change of any product; each independent
    way to do so is one free choice. Each setting in ``held``, whose value is given, uses up one free choice if one is
    left that concerns it. Then each multiplier in turn does the same; the multipliers that use up a free choice stay
    1.
    """
    space: list[dict[str, Fraction]] = []
    for s in network.statements:
        if isinstance(s, Product):
            names = [*([_name_scale(s.tensor.name)] if s.tensor else []), *(m for m in s.multipliers if m != SHARE)]
            _add_if_independent(space, {name: Fraction(names.count(name)) for name in names})
    for name in held:
        _add_if_independent(space, {name: Fraction(1)})
    return tuple(m for m in network.multipliers if m != SHARE and _add_if_independent(space, {m: Fraction(1)}))


def _name_scale(role: str) -> str:
    """Returns the variable that stands for the scale of a tensor in the linear system of ``_choose_gauges``. It differs
    from the name of every multiplier.
    """
    return f"tensor {role}"  # no name of a multiplier


def _add_if_independent(space: list[dict[str, Fraction]], row: dict[str, Fraction]) -> bool:
    """Appends a row to ``space``, a list of linearly independent rows, if the row is independent of them (Gaussian
    elimination). Returns whether it is.
    """
    for other in space:
        first = next(iter(other))
        if factor := row.get(first, Fraction(0)):
            row = {k: row.get(k, Fraction(0)) - factor * other.get(k, Fraction(0)) for k in {**row, **other}}
    row = {k: x for k, x in row.items() if x}
    if row:
        scale = next(iter(row.values()))
        space.append({k: x / scale for k, x in row.items()})
    return bool(row)
