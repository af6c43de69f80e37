"""Finds out whether a node is computed from a permuted copy of a signal, such as the swapped halves in rotary
embeddings.

A permutation P keeps the size, and equations leave it out. They would therefore take x and P x in a product or a sum
for the same signal, which is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from .nodes import ContractionNode, Parameter, Permutation, TracedNode, cache_on_node, walk_graph

PermutedCopy = tuple[TracedNode, Permutation, frozenset[str]]
"""A signal, its permuted copy, and the names of the parameters that act on the copy before it meets others."""
ActingPath = tuple[Any, ...]
"""Something, and last the names of the parameters of the one product, at most, that acts on it."""


@cache_on_node
def find_permuted_copies(node: TracedNode) -> frozenset[PermutedCopy]:
    """Return which signals occur in permuted order in what a node is computed from.

    Each comes as (signal, its permuted copy, names of the parameters that multiply the copy on the way to the node).
    """
    if isinstance(node, Permutation):
        return frozenset(((node.source, node, frozenset[str]()), *find_permuted_copies(node.source)))
    return frozenset(_iterate_source_paths(node, find_permuted_copies))


def _iterate_source_paths(node: TracedNode, of: Callable[[TracedNode], Iterable[ActingPath]]) -> Iterator[ActingPath]:
    """Extend the paths that end in the sources of a node by the step from the source to the node.

    A path is a tuple that ends in the set of names of the parameters that multiply the signal on the way. If the node
    is a product with parameters, their names are added to this set. A path that would thus be multiplied by
    parameters twice is left out.

    Args:
        node: The node.
        of: Returns the paths that end in a source.

    Yields:
        The paths that end in the node.
    """
    weights = [c for c in node.children if c.is_weight] if isinstance(node, ContractionNode) else []
    for child in node.children:
        names = frozenset(x.name for c in weights if c is not child for x in walk_graph(c) if isinstance(x, Parameter))
        yield from ((*what, path | names) for *what, path in of(child) if not (path and names))


@cache_on_node
def _get_path_cache(whole: TracedNode) -> dict[int, frozenset[ActingPath]]:
    """Return the cache of ``_find_acting_paths`` for the signal ``whole``: number of a node -> its result for this
    node.
    """
    return {}


def _find_acting_paths(node: TracedNode, whole: TracedNode) -> frozenset[ActingPath]:
    """Return by which parameters a signal is multiplied on its way to a node.

    The result has a set of parameter names for each path from the signal to the node. Paths through a permutation of
    the signal are left out, and so are paths with two multiplications by parameters.

    Args:
        node: The node.
        whole: The signal.
    """
    known = _get_path_cache(whole)
    for x in walk_graph(node, known):
        mixed = (
            isinstance(x, Permutation)
            and x.source is whole
            and bool(find_permuted_copies(x) - find_permuted_copies(whole))
        )
        below = () if mixed else _iterate_source_paths(x, lambda c: known[c.number])
        known[x.number] = frozenset([(frozenset(),)] if x is whole else below)
    return known[node.number]


def find_permuted_pair(nodes: Sequence[TracedNode]) -> PermutedCopy | None:
    """Find two nodes that are computed from the same signal in different orders of its entries.

    One is computed from a permuted copy of the signal, the other from the signal itself or from another copy. The
    same parameters multiply the signal on both ways; otherwise the two count as unrelated.

    Returns:
        The signal, its permuted copy and the names of these parameters; None if there is no such pair.
    """
    for k, node in enumerate(nodes):
        for whole, mixed, path in find_permuted_copies(node):
            for other in (x for j, x in enumerate(nodes) if j != k):
                again = any(w is whole and m is not mixed and p == path for w, m, p in find_permuted_copies(other))
                if again or (path,) in _find_acting_paths(other, whole):
                    return whole, mixed, path
    return None


def has_negated_entries(node: TracedNode) -> bool:
    """Return whether a node contains a signal with some entries negated that no parameter has multiplied since."""
    return any(not path and mixed.signed for _, mixed, path in find_permuted_copies(node))
