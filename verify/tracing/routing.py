"""Rows of the table for softmax, for the choice of experts, and for what is read or written where tokens chose.

Read next: ``layout.py`` (indices), ``rules.py``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .calls import rule
from .elementwise import check_shares, function_of, same_size, spread
from .graph import View
from .indices import select_entries
from .nodes import DataNode, FewChosen, FunctionNode, IndexClass, Selection
from .products import contract
from .reading import Reader


def slots_along(reader: Reader, x: View, d: int) -> tuple[int, ...]:
    slots = tuple(e for e in x.dims[d] if isinstance(e, int))
    if len(slots) != len(x.dims[d]) or not slots:
        raise reader.fail("along a dimension of one entry, or one that repeats")
    return slots


def selection(reader: Reader, name: str, x: View, over: tuple[int, ...], k: int) -> View:
    """The k largest along a slot, the others zero.

    Args:
        name: ``topk``; ``topk_softmax``, normalised over the chosen; ``softmax_topk``, over all; ``topk_sigmoid``;
            ``normed_sigmoid_topk``, divided by the sum over all.
    """
    (slot,) = over

    def exact(v: Tensor) -> Tensor:
        mask = torch.zeros_like(v).scatter(slot, v.topk(k, slot).indices, 1.0)
        if name == "topk_softmax":
            return v.masked_fill(mask == 0, float("-inf")).softmax(slot)
        gates = v.sigmoid() if "sigmoid" in name else v.softmax(slot) if name == "softmax_topk" else v
        return (gates / gates.sum(slot, keepdim=True) if name == "normed_sigmoid_topk" else gates) * mask

    return function_of(reader, name, x, exact, over, Selection, count=k)


SELECTED = {"softmax": "softmax_topk", "sigmoid": "topk_sigmoid", "normed_sigmoid": "normed_sigmoid_topk"}
"""Functions over all experts, and what the largest of them are."""


def _largest(reader: Reader, x: View, over: tuple[int, ...], k: int) -> View:
    """The largest of scores, perhaps behind a function of all of them."""
    f = x.node
    if isinstance(f, FunctionNode) and f.name in SELECTED and f.over in ((), over):
        return selection(reader, SELECTED[f.name], View(f.source, x.dims), over, k)
    return selection(reader, "topk", x, over, k)


@rule("topk")
def topk(reader: Reader, x: View, k: Any, dim: int = -1, *_: Any, **__: Any) -> list[View]:
    if not x.dims[dim]:
        return [x, *reader.constants(1)]
    over, most, sizes = slots_along(reader, x, dim), reader.vector(k), x.sizes(dim, reader.builds)
    if sizes != most and sizes == tuple(shape[dim] for shape in reader.shapes[0]):  # recorded with all of them
        if len({*most}) == 1:  # of a number that does not grow
            return [x, *reader.constants(1)]
        reader.chosen = most
        return [_largest(reader, x, over, most[0]), *reader.constants(1)]
    if len(over) > 1:
        raise reader.fail("a top-K along several axes")
    (slot,) = over
    if most != sizes:  # refused where it is used; groups of experts are chosen by it
        few = x.node.derive(FewChosen, reader.where, over=over, exact=lambda v: v.topk(most[0], slot).values)
        few.indices[slot] = IndexClass(reader.same_everywhere(most[0]))
        return [View(few, x.dims)] * 2
    return [_largest(reader, x, over, most[0]), *reader.constants(1)]


def _ordered(index: View, dim: int) -> bool:
    """Is an index of what is chosen that of all, in their order?"""
    values = index.values if index.is_constant else ()
    return bool(values) and all(bool((v.movedim(dim, -1) == torch.arange(v.shape[dim])).all()) for v in values)


@rule("embedding")
def embedding(reader: Reader, ids: View, weight: View, *_: Any, **__: Any) -> View:
    """A product with one-hot data; rows by position are a tensor that acts on nothing."""
    if ids.is_constant:
        spots = [d for d, dim in enumerate(ids.dims) if dim]
        if len(spots) > 1:
            raise reader.fail("positions along several axes")
        table = select_entries(reader, weight, 0, ids.values[0].flatten())
        return View(table.node, [*(table.dims[0] if d in spots else () for d in range(len(ids.dims))), table.dims[1]])
    if not isinstance(ids.node, DataNode) or ids.node.value.is_floating_point():
        raise reader.fail("an embedding of what is not the input, or not whole numbers")
    number = ids.node.number
    if number not in reader.one_hot:
        count = weight.sizes(0, reader.builds)
        rows = IndexClass(count, ("data", "vocabulary"))
        value = F.one_hot(ids.node.value.long(), count[0]).double()
        reader.one_hot[number] = DataNode(indices=[*ids.node.indices, rows], value=value)
    hot = reader.one_hot[number]
    keys, read = list(range(len(ids.dims))), View(hot, [*ids.dims, (hot.slots[-1],)])
    return contract(reader, [(weight, ["v", "o"]), (read, [*keys, "v"])], [*keys, "o"])


@rule("where")
def where(reader: Reader, condition: View, x: Any, y: Any) -> View:
    return _masked(reader, condition, reader.operand(x), reader.operand(y))


@rule("masked_fill")
def masked_fill(reader: Reader, x: View, mask: View, value: Any) -> View:
    return _masked(reader, mask, reader.operand(value), x)


def _masked(reader: Reader, mask: View, x: View, y: View) -> View:
    """x where the mask is true, else y."""
    if not mask.is_constant:
        raise reader.fail("a choice by what is computed")
    if not (x.is_constant or y.is_constant):
        raise reader.fail("a choice between two signals")
    check_shares(reader, mask.values)
    m = mask.values[0].bool()
    m, kept, value = (m, x, y.values[0]) if y.is_constant else (~m, y, x.values[0])
    if float(value.max()) >= -1e3 and not m.all() and float(value.abs().max()) > 0:
        raise reader.fail("entries are set to a constant")
    note = "" if m.all() else "a mask is left out"
    return same_size(reader, spread(kept, mask), lambda v: torch.where(m, v, value.to(v.dtype)), note=note)


@rule("gather")
def gather(reader: Reader, x: View, dim: int, index: View, **_: Any) -> View:
    """Scores of the chosen experts, in the order of the experts."""
    over, k = slots_along(reader, x, dim), x.sizes(dim, reader.builds)
    if not _ordered(index, dim) or len(over) > 1 or index.values[0].shape[dim] != k[0]:
        raise reader.fail("a gather of some experts; let build take K, which is traced with K = M")
    return _largest(reader, x, over, (reader.chosen or k)[0])


@rule("take_along_dim")
def take_along_dim(reader: Reader, x: View, indices: View, dim: int = -1) -> View:
    return gather(reader, x, dim, indices)
