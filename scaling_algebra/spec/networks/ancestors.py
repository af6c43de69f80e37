"""What a signal is computed from: the tensors behind it, how many stand in a row, and whether it has a sign."""

from __future__ import annotations

from collections.abc import Mapping

from .language import Function, Network, Product, Sum, remembered
from .terms import written_out


def tensors_of(network: Network, signal: str) -> frozenset[str]:
    """All tensors that a signal is computed from."""
    return _behind(network).get(signal, frozenset())


@remembered
def _behind(network: Network) -> Mapping[str, frozenset[str]]:
    behind: dict[str, frozenset[str]] = {}
    for s in network.statements:
        own = {s.tensor.name} if isinstance(s, Product) and s.tensor else set()
        behind[s.out] = frozenset(own.union(*(behind.get(x.name, ()) for x in s.inputs)))
    return behind


def learns(network: Network, signal: str) -> bool:
    """Is a signal computed from a tensor that trains?"""
    return not tensors_of(network, signal) <= network.frozen


def ends(network: Network, signal: str) -> frozenset[str]:
    """Tensors applied last on the way to a signal: where all of these are zero, it is."""
    producer = network.producer(signal)
    if isinstance(producer, Sum):
        terms = [ends(network, x.name) for x in producer.terms]
        return frozenset[str]().union(*terms) if all(terms) else frozenset()
    if not isinstance(producer, Product):
        return frozenset()
    here = frozenset(x.name for term in written_out(network, producer) for x in term.tensors)
    return here or next(filter(None, (ends(network, x.name) for x in producer.factors)), here)


def last_tensor(network: Network, signal: str) -> str:
    """The last tensor that a signal went through, along first inputs; empty where it went through none."""
    statement = network.producer(signal)
    while statement is not None:
        if isinstance(statement, Product) and statement.tensor:
            return statement.tensor.name
        statement = network.producer(statement.inputs[0].name) if statement.inputs else None
    return ""


@remembered
def depth(network: Network) -> int:
    """Tensors on the longest way from the data to the output."""
    depths: dict[str, int] = {}
    for s in network.statements:
        before = max((depths.get(x.name, 0) for x in s.inputs), default=0)
        depths[s.out] = before + (isinstance(s, Product) and s.tensor is not None)
    return max(depths.values())


def passes(network: Network, function: Function) -> bool:
    """Is a function linear on its argument? It is if its degree is one and the argument has no negative entry."""
    return function.kind.homogeneous and function.source is not None and _positive(network, function.source.name)


def _positive(network: Network, signal: str) -> bool:
    """Has a signal no negative entry, since it is made of squares and of functions without any?"""
    s = network.producer(signal)
    if isinstance(s, Function):
        signed = s.kind.signed and s.source is not None and _positive(network, s.source.name)
        return s.kind.positive or s.kind.gaps or signed
    if isinstance(s, Sum):
        return all(_positive(network, x.name) for x in s.terms)
    if s is None or s.tensor:
        return False
    return all(s.factors.count(x) % 2 == 0 or _positive(network, x.name) for x in s.factors)
