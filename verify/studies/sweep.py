"""Trains a task over widths, learning rates and seeds, and tunes multipliers at the base size before that.

Without tuned multipliers an effective update can be negligible at every size one can train (MSSP paper, App. Q.6). The
search is a random one, then steps in one coordinate at a time; it is small: App. Q.7 shows cases where one of this kind
stops short of the optimum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
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
from .tasks import SWEPT, TASKS, Task

LATE = 0.25
"""Share of the steps, the last ones, over which the loss is averaged."""
REACH, STEPS, FARTHEST = 2, (2, 1), 4
"""log2 of the farthest random multiplier, of the factors tried in the local search, and of the farthest one it reaches.

A search left free may freeze a tensor, because that is a little better for few steps; a frozen tensor is the same in
every parameterization, and its own scaling would not be tested.
"""


@dataclass(frozen=True)
class Course:
    """The training of every network of a study.

    Attributes:
        steps: number of updates.
        seeds: one replica for each.
        swept: the constant that a grid is of, one of ``SWEPT``; but for ``lr`` all learn at the rate ``lr``.
        compiled: train what ``torch.compile`` makes of the network.
        pool: who trains.
        watch: told how many networks are trained, of how many, and which was the last.
        store: where losses are kept.
    """

    task: Task
    data: Data
    steps: int
    seeds: Sequence[int]
    compiled: bool = False
    swept: str = "lr"
    lr: float = 1.0
    pool: Here = field(default_factory=lambda: Here(Hardware()))
    watch: Callable[[int, int, str], None] = lambda total, done, message: None
    store: Store = field(default_factory=Store)

    def at(self, recipe: BaseShapes, width: int, log2: float) -> Asked:
        """What a point of a grid trains: log2 of the swept constant, over its own value where that is no rate."""
        if self.swept == "lr":
            return recipe, recipe.dims(width), 2.0**log2
        name, known = SWEPT[self.swept], recipe.multipliers
        tuned = replace(known, **{name: getattr(known, name) * 2.0**log2})
        return replace(recipe, multipliers=tuned), recipe.dims(width), self.lr


Asked = tuple[BaseShapes, Dims, float]
"""What is trained: a recipe at some dimensions, with a learning rate."""


def sweep(course: Course, asked: Sequence[tuple[BaseShapes, int, Sequence[float]]], extend: int = 0) -> list[LossCurve]:
    """Trains recipes at a width each and every point of a grid, then, while an optimum may lie on the edge of its grid,
    at up to ``extend`` more.

    Args:
        asked: recipe, width, and grid: log2 of the learning rates or of ``course.swept``, increasing, at least two.

    Raises:
        UsageError: a network cannot be compiled here.
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
    how = course.task, settings, course.data.digest, course.steps, tuple(course.seeds), course.compiled
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
        "compiled": course.compiled,
        "configuration": recipe.configuration.as_json(),
        "base": dict(recipe.base),
        "multipliers": asdict(recipe.multipliers),
        "dims": dict(dims),
        "lr": lr,
    }


@lru_cache(maxsize=1)
def _loaded(task: str, settings: tuple[str, ...]) -> Data:
    return TASKS[task].data(settings)


@lru_cache(maxsize=1)
def _reset(of: str) -> None:
    """torch gives up on a network of which it has seen too many sizes."""
    torch.compiler.reset()


def trained_losses(
    hardware: Hardware,
    task: Task,
    settings: tuple[str, ...],
    digest: str,
    steps: int,
    seeds: Sequence[int],
    compiled: bool,
    recipe: BaseShapes,
    dims: Dims,
    lr: float,
) -> tuple[Array, Array]:
    """The losses of ``losses``, always trained.

    Raises:
        UsageError: the network cannot be compiled here, or the data are other ones here.
    """
    data, device = _loaded(task.name, settings), hardware.device
    if data.digest != digest:
        raise UsageError(f"the data {task.name} are other ones on another machine; train on alike ones")
    model = data.build(recipe, dims, seeds, device)
    stepper = model.optimizer(lr, task.decay, **({} if task.betas is None else {"betas": task.betas}))
    schedule = torch.optim.lr_scheduler.LambdaLR(stepper, lambda step: rate(step, steps, task.warmup, task.final))

    def loss(step: int | None, network: Callable[[Tensor], tuple[Tensor, Tensor]] = model) -> tuple[Tensor, Tensor]:
        inputs, targets = data.batches(seeds, step, device)
        logits, auxiliary = network(inputs)
        return cross_entropy(logits, targets), auxiliary

    trajectory = []
    with _compiling(f"{recipe} {dims}") if compiled else nullcontext():
        forward = torch.compile(model, dynamic=False) if compiled else model
        for before in descend(stepper, partial(loss, network=forward), steps):
            schedule.step()
            trajectory.append(before)
    with torch.no_grad():
        trajectory.append(loss(None)[0])
    every = torch.stack(trajectory).cpu().numpy().astype(np.float64)
    start, late = every[0], every[-1 - max(1, round(LATE * steps)) : -1].mean(axis=0)
    return np.where(np.isfinite(late), np.minimum(late, start), start), every[-1]


@contextmanager
def _compiling(of: str) -> Iterator[None]:
    """The error of torch when it cannot compile a forward or backward pass of a network, as one line."""
    from torch._dynamo.exc import TorchDynamoException  # takes seconds to import

    _reset(of)
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


@dataclass(frozen=True)
class Tuned:
    """The result of a search.

    Attributes:
        log2_lr: global learning rate. multipliers: everything else.
        loss, untuned: mean loss with them, and of the first trial (all multipliers 1).
        trials: networks trained, all seeds counted once.
    """

    log2_lr: float
    multipliers: Multipliers
    loss: float
    untuned: float
    trials: int


def tune(course: Course, recipe: BaseShapes, log2_lr: float, trials: int) -> Tuned:
    """Best of ``trials`` settings at the base size: half of them at random around ``log2_lr``, the rest local steps.

    A local step is taken where it lowers the loss by more than its standard error over seeds, pairwise. The same random
    numbers are drawn for every parameterization, so all get the same chance.
    """
    rng = np.random.default_rng(20240)
    tried_losses: dict[tuple[int, ...], Array] = {}
    trial = replace(course, compiled=False)  # every trial has constants of its own

    def multipliers(point: tuple[int, ...]) -> tuple[float, Multipliers]:
        shift, init, aggregation, *rates = point
        factors = {role: 2.0**x for role, x in zip(recipe.scaling.tensors, rates, strict=True)}
        return log2_lr + shift, Multipliers(2.0**init, 2.0**aggregation, factors)

    def try_all(points: Sequence[tuple[int, ...]]) -> None:
        asked: list[Asked] = []
        for lr, tuned in map(multipliers, points):
            asked.append((replace(recipe, multipliers=tuned), recipe.base, 2.0**lr))
        for point, (late, _) in zip(points, losses(trial, asked), strict=True):
            tried_losses[point] = late

    def at(point: tuple[int, ...]) -> Array:
        if point not in tried_losses:
            try_all([point])
        return tried_losses[point]

    size = 3 + len(recipe.scaling.tensors)  # lr, init, aggregation, and the lr of every tensor
    first = {(0,) * size: None}
    while len(first) < max(1, trials // 2):
        first[tuple(int(x) for x in rng.integers(-REACH, REACH + 1, size))] = None
    try_all(list(first))
    untuned = at((0,) * size)
    best = min(tried_losses, key=lambda point: float(tried_losses[point].mean()))
    moves = [(k, sign * step) for step in STEPS for k in range(size) for sign in (1, -1)]
    tried = 0
    while len(tried_losses) < trials and tried < len(moves):  # every move failed in a row: a local optimum
        k, shift = moves[tried]
        neighbour = (*best[:k], best[k] + shift, *best[k + 1 :])
        tried += 1
        if abs(neighbour[k]) <= FARTHEST and better(at(neighbour), at(best)):
            best, moves, tried = neighbour, moves[tried - 1 :] + moves[: tried - 1], 0
    return Tuned(*multipliers(best), float(at(best).mean()), float(untuned.mean()), len(tried_losses))


def better(losses: Array, than: Array) -> bool:
    """Is the mean over seeds lower by more than the standard error of the pairwise difference?"""
    gain = than - losses
    error = gain.std(ddof=1) / len(gain) ** 0.5 if len(gain) > 1 else 0.0
    return bool(gain.mean() > error)
