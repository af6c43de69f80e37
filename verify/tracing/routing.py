"""Rules that read the selection of experts (top-K, gather), embeddings and masks as equations.

Read next: ``data_movement.py`` (indices), ``rules.py``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .elementwise import add_broadcast_dims, apply_function, check_shares, derive_same_size
from .graph import View
from .nodes import DataNode, FunctionNode, IndexClass, PartialTopK, Selection
from .products import contract_views
from .reader import Reader
from .rule_table import register_rule
from .slicing import select_entries


def find_dim_slots(reader: Reader, x: View, d: int) -> tuple[int, ...]:
    """Returns the numbers of the node's dimensions of which dimension d of a view consists.

    Raises:
        Unreadable: the dimension has size 1, or entries only repeat along it (broadcasting).
    """
    slots = tuple(e for e in x.dims[d] if isinstance(e, int))
    if len(slots) != len(x.dims[d]) or not slots:
        raise reader.fail("acts along a dimension that has size 1 or is expanded; call it before expanding the tensor")
    return slots


def apply_selection(reader: Reader, name: str, x: View, over: tuple[int, ...], k: int) -> View:
    """Selects the k largest scores along a dimension and sets the others to zero; a softmax or sigmoid may be
    applied, too.

    Args:
        reader: the reader.
        name: what the selected entries are: ``topk`` (the scores themselves), ``topk_softmax`` (softmax over the
            selected scores), ``softmax_topk`` (softmax over all scores), ``topk_sigmoid``, or ``normed_sigmoid_topk``
            (sigmoid divided by its sum over all scores).
        x: the scores.
        over: the number of the dimension in the node of x, as a tuple of one.
        k: number of selected scores.
    """
    (slot,) = over

    def compute_value(v: Tensor) -> Tensor:
        mask = torch.zeros_like(v).scatter(slot, v.topk(k, slot).indices, 1.0)
        if name == "topk_softmax":
            return v.masked_fill(mask == 0, float("-inf")).softmax(slot)
        gates = v.sigmoid() if "sigmoid" in name else v.softmax(slot) if name == "softmax_topk" else v
        return (gates / gates.sum(slot, keepdim=True) if name == "normed_sigmoid_topk" else gates) * mask

    return apply_function(reader, name, x, compute_value, over, Selection, count=k)


SELECTING_FUNCTIONS = {"softmax": "softmax_topk", "sigmoid": "topk_sigmoid", "normed_sigmoid": "normed_sigmoid_topk"}
"""Maps a function of the scores of all experts to the name of that function followed by a top-K."""


def _select_largest(reader: Reader, x: View, over: tuple[int, ...], k: int) -> View:
    """Selects the k largest entries along a dimension and sets the others to zero.

    If the entries are a softmax or sigmoid of scores, both become one function: topk(softmax(z))  ->  softmax_topk(z).

    Args:
        reader: the reader.
        x: the entries.
        over: the number of the dimension in the node of x, as a tuple of one.
        k: number of selected entries.
    """
    f = x.node
    if isinstance(f, FunctionNode) and f.name in SELECTING_FUNCTIONS and f.over in ((), over):
        return apply_selection(reader, SELECTING_FUNCTIONS[f.name], View(f.source, x.dims), over, k)
    return apply_selection(reader, "topk", x, over, k)


@register_rule("topk")
def read_topk(reader: Reader, x: View, k: Any, dim: int = -1, *_: Any, **__: Any) -> list[View]:
    """Reads ``torch.topk``: returns its values, and its indices as a constant.

    A top-K along experts was recorded with all of them selected (``recording.py``), in their own order. Its values
    are read as the scores, with all but the k largest set to zero.

    Raises:
        Unreadable: the dimension consists of several axes.
    """
    if not x.dims[dim]:
        return [x, *reader.make_result_constants(1)]
    over, most, sizes = find_dim_slots(reader, x, dim), reader.get_per_build(k), x.get_sizes(dim, reader.builds)
    if sizes != most and sizes == tuple(shape[dim] for shape in reader.shapes[0]):  # recorded with all selected
        if len({*most}) == 1:  # K is fixed: read as all
            return [x, *reader.make_result_constants(1)]
        reader.topk_counts = most
        return [_select_largest(reader, x, over, most[0]), *reader.make_result_constants(1)]
    if len(over) > 1:
        raise reader.fail("a top-K along several axes; give the scores one axis of candidates")
    (slot,) = over
    if most != sizes:  # refused only if it is used, as it may only select groups of experts
        few = x.node.derive(PartialTopK, reader.where, over=over, value_function=lambda v: v.topk(most[0], slot).values)
        few.indices[slot] = IndexClass(reader.repeat_per_build(most[0]))
        return [View(few, x.dims)] * 2
    return [_select_largest(reader, x, over, most[0]), *reader.make_result_constants(1)]


def _lists_all_experts(index: View, dim: int) -> bool:
    """Tests whether an index tensor is constant and counts 0, 1, 2, ... along a dimension, so that it selects all
    experts.
    """
    values = index.values if index.is_constant else ()
    return bool(values) and all(bool((v.movedim(dim, -1) == torch.arange(v.shape[dim])).all()) for v in values)


@register_rule("embedding")
def read_embedding(reader: Reader, ids: View, weight: View, *_: Any, **__: Any) -> View:
    """Returns the rows of a matrix that integer ids select; the ids are the input or constant positions.

    Rows selected by the input are a product with its one-hot encoding: y[b,o] = weight[v,o] onehot[b,v]. Rows
    selected by constant positions (position embeddings) are a part of the parameter.

    Args:
        reader: the reader.
        ids: the indices of the rows.
        weight: the matrix, one row for each entry of the vocabulary.

    Raises:
        Unreadable: the indices are neither the integer input nor constants along a single dimension.
    """
    if ids.is_constant:
        spots = [d for d, dim in enumerate(ids.dims) if dim]
        if len(spots) > 1:
            raise reader.fail(
                "an embedding of constant positions that vary along several dimensions; use one dimension"
            )
        table = select_entries(reader, weight, 0, ids.values[0].flatten())
        return View(table.node, [*(table.dims[0] if d in spots else () for d in range(len(ids.dims))), table.dims[1]])
    if not isinstance(ids.node, DataNode) or ids.node.value.is_floating_point():
        raise reader.fail("an embedding of ids that are not the integer input; pass the ids to the model as its input")
    number = ids.node.number
    if number not in reader.one_hot:
        count = weight.get_sizes(0, reader.builds)
        rows = IndexClass(count, ("data", "vocabulary"))
        value = F.one_hot(ids.node.value.long(), count[0]).double()
        reader.one_hot[number] = DataNode(indices=[*ids.node.indices, rows], value=value)
    hot = reader.one_hot[number]
    keys, read = list(range(len(ids.dims))), View(hot, [*ids.dims, (hot.slots[-1],)])
    return contract_views(reader, [(weight, ["v", "o"]), (read, [*keys, "v"])], [*keys, "o"])


@register_rule("where")
def read_where(reader: Reader, condition: View, x: Any, y: Any) -> View:
    """Returns x where the condition is true, otherwise y."""
    return _apply_mask(reader, condition, reader.convert_operand(x), reader.convert_operand(y))


@register_rule("masked_fill")
def read_masked_fill(reader: Reader, x: View, mask: View, value: Any) -> View:
    """Returns the value where the mask is true, otherwise x."""
    return _apply_mask(reader, mask, reader.convert_operand(value), x)


def _apply_mask(reader: Reader, mask: View, x: View, y: View) -> View:
    """Returns x where the mask is true, otherwise y; one of the two is a constant.

    Equations leave the mask out, with a note: the result is read as the one that is no constant.

    Raises:
        Unreadable: the mask is computed, both are signals, or the constant is neither 0 nor a large negative number.
    """
    if not mask.is_constant:
        raise reader.fail("the mask depends on computed values, which no equation can express; use a constant mask")
    if not (x.is_constant or y.is_constant):
        raise reader.fail("selects between two signals; multiply each by a constant mask and add them")
    check_shares(reader, mask.values)
    m = mask.values[0].bool()
    m, kept, value = (m, x, y.values[0]) if y.is_constant else (~m, y, x.values[0])
    if float(value.max()) >= -1e3 and not m.all() and float(value.abs().max()) > 0:
        raise reader.fail("sets entries to a constant; only 0 and values below -1000 (masks of a softmax) can be read")
    note = "" if m.all() else "a mask is left out"
    return derive_same_size(
        reader, add_broadcast_dims(kept, mask), lambda v: torch.where(m, v, value.to(v.dtype)), note=note
    )


@register_rule("gather")
def read_gather(reader: Reader, x: View, dim: int, index: View, **_: Any) -> View:
    """Reads ``torch.gather`` of the scores of selected experts: the k largest scores, with zero for the other experts.

    Args:
        reader: the reader.
        x: the scores of all experts.
        dim: the dimension of the experts.
        index: the selected experts, from a top-K that was recorded with all experts selected.

    Raises:
        Unreadable: the index does not count all experts in order.
    """
    over, k = find_dim_slots(reader, x, dim), x.get_sizes(dim, reader.builds)
    if not _lists_all_experts(index, dim) or len(over) > 1 or index.values[0].shape[dim] != k[0]:
        raise reader.fail("gathers the scores of some experts only; let build take K, which is traced with K = M")
    return _select_largest(reader, x, over, (reader.topk_counts or k)[0])


@register_rule("take_along_dim")
def read_take_along_dim(reader: Reader, x: View, indices: View, dim: int = -1) -> View:
    """Returns the same as ``read_gather``, for ``torch.take_along_dim``."""
    return read_gather(reader, x, dim, indices)
