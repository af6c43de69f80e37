"""Reads slices and single entries of tensors, by slicing the parameters and signals from which these are computed.

Read next: ``products.py``, ``data_movement.py`` (rules for views and slices).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .equation_constants import make_fixed_constant
from .graph import View, push_slice_down, remove_slot, shift_slots
from .nodes import (
    Concatenation,
    ContractionNode,
    EntryPick,
    EntrySelection,
    FixedConcatenation,
    FunctionNode,
    IndexClass,
    Parameter,
    Rotation,
    SameSizeNode,
    ShiftedSignal,
    Sizes,
    SumNode,
    TracedNode,
    Unreadable,
)
from .reader import Reader


def slice_node(reader: Reader, node: TracedNode, slot: int, start: Sizes, stop: Sizes) -> TracedNode:
    """Returns entries ``start`` to ``stop`` of a node along one dimension, by slicing the tensors it is computed from.

        slice of (W x + b)  ->  W[start:stop] x + b[start:stop]

    The result is cached.

    Args:
        reader: the reader.
        node: the node.
        slot: the dimension.
        start: position of the first entry, in each build of the module.
        stop: position after the last entry, in each build of the module.

    Raises:
        Unreadable: the node mixes entries along this dimension, or it is not known whether it does.
    """
    key = node.number, slot, start, stop
    if key not in reader.slices:
        made = reader.slices[key] = _slice_uncached(reader, node, slot, start, stop)
        made.part = (node, slot, start, stop)
    return reader.slices[key]


def _slice_uncached(reader: Reader, node: TracedNode, slot: int, start: Sizes, stop: Sizes) -> TracedNode:
    """Computes the result of ``slice_node``, which caches it; the arguments are the same."""
    if isinstance(node, Parameter):
        key = (*min(node.indices[slot].find_root().leaves, key=str), "part", start, stop)
        found = reader.make_leaf_indices(key, tuple(b - a for a, b in zip(start, stop, strict=True)))
        indices = [*node.indices[:slot], *found, *node.indices[slot + 1 :]]
        value = node.value.narrow(slot, start[0], stop[0] - start[0]).reshape([x.find_root().sizes[0] for x in indices])
        axes = (*node.axes[:slot], *[node.axes[slot]] * len(found), *node.axes[slot + 1 :])
        return node.copy_with(indices=indices, name=f"{node.name}[{start[0]}]", value=value, axes=axes)
    if (beside := _find_concatenated_part(reader, node, slot, start, stop)) is not None:
        return beside
    if isinstance(node, Rotation):
        return _slice_rotation(reader, node, slot, start, stop)
    known = isinstance(node, ContractionNode | FunctionNode | EntryPick | SumNode) and not isinstance(
        node, FixedConcatenation
    )
    known = known or (isinstance(node, SameSizeNode | ShiftedSignal) and node.entrywise)
    if not known or slot in node.over:
        raise reader.fail(f"a slice along an axis that grows, of the result of {node}; slice its inputs instead")
    made = push_slice_down(node, slot, lambda c, s: slice_node(reader, c, s, start, stop))
    if len(made.indices) != len(node.indices) and node.over:
        raise reader.fail(f"a slice whose dimension is split after {node}; reshape before it")
    return made


def _slice_rotation(reader: Reader, node: TracedNode, slot: int, start: Sizes, stop: Sizes) -> TracedNode:
    """Returns a slice of the result of a rotation, such as rotary embeddings; the arguments are those of
    ``slice_node``.

    Raises:
        Unreadable: the rotation mixes entries of the slice with others.
    """
    first, n = start[0], stop[0] - start[0]
    shape = [index.find_root().sizes[0] for index in node.indices]
    turn = node.value_function
    assert turn is not None
    other = torch.ones(shape, dtype=torch.float64)
    other.narrow(slot, first, n).zero_()
    if bool(turn(other).narrow(slot, first, n).any()):
        raise reader.fail(
            "a slice of a rotated signal that separates entries which are rotated into each other; "
            "slice before the rotation"
        )
    inner = slice_node(reader, node.source, slot, start, stop)
    sizes = [index.find_root().sizes[0] for index in inner.indices]

    def compute_value(v: torch.Tensor) -> torch.Tensor:
        whole = torch.zeros(shape, dtype=v.dtype)
        whole.narrow(slot, first, n).copy_(v.reshape([*shape[:slot], n, *shape[slot + 1 :]]))
        return turn(whole).narrow(slot, first, n).reshape(sizes)

    return inner.derive(Rotation, reader.where, note=node.note, value_function=compute_value)


def _find_concatenated_part(
    reader: Reader, node: TracedNode, slot: int, start: Sizes, stop: Sizes
) -> TracedNode | None:
    """Returns the part of a concatenation that a slice of it cuts out exactly.

    ``torch.cat([a, b])[len(a):]  ->  b``

    Returns None if the node is no concatenation along this dimension, or if the slice from ``start`` to ``stop`` is not
    exactly one of its parts.
    """
    if isinstance(node, Concatenation | FixedConcatenation) and node.slot == slot and not node.note:
        for (made, labels), begin in zip(node.sources, node.begins, strict=True):
            if sorted(labels) != [*node.slots]:
                return None
            size = made.indices[labels.index(slot)].find_root().sizes
            if (begin, tuple(a + n for a, n in zip(begin, size, strict=True))) == (start, stop):
                return made.sum_to(tuple(map(labels.index, node.slots)), reader.where)
    return None


def slice_view(reader: Reader, x: View, d: int, start: Sizes, stop: Sizes) -> View:
    """Returns ``x[start:stop]`` along dimension d, which must consist of a single index.

    Args:
        reader: the reader.
        x: the view.
        d: the dimension.
        start: position of the first entry, in each build of the module.
        stop: position after the last entry, in each build of the module.
    """
    (e,) = x.dims[d]
    if not isinstance(e, int):
        return x.replace_dim(d, (IndexClass([b - a for a, b in zip(start, stop, strict=True)]),))
    try:
        made = slice_node(reader, x.node, e, start, stop)
        count = 1 + len(made.indices) - len(x.node.indices)
        return View(made, [shift_slots(dim, e, count) for dim in x.dims])
    except Unreadable:
        if x.get_index(e).fixed:
            return select_entries(reader, x, d, torch.arange(start[0], stop[0]))
        raise


def select_entries(reader: Reader, x: View, d: int, at: Tensor) -> View:
    """Returns the entries at given positions along a dimension of fixed size, as ``torch.index_select`` does.

    Args:
        reader: the reader.
        x: the view.
        d: the dimension.
        at: the positions, a tensor of integers.

    Raises:
        Unreadable: the dimension grows, or consists of several indices.
    """
    entries = x.dims[d]
    if any(not x.get_index(e).fixed for e in entries):
        raise reader.fail("an index selects entries of an axis that grows; use a slice or a parameter")
    if not entries:
        return x
    if len(entries) > 1 or not isinstance(keep := entries[0], int):
        raise reader.fail("an index selects entries of several axes at once; split the dimension first")
    if len(classes := reader.make_indices(reader.repeat_per_build(len(at)))) > 1:
        return _select_by_matrix(reader, x, keep, at, classes)
    node = x.node.derive(EntrySelection, reader.where, value_function=lambda v: v.index_select(keep, at))
    node.indices[keep] = classes[0] if classes else IndexClass(reader.repeat_per_build(1))
    node.part = None if x.get_index(keep).sizes[0] % len(at) else (x.node, keep, (int(at[0]),), (int(at[-1]) + 1,))
    return View(node, x.dims)


def _select_by_matrix(reader: Reader, x: View, keep: int, at: Tensor, classes: Sequence[IndexClass]) -> View:
    """Selects entries by a product with a constant 0-1 matrix, for the case that they form several new indices.

    Args:
        reader: the reader.
        x: the view.
        keep: the dimension of the node along which entries are selected.
        at: their positions.
        classes: the new indices; the product of their sizes is the number of entries.
    """
    n, old = len(x.node.indices), x.get_index(keep)
    new = tuple(range(n, n + len(classes)))
    matrix = make_fixed_constant(reader, [torch.eye(old.sizes[0])[at]] * reader.builds, [*classes, old], []).node
    of = dict(enumerate([*x.node.indices, *classes]))
    out = (*range(keep), *new, *range(keep + 1, n))
    sources = (matrix, (*new, keep)), (x.node, x.node.slots)
    indices = [of[k] for k in out]
    node = ContractionNode(indices=indices, where=reader.where, sources=sources, out=out, labels=of)
    return View(node, [shift_slots(dim, keep, len(new)) for dim in x.dims])


def select_entry(reader: Reader, x: View, d: int, at: Sizes) -> View:
    """Returns ``x.select(d, at)``: the entries at one position along a dimension, without this dimension.

    Args:
        reader: the reader.
        x: the view.
        d: the dimension.
        at: the position, in each build of the module.
    """
    entries, dims = x.dims[d], [*x.dims[:d], *x.dims[d + 1 :]]
    if len(entries) > 1:
        raise reader.fail("selects one entry of several axes at once; split the dimension first")
    if not entries or not isinstance(slot := entries[0], int):
        return View(x.node, dims)
    at = tuple(int(k) % n for k, n in zip(at, x.get_sizes(d, reader.builds), strict=True))
    key = x.node.number, slot, at
    if key not in reader.slices:
        made = reader.slices[key] = x.node.derive(EntryPick, reader.where, slot=slot, at=at)
        made.indices = remove_slot(made.indices, slot)
    down = [tuple(e - (e > slot) if isinstance(e, int) else e for e in dim) for dim in dims]
    return View(reader.slices[key], down)
