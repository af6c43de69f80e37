"""Trains all cells of a run on some hardware and keeps what they measured.

Read next: ``cells.py`` (how a run is cut), ``training.py`` (trains a cell), ``judging/report.py``
(compares with predictions).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from scaling_algebra import limits
from scaling_algebra.dynamics.sparse_routing import find_nonlinear_use, is_sparse
from scaling_algebra.errors import UsageError
from scaling_algebra.solver.derivation import Derivation
from scaling_algebra.spec.networks.indices import find_aggregations
from scaling_algebra.spec.networks.language import Network
from scaling_algebra.verify.hardware import Hardware, is_out_of_memory
from scaling_algebra.verify.judging.measurement import MEMORY, SECONDS, Measurement, Record
from scaling_algebra.verify.networks.replicas import ReplicaDraw
from scaling_algebra.verify.networks.run import is_linear
from scaling_algebra.verify.networks.scales import complete_sizes
from scaling_algebra.verify.networks.steppers import format_class_name
from scaling_algebra.verify.networks.torch_network import TorchNetwork

from .cells import RunCell, Setup, collect_cells, estimate_cost, list_cells
from .pool import Failed, Here, Work
from .sizes import count_elements, plan_seeds, plan_sizes
from .store import Store
from .training import train_network

Progress = Callable[[float, float, str | Failed], None]
"""Callback after every cell: (cost of finished cells, total cost, description of the cell or its failure)."""

SIGNALS = 27
"""Number of copies of the signals of a network, in parts of signals and gradients, that are in memory at once."""


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
        steps: number of updates.
        device: ``cpu``, ``cuda`` or ``auto`` (CUDA if there is one).
        products: inner products ``<A@s, B@t>`` to record in addition: quantity A after s updates times B after t,
            summed over all indices but the expert's.
        progress: called after each group of replicas that was trained.

    Raises:
        UsageError: unusable sizes, seeds, steps, device or optimizer.
    """
    network = derivation.network
    chosen = plan_sizes(derivation.ray, sizes, network=network)
    counts = plan_seeds(derivation.ray, chosen, seeds, network=network)
    limits.check_range("steps", steps, 0, limits.STEPS)
    grid = (steps, tuple(chosen), tuple(counts))
    setup = Setup(derivation, *grid, products=tuple(products))
    here, store = Here(Hardware.of(device)), Store()
    check_run(setup, free=here.free)
    for failed in train_cells(((setup, cell) for cell in list_cells(setup)), here, store, progress):
        raise UsageError(str(failed))
    return collect_cells(setup, store)


def check_run(setup: Setup, most: int | None = None, free: int | None = None) -> None:
    """Checks that a run can be executed, before anything large is allocated.

    Estimates the memory of a replica at every size, then builds the smallest network and its optimizer.

    Args:
        setup: the run.
        most: maximum memory in bytes that a replica may use.
        free: memory in bytes that is free.

    Raises:
        UsageError: the optimizer cannot be trained, the scaling lacks an epsilon, the network needs K = M, or a replica
            needs more than ``most`` or ``free``.
    """
    for size, n in enumerate(setup.sizes):
        needed = estimate_replica_bytes(setup, setup.dims(size)) / 2**20
        if most is not None and needed > most / 2**20:
            raise UsageError(
                f"a replica at n={n} takes about {needed:.1f} MiB, more than --max-memory; give smaller --sizes"
            )
        if free is not None and needed > free / 2**20:
            here = f"{needed / 1024:.1f} GiB, and {free / 2**30:.1f} GiB are free"
            raise UsageError(f"a replica at n={n} takes about {here}; give smaller --sizes")
    d, dims = setup.derivation, setup.dims(0)
    if is_sparse(d.network, d.ray):
        sums = {s.out for s in find_aggregations(d.network)}
        live = [s for s in d.network.live if s.over and d.network.axes[s.over] == "M"]
        norms = [s for s in d.network.norms if any(sums & _find_before(d.network, x.name) for x in s.inputs)]
        if reason := next(iter([*live, *norms]), None) or find_nonlinear_use(d.network):
            why = f"{reason.out} is a function of several experts"
            raise UsageError(f"{d.network.name} can only be measured with K = M, because {why}; give a ray without K")
    TorchNetwork(d.network, ReplicaDraw(dims, [0], [0]), d.scaling).optimizer(d.optimizer)


def train_cells(
    todo: Iterable[tuple[Setup, RunCell]], pool: Here, store: Store, progress: Progress | None = None
) -> list[Failed]:
    """Trains cells (groups of replicas) of runs in a pool, stores what they measured, and returns those that failed.

    Raises:
        UsageError: not enough memory, or an error of the pool.
    """
    named = [(f"{setup.run}/{setup.name(cell)}", setup, cell) for setup, cell in todo]
    tasks = [Work(name, train_timed_cell, (setup, cell), estimate_cost(setup, cell)) for name, setup, cell in named]
    total, done, failed = sum(task.cost for task in tasks), 0.0, []
    for task, result in pool(tasks):
        setup, cell = task.arguments
        if isinstance(result, Failed):
            failed.append(result)
        else:
            record, environment = result
            store.describe(setup.run, environment)
            store.save(setup.run, setup.name(cell), record)
        done += task.cost
        if progress:
            dims = ", ".join(f"{axis}={size}" for axis, size in setup.dims(cell.size).items())
            what = f"{setup.run}, n={setup.sizes[cell.size]} ({dims})"
            progress(done, total, result if isinstance(result, Failed) else what)
    return failed


def train_timed_cell(hardware: Hardware, setup: Setup, cell: RunCell) -> tuple[Record, dict[str, Any]]:
    """Trains a cell (group of replicas), and returns what it measured, including the seconds and the memory it took,
    and a description of the hardware.
    """
    began = time.perf_counter()
    record = train_cell(setup, cell, hardware)
    spent = (time.perf_counter() - began) / cell.count
    facts = {(SECONDS, 0): np.full(cell.count, spent), (MEMORY, 0): np.full(cell.count, hardware.peak_memory or np.nan)}
    return {**record, **facts}, describe_hardware(hardware, setup)


def _find_before(network: Network, signal: str) -> set[str]:
    """Returns the names of a signal and of all signals from which it is computed."""
    s = network.producer(signal)
    return {signal}.union(*(_find_before(network, x.name) for x in s.inputs)) if s else {signal}


def find_growing(setup: Setup) -> frozenset[str]:
    """Returns the axes that grow on the ray of a run."""
    return frozenset(axis for axis, rate in setup.derivation.ray.rates.items() if rate)


def describe_hardware(hardware: Hardware, setup: Setup) -> dict[str, Any]:
    """Describes how a run is measured, for its report: hardware, dtype, optimizer, and the factors in front of the
    powers of n.
    """
    rule = setup.derivation.optimizer
    what = {"dtype": setup.dtype, "optimizer": format_class_name(rule), "constants": dict(setup.constants)}
    return {**hardware.describe(), **what}


def estimate_replica_bytes(setup: Setup, dims: Mapping[str, int]) -> int:
    """Estimates the memory of a replica in bytes: weights with gradient, optimizer state, initial values and a spare
    copy, and the parts of signals."""
    copies = 6 if is_linear(setup.derivation.optimizer) else 8
    sizes, network = complete_sizes(setup.network, dims), setup.network
    formed = [network.signals[s.out] for s in network.statements]
    signals = sum(math.prod(sizes[network.axes[x]] for x in indices) for indices in formed)
    entries = copies * count_elements(dims, network) + SIGNALS * signals
    return entries * getattr(torch, setup.dtype).itemsize


def train_cell(setup: Setup, cell: RunCell, hardware: Hardware) -> Record:
    """Trains a cell (group of replicas), and returns what it measured, by quantity and step.

    Replicas that do not fit into memory together are trained in parts; if memory runs out, the parts are halved.

    Raises:
        UsageError: not enough memory for one replica.
    """
    as_kind, dims = setup.of(cell.kind), setup.dims_of(cell)
    needed = estimate_replica_bytes(as_kind, dims)
    together = max(1, min(cell.count, hardware.room // needed))
    parts: list[Record] = []
    done = 0
    while done < cell.count:
        part = replace(cell, first=cell.first + done, count=min(together, cell.count - done))
        record = _train_within_memory(as_kind, part, hardware)
        if record is not None:
            parts.append(record)
            done += part.count
            continue
        hardware.release_memory()  # here no traceback keeps the tensors of the failed attempt alive
        if part.count == 1:
            n = setup.sizes[0 if cell.kind == "control" else cell.size]
            where = f"n={n}, {needed / 2**30:.1f} GiB a replica"
            raise UsageError(f"not enough memory on {hardware.device} at {where}; give smaller --sizes or --max-memory")
        together = part.count // 2
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def _train_within_memory(setup: Setup, cell: RunCell, hardware: Hardware) -> Record | None:
    """Trains all replicas of a cell at once, and returns what they measured, or None if memory runs out."""
    try:
        draw = ReplicaDraw(setup.dims_of(cell), cell.seeds, cell.shared, hardware.device, find_growing(setup))
        return train_network(setup, draw, cell.checked)
    except (MemoryError, RuntimeError) as reason:
        if not is_out_of_memory(reason):
            raise
    return None
