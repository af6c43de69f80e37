"""Prints what training several sizes in one stack of tensors brings, and how many entries pay for the calls it saves.

Run: ``python benchmarks/stacking.py [--runs 3] [--device cpu|cuda] [--seeds 8] [--entries 7.2e6]``.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import click
import torch
from tabulate import tabulate

from scaling_algebra.spec.axes import REGIMES
from scaling_algebra.verify.campaigns.campaign import job
from scaling_algebra.verify.measuring import stacks
from scaling_algebra.verify.measuring.cells import Cell, Setup, cells
from scaling_algebra.verify.measuring.runs import perform, room
from scaling_algebra.verify.measuring.sizes import LARGEST_ELEMENTS, elements
from scaling_algebra.verify.measuring.store import Store


def seconds(setup: Setup, todo: Sequence[Cell], device: str, calls: int) -> float:
    """Wall time of cells, where so many entries pay for the calls of a training."""
    usual, stacks.CALLS[device] = stacks.CALLS[device], calls
    try:
        start = time.perf_counter()
        perform(setup, todo, device, Store(), "trial")
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start
    finally:
        stacks.CALLS[device] = usual


def worth(setup: Setup, device: str, runs: int) -> str:
    """Entries that take the time of the calls of one training: a tiny replica against many of them."""
    each, times = elements(setup.dims(0)), []
    many = max(2, 2 * stacks.CALLS[device] // each)
    for count in (1, many):
        took = [seconds(setup, [Cell("values", 0, 0, count)], device, 0) for _ in range(runs + 1)]
        times.append(statistics.median(took[1:]))  # the first one warms up
    more = (times[1] - times[0]) / (many - 1)
    return f"{(times[0] / more - 1) * each / 2**20:.1f} Mi" if more > 0 else "lost in noise"


@click.command()
@click.option("--runs", default=3, show_default=True, help="Repetitions; medians are printed.")
@click.option("--device", default="cpu", show_default=True, type=click.Choice(["cpu", "cuda"]))
@click.option("--seeds", default=8, show_default=True, help="Replicas at every size.")
@click.option("--entries", default=LARGEST_ELEMENTS, show_default=True, help="Weight entries of the largest model.")
def main(runs: int, device: str, seeds: int, entries: float) -> None:
    """Times the default sizes of every regime with SGD and Adam, cell by cell and in stacks, taking turns."""
    if device == "cuda" and not torch.cuda.is_available():
        raise click.UsageError("no CUDA device is available; use --device cpu")
    rows = []
    for regime in REGIMES:
        for rule in ("sgd", "adam"):
            setup = job(regime, rule, "mup", largest=entries, seeds=seeds).setup()
            todo, both = cells(setup), (0, stacks.CALLS[device])
            times = [[seconds(setup, todo, device, calls) for calls in both] for _ in range(runs + 1)][1:]
            single, stacked = (statistics.median(t) for t in zip(*times, strict=True))
            count = len(stacks.stacks(setup, todo, device, room(device)))
            shown = (f"{len(todo)} -> {count}", f"{single:.2f} s", f"{stacked:.2f} s", f"{single / stacked:.2f}")
            rows.append((regime, rule, worth(setup, device, runs), *shown))
    header = ("regime", "optimizer", "calls are worth", "trainings", "cell by cell", "stacked", "ratio")
    click.echo(tabulate(rows, header, disable_numparse=True))


if __name__ == "__main__":
    main()
