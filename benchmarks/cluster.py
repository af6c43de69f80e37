"""Prints what many processes bring: a campaign by one process, one worker and two, and what a task costs besides.

Every time is the median of fresh processes in turns, a ratio is of times of this run; on a machine that does other
things, too, ratios mean little: the load is printed.
Run: ``python benchmarks/cluster.py [--campaign NAME] [--turns 3]``.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

import click
from fresh import command, fresh
from tabulate import tabulate

from scaling_algebra.verify.hardware import Hardware
from scaling_algebra.verify.measuring import pool

TWENTY = ("--regime", "III", "--optimizer", "sgd", "--parameterization", "sp", "--sizes", "32,64,96,128,256")
TWENTY += ("--seeds", "64", "--steps", "2")
"""A run of twenty cells: five sizes, two of values and two of controls each."""
TASKS = 300
IMPORTED = """import atexit, sys
from scaling_algebra.cli import main
atexit.register(lambda: print(bool({"dask", "distributed"} & set(sys.modules))))
"""


def seconds(turns: int, *what: str) -> list[list[float]]:
    """Wall-clock seconds by number of workers (none, one, two), in turns."""
    taken: list[list[float]] = [[], [], []]
    for _ in range(turns):
        for workers, times in enumerate(taken):
            with tempfile.TemporaryDirectory() as folder:
                who = ("--workers", str(workers)) if workers else ()
                code = command("verify", *what, "--device", "cpu", "-o", str(Path(folder) / "run"), *who)
                times.append(fresh(code).seconds)
    return taken


def overhead() -> float:
    """Seconds that a task takes that does nothing, on one worker that is there."""
    pool.WORTH = 0
    with pool.open_pool("cpu", workers=1) as workers:
        list(workers([pool.Work("first", nothing, ())]))
        began = time.perf_counter()
        list(workers([pool.Work(str(k), nothing, ()) for k in range(TASKS)]))
        return (time.perf_counter() - began) / TASKS


def nothing(hardware: Hardware) -> None:
    """Does nothing."""


@click.command()
@click.option("--campaign", default="quick", show_default=True)
@click.option("--turns", default=3, show_default=True)
def main(campaign: str, turns: int) -> None:
    """Print all figures."""
    rows = []
    for name, what in ((f"campaign {campaign}", ("--campaign", campaign)), ("a run of 20 cells", TWENTY)):
        alone, one, two = map(statistics.median, seconds(turns, *what))
        rows.append((name, f"{alone:.1f}", f"{one:.1f}", f"{two:.1f}", f"{one / two:.2f}", f"{alone / two:.2f}"))
    header = ("seconds", "one process", "one worker", "two workers", "one worker / two", "one process / two")
    click.echo(tabulate(rows, header, tablefmt="github", disable_numparse=True))
    imported = fresh(f"{IMPORTED}main(['derive', '--regime', 'I', '--format', 'json'])").out.split()[-1]
    click.echo(f"a task besides its work: {1000 * overhead():.1f} ms; derive imports dask: {imported}")
    click.echo(f"load average {os.getloadavg()[1]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
