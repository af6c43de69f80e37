"""Which axes a module must be read at a much larger size of: those along which its constants may change.

Two builds, at N and 2 N, say of ``h * (torch.arange(N) < 64)`` no more than that it is h. A constant that differs along
an axis that grows, and a slice that ends at a number, are therefore read at one more build, larger than the numbers
that places are compared with. Read next: ``models.py`` (reads there).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .calls import SAME, plain
from .nodes import refused
from .recording import Recording, Ref, TorchCall, refs

TIMES, WIDEST = 16, 1024
"""How many times larger a wide build is, at least; and the largest size of an axis in one."""
FILLS = ("zeros", "ones", "full", "empty", "new_zeros", "new_ones", "new_full", "new_empty")
"""Beginnings of names of calls whose results have one value, at every size."""
KEEPS = SAME | {"expand", "expand_as", "view", "reshape", "unsqueeze", "squeeze", "transpose", "permute", "flatten",
                "unflatten", "mul", "add", "sub", "div", "neg", "rsub", "rdiv", "logical_not", "bool"}  # fmt: skip
"""Calls whose results differ along an axis that grows only where an argument does."""
COMPARES = {"lt", "le", "gt", "ge", "eq", "ne", "clamp", "clamp_min", "clamp_max", "minimum", "maximum", "remainder",
            "fmod", "floor_divide", "tril", "triu"}  # fmt: skip
"""Calls in which a number is one that the entries of a constant are compared with."""
TAKES = {"getitem", "narrow", "slice", "split", "split_with_sizes", "select", "chunk"}
"""Calls in which a number is a place along an axis."""


def find_wide_builds(runs: Sequence[Recording], live: Sequence[int], base: Mapping[str, int]) -> dict[str, int]:
    """Return the axes along which constants may change, with the factor by which each is to be larger to be read.

    Args:
        runs: recordings with the numbers of the first; each but the first has one axis doubled.
        live: numbers of the tensors that are no constants.
        base: sizes of the first run.

    Raises:
        Unreadable: places are compared with a number that is larger than any build.
    """
    moving, found = set(live), dict[str, int]()
    alike: set[int] = set()  # constants that do not differ along an axis that grows
    for calls in zip(*(run.calls for run in runs), strict=True):
        call, name = calls[0], plain(calls[0].name)
        read = [r.number for r in refs((call.arguments, call.keywords))]
        grown = [n for n in read if _axes(runs, n)]
        differing = [n for n in grown if n not in moving and n not in alike]
        if name.startswith(FILLS) or (name in KEEPS and not differing):
            alike |= {r.number for r in refs(call.result)}
        axes = {axis for n in differing for axis in _axes(runs, n)} if moving.intersection(read) else set()
        if (name in COMPARES and differing) or (name in TAKES and grown):
            for axis in {axis for n in grown for axis in _axes(runs, n)}:
                numbers = [abs(x) for x in _numbers(calls, runs) if abs(x) >= base[axis]]
                size = base[axis]
                while numbers and size < 2 * max(numbers):
                    size *= 2
                if size > WIDEST:
                    what = f"a place along an axis that grows is compared with {max(numbers):g}; no small model shows"
                    raise refused(f"{call.module or 'model'}: {call.name}", f"{what} what happens there")
                if numbers:
                    found[axis] = max(found.get(axis, 0), size)
        for axis in axes:
            found.setdefault(axis, base[axis])
    most = {axis: max(size // base[axis], _power_below(WIDEST / base[axis])) for axis, size in found.items()}
    return {axis: times for axis, times in most.items() if times > 1}


def _power_below(ratio: float) -> int:
    """Return the largest power of two that is at most ``TIMES`` and a ratio."""
    return next((2**k for k in reversed(range(TIMES.bit_length())) if 2**k <= min(ratio, TIMES)), 1)


def _axes(runs: Sequence[Recording], number: int) -> set[str]:
    """The axes with which the shape of a tensor changes."""
    shapes = [run.tensors[number].shape for run in runs]
    return {run.doubled for run, shape in zip(runs, shapes, strict=True) if shape != shapes[0]}


def _numbers(calls: Sequence[TorchCall], runs: Sequence[Recording]) -> Iterator[float]:
    """The numbers among the arguments of a call that are the same at every build."""
    each = [list(_scalars((call.arguments, call.keywords), run)) for call, run in zip(calls, runs, strict=True)]
    yield from (column[0] for column in zip(*each, strict=False) if len({*column}) == 1)


def _scalars(tree: Any, run: Recording) -> Iterator[float]:
    if isinstance(tree, slice):
        tree = (tree.start, tree.stop)
    if isinstance(tree, Ref) and (x := run.tensors[tree.number]).numel() == 1 and not x.is_complex():
        yield float(x)
    elif isinstance(tree, int | float) and not isinstance(tree, bool):
        yield float(tree)
    elif isinstance(tree, list | tuple | dict):
        for x in tree.values() if isinstance(tree, dict) else tree:
            yield from _scalars(x, run)
