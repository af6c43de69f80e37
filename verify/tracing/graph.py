"""Represents torch tensors as views of graph nodes, and rewrites whole graphs.

A torch dimension consists of indices (``IndexClass``), the slowest first; ``x.view(-1)`` of a matrix has two. Indices
that are contracted or added become one class, whose sizes in all builds of the module tell its axis. Read next:
``reader.py`` (makes the graph), ``rules.py`` (calls).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from torch import Tensor

from .nodes import (
    ConstantNode,
    ContractionNode,
    EntryPick,
    FunctionNode,
    IndexClass,
    PerBuild,
    Sizes,
    TracedNode,
    join_indices,
    walk_graph,
)

NUMBER_IN_NAME = re.compile(r"(?<![A-Za-z_\[\d])\d+(?!\])")
"""A number in a parameter's name; the numbers of parts, in brackets, are no places in a loop."""


def multiply_factors(a: PerBuild, b: PerBuild) -> PerBuild:
    """Return the product of two factors, each a number in each build of the module; an empty tuple means 1."""
    return tuple(x * y for x, y in zip(a, b, strict=True)) if a and b else a or b


def rebuild_graph(root: TracedNode, change: Callable[[TracedNode], TracedNode]) -> TracedNode:
    """Return a copy of the graph that ends in ``root``, with each node replaced by what ``change`` returns for it.

    The sources of a node are changed before the node, so that ``change`` gets a node that reads changed sources.
    """
    made: dict[int, TracedNode] = {}
    for node in walk_graph(root):
        sources = tuple((made[c.number], labels) for c, labels in node.sources)
        made[node.number] = change(node.with_sources(sources))
    return made[root.number]


def remove_slot(indices: Sequence[IndexClass], slot: int) -> list[IndexClass]:
    """Return a list of indices without the one at position ``slot``."""
    return [x for k, x in enumerate(indices) if k != slot]


def push_slice_down(node: TracedNode, slot: int, change: Callable[[TracedNode, int], TracedNode]) -> TracedNode:
    """Return a node with one dimension changed, by changing it in the sources: a slice of (W x + b) is W[:k] x + b[:k].

    The change may be a slice, as here, or may split the dimension into several or remove it.

    Args:
        node: The node.
        slot: The number of the dimension.
        change: Returns a changed source, given the source and the number that the dimension has in it.
    """
    mine = slot
    if isinstance(node, ContractionNode):
        mine = node.out[slot]
    elif isinstance(node, EntryPick):
        mine += slot >= node.slot
    made, found = [], list[IndexClass]()
    for c, labels in node.sources:
        if mine in labels:
            at, c, before = labels.index(mine), change(c, labels.index(mine)), len(labels)
            here = c.indices[at : at + 1 + len(c.indices) - before]
            found = found or here
            for a, b in zip(found, here, strict=True):
                join_indices(a, b)
        made.append((c, labels))
    count, rest = len(found), len(found) - 1
    fresh = [mine + k for k in range(count)]
    more: dict[str, Any] = {"call": None}
    if isinstance(node, ContractionNode):
        fresh, rest = [max(node.labels) + 1 + k for k in range(count)], 0

    def replace_label(labels: Sequence[int]) -> tuple[int, ...]:
        return tuple(y for x in labels for y in (fresh if x == mine else [x + rest * (x > mine)]))

    if isinstance(node, ContractionNode):
        kept = {x: index for x, index in node.labels.items() if x != mine}
        more |= {"out": replace_label(node.out), "labels": kept | dict(zip(fresh, found, strict=True))}
    elif isinstance(node, FunctionNode):
        more["over"] = shift_slots(node.over, slot, count)
    elif isinstance(node, EntryPick):
        more["slot"] = node.slot + rest * (node.slot > mine)
    indices = [*node.indices[:slot], *found, *node.indices[slot + 1 :]]
    return node.copy_with(sources=tuple((c, replace_label(labels)) for c, labels in made), indices=indices, **more)


def shift_slots(slots: Iterable[Any], slot: int, count: int) -> tuple[Any, ...]:
    """Return the new numbers of dimensions after dimension ``slot`` was replaced by ``count`` dimensions.

    With ``slot`` 1 and ``count`` 2: 0 -> 0, 1 -> 1 and 2, 2 -> 3. Entries that are no numbers are left as they are.
    """
    return tuple(
        y
        for x in slots
        for y in ([x] if not isinstance(x, int) or x < slot else range(x, x + count) if x == slot else [x + count - 1])
    )


def describe_wiring(node: TracedNode) -> tuple[Any, ...]:
    """Return which dimensions of its sources a node multiplies, sums and keeps, independently of how labels are
    numbered.

    Two nodes with an equal result combine their sources in the same way; what the sources are does not matter.
    """
    if not isinstance(node, ContractionNode):
        return tuple(labels for _, labels in node.sources)
    names: dict[int, int] = {}
    read = tuple(tuple(names.setdefault(x, len(names)) for x in labels) for _, labels in node.sources)
    return *read, tuple(names[x] for x in node.out)


Dims = list[tuple[int | IndexClass, ...]]


@dataclass
class View:
    """A torch tensor, described by the graph node that has its entries and by how the dimensions of both correspond.

    Attributes:
        node: The node.
        dims: For each dimension of the tensor, the numbers of the dimensions of the node that it consists of, the
            slowest first. An index class in place of a number is a dimension that the node lacks, along which its
            entries are repeated (broadcast).
    """

    node: TracedNode
    dims: Dims

    @property
    def is_constant(self) -> bool:
        """Whether the tensor depends on no parameter and no input."""
        return isinstance(self.node, ConstantNode)

    @property
    def values(self) -> Sequence[Tensor]:
        """The entries of a constant tensor, in each build of the module."""
        assert isinstance(self.node, ConstantNode)
        return self.node.values

    def replace_dim(self, d: int, *dims: tuple[int | IndexClass, ...]) -> View:
        """Return the view with entry ``d`` of ``dims`` replaced by the given entries (none, one or several)."""
        return View(self.node, [*self.dims[:d], *dims, *self.dims[d + 1 :]])

    def get_index(self, entry: int | IndexClass) -> IndexClass:
        """Return the index class of an entry of ``dims``, which is the number of a dimension of the node, or a class
        already.
        """
        return (self.node.indices[entry] if isinstance(entry, int) else entry).find_root()

    def get_sizes(self, dim: int, builds: int) -> Sizes:
        """Return the size of a dimension of the tensor in each build of the module; ``builds`` is the number of
        builds.
        """
        sizes = [self.get_index(e).sizes for e in self.dims[dim]]
        return tuple(prod(column) for column in zip(*sizes, strict=True)) if sizes else (1,) * builds

    def to_torch(self, value: Tensor) -> Tensor:
        """Return the torch tensor, given the value of the node, by permuting, repeating and merging dimensions."""
        entries = [e for dim in self.dims for e in dim]
        value = value.permute([e for e in entries if isinstance(e, int)])
        for k, e in enumerate(entries):
            if not isinstance(e, int):
                value = value.unsqueeze(k)
        whole = [value.shape[k] if isinstance(e, int) else self.get_index(e).sizes[0] for k, e in enumerate(entries)]
        value, at, shape = value.expand(whole), 0, []
        for dim in self.dims:
            shape.append(prod(whole[at : at + len(dim)]))
            at += len(dim)
        return value.reshape(shape)

    def from_torch(self, value: Tensor, like: Tensor) -> Tensor:
        """Return the value of the node, given that of the torch tensor; the inverse of ``to_torch``.

        Args:
            value: The torch tensor.
            like: A tensor that has the shape of the result.
        """
        entries = [e for dim in self.dims for e in dim]
        whole = [like.shape[e] if isinstance(e, int) else self.get_index(e).sizes[0] for e in entries]
        value = value.reshape(whole)
        for k in reversed(range(len(entries))):
            if not isinstance(entries[k], int):
                value = value.select(k, 0)
        slots = [e for e in entries if isinstance(e, int)]
        return value.permute([slots.index(k) for k in range(len(slots))])
