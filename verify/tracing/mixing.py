"""Entries of a signal in another order (swapped halves): of its size, but another signal where both meet.

Law: rotary positions are a matrix on each pair of entries. Its determinant is above zero, so that no entry is lost, and
its trace, so that what it makes of a signal meets that signal as it does itself. Read next: ``layout.py`` (makes the
order).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from .graph import TracedNode, walk

Mix = tuple[TracedNode, TracedNode, frozenset[str]]
"""A signal, its entries in another order, and the tensors that act on them before."""
Way = tuple[Any, ...]
"""Something, and the tensors that act on it before, of one product at most."""
LEAST = 0.1
"""The least determinant and half trace, as shares of what the size of the matrix makes possible."""


def mixes(node: TracedNode) -> frozenset[Mix]:
    """What a node is made of in another order."""
    if "mixes" not in node.cache:
        own = [(node.source, node, frozenset[str]())] if node.name == "mixed" else ()
        node.cache["mixes"] = frozenset((*own, *(mixes(node.source) if own else _below(node, mixes))))
    known: frozenset[Mix] = node.cache["mixes"]
    return known


def settle(node: TracedNode, whole: TracedNode) -> None:
    """Lets a node count as the signal that it was made of."""
    node.cache["mixes"] = frozenset(x for c in node.children for x in mixes(c) if x[0] is not whole)


def _below(node: TracedNode, of: Callable[[TracedNode], Iterable[Way]]) -> Iterator[Way]:
    """What a node has of its sources, with the names of the tensors that act on it here; once at most."""
    weights = [c for c in node.children if c.weight] if node.kind == "contract" else []
    for child in node.children:
        names = frozenset(x.name for c in weights if c is not child for x in walk(c) if x.kind == "param")
        yield from ((*what, path | names) for *what, path in of(child) if not (path and names))


def _ways(node: TracedNode, whole: TracedNode) -> frozenset[Way]:
    """The tensors that act on a signal, in its own order, before it gets to a node, by every way."""
    key = "ways", whole.number
    if key not in node.cache:
        for x in [node] if all(key in c.cache for c in node.children) else walk(node):
            if key not in x.cache:
                mixed = x.name == "mixed" and x.source is whole and bool(mixes(x) - mixes(whole))
                below = () if mixed else _below(x, lambda c: c.cache[key])
                x.cache[key] = frozenset([(frozenset(),)] if x is whole else below)
    ways: frozenset[Way] = node.cache[key]
    return ways


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
    return any(not path and bool(mixed.at[1]) for _, mixed, path in mixes(node))


def remade(node: TracedNode, whole: TracedNode, value: Tensor) -> Tensor:
    """The value of a node where the signal that it is made of has another one."""
    values = {whole.number: value}
    for x in walk(node):
        if x.part is not None and x.part[0] is whole and whole not in x.children:
            _, slot, start, stop = x.part
            values[x.number] = value.narrow(slot, start[0], stop[0] - start[0])
    return node.evaluate(values)


def drawn(whole: TracedNode) -> Tensor:
    """Another value of a signal."""
    generator = torch.Generator().manual_seed(7)
    return torch.randn([x.root().sizes[0] for x in whole.indices], generator=generator, dtype=torch.float64)


def turns(made: Callable[[Tensor], Tensor], whole: TracedNode, mixed: TracedNode) -> bool:
    """Is a map of a signal a matrix on each of its pairs, with a determinant and a trace above zero on average?

    Args:
        made: the dimensions of the result are those of the signal, perhaps with others before.
    """
    if len(mixed.sources) != 3:
        return False
    slot, between = mixed.slot - len(whole.indices), bool(mixed.at[0])
    axis = slot if between else slot - 1

    def halves(v: Tensor) -> tuple[Tensor, ...]:
        return v.unflatten(slot, (-1, 2) if between else (2, -1)).unbind(axis)

    def joined(a: Tensor, b: Tensor) -> Tensor:
        return torch.stack((a, b), axis).flatten(slot - 1, slot)

    y = drawn(whole)
    a, b = halves(y)
    one, none = torch.ones_like(a), torch.zeros_like(a)
    (aa, ba), (ab, bb) = halves(made(joined(one, none))), halves(made(joined(none, one)))
    size = float((aa**2 + ab**2 + ba**2 + bb**2).mean()) / 2
    if not torch.allclose(made(y), joined(aa * a + ab * b, ba * a + bb * b), atol=1e-6 * size**0.5):
        return False
    return float((aa * bb - ab * ba).mean()) > LEAST * size and float((aa + bb).mean()) / 2 > LEAST * size**0.5
