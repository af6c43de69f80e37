"""Prints what a large campaign costs besides training: planning, and a report and a resume of stored cells.

The cells are synthetic: the names are those of a trained cell, the values follow the predictions with noise, and the
project's own writer stores them. Every figure is of a fresh process, with its largest resident memory.
Run: ``python benchmarks/load.py [report|resume|plan ...] [--cells 2136] [--planned 14400] [--replicas 1]``.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path

import click
import numpy as np
from fresh import command, fresh
from tabulate import tabulate

from scaling_algebra.spec.configuration import Configuration
from scaling_algebra.verify.campaigns.plans import Effort, Job, job
from scaling_algebra.verify.campaigns.session import Session
from scaling_algebra.verify.hardware import Hardware
from scaling_algebra.verify.judging.fit import Array
from scaling_algebra.verify.judging.measurement import GRADIENTS, INPUT, PARAMETERS, SECONDS, Record
from scaling_algebra.verify.measuring.cells import RunCell, Setup, cells
from scaling_algebra.verify.measuring.pool import Here
from scaling_algebra.verify.measuring.runs import describe_hardware, train_cell
from scaling_algebra.verify.measuring.sizes import elements
from scaling_algebra.verify.measuring.store import Store, read_plan, write_plan

HERE = Path(__file__).parent
SIZES = (8, 12, 18, 27, 40)
ASKED = ("I", "II", "III")
"""Regimes of the runs that are stored and planned, SGD and muP."""


def planned(least: int, together: int) -> list[Job]:
    """Runs that have at least so many cells in all."""
    configurations = [Configuration.of(regime, "sgd", "mup") for regime in ASKED]
    for seeds in count(4):
        effort = Effort(sizes=SIZES, seeds=seeds * together, together=together)
        runs = [job(configuration, effort) for configuration in configurations]
        if sum(len(cells(run.setup())) for run in runs) >= least:
            return runs
    raise AssertionError


def synthetic(setup: Setup, like: Record, cell: RunCell, powers: dict[tuple[str, int], float | None]) -> Record:
    """Numbers that a cell could have measured: predictions with noise, flat in the controls."""
    n, draw = setup.sizes[0 if cell.kind == "control" else cell.size], np.random.default_rng(cell.seeds)
    entries = elements(setup.dims_of(cell), setup.network)
    facts = {INPUT: 1.0, PARAMETERS: float(entries), GRADIENTS: 1e-15, SECONDS: 0.01}

    def values(name: str, t: int) -> Array:
        power = powers.get((name, t), 0.0)
        if name in facts:
            return np.full(cell.count, facts[name])
        return np.zeros(cell.count) if power is None else n**power * np.exp(draw.normal(0, 0.3, cell.count))

    return {key: values(*key) for key in like}


def store(folder: Path, runs: Sequence[Job]) -> None:
    """Writes all cells of the runs."""
    hardware, kept = Hardware.of("cpu"), Store(folder)
    write_plan(folder, {"command": "synthetic", "claims": [], "runs": [run.as_json() for run in runs]})
    for run in runs:
        setup = run.setup()
        powers = {
            (q, t): None if p is None else float(p) for q, row in run.prediction().items() for t, p in enumerate(row)
        }
        like = {kind: train_cell(setup, RunCell(kind, 0, 0, 1), hardware) for kind in {c.kind for c in cells(setup)}}
        for cell in cells(setup):
            record = {**like[cell.kind], (SECONDS, 0): np.zeros(1)}
            kept.save(setup.run, setup.name(cell), synthetic(setup, record, cell, powers))
        kept.describe(setup.run, describe_hardware(hardware, setup))


def plan(folder: str) -> str:
    """The work of ``verify`` before it trains the first cell."""
    runs = [Job.from_json(run) for run in read_plan(Path(folder))["runs"]]
    for run in runs:
        run.setup()  # derivations are not planning
    session, began = Session(Store(Path(folder)), Here(Hardware.of("cpu"))), time.process_time()
    session.check(runs)
    checked = time.process_time()
    cells = len(session.todo(runs))
    return f"{checked - began:.2f} s to try torch, {time.process_time() - checked:.2f} s for {cells} cells"


@click.command()
@click.argument("figures", nargs=-1, type=click.Choice(["report", "resume", "plan"]))
@click.option("--cells", "stored", default=2136, show_default=True, help="Cells that are stored, at least.")
@click.option("--planned", "in_plan", default=14400, show_default=True, help="Cells that are planned, at least.")
@click.option("--replicas", default=1, show_default=True, help="Replicas in a stored cell.")
def main(figures: Sequence[str], stored: int, in_plan: int, replicas: int) -> None:
    """Print all figures, or those that are named."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        full, empty = Path(name) / "full", Path(name) / "empty"
        if not figures or set(figures) & {"report", "resume"}:
            store(full, runs := planned(stored, replicas))
            size = sum(x.stat().st_size for x in full.rglob("*")) / sum(len(cells(run.setup())) for run in runs)
            click.echo(f"a stored cell of {replicas} replicas: {size / 1e3:.1f} KB")
        write_plan(empty, {"runs": [run.as_json() for run in planned(in_plan, 1)]})
        commands = {
            "report": command("verify", "--merge", str(full)),
            "resume": command("verify", "--device", "cpu", "--resume", str(full)),
            "plan": f"import sys; sys.path[:0] = [{str(HERE)!r}]; import load; print(load.plan({str(empty)!r}))",
        }
        for figure in figures or commands:
            spent = fresh(commands[figure])
            last_line = spent.out.rstrip("\n").rpartition("\n")[2]
            rows.append((figure, f"{spent.seconds:.1f}", f"{spent.cpu:.1f}", f"{spent.megabytes:.0f}", last_line))
    click.echo(
        tabulate(rows, ("what", "seconds", "CPU seconds", "MB", "said"), tablefmt="github", disable_numparse=True)
    )


if __name__ == "__main__":
    main()
