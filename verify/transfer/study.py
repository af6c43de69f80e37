"""Does the best learning rate of a small MoE network stay the best of a large one? Sweeps, side by side, and a report.

Read next: ``optimum.py`` (what the sweeps prove), ``sweep.py`` (trains), ``commands/transfer.py`` (the command line).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from tabulate import tabulate

from scaling_algebra.verify.judging.report import number
from scaling_algebra.verify.networks.base_shapes import Recipe

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

    @property
    def derived(self) -> bool:
        """Is the parameterization derived? Else it is a negative control."""
        return self.recipe.configuration.parameterization.derived


@dataclass(frozen=True)
class TransferReport:
    """Everything a study showed; ``verdict`` is that of the derived parameterizations, see ``optimum.overall``."""

    course: Course
    sweeps: Sweeps
    series: tuple[Swept, ...]
    environment: Mapping[str, Any]

    @property
    def title(self) -> str:
        asked = self.series[0].recipe.configuration
        return f"{self.course.task.title}; {asked.optimizer.name}, {asked.ray}"

    @property
    def verdict(self) -> Transfer:
        return overall(*([s.drift.verdict for s in self.series if s.derived is derived] for derived in (True, False)))

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
            }
            for s in self.series
        }
        return {
            "task": self.title,
            "seeds": len(self.course.seeds),
            "steps": self.course.steps,
            "tune": self.sweeps.tune,
            "extend": self.sweeps.extend,
            "compiled": self.course.compiled,
            "parameterizations": found,
            "environment": dict(self.environment),
            "verdict": str(self.verdict),
            "exit_code": self.exit_code,
        }

    def text(self) -> str:
        """Optima by width, tuned multipliers, drifts with verdicts, and one closing line."""
        rows = [
            (s.recipe.name, *(c.dims[a] for a in ("N", "N_e", "M", "K")), c.parameters, *_shown(o))
            for s in self.series
            for o, c in zip(s.optima, s.curves, strict=True)
        ]
        header = ("", "N", "N_e", "M", "K", "parameters", "log2 lr", "interval", "loss", "held out")
        align = ("left", *["right"] * 6, "left", "right", "right")
        blocks = [self.title, str(tabulate(rows, header, tablefmt="simple", disable_numparse=True, colalign=align))]
        blocks += [_multipliers(s.recipe.name, s.tuned) for s in self.series if s.tuned]
        drifts = [
            (s.recipe.name, _signed(d.slope), _interval(d.low, d.high), _yes(d.improves), str(d.verdict), d.why)
            for s in self.series
            for d in (s.drift,)
        ]
        head = ("", "drift", "interval", "loss falls", "verdict", "because")
        blocks.append(str(tabulate(drifts, head, tablefmt="simple", disable_numparse=True)))
        blocks.append("drift: change of log2 of the best learning rate per doubling of N")
        e = self.environment
        blocks.append(
            f"{e['optimizer']} on {e['device']}, torch {e['torch']}, {e['dtype']}, {e['wall_seconds']:.1f} s, "
            f"{self.course.steps} steps, {len(self.course.seeds)} seeds{', compiled' if self.course.compiled else ''}"
        )
        controls = [s for s in self.series if not s.derived]
        if len(controls) < len(self.series):
            seen = {True: "drifts, so a drift would be seen", False: "does not drift, so this run CANNOT SEE a drift"}
            blocks += [f"control: {s.recipe.name} {seen[s.drift.verdict == Transfer.DRIFTS]}" for s in controls]
        return "\n\n".join([*blocks, str(self.verdict)])


def transfer(course: Course, recipes: Sequence[Recipe], sweeps: Sweeps) -> TransferReport:
    """Tunes (if asked) and sweeps every parameterization, and judges where its optimum goes."""
    started = time.perf_counter()
    series = tuple(_swept(course, recipe, sweeps) for recipe in recipes)
    environment = {
        **course.hardware.described(),
        "dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "optimizer": f"torch.optim.{recipes[0].configuration.optimizer.torch}",
        "data": course.data.digest,
        "wall_seconds": round(time.perf_counter() - started, 2),
    }
    return TransferReport(course, sweeps, series, environment)


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
    return Swept(recipe, tuned, curves, tuple(map(optimum, curves)), drift(curves))


def _shown(o: Optimum) -> tuple[str, str, str, str]:
    place = {-1: "<= ", 0: "", 1: ">= "}[o.edge] + _signed(o.log2_lr)
    return place, _interval(o.low, o.high), f"{o.loss:.3f} +- {o.loss_se:.3f}", f"{o.held:.3f}"


def _multipliers(name: str, tuned: Tuned) -> str:
    m = tuned.multipliers
    rates = ", ".join(f"{role} {x:g}" for role, x in m.lr.items())
    return (
        f"{name} tuned in {tuned.trials} trials, loss {tuned.untuned:.3f} to {tuned.loss:.3f}: log2 lr "
        f"{tuned.log2_lr:g}, init {m.init:g}, aggregation {m.aggregation:g}, lr of {rates}"
    )


def _yes(answer: bool | None) -> str:
    return {True: "yes", False: "no", None: "unclear"}[answer]


def _signed(x: float) -> str:
    return "unknown" if math.isnan(x) else f"{x:+.2f}"


def _interval(low: float, high: float) -> str:
    return "" if math.isnan(low) else f"[{low:+.2f}, {high:+.2f}]"


def _plain(data: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has no NaN."""
    return {k: number(x) if isinstance(x, float) else x for k, x in data.items()}
