"""Rules for concatenations, stacks, and assignments to parts of new tensors.

Read next: ``data_movement.py`` (moves entries), ``products.py`` (sums over concatenations).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .data_movement import find_positions
from .equation_constants import convert_constant
from .graph import View
from .nodes import Concatenation, ConstantNode, FixedConcatenation, IndexClass, Parameter, PartialTensor
from .products import act_on_constant, assign_labels
from .reader import Reader
from .rule_table import register_rule


@register_rule("setitem")
def assign_item(reader: Reader, base: View, key: Any, value: Any) -> View:
    """Reads ``base[key] = value`` for a new tensor, such as one from ``torch.empty``.

    Once values are assigned to all of its parts, the tensor is the concatenation of these values.

    Raises:
        Unreadable: the assigned value is a Python number, or the parts are not contiguous along one dimension.
    """
    if not isinstance(value, View):
        raise reader.fail("assigns numbers to a part of a signal; multiply by a constant mask instead")
    call, sizes = reader.calls[0], reader.shapes[0][0]
    reads = replace(call, name="__getitem__", function=Tensor.__getitem__, arguments=call.arguments[:2])
    (written,) = find_positions(reads, reader.runs[0])
    places = [np.unique(x).tolist() for x in np.unravel_index(written, sizes)]
    cut = [(d, at) for d, at in enumerate(places) if len(at) < sizes[d]]
    if not cut:
        return value
    d, at = cut[0]
    before = base.node.pieces if isinstance(base.node, PartialTensor) else []
    new = isinstance(base.node, ConstantNode | PartialTensor) and at == [*range(at[0], at[-1] + 1)]
    if not new or len(cut) > 1 or any(piece[2] != d for piece in before):
        raise reader.fail("writes into a part of a tensor; torch.cat its parts")
    pieces = sorted([*before, (at[0], at[-1] + 1, d, value)], key=lambda piece: piece[:2])
    if [a for a, *_ in pieces] + [sizes[d]] == [0, *(b for _, b, *_ in pieces)]:
        return concatenate_views(reader, [v for *_, v in pieces], d, reader.shapes[0])
    return View(PartialTensor(pieces=pieces), base.dims)


@register_rule("cat")
def join_tensors(reader: Reader, given: Sequence[View], dim: int = 0) -> View:
    """Reads ``torch.cat``; constants without entries are ignored."""
    parts = [p for p in given if not p.is_constant or p.values[0].numel()]
    if len(parts) == 1:
        return parts[0]
    return concatenate_views(reader, parts, dim % len(parts[0].dims), reader.shapes[0])


@register_rule("stack")
def stack_tensors(reader: Reader, parts: Sequence[View], dim: int = 0) -> View:
    """Reads ``torch.stack`` as a concatenation along a new dimension of fixed size."""
    d = dim % len(reader.shapes[0][0])
    wide = [View(p.node, [*p.dims[:d], (), *p.dims[d:]]) for p in parts]
    return concatenate_views(reader, wide, d, reader.shapes[0])


def concatenate_views(reader: Reader, parts: Sequence[View], d: int, shapes: Sequence[Sequence[int]]) -> View:
    """Returns the concatenation of tensors along dimension d.

    Along an axis that grows, the parts stay separate until a product sums over the axis. Along an axis of fixed size,
    the concatenation is read as the sum of its parts, which is as large; constant parts are omitted there. Parts that
    are zero are always omitted.

    Args:
        reader: the reader.
        parts: the tensors.
        d: the dimension.
        shapes: the shape of the result in each build of the module.

    Raises:
        Unreadable: a part is expanded (broadcast) along the dimension, or the dimension consists of several indices.
    """
    live, sizes = [p for p in parts if not p.is_constant], tuple(shape[d] for shape in shapes)
    wide = [
        p.get_index(e) for p in live for k, dim in enumerate(p.dims) for e in dim if k == d or not isinstance(e, int)
    ]
    fixed = len(set(sizes)) == 1 and all(index.fixed for index in wide)
    begins, at = [], reader.repeat_per_build(0)
    for p in parts:
        begins.append(at)
        at = tuple(a + n for a, n in zip(at, p.get_sizes(d, reader.builds), strict=True))
    if not fixed:
        parts = [p if not p.is_constant or not p.values[0].any() else convert_constant(reader, p) for p in parts]
        live = [p for p in parts if not p.is_constant]
        begins = [begin for begin, p in zip(begins, parts, strict=True) if not p.is_constant]
        if any(not p.dims[d] or [*p.dims[d]] != sorted(e for e in p.dims[d] if isinstance(e, int)) for p in live):
            raise reader.fail(
                "concatenates a tensor that is expanded along this dimension; torch.cat tensors with "
                "entries of their own"
            )
    if fixed:  # equations have sums and products of weights only as acting on a constant
        parts = [
            act_on_constant(reader, p) if p.node.is_weight and not isinstance(p.node, Parameter) else p for p in parts
        ]
        live = [p for p in parts if not p.is_constant]
    n = len(parts[0].dims)
    _, classes, terms, order, dims = assign_labels(reader, [(p.replace_dim(d, ()), range(n)) for p in live], range(n))
    last, sources = len(order), []
    for node, mine in terms:
        labels = tuple(order.index(x) if x >= 0 else last for x in mine)
        if fixed and labels.count(last) > 1:
            raise reader.fail("concatenates along several axes at once; concatenate before reshaping")
        sources.append((node, labels))
    if len(along := (fixed and reader.make_indices(sizes)) or [IndexClass(sizes)]) > 1:
        raise reader.fail("concatenates along a dimension that is split later; reshape before torch.cat")
    kind, indices = (FixedConcatenation if fixed else Concatenation), [*(classes[x] for x in order), *along]
    node = kind(indices=indices, where=reader.where, sources=tuple(sources), slot=last, begins=begins)
    view = View(node, dims).replace_dim(d, (last,))

    def compute_value(*values: Tensor) -> Tensor:
        rest = iter(values)
        laid = [p.values[0].double() if p.is_constant else p.to_torch(next(rest)) for p in parts]
        shape = [max(v.shape[j] for v in laid) for j in range(n)]
        y = torch.cat([v.expand([v.shape[j] if j == d else shape[j] for j in range(n)]) for v in laid], d)
        return view.from_torch(y, torch.empty([i.find_root().sizes[0] for i in indices]))

    node.value_function = compute_value
    if fixed and len(live) < len(parts):
        node.note = "constants among the parts of a concatenation are left out"
    return view
