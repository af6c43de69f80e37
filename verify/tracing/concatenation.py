"""Rows of the table for what is put beside each other: concatenations, stacks, writes into parts of new tensors.

Read next: ``layout.py`` (what moves entries), ``products.py`` (sums over concatenations).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .calls import rule
from .graph import View
from .indices import constant
from .layout import find_places
from .nodes import Blend, Concatenation, ConstantNode, IndexClass, Parameter, Pieces
from .products import acting, labelled
from .reading import Reader


@rule("setitem")
def setitem(reader: Reader, base: View, key: Any, value: Any) -> View:
    """A part of a new tensor, or all of one. All parts together are a concatenation."""
    if not isinstance(value, View):
        raise reader.fail("writes numbers into a signal")
    call, sizes = reader.calls[0], reader.shapes[0][0]
    reads = replace(call, name="__getitem__", function=Tensor.__getitem__, arguments=call.arguments[:2])
    (written,) = find_places(reads, reader.runs[0])
    places = [np.unique(x).tolist() for x in np.unravel_index(written, sizes)]
    cut = [(d, at) for d, at in enumerate(places) if len(at) < sizes[d]]
    if not cut:
        return value
    d, at = cut[0]
    before = base.node.pieces if isinstance(base.node, Pieces) else []
    if not isinstance(base.node, ConstantNode | Pieces) or len(cut) > 1 or any(piece[2] != d for piece in before):
        raise reader.fail("writes into a part of a tensor; torch.cat its parts")
    pieces = sorted([*before, (at[0], at[-1] + 1, d, value)], key=lambda piece: piece[:2])
    if at != [*range(at[0], at[-1] + 1)]:
        raise reader.fail("writes into a part of a tensor; torch.cat its parts")
    if [a for a, *_ in pieces] + [sizes[d]] == [0, *(b for _, b, *_ in pieces)]:
        return concatenated(reader, [v for *_, v in pieces], d, reader.shapes[0])
    return View(Pieces(pieces=pieces), base.dims)


@rule("cat")
def cat(reader: Reader, given: Sequence[View], dim: int = 0) -> View:
    parts = [p for p in given if not p.is_constant or p.values[0].numel()]
    if len(parts) == 1:
        return parts[0]
    return concatenated(reader, parts, dim % len(parts[0].dims), reader.shapes[0])


@rule("stack")
def stack(reader: Reader, parts: Sequence[View], dim: int = 0) -> View:
    """Of tensors of one kind along a new Theta(1) axis: all parts of one whole are the whole."""
    d = dim % len(reader.shapes[0][0])
    wide = [View(p.node, [*p.dims[:d], (), *p.dims[d:]]) for p in parts]
    return concatenated(reader, wide, d, reader.shapes[0])


def concatenated(reader: Reader, parts: Sequence[View], d: int, shapes: Sequence[Sequence[int]]) -> View:
    """Along an axis that grows: kept apart until a product sums over it. Along a Theta(1) axis: a sum, to leading
    order; constants among the parts are left out there, zeros everywhere."""
    live, sizes = [p for p in parts if not p.is_constant], tuple(shape[d] for shape in shapes)
    wide = [p.index(e) for p in live for k, dim in enumerate(p.dims) for e in dim if k == d or not isinstance(e, int)]
    fixed = len(set(sizes)) == 1 and all(index.fixed for index in wide)
    begins, at = [], reader.same_everywhere(0)
    for p in parts:
        begins.append(at)
        at = tuple(a + n for a, n in zip(at, p.sizes(d, reader.builds), strict=True))
    if not fixed:
        parts = [p if not p.is_constant or not p.values[0].any() else constant(reader, p) for p in parts]
        live = [p for p in parts if not p.is_constant]
        begins = [begin for begin, p in zip(begins, parts, strict=True) if not p.is_constant]
        if any(not p.dims[d] or [*p.dims[d]] != sorted(e for e in p.dims[d] if isinstance(e, int)) for p in live):
            raise reader.fail("a concatenation with what repeats")
    if fixed:  # sums and products of weights act on a constant
        parts = [acting(reader, p) if p.node.weight and not isinstance(p.node, Parameter) else p for p in parts]
        live = [p for p in parts if not p.is_constant]
    n = len(parts[0].dims)
    _, classes, terms, order, dims = labelled(reader, [(p.with_dim(d, ()), range(n)) for p in live], range(n))
    last, sources = len(order), []
    for node, mine in terms:
        labels = tuple(order.index(x) if x >= 0 else last for x in mine)
        if fixed and labels.count(last) > 1:
            raise reader.fail("a concatenation along several axes")
        sources.append((node, labels))
    if len(along := (fixed and reader.fresh(sizes)) or [IndexClass(sizes)]) > 1:
        raise reader.fail("a concatenation along what is taken apart")
    kind, indices = (Blend if fixed else Concatenation), [*(classes[x] for x in order), *along]
    node = kind(indices=indices, where=reader.where, sources=tuple(sources), slot=last, begins=begins)
    view = View(node, dims).with_dim(d, (last,))

    def exact(*values: Tensor) -> Tensor:
        rest = iter(values)
        laid = [p.values[0].double() if p.is_constant else p.to_torch(next(rest)) for p in parts]
        shape = [max(v.shape[j] for v in laid) for j in range(n)]
        y = torch.cat([v.expand([v.shape[j] if j == d else shape[j] for j in range(n)]) for v in laid], d)
        return view.from_torch(y, torch.empty([i.root().sizes[0] for i in indices]))

    node.exact = exact
    if fixed and len(live) < len(parts):
        node.note = "constants among the parts of a concatenation are left out"
    return view
