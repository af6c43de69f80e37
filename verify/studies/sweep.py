"""Trains models over sizes, learning rates and seeds, each run once and kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from scaling_algebra.errors import UsageError
from scaling_algebra.recipes.sizes import Sizes
from scaling_algebra.verify.hardware import Hardware
from scaling_algebra.verify.judging.fit import Array
from scaling_algebra.verify.measuring.pool import Failed, Here, Work
from scaling_algebra.verify.measuring.store import Store

from .curves import LossCurve
from .models import Numbers
from .training import How, trained

AHEAD = 10**5
"""Parameters whose training takes as long as what a run costs besides."""


@dataclass(frozen=True)
class Course:
    """The training of every model of a study.

    Attributes:
        seeds: one run for each. pool: who trains.
        watch: told the cost of all runs, of those that are done, and which was the last.
        store: where losses are kept.
    """

    how: How
    seeds: Sequence[int]
    pool: Here = field(default_factory=lambda: Here(Hardware()))
    watch: Callable[[int, int, str], None] = lambda total, done, message: None
    store: Store = field(default_factory=Store)


@dataclass(frozen=True)
class SizedModel:
    """A model of a study at one size.

    Attributes:
        series: the parameterization. width: the size of the axis that is named. parameters: how many there are.
    """

    series: str
    width: int
    sizes: Sizes
    numbers: Numbers
    parameters: int


Losses = Mapping[float, tuple[Array, Array]]
"""By log2 of the rate: the loss of the first batch and the held-out one, (seeds,) each."""


def sweep(course: Course, points: Sequence[SizedModel], grid: Sequence[float], extend: int = 0) -> list[LossCurve]:
    """Trains every point at every rate of a grid, then, while an optimum may lie on the edge of its grid, at up to
    ``extend`` more.

    Args:
        grid: log2 of the learning rates, increasing, at least two.
    """
    found: list[dict[float, tuple[Array, Array]]] = [{} for _ in points]
    pending, curves = [list(grid) for _ in points], list[LossCurve]()
    while any(pending):
        todo = [(k, x) for k, rates in enumerate(pending) for x in rates]
        for (k, x), pair in zip(todo, losses(course, [(points[k], x) for k, x in todo]), strict=True):
            found[k][x] = pair
        curves = [_curve(point, by_rate) for point, by_rate in zip(points, found, strict=True)]
        for k, curve in enumerate(curves):
            rates, edge, spacing = curve.log2_lr, curve.unknown, grid[1] - grid[0]
            more = edge and len(rates) < len(grid) + extend
            pending[k] = [rates[0] - spacing if edge < 0 else rates[-1] + spacing] if more else []
    return curves


def _curve(point: SizedModel, by_rate: Losses) -> LossCurve:
    """A run that diverged has the loss of its first batch."""
    first, held = (np.stack(part) for part in zip(*(by_rate[x] for x in sorted(by_rate)), strict=True))
    judged = np.where(np.isfinite(held), np.fmin(held, first), first)
    return LossCurve(point.width, point.sizes, point.parameters, tuple(sorted(by_rate)), judged, held)


def losses(course: Course, asked: Sequence[tuple[SizedModel, float]]) -> Iterator[tuple[Array, Array]]:
    """The first and the held-out loss of every seed, of points at a rate each; what several ask for is trained once."""
    runs = [(point, x, seed) for point, x in asked for seed in course.seeds]
    keys = [_key(course, *run) for run in runs]
    texts = [repr(key) for key in keys]
    todo = {text: k for k, text in enumerate(texts) if course.store.piece(keys[k]) is None}
    tasks = {}
    for k in todo.values():
        point, x, seed = runs[k]
        name = f"{point.series}, {', '.join(f'{a}={n}' for a, n in point.sizes.items())}, lr 2^{x:g}, seed {seed}, {k}"
        given = (course.how, dict(point.sizes), dict(point.numbers), 2.0**x, seed)
        tasks[name] = k, Work(name, trained, given, point.parameters + AHEAD)
    total, done = sum(int(work.cost) for _, work in tasks.values()), 0
    for work, result in course.pool([work for _, work in tasks.values()]):
        if isinstance(result, Failed):
            raise UsageError(str(result))
        course.store.keep(keys[tasks[work.name][0]], [x if np.isfinite(x) else None for x in result])
        done += int(work.cost)
        course.watch(total, done, work.name.rpartition(",")[0])
    kept = np.array([course.store.piece(key) for key in keys], dtype=float).reshape(len(asked), len(course.seeds), 2)
    return ((pair[:, 0], pair[:, 1]) for pair in kept)


def _key(course: Course, point: SizedModel, log2: float, seed: int) -> dict[str, object]:
    """All that a loss depends on."""
    numbers = {name: x.as_json() for name, x in point.numbers.items()}
    where = {"sizes": dict(point.sizes), "device": course.pool.hardware.kind}
    return {"run": asdict(course.how), **where, "numbers": numbers, "log2_lr": log2, "seed": seed}
