"""Prints what measuring costs: a training step that records every named quantity, over the bare training step.

The bare step is the model's forward pass, autograd's backward pass and the optimizer's step; nothing is recorded.
Run: ``python benchmarks/instrumentation.py [--runs 9] [--device cpu|cuda] [--entries 7.2e6]``.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable, Sequence

import click
import torch
from tabulate import tabulate

from scaling_algebra.axes import REGIMES
from scaling_algebra.verify.campaign import job
from scaling_algebra.verify.model import LOSS_SLOPE, MoEBlock, torch_optimizer
from scaling_algebra.verify.plan import LARGEST_ELEMENTS, dims_at, elements
from scaling_algebra.verify.runs import train

STEPS = 4


def seconds(calls: Sequence[Callable[[], object]], device: str, runs: int) -> list[float]:
    """Median time of every call, taking turns, so that a slow spell of the machine meets all of them.

    On a CPU it is user time: the kernel's time for fresh memory varies tenfold from call to call on a virtual machine.
    """
    clock = time.perf_counter if device == "cuda" else lambda: resource.getrusage(resource.RUSAGE_SELF).ru_utime
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(runs + 1):  # the first one warms up
        for call, seen in zip(calls, times, strict=True):
            start = clock()
            call()
            if device == "cuda":
                torch.cuda.synchronize()
            seen.append(clock() - start)
    return [statistics.median(seen[1:]) for seen in times]


@click.command()
@click.option("--runs", default=9, show_default=True, help="Repetitions; medians are printed.")
@click.option("--device", default="cpu", show_default=True, help="cpu or cuda")
@click.option("--entries", default=LARGEST_ELEMENTS, show_default=True, help="Weight entries of a model.")
def main(runs: int, device: str, entries: float) -> None:
    """Times every regime with SGD and Adam."""
    torch.set_num_threads(1)
    rows = []
    for regime in REGIMES:
        for rule in ("sgd", "adam"):
            setup = job(regime, rule, "mup", largest=entries).setup()
            dims = dims_at(setup.ray, setup.sizes[-1])
            made = (dims, setup.scaling, [1], device)

            def bare(setup=setup, dims=dims, made=made) -> None:
                model = MoEBlock(*made)
                stepper = torch_optimizer(model, dims, setup.scaling, setup.optimizer)
                for step in range(STEPS):
                    stepper.zero_grad()
                    (LOSS_SLOPE * model().sum()).backward()
                    if step < STEPS - 1:  # as below: the last state is measured, too
                        stepper.step()

            def measured(setup=setup, dims=dims) -> None:
                train(dims, setup.scaling, setup.optimizer, [1], STEPS - 1, device)

            making, *both = seconds([lambda made=made: MoEBlock(*made), bare, measured], device, runs)
            times = [t - making for t in both]
            size = ", ".join(f"{axis}={d}" for axis, d in dims.items())
            speed = f"{STEPS * elements(dims) / times[1] / 1e6:.0f}"
            each = [f"{1e3 * t / STEPS:.1f} ms" for t in times]
            rows.append((regime, rule, size, *each, f"{times[1] / times[0]:.2f}", speed))
    header = ("regime", "optimizer", "size", "bare step", "measured step", "ratio", "million entries / s")
    click.echo(tabulate(rows, header, disable_numparse=True))


if __name__ == "__main__":
    main()
