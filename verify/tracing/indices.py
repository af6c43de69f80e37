"""Dimensions of views: slices that are pushed to the tensors, entries, other shapes; constants of the equations.

Read next: ``products.py``, ``layout.py`` (rows for views and slices).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .graph import Dims, View, moved, push_down, without
from .nodes import (
    Blend,
    Concatenation,
    ContractionNode,
    Entries,
    EquationConstant,
    FunctionNode,
    IndexClass,
    Parameter,
    Pick,
    Rotation,
    SameSize,
    Shift,
    Sizes,
    SumNode,
    TracedNode,
    Unreadable,
)
from .reading import Reader


def part_of(reader: Reader, node: TracedNode, slot: int, start: Sizes, stop: Sizes) -> TracedNode:
    """A part of a slot, pushed down to the tensors; a part of a tensor may be taken apart.

    Raises:
        Unreadable: of what mixes the parts.
    """
    key = node.number, slot, start, stop
    if key not in reader.cut:
        made = reader.cut[key] = _part(reader, node, slot, start, stop)
        made.part = (node, slot, start, stop)
    return reader.cut[key]


def _part(reader: Reader, node: TracedNode, slot: int, start: Sizes, stop: Sizes) -> TracedNode:
    if isinstance(node, Parameter):
        key = (*min(node.indices[slot].root().leaves, key=str), "part", start, stop)
        found = reader.leaf(key, tuple(b - a for a, b in zip(start, stop, strict=True)))
        indices = [*node.indices[:slot], *found, *node.indices[slot + 1 :]]
        value = node.value.narrow(slot, start[0], stop[0] - start[0]).reshape([x.root().sizes[0] for x in indices])
        axes = (*node.axes[:slot], *[node.axes[slot]] * len(found), *node.axes[slot + 1 :])
        return node.but(indices=indices, name=f"{node.name}[{start[0]}]", value=value, axes=axes)
    if (beside := _put_beside(reader, node, slot, start, stop)) is not None:
        return beside
    if isinstance(node, Rotation):
        return _turned_part(reader, node, slot, start, stop)
    known = isinstance(node, ContractionNode | FunctionNode | Pick | SumNode) and not isinstance(node, Blend)
    known = known or (isinstance(node, SameSize | Shift) and node.entrywise)
    if not known or slot in node.over:
        raise reader.fail(f"a slice along an axis that grows, of a {node}; no equation says this")
    made = push_down(node, slot, lambda c, s: part_of(reader, c, s, start, stop))
    if len(made.indices) != len(node.indices) and node.over:
        raise reader.fail(f"a slice that is taken apart behind {node}; take the dimension apart first")
    return made


def _turned_part(reader: Reader, node: TracedNode, slot: int, start: Sizes, stop: Sizes) -> TracedNode:
    """A part of entries that turn among each other.

    Raises:
        Unreadable: others are turned into them.
    """
    first, n = start[0], stop[0] - start[0]
    shape = [index.root().sizes[0] for index in node.indices]
    turn = node.exact
    assert turn is not None
    other = torch.ones(shape, dtype=torch.float64)
    other.narrow(slot, first, n).zero_()
    if bool(turn(other).narrow(slot, first, n).any()):
        raise reader.fail("a slice along an axis that grows, of entries that turn into others")
    inner = part_of(reader, node.source, slot, start, stop)
    sizes = [index.root().sizes[0] for index in inner.indices]

    def exact(v: torch.Tensor) -> torch.Tensor:
        whole = torch.zeros(shape, dtype=v.dtype)
        whole.narrow(slot, first, n).copy_(v.reshape([*shape[:slot], n, *shape[slot + 1 :]]))
        return turn(whole).narrow(slot, first, n).reshape(sizes)

    return inner.derive(Rotation, reader.where, note=node.note, exact=exact)


def _put_beside(reader: Reader, node: TracedNode, slot: int, start: Sizes, stop: Sizes) -> TracedNode | None:
    """The part of what was put beside each other that one of it is."""
    if isinstance(node, Concatenation | Blend) and node.slot == slot and not node.note:
        for (made, labels), begin in zip(node.sources, node.begins, strict=True):
            if sorted(labels) != [*node.slots]:
                return None
            size = made.indices[labels.index(slot)].root().sizes
            if (begin, tuple(a + n for a, n in zip(begin, size, strict=True))) == (start, stop):
                return made.sum_to(tuple(map(labels.index, node.slots)), reader.where)
    return None


def narrowed(reader: Reader, x: View, d: int, start: Sizes, stop: Sizes) -> View:
    """x[start:stop] along a dimension of one index; bounds at every build."""
    (e,) = x.dims[d]
    if not isinstance(e, int):
        return x.with_dim(d, (IndexClass([b - a for a, b in zip(start, stop, strict=True)]),))
    try:
        made = part_of(reader, x.node, e, start, stop)
        count = 1 + len(made.indices) - len(x.node.indices)
        return View(made, [moved(dim, e, count) for dim in x.dims])
    except Unreadable:
        if x.index(e).fixed:
            return entries_of(reader, x, d, torch.arange(start[0], stop[0]))
        raise


def entries_of(reader: Reader, x: View, d: int, at: Tensor) -> View:
    """Entries of a Theta(1) dimension: of the size of the whole."""
    entries = x.dims[d]
    if any(not x.index(e).fixed for e in entries):
        raise reader.fail("entries of an axis that grows are chosen by an index")
    if not entries:
        return x
    if len(entries) > 1 or not isinstance(keep := entries[0], int):
        raise reader.fail("entries of several axes at once")
    if len(classes := reader.fresh(reader.same_everywhere(len(at)))) > 1:
        return _matrix_of(reader, x, keep, at, classes)
    node = x.node.derive(Entries, reader.where, exact=lambda v: v.index_select(keep, at))
    node.indices[keep] = classes[0] if classes else IndexClass(reader.same_everywhere(1))
    node.part = None if x.index(keep).sizes[0] % len(at) else (x.node, keep, (int(at[0]),), (int(at[-1]) + 1,))
    return View(node, x.dims)


def _matrix_of(reader: Reader, x: View, keep: int, at: Tensor, classes: Sequence[IndexClass]) -> View:
    """Entries along several indices: a matrix times the whole."""
    n, old = len(x.node.indices), x.index(keep)
    new = tuple(range(n, n + len(classes)))
    matrix = fixed(reader, [torch.eye(old.sizes[0])[at]] * reader.builds, [*classes, old], []).node
    of = dict(enumerate([*x.node.indices, *classes]))
    out = (*range(keep), *new, *range(keep + 1, n))
    sources = (matrix, (*new, keep)), (x.node, x.node.slots)
    indices = [of[k] for k in out]
    node = ContractionNode(indices=indices, where=reader.where, sources=sources, out=out, labels=of)
    return View(node, [moved(dim, keep, len(new)) for dim in x.dims])


def pick(reader: Reader, x: View, d: int, at: Sizes) -> View:
    """One entry along a dimension, which goes."""
    entries, dims = x.dims[d], [*x.dims[:d], *x.dims[d + 1 :]]
    if len(entries) > 1:
        raise reader.fail("one entry of several axes at once; take the dimension apart first")
    if not entries or not isinstance(slot := entries[0], int):
        return View(x.node, dims)
    at = tuple(int(k) % n for k, n in zip(at, x.sizes(d, reader.builds), strict=True))
    key = x.node.number, slot, at
    if key not in reader.cut:
        made = reader.cut[key] = x.node.derive(Pick, reader.where, slot=slot, at=at)
        made.indices = without(made.indices, slot)
    down = [tuple(e - (e > slot) if isinstance(e, int) else e for e in dim) for dim in dims]
    return View(reader.cut[key], down)


# constants of a call as constants of the equations ------------------------------------------------------------


def fixed(
    reader: Reader,
    values: Sequence[Tensor],
    classes: Sequence[IndexClass],
    dims: Dims,
    kind: type[EquationConstant] = EquationConstant,
) -> View:
    """A constant of the equations.

    Args:
        values: at every build. classes: of its indices. dims: the indices of every dimension.

    Raises:
        Unreadable: entries that change with the sizes.
    """
    value = values[0].double().reshape([c.root().sizes[0] for c in classes])
    sizes = [float(v.double().square().mean().sqrt()) for v in values]
    if min(sizes) <= 0 or max(sizes) > (1 + 1e-3) * min(sizes):
        raise reader.fail("a constant whose entries change with the sizes; no equation says this")
    mark = kind, tuple(value.shape), value.numpy().tobytes()
    node = reader.fixed.setdefault(mark, kind(indices=list(classes), where=reader.where, value=value))
    return View(node, dims)


def constant(reader: Reader, x: View) -> View:
    """A constant tensor of a call as one of the equations; along an axis that grows all of its entries are one.

    Raises:
        Unreadable: they are not.
    """
    classes: list[IndexClass] = []
    dims: Dims = []
    values = x.values
    for d, dim in enumerate(x.dims):
        own = [e for e in dim if isinstance(e, IndexClass)]
        if any(not e.fixed for e in own):
            values, own = alike(reader, values, d), []
        own = [y for e in own for y in ([e] if e.root().leaves else reader.fresh(e.root().sizes))]
        dims.append(tuple(range(len(classes), len(classes) + len(own))))
        classes += own
    return fixed(reader, values, classes, dims)


def differs(x: View) -> bool:
    """Do the entries of a constant differ along an axis that grows, and are they as large at every build?"""
    grows = [d for d, dim in enumerate(x.dims) if not all(x.index(e).fixed for e in dim)]
    sizes = [float(v.double().square().mean().sqrt()) for v in x.values]
    steady = max(sizes) <= 1.2 * min(sizes)
    return steady and any(bool((v.diff(dim=d) != 0).any()) for v in x.values for d in grows)


def alike(reader: Reader, values: Sequence[Tensor], d: int) -> list[Tensor]:
    """Values with one entry along a dimension.

    Raises:
        Unreadable: several differ.
    """
    if any(bool((v.diff(dim=d) != 0).any()) for v in values):
        raise reader.fail("a constant that differs along an axis that grows; make it a parameter, or data")
    return [v.narrow(d, 0, 1) for v in values]
