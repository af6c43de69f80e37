"""Does the best learning rate of a small MoE network stay the best of a large one? Sweeps, side by side, and a report.

Read next: ``optimum.py`` (what the sweeps prove), ``sweep.py`` (trains), ``presentation.py`` (what a study says).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from typing import Any

import torch

from scaling_algebra.documents import Document, Rendered
from scaling_algebra.errors import UsageError
from scaling_algebra.verify.hardware import Hardware
from scaling_algebra.verify.judging.report import number
from scaling_algebra.verify.networks.base_shapes import Recipe
from scaling_algebra.verify.networks.steppers import class_name

from .improvement import Comparison, Improvement, compare, improvement
from .optimum import Curve, Drift, Optimum, Transfer, drift, optimum, overall
from .sweep import Course, sweep
from .tuning import Tuned, tune

EXIT = {Transfer.TRANSFERS: 0, Transfer.DRIFTS: 1, Transfer.INCONCLUSIVE: 3}


@dataclass(frozen=True)
class Sweeps:
    """What is swept, the same for every parameterization.

    Attributes:
        widths: values of N. grid: log2 learning rates, None for the task's own, around the tuned rate if there is one.
        extend: how many more rates may be tried per width while the optimum lies on the edge.
        tune: trials of the search for multipliers at the base size; 0 for none.
    """

    widths: Sequence[int]
    grid: Sequence[float] | None = None
    extend: int = 4
    tune: int = 0


@dataclass(frozen=True)
class Swept:
    """One parameterization at all widths."""

    recipe: Recipe
    tuned: Tuned | None
    curves: tuple[Curve, ...]
    optima: tuple[Optimum, ...]
    drift: Drift
    improvement: Improvement

    @property
    def derived(self) -> bool:
        """Is the parameterization derived? Else it is a negative control."""
        return self.recipe.configuration.parameterization.derived


@dataclass(frozen=True, repr=False)
class TransferReport(Rendered):
    """Everything a study showed; ``verdict`` is that of the derived parameterizations, see ``optimum.overall``."""

    course: Course
    sweeps: Sweeps
    series: tuple[Swept, ...]
    environment: Mapping[str, Any]

    @property
    def title(self) -> str:
        asked = self.series[0].recipe.configuration
        epsilon = "" if asked.optimizer.regime is None else f", epsilon {asked.optimizer.regime}"
        readout = "" if asked.readout_init == "zero" else f", readout {asked.readout_init}"
        return f"{self.course.task.title}; {asked.optimizer.name}, {asked.ray}{epsilon}{readout}"

    @property
    def verdict(self) -> Transfer:
        return overall(*([s.drift.verdict for s in self.series if s.derived is derived] for derived in (True, False)))

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """Every parameterization against every later one, at every width."""
        return tuple(
            compare(one.recipe.name, other.recipe.name, both)
            for one, other in combinations(self.series, 2)
            for both in zip(one.curves, other.curves, strict=True)
        )

    @property
    def exit_code(self) -> int:
        return EXIT[self.verdict]

    def as_json(self) -> dict[str, Any]:
        found = {
            s.recipe.name: {
                "multipliers": None if s.tuned is None else asdict(s.tuned),
                "base": dict(s.recipe.base),
                "widths": [
                    {
                        **_plain(asdict(o)),
                        "dims": dict(c.dims),
                        "parameters": c.parameters,
                        "grid": list(c.log2_lr),
                        "losses": [[number(x) for x in row] for row in c.losses.tolist()],
                        "held_out_losses": [[number(x) for x in row] for row in c.held.tolist()],
                    }
                    for o, c in zip(s.optima, s.curves, strict=True)
                ],
                "drift": _plain(asdict(s.drift)),
                "improvement": _plain(asdict(s.improvement)),
            }
            for s in self.series
        }
        return {
            "task": self.title,
            "settings": dict(self.course.data.settings),
            "seeds": len(self.course.seeds),
            "steps": self.course.steps,
            "tune": self.sweeps.tune,
            "extend": self.sweeps.extend,
            "compiled": self.course.compiled,
            "parameterizations": found,
            "comparisons": [_plain(asdict(c)) for c in self.comparisons],
            "environment": dict(self.environment),
            "verdict": str(self.verdict),
            "exit_code": self.exit_code,
        }

    @property
    def about(self) -> str:
        return f"{self.title}: {self.verdict}"

    def document(self) -> Document:
        """Optima by width, tuned multipliers, drifts with verdicts, and one closing line."""
        from .presentation import study

        return study(self)


def transfer(course: Course, recipes: Sequence[Recipe], sweeps: Sweeps) -> TransferReport:
    """Tunes (if asked) and sweeps every parameterization, and judges where its optimum goes."""
    started = time.perf_counter()
    series = tuple(_swept(course, recipe, sweeps) for recipe in recipes)
    environment = {
        **course.hardware.described(),
        "dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "optimizer": class_name(recipes[0].configuration.optimizer),
        "data": course.data.digest,
        "wall_seconds": round(time.perf_counter() - started, 2),
    }
    return TransferReport(course, sweeps, series, environment)


def check_memory(hardware: Hardware, recipe: Recipe, width: int, seeds: int) -> None:
    """Raises UsageError if the experts alone, with a gradient and one moment, are more than the memory that is free."""
    dims, free = recipe.dims(width), hardware.free
    needed = 3 * 4 * 2 * seeds * dims["N"] * dims["N_e"] * dims["M"]
    if free is not None and needed > free:
        raise UsageError(
            f"{seeds} networks of width {width} take more than {needed / 2**30:.0f} GiB, and "
            f"{free / 2**30:.0f} GiB are free; give smaller --widths or fewer --seeds"
        )


def _swept(course: Course, recipe: Recipe, sweeps: Sweeps) -> Swept:
    first, last, spacing = course.task.grid
    count = round((last - first) / spacing)
    tuned = None
    if sweeps.tune:
        middle = first + count // 2 * spacing
        tuned = tune(course, recipe, middle, sweeps.tune)
        recipe = replace(recipe, multipliers=tuned.multipliers)
        first += tuned.log2_lr - middle
    grid = sweeps.grid or [first + k * spacing for k in range(count + 1)]
    curves = tuple(sweep(course, recipe, n, grid, sweeps.extend) for n in sweeps.widths)
    return Swept(recipe, tuned, curves, tuple(map(optimum, curves)), drift(curves), improvement(curves))


def _plain(data: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has no NaN."""
    return {k: number(x) if isinstance(x, float) else x for k, x in data.items()}
