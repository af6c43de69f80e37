"""``scalecalc transfer``: learning-rate sweeps over widths, for derived and standard parameterizations side by side."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import click
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from scaling_algebra.commands.options import WHERE
from scaling_algebra.errors import UsageError, unknown_name
from scaling_algebra.spec.configuration import the_ray
from scaling_algebra.spec.parameterizations import PARAMETERIZATIONS
from scaling_algebra.verify.measuring.runs import _device
from scaling_algebra.verify.networks.base_shapes import AXES, Dims, Recipe, recipe
from scaling_algebra.verify.transfer.tasks import TASKS, Prepared, Task
from scaling_algebra.verify.transfer.transfer import Plan, TransferReport, transfer

Number = TypeVar("Number", int, float)


@click.command("transfer")
@WHERE
@click.option("--data", default="digits", show_default=True, metavar="NAME", help=", ".join(TASKS))
@click.option(
    "--parameterization",
    "names",
    multiple=True,
    default=("mup", "mssp", "sp"),
    show_default=True,
    metavar="NAME",
    help=f"Repeatable: {', '.join(PARAMETERIZATIONS)}. Those that are not derived are the negative control.",
)
@click.option("--widths", metavar="N,N,...", help="Values of N, at least three for a verdict; default: the data's.")
@click.option(
    "--base", metavar="SIZES", help="Size at which all parameterizations are alike, e.g. N=32,N_e=32,M=4,K=4."
)
@click.option("--grid", metavar="FIRST,LAST[,SPACING]", help="log2 of the learning rates, e.g. --grid=-10,-4.")
@click.option("--extend", default=4, show_default=True, help="Rates to add per width while its optimum is on the edge.")
@click.option("--seeds", default=8, show_default=True, help="Replicas, at least four for a verdict.")
@click.option("--steps", type=int, help="Number of optimizer steps; default: the data's.")
@click.option(
    "--tune", default=0, show_default=True, metavar="TRIALS", help="Search multipliers at the base size first."
)
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="Repeatable, e.g. batch=32, context=1024.")
@click.option("--compile", "compiled", is_flag=True, help="Compile every network of the sweep: pays for long runs.")
@click.option("--device", default="auto", show_default=True, metavar="NAME", help="auto, cpu or cuda")
@click.option("--format", "form", default="text", show_default=True, metavar="FORMAT", help="text, json")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Also write the report as JSON.")
def command(
    regime: str | None,
    ray: str | None,
    optimizer: str,
    data: str,
    names: tuple[str, ...],
    widths: str | None,
    base: str | None,
    grid: str | None,
    extend: int,
    seeds: int,
    steps: int | None,
    tune: int,
    settings: tuple[str, ...],
    compiled: bool,
    device: str,
    form: str,
    output: Path | None,
) -> int:
    """Sweep the learning rate at several widths and say whether the optimum stays where it is.

    Exit codes: 0 TRANSFERS, 1 DRIFTS, 2 wrong usage, 3 INCONCLUSIVE. With a negative control beside them (sp), derived
    parameterizations transfer only where the control is seen to drift.
    """
    if form not in ("text", "json"):
        raise UsageError(f"no format named {form!r}; use text or json")
    if output is not None and not output.parent.is_dir():
        raise UsageError(f"cannot write {output}: {output.parent} is not a folder; create it or choose another -o FILE")
    if data.lower() not in TASKS:
        raise unknown_name("data", data, TASKS)
    task, where = TASKS[data.lower()], the_ray(regime, ray)
    for label, count, least in (("seeds", seeds, 1), ("steps", steps, 1), ("extend", extend, 0), ("tune", tune, 0)):
        if count is not None and count < least:
            raise UsageError(f"{label} is {count}; give {least} or more")
    chosen = _increasing("widths", _numbers("widths", widths, int)) if widths else list(task.widths)
    plan = Plan(chosen, _grid(grid), seeds, steps or task.steps, extend, tune, _device(device), compiled)
    size = {**task.base, **_base(base)}
    recipes = [recipe(where, optimizer, name, size, task.transformer) for name in dict.fromkeys(names)]
    prepared = _prepared(task, settings)
    for each in recipes:  # fail before the long part
        prepared.build(each, each.dims(chosen[0]), [0], "cpu")
    report = _run(task, prepared, recipes, plan)
    found = {"command": "scalecalc " + " ".join(sys.argv[1:]), **report.as_json()}
    if output is not None:
        output.write_text(json.dumps(found, indent=1) + "\n")
    click.echo(json.dumps(found, indent=2) if form == "json" else report.text())
    return report.exit_code


def _run(task: Task, prepared: Prepared, recipes: list[Recipe], plan: Plan) -> TransferReport:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        shown = bar.add_task("training", total=None)
        return transfer(task, prepared, recipes, plan, lambda message: bar.update(shown, description=message))


def _prepared(task: Task, settings: Iterable[str]) -> Prepared:
    known, found = inspect.signature(task.prepare).parameters, {}
    for text in settings:
        name, _, number = (s.strip() for s in text.partition("="))
        if name not in known:
            raise unknown_name(f"setting of {task.name}", name, known)
        if not number.isdigit() or not int(number):
            raise UsageError(f"cannot read the setting {text!r}; write name=number, e.g. {name}={known[name].default}")
        found[name] = int(number)
    return task.prepare(**found)


def _base(text: str | None) -> Dims:
    found = {}
    for part in text.split(",") if text else ():
        axis, _, number = (s.strip() for s in part.partition("="))
        if axis not in AXES:
            raise unknown_name("axis of the base size", axis, AXES)
        if not number.isdigit() or not int(number):
            raise UsageError(f"cannot read the base size {text!r}; write e.g. N=32,N_e=32,M=4,K=4")
        found[axis] = int(number)
    return found


def _grid(text: str | None) -> list[float] | None:
    if text is None:
        return None
    given = _numbers("grid", text, float)
    if len(given) in (2, 3):
        first, last, spacing = (*given, 1.0)[:3]
        if spacing > 0 and last - first >= 2 * spacing:
            return [first + k * spacing for k in range(int((last - first) / spacing + 1e-9) + 1)]
    raise UsageError(f"the grid is {text!r}; give FIRST,LAST[,SPACING] with three rates or more, e.g. -10,-4")


def _numbers(label: str, text: str, kind: Callable[[str], Number]) -> list[Number]:
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"cannot read the {label} {text!r}; write numbers with commas, e.g. 32,64,128") from None


def _increasing(label: str, numbers: list[int]) -> list[int]:
    if any(n < 1 for n in numbers) or any(a >= b for a, b in pairwise(numbers)):
        raise UsageError(f"{label} are {numbers!r}; give positive ones in increasing order, without repeats")
    return numbers
