"""Trains the block at growing sizes with real optimizer steps and records every named quantity at every step.

Read next: ``fit.py`` (turns the records into exponents), ``report.py`` (compares them with predictions).
"""

from __future__ import annotations

import hashlib
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from scaling_algebra.axes import Ray
from scaling_algebra.errors import UsageError
from scaling_algebra.optimizers import Optimizer
from scaling_algebra.parameterizations import Scaling
from scaling_algebra.quantities import inner_product

from .fit import Array
from .model import DECAY, DTYPE, EPS, INIT, LOSS_SLOPE, LR, MoEBlock, torch_optimizer
from .operators import History, Operator, updates
from .parts import Split, rms
from .plan import dims_at, effective_n, elements, plan_seeds, plan_sizes

Progress = Callable[[int, int, str], None]
"""Called after every batch of replicas with (elements done, elements in all, message)."""

Record = dict[tuple[str, int], Array]
"""One value per seed for every (quantity, step)."""

CHUNK = 2**22
"""Weight entries trained at once, all replicas together: 32 MiB per copy in float64."""

CONTROL_SEEDS = 64
"""Most replicas of the control at every size."""


@dataclass
class Measurement:
    """What was measured.

    Attributes:
        ray, scaling, optimizer, steps: what was asked for.
        sizes: n at every size finished, from the dimensions after rounding.
        dims: N, N_e, M at every size.
        parameters: parameter count at every size.
        inputs: hash of the training input seen at every size.
        values: ``values[name, t][i]`` holds one root-mean-square over entries per seed at size i.
        control: the same for replicas whose dimensions stay those of the first size: every slope must be flat.
        environment: device, torch version, dtype, wall time (seconds), peak memory (bytes) and base constants.
        interrupted: stopped by the user; what is complete was kept.
    """

    ray: Ray
    scaling: Scaling
    optimizer: Optimizer
    steps: int
    sizes: list[float] = field(default_factory=list)
    dims: list[dict[str, int]] = field(default_factory=list)
    parameters: list[int] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    values: dict[tuple[str, int], list[Array]] = field(default_factory=dict)
    control: dict[tuple[str, int], list[Array]] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    interrupted: bool = False

    @property
    def names(self) -> list[str]:
        """Measured quantities, in recording order."""
        return list(dict.fromkeys(name for name, _ in self.values))


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
    count = plan_seeds(ray, chosen, seeds)
    if steps < 0:
        raise UsageError(f"steps is {steps}; give 0 or more")
    where = _device(device)
    result = Measurement(ray, scaling, optimizer, steps)
    grid = [dims_at(ray, n) for n in chosen]
    torch_optimizer(MoEBlock(grid[0], scaling, [0], where), grid[0], scaling, optimizer)  # fail before the long part
    total = sum(elements(d) * s for d, s in zip(grid, count, strict=True))
    done, started = 0, time.perf_counter()
    threads = torch.get_num_threads()
    used = max(1, min(threads, (os.cpu_count() or 1) // 2))  # waiting for a busy core costs more than a core brings
    torch.set_num_threads(used)
    if where == "cuda":
        torch.cuda.reset_peak_memory_stats()
    try:
        for index, (n, dims, replicas) in enumerate(zip(chosen, grid, count, strict=True)):
            records: list[Record] = []
            try:
                for batch in _batches(range(replicas), dims):
                    batch_seeds = [_seed(index, r) for r in batch]
                    records.append(train(dims, scaling, optimizer, batch_seeds, steps, where, products))
                    done += elements(dims) * len(batch)
                    if progress:
                        progress(done, total, f"n={n} ({', '.join(f'{a}={d}' for a, d in dims.items())})")
                frozen = [_seed(1000 + index, r) for r in range(min(CONTROL_SEEDS, replicas))]
                control = train(grid[0], scaling, optimizer, frozen, steps, where, products)
            except torch.cuda.OutOfMemoryError:
                raise UsageError(f"not enough memory on {where} at n={n}; give smaller sizes") from None
            model = MoEBlock(dims, scaling, [0], where)
            result.sizes.append(effective_n(ray, dims, grid[0], chosen[0]))
            result.dims.append(dims)
            result.parameters.append(model.count())
            result.inputs.append(hashlib.sha256(model.x.cpu().numpy().tobytes()).hexdigest())
            for store, parts in ((result.values, records), (result.control, [control])):
                for key in parts[0]:
                    store.setdefault(key, []).append(np.concatenate([p[key] for p in parts]))
    except KeyboardInterrupt:
        result.interrupted = True
    finally:
        torch.set_num_threads(threads)
    result.environment = {
        "device": torch.cuda.get_device_name() if where == "cuda" else "cpu",
        "torch": torch.__version__,
        "dtype": str(DTYPE).removeprefix("torch."),
        "optimizer": f"torch.optim.{optimizer.torch}",
        "threads": used,
        "wall_seconds": round(time.perf_counter() - started, 2),
        "peak_memory_bytes": _peak_memory(where),
        "constants": {"init": INIT, "lr": LR, "eps": EPS, "lr_times_weight_decay": DECAY, "loss_slope": LOSS_SLOPE},
    }
    return result


def train(
    dims: Mapping[str, int],
    scaling: Scaling,
    optimizer: Optimizer,
    seeds: Sequence[int],
    steps: int,
    device: str,
    products: Sequence[str] = (),
) -> Record:
    """Trains one replica per seed and returns the root-mean-square of every quantity at every step.

    With K in ``dims`` the replicas train as an infinite batch of tokens trains them, each routed to its own K of M
    experts, and the quantities are those of one token; gradients and updates of tensors are those of the batch.
    """
    model = MoEBlock(dims, scaling, seeds, device)
    stepper = torch_optimizer(model, dims, scaling, optimizer)
    weights = model.weights
    memory = updates(optimizer, weights, stepper, steps)
    active = dims.get("K", dims["M"])
    routed: list[dict[str, torch.Tensor]] = []
    record: dict[tuple[str, int], torch.Tensor] = {}
    sides = {name: inner_product(name) for name in products}
    kept: dict[tuple[str, int], torch.Tensor] = {}
    for t in range(steps + 1):
        stepper.zero_grad()
        (LOSS_SLOPE * model().sum()).backward()
        with torch.no_grad():
            operators = memory.operators()
            batch = Split(operators, model.x, model.multiplier)
            named = batch.named if active == dims["M"] else _token(operators, model, active, dims)
            if isinstance(memory, History):
                for path in ("expert", "router"):
                    moved = _moved(memory.coefficients("W1"), [g[path] for g in routed], named["h1"], model.x)
                    named[f"psi.propagating.{path}"] = operators["Q"].forward(moved[:, None, None])[0][:, 0, 0, :active]
                routed.append({path: LOSS_SLOPE * batch.named[f"g1.{path}"] for path in ("expert", "router")})
            record |= {(name, t): rms(x) for name, x in named.items()}
            for symbol, operator in operators.items():
                record[f"d{symbol}", t] = operator.update_rms()
                record[f"g{symbol}", t] = rms(weights[symbol].grad)
            kept |= {(q, t): named[q] for pair in sides.values() for q, _ in pair}
            for name, pair in sides.items():
                found = [kept.get((q, t if step is None else step)) for q, step in pair]
                if all(x is not None for x in found):
                    record[name, t] = rms(_dot(*found))
        if t < steps:
            stepper.step()
            memory.step({s: (LOSS_SLOPE * left, right) for s, (left, right) in batch.factors().items()})
    return {key: x.cpu().numpy() for key, x in record.items()}


def _moved(
    coefficients: torch.Tensor, gradients: Sequence[torch.Tensor], like: torch.Tensor, x: torch.Tensor
) -> torch.Tensor:
    """How far gradients with respect to h1 have moved h1 through W1, (S, a)."""
    total = torch.zeros_like(like)
    for c, g in zip(coefficients, gradients, strict=True):
        total += c * x.square().sum() * g
    return total


def _token(
    operators: Mapping[str, Operator], model: MoEBlock, active: int, dims: Mapping[str, int]
) -> dict[str, torch.Tensor]:
    """Parts as one token sees them: its experts are the first ``active`` ones, which are as good as any others."""
    seen = {
        **operators,
        "Q": operators["Q"].rows(active),
        "W2": operators["W2"].rows(active * dims["N_e"]),
        "W3": operators["W3"].groups(active),
    }
    return Split(seen, model.x, model.multiplier * dims["M"] / active).named


def _dot(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Inner product over the last index, per replica and, where either has it, per expert: (S, [i,] a) -> (S, [i])."""
    if a.ndim < b.ndim:
        a, b = b, a
    while b.ndim < a.ndim:
        b = b[:, None]
    return (a * b).sum(-1)


def _batches(replicas: range, dims: Mapping[str, int]) -> Iterator[range]:
    """Replicas in groups whose weights fit ``CHUNK``."""
    size = max(1, CHUNK // elements(dims))
    return (replicas[i : i + size] for i in range(0, len(replicas), size))


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
    if device == "cuda":
        return int(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
