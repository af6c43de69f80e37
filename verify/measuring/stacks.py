"""Which cells are trained together in one stack of tensors, smaller sizes padded with zeros.

A training on few weight entries takes the time of its calls, however few they are: a cell joins others where the
padding costs less than the calls it saves.
Read next: ``replicas.py`` (what padding does), ``runs.py`` (trains stacks).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from scaling_algebra.verify.decomposition.updates import linear
from scaling_algebra.verify.networks.replicas import widest

from .cells import STANDARD, Cell, Kind, Setup
from .sizes import elements

CALLS = {"cpu": 2**18, "cuda": 2**27}
"""Weight entries that are trained and measured in the time that the calls of one training take, however few entries
there are. Of a CPU as seen with ``benchmarks/stacking.py``; of a GPU a guess from its memory bandwidth."""

MOST = 4
"""A stack holds at most so many times ``CALLS``: with more, the time of the calls does not show."""

SIGNALS = 27
"""Parts of signals and gradients of every expert, each with N_e entries, that are kept at once."""


def trained(setup: Setup, kind: Kind) -> Setup:
    """The powers, steps and dtype that cells of this kind are trained with."""
    if kind == "standard":
        assert setup.standard is not None
        scaling, steps = setup.standard, setup.standard_steps
        return replace(setup, scaling=scaling, parameterization=STANDARD, steps=steps, products=())
    return replace(setup, dtype="float64") if kind == "exact" else setup


def replica_bytes(setup: Setup, dims: Mapping[str, int]) -> int:
    """Memory of a replica: copies of its weights (gradient, optimizer, initial values, a spare), parts of signals."""
    entries = (5 if linear(setup.optimizer) else 7) * elements(dims) + SIGNALS * dims["M"] * dims["N_e"]
    return entries * getattr(torch, setup.dtype).itemsize


def stacks(setup: Setup, todo: Sequence[Cell], device: str, room: int) -> list[list[Cell]]:
    """Cells in groups that are trained together, every cell in one, in the order of the first cell of each group.

    A Transformer, and a token's own K of M experts, are trained one size at a time.

    Args:
        room: bytes that a group of several cells may take.
    """
    if setup.base or "K" in setup.dims(0):
        return [[cell] for cell in todo]
    calls = CALLS[device.partition(":")[0]]
    found: list[_Stack] = []
    for cell in sorted(todo, key=lambda c: (_alike(c), elements(setup.dims_of(c)))):
        dims = setup.dims_of(cell)
        alone = _Stack((cell,), dims, cell.count, elements(dims) * cell.count)
        if found and _alike(found[-1].cells[0]) == _alike(cell):
            joined = found[-1].joined(alone)
            needed = replica_bytes(trained(setup, cell.kind), joined.dims) * joined.replicas
            fits = joined.entries <= MOST * calls and needed <= room
            if fits and joined.padding - found[-1].padding <= calls:
                found[-1] = joined
                continue
        found.append(alone)
    order = {cell: k for k, cell in enumerate(todo)}
    groups = (sorted(stack.cells, key=order.__getitem__) for stack in found)
    return sorted(groups, key=lambda group: order[group[0]])


@dataclass(frozen=True)
class _Stack:
    """Cells, the dimensions of tensors that hold them, their replicas, and their weight entries without padding."""

    cells: tuple[Cell, ...]
    dims: Mapping[str, int]
    replicas: int
    own: int

    @property
    def entries(self) -> int:
        return elements(self.dims) * self.replicas

    @property
    def padding(self) -> int:
        return self.entries - self.own

    def joined(self, other: _Stack) -> _Stack:
        dims = widest([self.dims, other.dims])
        return _Stack(self.cells + other.cells, dims, self.replicas + other.replicas, self.own + other.own)


def _alike(cell: Cell) -> str:
    """Cells with the same answer are trained with the same powers, steps and dtype."""
    return "values" if cell.kind == "control" else cell.kind
