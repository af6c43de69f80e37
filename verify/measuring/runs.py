"""Trains the block at growing sizes with real optimizer steps and records every named quantity at every step.

Read next: ``cells.py`` (how a run is cut), ``parts.py`` (what is recorded), ``report.py`` (compares with predictions).
"""

from __future__ import annotations

import math
import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scaling_algebra.dynamics.quantities import inner_product
from scaling_algebra.errors import UsageError
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.optimizers import Optimizer
from scaling_algebra.spec.scaling import Scaling
from scaling_algebra.verify.decomposition.parts import Parts, Split, rms
from scaling_algebra.verify.decomposition.updates import Operator, Updates, outer, outer_norm
from scaling_algebra.verify.judging.fit import Array
from scaling_algebra.verify.judging.measurement import (
    GRADIENTS,
    INPUT,
    PARAMETERS,
    SECONDS,
    Measurement,
    Record,
    fingerprint,
)
from scaling_algebra.verify.networks.moe_block import (
    CONSTANTS,
    DTYPE,
    LOSS_SLOPE,
    MoEBlock,
    parameters,
    torch_optimizer,
)
from scaling_algebra.verify.networks.replicas import Lot, Replicas

from . import coordinates
from .cells import Cell, Setup, cells, collect, cost
from .sizes import plan_seeds, plan_sizes
from .stacks import replica_bytes, stacks, trained
from .store import Store

Progress = Callable[[int, int, str], None]
"""Called after every stack of cells with (cost done, cost in all, message)."""

CHUNK = 2**28
"""Bytes of memory for the replicas trained at once on a CPU: fewer cost time for calls, more for fresh memory."""


def measure(
    ray: Ray,
    scaling: Scaling,
    optimizer: Optimizer,
    *,
    sizes: Sequence[int] | None = None,
    seeds: int | None = None,
    steps: int = 2,
    device: str = "auto",
    products: Sequence[str] = (),
    progress: Progress | None = None,
) -> Measurement:
    """Trains at every size and seed, and records every quantity after 0, 1, ..., ``steps`` updates.

    Args:
        sizes: values of n; by default spread geometrically so that a run takes well under a minute on two cores.
        seeds: replicas per size; by default more at small sizes, where they are cheap.
        device: ``cpu``, ``cuda`` or ``auto`` (CUDA if there is one).
        products: inner products ``<A@s, B@t>`` to record as well, over all indices but the expert's.

    Raises:
        UsageError: unusable sizes, seeds, steps, device or optimizer.
    """
    chosen = plan_sizes(ray, sizes)
    counts = plan_seeds(ray, chosen, seeds)
    if steps < 0:
        raise UsageError(f"steps is {steps}; give 0 or more")
    setup = Setup(
        ray, scaling, optimizer, steps, tuple(chosen), tuple(counts), products=tuple(products), constants=CONSTANTS
    )
    where, store = _device(device), Store()
    check(setup)
    interrupted = False
    try:
        perform(setup, cells(setup), where, store, "run", progress)
    except KeyboardInterrupt:
        interrupted = True
    store.describe("run", 0, described(where, setup))
    return collect(setup, store, "run", interrupted)


def check(setup: Setup, most: int | None = None) -> None:
    """Builds the smallest model and its optimizer: what cannot be run fails before the long part.

    Raises:
        UsageError: torch has no such optimizer, the scaling lacks an epsilon, or a replica takes more than ``most``.
    """
    for size, n in enumerate(setup.sizes):
        needed = replica_bytes(setup, setup.dims(size)) / 2**20
        if most is not None and needed > most / 2**20:
            raise UsageError(
                f"a replica at n={n} takes about {needed:.1f} MiB, more than --max-memory; give smaller --sizes"
            )
    if setup.base:
        coordinates.network(setup, Cell("values", 0, 0, 1), setup.parameterization, "cpu")
        return
    model = MoEBlock(Replicas.of(setup.dims(0), [0]), setup.scaling)
    torch_optimizer(model, setup.scaling, setup.optimizer)


def perform(
    setup: Setup,
    todo: Iterable[Cell],
    device: str,
    store: Store,
    name: str,
    progress: Progress | None = None,
    most: int | None = None,
) -> None:
    """Does the cells that a store does not hold yet, under this name.

    Args:
        most: bytes that weights and what is kept with them may take; by default a fixed small share.

    Raises:
        UsageError: not enough memory.
    """
    todo = list(todo)
    costs = {cell: cost(setup, cell) for cell in todo}
    missing = [cell for cell in todo if store.load(name, setup.name(cell)) is None]
    total, done = sum(costs.values()), sum(costs.values()) - sum(costs[cell] for cell in missing)
    threads = torch.get_num_threads()
    torch.set_num_threads(_threads())
    try:
        for group in stacks(setup, missing, device, room(device, most)):
            began = time.perf_counter()
            records = _measured(setup, group, device, most)
            each = (time.perf_counter() - began) / sum(costs[cell] for cell in group)
            for cell, record in zip(group, records, strict=True):
                spent = np.full(cell.count, each * costs[cell] / cell.count)
                store.save(name, setup.name(cell), {**record, (SECONDS, 0): spent})
                done += costs[cell]
            if progress:
                dims = ", ".join(f"{axis}={size}" for axis, size in setup.dims(cell.size).items())
                progress(done, total, f"n={setup.sizes[cell.size]} ({dims})")
    finally:
        torch.set_num_threads(threads)


def described(device: str, setup: Setup) -> dict[str, Any]:
    """Where and with what a run is measured: device, torch, dtype, optimizer, memory so far, base constants."""
    return {
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else "cpu",
        "machine": machine(),
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "dtype": setup.dtype,
        "optimizer": f"torch.optim.{setup.optimizer.torch}",
        "threads": _threads(),
        "peak_memory_bytes": _peak_memory(device),
        "constants": dict(setup.constants),
    }


def room(device: str, most: int | None = None) -> int:
    """Bytes for the replicas that are trained at once."""
    free = CHUNK
    if device != "cpu":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        free = int(0.7 * (torch.cuda.mem_get_info(device)[0] + kept))
    return free if most is None else min(most, free)


def _measured(setup: Setup, group: Sequence[Cell], device: str, most: int | None) -> list[Record]:
    """The record of each cell of a stack, or of one cell, a few replicas at a time where there are many."""
    setup = trained(setup, group[0].kind)
    lots = [Lot(setup.dims_of(cell), cell.seeds) for cell in group]
    needed, largest = max((replica_bytes(setup, lot.dims), k) for k, lot in enumerate(lots))
    together = max(1, room(device, most) // needed)
    check = any(cell.kind == "values" and cell.first == 0 for cell in group)
    try:
        if setup.base:
            return [coordinates.measure(setup, cell, device) for cell in group]
        batches = [lots]
        if len(group) == 1:
            seeds = group[0].seeds
            batches = [[Lot(lots[0].dims, seeds[i : i + together])] for i in range(0, len(seeds), together)]
        parts = [
            train(
                Replicas(tuple(some), device),
                setup.scaling,
                setup.optimizer,
                setup.steps,
                setup.products,
                getattr(torch, setup.dtype),
                check and k == 0,
            )
            for k, some in enumerate(batches)
        ]
    except (MemoryError, RuntimeError) as reason:  # torch says "out of memory" (GPU) or "can't allocate memory" (CPU)
        if not isinstance(reason, MemoryError) and "memory" not in str(reason):
            raise
        n = setup.sizes[0 if group[largest].kind == "control" else group[largest].size]
        where = f"n={n}, {needed / 2**30:.1f} GiB a replica"
        raise UsageError(f"not enough memory on {device} at {where}; give smaller --sizes or --max-memory") from None
    whole = {key: np.concatenate([p[key] for p in parts]) for key in parts[0]}
    ends = np.cumsum([cell.count for cell in group])[:-1]
    split = {key: np.split(values, ends) for key, values in whole.items()}
    return [{key: values[k] for key, values in split.items()} for k in range(len(group))]


def train(
    replicas: Replicas,
    scaling: Scaling,
    optimizer: Optimizer,
    steps: int,
    products: Sequence[str] = (),
    dtype: torch.dtype = DTYPE,
    check: bool = False,
) -> dict[tuple[str, int], Array]:
    """Trains all replicas and returns the root-mean-square of every quantity at every step, one for each replica.

    The split of the signals gives the gradients as well, so that a step reads every weight once forward and once
    backward. With ``check`` the gradients of the last step are compared with those of autograd.

    With K in the dimensions of a lot, the only one then, the replicas train as an infinite batch of tokens trains them,
    each routed to its own K of M experts, and the quantities are those of one token; gradients and updates of tensors
    are those of the batch.
    """
    model = MoEBlock(replicas, scaling, dtype)
    stepper = torch_optimizer(model, scaling, optimizer)
    weights = model.weights
    memory = Updates(optimizer, weights, stepper, steps)
    experts = replicas.largest.dims["M"]
    active = replicas.largest.dims.get("K", experts)
    routed: list[dict[str, torch.Tensor]] = []
    record: dict[tuple[str, int], torch.Tensor] = {}
    facts = {INPUT: [fingerprint(model.x)] * len(replicas.lots), PARAMETERS: list(map(parameters, replicas.lots))}
    sides = {name: inner_product(name) for name in products}
    unknown = [q for pair in sides.values() for q, _ in pair if q[0] in "dg" and q[1:] in weights]
    if unknown:
        raise UsageError(f"inner products are of signals, but {unknown[0]} is a matrix; claim its size instead")
    kept: dict[tuple[str, int], torch.Tensor] = {}
    for t in range(steps + 1):
        with torch.no_grad():
            operators = memory.operators()
            batch = Split(operators, model.x, model.multiplier, replicas)
            factors = {s: (LOSS_SLOPE * left, right) for s, (left, right) in batch.factors().items()}
            for symbol, w in weights.items():
                w.grad = outer(symbol, *factors[symbol], torch.empty_like(w) if w.grad is None else w.grad)
            named = batch.named if active == experts else _token(operators, model)
            if memory.linear:
                for path in ("expert", "router"):
                    moved = _moved(memory.coefficients("W1"), [g[path] for g in routed], named["h1"], model.x)
                    named[f"psi.propagating.{path}"] = operators["Q"].forward(moved[:, None, None])[0][:, 0, 0, :active]
                routed.append({path: LOSS_SLOPE * batch.named[f"g1.{path}"] for path in ("expert", "router")})
            record |= {(name, t): size for name, size in named.rms().items()}
            for symbol, operator in operators.items():
                scale = replicas.entries(symbol).sqrt()
                record[f"d{symbol}", t] = operator.update_norm() / scale
                record[f"g{symbol}", t] = outer_norm(symbol, *factors[symbol]) / scale
            kept |= {(q, t): named[q] for pair in sides.values() for q, _ in pair}
            for name, pair in sides.items():
                found = [kept.get((q, t if step is None else step)) for q, step in pair]
                if all(x is not None for x in found):
                    record[name, t] = rms(_dot(*found), named.entries("phi"))
        if t == steps:
            facts[GRADIENTS] = _apart(model) if check else [-1.0] * len(replicas.lots)
        if t < steps:
            stepper.step()
            memory.step(factors)
    counts = [len(lot.seeds) for lot in replicas.lots]
    told = {(name, 0): np.repeat(np.array(values, float), counts) for name, values in facts.items()}
    return {key: x.double().cpu().numpy() for key, x in record.items()} | told


def _apart(model: MoEBlock) -> list[float]:
    """Largest relative difference between the gradients of a model and autograd's, over weights: one for each lot."""
    kept = [w.grad for w in model.parameters()]
    model.zero_grad()
    (LOSS_SLOPE * model().sum()).backward()
    pairs = [(a, w.grad) for a, w in zip(kept, model.parameters(), strict=True)]
    found = []
    for rows in model.replicas.rows:
        sizes = [
            [float(torch.linalg.vector_norm(x, dtype=torch.float64)) for x in (a[rows] - b[rows], b[rows])]
            for a, b in pairs
            if a is not None and b is not None
        ]
        apart = max(difference / size if size else difference for difference, size in sizes)
        found.append(apart if apart == apart else math.inf)
    return found


def _moved(
    coefficients: torch.Tensor, gradients: Sequence[torch.Tensor], like: torch.Tensor, x: torch.Tensor
) -> torch.Tensor:
    """How far gradients with respect to h1 have moved h1 through W1, (S, a)."""
    total = torch.zeros_like(like)
    for c, g in zip(coefficients.unbind(1), gradients, strict=True):
        total += (c * x.square().sum())[:, None] * g
    return total


def _token(operators: Mapping[str, Operator], model: MoEBlock) -> Parts:
    """Parts as one token sees them: its experts are the first K, which are as good as any others."""
    (lot,) = model.replicas.lots
    dims, active = lot.dims, lot.dims["K"]
    seen = {
        **operators,
        "Q": operators["Q"].rows(active),
        "W2": operators["W2"].rows(active * dims["N_e"]),
        "W3": operators["W3"].groups(slice(active)),
    }
    one = Replicas.of({**dims, "M": active}, lot.seeds, model.replicas.device)
    return Split(seen, model.x, model.multiplier * (dims["M"] / active), one).named


def _dot(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Inner product over the last index, per replica and, where either has it, per expert: (S, [i,] a) -> (S, [i])."""
    if a.ndim < b.ndim:
        a, b = b, a
    while b.ndim < a.ndim:
        b = b[:, None]
    return (a * b).sum(-1)


def machine() -> str:
    """The name of the CPU, where the system tells it, and its number of cores."""
    name = platform.processor() or platform.machine()
    with suppress(OSError):
        for line in reversed(Path("/proc/cpuinfo").read_text().splitlines()):
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
    return f"{name}, {os.cpu_count()} cores"


def _threads() -> int:
    """Half of the cores this process may use: waiting for a busy core costs more than a core brings."""
    mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, mine // 2 // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def _seed(size: int, replica: int) -> int:
    """A different random stream for every size and replica, the same however replicas are batched."""
    return 1 + replica + 1_000_003 * size


def _device(name: str) -> str:
    if name not in ("auto", "cpu", "cuda"):
        raise UsageError(f"no device named {name!r}; use auto, cpu or cuda")
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise UsageError("no CUDA device is available; use --device cpu or auto")
    return "cuda" if name != "cpu" and available else "cpu"


def _peak_memory(device: str) -> int:
    if device.startswith("cuda"):
        return int(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
