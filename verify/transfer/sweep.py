"""Trains a task over widths, learning rates and seeds: the raw material of a learning-rate transfer report.

Read next: ``optimum.py`` (where the loss is smallest, and how that drifts), ``tasks.py`` (what is trained).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from scaling_algebra.errors import UsageError
from scaling_algebra.verify.judging.fit import Array
from scaling_algebra.verify.networks.base_shapes import Dims, Recipe

from .optimum import Curve, optimum
from .tasks import Prepared, Task

Progress = Callable[[str], None]

LATE = 0.25
"""Share of the steps, the last ones, over which the loss is averaged."""


@contextmanager
def spare_threads() -> Iterator[None]:
    """Half of the cores for torch, as in ``runs.measure``: waiting for a busy core costs more than a core brings."""
    threads = torch.get_num_threads()
    torch.set_num_threads(max(1, min(threads, (os.cpu_count() or 1) // 2)))
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def sweep(
    task: Task,
    data: Prepared,
    recipe: Recipe,
    width: int,
    grid: Sequence[float],
    seeds: Sequence[int],
    steps: int,
    device: str,
    *,
    extend: int = 0,
    compiled: bool = False,
    progress: Progress = lambda message: None,
) -> Curve:
    """Trains at every learning rate of the grid, then, while the optimum may lie on its edge, at up to ``extend`` more.

    Args:
        grid: log2 of the learning rates, increasing, at least two.
        compiled: train what ``torch.compile`` makes of the network, once per width.

    Raises:
        UsageError: the network cannot be compiled here.
    """
    dims = recipe.dims(width)
    if compiled:
        torch.compiler.reset()  # it gives up on a network of which it has seen too many sizes
    found: dict[float, tuple[Array, Array]] = {}

    def run(x: float) -> None:
        progress(f"{recipe.name}, N={width}, lr 2^{x:g}")
        with _compiling() if compiled else nullcontext():
            found[x] = train(task, data, recipe, dims, 2.0**x, seeds, steps, device, compiled)

    for x in grid:
        run(x)
    spacing = grid[1] - grid[0]
    while True:
        rates = tuple(sorted(found))
        losses, held = (np.stack(part) for part in zip(*(found[x] for x in rates), strict=True))
        curve = Curve(width, dims, data.build(recipe, dims, [0], device).count(), rates, losses, held)
        edge = optimum(curve).edge
        if not edge or len(found) >= len(grid) + extend:
            return curve
        run(rates[0] - spacing if edge < 0 else rates[-1] + spacing)


@spare_threads()
def train(
    task: Task,
    data: Prepared,
    recipe: Recipe,
    dims: Dims,
    lr: float,
    seeds: Sequence[int],
    steps: int,
    device: str,
    compiled: bool = False,
) -> tuple[Array, Array]:
    """Loss of every seed late in training and on held-out data after it, each (seeds,).

    The first is the loss of the batch about to be learned, without the auxiliary loss, averaged over the last ``LATE``
    of the steps (MSSP paper, App. P.3); where it is not below that of the first batch, it is set to that.
    """
    model = data.build(recipe, dims, seeds, device)
    forward = torch.compile(model, dynamic=False) if compiled else model
    stepper = model.optimizer(lr, task.decay, **task.options)
    schedule = torch.optim.lr_scheduler.LambdaLR(stepper, lambda step: rate(step, steps, task.warmup, task.final))
    seen = []
    for step in range(steps):
        inputs, targets = data.batches(seeds, step, device)
        logits, auxiliary = forward(inputs)
        loss = cross_entropy(logits, targets)
        stepper.zero_grad()
        (loss + auxiliary).sum().backward()  # replicas do not meet: a sum trains each alone
        stepper.step()
        schedule.step()
        seen.append(loss.detach())
    with torch.no_grad():
        inputs, targets = data.batches(seeds, None, device)
        held = cross_entropy(model(inputs)[0], targets)
    losses = torch.stack([*seen, held]).cpu().numpy().astype(np.float64)
    start, late = losses[0], losses[-1 - max(1, round(LATE * steps)) : -1].mean(axis=0)
    return np.where(np.isfinite(late), np.minimum(late, start), start), losses[-1]


@contextmanager
def _compiling() -> Iterator[None]:
    """What torch says when it cannot compile a forward or backward pass, as one line."""
    from torch._dynamo.exc import TorchDynamoException  # takes seconds to import

    try:
        yield
    except RuntimeError as reason:
        if not isinstance(reason, TorchDynamoException) and "torch.compile" not in str(reason):
            raise
        why = str(reason).strip().partition("\n")[0]
        raise UsageError(f"torch cannot compile the network here ({why}); leave out --compile") from None


def rate(step: int, steps: int, warmup: float, final: float) -> float:
    """Learning rate over its maximum: linear warmup, then cosine to ``final``."""
    first = round(warmup * steps)
    if step < first:
        return (step + 1) / (first + 1)
    done = (step - first) / max(1, steps - first)
    return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over all but the replica dimension, nats, (S,): logits (S,...,classes), targets (S,...)."""
    losses = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none")
    return losses.view(len(targets), -1).mean(1)
