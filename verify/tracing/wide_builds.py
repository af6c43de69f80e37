"""Finds the axes along which a module must be read at a much larger size, since its constants may change there.

Two builds, at N and 2 N, cannot tell ``h * (torch.arange(N) < 64)`` from h. If a constant differs along an axis that
grows, or a slice ends at a number, the module is therefore read at one more build, larger than the numbers with which
positions are compared. Read next: ``models.py`` (reads there).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .nodes import make_error
from .recording import Recording, TensorRef, TorchCall, iterate_refs
from .rule_table import IDENTITY_CALLS, normalise_call_name

WIDE_RATIO, MAX_WIDE_SIZE = 16, 1024
"""Minimum ratio by which a wide build is larger, and the maximum size of an axis in one."""
CONSTANT_FACTORIES = ("zeros", "ones", "full", "empty", "new_zeros", "new_ones", "new_full", "new_empty")
"""Prefixes of calls that return a constant tensor with a single value."""
STEADY_CALLS = IDENTITY_CALLS | {
    "expand", "expand_as", "view", "reshape", "unsqueeze", "squeeze", "transpose", "permute", "flatten", "unflatten",
    "mul", "add", "sub", "div", "neg", "rsub", "rdiv", "logical_not", "bool",
}  # fmt: skip
"""Calls whose result differs along an axis that grows only if an argument does."""
COMPARING_CALLS = {
    "lt", "le", "gt", "ge", "eq", "ne", "clamp", "clamp_min", "clamp_max", "minimum", "maximum", "remainder", "fmod",
    "floor_divide", "tril", "triu",
}  # fmt: skip
"""Calls that compare the entries of a constant with a number."""
POSITION_CALLS = {"getitem", "narrow", "slice", "split", "split_with_sizes", "select", "chunk"}
"""Calls in which a number is a position along an axis."""


def find_wide_builds(runs: Sequence[Recording], live: Sequence[int], base: Mapping[str, int]) -> dict[str, int]:
    """Finds the axes along which the module may compute something else at much larger sizes, so that it must be run
    there, too.

    An example is a mask ``torch.arange(N) < 64``, which has no effect at small N.

    Args:
        runs: recordings, numbered like the first; each but the first has one axis doubled.
        live: numbers of the tensors that depend on a parameter or the input; all others are constants.
        base: the sizes of the first run.

    Returns:
        For each of these axes, the larger size divided by its size in the first run.

    Raises:
        Unreadable: the module compares positions along an axis with a number larger than any size that can be built.
    """
    moving, found = set(live), dict[str, int]()
    alike: set[int] = set()  # constants without a difference along any axis that grows
    for calls in zip(*(run.calls for run in runs), strict=True):
        call, name = calls[0], normalise_call_name(calls[0].name)
        read = [r.number for r in call.iterate_inputs()]
        grown = [n for n in read if _find_growing_axes(runs, n)]
        differing = [n for n in grown if n not in moving and n not in alike]
        if name.startswith(CONSTANT_FACTORIES) or (name in STEADY_CALLS and not differing):
            alike |= {r.number for r in iterate_refs(call.result)}
        axes = {axis for n in differing for axis in _find_growing_axes(runs, n)} if moving.intersection(read) else set()
        if (name in COMPARING_CALLS and differing) or (name in POSITION_CALLS and grown):
            for axis in {axis for n in grown for axis in _find_growing_axes(runs, n)}:
                numbers = [abs(x) for x in _iterate_steady_numbers(calls, runs) if abs(x) >= base[axis]]
                size = base[axis]
                while numbers and size < 2 * max(numbers):
                    size *= 2
                if size > MAX_WIDE_SIZE:
                    what = (
                        f"compares positions along an axis that grows with {max(numbers):g}; no small "
                        "model shows what happens"
                    )
                    raise make_error(
                        f"{call.module or 'model'}: {call.name}", f"{what} there, so use a smaller number or --network"
                    )
                if numbers:
                    found[axis] = max(found.get(axis, 0), size)
        for axis in axes:
            found.setdefault(axis, base[axis])
    most = {axis: max(size // base[axis], _power_below(MAX_WIDE_SIZE / base[axis])) for axis, size in found.items()}
    return {axis: times for axis, times in most.items() if times > 1}


def _power_below(ratio: float) -> int:
    """Returns the largest power of two that is at most ``ratio`` and at most ``WIDE_RATIO``, but at least 1."""
    return next((2**k for k in reversed(range(WIDE_RATIO.bit_length())) if 2**k <= min(ratio, WIDE_RATIO)), 1)


def _find_growing_axes(runs: Sequence[Recording], number: int) -> set[str]:
    """Returns the axes that change the shape of a tensor when they are enlarged.

    Args:
        runs: recordings; each but the first has one axis enlarged.
        number: number of the tensor.
    """
    shapes = [run.tensors[number].shape for run in runs]
    return {run.enlarged_axis for run, shape in zip(runs, shapes, strict=True) if shape != shapes[0]}


def _iterate_steady_numbers(calls: Sequence[TorchCall], runs: Sequence[Recording]) -> Iterator[float]:
    """Yields the numbers among the arguments of a call that are the same in all builds of the module.

    Args:
        calls: the call in each build.
        runs: the recordings that they belong to.
    """
    each = [list(_iterate_scalars((call.arguments, call.keywords), run)) for call, run in zip(calls, runs, strict=True)]
    yield from (column[0] for column in zip(*each, strict=False) if len({*column}) == 1)


def _iterate_scalars(tree: Any, run: Recording) -> Iterator[float]:
    """Yields the numbers inside nested arguments, including bounds of slices and values of tensors with a single
    entry.
    """
    if isinstance(tree, slice):
        tree = (tree.start, tree.stop)
    if isinstance(tree, TensorRef) and (x := run.tensors[tree.number]).numel() == 1 and not x.is_complex():
        yield float(x)
    elif isinstance(tree, int | float) and not isinstance(tree, bool):
        yield float(tree)
    elif isinstance(tree, list | tuple | dict):
        for x in tree.values() if isinstance(tree, dict) else tree:
            yield from _iterate_scalars(x, run)
