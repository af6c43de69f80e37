"""What a signal is computed from: its tensors, the number of layers below it, and whether it can be negative."""

from __future__ import annotations

from collections.abc import Mapping

from .language import Function, Network, Product, Sum, cache_on_network
from .terms import expand_product


def find_tensors(network: Network, signal: str) -> frozenset[str]:
    """Returns the roles of all tensors that a signal is computed from."""
    return _map_tensors(network).get(signal, frozenset())


@cache_on_network
def _map_tensors(network: Network) -> Mapping[str, frozenset[str]]:
    """Returns, for every signal, the roles of the tensors that it is computed from."""
    behind: dict[str, frozenset[str]] = {}
    for s in network.statements:
        own = {s.tensor.name} if isinstance(s, Product) and s.tensor else set()
        behind[s.out] = frozenset(own.union(*(behind.get(x.name, ()) for x in s.inputs)))
    return behind


def is_trained(network: Network, signal: str) -> bool:
    """Tests whether a signal is computed from at least one tensor that is trained."""
    return not find_tensors(network, signal) <= network.frozen


def find_last_tensors(network: Network, signal: str) -> frozenset[str]:
    """Returns the roles of tensors such that the signal is zero if all of them are zero: the last tensors on the
    paths from the data to the signal.

    The result is empty if there are no such tensors, as for the data and for the output of a function.
    """
    producer = network.producer(signal)
    if isinstance(producer, Sum):
        terms = [find_last_tensors(network, x.name) for x in producer.terms]
        return frozenset[str]().union(*terms) if all(terms) else frozenset()
    if not isinstance(producer, Product):
        return frozenset()
    here = frozenset(x.name for term in expand_product(network, producer) for x in term.tensors)
    return here or next(filter(None, (find_last_tensors(network, x.name) for x in producer.factors)), here)


def find_last_tensor(network: Network, signal: str) -> str:
    """Follows the first input of every statement back from a signal, up to the first product with a tensor. Returns
    the role of this tensor; empty if there is none.
    """
    statement = network.producer(signal)
    while statement is not None:
        if isinstance(statement, Product) and statement.tensor:
            return statement.tensor.name
        statement = network.producer(statement.inputs[0].name) if statement.inputs else None
    return ""


@cache_on_network
def count_depth(network: Network) -> int:
    """Returns the number of tensors on the longest path from the data to the output."""
    depths: dict[str, int] = {}
    for s in network.statements:
        before = max((depths.get(x.name, 0) for x in s.inputs), default=0)
        depths[s.out] = before + (isinstance(s, Product) and s.tensor is not None)
    return max(depths.values())


def is_linear(network: Network, function: Function) -> bool:
    """Tests whether a function acts linearly, as relu does on an argument without negative entries.

    This is so if f(c x) = c f(x) for every c > 0 and no entry of its argument is negative.
    """
    return function.kind.homogeneous and function.source is not None and _is_nonnegative(network, function.source.name)


def _is_nonnegative(network: Network, signal: str) -> bool:
    """Tests whether no entry of a signal is negative, since it is made of squares and of functions without negative
    values."""
    s = network.producer(signal)
    if isinstance(s, Function):
        signed = s.kind.signed and s.source is not None and _is_nonnegative(network, s.source.name)
        return s.kind.positive or s.kind.gaps or signed
    if isinstance(s, Sum):
        return all(_is_nonnegative(network, x.name) for x in s.terms)
    if s is None or s.tensor:
        return False
    return all(s.factors.count(x) % 2 == 0 or _is_nonnegative(network, x.name) for x in s.factors)
