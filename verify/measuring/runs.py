"""Trains all cells of a run on some hardware and keeps what they measured.

Read next: ``cells.py`` (how a run is cut), ``block.py`` and ``coordinates.py`` (train a cell), ``judging/report.py``
(compares with predictions).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from scaling_algebra import limits
from scaling_algebra.errors import UsageError
from scaling_algebra.solver.derivation import Derivation
from scaling_algebra.verify.decomposition.updates import linear
from scaling_algebra.verify.hardware import Hardware, spare_threads
from scaling_algebra.verify.judging.measurement import SECONDS, Measurement, Record
from scaling_algebra.verify.networks.moe_block import MoEBlock
from scaling_algebra.verify.networks.reading import TorchNetwork
from scaling_algebra.verify.networks.replicas import Draw
from scaling_algebra.verify.networks.scales import every_size
from scaling_algebra.verify.networks.steppers import class_name

from .block import train_block
from .cells import RunCell, Setup, cells, collect, cost, kept, testbed_of
from .coordinates import build, train_transformer
from .sizes import elements, plan_seeds, plan_sizes
from .store import Store
from .training import train_network

Progress = Callable[[int, int, str], None]
"""Called after every cell with (cost done, cost in all, message)."""

SIGNALS = 27
"""Parts of signals and gradients of every expert, each with N_e entries, that are kept at once."""


def measure(
    derivation: Derivation,
    *,
    sizes: Sequence[int] | None = None,
    seeds: int | None = None,
    steps: int = 2,
    device: str = "auto",
    products: Sequence[str] = (),
    progress: Progress | None = None,
) -> Measurement:
    """Trains a network at every size and seed, and records every quantity after 0, 1, ..., ``steps`` updates.

    Args:
        derivation: network, powers, optimizer and ray.
        sizes: values of n; by default spread geometrically so that a run takes well under a minute on two cores.
        seeds: replicas per size; by default more at small sizes, where they are cheap.
        device: ``cpu``, ``cuda`` or ``auto`` (CUDA if there is one).
        products: inner products ``<A@s, B@t>`` to record as well, over all indices but the expert's.

    Raises:
        UsageError: unusable sizes, seeds, steps, device or optimizer.
    """
    network = derivation.network
    chosen = plan_sizes(derivation.ray, sizes, network=network)
    counts = plan_seeds(derivation.ray, chosen, seeds, network=network)
    limits.within("steps", steps, 0, limits.STEPS)
    grid = (steps, tuple(chosen), tuple(counts))
    setup = Setup(derivation, *grid, testbed=testbed_of(network), products=tuple(products))
    hardware, store = Hardware.of(device), Store()
    check(setup, free=hardware.free)
    interrupted = False
    try:
        perform(setup, cells(setup), hardware, store, progress)
    except KeyboardInterrupt:
        interrupted = True
    store.describe(setup.run, described(hardware, setup))
    return collect(setup, store, interrupted)


def check(setup: Setup, most: int | None = None, free: int | None = None) -> None:
    """Counts the memory of the largest model, builds the smallest one and its optimizer: what cannot be run fails
    before the long part, and before anything is allocated.

    Args:
        most: bytes that may be taken. free: bytes that are there.

    Raises:
        UsageError: the optimizer cannot be trained, the scaling lacks an epsilon, or a replica takes more than
            ``most`` or ``free``.
    """
    for size, n in enumerate(setup.sizes):
        needed = replica_bytes(setup, setup.dims(size)) / 2**20
        if most is not None and needed > most / 2**20:
            raise UsageError(
                f"a replica at n={n} takes about {needed:.1f} MiB, more than --max-memory; give smaller --sizes"
            )
        if free is not None and needed > free / 2**20:
            here = f"{needed / 1024:.1f} GiB, and {free / 2**30:.1f} GiB are free"
            raise UsageError(f"a replica at n={n} takes about {here}; give smaller --sizes")
    if setup.testbed == "transformer":
        build(setup, RunCell("values", 0, 0, 1), "cpu")
        return
    d, dims = setup.derivation, setup.dims(0)
    if setup.testbed == "moe":
        MoEBlock(Draw(dims, [0]), d.scaling).optimizer(d.optimizer)
        return
    if d.ray["K"] != d.ray["M"] and d.network.aggregations:
        raise UsageError(f"{d.network.name} is measured with K = M; give a ray without K")
    TorchNetwork(d.network, Draw(dims, [0], [0]), d.scaling).optimizer(d.optimizer)


def perform(
    setup: Setup, todo: Iterable[RunCell], hardware: Hardware, store: Store, progress: Progress | None = None
) -> None:
    """Does the cells that a store does not hold yet.

    Raises:
        UsageError: not enough memory.
    """
    costs = {cell: cost(setup, cell) for cell in todo}
    missing = [cell for cell in costs if kept(setup, cell, store) is None]
    total = sum(costs.values())
    done = total - sum(costs[cell] for cell in missing)
    with spare_threads():
        for cell in missing:
            began = time.perf_counter()
            record = train_cell(setup, cell, hardware)
            spent = np.full(cell.count, (time.perf_counter() - began) / cell.count)
            store.save(setup.run, setup.name(cell), {**record, (SECONDS, 0): spent})
            done += costs[cell]
            if progress:
                dims = ", ".join(f"{axis}={size}" for axis, size in setup.dims(cell.size).items())
                progress(done, total, f"n={setup.sizes[cell.size]} ({dims})")


def growing(setup: Setup) -> frozenset[str]:
    """Axes that grow."""
    return frozenset(axis for axis, rate in setup.derivation.ray.rates.items() if rate)


def described(hardware: Hardware, setup: Setup) -> dict[str, Any]:
    """The circumstances of a measurement: the hardware, dtype, optimizer and base constants."""
    rule = setup.derivation.optimizer
    what = {"dtype": setup.dtype, "optimizer": class_name(rule), "constants": dict(setup.constants)}
    return {**hardware.described(), **what}


def replica_bytes(setup: Setup, dims: Mapping[str, int]) -> int:
    """Memory of a replica: copies of its weights (gradient, optimizer, initial values, a spare), parts of signals."""
    copies = 5 if linear(setup.derivation.optimizer) else 7
    if setup.testbed == "network":
        sizes, network = every_size(setup.network, dims), setup.network
        signals = sum(math.prod(sizes[network.axes[x]] for x in letters) for letters in network.signals.values())
        entries = (copies + 2) * elements(dims, network) + SIGNALS * signals
    else:
        entries = copies * elements(dims) + SIGNALS * dims["M"] * dims["N_e"]
    return entries * getattr(torch, setup.dtype).itemsize


def train_cell(setup: Setup, cell: RunCell, hardware: Hardware) -> Record:
    """The record of a cell, a few replicas at a time where there are many.

    Raises:
        UsageError: not enough memory.
    """
    as_kind, dims = setup.of(cell.kind), setup.dims_of(cell)
    needed = replica_bytes(as_kind, dims)
    try:
        if setup.testbed == "transformer":
            return train_transformer(as_kind, cell, hardware.device)
        together = max(1, hardware.room // needed)
        parts = []
        for k in range(0, cell.count, together):
            seeds = cell.seeds[k : k + together]
            checked = max(0, min(cell.checked - k, len(seeds)))
            if setup.testbed == "moe":
                parts.append(train_block(as_kind, Draw(dims, seeds, device=hardware.device), checked))
            else:
                draw = Draw(dims, seeds, cell.shared[k : k + together], hardware.device, growing(setup))
                parts.append(train_network(as_kind, draw, checked))
    except (MemoryError, RuntimeError) as reason:  # torch says "out of memory" (GPU) or "can't allocate memory" (CPU)
        if not isinstance(reason, MemoryError) and "memory" not in str(reason):
            raise
        n = setup.sizes[0 if cell.kind == "control" else cell.size]
        where = f"n={n}, {needed / 2**30:.1f} GiB a replica"
        raise UsageError(
            f"not enough memory on {hardware.device} at {where}; give smaller --sizes or --max-memory"
        ) from None
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
