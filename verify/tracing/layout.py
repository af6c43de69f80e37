"""Rows of the table for what moves entries: views, slices, repetitions, whatever they are called.

Law: a call that moves entries makes of 0, 1, 2, ... the places from which its entries come. Along each dimension of the
result these are digits: the places along each index of the tensor, one index faster than the other, and repetitions.
``x.view(2, 3).T`` of an index of six has the digits 0, 1, 2 along one dimension, and 0, 3 along the other. Read next:
``indices.py`` (slices), ``concatenation.py`` (parts of new tensors).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .calls import rule
from .graph import Dims, View
from .indices import select_entries, select_entry, slice_view
from .nodes import IndexClass, Pieces, Sizes
from .reading import Reader
from .recording import Recording, Ref, TorchCall, leaves

Places = NDArray[np.int64]
Digit = tuple[int, list[Places]]
"""An index of a view (-1: a repetition), and the places along it, at every build."""


@rule(
    "view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "view_as", "reshape_as", "permute", "transpose",
    "t", "get_T", "get_mT", "adjoint", "movedim", "pixel_shuffle", "pixel_unshuffle", "expand", "expand_as", "repeat",
    "broadcast_to", "repeat_interleave", "getitem", "chunk", "split", "tensor_split", "split_with_sizes", "unbind",
    "select", "narrow", "index_select", "slice",
)  # fmt: skip
def moved(reader: Reader, x: View, *given: Any, **words: Any) -> Any:
    """Entries of a tensor, in another shape or order."""
    if isinstance(x.node, Pieces):  # to be written into
        return x
    if not reader.name.endswith("_as") and any(not v.is_constant for v in leaves((given, words), View)):
        raise reader.fail("an index by what is computed")
    known, key = reader.runs[0].places, reader.calls[0].key
    if key not in known:  # a reading that begins again asks again
        known[key] = [find_places(call, run) for call, run in zip(reader.calls, reader.runs, strict=True)]
    parts = len(reader.shapes) > 1 and len(reader.shapes[0][0]) == len(x.dims)
    made = [_moved(reader, x, places, parts) for places in zip(*known[key], strict=True)]
    return made if len(made) > 1 else made[0]


def find_places(call: TorchCall, run: Recording) -> list[Places]:
    """Return the places in the first tensor of a call that each of its results has."""
    base = next(leaves((call.keywords.get("input"), call.arguments), Ref)).number
    shape = run.tensors[base].shape
    every = torch.arange(shape.numel(), dtype=torch.float64).reshape(shape)
    made = call.rerun(lambda n: every if n == base else run.tensors[n])
    return [x.numpy().astype(np.int64) for x in made]


def reshaped(reader: Reader, x: View, shapes: Sequence[Sequence[int]]) -> View:
    """A tensor in other shapes, one for each build."""
    return _moved(reader, x, [np.arange(prod(shape)).reshape(shape) for shape in shapes])


def _moved(reader: Reader, x: View, places: Sequence[Places], parts: bool = False) -> View:
    """One result of a move.

    Args:
        places: at every build, those in x that the result has.
        parts: whether the call makes several results, so that a part of one entry stays a part.
    """
    if not all(at.size for at in places):
        raise reader.fail("a slice that is empty at some sizes; slice by a part of the size")
    entries = [e for dim in x.dims for e in dim]
    sizes = [x.index(e).sizes for e in entries]
    lines = [_digits(reader, at, [n[b] for n in sizes]) for b, at in enumerate(places)]
    result = [_aligned(reader, line) for line in zip(*lines, strict=True)]
    own: dict[int, list[list[Places]]] = {}
    for i, digit in (digit for line in result for digit in line):
        own.setdefault(i, []).append(digit)
    for i in own.keys() - {-1}:
        outer = max(own[i], key=lambda digit: max(map(_step, digit)))
        head, steps = tuple(map(len, outer)), [*map(_step, outer)]
        every = all(step in (0, n / h) for step, h, n in zip(steps, head, sizes[i], strict=True))
        if len(own[i]) > 1 or (max(steps) > 1 and every and not x.index(entries[i]).fixed):
            return _moved(reader, _split(reader, x, entries[i], head), places, parts)
    flat = View(x.node, [(e,) for e in entries])
    starts = [np.unravel_index(at.flat[0], [n[b] for n in sizes]) for b, at in enumerate(places)] if entries else []
    for i, start in reversed([*enumerate(zip(*starts, strict=True))]):
        if i in own:
            flat = _some_of(reader, flat, i, own[i][0], sizes[i])
        elif set(sizes[i]) != {1}:
            flat = _one_of(reader, flat, i, tuple(map(int, start)), parts)
    dims: Dims = [
        tuple(f for i, digit in line for f in ([IndexClass([*map(len, digit)])] if i < 0 else flat.dims[i]))
        for line in result
    ]
    for i in range(len(entries)):  # what is left of one entry stays where it was
        if dims and i not in own and flat.dims[i]:
            d = next(d for d, dim in enumerate(x.dims) if entries[i] in dim)
            dims[min(d, len(dims) - 1)] += flat.dims[i]
    return View(flat.node, dims)


def _digits(reader: Reader, places: Places, sizes: Sequence[int]) -> list[list[tuple[int, Places]]]:
    """Return the digits along each dimension of places, the slowest first.

    Args:
        sizes: of the indices of the tensor that the places are in.
    """
    start, found, total = int(places.flat[0]), [], np.full(places.shape, places.flat[0])
    for d in range(places.ndim):
        line = places[tuple(slice(None) if e == d else 0 for e in range(places.ndim))]
        total += (line - start).reshape([-1 if e == d else 1 for e in range(places.ndim)])
        coordinates = np.unravel_index(line, sizes) if sizes else ()
        changes = {i: int((c != c[0]).argmax()) for i, c in enumerate(coordinates) if (c != c[0]).any()}
        below, digits = min(changes.values(), default=len(line)), list[tuple[int, Places]]()
        digits += [(-1, np.arange(below))] if below > 1 else []
        for i in sorted(changes, key=changes.__getitem__):
            values = coordinates[i][::below][: len(np.unique(coordinates[i]))]
            if (coordinates[i] != np.resize(values.repeat(below), len(line))).any():
                raise reader.fail("a slice or an index across axes; take the dimension apart first")
            digits.insert(0, (i, values))
            below *= len(values)
        found.append([(-1, np.arange(len(line) // below)), *digits] if below < len(line) else digits)
    if (total != places).any():
        raise reader.fail("an index of several dimensions")
    return found


def _aligned(reader: Reader, lines: Sequence[Sequence[tuple[int, Places]]]) -> list[Digit]:
    """Return the digits along a dimension at all builds; one is left out at those where it is of one entry."""
    longest, found = max(lines, key=len), list[Digit]()
    rest = [list(line) for line in lines]
    for i, _ in longest:
        found.append((i, [line.pop(0)[1] if line and line[0][0] == i else np.zeros(1, int) for line in rest]))
    if any(rest):
        raise reader.fail("entries are moved otherwise at other sizes")
    return found


def _step(values: Places) -> int:
    """The distance of places that are apart alike, or 0."""
    steps = {*np.diff(values).tolist()}
    return steps.pop() if len(steps) == 1 else 0


def _split(reader: Reader, x: View, entry: int | IndexClass, head: Sizes) -> View:
    """A view of which one index is two; that of a tensor is so from its leaf on.

    Raises:
        Restart: it is one of a tensor.
    """
    index = x.index(entry)
    if isinstance(entry, int) or index.leaves:
        raise reader.split(index, head)
    two = IndexClass(head), IndexClass([n // h for n, h in zip(index.sizes, head, strict=True)])
    return View(x.node, [tuple(f for e in dim for f in (two if e is entry else [e])) for dim in x.dims])


def _one_of(reader: Reader, x: View, i: int, at: Sizes, part: bool) -> View:
    """One entry along dimension i, which is then empty."""
    slot = isinstance(x.dims[i][0], int)
    if slot and (len({*at}) > 1 or (part and x.index(x.dims[i][0]).fixed)):
        return slice_view(reader, x, i, at, tuple(k + 1 for k in at))
    y = select_entry(reader, x, i, at)
    return View(y.node, [*y.dims[:i], (), *y.dims[i:]])


def _some_of(reader: Reader, x: View, i: int, places: Sequence[Places], sizes: Sizes) -> View:
    """The entries at some places along dimension i."""
    runs = all(_step(at) == 1 or len(at) == 1 for at in places)
    if runs and tuple(map(len, places)) == sizes:
        return x
    if not runs:
        return select_entries(reader, x, i, torch.tensor(places[0]))
    return slice_view(reader, x, i, tuple(int(at[0]) for at in places), tuple(int(at[-1]) + 1 for at in places))
