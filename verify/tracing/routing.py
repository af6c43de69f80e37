"""Rows of the table for softmax, for the choice of experts, and for what is read or written where tokens chose.

Read next: ``layout.py`` (indices), ``rules.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .graph import IndexClass, TracedNode, View
from .layout import indexed
from .reading import Bound, Reader
from .table import plain, rule


def slots_along(reader: Reader, x: View, d: int, name: str) -> tuple[int, ...]:
    slots = tuple(e for e in x.dims[d] if isinstance(e, int))
    if len(slots) != len(x.dims[d]) or not slots:
        raise reader.fail(f"{name} along a dimension of one entry, or one that repeats")
    return slots


def along(reader: Reader, name: str, x: View, d: int, exact: Callable[[Tensor, int], Tensor]) -> View:
    """A function along a torch dimension, exact on the torch tensor."""
    d %= len(x.dims)
    over = slots_along(reader, x, d, name)
    return reader.function(name, x, lambda v: x.taken_back(exact(x.laid_out(v), d), v), over, entrywise=False)


@rule("softmax")
def softmax(reader: Reader, call: Bound) -> View:
    return softmax_of(reader, call.args[0], int(call.get("dim", 1, -1)))


def softmax_of(reader: Reader, x: View, d: int) -> View:
    while x.node.kind == "same" and x.node.name == "centred":
        x = View(x.node.source, x.dims)
    f = x.node
    if f.kind == "func" and f.name == "topk":
        return _selection(reader, "topk_softmax", View(f.source, x.dims), f.over, f.at[0])
    return along(reader, "softmax", x, d, lambda v, k: v.softmax(k))


def _selection(reader: Reader, name: str, x: View, over: tuple[int, ...], k: int) -> View:
    """The k largest along a slot, the others zero.

    Args:
        name: ``topk``; ``topk_softmax``, normalised over the chosen; ``softmax_topk``, over all; ``topk_sigmoid``.
    """
    (slot,) = over

    def exact(v: Tensor) -> Tensor:
        mask = torch.zeros_like(v).scatter(slot, v.topk(k, slot).indices, 1.0)
        if name == "topk_softmax":
            return v.masked_fill(mask == 0, float("-inf")).softmax(slot)
        return (v.sigmoid() if name == "topk_sigmoid" else v.softmax(slot) if name == "softmax_topk" else v) * mask

    made = reader.function(name, x, exact, over, False)
    made.node.at = (k,)
    return made


FEW = "a top-K that leaves experts out (let build take K, which is read with K = M)"
SELECTED = {"softmax": "softmax_topk", "sigmoid": "topk_sigmoid"}
"""Functions over all experts, and what the largest of them are."""


def _largest(reader: Reader, x: View, over: tuple[int, ...], k: int) -> View:
    """The largest of scores, perhaps behind a function of all of them."""
    f = x.node
    known = f.kind == "func" and f.name in SELECTED and f.over in ((), over)
    return _selection(reader, SELECTED[f.name] if known else "topk", View(f.source if known else f, x.dims), over, k)


@rule("topk")
def topk(reader: Reader, call: Bound) -> list[View]:
    x, k = call.args[0], call.whole("k", 1)
    d = int(call.get("dim", 2, -1)) % len(x.dims)
    if not x.dims[d]:
        return [x, reader.constant(call.values[1])]
    over, source = slots_along(reader, x, d, "topk"), x.node
    if len(over) > 1:
        raise reader.fail("a top-K along several axes")
    (slot,), most = over, k[0]
    if k != x.sizes(d, reader.builds):  # refused where it is used; groups of experts are chosen by it
        indices = [IndexClass((most,) * reader.builds) if j == slot else i for j, i in enumerate(source.indices)]
        slots = tuple(range(len(indices)))
        few = TracedNode("func", indices, reader.where, ((source, slots),), name=FEW, over=over)
        few.exact = lambda v: v.topk(most, slot).values
        return [View(few, x.dims)] * 2
    chosen = _largest(reader, x, over, most)
    places = TracedNode(
        "choice", source.indices, reader.where, ((source, tuple(range(len(source.indices)))),), slot=slot
    )
    return [chosen, View(places, x.dims)]


@rule("max")
def largest(reader: Reader, call: Bound) -> list[View]:
    x, d = call.args[0], call.get("dim", 1)
    if d is None or isinstance(d, View):
        raise reader.fail("no rule for the largest of a tensor, or of two")
    d = int(d) % len(x.dims)
    dims = list(x.dims)
    node = TracedNode(
        "func",
        list(x.node.indices),
        reader.where,
        ((x.node, tuple(range(len(x.node.indices)))),),
        name="max",
        over=slots_along(reader, x, d, "max"),
    )
    node.exact = lambda v: x.taken_back(x.laid_out(v).amax(d, keepdim=True).expand(x.laid_out(v).shape), v)
    dims[d] = ()
    view = View(node, x.dims)
    return [view, *(reader.constant(v) for v in call.values[1:])]


def where_chosen(reader: Reader, x: View, choice: View) -> View:
    """Values of the chosen times where one expert is, or where each is: the value of the expert, or of each."""
    n = len(choice.dims)
    d = next(k for k, dim in enumerate(choice.dims) if choice.node.slot in dim)
    mine = [()] * (n - len(x.dims)) + x.dims
    if choice.node.at:
        y = reader.pick(View(x.node, mine), d, choice.node.at)
        return View(y.node, [*y.dims[:d], (), *y.dims[d:]])
    if isinstance(choice.dims[-1][0], int) or mine[-1] or d == n - 1:
        raise reader.fail("a product with the numbers of what is chosen")
    return View(x.node, [*mine[:d], (), *mine[d + 1 : -1], mine[d]])


@rule("embedding")
def embedding(reader: Reader, call: Bound) -> View:
    """A product with one-hot data; rows by position are a tensor that acts on nothing."""
    ids, w = call.args[0], call.whole("weight", 1)
    if plain(call.call.name) == "embedding" and isinstance(w, View) and ids.node.kind not in ("const", "data"):
        raise reader.fail("an embedding of what is not the input")
    if ids.node.kind == "const":
        at, spots = ids.node.value[0], [d for d, dim in enumerate(ids.dims) if dim]
        if len(spots) > 1:
            raise reader.fail("positions along several axes")
        rows = reader.entries_of(w, 0, at.flatten())
        return View(rows.node, [*(rows.dims[0] if d in spots else () for d in range(len(ids.dims))), rows.dims[1]])
    if ids.node.value.is_floating_point():
        raise reader.fail("an embedding of what is not whole numbers")
    number = ids.node.number
    if number not in reader.one_hot:
        count = w.sizes(0, reader.builds)
        hot = TracedNode("data", [*ids.node.indices, IndexClass(count, ("data", "vocabulary"))], name="data")
        hot.value = F.one_hot(ids.node.value.long(), count[0]).double()
        reader.one_hot[number] = hot
    hot = reader.one_hot[number]
    keys = list(range(len(ids.dims)))
    return reader.contract(
        [(w, ["v", "o"]), (View(hot, [*ids.dims, (len(hot.indices) - 1,)]), [*keys, "v"])], [*keys, "o"]
    )


@rule("where", "masked_fill")
def where(reader: Reader, call: Bound) -> Any:
    """Where a mask of one expert is true: its tokens, and its places among the chosen. Else a mask of constants."""
    if plain(call.name) == "where" and len(call.args) == 1:
        return _tokens_of(reader, call)
    fill = plain(call.name) == "masked_fill"
    x, mask, other = call.args if fill else (call.args[1], call.args[0], call.args[2])
    if mask.node.kind != "const":
        raise reader.fail("a choice by what is computed")
    if isinstance(x, View) and isinstance(other, View) and "const" not in (x.node.kind, other.node.kind):
        raise reader.fail("a choice between two signals")
    kept = x if isinstance(x, View) and x.node.kind != "const" else other
    rest = other if kept is x else x
    value = rest.node.value[0] if isinstance(rest, View) else torch.tensor(float(rest[0]))
    m = mask.node.value[0].bool() if (kept is x) != fill else ~mask.node.value[0].bool()
    low = float(value.max()) < -1e3 or not m.logical_not().any()
    if not low and float(value.abs().max()) > 0:
        raise reader.fail("entries are set to a constant")
    return reader.same(
        reader.spread(kept, mask),
        lambda v: torch.where(m, v, value.to(v.dtype)),
        "a mask is left out" if not m.all() else "",
    )


@rule("nonzero")
def _tokens_of(reader: Reader, call: Bound) -> list[View]:
    x, found = call.args[0], [reader.constant(v) for v in call.values]
    if x.node.kind != "choice":
        raise reader.fail("an index by what is computed")
    if x.node.kind == "choice" and x.node.at:
        for view, dim in zip(found, x.dims, strict=True):
            view.node.at = x.node.at
            view.node.slot = int(any(e == x.node.slot for e in dim if isinstance(e, int)))
    return found


@rule("one_hot")
def one_hot(reader: Reader, call: Bound) -> View:
    x = call.args[0]
    if x.node.kind != "choice":
        raise reader.fail("a one-hot of what is not a chosen expert")
    return View(x.node, [*x.dims, (IndexClass(tuple(s[-1] for s in call.shapes[0])),)])


@rule("gather")
def gather(reader: Reader, call: Bound) -> View:
    """Scores of the chosen experts, in the order of the experts."""
    x = call.args[0]
    method = call.call.name != "take_along_dim"
    choice, d = (
        (call.whole("index", 2), int(call.get("dim", 1)))
        if method
        else (call.whole("indices", 1), int(call.get("dim", 2, -1)))
    )
    if choice.node.kind != "choice":
        raise reader.fail("a gather that is not by chosen experts")
    over = slots_along(reader, x, d % len(x.dims), "gather")
    if choice.sizes(d % len(x.dims), 1) != x.sizes(d % len(x.dims), 1) or len(over) > 1:
        raise reader.fail("a gather of some experts; build with K = M")
    k = x.sizes(d % len(x.dims), reader.builds)[0]
    if call.shapes[0][0][d] != k:
        raise reader.fail("a gather of some experts; let build take K, which is traced with K = M")
    return _largest(reader, x, over, k)


@rule("scatter", "scatter_add")
def scatter(reader: Reader, call: Bound) -> View:
    """Values of the chosen experts in their places, zero elsewhere."""
    base, choice, source = call.args[0], call.args[2], call.whole("src", 3)
    if base.node.kind == "const" and choice.node.kind == "choice":
        if not isinstance(source, View) or source.node.kind == "const":
            return reader.constant(call.values[0])
        if all(bool((v < -1e3).all()) for v in base.node.value):
            return View(source.node, source.dims)
        if not any(float(v.abs().max()) for v in base.node.value):
            return reader.same(source, lambda v: v)  # the others are there, too
    raise reader.fail("a scatter that is not of chosen values into zeros, or -inf")


@rule("index_add")
def index_add(reader: Reader, call: Bound) -> View:
    base, source = call.args[0], call.whole("source", 3)
    index = call.whole("index", 2)
    if index.node.kind != "const" or sorted(index.node.value[0].tolist()) != list(
        range(call.shapes[0][0][int(call.get("dim", 1, 0))])
    ):
        raise reader.fail("adds to some entries; build with K = M (every expert)")
    if base.node.kind == "const":
        if any(float(v.abs().max()) for v in base.node.value):
            raise reader.fail("adds to a constant")
        return source
    return reader.add([base, source])


@rule("index_select")
def index_select(reader: Reader, call: Bound) -> View:
    x, d = call.args[0], int(call.get("dim", 1))
    return indexed(reader, call, x, [*[[slice(None)] * reader.builds] * d, call.args[2]])
