"""Prints how long the products of kernels of slow questions take, each question in a fresh process.

A question is answered once, and the products that it asks for are kept; then every product is made again, each time
with nothing remembered. ``--against DIR`` times another checkout's engine on products of the same kind, for ratios.
Run: ``python benchmarks/products.py [--runs 3] [--every 10] [--against DIR] [NAME ...]``.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import click
from fresh import fresh
from tabulate import tabulate

QUESTIONS = {
    "muP II sgd": "--regime II --optimizer sgd --steps 2",
    "muP II adam, 3 steps": "--regime II --optimizer adam --steps 3",
    "MSSP II sgd, maximal": "--regime II --optimizer sgd --parameterization mssp --readout-init maximal --steps 2",
    "moe-rmsnorm III adam": "--architecture moe-rmsnorm --regime III --optimizer adam --steps 1",
    "swiglu III adam": "--architecture swiglu --regime III --optimizer adam --steps 1",
    "attention-latent I adam": "--architecture attention-latent --regime I --optimizer adam --steps 1",
}
"""Slow ``signals``, by name."""

TIMED = """
import contextlib, io, json, sys, time
from scaling_algebra.counting import canonical, kernels, store
from scaling_algebra.cli import main

args, every, runs, seconds = json.loads(sys.argv[1])
calls, multiply, end = [], store.multiply, time.process_time() + seconds

def kept(*args):
    if time.process_time() > end:
        raise SystemExit
    calls.append(args)
    return multiply(*args)

store.multiply = kept
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    try:
        main(["signals", *args])
    except SystemExit:
        pass
caches = [f for m in (canonical, kernels) for f in vars(m).values() if hasattr(f, "cache_clear")]
times = []
for _ in range(runs):
    for cache in caches:
        cache.cache_clear()
    nodes, start = 0, time.process_time()
    for product in calls[::every]:
        try:
            nodes += multiply(*product).nodes
        except kernels.Exhausted:
            pass
    times.append(time.process_time() - start)
print(json.dumps([len(calls[::every]), nodes, times]))
"""


def timed(folder: Path, args: str, every: int, runs: int, seconds: float) -> tuple[int, int, float]:
    """Products, nodes of their searches, and median CPU seconds."""
    arguments = json.dumps([args.split(), every, runs, seconds])
    spent = fresh(TIMED, arguments, folder=folder)
    if spent.status:
        raise click.ClickException(spent.err)
    products, nodes, seconds_of_runs = json.loads(spent.out.splitlines()[-1])
    return products, nodes, statistics.median(seconds_of_runs)


@click.command()
@click.argument("names", nargs=-1)
@click.option("--runs", default=3, show_default=True, help="Runs per figure.")
@click.option("--every", default=10, show_default=True, help="Time every so many products.")
@click.option("--seconds", default=60.0, show_default=True, help="Most CPU seconds for a question.")
@click.option("--against", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Another checkout.")
def main(names: tuple[str, ...], runs: int, every: int, seconds: float, against: Path | None) -> None:
    """Print all figures."""
    rows = []
    for name in names or tuple(QUESTIONS):
        here = timed(Path(__file__).parents[1], QUESTIONS[name], every, runs, seconds)
        row = [name, here[0], here[1], f"{here[2]:.2f}", f"{here[2] / here[0] * 1e6:.0f}"]
        if against is not None:
            there = timed(against.resolve(), QUESTIONS[name], every, runs, seconds)
            row += [f"{there[2] / there[0] * 1e6:.0f}", f"{there[2] / there[0] / (here[2] / here[0]):.1f}"]
        rows.append(row)
    heads = ["products of", "products", "nodes", "median s", "us each", "us each, other", "ratio"]
    print(tabulate(rows, heads[: len(rows[0])], tablefmt="github"))


if __name__ == "__main__":
    main()
