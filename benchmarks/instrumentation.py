"""Prints what measuring costs: a training step that records every named quantity, over the bare training step.

The bare step is the model's forward pass, autograd's backward pass and the optimizer's step; nothing is recorded.
Run: ``python benchmarks/instrumentation.py [--runs 9] [--device cpu|cuda] [--entries 7.2e6]``.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import click
import torch
from tabulate import tabulate

from scaling_algebra.spec.axes import REGIMES
from scaling_algebra.spec.configuration import Configuration
from scaling_algebra.verify.campaigns.plans import Effort, job
from scaling_algebra.verify.hardware import Hardware
from scaling_algebra.verify.measuring.cells import TOGETHER, Setup
from scaling_algebra.verify.measuring.runs import replica_bytes
from scaling_algebra.verify.measuring.sizes import LARGEST_ELEMENTS
from scaling_algebra.verify.measuring.training import train_network
from scaling_algebra.verify.networks.reading import TorchNetwork
from scaling_algebra.verify.networks.replicas import Draw
from scaling_algebra.verify.networks.scales import LOSS_SLOPE

STEPS = 4


def user_time() -> float:
    """CPU seconds of this process; with the kernel's on Windows, which does not tell them apart finely."""
    try:
        import resource
    except ImportError:
        return time.process_time()
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime


def seconds(calls: Sequence[Callable[[], object]], device: str, runs: int) -> list[float]:
    """Median time of every call, taking turns, so that a slow spell of the machine meets all of them.

    On a CPU it is user time: the kernel's time for fresh memory varies tenfold from call to call on a virtual machine.
    """
    clock = time.perf_counter if device == "cuda" else user_time
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(runs + 1):  # the first one warms up
        for call, seen in zip(calls, times, strict=True):
            start = clock()
            call()
            if device == "cuda":
                torch.cuda.synchronize()
            seen.append(clock() - start)
    return [statistics.median(seen[1:]) for seen in times]


def step_times(setup: Setup, size: int, replicas: int, device: str, runs: int) -> list[float]:
    """Seconds of a bare and of a measured step of so many replicas, making the model apart."""
    draw = Draw(setup.dims(size), range(1, replicas + 1), range(1, replicas + 1), device)
    setup, d = replace(setup, steps=STEPS - 1), setup.derivation

    def make() -> TorchNetwork:
        return TorchNetwork(d.network, draw, d.scaling)

    def bare() -> None:
        model = make()
        stepper = model.optimizer(d.optimizer)
        for step in range(STEPS):
            stepper.zero_grad()
            (LOSS_SLOPE * model().sum()).backward()
            if step < STEPS - 1:  # as below: the last state is measured, too
                stepper.step()

    def measured() -> None:
        train_network(setup, draw)

    making, *both = seconds([make, bare, measured], device, runs)
    return [(t - making) / STEPS for t in both]


@click.command()
@click.option("--runs", default=9, show_default=True, help="Repetitions; medians are printed.")
@click.option("--device", default="cpu", show_default=True, type=click.Choice(["cpu", "cuda"]))
@click.option("--entries", default=LARGEST_ELEMENTS, show_default=True, help="Weight entries of the largest model.")
def main(runs: int, device: str, entries: float) -> None:
    """Times every regime with SGD and Adam: one replica of the largest size, and a whole run with sizes, seeds and
    replicas at once as ``verify`` plans them."""
    if device == "cuda" and not torch.cuda.is_available():
        raise click.UsageError("no CUDA device is available; use --device cpu")
    torch.set_num_threads(1)
    rows = []
    for regime in REGIMES:
        for rule in ("sgd", "adam"):
            setup = job(Configuration.of(regime, rule, "mup"), Effort(largest=entries)).setup()
            last = len(setup.sizes) - 1
            dims, times = setup.dims(last), step_times(setup, last, 1, device, runs)
            whole = [0.0, 0.0]
            for size, count in enumerate(setup.seeds):
                together = max(1, min(TOGETHER, count, Hardware(device).room // replica_bytes(setup, setup.dims(size))))
                each = step_times(setup, size, together, device, runs)
                whole = [w + t * count / together for w, t in zip(whole, each, strict=True)]
            size = ", ".join(f"{axis}={d}" for axis, d in dims.items())
            shown = [f"{1e3 * t:.1f} ms" for t in times]
            ratios = [f"{measured / bare:.2f}" for bare, measured in (times, whole)]
            rows.append((regime, rule, size, *shown, *ratios))
    header = ("regime", "optimizer", "size", "bare step", "measured step", "ratio", "ratio, whole run")
    click.echo(tabulate(rows, header, disable_numparse=True))


if __name__ == "__main__":
    main()
