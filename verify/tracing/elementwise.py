"""Builds the graph nodes of elementwise sums, products and functions of tensors.

Read next: ``rules.py`` and ``rule_application.py`` (which calls they stand for).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import combinations
from math import prod
from typing import Any

import torch
from torch import Tensor

from .equation_constants import convert_constant, make_fixed_constant, varies_along_growing_axis
from .graph import NUMBER_IN_NAME, View, multiply_factors
from .nodes import (
    CentredSignal,
    Concatenation,
    ContractionNode,
    EntrySelection,
    EquationConstant,
    FunctionNode,
    Parameter,
    PartSelector,
    PerBuild,
    Permutation,
    SameSizeNode,
    ScaledSignal,
    Selection,
    ShiftedSignal,
    Source,
    StoppedGradient,
    SumNode,
    TensorFunction,
    TracedNode,
    Unreadable,
    cache_on_node,
)
from .permuted_copies import find_permuted_pair, has_negated_entries
from .products import NEGATED_COPY, act_on_constant, assign_broadcast_keys, assign_labels, contract_views
from .reader import Reader
from .slicing import select_entry

FIXED_SUM_FUNCTIONS = "centre", "layernorm", "normed_sigmoid", "softmax", "topk_softmax"
"""What sums to one, or to zero, along what it goes along."""
NORMALISED_GATES = (
    {"softmax": "softmax", "softmax_topk": "topk_softmax", "topk_softmax": "topk_softmax"}
    | {name: f"normed_{name}" for name in ("sigmoid", "topk_sigmoid", "topk")}
    | {"normed_sigmoid_topk": "normed_topk_sigmoid"}
)
"""Functions of gates, and what they are when they are divided by their sum."""
MAX_EPSILON = 1e-3
"""A constant that is added and is below this guards a division."""
MAX_PEAK_CHANGE = 0.1
"""How much the largest entry of a table of constants may change where an axis doubles, and count as alike: any power
changes it by more. That of rotary angles comes to 1 from below."""
MIN_RELATIVE_MEAN = 0.5
"""The mean of constants, by their size, below which a sum of what they multiply is not that of what it was."""
MAX_SHARE_CHANGE = 0.2
"""How much the share of entries that a mask keeps may change with the sizes (a triangle keeps (n + 1) / 2 n)."""
STRUCTURE_DEPTH = 6
"""How many nodes deep a structure key goes."""


class PossibleCancellation(Unreadable):
    """The error for a difference of two signals that may cancel, so that the size of the difference is unknown."""


def derive_same_size(
    reader: Reader,
    x: View,
    value_function: TensorFunction,
    kind: type[TracedNode] = SameSizeNode,
    entrywise: bool = False,
    **fields: Any,
) -> View:
    """Return the view of a tensor that is computed from ``x`` and whose entries are as large, up to a constant factor.

    Args:
        reader: The reader.
        x: The signal.
        value_function: Computes the value of the tensor from the value of x, as torch does.
        kind: Class of the new node: ``ShiftedSignal``, ``SameSizeNode`` or a subclass of it.
        entrywise: Whether ``value_function`` acts on each entry separately, so that it also applies to slices.
        fields: Other attributes of the node.
    """
    made = value_function if entrywise else (lambda v: x.from_torch(value_function(x.to_torch(v)), v))
    return View(x.node.derive(kind, reader.where, value_function=made, entrywise=entrywise, **fields), x.dims)


def apply_function(
    reader: Reader,
    name: str,
    x: View,
    value_function: TensorFunction,
    over: tuple[int, ...] = (),
    kind: type[FunctionNode] = FunctionNode,
    **fields: Any,
) -> View:
    """Return the view of a function of a signal.

    Args:
        reader: The reader.
        name: Name of the function in the equations.
        x: The signal.
        value_function: Computes the value of the function from the value of the node of x.
        over: The dimensions of the node of x along which the function mixes entries, as a norm does; empty if it is
            elementwise.
        kind: Class of the new node.
        fields: Other attributes of the node.
    """
    if has_negated_entries(x.node):
        raise reader.fail(NEGATED_COPY)
    return View(
        x.node.derive(kind, reader.where, name=name, over=over, value_function=value_function, **fields), x.dims
    )


def add_views(reader: Reader, views: Sequence[View]) -> View:
    """Return the view of the elementwise sum of some signals, or of a signal and a constant.

    Raises:
        Unreadable: Two terms may cancel, or are a signal and a permuted copy of it.
    """
    live = [v for v in views if not v.is_constant]
    if len(live) < len(views):
        (x,), (c,) = live, [v for v in views if v.is_constant]
        return add_constant(reader, x, c)
    if any(_has_negative(v.node) for v in views):
        if (left := _merge_terms(reader, views)) is not None:
            return add_views(reader, left) if len(left) > 1 else left[0]
        _check_cancels(reader, views)
    if find_permuted_pair([v.node for v in views]):
        raise reader.fail(
            "adds a signal to a permuted copy of itself, which is not a rotation; equations cannot express this"
        )
    if any(not v.node.is_weight for v in views):
        views = [
            act_on_constant(reader, v)
            if v.node.is_weight and not isinstance(skip_same_size_nodes(v.node), Parameter)
            else v
            for v in views
        ]
    _, classes, terms, order, dims = assign_labels(reader, *assign_broadcast_keys(views))
    sources = tuple((node, tuple(order.index(x) for x in mine)) for node, mine in terms)
    node = SumNode(indices=[classes[x] for x in order], where=reader.where, sources=sources)
    return View(node, dims)


def _merge_terms(reader: Reader, views: Sequence[View]) -> list[View] | None:
    """Return the terms of a sum without those that cancel exactly, as ``(a + b) - (a - c)  ->  b, c``.

    Terms that are sums themselves are replaced by their terms. If no signal is both added and subtracted, the result
    is None.

    Raises:
        PossibleCancellation: No term is left.
    """
    _, classes, sources, order, dims = assign_labels(reader, *assign_broadcast_keys(views))
    found: dict[Any, tuple[TracedNode, list[PerBuild]]] = {}
    for node, mine in sources:
        for term, labels, factor, _ in _iterate_terms(node, tuple(order.index(x) for x in mine)):
            found.setdefault((term.number, labels), (term, []))[1].append(factor or (1.0,) * reader.builds)
    if not any(min(f[0] for f in factors) < 0 < max(f[0] for f in factors) for _, factors in found.values()):
        return None
    made = []
    for (_, labels), (term, factors) in found.items():
        number = [sum(column) for column in zip(*factors, strict=True)]
        if any(abs(n) > 1e-9 * max(abs(f) for f in column) for n, *column in zip(number, *factors, strict=True)):
            at = {x: k for k, x in enumerate(labels)}
            view = View(
                term, [tuple(at.get(e, classes[order[e]]) if isinstance(e, int) else e for e in d) for d in dims]
            )
            made.append(view if {*number} == {1} else scale_view(reader, view, reader.make_scalar(number)))
    if not made:
        raise PossibleCancellation(str(reader.fail("a sum that cancels, and the equations have no signs")))
    return made


def _check_cancels(reader: Reader, views: Sequence[View]) -> None:
    """Check that a sum has no two terms of opposite sign that are computed in the same way, since they may cancel.

    A difference of two functions of one signal is accepted if no power of the signal cancels when both functions and
    the difference are written as polynomials.

    Raises:
        PossibleCancellation: Two terms may cancel.
    """
    laws = [
        {
            (compute_structure_key(t), bool(f) and f[0] < 0, (stops, compute_structure_key(t, ignore_stops=False)))
            for t, _, f, stops in _iterate_terms(v.node, through_functions=True)
        }
        for v in views
    ]
    for one, other in combinations(laws, 2):
        pairs = [(x[2], y[2]) for x in one for y in other if x[0] == y[0] and x[1] != y[1]]
        if any(x != y for x, y in pairs):
            raise PossibleCancellation(
                str(reader.fail("a signal and the same signal stopped cancel; the equations have no signs"))
            )
        if pairs and not reader.known_functions.keeps_all_powers(reader.call):
            why = "a difference of two signals of one law may cancel, and the equations have no signs"
            raise PossibleCancellation(str(reader.fail(why)))


def _iterate_terms(
    node: TracedNode,
    labels: tuple[int, ...] = (),
    factor: PerBuild = (),
    through_functions: bool = False,
    stops: bool = False,
) -> Iterator[tuple[TracedNode, tuple[int, ...], PerBuild, bool]]:
    """Yield the terms of a sum; for a term that is a sum itself, its terms.

    Args:
        node: The sum.
        labels: The names that the dimensions of the node get in the result; by default their numbers.
        factor: A number by which the whole sum is multiplied, in each build of the module; empty for 1.
        through_functions: Whether to ignore added constants, subtracted means and stopped gradients, and look for
            terms in the signals below them, too.
        stops: Whether the gradient of the whole sum is stopped.

    Yields:
        The node of a term, the name of each of its dimensions, the factor before it, and whether its gradient is
        stopped.
    """
    labels = labels or node.slots
    stopped, into = isinstance(node, StoppedGradient), node.sources[:1]
    if (known := _find_multiple(node)) is not None:
        source, more = known
        factor, into = multiply_factors(factor, more), (source,)
    elif isinstance(node, SumNode) and (through_functions or node.value_function is None):
        into = node.sources
    elif not (through_functions and isinstance(node, SameSizeNode | ShiftedSignal | StoppedGradient | CentredSignal)):
        yield node, labels, factor, stops
        return
    for child, own in into:
        yield from _iterate_terms(child, tuple(labels[x] for x in own), factor, through_functions, stops or stopped)


@cache_on_node
def _has_negative(node: TracedNode) -> bool:
    """Return whether a signal is some other signal times a negative number, or a sum with such a term."""
    known = _find_multiple(node)
    through = known is not None or isinstance(
        node, SameSizeNode | SumNode | ShiftedSignal | StoppedGradient | CentredSignal
    )
    negative = known is not None and bool(known[1]) and known[1][0] < 0
    return negative or (through and any(map(_has_negative, node.children)))


def _find_multiple(node: TracedNode) -> tuple[Source, PerBuild] | None:
    """Split a signal that is a number times another signal: ``3 * x  ->  (x, (3, 3, ...))``; return None for others.

    The number is given in each build of the module; an empty tuple means 1.
    """
    if isinstance(node, ScaledSignal):
        return node.sources[0], node.factor
    signals = [s for s in node.sources if not isinstance(s[0], EquationConstant) or s[0].indices]
    if not isinstance(node, ContractionNode) or node.value_function is not None or len(signals) != 1:
        return None
    ((signal, mine),) = signals
    if sorted(mine) != sorted(node.out):
        return None
    constants = prod(float(c.value) for c in node.children if isinstance(c, EquationConstant) and c is not signal)
    number = (constants,) * len(next(iter(node.labels.values())).sizes) if constants != 1 and node.labels else ()
    return (signal, tuple(map(node.out.index, mine))), multiply_factors(number, node.factor)


def add_constant(reader: Reader, x: View, by: View) -> View:
    """Return the sum of a signal and a constant.

    A small positive number (the epsilon of a norm) is omitted, and so is a mask of scores (0 and large negative
    numbers), the latter with a note.
    """
    c = by.values[0]
    number = float(c) if c.numel() == 1 else None
    y = add_broadcast_dims(x, by)
    if not any(bool(v.any()) for v in by.values):
        return y
    made = partial(
        derive_same_size, reader, y, lambda v: v + (c if number is None else number), entrywise=number is not None
    )
    if number is not None and 0 < number <= MAX_EPSILON:
        return made()
    kept = [v == 0 for v in by.values]
    masks = all(bool((k | (v < -1e3)).all()) for k, v in zip(kept, by.values, strict=True))
    if c.is_floating_point() and masks and bool(kept[0].any()):
        check_shares(reader, kept)
        return made(note="a mask is left out")
    if not (frozen := varies_along_growing_axis(by)):
        convert_constant(reader, by)  # one that equations can say
    return made(kind=ShiftedSignal, values=by.values, frozen=frozen)


def check_shares(reader: Reader, masks: Sequence[Tensor]) -> None:
    """Check that a mask keeps nearly the same share of the entries (up to a difference of 0.2) in each build.

    Args:
        reader: The reader.
        masks: The mask in each build of the module; it is nonzero at the entries that are kept.

    Raises:
        Unreadable: the share of the entries that the mask keeps differs between builds.
    """
    shares = [float(mask.double().mean()) for mask in masks]
    if max(shares) - min(shares) > MAX_SHARE_CHANGE:
        raise reader.fail(f"a mask that keeps {min(shares):.2g} to {max(shares):.2g} of the entries, by size")


def add_broadcast_dims(x: View, like: View) -> View:
    """Return the view of a signal with more dimensions, as broadcasting gives it in ``x + like``.

    Dimensions that only ``like`` has are added, and entries of the signal are repeated along them.
    """
    n = max(len(x.dims), len(like.dims))
    dims, extra = ([()] * (n - len(v.dims)) + v.dims for v in (x, like))
    return View(x.node, [d or e for d, e in zip(dims, extra, strict=True)])


def compute_structure_key(
    node: TracedNode, with_names: bool = True, depth: int = STRUCTURE_DEPTH, ignore_stops: bool = True
) -> Any:
    """Describe how a signal is computed, by a key; the difference of two signals with equal keys may cancel.

    The key lists the kinds of the nodes from which the signal is computed, and the names of parameters. Inside
    functions these names do not count: relu(A x) and relu(B x) have equal keys, since their means cancel in a
    difference. Factors, rotations and subtracted means do not change the key.

    Args:
        node: The signal.
        with_names: Whether names of parameters count at all.
        depth: How many steps back from the signal the key goes.
        ignore_stops: Whether stopped gradients do not change the key either.
    """
    node = skip_same_size_nodes(node)
    while isinstance(node, CentredSignal) or (ignore_stops and isinstance(node, StoppedGradient)):
        node = skip_same_size_nodes(node.source)
    if isinstance(node, Parameter):
        return node.name if with_names else ""
    with_names = with_names and not isinstance(node, FunctionNode)
    return (
        type(node),
        node.label,
        tuple(compute_structure_key(c, with_names, depth - 1, ignore_stops) for c in node.children) if depth else (),
    )


def multiply_views(reader: Reader, a: View, b: View) -> View:
    """Return the view of the elementwise product of two tensors. An added constant is expanded: ``(x + c) y  ->  x y
    + c y``.
    """
    if a.is_constant or b.is_constant:
        return scale_view(reader, b, a) if a.is_constant else scale_view(reader, a, b)
    for x, y in ((a, b), (b, a)):
        if isinstance(x.node, ShiftedSignal):  # (x + c) y = x y + c y
            inner = View(x.node.source, x.dims)
            return add_views(
                reader, [multiply_views(reader, inner, y), scale_view(reader, y, reader.make_constant(x.node.values))]
            )
    return contract_views(reader, *assign_broadcast_keys([a, b]))


def scale_view(reader: Reader, x: View, by: View) -> View:
    """Return the view of a signal times a constant.

    A number that differs between builds of the module becomes a factor (a power of the sizes). Most other constants
    are left out of the equations, as they leave the size of the signal unchanged.
    """
    values = [v.double() for v in by.values]
    most = tuple(float(v.abs().max()) if v.numel() else 0.0 for v in values)
    if not any(most):
        return reader.make_constant(reader.values[0])
    f = skip_same_size_nodes(x.node)
    if isinstance(f, Selection) and (entry := _select_chosen_value(reader, x, values[0])) is not None:
        return entry
    keys = range(len(x.dims))
    c, first = values[0], most[0]
    alike = all(abs(m - first) <= (1e-6 if c.numel() == 1 else MAX_PEAK_CHANGE) * first for m in most)
    if c.numel() == 1:
        number = tuple(float(v) for v in values)
        if not alike:
            inside = _push_factor(x.node, number)
            return contract_views(reader, [(x, keys)], keys, number) if inside is None else View(inside, x.dims)
        if number[0] == 1:
            return x
        return derive_same_size(reader, x, lambda v: v * number[0], ScaledSignal, entrywise=True, factor=number)
    if not alike:
        x = contract_views(reader, [(x, keys)], keys, most)
        c, first = c / first, 1.0
    peaks = [m / float(v.square().mean().sqrt()) for m, v in zip(most, values, strict=True)]
    if max(peaks) > 1.2 * min(peaks):
        raise reader.fail("multiplies by a constant whose large entries become rarer with size; no equation says this")
    wide = add_broadcast_dims(x, by)
    kept = _find_fixed_sum_slots(x.node)
    for d, n in enumerate(c.shape):
        dim = wide.dims[d - c.dim()]
        repeats = not all(isinstance(e, int) for e in dim)  # each entry gets several multiples
        weighs = bool(kept.intersection(dim)) and bool((c.diff(dim=d) != 0).any())  # the sum is not fixed any more
        if n > 1 and (repeats or weighs):
            return contract_views(reader, *assign_broadcast_keys([convert_constant(reader, by), x]))
    note = "" if bool((c == 1).all()) else "a constant factor is left out (rotary angles, masks)"
    reader.omitted_factors.add((NUMBER_IN_NAME.sub("*", reader.where), round(first, 9)))
    made = partial(derive_same_size, reader, wide, lambda v: v * c.to(v.dtype), note=note)
    even = abs(float(c.double().mean())) < MIN_RELATIVE_MEAN * float(c.double().square().mean().sqrt())
    if even and not x.node.is_weight:
        along = [wide.dims[k - c.dim()] for k in range(c.dim()) if bool((c.diff(dim=k) != 0).any())]
        if along and not any(wide.get_index(e).fixed for dim in along for e in dim):  # no table of angles by position
            return made(kind=Permutation, signed=True)
    return made()


def _find_fixed_sum_slots(node: TracedNode) -> set[int]:
    """Return the dimensions of a node along which its entries always sum to one or to zero, as after a softmax."""
    node = skip_same_size_nodes(node)
    return {*node.over} if node.label in FIXED_SUM_FUNCTIONS else set()


def _push_factor(node: TracedNode, factor: PerBuild) -> TracedNode | None:
    """Multiply a sum by a factor, by multiplying each of its terms.

    In a term, the factor is put at a product of two signals that is summed over a growing axis, such as q k^T.

    Args:
        node: The sum.
        factor: The factor, in each build of the module.

    Returns:
        The new node, or None if some term contains no such product.
    """
    if node.is_weight or not (
        isinstance(node, EntrySelection)
        or (isinstance(node, SumNode | ContractionNode) and node.value_function is None)
    ):
        return None
    signals = [k for k, c in enumerate(node.children) if not isinstance(c, EquationConstant)]
    if isinstance(node, ContractionNode):
        if any(not index.fixed for x, index in node.labels.items() if x not in node.out):
            taken = len(signals) > 1 and not any(c.is_weight for c in node.children)
            return node.copy_with(factor=multiply_factors(node.factor, factor), call=None) if taken else None
        if len(signals) > 1:  # one factor of it has the number
            signals = [k for k in signals if _push_factor(node.children[k], factor)][:1]
    made = {k: _push_factor(node.children[k], factor) for k in signals}
    if None in made.values() or not made:
        return None
    sources = tuple((made.get(k) or c, labels) for k, (c, labels) in enumerate(node.sources))
    return node.copy_with(sources=sources, call=None, part=None)


def _select_chosen_value(reader: Reader, x: View, c: Tensor) -> View | None:
    """Read the product of gates with a constant of zeros and ones that picks the gate of one expert, or of each in
    turn.

    ``gates * one_hot[2]  ->  gates[2]``; in ``gates[:, None] * eye``, the constant only moves the gates to the last
    dimension.

    Args:
        reader: the reader.
        x: the gates, which are the result of a top-K.
        c: the value of the constant in the first build of the module.

    Returns:
        The view of the product; None if the constant is neither a one-hot vector nor an identity matrix.
    """
    along = [d for d, n in enumerate(c.shape) if n > 1 and bool((c.diff(dim=d) != 0).any())]
    dims, last = [()] * (c.dim() - len(x.dims)) + x.dims, c.dim() - 1
    if not along or not dims[d := along[0]] or not set(c.unique().tolist()) <= {0, 1}:
        return None
    row = c.movedim(d, 0).reshape(c.shape[d], -1)[:, 0]
    if len(along) == 1 and row.sum() == 1:
        y = select_entry(reader, View(x.node, dims), d, reader.repeat_per_build(int(row.argmax())))
        return View(y.node, [*y.dims[:d], (), *y.dims[d:]])
    if along[1:] == [last] and not dims[last]:
        return View(x.node, [*dims[:d], (), *dims[d + 1 : -1], dims[d]])
    return None


def convert_cat_to_sum(reader: Reader, x: View) -> View:
    """Write a concatenation along a growing axis as a sum of its parts, each times a constant that marks its place.

    This needs parts of equal length. A concatenation of other parts, and a tensor that is no concatenation, is returned
    unchanged.
    """
    if not isinstance(node := x.node, Concatenation):
        return x
    slot = node.slot
    whole, n = node.indices[slot].find_root().sizes, len(node.indices)
    sizes = {View(part, [tuple(_find_slots(own, slot))]).get_sizes(0, reader.builds) for part, own in node.sources}
    count, size = whole[0] // min(sizes)[0], min(sizes)
    if len(sizes) > 1 or whole != tuple(count * k for k in size):
        return x
    terms, (which,) = [], reader.make_indices(reader.repeat_per_build(count))
    for (part, own), begin in zip(node.sources, node.begins, strict=True):
        one = make_fixed_constant(
            reader, [torch.eye(count)[begin[0] // size[0]]] * reader.builds, [which], [(0,)], PartSelector
        )
        operands = (one, ["which"]), (View(part, [tuple(_find_slots(own, d)) for d in range(n)]), range(n))
        terms.append(contract_views(reader, operands, [*range(slot), "which", *range(slot, n)]))
    y = add_views(reader, terms) if len(terms) > 1 else terms[0]
    of = [*y.dims[:slot], y.dims[slot] + y.dims[slot + 1], *y.dims[slot + 2 :]]
    return View(y.node, [tuple(f for e in dim for f in (of[e] if isinstance(e, int) else [e])) for dim in x.dims])


def _find_slots(labels: Sequence[int], label: int) -> list[int]:
    """Return the positions at which a list of labels, one for each dimension of a tensor, has a given label."""
    return [k for k, x in enumerate(labels) if x == label]


def skip_same_size_nodes(node: TracedNode) -> TracedNode:
    """Return the signal that a node is made from by factors, rotations and the like, which keep its size.

    Such nodes (``SameSizeNode``) are skipped from the node towards its source: for 3 * x, x is returned. A node of
    another kind is returned itself.
    """
    while isinstance(node, SameSizeNode) and len(node.indices) == len(node.source.indices):
        node = node.source
    return node
