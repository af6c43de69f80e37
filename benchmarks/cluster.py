"""Times a campaign in one process, with one worker and with two, and the overhead of a task.

Every time is the median of fresh processes, run in turns; ratios are of times of the same run. On a busy machine ratios
mean little, so the load is printed.
Run: ``python benchmarks/cluster.py [--campaign NAME] [--turns 3]``.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

import click
from fresh import build_command, run_fresh
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


def time_runs(turns: int, *what: str) -> list[list[float]]:
    """Returns wall-clock seconds by number of workers (none, one, two), one per turn."""
    taken: list[list[float]] = [[], [], []]
    for _ in range(turns):
        for workers, times in enumerate(taken):
            with tempfile.TemporaryDirectory() as folder:
                who = ("--workers", str(workers)) if workers else ()
                code = build_command("verify", *what, "--device", "cpu", "-o", str(Path(folder) / "run"), *who)
                times.append(run_fresh(code).seconds)
    return taken


def measure_overhead() -> float:
    """Returns the seconds that an empty task takes on a running worker."""
    pool.WORTH = 0
    with pool.open_pool("cpu", workers=1) as workers:
        list(workers([pool.Work("first", do_nothing, ())]))
        began = time.perf_counter()
        list(workers([pool.Work(str(k), do_nothing, ()) for k in range(TASKS)]))
        return (time.perf_counter() - began) / TASKS


def do_nothing(hardware: Hardware) -> None:
    """Return None: the empty task."""


@click.command()
@click.option("--campaign", default="quick", show_default=True)
@click.option("--turns", default=3, show_default=True)
def main(campaign: str, turns: int) -> None:
    """Print all figures."""
    rows = []
    for name, what in ((f"campaign {campaign}", ("--campaign", campaign)), ("a run of 20 cells", TWENTY)):
        alone, one, two = map(statistics.median, time_runs(turns, *what))
        rows.append((name, f"{alone:.1f}", f"{one:.1f}", f"{two:.1f}", f"{one / two:.2f}", f"{alone / two:.2f}"))
    header = ("seconds", "one process", "one worker", "two workers", "one worker / two", "one process / two")
    click.echo(tabulate(rows, header, tablefmt="github", disable_numparse=True))
    imported = run_fresh(f"{IMPORTED}main(['derive', '--regime', 'I', '--format', 'json'])").out.split()[-1]
    click.echo(f"a task besides its work: {1000 * measure_overhead():.1f} ms; derive imports dask: {imported}")
    click.echo(f"load average {os.getloadavg()[1]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
