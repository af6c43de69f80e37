"""Builds products of tensors as contraction nodes. Keys name the dimensions of operands, as in ``einsum``.

Read next: ``elementwise.py``, ``rules.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from .equation_constants import convert_constant, make_fixed_constant, varies_along_growing_axis
from .graph import Dims, View, multiply_factors
from .nodes import (
    Concatenation,
    ConstantNode,
    ContractionNode,
    EntryPick,
    EquationConstant,
    IndexClass,
    Parameter,
    PerBuild,
    ScaledSignal,
    SumNode,
    TracedNode,
    cache_on_node,
    walk_graph,
)
from .permuted_copies import find_permuted_copies, find_permuted_pair, has_negated_entries
from .reader import Reader
from .slicing import slice_node

Operand = tuple[View, Sequence[Any]]
"""A tensor, and a key (any hashable value) for each of its dimensions."""
NEGATED_COPY = "combines a signal with a copy whose entries are partly negated, and equations have no signs"


def contract_views(reader: Reader, operands: Sequence[Operand], out: Sequence[Any], factor: PerBuild = ()) -> View:
    """Multiplies tensors as ``torch.einsum`` does, with any objects as keys in place of the characters of its equation.

        contract_views(reader, [(W, "oi"), (x, "bi")], "bo")  ->  x @ W.T

    Args:
        reader: the reader.
        operands: the tensors, each with a key for each of its dimensions.
        out: the keys of the result; the product is summed over all other keys.
        factor: a number in each build of the module by which the product is multiplied; empty for 1.

    Raises:
        Unreadable: equations cannot express the product.
    """
    labels, classes, factors, order, dims = assign_labels(reader, operands, out)
    signals = [(v.node, keys) for v, keys in operands if not isinstance(v.node, ConstantNode | EquationConstant)]
    if find_permuted_pair([x for x, _ in signals]):
        raise reader.fail(
            "multiplies a signal by a permuted copy of itself, which equations cannot express; use two signals"
        )
    acting = {y.name for x, _ in signals if x.is_weight for y in walk_graph(x) if isinstance(y, Parameter)}
    befores = (whole for x, _ in signals if acting and not x.is_weight for whole, *_ in find_permuted_copies(x))
    if any(y.name in acting for whole in befores for y in walk_graph(whole) if isinstance(y, Parameter)):
        raise reader.fail("a parameter acts both before and after a permutation of entries; use two parameters")
    sums = len(signals) > 1 or not {*signals[0][1]} <= {*out}
    if sums and any(has_negated_entries(x) for x, _ in signals) and not any(x.is_weight for x, _ in signals):
        raise reader.fail(NEGATED_COPY)
    ones = [not v.is_constant or all(bool((c == 1).all()) for c in v.values) for v, _ in operands]
    if any(v.is_constant and not any(bool(c.any()) for c in v.values) for v, _ in operands):
        sizes = [
            max(v.get_sizes(d, reader.builds) for v, ks in operands for d, k in enumerate(ks) if k == o) for o in out
        ]
        return reader.make_constant([torch.zeros([n[b] for n in sizes]) for b in range(reader.builds)])
    if not all(ones):
        pairs = zip(operands, ones, strict=True)
        made = [(v if one else _convert_operand(reader, v, keys, operands, out), keys) for (v, keys), one in pairs]
        return contract_views(reader, made, out, factor)
    for key in {key for _, keys in operands for key in keys} - {*out}:  # a key along which a single weight is summed
        own = [(node, mine) for node, mine in factors if not {*labels.get(key, ())}.isdisjoint(mine)]
        index = [classes[x] for x in labels.get(key, ())]
        if len(own) == 1 < len(factors) and own[0][0].is_weight and index and all(x.fixed for x in index):
            every = torch.ones([x.find_root().sizes[0] for x in index], dtype=torch.float64)
            node = EquationConstant(indices=index, where=reader.where, value=every)
            return contract_views(reader, [*operands, (View(node, [node.slots]), [key])], out, factor)
    owned = {x for _, mine in factors for x in mine}
    for label in (x for key in labels if key not in out for x in labels[key] if x not in owned):
        factor = multiply_factors(
            factor, classes[label].find_root().sizes
        )  # summing a constant along an index multiplies by its size
    if (
        not factor and len(factors) == 1 and set(factors[0][1]) == set(order)
    ):  # a permutation of dimensions needs no node
        node, mine = factors[0]
        return View(node, [tuple(mine.index(order[e]) if isinstance(e, int) else e for e in d) for d in dims])
    return View(_build_contraction(reader, factors, tuple(order), classes, factor), dims)


def assign_labels(
    reader: Reader, operands: Sequence[Operand], out: Sequence[Any]
) -> tuple[dict[Any, list[int]], dict[int, IndexClass], list[Any], list[int], Dims]:
    """Numbers the indices of a product or sum, as preparation of its node. Indices of operands with equal keys are
    joined.

    One key has several labels if the dimension that it stands for consists of several indices.

    Args:
        reader: the reader.
        operands: the tensors, each with a key for each of its dimensions.
        out: the keys of the result.

    Returns:
        The labels of each key, the index class of each label, the nodes of the operands with the labels of their
        dimensions, the labels of the dimensions of the result, and the ``dims`` of its view.
    """
    uses: dict[Any, list[tuple[View, int]]] = {}
    for view, keys in operands:
        for d, key in enumerate(keys):
            if view.dims[d]:
                uses.setdefault(key, []).append((view, d))
    labels: dict[Any, list[int]] = {}
    classes: dict[int, IndexClass] = {}
    for key, where in uses.items():
        real = [x for x in where if not x[0].is_constant] or where[:1]
        rows = [[view.get_index(e) for e in view.dims[d]] for view, d in real]
        reader.align_dims(rows)
        labels[key] = list(range(len(classes), len(classes) + len(rows[0])))
        classes |= dict(zip(labels[key], (x.find_root() for x in rows[0]), strict=True))
    owned: set[int] = set()
    factors: list[Any] = []
    for view, keys in operands:
        if not view.is_constant:
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
    """Gives the dimensions of tensors keys so that they are matched from the last one on, as in broadcasting.

    Returns:
        Each tensor with the keys of its dimensions, and the keys of the result of the elementwise operation.
    """
    n = max(len(v.dims) for v in views)
    return [(v, range(n - len(v.dims), n)) for v in views], range(n)


def _convert_operand(
    reader: Reader, x: View, keys: Sequence[Any], operands: Sequence[Operand], out: Sequence[Any]
) -> View:
    """Converts a constant of the module that is an operand of a product into a constant of the equations.

    If its entries differ along a growing axis over which the product is summed, and no signal among the operands has
    this axis, it becomes a frozen parameter instead.

    Args:
        reader: the reader.
        x: the constant.
        keys: the keys of its dimensions.
        operands: all operands of the product, with the keys of their dimensions.
        out: the keys of the result.
    """
    grows = {key for d, key in enumerate(keys) if key not in out and not all(x.get_index(e).fixed for e in x.dims[d])}
    if not varies_along_growing_axis(x) or any(
        grows & {*ks} and not v.node.is_weight for v, ks in operands if v is not x
    ):
        return convert_constant(reader, x)
    mark, shape = x.values[0].numpy().tobytes(), [x.get_sizes(d, reader.builds) for d in range(len(x.dims))]
    if mark not in reader.frozen_constants:
        name = f"constants_{len(reader.frozen_constants) + 1}"
        reader.frozen_constants[mark] = reader.make_leaf(name, shape, x.values[0].double(), frozen=True)
    return act_on_constant(reader, reader.frozen_constants[mark])


def act_on_constant(reader: Reader, x: View) -> View:
    """Returns the product of a tensor that is computed from weights alone with the constant 1, which is a signal.

    In equations, functions and sums take signals only, so that the tensor itself could not be their argument.
    """
    keys = range(len(x.dims))
    return contract_views(
        reader, [(x, keys), (make_fixed_constant(reader, [torch.ones(1)] * reader.builds, [], []), [])], keys
    )


def _build_contraction(
    reader: Reader, factors: list[Any], out: tuple[int, ...], classes: dict[int, IndexClass], factor: PerBuild
) -> TracedNode:
    """Builds the node of a product. Operands that equations cannot name are expanded: (A + B) x  ->  A x + B x.

    These are sums, products and multiples of weights, and concatenations along a growing axis.

    Args:
        reader: the reader.
        factors: the operands, as (node, labels of its dimensions).
        out: the labels of the result.
        classes: the index class of each label; expansions add labels.
        factor: a number in each build of the module by which the product is multiplied; empty for 1.
    """
    alone = len(factors) == 1
    for k, (node, mine) in enumerate(factors):
        before, after = factors[:k], factors[k + 1 :]
        scaled = alone and set(mine) == set(out)
        if isinstance(node, ScaledSignal) and (scaled or (not alone and node.is_weight)):
            return _build_contraction(
                reader, [*before, (node.source, mine), *after], out, classes, multiply_factors(factor, node.factor)
            )
        if isinstance(node, SumNode) and node.is_weight and not alone:
            terms = []
            for term, own in node.sources:
                now = [*before, (term, tuple(mine[x] for x in own)), *after]
                if any(not any(x in m for _, m in now) for x in out):
                    raise reader.fail("adds weights of different shapes; add each to a signal instead")
                terms.append((_build_contraction(reader, now, out, dict(classes), factor), tuple(range(len(out)))))
            return SumNode(indices=[classes[x] for x in out], where=reader.where, sources=tuple(terms))
        if isinstance(node, ContractionNode) and (
            alone
            or node.is_weight
            or (len(node.sources) == 1 and set(node.sources[0][1]) == set(node.out))
            or _is_signal_made_matrix(reader, node, mine, [*before, *after], out)
        ):
            names = {x: mine[j] for j, x in enumerate(node.out)}
            for x in node.labels:
                if x not in names:
                    names[x] = max([*classes, *names.values()]) + 1
                    classes[names[x]] = node.labels[x]
            inner = [(g, tuple(names[x] for x in labels)) for g, labels in node.sources]
            return _build_contraction(
                reader, [*before, *inner, *after], out, classes, multiply_factors(factor, node.factor)
            )
        if of_its_own := _find_common_factor(node):
            rest = [*before, (_drop_common_factor(node), mine), *after]
            return _build_contraction(reader, rest, out, classes, multiply_factors(factor, of_its_own))
        if isinstance(node, Concatenation):
            return _distribute_over_parts(reader, factors, k, out, classes, factor)
    labels = {x: classes[x] for x in dict.fromkeys([*out, *(x for _, mine in factors for x in mine)])}
    indices, sources = [classes[x] for x in out], tuple(factors)
    return ContractionNode(indices=indices, where=reader.where, sources=sources, out=out, labels=labels, factor=factor)


def _is_signal_made_matrix(
    reader: Reader, node: ContractionNode, mine: Sequence[int], others: Sequence[Any], out: Sequence[int]
) -> bool:
    """Tests whether an operand is a matrix that depends on signals and acts on another signal: (sum over e of g_e
    W_e) x.

    Such a product is multiplied out, so that the parameters W_e themselves act on x.

    Args:
        reader: the reader.
        node: the operand, a product of weights and signals.
        mine: the labels of its dimensions.
        others: the other operands, as (node, labels).
        out: the labels of the result.
    """
    own = dict(zip(node.out, mine, strict=True))
    widths = {x for x, index in node.labels.items() if x in own and _is_width(reader, index)}
    theirs = {x for g, labels in node.sources if not g.is_weight for x in labels}
    acted = {x for g, labels in others if not g.is_weight for x in labels} - {*out}
    matrices = [widths & {*labels} - theirs for g, labels in node.sources if g.is_weight]
    return any(len(x) > 1 and acted & {own[k] for k in x} for x in matrices)


def _is_width(reader: Reader, index: IndexClass) -> bool:
    """Returns whether an index grows along an axis other than the number of experts M."""
    sizes = index.find_root().sizes
    return any(n != sizes[0] and run.enlarged_axis != "M" for n, run in zip(sizes, reader.runs, strict=True))


def _find_common_factor(node: TracedNode) -> PerBuild:
    """Returns the number by which a whole node is multiplied, in each build of the module; empty if there is none.

    A product has one if it sums along no growing axis, and if it has weights, along no axis at all (a signal times a
    gain). A sum has the number that all of its terms share.
    """
    if node.is_weight or node.value_function is not None:
        return ()
    if isinstance(node, SumNode | EntryPick):
        first, *more = map(_find_common_factor, node.children)
        return first if all(f == first for f in more) else ()
    if not isinstance(node, ContractionNode):
        return ()
    summed = [index for x, index in node.labels.items() if x not in node.out]
    takes = bool(summed) if any(c.is_weight for c in node.children) else any(not index.fixed for index in summed)
    return () if takes else node.factor


@cache_on_node
def _drop_common_factor(node: TracedNode) -> TracedNode:
    """Returns the node divided by the factor that ``_find_common_factor`` returns."""
    if isinstance(node, ContractionNode):
        return node.copy_with(factor=(), call=None, part=None)
    of = tuple((_drop_common_factor(c), own) for c, own in node.sources)
    return node.copy_with(sources=of, call=None, part=None)


def _distribute_over_parts(
    reader: Reader, factors: list[Any], k: int, out: tuple[int, ...], classes: dict[int, IndexClass], factor: PerBuild
) -> TracedNode:
    """Expands a product that sums along a concatenated axis: cat([a, b]) @ W  ->  a @ W[:k] + b @ W[k:].

    Args:
        reader: the reader.
        factors: the operands, as (node, labels of its dimensions).
        k: position of the concatenation among them.
        out: the labels of the result.
        classes: the index class of each label.
        factor: a number in each build of the module by which the product is multiplied; empty for 1.

    Raises:
        Unreadable: the product does not sum along the concatenated axis.
    """
    node, mine = factors[k]
    assert isinstance(node, Concatenation)
    label = mine[node.slot]
    if label in out:
        raise reader.fail("multiplies a concatenation along an axis that grows; multiply its parts before torch.cat")
    terms = []
    for (part, own), start in zip(node.sources, node.begins, strict=True):
        along = [x.find_root() for x, slot in zip(part.indices, own, strict=True) if slot == node.slot]
        size = [prod(column) for column in zip(*(x.sizes for x in along), strict=True)]
        stop, fresh = tuple(a + n for a, n in zip(start, size, strict=True)), max([*classes, *mine]) + 1
        inner = [label, *range(fresh, fresh + len(along) - 1)]
        now, known, rest = [], classes | dict(zip(inner, along, strict=True)), iter(inner)
        for g, labels in factors[:k] + factors[k + 1 :]:
            if label in labels:
                at, count = labels.index(label), len(labels)
                g = slice_node(reader, g, at, start, stop)
                reader.align_dims([along, g.indices[at : at + 1 + len(g.indices) - count]])
                labels = (*labels[:at], *inner, *labels[at + 1 :])
            now.append((g, labels))
        now.insert(k, (part, tuple(next(rest) if x == node.slot else mine[x] for x in own)))
        terms.append((_build_contraction(reader, now, out, known, factor), tuple(range(len(out)))))
    return SumNode(indices=[classes[x] for x in out], where=reader.where, sources=tuple(terms))
