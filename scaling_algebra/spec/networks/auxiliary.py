"""What a network has beside the way to its output: losses that are added to it, and biases that shift a selection."""

from __future__ import annotations

from collections.abc import Mapping

from .language import Function, Network, Product, remembered


@remembered
def aside(network: Network) -> frozenset[str]:
    """Signals that lead to losses beside the output alone, these among them."""
    found = {*network.losses}
    for s in reversed(network.statements):
        readers = {x.out for x, _ in network.consumers(s.out)}
        found |= {s.out} if readers and readers <= found else set()
    return frozenset(found)


def weight_of(network: Network, loss: str) -> str:
    """The multiplier that weighs a loss beside the output."""
    statement = network.producer(loss)
    assert isinstance(statement, Product)
    return statement.multipliers[0]


@remembered
def counted(network: Network) -> Mapping[str, Function]:
    """Outputs of tensors that nothing but selections read, each with its selection. They have no gradient."""
    only: dict[str, Function] = {}
    for s in reversed(network.statements):
        readers = [x if isinstance(x, Function) and x.masks else only.get(x.out) for x, _ in network.consumers(s.out)]
        if readers and (first := readers[0]) and all(readers):
            only[s.out] = first
    return {s.out: only[s.out] for s in network.linear if s.out in only}


@remembered
def buffers(network: Network) -> tuple[str, ...]:
    """Tensors that only shift a selection: each step is the sign of a count of tokens, and no gradient."""
    outs = {role: {s.out for s in network.uses(role)} for role in network.tensors}
    return tuple(role for role, x in outs.items() if x and x <= counted(network).keys())
