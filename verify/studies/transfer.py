"""Does the best learning rate of a small MoE network stay the best of a large one? Sweeps, side by side."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, islice
from typing import Any

import numpy as np
import torch

from scaling_algebra.errors import UsageError
from scaling_algebra.verify.judging.fit import number
from scaling_algebra.verify.judging.regions import Settled
from scaling_algebra.verify.networks.base_shapes import BaseShapes
from scaling_algebra.verify.networks.steppers import class_name

from .curves import Change, LossCurve, compare, drift, improvement, overall
from .sweep import Course, sweep

EXIT = {Settled.TRANSFERS: 0, Settled.DRIFTS: 1, Settled.INCONCLUSIVE: 3}


@dataclass(frozen=True)
class Swept:
    """One parameterization at all widths."""

    recipe: BaseShapes
    curves: tuple[LossCurve, ...]

    @cached_property
    def drift(self) -> Change:
        return drift(self.curves)

    @cached_property
    def improvement(self) -> Change:
        return improvement(self.curves)

    @property
    def derived(self) -> bool:
        """Is the parameterization derived? Else it is a negative control."""
        return self.recipe.configuration.parameterization.derived

    def as_json(self) -> dict[str, Any]:
        return {
            "base": dict(self.recipe.base),
            "widths": [
                {
                    "width": c.width,
                    **_numbers(("log2_lr", "se", "low", "high", "loss", "loss_se", "held"), (*c.optimum, *c.loss)),
                    "edge": c.unknown,
                    "seeds": c.seeds,
                    "dims": dict(c.dims),
                    "parameters": c.parameters,
                    "grid": list(c.log2_lr),
                    "losses": [[number(x) for x in row] for row in c.losses.tolist()],
                    "held_out_losses": [[number(x) for x in row] for row in c.held.tolist()],
                }
                for c in self.curves
            ],
            "drift": _record("slope", self.drift, used=self.drift.used),
            "improvement": _record("slope", self.improvement, used=self.improvement.used),
        }


@dataclass(frozen=True)
class Study:
    """Everything that was swept; ``verdict`` is that of the derived parameterizations, see ``curves.overall``."""

    course: Course
    extend: int
    series: tuple[Swept, ...]
    environment: Mapping[str, Any]

    @property
    def title(self) -> str:
        configuration = self.series[0].recipe.configuration
        epsilon = "" if configuration.optimizer.regime is None else f", epsilon {configuration.optimizer.regime}"
        readout = "" if configuration.readout_init == "zero" else f", readout {configuration.readout_init}"
        rate = "" if self.course.swept == "lr" else f", learning rate {self.course.lr:g}"
        return f"{self.course.task.title}; {configuration.optimizer.name}, {configuration.ray}{epsilon}{readout}{rate}"

    @property
    def along(self) -> str:
        """The axis whose values are the widths."""
        return self.series[0].recipe.along

    @property
    def diverged(self) -> str:
        """Where training ended in no number; empty where none did."""
        lowest = {
            f"{s.recipe.name} at {self.along} = {c.width}": min(ends)
            for s in self.series
            for c in s.curves
            if (ends := [x for x, held in zip(c.log2_lr, c.held, strict=True) if not np.isfinite(held).all()])
        }
        return ", ".join(f"{where} from {x:g} on" for where, x in lowest.items())

    @property
    def verdict(self) -> Settled:
        return overall(*([s.drift.verdict for s in self.series if s.derived is derived] for derived in (True, False)))

    @cached_property
    def comparisons(self) -> tuple[tuple[str, str, Change], ...]:
        """The best loss of every parameterization over that of every later one, at every width."""
        return tuple(
            (first.recipe.name, second.recipe.name, compare(*pair))
            for first, second in combinations(self.series, 2)
            for pair in zip(first.curves, second.curves, strict=True)
        )

    @property
    def exit_code(self) -> int:
        return EXIT[self.verdict]

    def as_json(self) -> dict[str, Any]:
        return {
            "task": self.title,
            "settings": dict(self.course.data.settings),
            "seeds": len(self.course.seeds),
            "steps": self.course.steps,
            "swept": self.course.swept,
            "along": self.along,
            "extend": self.extend,
            "parameterizations": {s.recipe.name: s.as_json() for s in self.series},
            "comparisons": [
                {"one": one, "other": other, "width": change.used[0], **_record("ratio", change)}
                for one, other, change in self.comparisons
            ],
            "environment": dict(self.environment),
            "verdict": self.verdict,
            "exit_code": self.exit_code,
        }


def transfer(
    course: Course,
    recipes: Sequence[BaseShapes],
    widths: Sequence[int],
    grid: Sequence[float] | None = None,
    extend: int = 4,
) -> Study:
    """Sweeps every parameterization, and judges where its optimum goes.

    Args:
        widths: values of the axis ``along``. grid: log2 of what is swept; None for the task's own rates, and from -4 to
            4 of other constants.
        extend: how many more rates may be tried per width while the optimum lies on the edge.
    """
    started = time.perf_counter()
    first, last, spacing = course.task.grid if course.swept == "lr" else (-4.0, 4.0, 1.0)
    rates = grid or [first + k * spacing for k in range(round((last - first) / spacing) + 1)]
    curves = iter(sweep(course, [(recipe, n, rates) for recipe in recipes for n in widths], extend))
    swept = tuple(Swept(recipe, tuple(islice(curves, len(widths)))) for recipe in recipes)
    environment = {
        **course.pool.hardware.described(),
        "dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "optimizer": class_name(recipes[0].configuration.optimizer),
        "data": course.data.digest,
        "wall_seconds": round(time.perf_counter() - started, 2),
    }
    return Study(course, extend, swept, environment)


def check_memory(free: int | None, recipe: BaseShapes, width: int, seeds: int) -> None:
    """Raises UsageError if the experts alone, with a gradient and one moment, are more than the memory that is free."""
    dims = recipe.dims(width)
    needed = 3 * 4 * 2 * seeds * dims["N"] * dims["N_e"] * dims["M"]
    if free is not None and needed > free:
        raise UsageError(
            f"{seeds} networks of width {width} take more than {needed / 2**30:.0f} GiB, and "
            f"{free / 2**30:.0f} GiB are free; give smaller --widths or fewer --seeds"
        )


def _record(name: str, change: Change, **more: Any) -> dict[str, Any]:
    errors = _numbers((name, "se", "low", "high"), change.estimate)
    return {**errors, **more, "verdict": change.verdict, "why": change.why}


def _numbers(names: Sequence[str], values: Sequence[float]) -> dict[str, float | None]:
    """JSON has no NaN."""
    return dict(zip(names, map(number, values), strict=True))
