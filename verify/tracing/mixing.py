"""A signal and its own entries in another order: of one size, but another signal where both meet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from .nodes import Contraction, Parameter, Permutation, TracedNode, asked_once, walk

Mix = tuple[TracedNode, Permutation, frozenset[str]]
"""A signal, its entries in another order, and the tensors that act on them before."""
Way = tuple[Any, ...]
"""Something, and the tensors that act on it before, of one product at most."""


@asked_once
def mixes(node: TracedNode) -> frozenset[Mix]:
    """What a node is made of in another order."""
    if isinstance(node, Permutation):
        return frozenset(((node.source, node, frozenset[str]()), *mixes(node.source)))
    return frozenset(_below(node, mixes))


def _below(node: TracedNode, of: Callable[[TracedNode], Iterable[Way]]) -> Iterator[Way]:
    """What a node has of its sources, with the names of the tensors that act on it here; once at most."""
    weights = [c for c in node.children if c.weight] if isinstance(node, Contraction) else []
    for child in node.children:
        names = frozenset(x.name for c in weights if c is not child for x in walk(c) if isinstance(x, Parameter))
        yield from ((*what, path | names) for *what, path in of(child) if not (path and names))


@asked_once
def _known_ways(whole: TracedNode) -> dict[int, frozenset[Way]]:
    """What ``_ways`` has said of a signal."""
    return {}


def _ways(node: TracedNode, whole: TracedNode) -> frozenset[Way]:
    """The tensors that act on a signal, in its own order, before it gets to a node, by every way."""
    known = _known_ways(whole)
    for x in walk(node, known):
        mixed = isinstance(x, Permutation) and x.source is whole and bool(mixes(x) - mixes(whole))
        below = () if mixed else _below(x, lambda c: known[c.number])
        known[x.number] = frozenset([(frozenset(),)] if x is whole else below)
    return known[node.number]


def met(nodes: Sequence[TracedNode]) -> Mix | None:
    """The signal, and its entries in another order, that different ones of some nodes are made of."""
    for k, node in enumerate(nodes):
        for whole, mixed, path in mixes(node):
            for other in (x for j, x in enumerate(nodes) if j != k):
                again = any(w is whole and m is not mixed and p == path for w, m, p in mixes(other))
                if again or (path,) in _ways(other, whole):
                    return whole, mixed, path
    return None


def signed(node: TracedNode) -> bool:
    """Has a part of a signal in another order another sign, which no tensor makes alike?"""
    return any(not path and mixed.signed for _, mixed, path in mixes(node))
