"""Trains a task over widths, learning rates and seeds: the raw material of a learning-rate transfer report.

Read next: ``curves.py`` (where the loss is smallest, and how that drifts), ``tasks.py`` (what is trained).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field

import numpy as np
import torch
from torch import Tensor

from scaling_algebra.errors import UsageError
from scaling_algebra.verify.hardware import Hardware, spare_threads
from scaling_algebra.verify.judging.fit import Array
from scaling_algebra.verify.measuring.batches import Data, cross_entropy, descend
from scaling_algebra.verify.measuring.store import Store
from scaling_algebra.verify.networks.base_shapes import BaseShapes
from scaling_algebra.verify.networks.scales import Dims

from .curves import LossCurve
from .tasks import Task

LATE = 0.25
"""Share of the steps, the last ones, over which the loss is averaged."""


@dataclass(frozen=True)
class Course:
    """How every network of a study is trained.

    Attributes:
        steps: number of updates.
        seeds: one replica for each.
        compiled: train what ``torch.compile`` makes of the network.
        say: told what is being trained.
        store: where losses are kept.
    """

    task: Task
    data: Data
    steps: int
    seeds: Sequence[int]
    hardware: Hardware = field(default_factory=Hardware)
    compiled: bool = False
    say: Callable[[str], None] = lambda message: None
    store: Store = field(default_factory=Store)


def sweep(course: Course, recipe: BaseShapes, width: int, grid: Sequence[float], extend: int = 0) -> LossCurve:
    """Trains at every learning rate of the grid, then, while the optimum may lie on its edge, at up to ``extend`` more.

    Args:
        grid: log2 of the learning rates, increasing, at least two.

    Raises:
        UsageError: the network cannot be compiled here.
    """
    dims = recipe.dims(width)
    if course.compiled:
        torch.compiler.reset()  # it gives up on a network of which it has seen too many sizes
    parameters = course.data.build(recipe, dims, [0], course.hardware.device).count()
    curves: dict[float, tuple[Array, Array]] = {}
    asked, spacing = list(grid), grid[1] - grid[0]
    while True:
        for x in asked:
            course.say(f"{recipe.name}, N={width}, lr 2^{x:g}")
            with _compiling() if course.compiled else nullcontext():
                curves[x] = losses(course, recipe, dims, 2.0**x)
        rates = tuple(sorted(curves))
        late, held = (np.stack(part) for part in zip(*(curves[x] for x in rates), strict=True))
        curve = LossCurve(width, dims, parameters, rates, late, held)
        edge = curve.optimum.edge
        if not edge or len(curves) >= len(grid) + extend:
            return curve
        asked = [rates[0] - spacing if edge < 0 else rates[-1] + spacing]


def losses(course: Course, recipe: BaseShapes, dims: Dims, lr: float) -> tuple[Array, Array]:
    """Loss of every seed late in training and on held-out data after it, each (seeds,).

    The first is the loss of the batch about to be learned, without the auxiliary loss, averaged over the last ``LATE``
    of the steps (MSSP paper, App. P.3); where it is not below that of the first batch, it is set to that.
    """
    what = {
        "task": course.task.name,
        "data": course.data.digest,
        "settings": dict(course.data.settings),
        "steps": course.steps,
        "seeds": list(course.seeds),
        "device": course.hardware.device.partition(":")[0],
        "compiled": course.compiled,
        "configuration": recipe.configuration.as_json(),
        "base": dict(recipe.base),
        "multipliers": asdict(recipe.multipliers),
        "dims": dict(dims),
        "lr": lr,
    }
    late, held = course.store.piece(what, lambda: [part.tolist() for part in trained_losses(course, recipe, dims, lr)])
    return np.array(late), np.array(held)


def trained_losses(course: Course, recipe: BaseShapes, dims: Dims, lr: float) -> tuple[Array, Array]:
    """The same, always trained."""
    task, data, steps, device = course.task, course.data, course.steps, course.hardware.device
    model = data.build(recipe, dims, course.seeds, device)
    forward = torch.compile(model, dynamic=False) if course.compiled else model
    stepper = model.optimizer(lr, task.decay, **({} if task.betas is None else {"betas": task.betas}))
    schedule = torch.optim.lr_scheduler.LambdaLR(stepper, lambda step: rate(step, steps, task.warmup, task.final))

    def loss(step: int | None, network: Callable[[Tensor], tuple[Tensor, Tensor]] = forward) -> tuple[Tensor, Tensor]:
        inputs, targets = data.batches(course.seeds, step, device)
        logits, auxiliary = network(inputs)
        return cross_entropy(logits, targets), auxiliary

    seen = []
    with spare_threads():
        for before in descend(stepper, loss, steps):
            schedule.step()
            seen.append(before)
        with torch.no_grad():
            seen.append(loss(None, model)[0])
    every = torch.stack(seen).cpu().numpy().astype(np.float64)
    start, late = every[0], every[-1 - max(1, round(LATE * steps)) : -1].mean(axis=0)
    return np.where(np.isfinite(late), np.minimum(late, start), start), every[-1]


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
