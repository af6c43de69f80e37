"""What a network has besides the path to its output: auxiliary losses, and biases that only shift a selection."""

from __future__ import annotations

from collections.abc import Mapping

from .language import Function, Network, Product, cache_on_network


@cache_on_network
def find_auxiliary(network: Network) -> frozenset[str]:
    """Returns the signals that are used for auxiliary losses only, not for the output. The losses themselves are
    among them.
    """
    found = {*network.losses}
    for s in reversed(network.statements):
        readers = {x.out for x, _ in network.consumers(s.out)}
        found |= {s.out} if readers and readers <= found else set()
    return frozenset(found)


def name_weight(network: Network, loss: str) -> str:
    """Returns the name of the multiplier that weighs an auxiliary loss."""
    statement = network.producer(loss)
    assert isinstance(statement, Product)
    return statement.multipliers[0]


@cache_on_network
def find_selection_inputs(network: Network) -> Mapping[str, Function]:
    """Finds the signals that are computed by a tensor and used only for a top-K selection, directly or through other
    signals. They have no gradient.

    Returns:
        For each such signal, the selection that it is used for.
    """
    only: dict[str, Function] = {}
    for s in reversed(network.statements):
        readers = [x if isinstance(x, Function) and x.masks else only.get(x.out) for x, _ in network.consumers(s.out)]
        if readers and (first := readers[0]) and all(readers):
            only[s.out] = first
    return {s.out: only[s.out] for s in network.linear if s.out in only}


@cache_on_network
def find_buffers(network: Network) -> tuple[str, ...]:
    """Returns the roles of tensors that are only added to the scores of a top-K selection, which have no gradient.

    The update of such a tensor is the sign of a count: the number of tokens that chose an entry, minus its mean.
    """
    outs = {role: {s.out for s in network.uses(role)} for role in network.tensors}
    return tuple(role for role, x in outs.items() if x and x <= find_selection_inputs(network).keys())
