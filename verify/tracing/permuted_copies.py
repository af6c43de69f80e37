"""Permuted copies of a signal (rotary's swapped halves).

A permutation P keeps the size, but x and P x are different signals in a product or a sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from .nodes import ContractionNode, Parameter, Permutation, TracedNode, asked_once, walk

Mix = tuple[TracedNode, Permutation, frozenset[str]]
"""A signal, its permuted copy, and the names of the parameters that act on the copy before it meets others."""
Way = tuple[Any, ...]
"""Something, and last the names of the parameters of the one product, at most, that acts on it."""


@asked_once
def mixes(node: TracedNode) -> frozenset[Mix]:
    """Return the permuted copies that a node is computed from."""
    if isinstance(node, Permutation):
        return frozenset(((node.source, node, frozenset[str]()), *mixes(node.source)))
    return frozenset(_below(node, mixes))


def _below(node: TracedNode, of: Callable[[TracedNode], Iterable[Way]]) -> Iterator[Way]:
    """Yield what the sources of a node are computed from, with the names of the parameters that act on it here."""
    weights = [c for c in node.children if c.weight] if isinstance(node, ContractionNode) else []
    for child in node.children:
        names = frozenset(x.name for c in weights if c is not child for x in walk(c) if isinstance(x, Parameter))
        yield from ((*what, path | names) for *what, path in of(child) if not (path and names))


@asked_once
def _known_ways(whole: TracedNode) -> dict[int, frozenset[Way]]:
    """Return the answers of ``_ways`` for a signal, by number of the node."""
    return {}


def _ways(node: TracedNode, whole: TracedNode) -> frozenset[Way]:
    """Return, for every path from an unpermuted signal to a node, the names of the parameters that act on it."""
    known = _known_ways(whole)
    for x in walk(node, known):
        mixed = isinstance(x, Permutation) and x.source is whole and bool(mixes(x) - mixes(whole))
        below = () if mixed else _below(x, lambda c: known[c.number])
        known[x.number] = frozenset([(frozenset(),)] if x is whole else below)
    return known[node.number]


def find_permuted_pair(nodes: Sequence[TracedNode]) -> Mix | None:
    """Return a signal and its permuted copy that two of some nodes are computed from; None if there is none."""
    for k, node in enumerate(nodes):
        for whole, mixed, path in mixes(node):
            for other in (x for j, x in enumerate(nodes) if j != k):
                again = any(w is whole and m is not mixed and p == path for w, m, p in mixes(other))
                if again or (path,) in _ways(other, whole):
                    return whole, mixed, path
    return None


def signed(node: TracedNode) -> bool:
    """Return whether some entries have another sign, and no parameter acts on them in between."""
    return any(not path and mixed.signed for _, mixed, path in mixes(node))
