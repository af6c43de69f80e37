"""Signals that have no negative entry, and functions that are linear there."""

from __future__ import annotations

from .language import Function, Network, Sum


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
