"""Does the best learning rate of a small MoE network stay the best of a large one? Sweeps, side by side, and a report.

Read next: ``optimum.py`` (what the sweeps prove), ``sweep.py`` (trains), ``transfer_command.py`` (the command line).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from tabulate import tabulate

from scaling_algebra.spec.parameterizations import DERIVED
from scaling_algebra.verify.measuring.runs import machine
from scaling_algebra.verify.networks.base_shapes import Recipe

from .optimum import Curve, Drift, Optimum, Transfer, drift, optimum, overall
from .sweep import Progress, sweep
from .tasks import Prepared, Task
from .tuning import Tuned, tune

EXIT = {Transfer.TRANSFERS: 0, Transfer.DRIFTS: 1, Transfer.INCONCLUSIVE: 3}


@dataclass(frozen=True)
class Plan:
    """What to run, the same for every parameterization.

    Attributes:
        widths: values of N. grid: log2 learning rates, None for the task's own, around the tuned rate if there is one.
        extend: how many more rates may be tried per width while the optimum lies on the edge.
        tune: trials of the search for multipliers at the base size; 0 for none.
        device: ``cpu`` or ``cuda``.
        compiled: sweep with compiled networks; each trial of the search has its own constants and is not compiled.
    """

    widths: Sequence[int]
    grid: Sequence[float] | None
    seeds: int
    steps: int
    extend: int
    tune: int
    device: str
    compiled: bool = False


@dataclass(frozen=True)
class Series:
    """One parameterization at all widths."""

    recipe: Recipe
    tuned: Tuned | None
    curves: tuple[Curve, ...]
    optima: tuple[Optimum, ...]
    drift: Drift


@dataclass(frozen=True)
class TransferReport:
    """Everything a run showed; ``verdict`` is that of the derived parameterizations, see ``optimum.overall``."""

    title: str
    plan: Plan
    series: tuple[Series, ...]
    environment: Mapping[str, Any]

    @property
    def verdict(self) -> Transfer:
        derived = [s.drift.verdict for s in self.series if s.recipe.name in DERIVED]
        return overall(derived, [s.drift.verdict for s in self.series if s.recipe.name not in DERIVED])

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
                        "losses": [[_number(x) for x in row] for row in c.losses.tolist()],
                        "held_out_losses": [[_number(x) for x in row] for row in c.held.tolist()],
                    }
                    for o, c in zip(s.optima, s.curves, strict=True)
                ],
                "drift": _plain(asdict(s.drift)),
            }
            for s in self.series
        }
        plan = {"seeds": self.plan.seeds, "steps": self.plan.steps, "tune": self.plan.tune, "extend": self.plan.extend}
        plan["compiled"] = self.plan.compiled
        return {
            "task": self.title,
            **plan,
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
            f"{self.plan.steps} steps, {self.plan.seeds} seeds{', compiled' if self.plan.compiled else ''}"
        )
        controls = [s for s in self.series if s.recipe.name not in DERIVED]
        if len(controls) < len(self.series):
            seen = {True: "drifts, so a drift would be seen", False: "does not drift, so this run CANNOT SEE a drift"}
            blocks += [f"control: {s.recipe.name} {seen[s.drift.verdict == Transfer.DRIFTS]}" for s in controls]
        return "\n\n".join([*blocks, str(self.verdict)])


def transfer(
    task: Task, data: Prepared, recipes: Sequence[Recipe], plan: Plan, progress: Progress = lambda message: None
) -> TransferReport:
    """Tunes (if asked) and sweeps every parameterization, and judges where its optimum goes."""
    started = time.perf_counter()
    series = [_series(task, data, recipe, plan, progress) for recipe in recipes]
    rule = recipes[0].optimizer
    environment = {
        "device": torch.cuda.get_device_name() if plan.device == "cuda" else "cpu",
        "machine": machine(),
        "torch": torch.__version__,
        "dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "optimizer": f"torch.optim.{rule.torch}",
        "data": data.digest,
        "wall_seconds": round(time.perf_counter() - started, 2),
    }
    return TransferReport(f"{task.title}; {rule.name}, {recipes[0].ray}", plan, tuple(series), environment)


def _series(task: Task, data: Prepared, recipe: Recipe, plan: Plan, progress: Progress) -> Series:
    seeds = range(plan.seeds)
    first, last, spacing = task.grid
    count = round((last - first) / spacing)
    tuned = None
    if plan.tune:
        middle = first + count // 2 * spacing
        tuned = tune(task, data, recipe, middle, plan.tune, seeds, plan.steps, plan.device, progress)
        recipe = replace(recipe, multipliers=tuned.multipliers)
        first += tuned.log2_lr - middle
    grid = plan.grid or [first + k * spacing for k in range(count + 1)]

    def curve(n: int) -> Curve:
        how = (grid, seeds, plan.steps, plan.device)
        return sweep(task, data, recipe, n, *how, extend=plan.extend, compiled=plan.compiled, progress=progress)

    curves = tuple(map(curve, plan.widths))
    return Series(recipe, tuned, curves, tuple(map(optimum, curves)), drift(curves))


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


def _number(x: float) -> float | None:
    return round(x, 6) if math.isfinite(x) else None


def _plain(data: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has no NaN."""
    return {k: _number(x) if isinstance(x, float) else x for k, x in data.items()}
