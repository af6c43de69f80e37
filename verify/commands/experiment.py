"""``scalecalc experiment``: the experiments of the papers, each claim with its prediction and its verdict."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scaling_algebra import limits
from scaling_algebra.commands.options import Answer, Count, examples, printed
from scaling_algebra.errors import UsageError

from .shared import DEVICE, RESUME, again, integers, kept

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from scaling_algebra.verify.experiments.runner import Experiment


@click.command(
    "experiment",
    epilog=examples(
        "scalecalc experiment --list",
        "scalecalc experiment routers --only softmax --seeds 64 -o routers.md",
    ),
)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--list", "listing", is_flag=True, help="List the experiments and their trials.")
@click.option("--only", metavar="TEXT", help="Only trials whose title contains this text.")
@DEVICE
@click.option("--sizes", metavar="N,N,...", help="Values of n, e.g. 64,128,256; default: the experiment's own.")
@click.option("--seeds", type=Count(1, limits.SEEDS), help="Replicas at every size; default: the experiment's own.")
@RESUME
@printed()
def command(
    names: tuple[str, ...],
    listing: bool,
    only: str | None,
    device: str,
    sizes: str | None,
    seeds: int | None,
    resume: Path | None,
) -> tuple[Answer, int]:
    """Run experiments of the papers (all of them without NAME) and say what became of every claim.

    A claim is predicted, published or planted; one that contradicts the prediction must be refuted. Exit codes: 0 every
    claim came out as predicted, 1 one came out against it, 2 wrong usage, 3 inconclusive, 130 interrupted (trials that
    are complete are reported).
    """
    import numpy  # noqa: F401  torch warns where it is missing
    import torch  # noqa: F401  scipy stumbles where it is missing
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from scaling_algebra.verify.experiments.presentation import listed, shown
    from scaling_algebra.verify.experiments.runner import EXPERIMENTS, experiment, perform, planned, worst

    chosen = [experiment(name) for name in dict.fromkeys(names or EXPERIMENTS)]
    if only is not None:
        chosen = [e for e in (_restricted(e, only) for e in chosen) if e.trials]
        if not chosen:
            raise UsageError(f"no trial has {only!r} in its title; see scalecalc experiment --list")
    if listing:
        return listed(chosen), 0
    values = None if sizes is None else integers("sizes", sizes)
    plans = [planned(e, device, values, seeds) for e in chosen]
    results, store, console = [], kept(resume), Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        for e, how in zip(chosen, plans, strict=True):
            task = bar.add_task(e.name, total=len(e.trials))
            watch = partial(_watch, bar, task)
            results.append(perform(e, how, watch, store))
            bar.remove_task(task)
            if results[-1].interrupted:
                break
    if any(result.interrupted for result in results):
        click.echo(f"scalecalc: interrupted; {again(resume)}", err=True)
    return shown(results), worst(results)


def _watch(bar: Progress, task: TaskID, done: int, what: str) -> None:
    bar.update(task, completed=done, description=what)


def _restricted(e: Experiment, text: str) -> Experiment:
    return replace(e, trials=tuple(trial for trial in e.trials if text.lower() in trial.title.lower()))
