"""Tests whether the learning rate tuned on a small model remains the best one for a large model.

It sweeps the learning rate of any module under several parameterizations. Each run is trained once and stored.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import combinations, islice
from typing import Any

import numpy as np

from scaling_algebra.documents import Rendered
from scaling_algebra.errors import UsageError
from scaling_algebra.recipes.sizes import Sizes
from scaling_algebra.spec.parameterizations import PARAMETERIZATIONS
from scaling_algebra.verify.hardware import Hardware
from scaling_algebra.verify.judging.fit import Array, round_for_json
from scaling_algebra.verify.judging.regions import ClaimOutcome
from scaling_algebra.verify.judging.report import split_spent
from scaling_algebra.verify.measuring.pool import Failed, Here, Work
from scaling_algebra.verify.measuring.store import Store

from .curves import Change, LossCurve, combine_outcomes, compare, measure_drift, measure_improvement, measure_regret
from .data import Data
from .models import Model, Numbers, tune_plan
from .training import How, train_model

EXIT = {ClaimOutcome.TRANSFERS: 0, ClaimOutcome.DRIFTS: 1, ClaimOutcome.INCONCLUSIVE: 3}
GRID = (-10.0, -5.0, 1.0)
"""log2 of the learning rates: first, last, spacing."""
BYTES = 16
"""Bytes of memory per parameter: its value, gradient and two moments."""
AHEAD = 10**5
"""Constant cost of a run, as the number of parameters whose training takes the same time."""


@dataclass(frozen=True)
class Course:
    """Everything needed to train the models of a study.

    Attributes:
        how: model, data and number of steps, common to all training runs.
        seeds: every model is trained once for each of these seeds.
        pool: the processes that train.
        watch: called after each training run with the cost of all runs, the cost of the finished ones, and a
            description of the last one.
        store: keeps the losses of completed training runs, so that none is trained twice.
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
        series: name of the parameterization.
        width: size of the axis along which models grow.
        sizes: sizes of all axes.
        numbers: initialisation and learning rate of every parameter.
        parameters: number of parameters.
    """

    series: str
    width: int
    sizes: Sizes
    numbers: Numbers
    parameters: int


Losses = Mapping[float, tuple[Array, Array]]
"""Map: log2 of the learning rate -> (losses of the first batch, held-out losses), (seeds,) each."""


def sweep_rates(
    course: Course, points: Sequence[SizedModel], grid: Sequence[float], extend: int = 0
) -> list[LossCurve]:
    """Trains every model at every learning rate of a grid, and returns a loss curve for each.

    While the optimum of a model may lie at the edge of its grid, its grid is extended there.

    Args:
        course: how to train.
        points: the models, each with its size and parameterization.
        grid: log2 of the learning rates, increasing, at least two.
        extend: maximum number of additional rates per model.
    """
    found: list[dict[float, tuple[Array, Array]]] = [{} for _ in points]
    pending, curves = [list(grid) for _ in points], list[LossCurve]()
    while any(pending):
        todo = [(k, x) for k, rates in enumerate(pending) for x in rates]
        for (k, x), pair in zip(todo, train_losses(course, [(points[k], x) for k, x in todo]), strict=True):
            found[k][x] = pair
        curves = [_build_curve(point, by_rate) for point, by_rate in zip(points, found, strict=True)]
        for k, curve in enumerate(curves):
            rates, edge, spacing = curve.log2_lr, curve.unknown, grid[1] - grid[0]
            more = edge and len(rates) < len(grid) + extend
            pending[k] = [rates[0] - spacing if edge < 0 else rates[-1] + spacing] if more else []
    return curves


def _build_curve(point: SizedModel, by_rate: Losses) -> LossCurve:
    """Returns the loss curve of a model, given its losses by log2 of the learning rate.

    A run that diverged, or ended above the loss of its first batch, counts with the loss of its first batch.
    """
    first, held = (np.stack(part) for part in zip(*(by_rate[x] for x in sorted(by_rate)), strict=True))
    judged = np.where(np.isfinite(held), np.fmin(held, first), first)
    return LossCurve(point.width, point.sizes, point.parameters, tuple(sorted(by_rate)), judged, held)


def train_losses(course: Course, asked: Sequence[tuple[SizedModel, float]]) -> Iterator[tuple[Array, Array]]:
    """Trains models and returns the losses of the first batch and the held-out losses of all seeds, (seeds,) each.

    Args:
        course: how to train.
        asked: pairs of a model and log2 of its learning rate; one that occurs several times is trained once.
    """
    runs = [(point, x, seed) for point, x in asked for seed in course.seeds]
    keys = [_build_key(course, *run) for run in runs]
    texts = [repr(key) for key in keys]
    todo = {text: k for k, text in enumerate(texts) if course.store.piece(keys[k]) is None}
    tasks = {}
    for k in todo.values():
        point, x, seed = runs[k]
        name = f"{point.series}, {', '.join(f'{a}={n}' for a, n in point.sizes.items())}, lr 2^{x:g}, seed {seed}, {k}"
        given = (course.how, dict(point.sizes), dict(point.numbers), 2.0**x, seed)
        tasks[name] = k, Work(name, train_model, given, point.parameters + AHEAD)
    total, done = sum(int(work.cost) for _, work in tasks.values()), 0
    for work, result in course.pool([work for _, work in tasks.values()]):
        if isinstance(result, Failed):
            raise UsageError(str(result))
        course.store.keep(keys[tasks[work.name][0]], [x if np.isfinite(x) else None for x in result])
        done += int(work.cost)
        course.watch(total, done, work.name.rpartition(",")[0])
    kept = np.array([course.store.piece(key) for key in keys], dtype=float).reshape(len(asked), len(course.seeds), 2)
    return ((pair[:, 0], pair[:, 1]) for pair in kept)


def _build_key(course: Course, point: SizedModel, log2: float, seed: int) -> dict[str, object]:
    """Returns the key under which the losses of a training run are stored: everything that they depend on."""
    numbers = {name: x.as_json() for name, x in point.numbers.items()}
    where = {"sizes": dict(point.sizes), "device": course.pool.hardware.kind}
    return {"run": asdict(course.how), **where, "numbers": numbers, "log2_lr": log2, "seed": seed}


@dataclass(frozen=True)
class Series:
    """The loss curves of one parameterization at all sizes."""

    name: str
    curves: tuple[LossCurve, ...]

    @cached_property
    def drift(self) -> Change:
        return measure_drift(self.curves)

    @cached_property
    def improvement(self) -> Change:
        return measure_improvement(self.curves)

    @property
    def derived(self) -> bool:
        """Whether the parameterization is derived; otherwise it is a negative control."""
        return PARAMETERIZATIONS[self.name].derived

    @property
    def at(self) -> float:
        base = self.curves[0]
        return base.log2_lr[base.best]

    def as_json(self) -> dict[str, Any]:
        return {
            "widths": [
                {
                    "width": c.width,
                    "dims": dict(c.dims),
                    "parameters": c.parameters,
                    **_name_numbers(("log2_lr", "se", "low", "high", "loss", "loss_se"), (*c.optimum, *c.loss[:2])),
                    "edge": c.unknown,
                    "transferred": round_for_json(c.mean_at(self.at)),
                    "regret": _name_numbers(("nats", "se", "low", "high"), measure_regret(c, self.at)),
                    "grid": list(c.log2_lr),
                    "losses": [[round_for_json(x) for x in row] for row in c.losses.tolist()],
                    "held_out_losses": [[round_for_json(x) for x in row] for row in c.held.tolist()],
                }
                for c in self.curves
            ],
            "drift": _change_as_json("slope", self.drift, used=self.drift.used),
            "improvement": _change_as_json("slope", self.improvement, used=self.improvement.used),
        }


@dataclass(frozen=True)
class Study(Rendered):
    """The result of all sweeps of the learning rate, with a verdict on whether its optimum transfers (see
    ``curves.combine_outcomes``).

    Attributes:
        model: name of the model.
        data: the data.
        optimizer: name of the optimizer.
        along: the axis that grows most; its sizes are called widths.
        series: the curves of every parameterization.
        environment: where and how the models were trained.
    """

    model: str
    data: Data
    optimizer: str
    along: str
    series: tuple[Series, ...]
    environment: Mapping[str, Any]

    @property
    def about(self) -> str:
        return f"{self.model}; {self.data.name}; {self.optimizer}; {', '.join(s.name for s in self.series)}"

    @property
    def diverged(self) -> str:
        """The models whose training diverged, each with log2 of the smallest learning rate at which it did, as text;
        empty if none did.
        """
        lowest = {
            f"{s.name} at {self.along} = {c.width}": min(ends)
            for s in self.series
            for c in s.curves
            if (ends := c.diverged)
        }
        return ", ".join(f"{where} from {x:g} on" for where, x in lowest.items())

    @property
    def verdict(self) -> ClaimOutcome:
        return combine_outcomes(
            *([s.drift.verdict for s in self.series if s.derived is derived] for derived in (True, False))
        )

    @cached_property
    def comparisons(self) -> tuple[tuple[str, str, Change], ...]:
        """Compares the best losses of every pair of parameterizations at every size."""
        return tuple(
            (first.name, second.name, compare(*pair))
            for first, second in combinations(self.series, 2)
            for pair in zip(first.curves, second.curves, strict=True)
        )

    @property
    def exit_code(self) -> int:
        return EXIT[self.verdict]

    def as_json(self) -> dict[str, Any]:
        return {
            "task": f"{self.model}; {self.data.name}; {self.optimizer}",
            "loss": f"held out, {self.data.unit}",
            "settings": dict(self.data.settings),
            "along": self.along,
            "base": dict(self.series[0].curves[0].dims),
            "parameterizations": {s.name: s.as_json() for s in self.series},
            "comparisons": [
                {"one": one, "other": other, "width": change.used[0], **_change_as_json("ratio", change)}
                for one, other, change in self.comparisons
            ],
            **split_spent(self.environment),
            "verdict": self.verdict,
            "exit_code": self.exit_code,
        }


def build_points(
    model: Model, names: Sequence[str], optimizer: str, sizes: Sequence[Sizes], rates: Mapping[str, float]
) -> list[SizedModel]:
    """Returns the model at all sizes with the numbers of each parameterization.

    Args:
        model: the model.
        names: names of the parameterizations.
        optimizer: name of the optimizer.
        sizes: sizes of the models; the first one is the base.
        rates: factors on the learning rates of parameters, by pattern of names.

    Raises:
        UsageError: a pattern that no parameter matches; also all errors of ``Model.numbers``.
    """
    along = find_axis(sizes)
    counts = [sum(p.numel() for p in model.build(one, 0).parameters()) for one in sizes]
    made = []
    for name in names:
        for one, numbers, count in zip(sizes, model.numbers(name, optimizer, sizes), counts, strict=True):
            made.append(SizedModel(name, one[along], one, tune_plan(numbers, rates), count))
    return made


def find_axis(sizes: Sequence[Sizes]) -> str:
    """Returns the axis that grows most from the first of these sizes to the last."""
    return max(sizes[0], key=lambda axis: sizes[-1][axis] / sizes[0][axis])


def study_transfer(
    course: Course,
    data: Data,
    optimizer: str,
    asked: Sequence[SizedModel],
    grid: Sequence[float],
    extend: int = 4,
) -> Study:
    """Trains every parameterization on a grid of learning rates and judges how the optimum moves.

    Args:
        course: how to train.
        data: the data.
        optimizer: name of the optimizer.
        asked: the models at all sizes and parameterizations, as returned by ``build_points``.
        grid: log2 of the learning rates.
        extend: maximum number of additional rates per model while its optimum lies at the edge.
    """
    began = time.perf_counter()
    names = dict.fromkeys(point.series for point in asked)
    curves = iter(sweep_rates(course, asked, grid, extend))
    count = len(asked) // len(names)
    series = tuple(Series(name, tuple(islice(curves, count))) for name in names)
    environment = {
        **course.pool.hardware.describe(),
        "dtype": course.how.dtype,
        "steps": course.how.steps,
        "seeds": len(course.seeds),
        "data": data.digest,
        "wall_seconds": round(time.perf_counter() - began, 2),
    }
    return Study(course.how.model, data, optimizer, find_axis([p.sizes for p in asked[:count]]), series, environment)


def check_memory(free: int | None, point: SizedModel) -> None:
    """Checks that the values, gradients and moments of a model fit into the free memory.

    Raises:
        UsageError: they do not.
    """
    needed = BYTES * point.parameters
    if free is not None and needed > free:
        raise UsageError(
            f"a model of {point.parameters:,} parameters takes more than {needed / 2**30:.0f} GiB to train, and "
            f"{free / 2**30:.0f} GiB are free; give smaller --widths"
        )


def _change_as_json(name: str, change: Change, **more: Any) -> dict[str, Any]:
    errors = _name_numbers((name, "se", "low", "high"), change.estimate)
    return {**errors, **more, "verdict": change.verdict, "why": change.why}


def _name_numbers(names: Sequence[str], values: Sequence[float]) -> dict[str, float | None]:
    """Returns a dict of names and values, with None in place of NaN, which JSON does not have."""
    return dict(zip(names, map(round_for_json, values), strict=True))
