"""Trains a task over widths, learning rates and seeds, and tunes multipliers at the base size before that.

Without tuned multipliers an effective update can be negligible at every size one can train (MSSP paper, App. Q.6). The
search is a random one, then steps in one coordinate at a time; it is small: App. Q.7 shows cases where one of this kind
stops short of the optimum.
Read next: ``curves.py`` (where the loss is smallest, and how that drifts), ``tasks.py`` (what is trained).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from scaling_algebra.errors import UsageError
from scaling_algebra.verify.hardware import Hardware, spare_threads
from scaling_algebra.verify.judging.fit import Array
from scaling_algebra.verify.measuring.batches import Data, cross_entropy, descend
from scaling_algebra.verify.measuring.store import Store
from scaling_algebra.verify.networks.base_shapes import BaseShapes, Multipliers
from scaling_algebra.verify.networks.scales import Dims

from .curves import LossCurve
from .tasks import Task

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
    pending, spacing = list(grid), grid[1] - grid[0]
    while True:
        for x in pending:
            course.say(f"{recipe.name}, N={width}, lr 2^{x:g}")
            with _compiling() if course.compiled else nullcontext():
                curves[x] = losses(course, recipe, dims, 2.0**x)
        rates = tuple(sorted(curves))
        late, held = (np.stack(part) for part in zip(*(curves[x] for x in rates), strict=True))
        curve = LossCurve(width, dims, parameters, rates, late, held)
        if not curve.unknown or len(curves) >= len(grid) + extend:
            return curve
        pending = [rates[0] - spacing if curve.unknown < 0 else rates[-1] + spacing]


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
    """The losses of ``losses``, always trained."""
    task, data, steps, device = course.task, course.data, course.steps, course.hardware.device
    model = data.build(recipe, dims, course.seeds, device)
    forward = torch.compile(model, dynamic=False) if course.compiled else model
    stepper = model.optimizer(lr, task.decay, **({} if task.betas is None else {"betas": task.betas}))
    schedule = torch.optim.lr_scheduler.LambdaLR(stepper, lambda step: rate(step, steps, task.warmup, task.final))

    def loss(step: int | None, network: Callable[[Tensor], tuple[Tensor, Tensor]] = forward) -> tuple[Tensor, Tensor]:
        inputs, targets = data.batches(course.seeds, step, device)
        logits, auxiliary = network(inputs)
        return cross_entropy(logits, targets), auxiliary

    trajectory = []
    with spare_threads():
        for before in descend(stepper, loss, steps):
            schedule.step()
            trajectory.append(before)
        with torch.no_grad():
            trajectory.append(loss(None, model)[0])
    every = torch.stack(trajectory).cpu().numpy().astype(np.float64)
    start, late = every[0], every[-1 - max(1, round(LATE * steps)) : -1].mean(axis=0)
    return np.where(np.isfinite(late), np.minimum(late, start), start), every[-1]


@contextmanager
def _compiling() -> Iterator[None]:
    """The error of torch when it cannot compile a forward or backward pass, as one line."""
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

    def at(point: tuple[int, ...]) -> Array:
        if point not in tried_losses:
            course.say(f"{recipe.name}, tuning at N={recipe.base['N']}, trial {len(tried_losses) + 1} of {trials}")
            lr, tuned = multipliers(point)
            tried_losses[point] = losses(trial, replace(recipe, multipliers=tuned), recipe.base, 2.0**lr)[0]
        return tried_losses[point]

    size = 3 + len(recipe.scaling.tensors)  # lr, init, aggregation, and the lr of every tensor
    untuned = at((0,) * size)
    while len(tried_losses) < max(1, trials // 2):
        at(tuple(int(x) for x in rng.integers(-REACH, REACH + 1, size)))
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
