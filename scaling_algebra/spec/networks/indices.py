"""Analyses of the indices of a network: sums over experts, products at one index, subtracted means."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from scaling_algebra.spec.axes import FIXED, sort_axes

from .auxiliary import find_auxiliary
from .language import Function, Network, Product, cache_on_network

EXPERTS = ("M", "K")
"""Axes of expert indices."""


def rename_apart(
    network: Network, old: str, new: str, indices: str, taken: str = "", avoid: str = ""
) -> Mapping[str, str]:
    """Returns new names for indices of an equation that is inserted into another one, so that no two of them clash.

    Args:
        network: the network.
        old: indices whose new names are prescribed.
        new: these names, in the same order.
        indices: further indices; each keeps its name, or gets a free index of its axis if the name is taken.
        taken: names that are taken.
        avoid: names that must not be used as replacements.
    """
    names = dict(zip(old, new, strict=True))
    for x in indices:
        if x not in names:
            used = {*taken, *names.values()}
            free = (c for c, axis in network.indices.items() if axis == network.indices[x] and c not in {*used, *avoid})
            names[x] = next(free) if x in used else x
    return names


def list_growing_axes(network: Network) -> tuple[str, ...]:
    """Returns the axes of a network that may grow, in printing order."""
    return tuple(sort_axes({*network.axes.values()} - {*FIXED}))


def list_power_axes(network: Network) -> list[str]:
    """Returns the axes that a power may have: those that may grow, and K if the network sums over experts."""
    return sort_axes({*list_growing_axes(network), *(["K"] if find_aggregations(network) else [])})


@cache_on_network
def find_aggregations(network: Network) -> tuple[Product, ...]:
    """Returns the products on the path to the output that sum the outputs of experts."""
    sums = (
        s for s in network.statements if isinstance(s, Product) and not s.tensor and summed_expert_indices(network, s)
    )
    return tuple(s for s in sums if s.out not in find_auxiliary(network))


def summed_expert_indices(network: Network, statement: Product) -> str:
    """Returns the expert indices that a product sums."""
    return "".join(x for x in network.summed_indices(statement) if network.axes[x] in EXPERTS)


@cache_on_network
def tracked_indices(network: Network) -> str:
    """Returns the indices of axes along which a function, such as a softmax or norm, acts. Signals keep these indices
    even if the axes do not grow.
    """
    gates = (balanced_indices(network, s, k) for s in find_aggregations(network) for k in range(len(s.factors)))
    along = {network.axes[x] for x in "".join((*(s.over for s in spread_functions(network)), *gates))}
    return "".join(x for x, axis in network.indices.items() if axis in along)


@cache_on_network
def centred_axes(network: Network) -> frozenset[str]:
    """Returns the axes along which a mean is subtracted."""
    means = "".join((tracked_indices(network), *(s.over for s in network.functions if s.kind.centres)))
    return frozenset(network.indices[x] for x in means)


def nonlinear_functions(network: Network) -> list[Function]:
    """Returns the functions that may be nonlinear in their argument: all except those without an argument and gates
    that are held fixed.
    """
    return [*network.live, *(s for s in network.functions if s.inputs and not s.gates)]


@cache_on_network
def spread_functions(network: Network) -> tuple[Function, ...]:
    """Returns the functions whose output depends on how much the entries of their argument differ along an index.

    These are softmax functions, top-K selections, and functions along an index of the experts, if they are trained.
    """
    along = (s for s in network.live if s.over)
    return tuple(s for s in along if s.kind.kind == "softmax" or s.kind.selects or network.axes[s.over] == "M")


@cache_on_network
def count_multiplicity(network: Network) -> Mapping[str, int]:
    """Returns, for each index, the largest number of factors of one product that have this index.

    A factor that is itself a product is counted as its factors, the output of a function as its argument, and the
    output of a product with a tensor as one factor. Different names for the same index of a signal or tensor count as
    one index.
    """
    held_by: dict[str, dict[str, int]] = {}
    most, alike = dict.fromkeys(network.indices, 1), {x: {x} for x in network.indices}
    for s in network.statements:
        counts = []
        for x in s.inputs:
            pairs = list(zip(network.signals[x.name], x.indices, strict=True))
            counts.append({c: held_by.get(x.name, {}).get(mine, 1) for mine, c in pairs})
            _merge_classes(alike, pairs)
        indices = {c for x in counts for c in x}
        joined = sum if isinstance(s, Product) else max
        held = {c: joined(x.get(c, 0) for x in counts) for c in indices}
        most |= {c: max(most[c], number) for c, number in held.items()}
        new = s.tensor.indices if isinstance(s, Product) and s.tensor else ""
        if isinstance(s, Product) and s.tensor:
            _merge_classes(alike, zip(network.tensors[s.tensor.name].indices, new, strict=True))
        held_by[s.out] = {c: 1 if c in new else held.get(c, 1) for c in network.signals[s.out]}
    return {c: max(most[x] for x in same) for c, same in alike.items()}


def reads_normed(network: Network, function: Function) -> bool:
    """Tests whether the argument of a function depends on the output of a norm and still has the index along which
    that norm acts.
    """
    return function.source is not None and bool(_normed_signals(network).get(function.source.name))


@cache_on_network
def _normed_signals(network: Network) -> Mapping[str, frozenset[int]]:
    """Returns, for each signal, the positions of those of its indices along which a norm acted on the signals that it
    is computed from.
    """
    found: dict[str, frozenset[int]] = {}
    for s in network.statements:
        indices = {x.indices[at] for x in s.inputs for at in found.get(x.name, ())}
        indices |= {s.over} if isinstance(s, Function) and s.kind.kind == "norm" else set()
        found[s.out] = frozenset(k for k, x in enumerate(network.signals[s.out]) if x in indices)
    return found


def balanced_indices(network: Network, statement: Product, k: int) -> str:
    """Returns the indices along which the mean of the gradient at a gate is no larger than its fluctuation.

    Law: if a norm is applied to x = sum_i gate_i h_i, the gradient at x is orthogonal to x, so sum_i gate_i
    df/dgate_i = 0. If the mean of gate_i over i is not zero, df/dgate_i can then not be a number that is the same for
    all i plus something smaller.

    Args:
        network: the network.
        statement: the product.
        k: position of the gate among its factors.
    """
    uses = network.consumers(statement.out)
    factor = statement.factors[k]
    gate = network.producer(factor.name)
    if statement.tensor or len(uses) != 1 or not isinstance(gate, Function):
        return ""
    above = uses[0][0]
    if not isinstance(above, Function) or above.kind.kind != "norm" or above.kind.centres:
        return ""
    if not gate.gates or 0 not in gate.kind.powers or network.signals[statement.out] != above.over:
        return ""
    return "".join(x for x in factor.indices if x not in network.signals[statement.out])


def _merge_classes(alike: dict[str, set[str]], pairs: Iterable[tuple[str, str]]) -> None:
    """Unites, for each pair, the sets of equivalent indices that contain its two members.

    Args:
        alike: maps an index to the set of all indices that are equivalent to it; changed in place.
        pairs: pairs of indices that are found to be equivalent.
    """
    for x, y in pairs:
        alike[x] |= alike[y]
        alike |= dict.fromkeys(alike[x], alike[x])
