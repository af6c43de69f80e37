"""Trains a task over widths, learning rates and seeds.

Constants are not tuned: an effective update can be negligible at every size one can train (MSSP paper, App. Q.6).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scaling_algebra.errors import UsageError
from scaling_algebra.verify.hardware import Hardware
from scaling_algebra.verify.judging.fit import Array
from scaling_algebra.verify.measuring.batches import Data, cross_entropy, descend
from scaling_algebra.verify.measuring.pool import Failed, Here, Work
from scaling_algebra.verify.measuring.store import Store
from scaling_algebra.verify.networks.base_shapes import BaseShapes, Multipliers
from scaling_algebra.verify.networks.scales import Dims

from .curves import LossCurve
from .tasks import TASKS, Task

LATE = 0.25
"""Share of the steps, the last ones, over which the loss is averaged."""


@dataclass(frozen=True)
class Course:
    """The training of every network of a study.

    Attributes:
        steps: number of updates.
        seeds: one replica for each.
        swept: the constant that a grid is of, one of ``SWEPT``; but for ``lr`` all learn at the rate ``lr``.
        pool: who trains.
        watch: told how many networks are trained, of how many, and which was the last.
        store: where losses are kept.
    """

    task: Task
    data: Data
    steps: int
    seeds: Sequence[int]
    swept: str = "lr"
    lr: float = 1.0
    pool: Here = field(default_factory=lambda: Here(Hardware()))
    watch: Callable[[int, int, str], None] = lambda total, done, message: None
    store: Store = field(default_factory=Store)

    def at(self, recipe: BaseShapes, width: int, log2: float) -> Asked:
        """What a point of a grid trains: log2 of the swept constant, over its own value where that is no rate."""
        if self.swept == "lr":
            return recipe, recipe.dims(width), 2.0**log2
        return replace(recipe, multipliers=Multipliers(**{self.swept: 2.0**log2})), recipe.dims(width), self.lr


Asked = tuple[BaseShapes, Dims, float]
"""What is trained: a recipe at some dimensions, with a learning rate."""


def sweep(course: Course, asked: Sequence[tuple[BaseShapes, int, Sequence[float]]], extend: int = 0) -> list[LossCurve]:
    """Trains recipes at a width each and every point of a grid, then, while an optimum may lie on the edge of its grid,
    at up to ``extend`` more.

    Args:
        asked: recipe, width, and grid: log2 of the learning rates or of ``course.swept``, increasing, at least two.
    """
    curves: list[dict[float, tuple[Array, Array]]] = [{} for _ in asked]
    pending, found = [list(grid) for _, _, grid in asked], []
    while any(pending):
        todo = [(k, x) for k, rates in enumerate(pending) for x in rates]
        trained = losses(course, [course.at(*asked[k][:2], x) for k, x in todo])
        for (k, x), pair in zip(todo, trained, strict=True):
            curves[k][x] = pair
        found = [
            _curve(course, recipe, width, by_rate) for (recipe, width, _), by_rate in zip(asked, curves, strict=True)
        ]
        for k, (_, _, grid) in enumerate(asked):
            rates, edge, spacing = found[k].log2_lr, found[k].unknown, grid[1] - grid[0]
            more = edge and len(rates) < len(grid) + extend
            pending[k] = [rates[0] - spacing if edge < 0 else rates[-1] + spacing] if more else []
    return found


def _curve(course: Course, recipe: BaseShapes, width: int, by_rate: Mapping[float, tuple[Array, Array]]) -> LossCurve:
    dims = recipe.dims(width)
    parameters = course.data.build(recipe, dims, [0], "cpu").count()
    late, held = (np.stack(part) for part in zip(*(by_rate[x] for x in sorted(by_rate)), strict=True))
    return LossCurve(width, dims, parameters, tuple(sorted(by_rate)), late, held)


def losses(course: Course, asked: Sequence[Asked]) -> list[tuple[Array, Array]]:
    """Loss of every seed late in training and on held-out data after it, each (seeds,), of everything asked for.

    The first is the loss of the batch about to be learned, without the auxiliary loss, averaged over the last ``LATE``
    of the steps (MSSP paper, App. P.3); where it is not below that of the first batch, it is set to that.
    """
    keys = [_key(course, *one) for one in asked]
    found = [course.store.piece(key) for key in keys]
    settings = tuple(f"{name}={x}" for name, x in course.data.settings.items())
    how = course.task, settings, course.data.digest, course.steps, tuple(course.seeds)
    todo = {
        f"{recipe.name}, {recipe.along}={dims[recipe.along]}, lr 2^{math.log2(lr):g}, {k}": k
        for k, (recipe, dims, lr) in enumerate(asked)
        if found[k] is None
    }
    tasks = [Work(name, trained_losses, (*how, *asked[k]), math.prod(asked[k][1].values())) for name, k in todo.items()]
    for done, (task, result) in enumerate(course.pool(tasks), len(asked) - len(todo) + 1):
        if isinstance(result, Failed):
            raise UsageError(str(result))
        k = todo[task.name]
        found[k] = course.store.keep(keys[k], [part.tolist() for part in result])
        course.watch(len(asked), done, task.name)
    return [(np.array(late), np.array(held)) for late, held in found]


def _key(course: Course, recipe: BaseShapes, dims: Dims, lr: float) -> dict[str, Any]:
    """All that losses depend on."""
    return {
        "task": course.task.name,
        "data": course.data.digest,
        "settings": dict(course.data.settings),
        "steps": course.steps,
        "seeds": list(course.seeds),
        "device": course.pool.hardware.kind,
        "configuration": recipe.configuration.as_json(),
        "base": dict(recipe.base),
        "multipliers": asdict(recipe.multipliers),
        "dims": dict(dims),
        "lr": lr,
    }


@lru_cache(maxsize=1)
def _loaded(task: str, settings: tuple[str, ...]) -> Data:
    return TASKS[task].data(settings)


def trained_losses(
    hardware: Hardware,
    task: Task,
    settings: tuple[str, ...],
    digest: str,
    steps: int,
    seeds: Sequence[int],
    recipe: BaseShapes,
    dims: Dims,
    lr: float,
) -> tuple[Array, Array]:
    """The losses of ``losses``, always trained.

    Raises:
        UsageError: the data are other ones here.
    """
    data, device = _loaded(task.name, settings), hardware.device
    if data.digest != digest:
        raise UsageError(f"the data {task.name} are other ones on another machine; train on alike ones")
    model = data.build(recipe, dims, seeds, device)
    stepper = model.optimizer(lr, task.decay, **({} if task.betas is None else {"betas": task.betas}))
    schedule = torch.optim.lr_scheduler.LambdaLR(stepper, lambda step: rate(step, steps, task.warmup, task.final))

    def loss(step: int | None) -> tuple[Tensor, Tensor]:
        inputs, targets = data.batches(seeds, step, device)
        logits, auxiliary = model(inputs)
        return cross_entropy(logits, targets), auxiliary

    trajectory = []
    for before in descend(stepper, loss, steps):
        schedule.step()
        trajectory.append(before)
    with torch.no_grad():
        trajectory.append(loss(None)[0])
    every = torch.stack(trajectory).cpu().numpy().astype(np.float64)
    start, late = every[0], every[-1 - max(1, round(LATE * steps)) : -1].mean(axis=0)
    return np.where(np.isfinite(late), np.minimum(late, start), start), every[-1]


def rate(step: int, steps: int, warmup: float, final: float) -> float:
    """Learning rate over its maximum: linear warmup, then cosine to ``final``."""
    first = round(warmup * steps)
    if step < first:
        return (step + 1) / (first + 1)
    done = (step - first) / max(1, steps - first)
    return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
