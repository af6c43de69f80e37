"""Rows of the table for views, slices, writes into new tensors, and concatenations. Read next: ``indices.py`` (slices),
``routing.py``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .calls import rule
from .graph import Dims, IndexClass, TracedNode, View
from .indices import constant, entries_of, narrowed, regrouped, stepped
from .products import acting, labelled
from .reading import Reader
from .recording import Ref, leaves, mapped


@rule("view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as", "reshape_as")
def regroup(reader: Reader, x: View, *_: Any, **__: Any) -> View:
    return regrouped(reader, x, reader.shapes[0])


@rule("permute", "transpose", "t", "get_T", "get_mT", "adjoint", "movedim")
def permute(reader: Reader, x: View, *given: Any) -> View:
    """The order is that in which the call puts dimensions of sizes of their own."""
    assert reader.call is not None
    sizes = range(2, 2 + len(x.dims))
    moved = reader.call.function(torch.empty([*sizes], device="meta"), *given).shape
    return View(x.node, [x.dims[sizes.index(n)] for n in moved])


@rule("pixel_shuffle")
def shuffled(reader: Reader, x: View, upscale_factor: int) -> View:
    """Channels as places of a finer grid."""
    n, r, shapes = len(x.dims), upscale_factor, reader.shapes[0]
    apart = [[*s[:-2], r, r, s[-2] // r, s[-1] // r] for s in shapes]
    y = regrouped(reader, x, apart)
    order = [*range(n - 2), n, n - 2, n + 1, n - 1]
    return regrouped(reader, View(y.node, [y.dims[d] for d in order]), shapes)


@rule("expand", "expand_as", "repeat", "broadcast_to", "repeat_interleave")
def expand(reader: Reader, x: View, *_: Any, **__: Any) -> View:
    """Entries that repeat, along a class that no slot has."""
    dims: Dims = [()] * (len(reader.shapes[0][0]) - len(x.dims)) + x.dims
    for d, sizes in enumerate(zip(*reader.shapes[0], strict=True)):
        have = View(x.node, dims).sizes(d, reader.builds)
        if have != sizes:
            more = (IndexClass([n // m for n, m in zip(sizes, have, strict=True)]),)
            dims[d] = (*dims[d], *more) if reader.name == "repeat_interleave" else (*more, *dims[d])
    return View(x.node, dims)


@rule(
    "getitem", "chunk", "split", "tensor_split", "split_with_sizes", "unbind", "select", "narrow", "index_select",
    "slice",
)  # fmt: skip
def taken(reader: Reader, x: View, *given: Any, **words: Any) -> Any:
    """Entries along dimensions; which, the same call says of the places of all entries."""
    if x.node.kind == "pieces":  # to be written into
        return x
    if any(v.node.kind != "const" for v in leaves((given, words), View)):
        raise reader.fail("an index by what is computed")
    found, several = _places(reader), len(reader.shapes) > 1 and len(reader.shapes[0][0]) == len(x.dims)
    made = []
    for k, one in enumerate(found):
        y = x
        dims: Dims = [() if set(n) == {1} else (IndexClass(n),) for n in zip(*reader.shapes[k], strict=True)]
        for d in reversed(range(len(x.dims))):
            ats, most = one[d][0], x.sizes(d, reader.builds)
            times = tuple(len(at) // n for at, n in zip(ats, most, strict=True))
            start, step = tuple(at[0] for at in ats), ats[0][1] - ats[0][0] if len(ats[0]) > 1 else 1
            if tuple(map(len, ats)) == most and all(sorted(at) == [*range(len(at))] for at in ats):
                continue
            if all(at == [*range(n)] * t for at, n, t in zip(ats, most, times, strict=True)):  # again and again
                y = y.with_dim(d, (IndexClass(times), *y.dims[d]))
            elif any(at != [*range(at[0], at[-1] + 1, step)] for at in ats):
                y = entries_of(reader, y, d, torch.tensor(ats[0]))
            elif step > 1:
                y = stepped(reader, y, d, start[0], step)
            else:
                stop = tuple(at[-1] + 1 for at in ats)
                y = narrowed(reader, y, d, start, stop, several)
        for (_, o), dim in zip(one, y.dims, strict=True):
            if o is not None:
                dims[o] = dim
        made.append(View(y.node, dims))
    return made if len(made) > 1 else made[0]


Places = list[tuple[list[list[int]], int | None]]
"""By dimension the places that are taken, at every build, and the dimension of the result along which they lie."""


def _places(reader: Reader, function: Any = None) -> list[Places]:
    """The places along the dimensions of its first argument that the results of the call have."""
    known, key = reader.runs[0].places, reader.calls[0].key
    if key in known:  # a reading that begins again
        return known[key]
    results: list[Places] = [[] for _ in reader.shapes]
    for build, (run, call) in enumerate(zip(reader.runs, reader.calls, strict=True)):
        (base, *args), words = mapped((call.arguments, call.keywords), Ref, run.tensor)
        grids = torch.meshgrid(*map(torch.arange, base.shape), indexing="ij") if base.dim() else ()
        for d, grid in enumerate(grids):
            out = function(grid, args[0]) if function else call.function(grid, *args, **words)
            for result, places in zip(results, out if isinstance(out, list | tuple) else [out], strict=True):
                along = [o for o, n in enumerate(places.shape) if n > 1 and bool((places.diff(dim=o) != 0).any())]
                if len(along) > 1:
                    raise reader.fail("an index of several dimensions")
                at = places.movedim(along[0], 0).flatten(1)[:, 0] if places.dim() > 1 and along else places.flatten()
                if build == 0:
                    result.append(([], None))
                ats, o = result[d]
                result[d] = [*ats, at.tolist() if along else at[:1].tolist()], along[0] if along else o
    for one in results:
        lies = [o for _, o in one if o is not None]
        if len(set(lies)) < len(lies):
            raise reader.fail("an index of several dimensions")
    known[key] = results
    return results


@rule("setitem")
def setitem(reader: Reader, base: View, key: Any, value: Any) -> View:
    """A part of a new tensor, or all of one. All parts together are a concatenation."""
    if not isinstance(value, View):
        raise reader.fail("writes numbers into a signal")
    (places,), sizes = _places(reader, Tensor.__getitem__), reader.shapes[0][0]
    cut = [(d, ats[0]) for d, (ats, _) in enumerate(places) if sorted(ats[0]) != [*range(sizes[d])]]
    if not cut:
        return value
    d, at = cut[0]
    before = base.node.value if base.node.kind == "pieces" else []
    if base.node.kind not in ("const", "pieces") or len(cut) > 1 or any(piece[2] != d for piece in before):
        raise reader.fail("writes into a part of a tensor; torch.cat its parts")
    pieces = sorted([*before, (at[0], at[-1] + 1, d, value)], key=lambda piece: piece[:2])
    if at != [*range(at[0], at[-1] + 1)]:
        raise reader.fail("writes into a part of a tensor; torch.cat its parts")
    if [a for a, *_ in pieces] + [sizes[d]] == [0, *(b for _, b, *_ in pieces)]:
        return concatenated(reader, [v for *_, v in pieces], d, reader.shapes[0])
    return View(TracedNode("pieces", [], value=pieces), base.dims)


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
    return concatenated(reader, wide, d, reader.shapes[0])


def concatenated(reader: Reader, parts: Sequence[View], d: int, shapes: Sequence[Sequence[int]]) -> View:
    """Along an axis that grows: kept apart until a product sums over it. Along a Theta(1) axis: a sum, to leading
    order; constants among the parts are left out there, zeros everywhere."""
    live, sizes = [p for p in parts if p.node.kind != "const"], tuple(shape[d] for shape in shapes)
    wide = [p.index(e) for p in live for k, dim in enumerate(p.dims) for e in dim if k == d or not isinstance(e, int)]
    fixed = len(set(sizes)) == 1 and all(index.fixed for index in wide)
    begins, at = [], reader.same_everywhere(0)
    for p in parts:
        begins.append(at)
        at = tuple(a + n for a, n in zip(at, p.sizes(d, reader.builds), strict=True))
    if not fixed:
        parts = [p if p.node.kind != "const" or not p.node.value[0].any() else constant(reader, p) for p in parts]
        live = [p for p in parts if p.node.kind != "const"]
        begins = [begin for begin, p in zip(begins, parts, strict=True) if p.node.kind != "const"]
        if any(not p.dims[d] or [*p.dims[d]] != sorted(e for e in p.dims[d] if isinstance(e, int)) for p in live):
            raise reader.fail("a concatenation with what repeats")
    if fixed:  # sums and products of weights act on a constant
        parts = [acting(reader, p) if p.node.weight and p.node.kind != "param" else p for p in parts]
        live = [p for p in parts if p.node.kind != "const"]
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
    kind, indices = ("add" if fixed else "cat"), [*(classes[x] for x in order), *along]
    node = TracedNode(kind, indices, reader.where, tuple(sources), name="blend" if fixed else "", slot=last)
    node.value = begins
    view = View(node, dims).with_dim(d, (last,))

    def exact(*values: Tensor) -> Tensor:
        rest = iter(values)
        laid = [p.node.value[0].double() if p.node.kind == "const" else p.laid_out(next(rest)) for p in parts]
        shape = [max(v.shape[j] for v in laid) for j in range(n)]
        y = torch.cat([v.expand([v.shape[j] if j == d else shape[j] for j in range(n)]) for v in laid], d)
        return view.taken_back(y, torch.empty([i.root().sizes[0] for i in indices]))

    node.exact = exact
    if fixed and len(live) < len(parts):
        node.note = "constants among the parts of a concatenation are left out"
    return view
