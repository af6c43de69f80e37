"""Products of tensors, along dimensions that are named by keys. Read next: ``elementwise.py``, ``rules.py``."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from .graph import CONSTANT_KINDS, SUM_KINDS, Dims, IndexClass, TracedNode, Vector, View, asked_once, times, walk
from .indices import convert_constant, make_fixed_constant, slice_node, varies_along_growing_axis
from .mixing import met, mixes, signed
from .reading import Reader

Operand = tuple[View, Sequence[Any]]
"""A tensor, and a key for each of its dimensions."""
SIGNED = "a part of a signal with another sign beside the rest, and the equations have no signs"


def contract(reader: Reader, operands: Sequence[Operand], out: Sequence[Any], factor: Vector = ()) -> View:
    """An einsum on dimensions. factor: at every build, what multiplies it."""
    labels, classes, factors, order, dims = assign_labels(reader, operands, out)
    signals = [(v.node, keys) for v, keys in operands if v.node.kind not in {"const", *CONSTANT_KINDS}]
    if met([x for x, _ in signals]):
        raise reader.fail("a product of a signal and its own entries in another order; no equation says this")
    acting = {y.name for x, _ in signals if x.weight for y in walk(x) if y.kind == "param"}
    befores = (whole for x, _ in signals if acting and not x.weight for whole, *_ in mixes(x))
    if any(y.name in acting for whole in befores for y in walk(whole) if y.kind == "param"):
        raise reader.fail("a tensor acts before and after entries change their order; no equation says this")
    sums = len(signals) > 1 or not {*signals[0][1]} <= {*out}
    if sums and any(signed(x) for x, _ in signals) and not any(x.weight for x, _ in signals):
        raise reader.fail(SIGNED)
    ones = [v.node.kind != "const" or all(bool((c == 1).all()) for c in v.node.value) for v, _ in operands]
    if any(v.node.kind == "const" and not any(bool(c.any()) for c in v.node.value) for v, _ in operands):
        sizes = [max(v.sizes(d, reader.builds) for v, ks in operands for d, k in enumerate(ks) if k == o) for o in out]
        return reader.constant([torch.zeros([n[b] for n in sizes]) for b in range(reader.builds)])
    if not all(ones):
        pairs = zip(operands, ones, strict=True)
        made = [(v if one else _convert_operand(reader, v, keys, operands, out), keys) for (v, keys), one in pairs]
        return contract(reader, made, out, factor)
    for key in {key for _, keys in operands for key in keys} - {*out}:  # weights summed where all else repeats
        own = [(node, mine) for node, mine in factors if not {*labels.get(key, ())}.isdisjoint(mine)]
        index = [classes[x] for x in labels.get(key, ())]
        if len(own) == 1 < len(factors) and own[0][0].weight and index and all(x.fixed for x in index):
            every = torch.ones([x.root().sizes[0] for x in index], dtype=torch.float64)
            node = TracedNode("fixed", index, reader.where, value=every)
            return contract(reader, [*operands, (View(node, [node.slots]), [key])], out, factor)
    owned = {x for _, mine in factors for x in mine}
    for label in (x for key in labels if key not in out for x in labels[key] if x not in owned):
        factor = times(factor, classes[label].root().sizes)  # a sum of what is constant along it
    if not factor and len(factors) == 1 and set(factors[0][1]) == set(order):  # in another order alone
        node, mine = factors[0]
        return View(node, [tuple(mine.index(order[e]) if isinstance(e, int) else e for e in d) for d in dims])
    return View(_build_contraction(reader, factors, tuple(order), classes, factor), dims)


def assign_labels(
    reader: Reader, operands: Sequence[Operand], out: Sequence[Any]
) -> tuple[dict[Any, list[int]], dict[int, IndexClass], list[Any], list[int], Dims]:
    """Labels of every key, their classes, the operands' nodes with labels; and of a result with these keys the
    labels of its slots, and its dimensions."""
    uses: dict[Any, list[tuple[View, int]]] = {}
    for view, keys in operands:
        for d, key in enumerate(keys):
            if view.dims[d]:
                uses.setdefault(key, []).append((view, d))
    labels: dict[Any, list[int]] = {}
    classes: dict[int, IndexClass] = {}
    for key, where in uses.items():
        real = [x for x in where if x[0].node.kind != "const"] or where[:1]
        rows = [[view.index(e) for e in view.dims[d]] for view, d in real]
        reader.align(rows)
        labels[key] = list(range(len(classes), len(classes) + len(rows[0])))
        classes |= dict(zip(labels[key], (x.root() for x in rows[0]), strict=True))
    owned: set[int] = set()
    factors: list[Any] = []
    for view, keys in operands:
        if view.node.kind != "const":
            mine = [-1] * len(view.node.indices)
            for d, key in enumerate(keys):
                for e, label in zip(view.dims[d], labels.get(key, ()), strict=False):
                    if isinstance(e, int):
                        mine[e] = label
            owned |= set(mine)
            factors.append((view.node, tuple(mine)))
    order = list(dict.fromkeys(x for key in out for x in labels.get(key, ()) if x in owned))
    slot = {label: k for k, label in enumerate(order)}
    return labels, classes, factors, order, [tuple(slot.get(x, classes[x]) for x in labels.get(k, ())) for k in out]


def assign_broadcast_keys(views: Sequence[View]) -> tuple[list[Operand], range]:
    """Keys of elementwise operands: their dimensions, counted from the last; and those of the result."""
    n = max(len(v.dims) for v in views)
    return [(v, range(n - len(v.dims), n)) for v in views], range(n)


def _convert_operand(
    reader: Reader, x: View, keys: Sequence[Any], operands: Sequence[Operand], out: Sequence[Any]
) -> View:
    """A constant of a product; one that differs along an axis that grows, and meets weights alone there, is what a
    frozen tensor makes."""
    grows = {key for d, key in enumerate(keys) if key not in out and not all(x.index(e).fixed for e in x.dims[d])}
    if not varies_along_growing_axis(x) or any(grows & {*ks} and not v.node.weight for v, ks in operands if v is not x):
        return convert_constant(reader, x)
    mark, shape = x.node.value[0].numpy().tobytes(), [x.sizes(d, reader.builds) for d in range(len(x.dims))]
    if mark not in reader.frozen:
        name = f"constants_{len(reader.frozen) + 1}"
        reader.frozen[mark] = reader.leaf_view("frozen", name, shape, x.node.value[0].double())
    return act_on_constant(reader, reader.frozen[mark])


def act_on_constant(reader: Reader, x: View) -> View:
    """What is made of weights alone, as it acts on a constant."""
    keys = range(len(x.dims))
    return contract(
        reader, [(x, keys), (make_fixed_constant(reader, [torch.ones(1)] * reader.builds, [], []), [])], keys
    )


def _build_contraction(
    reader: Reader, factors: list[Any], out: tuple[int, ...], classes: dict[int, IndexClass], factor: Vector
) -> TracedNode:
    """A contraction; weights that are sums or products of weights, concatenations and added constants are written
    out where they meet others."""
    alone = len(factors) == 1
    for k, (node, mine) in enumerate(factors):
        before, after = factors[:k], factors[k + 1 :]
        scaled = alone and set(mine) == set(out)
        if node.kind == "scale" and (scaled or (not alone and node.weight)):
            return _build_contraction(
                reader, [*before, (node.source, mine), *after], out, classes, times(factor, node.factor)
            )
        if node.kind in SUM_KINDS and node.weight and not alone:
            terms = []
            for term, labels in node.sources:
                now = [*before, (term, tuple(mine[x] for x in labels)), *after]
                if any(not any(x in m for _, m in now) for x in out):
                    raise reader.fail("weights that are repeated are added to weights; add them to signals")
                terms.append((_build_contraction(reader, now, out, dict(classes), factor), tuple(range(len(out)))))
            return TracedNode("add", [classes[x] for x in out], reader.where, tuple(terms))
        moved = len(node.sources) == 1 and set(node.sources[0][1]) == set(node.out)
        if node.kind == "contract" and (
            alone or node.weight or moved or _is_signal_made_matrix(reader, node, mine, [*before, *after], out)
        ):
            names = {x: mine[j] for j, x in enumerate(node.out)}
            for x in node.labels:
                if x not in names:
                    names[x] = max([*classes, *names.values()]) + 1
                    classes[names[x]] = node.labels[x]
            inner = [(g, tuple(names[x] for x in labels)) for g, labels in node.sources]
            return _build_contraction(reader, [*before, *inner, *after], out, classes, times(factor, node.factor))
        if own := _find_common_factor(node):
            return _build_contraction(
                reader, [*before, (_drop_common_factor(node), mine), *after], out, classes, times(factor, own)
            )
        if node.kind == "cat":
            return _distribute_over_parts(reader, factors, k, out, classes, factor)
    labels = {x: classes[x] for x in dict.fromkeys([*out, *(x for _, mine in factors for x in mine)])}
    return TracedNode("contract", [classes[x] for x in out], reader.where, tuple(factors), out, labels, factor)


def _is_signal_made_matrix(
    reader: Reader, node: TracedNode, mine: Sequence[int], others: Sequence[Any], out: Sequence[int]
) -> bool:
    """Is it matrices that signals mix, gate or make, which then act on another signal along a width of their own?"""
    own = dict(zip(node.out, mine, strict=True))
    widths = {x for x, index in node.labels.items() if x in own and _is_width(reader, index)}
    theirs = {x for g, labels in node.sources if not g.weight for x in labels}
    acted = {x for g, labels in others if not g.weight for x in labels} - {*out}
    matrices = [widths & {*labels} - theirs for g, labels in node.sources if g.weight]
    return any(len(x) > 1 and acted & {own[k] for k in x} for x in matrices)


def _is_width(reader: Reader, index: IndexClass) -> bool:
    """Does an index grow, and not with the number of experts?"""
    sizes = index.root().sizes
    return any(n != sizes[0] and run.doubled != "M" for n, run in zip(sizes, reader.runs, strict=True))


def _find_common_factor(node: TracedNode) -> Vector:
    """The factor of a product of signals that sums along no axis that grows, or of every term of a sum of such."""
    if node.weight or node.exact is not None or node.kind not in {*SUM_KINDS, "pick", "contract"}:
        return ()
    if node.kind != "contract":
        first, *more = map(_find_common_factor, node.children)
        return first if all(f == first for f in more) else ()
    takes = any(not index.fixed for x, index in node.labels.items() if x not in node.out)
    return () if takes or any(c.weight for c in node.children) else node.factor


@asked_once
def _drop_common_factor(node: TracedNode) -> TracedNode:
    """What it is of."""
    of = node.sources if node.kind == "contract" else tuple((_drop_common_factor(c), own) for c, own in node.sources)
    return node.but(factor=(), sources=of, call=None, part=None)


def _distribute_over_parts(
    reader: Reader, factors: list[Any], k: int, out: tuple[int, ...], classes: dict[int, IndexClass], factor: Vector
) -> TracedNode:
    """A concatenation that is summed over: a product for each of its parts."""
    node, mine = factors[k]
    label = mine[node.slot]
    if label in out:
        raise reader.fail("a concatenation along an axis that grows is multiplied; multiply its parts")
    terms = []
    for (part, own), start in zip(node.sources, node.value, strict=True):
        along = [x.root() for x, slot in zip(part.indices, own, strict=True) if slot == node.slot]
        size = [prod(column) for column in zip(*(x.sizes for x in along), strict=True)]
        stop, fresh = tuple(a + n for a, n in zip(start, size, strict=True)), max([*classes, *mine]) + 1
        inner = [label, *range(fresh, fresh + len(along) - 1)]
        now, known, rest = [], classes | dict(zip(inner, along, strict=True)), iter(inner)
        for g, labels in factors[:k] + factors[k + 1 :]:
            if label in labels:
                at, count = labels.index(label), len(labels)
                g = slice_node(reader, g, at, start, stop)
                reader.align([along, g.indices[at : at + 1 + len(g.indices) - count]])
                labels = (*labels[:at], *inner, *labels[at + 1 :])
            now.append((g, labels))
        now.insert(k, (part, tuple(next(rest) if x == node.slot else mine[x] for x in own)))
        terms.append((_build_contraction(reader, now, out, known, factor), tuple(range(len(out)))))
    return TracedNode("add", [classes[x] for x in out], reader.where, tuple(terms))
