"""Rule that reads calls which only move entries: views, permutations, slices, repetitions, whatever they are called.

Such a call is applied to a tensor of the numbers 0, 1, 2, ...: its result then has the positions from which the
entries come. Along each dimension of the result, these positions are decomposed as a number is into its digits: one
digit for each index of the tensor that varies there, the slowest first, and digits that only repeat. For example,
``x.view(2, 3).T`` of a vector of six has the digit (0, 1, 2) along its first dimension and (0, 3) along its second.
Read next: ``slicing.py`` (slices), ``concatenation.py`` (tensors assembled from parts).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .graph import Dims, View
from .nodes import IndexClass, PartialTensor, Sizes
from .reader import Reader
from .recording import Recording, TensorRef, TorchCall, iterate_leaves
from .rule_table import register_rule
from .slicing import select_entries, select_entry, slice_view

Positions = NDArray[np.int64]
"""Positions of entries, in a flattened tensor or along one index."""
Digit = tuple[int, list[Positions]]
"""The number of an index of the view (-1 for a repetition), and the positions along it in each build of the module."""


@register_rule(
    "view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as", "reshape_as", "permute", "transpose",
    "t", "get_T", "get_mT", "adjoint", "movedim", "pixel_shuffle", "pixel_unshuffle", "expand", "expand_as", "repeat",
    "broadcast_to", "repeat_interleave", "getitem", "chunk", "split", "tensor_split", "split_with_sizes", "unbind",
    "select", "narrow", "index_select", "slice",
)  # fmt: skip
def move_entries(reader: Reader, x: View, *given: Any, **words: Any) -> Any:
    """Reads a call that only moves entries of a tensor, such as a view, permutation or slice; returns its result or
    results.

    Args:
        reader: the reader.
        x: the tensor whose entries are moved.
        given: further positional arguments of the call.
        words: its keyword arguments.

    Raises:
        Unreadable: an argument is a computed tensor, or the entries are not moved along whole axes.
        Restart: a dimension of a parameter or of the input must be split into two indices first.
    """
    if isinstance(x.node, PartialTensor):  # a tensor that is being filled: the parts are assigned to it
        return x
    if not reader.rule_name.endswith("_as") and any(not v.is_constant for v in iterate_leaves((given, words), View)):
        why = "an index that depends on computed values, which no equation can express; "
        raise reader.fail(why + "index with constants, or select experts with torch.topk(scores, K) and gather")
    known, key = reader.runs[0].positions, reader.calls[0].key
    if key not in known:  # cached, because a reading may restart many times
        known[key] = [find_positions(call, run) for call, run in zip(reader.calls, reader.runs, strict=True)]
    parts = len(reader.shapes) > 1 and len(reader.shapes[0][0]) == len(x.dims)
    made = [_read_movement(reader, x, places, parts) for places in zip(*known[key], strict=True)]
    return made if len(made) > 1 else made[0]


def find_positions(call: TorchCall, run: Recording) -> list[Positions]:
    """Returns, for each result of a call that moves entries, from where in the first tensor argument each entry comes.

    Args:
        call: the call.
        run: the recording that the call belongs to.

    Returns:
        For each result, an array of its shape with positions in the flattened argument.
    """
    base = next(iterate_leaves((call.keywords.get("input"), call.arguments), TensorRef)).number
    shape = run.tensors[base].shape
    every = torch.arange(shape.numel(), dtype=torch.float64).reshape(shape)
    made = call.rerun(lambda n: every if n == base else run.tensors[n])
    return [x.numpy().astype(np.int64) for x in made]


def reshape_view(reader: Reader, x: View, shapes: Sequence[Sequence[int]]) -> View:
    """Returns the reshaped tensor.

    Args:
        reader: the reader.
        x: the view of the tensor.
        shapes: the new shape in each build of the module.
    """
    return _read_movement(reader, x, [np.arange(prod(shape)).reshape(shape) for shape in shapes])


def _read_movement(reader: Reader, x: View, places: Sequence[Positions], parts: bool = False) -> View:
    """Returns one result of a call that moves entries of x.

    Args:
        reader: the reader.
        x: the view of the tensor.
        places: the positions in the flattened x from which the entries of the result come, in each build of the module.
        parts: whether the call returns several parts along a dimension; a part with a single entry then keeps it.

    Raises:
        Unreadable: the result is empty at some sizes, or the entries are not moved along whole axes.
        Restart: a dimension of a parameter or of the input must be split into two indices first.
    """
    if not all(at.size for at in places):
        raise reader.fail("a slice that is empty at some sizes; slice by a fraction of the size, as x[: n // 2]")
    entries = [e for dim in x.dims for e in dim]
    sizes = [x.get_index(e).sizes for e in entries]
    lines = [_find_digits(reader, at, [n[b] for n in sizes]) for b, at in enumerate(places)]
    result = [_align_digits(reader, line) for line in zip(*lines, strict=True)]
    own: dict[int, list[list[Positions]]] = {}
    for i, digit in (digit for line in result for digit in line):
        own.setdefault(i, []).append(digit)
    for i in own.keys() - {-1}:
        outer = max(own[i], key=lambda digit: max(map(_get_step, digit)))
        head, steps = tuple(map(len, outer)), [*map(_get_step, outer)]
        every = all(step in (0, n / h) for step, h, n in zip(steps, head, sizes[i], strict=True))
        if len(own[i]) > 1 or (max(steps) > 1 and every and not x.get_index(entries[i]).fixed):
            return _read_movement(reader, _split_repeated_index(reader, x, entries[i], head), places, parts)
    flat = View(x.node, [(e,) for e in entries])
    starts = [np.unravel_index(at.flat[0], [n[b] for n in sizes]) for b, at in enumerate(places)] if entries else []
    for i, start in reversed([*enumerate(zip(*starts, strict=True))]):
        if i in own:
            flat = _select_positions(reader, flat, i, own[i][0], sizes[i])
        elif set(sizes[i]) != {1}:
            flat = _select_position(reader, flat, i, tuple(map(int, start)), parts)
    dims: Dims = [
        tuple(f for i, digit in line for f in ([IndexClass([*map(len, digit)])] if i < 0 else flat.dims[i]))
        for line in result
    ]
    for i in range(len(entries)):  # parts with a single entry stay in their dimension
        if dims and i not in own and flat.dims[i]:
            d = next(d for d, dim in enumerate(x.dims) if entries[i] in dim)
            dims[min(d, len(dims) - 1)] += flat.dims[i]
    return View(flat.node, dims)


def _find_digits(reader: Reader, places: Positions, sizes: Sequence[int]) -> list[list[tuple[int, Positions]]]:
    """Finds which indices of the original tensor vary along each dimension of the result, as the digits of a number do.

    Args:
        reader: the reader.
        places: from where in the flattened original each entry of the result comes.
        sizes: sizes of the indices of the original.

    Returns:
        For each dimension of the result, the indices that vary, the slowest first, as (index, its positions in
        order). The index -1 stands for a repetition of the same entries.

    Raises:
        Unreadable: the entries are not selected along each dimension separately, as ``x[rows, columns]`` with two
            lists would, or one dimension of the result mixes several indices of the original.
    """
    start, found, total = int(places.flat[0]), [], np.full(places.shape, places.flat[0])
    for d in range(places.ndim):
        line = places[tuple(slice(None) if e == d else 0 for e in range(places.ndim))]
        total += (line - start).reshape([-1 if e == d else 1 for e in range(places.ndim)])
        coordinates = np.unravel_index(line, sizes) if sizes else ()
        changes = {i: int((c != c[0]).argmax()) for i, c in enumerate(coordinates) if (c != c[0]).any()}
        below, digits = min(changes.values(), default=len(line)), list[tuple[int, Positions]]()
        digits += [(-1, np.arange(below))] if below > 1 else []
        for i in sorted(changes, key=changes.__getitem__):
            values = coordinates[i][::below][: len(np.unique(coordinates[i]))]
            if (coordinates[i] != np.resize(values.repeat(below), len(line))).any():
                raise reader.fail(
                    "a slice or index across the axes of a merged dimension; reshape it into its axes first"
                )
            digits.insert(0, (i, values))
            below *= len(values)
        found.append([(-1, np.arange(len(line) // below)), *digits] if below < len(line) else digits)
    if (total != places).any():
        raise reader.fail("an index that selects along several dimensions jointly; index one dimension at a time")
    return found


def _align_digits(reader: Reader, lines: Sequence[Sequence[tuple[int, Positions]]]) -> list[Digit]:
    """Combines what ``_find_digits`` finds for one dimension in the builds of the module into one list.

    An index from which a single entry is selected does not vary and is missing in its build; it is filled in.

    Args:
        reader: the reader.
        lines: for each build, the indices that vary along the dimension, as (index, positions).

    Returns:
        For each of the indices, its number and the positions in each build.

    Raises:
        Unreadable: the indices that vary along the dimension are not the same in all builds.
    """
    longest, found = max(lines, key=len), list[Digit]()
    rest = [list(line) for line in lines]
    for i, _ in longest:
        found.append((i, [line.pop(0)[1] if line and line[0][0] == i else np.zeros(1, int) for line in rest]))
    if any(rest):
        raise reader.fail(
            "moves entries differently at other sizes; use the same reshape, order or slice at every size"
        )
    return found


def _get_step(values: Positions) -> int:
    """Returns the distance between neighbouring positions, such as 2 for 1, 3, 5; 0 if it is not constant."""
    steps = {*np.diff(values).tolist()}
    return steps.pop() if len(steps) == 1 else 0


def _split_repeated_index(reader: Reader, x: View, entry: int | IndexClass, head: Sizes) -> View:
    """Splits an index into two, as ``view(heads, -1)`` does, and returns the new view.

    This is possible here if the entries of the tensor only repeat along the index (broadcasting). Any other index must
    be split where it originates, at a parameter or the input, and the reading restarts with the split made there.

    Args:
        reader: the reader.
        x: the view of the tensor.
        entry: the index, as an entry of ``x.dims``.
        head: size of the first of the two in each build of the module.

    Raises:
        Restart: the entries do not merely repeat along the index.
    """
    index = x.get_index(entry)
    if isinstance(entry, int) or index.leaves:
        raise reader.request_split(index, head)
    two = IndexClass(head), IndexClass([n // h for n, h in zip(index.sizes, head, strict=True)])
    return View(x.node, [tuple(f for e in dim for f in (two if e is entry else [e])) for dim in x.dims])


def _select_position(reader: Reader, x: View, i: int, at: Sizes, part: bool) -> View:
    """Selects one entry along dimension i, which stays as a dimension of size 1.

    Args:
        reader: the reader.
        x: the view; dimension i consists of a single index.
        i: the dimension.
        at: position of the entry in each build of the module.
        part: whether the call returns several parts, of which this one has a single entry. Along an axis that does not
            grow it is then read as a slice with one entry.
    """
    slot = isinstance(x.dims[i][0], int)
    if slot and (len({*at}) > 1 or (part and x.get_index(x.dims[i][0]).fixed)):
        return slice_view(reader, x, i, at, tuple(k + 1 for k in at))
    y = select_entry(reader, x, i, at)
    return View(y.node, [*y.dims[:i], (), *y.dims[i:]])


def _select_positions(reader: Reader, x: View, i: int, places: Sequence[Positions], sizes: Sizes) -> View:
    """Selects entries along dimension i, as a slice if they are contiguous.

    Args:
        reader: the reader.
        x: the view; dimension i consists of a single index.
        i: the dimension.
        places: positions of the entries in each build of the module.
        sizes: size of the dimension in each build of the module.
    """
    runs = all(_get_step(at) == 1 or len(at) == 1 for at in places)
    if runs and tuple(map(len, places)) == sizes:
        return x
    if not runs:
        return select_entries(reader, x, i, torch.tensor(places[0]))
    return slice_view(reader, x, i, tuple(int(at[0]) for at in places), tuple(int(at[-1]) + 1 for at in places))
