"""Rows of the table for views, slices, writes into new tensors, and concatenations. Read next:
``reading.py`` (slices), ``routing.py``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .graph import IndexClass, Restart, Sizes, TracedNode, View, whole_of
from .reading import Bound, Number, Reader
from .recording import refs
from .table import plain, rule

PLACES = ("places",)
"""Among the splits: the places of patches are one axis, which a class token is put before."""


@rule("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as", "reshape_as")
def regroup(reader: Reader, call: Bound) -> View:
    return reader.regrouped(call.args[0], call.shapes[0])


@rule("transpose", "t", "get_T", "get_mT", "adjoint", "permute", "movedim")
def permute(reader: Reader, call: Bound) -> View:
    x, n, name = call.args[0], len(call.args[0].dims), plain(call.name)
    order = list(range(n))
    if name == "permute":
        given = (
            call.args[1]
            if isinstance(call.args[1], list | tuple) and not isinstance(call.args[1], Number)
            else call.args[1:]
        )
        order = [int(v[0]) % n for v in given]
    elif name == "movedim":
        order.insert(int(call.args[2][0]) % n, order.pop(int(call.args[1][0])))
    elif n > 1:
        a, b = (int(call.args[k][0]) for k in (1, 2)) if name == "transpose" else (-1, -2)
        order[a], order[b] = order[b], order[a]
    return View(x.node, [x.dims[d] for d in order])


@rule("expand", "expand_as", "repeat", "broadcast_to", "repeat_interleave")
def expand(reader: Reader, call: Bound) -> View:
    """Entries that repeat, along a class that no slot has."""
    x, shapes, name = call.args[0], call.shapes[0], plain(call.name)
    dims: list[tuple[int | IndexClass, ...]] = [()] * (len(shapes[0]) - len(x.dims)) + list(x.dims)
    for d, sizes in enumerate(zip(*shapes, strict=True)):
        have = View(x.node, dims).sizes(d, reader.builds)
        if have != sizes:
            times = IndexClass(tuple(n // m for n, m in zip(sizes, have, strict=True)))
            if dims[d] and name != "repeat_interleave":
                raise reader.fail("a repeat of an axis")
            dims[d] = (*dims[d], times)
    return View(x.node, dims)


@rule("chunk", "split", "tensor_split", "unbind", "split_with_sizes")
def chunk(reader: Reader, call: Bound) -> list[View]:
    x, unbind = call.args[0], plain(call.name) == "unbind"
    d = int(call.get("dim", 1 if unbind else 2, 0)) % len(x.dims)
    if unbind:
        return [reader.pick(x, d, (k,) * reader.builds) for k in range(len(call.shapes))]
    sizes = [tuple(shape[d] for shape in shapes) for shapes in call.shapes]
    parts, start = [], (0,) * reader.builds
    for k, size in enumerate(sizes):
        stop = tuple(a + n for a, n in zip(start, size, strict=True))
        parts.append(reader.narrowed(x, d, start, stop, sizes, k))
        start = stop
    return parts


@rule("narrow", "select")
def narrow(reader: Reader, call: Bound) -> View:
    x, d = call.args[0], int(call.args[1][0]) % len(call.args[0].dims)
    at = tuple(int(v) for v in call.args[2])
    if plain(call.name) == "select":
        return reader.pick(x, d, tuple(v % n for v, n in zip(at, x.sizes(d, reader.builds), strict=True)))
    return reader.narrowed(x, d, at, tuple(a + int(n) for a, n in zip(at, call.args[3], strict=True)))


@rule("getitem")
def getitem(reader: Reader, call: Bound) -> View:
    x, keys = call.args[0], _keys(call.args[1], len(call.args[0].dims), reader.builds)
    keys = [_number(k) for k in keys]
    if any(isinstance(k, View) for k in keys):
        return indexed(reader, call, x, keys)
    d = 0
    for k in keys:
        size = x.sizes(d, reader.builds) if d < len(x.dims) else ()
        if k is None:
            x = View(x.node, [*x.dims[:d], (), *x.dims[d:]])
            d += 1
        elif isinstance(k, Number):
            at = tuple(int(v) % n for v, n in zip(k, size, strict=True))
            x = _expert(reader, x, d, at) if x.node.kind == "choice" else reader.pick(x, d, at)
        else:
            bounds = [s.indices(n) for s, n in zip(k, size, strict=True)]
            start, stop, step = (tuple(b[j] for b in bounds) for j in range(3))
            x = _stepped(reader, x, d, start[0], step[0]) if set(step) != {1} else reader.narrowed(x, d, start, stop)
            d += 1
    return x


def _keys(key: Any, n: int, builds: int) -> list[Any]:
    """The keys of an index, an ellipsis written out."""
    whole = not isinstance(key, tuple) or isinstance(key, Number)
    keys = [key] if whole else list(key)
    used = sum(k is not None and k is not Ellipsis for k in keys)
    for at, k in enumerate(keys):
        if k is Ellipsis:
            keys[at : at + 1] = [[slice(None)] * builds] * (n - used)
            break
    return keys


def _number(k: Any) -> Any:
    if (
        isinstance(k, View)
        and k.node.kind == "const"
        and not k.dims
        and not k.node.value[0].is_floating_point()
        and k.node.value[0].dtype is not torch.bool
    ):
        return Number(int(v) for v in k.node.value)
    return k


def _stepped(reader: Reader, x: View, d: int, first: int, step: int) -> View:
    dim = x.dims[d]
    if dim and x.index(dim[-1]).sizes == (step,) * reader.builds and first < step:
        y = View(x.node, [*x.dims[:d], dim[:-1], dim[-1:], *x.dims[d + 1 :]])
        return reader.pick(y, d + 1, (first,) * reader.builds)
    return reader.stepped(x, d, first, step)


def _expert(reader: Reader, x: View, d: int, at: Sizes) -> View:
    """Of the one-hot numbers of the chosen: those of one expert."""
    node = x.node.but(at=at)
    return View(node, [*x.dims[:d], *x.dims[d + 1 :]])


def indexed(reader: Reader, call: Bound, x: View, keys: list[Any]) -> View:
    """By the numbers of chosen experts: their letter stays. By constants along a Theta(1) axis: entries of it."""
    tensors = [(d, k) for d, k in enumerate(keys) if isinstance(k, View)]
    places = [(d, k) for d, k in tensors if k.node.kind == "choice"]
    if len(tensors) == 1 and places:
        d, choice = places[0]
        if len(x.dims[d]) != 1 or not isinstance(x.dims[d][0], int):
            raise reader.fail("an index along several axes")
        e = x.dims[d][0]
        reader.align([[x.index(e)], [choice.node.indices[choice.node.slot].root()]])
        new = [tuple(e if q == choice.node.slot else choice.index(q) for q in dim) for dim in choice.dims]
        return View(x.node, [*x.dims[:d], *new, *x.dims[d + 1 :]])
    if places:
        raise reader.fail("an index by what is computed")
    out, d, gone = x, 0, False
    expert = next((k.node.at for _, k in tensors if k.node.at), None)
    for k in keys:
        if k is None:
            out = View(out.node, [*out.dims[:d], (), *out.dims[d:]])
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
        elif isinstance(k, Number):
            out = reader.pick(out, d, tuple(int(v) % n for v, n in zip(k, out.sizes(d, reader.builds), strict=True)))
            continue
        d += 1
    return out


@rule("setitem")
def setitem(reader: Reader, call: Bound) -> View:
    """A part of a new tensor, or all that a constant index names."""
    base, value = call.args[0], call.args[2]
    keys = [_number(k) for k in _keys(call.args[1], len(base.dims), reader.builds)]
    if not isinstance(value, View):
        raise reader.fail("writes numbers into a signal")
    if len(keys) == 1 and isinstance(keys[0], View) and keys[0].node.kind == "const":
        at = keys[0].node.value[0]
        if sorted(at.flatten().tolist()) == list(range(base.sizes(0, 1)[0])):
            return value
    cut = [(d, k) for d, k in enumerate(keys) if isinstance(k, list) and k[0] != slice(None)]
    if base.node.kind == "const" and len(cut) == 1 and all(isinstance(k, list) for k in keys):
        d, k = cut[0]
        start, stop, step = k[0].indices(call.shapes[0][0][d])
        if step == 1:
            (made,) = refs(call.call.result)
            reader.pieces[made.number] = reader.pieces.pop(call.call.arguments[0].number, [])
            return _written(reader, made.number, d, start, stop, value) or base
    raise reader.fail("writes into a part of a tensor; torch.cat its parts")


def _written(reader: Reader, base: int, dim: int, start: int, stop: int, view: View) -> View | None:
    """A part of a new tensor is written; all parts together are a concatenation."""
    done = reader.pieces.setdefault(base, [])
    done.append((start, stop, dim, view))
    done.sort(key=lambda piece: piece[:2])
    size = reader.runs[0].shapes[base][dim]
    if [a for a, *_ in done] != [0, *(b for _, b, *_ in done[:-1])] or done[-1][1] != size:
        return None
    shapes = [run.shapes[base] for run in reader.runs]
    reader.views[base] = concatenated(reader, [v for *_, v in done], dim, shapes)
    reader.repaired.add(base)
    del reader.pieces[base]
    return reader.views[base]


@rule("copy")
def copy(reader: Reader, call: Bound) -> View:
    target, value = call.call.arguments[0].number, call.args[1]
    if target in reader.bases:
        base, dim, start, stop = reader.bases[target]
        _written(reader, base, dim, start, stop, value)
    elif call.args[0].node.kind != "const":
        raise reader.fail("writes into a signal; make a new one")
    return value


@rule("cat")
def cat(reader: Reader, call: Bound) -> View:
    parts = [p for p in call.args[0] if p.node.kind != "const" or p.node.value[0].numel()]
    d = int(call.get("dim", 1, 0)) % len(parts[0].dims)
    if len(parts) == 1:
        return parts[0]
    return concatenated(reader, parts, d, call.shapes[0])


@rule("stack")
def stack(reader: Reader, call: Bound) -> View:
    """Of tensors of one kind along a new Theta(1) axis: all parts of one whole are the whole."""
    parts, d = call.args[0], int(call.get("dim", 1, 0)) % len(call.shapes[0][0])
    wide = [View(p.node, [*p.dims[:d], (), *p.dims[d:]]) for p in parts]
    return concatenated(reader, wide, d, call.shapes[0], d)


def concatenated(
    reader: Reader, parts: Sequence[View], d: int, shapes: Sequence[Sequence[int]], new: int | None = None
) -> View:
    """Along an axis that grows: kept apart until a product sums over it. Along a Theta(1) axis: a sum.

    Args:
        new: the dimension that a stack makes; behind that of the parts of one whole, it interleaves them.
    """
    live = [p for p in parts if p.node.kind != "const"]
    wholes = [whole_of(p.node) for p in parts]
    first = wholes[0]
    if (
        first is not None
        and all(w == first for w in wholes)
        and len(parts) == first[2]
        and all(p.dims == parts[0].dims for p in parts)
    ):
        node, slot, _ = first
        slots = tuple(range(len(node.indices)))
        mixed = TracedNode(
            "same", list(node.indices), reader.where, ((node, slots), *((p.node, slots) for p in parts)), name="mixed"
        )
        between = new is not None and slot in parts[0].dims[new - 1]
        mixed.exact = lambda whole, *v: (
            torch.stack(v, slot + 1).flatten(slot, slot + 1) if between else torch.cat(v, slot)
        )
        return View(mixed, parts[0].dims)
    sizes = tuple(shape[d] for shape in shapes)
    wide = (p.index(e) for p in live for k, dim in enumerate(p.dims) if k != d for e in dim if not isinstance(e, int))
    apart = not all(index.fixed for index in wide)
    if (
        not apart
        and len(set(sizes)) == 1
        and all(not p.dims[d] or all(p.index(e).fixed for e in p.dims[d]) for p in live)
    ):
        return _blend(reader, parts, d, sizes)
    if any(len(p.dims[d]) != 1 or not isinstance(p.dims[d][0], int) for p in parts) or len(live) < len(parts):
        raise reader.fail("a concatenation with what repeats, or with constants")
    return _kept_apart(reader, parts, d, sizes)


def _blend(reader: Reader, parts: Sequence[View], d: int, sizes: Sizes) -> View:
    """Along a Theta(1) axis: a sum, to leading order; constants among the parts are left out."""
    live = [p for p in parts if p.node.kind != "const"]
    n = len(parts[0].dims)
    whole = IndexClass(sizes)
    cut = [View(p.node, [dim if k != d else () for k, dim in enumerate(p.dims)]) for p in live]
    labels, classes, owned, terms = reader._labelled([(p, range(n)) for p in cut])
    order = [x for key in range(n) for x in labels.get(key, ()) if x in owned]
    indices = [*(classes[x] for x in order), whole]
    own = {x: k for k, x in enumerate(order)}
    sources = []
    for node, mine in terms:
        kept = tuple(own[x] if x >= 0 else len(order) for x in mine)
        if kept.count(len(order)) > 1:
            if node.kind != "param" and PLACES not in reader.splits:
                reader.splits[PLACES] = ((), ())
                raise Restart
            raise reader.fail("a concatenation along several axes")
        sources.append((node, kept))
    dims: list[tuple[int | IndexClass, ...]] = [
        tuple(own.get(x, classes[x]) for x in labels.get(k, ())) if k != d else (len(order),) for k in range(n)
    ]
    node = TracedNode("add", indices, reader.where, tuple(sources), name="blend")
    view, constants = View(node, dims), {k: p.node.value[0] for k, p in enumerate(parts) if p.node.kind == "const"}

    def exact(*values: Tensor) -> Tensor:
        rest, laid = iter(values), []
        for k, p in enumerate(parts):
            laid.append(constants[k].double() if k in constants else p.laid_out(next(rest)))
        shape = [max(v.shape[j] for v in laid) for j in range(n)]
        y = torch.cat([v.expand([v.shape[j] if j == d else shape[j] for j in range(n)]) for v in laid], d)
        return view.taken_back(y, torch.empty([i.root().sizes[0] for i in indices]))

    node.exact = exact
    if constants:
        node.note = "constants among the parts of a concatenation are left out"
    return view


def _kept_apart(reader: Reader, parts: Sequence[View], d: int, sizes: Sizes) -> View:
    """Parts beside each other; one may repeat along an axis that another has."""
    first = max(parts, key=lambda p: len(p.node.indices))
    slot, sources = first.dims[d][0], []
    assert isinstance(slot, int)
    for p in parts:
        labels = [-1] * len(p.node.indices)
        for a, b in zip(first.dims, p.dims, strict=True):
            if len(a) != len(b):
                raise reader.fail("a concatenation of unlike axes")
            for x, y in zip(a, b, strict=True):
                if isinstance(y, int):
                    if not isinstance(x, int):
                        raise reader.fail("a concatenation of unlike axes")
                    labels[y] = x
                if x != slot:
                    reader.align([[first.index(x)], [p.index(y)]])
        sources.append((p.node, tuple(labels)))
    indices = [IndexClass(sizes) if k == slot else x for k, x in enumerate(first.node.indices)]
    return View(TracedNode("cat", indices, reader.where, tuple(sources), slot=slot), first.dims)
