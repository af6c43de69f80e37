"""Signals that have no negative entry, and functions that are linear there."""

from __future__ import annotations

from .language import Function, Network, Sum


def passes(network: Network, function: Function) -> bool:
    """A function is linear where its argument is: of degree one, and that has no negative entry."""
    return function.kind.homogeneous and function.source is not None and _positive(network, function.source.name)


def _positive(network: Network, signal: str) -> bool:
    """A signal has no negative entry: it is made of squares and of functions that have none."""
    s = network.producer(signal)
    if isinstance(s, Function):
        signed = s.kind.signed and s.source is not None and _positive(network, s.source.name)
        return s.kind.positive or s.kind.gaps or signed
    if isinstance(s, Sum):
        return all(_positive(network, x.name) for x in s.terms)
    if s is None or s.tensor:
        return False
    return all(s.factors.count(x) % 2 == 0 or _positive(network, x.name) for x in s.factors)
