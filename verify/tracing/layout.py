"""Rows of the table for views, slices, writes into new tensors, and concatenations. Read next: ``indices.py`` (slices),
``routing.py``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .graph import Dims, IndexClass, Restart, TracedNode, View, whole_of
from .reading import Number, Reader
from .table import rule

PLACES = ("places",)
"""Among the splits: the places of patches are one axis, which a class token is put before."""


@rule("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as", "reshape_as")
def regroup(reader: Reader, x: View, *_: Any, **__: Any) -> View:
    return reader.regrouped(x, reader.shapes[0])


@rule("permute", "transpose", "t", "get_T", "get_mT", "adjoint", "movedim")
def permute(reader: Reader, x: View, *given: Any) -> View:
    """The order is that in which the call puts dimensions of sizes of their own."""
    assert reader.call is not None
    sizes = range(2, 2 + len(x.dims))
    moved = reader.call.function(torch.empty([*sizes], device="meta"), *given).shape
    return View(x.node, [x.dims[sizes.index(n)] for n in moved])


@rule("expand", "expand_as", "repeat", "broadcast_to", "repeat_interleave")
def expand(reader: Reader, x: View, *_: Any, **__: Any) -> View:
    """Entries that repeat, along a class that no slot has."""
    dims: Dims = [()] * (len(reader.shapes[0][0]) - len(x.dims)) + x.dims
    for d, sizes in enumerate(zip(*reader.shapes[0], strict=True)):
        have = View(x.node, dims).sizes(d, reader.builds)
        if have != sizes:
            if dims[d] and reader.name != "repeat_interleave":
                raise reader.fail("a repeat of an axis")
            dims[d] = (*dims[d], IndexClass([n // m for n, m in zip(sizes, have, strict=True)]))
    return View(x.node, dims)


@rule("chunk", "split", "tensor_split", "split_with_sizes")
def chunk(reader: Reader, x: View, how: Any = None, dim: int = 0, **_: Any) -> list[View]:
    d, parts, start = dim % len(x.dims), [], reader.same_everywhere(0)
    sizes = [tuple(shape[d] for shape in shapes) for shapes in reader.shapes]
    for k, size in enumerate(sizes):
        stop = tuple(a + n for a, n in zip(start, size, strict=True))
        parts.append(reader.narrowed(x, d, start, stop, sizes, k))
        start = stop
    return parts


@rule("unbind")
def unbind(reader: Reader, x: View, dim: int = 0) -> list[View]:
    return [reader.pick(x, dim % len(x.dims), reader.same_everywhere(k)) for k in range(len(reader.shapes))]


@rule("select")
def select(reader: Reader, x: View, dim: int, index: Any) -> View:
    return reader.pick(x, dim % len(x.dims), reader.vector(index))


@rule("narrow")
def narrow(reader: Reader, x: View, dim: int, start: Any, length: Any) -> View:
    first = reader.vector(start)
    return reader.narrowed(x, dim % len(x.dims), first, tuple(map(sum, zip(first, reader.vector(length), strict=True))))


@rule("getitem")
def getitem(reader: Reader, x: View, key: Any) -> View:
    keys = _keys(reader, key, len(x.dims))
    if x.node.kind == "pieces":  # to be written into
        return x
    if any(isinstance(k, View) for k in keys):
        return indexed(reader, x, keys)
    d = 0
    for k in keys:
        if k is None:
            x = View(x.node, [*x.dims[:d], (), *x.dims[d:]])
            d += 1
        elif isinstance(k, int | Number):
            at = tuple(int(v) % n for v, n in zip(reader.vector(k), x.sizes(d, reader.builds), strict=True))
            if x.node.kind == "choice":  # of the one-hot numbers of the chosen: those of one expert
                x = View(x.node.but(at=at), [*x.dims[:d], *x.dims[d + 1 :]])
            else:
                x = reader.pick(x, d, at)
        else:
            bounds = [s.indices(n) for s, n in zip(k, x.sizes(d, reader.builds), strict=True)]
            start, stop, step = (tuple(b[j] for b in bounds) for j in range(3))
            one = set(step) == {1}
            x = reader.narrowed(x, d, start, stop) if one else reader.stepped(x, d, start[0], step[0])
            d += 1
    return x


def _keys(reader: Reader, key: Any, n: int) -> list[Any]:
    """The keys of an index: an ellipsis is written out, a constant whole number is a number."""
    keys = list(key) if isinstance(key, tuple) and not isinstance(key, Number) else [key]
    used = sum(k is not None and k is not Ellipsis for k in keys)
    for at, k in enumerate(keys):
        if k is Ellipsis:
            keys[at : at + 1] = [[slice(None)] * reader.builds] * (n - used)
            break
    for at, k in enumerate(keys):
        if isinstance(k, View) and k.node.kind == "const" and not k.dims:
            v = k.node.value[0]
            if not v.is_floating_point() and v.dtype is not torch.bool:
                keys[at] = Number(int(v) for v in k.node.value)
    return keys


def indexed(reader: Reader, x: View, keys: list[Any]) -> View:
    """By the numbers of chosen experts: their letter stays. By constants along a Theta(1) axis: entries of it."""
    tensors = [(d, k) for d, k in enumerate(keys) if isinstance(k, View)]
    places = [(d, k) for d, k in tensors if k.node.kind == "choice"]
    if len(tensors) == 1 and places:
        d, choice = places[0]
        if len(x.dims[d]) != 1 or not isinstance(x.dims[d][0], int):
            raise reader.fail("an index along several axes")
        e, slot = x.dims[d][0], choice.node.slot
        reader.align([[x.index(e)], [choice.node.indices[slot].root()]])
        return x.with_dim(d, *(tuple(e if q == slot else choice.index(q) for q in dim) for dim in choice.dims))
    if places:
        raise reader.fail("an index by what is computed")
    out, d, gone = x, 0, False
    expert = next((k.node.at for _, k in tensors if k.node.at), None)
    for k in keys:
        if k is None:
            out = View(out.node, [*out.dims[:d], (), *out.dims[d:]])
        elif isinstance(k, int | Number):
            out = reader.pick(out, d, reader.vector(k))
            continue
        elif isinstance(k, View) and expert is not None and k.node.slot:
            out = reader.pick(out, d, expert)
            continue
        elif isinstance(k, View):
            if len(k.dims) > 1 or gone:
                raise reader.fail("an index of several dimensions")
            if out.dims[d]:
                at = k.node.value[0]
                at = at.nonzero()[:, 0] if at.dtype is torch.bool else at
                if at.dim() == 0:
                    raise reader.fail("an index that is a tensor")
                if sorted(at.tolist()) != list(range(out.sizes(d, 1)[0])):
                    out = reader.entries_of(out, d, at)
            gone = expert is None
        d += 1
    return out


@rule("setitem")
def setitem(reader: Reader, base: View, key: Any, value: Any) -> View:
    """A part of a new tensor, or all that a constant index names. All parts together are a concatenation."""
    keys = _keys(reader, key, len(base.dims))
    if not isinstance(value, View):
        raise reader.fail("writes numbers into a signal")
    if len(keys) == 1 and isinstance(keys[0], View) and keys[0].node.kind == "const":
        at = keys[0].node.value[0]
        if sorted(at.flatten().tolist()) == list(range(base.sizes(0, 1)[0])):
            return value
    cut = [(d, k[0]) for d, k in enumerate(keys) if isinstance(k, list) and k[0] != slice(None)]
    if base.node.kind in ("const", "pieces") and len(cut) == 1 and all(isinstance(k, list) for k in keys):
        d, part = cut[0]
        start, stop, step = part.indices(size := reader.shapes[0][0][d])
        before = base.node.value if base.node.kind == "pieces" else []
        if step == 1 and all(piece[2] == d for piece in before):
            pieces = sorted([*before, (start, stop, d, value)], key=lambda piece: piece[:2])
            if [a for a, *_ in pieces] == [0, *(b for _, b, *_ in pieces[:-1])] and pieces[-1][1] == size:
                return concatenated(reader, [v for *_, v in pieces], d, reader.shapes[0])
            return View(TracedNode("pieces", [], value=pieces), base.dims)
    raise reader.fail("writes into a part of a tensor; torch.cat its parts")


@rule("copy")
def copy(reader: Reader, target: View, value: View) -> View:
    if target.node.kind != "const":
        raise reader.fail("writes into a signal; make a new one")
    return value


@rule("cat")
def cat(reader: Reader, given: Sequence[View], dim: int = 0) -> View:
    parts = [p for p in given if p.node.kind != "const" or p.node.value[0].numel()]
    if len(parts) == 1:
        return parts[0]
    return concatenated(reader, parts, dim % len(parts[0].dims), reader.shapes[0])


@rule("stack")
def stack(reader: Reader, parts: Sequence[View], dim: int = 0) -> View:
    """Of tensors of one kind along a new Theta(1) axis: all parts of one whole are the whole."""
    d = dim % len(reader.shapes[0][0])
    wide = [View(p.node, [*p.dims[:d], (), *p.dims[d:]]) for p in parts]
    return concatenated(reader, wide, d, reader.shapes[0], d)


def concatenated(
    reader: Reader, parts: Sequence[View], d: int, shapes: Sequence[Sequence[int]], new: int | None = None
) -> View:
    """Along an axis that grows: kept apart until a product sums over it. Along a Theta(1) axis: a sum, to leading
    order; constants among the parts are left out.

    Args:
        new: the dimension that a stack makes; behind that of the parts of one whole, it interleaves them.
    """
    first, *more = {whole_of(p.node) for p in parts}
    if first is not None and not more and len(parts) == len(first[2]) and all(p.dims == parts[0].dims for p in parts):
        return _mixed(reader, parts, *first[:2], between=new is not None and first[1] in parts[0].dims[new - 1])
    live, sizes = [p for p in parts if p.node.kind != "const"], tuple(shape[d] for shape in shapes)
    wide = [p.index(e) for p in live for k, dim in enumerate(p.dims) for e in dim if k == d or not isinstance(e, int)]
    fixed = len(set(sizes)) == 1 and all(index.fixed for index in wide)
    if not fixed and any(len(p.dims[d]) != 1 or not isinstance(p.dims[d][0], int) for p in parts):
        raise reader.fail("a concatenation with what repeats, or with constants")
    n = len(parts[0].dims)
    _, classes, terms, order, dims = reader.labelled([(p.with_dim(d, ()), range(n)) for p in live], range(n))
    last, sources = len(order), []
    for node, mine in terms:
        labels = tuple(order.index(x) if x >= 0 else last for x in mine)
        if labels.count(last) > 1:
            if node.kind != "param" and PLACES not in reader.splits:
                reader.splits[PLACES] = ((), ())
                raise Restart
            raise reader.fail("a concatenation along several axes")
        sources.append((node, labels))
    kind, indices = ("add" if fixed else "cat"), [*(classes[x] for x in order), IndexClass(sizes)]
    node = TracedNode(kind, indices, reader.where, tuple(sources), name="blend" if fixed else "", slot=last)
    view = View(node, dims).with_dim(d, (last,))

    def exact(*values: Tensor) -> Tensor:
        rest = iter(values)
        laid = [p.node.value[0].double() if p.node.kind == "const" else p.laid_out(next(rest)) for p in parts]
        shape = [max(v.shape[j] for v in laid) for j in range(n)]
        y = torch.cat([v.expand([v.shape[j] if j == d else shape[j] for j in range(n)]) for v in laid], d)
        return view.taken_back(y, torch.empty([i.root().sizes[0] for i in indices]))

    node.exact = exact
    if len(live) < len(parts):
        node.note = "constants among the parts of a concatenation are left out"
    return view


def _mixed(reader: Reader, parts: Sequence[View], whole: TracedNode, slot: int, between: bool) -> View:
    """All parts of one whole, in any order: of its size."""
    mixed = whole.behind("same", reader.where, name="mixed")
    mixed.sources += tuple((p.node, whole.slots) for p in parts)
    mixed.exact = lambda whole, *v: torch.stack(v, slot + 1).flatten(slot, slot + 1) if between else torch.cat(v, slot)
    return View(mixed, parts[0].dims)
