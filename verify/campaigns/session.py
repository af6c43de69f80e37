"""Does all runs of a plan on some hardware, with progress."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from scaling_algebra.errors import UsageError, amount
from scaling_algebra.verify.hardware import Hardware
from scaling_algebra.verify.measuring import runs
from scaling_algebra.verify.measuring.cells import RunCell, Setup, cells, cost, kept
from scaling_algebra.verify.measuring.pool import Failed, Here
from scaling_algebra.verify.measuring.store import Store

from .plans import Job, distinct

SIZED = re.compile(r"\w+-n(\d+)-t(\d+)-")
"""Size and steps in the name of a cell (``Setup.name``)."""


@dataclass
class Session:
    """Where runs are kept, and who does them.

    Attributes:
        shard: (i, n): only the i-th of n parts of all cells, from 1, each of about the same cost.
        failed: cells that could not be done.
    """

    store: Store
    pool: Here
    shard: tuple[int, int] = (1, 1)
    interrupted: bool = False
    failed: list[Failed] = field(default_factory=list)

    def check(self, jobs: Sequence[Job]) -> None:
        """Raises UsageError or Infeasible for a run that cannot be done here, before anything is written or trained."""
        self.todo(jobs)

    def elsewhere(self, jobs: Sequence[Job]) -> str:
        """Differences between this machine and the one where these runs were begun; empty if there are none."""
        here = Hardware().described()
        begun = next(filter(None, (self.store.environment(job.name) for job in jobs)), {})
        changed = [k for k in ("torch", "machine") if here[k] not in begun.get(k, here[k]).split("; ")]
        return "; ".join(f"begun with {k} {begun[k]}, goes on with {here[k]}" for k in changed)

    def check_stored(self, jobs: Sequence[Job]) -> None:
        """Raises UsageError if the store holds a run, size or number of steps that none of these runs has."""
        planned = {(job.name, str(n), str(job.steps)) for job in jobs for n in job.sizes}
        for run, cell in self.store.names():
            if (at := SIZED.match(cell)) and (run, *at.groups()) not in planned:
                stored = f"{run} at n={at[1]} with {amount(int(at[2]), 'step')}"
                raise UsageError(f"plan.json is the plan of another run: it has no {stored}, as is stored beside it; "
                                 "put its own plan back, or begin with another -o DIR")  # fmt: skip

    def todo(self, jobs: Sequence[Job]) -> list[tuple[Setup, RunCell]]:
        """All cells of this part that are not in the store, and the first of a run whose circumstances are not: it
        tells them.

        Raises:
            UsageError, Infeasible: one cannot be done here.
        """
        setups, (part, parts) = derived(distinct(jobs, "the plan")), self.shard
        every = [(setup, cell) for setup in setups for cell in cells(setup)]
        if parts > 1:
            every = sorted(every, key=lambda item: -cost(*item))[part - 1 :: parts]
        lost = {setup.run for setup in setups if not self.store.environment(setup.run)}
        again = {setup.run: cell for setup, cell in reversed(every) if setup.run in lost}
        missing = [x for x in every if again.get(x[0].run) == x[1] or kept(*x, self.store) is None]
        for setup in {setup.run: setup for setup, _ in missing}.values():
            runs.check(setup, self.pool.hardware.most, self.pool.free)
        return missing

    def perform(self, jobs: Sequence[Job]) -> None:
        """Does all cells of this part that are not in the store; an interrupt ends it, nothing is lost."""
        began, count = time.monotonic(), 0
        with progress_bar() as bar:
            line = bar.add_task("starting", total=None)

            def progress(done: float, total: float, what: str | Failed) -> None:
                nonlocal count
                count += 1
                if isinstance(what, Failed):
                    said = f"scalecalc: {what}; the run goes on"
                    bar.console.print(said, soft_wrap=True, markup=False, highlight=False)
                minute = f"{60 * count / max(1e-9, time.monotonic() - began):.0f} cells a minute"
                who = f"{self.pool.workers} workers, {minute}" if self.pool.workers > 1 else minute
                bar.update(line, total=total, completed=done, description=f"{what}; {who}")

            try:
                self.failed += runs.perform(self.todo(jobs), self.pool, self.store, progress)
            except KeyboardInterrupt:
                self.interrupted = True


def derived(jobs: Sequence[Job]) -> list[Setup]:
    """Every run as it is trained.

    Raises:
        UsageError, Infeasible: as ``derive``; where there are several runs, the message of the first names the run.
    """
    setups = []
    for job in jobs:
        try:
            setups.append(job.setup())
        except UsageError as reason:
            raise UsageError(f"{job.name}: {reason}" if len(jobs) > 1 else str(reason)) from None
    return setups


def progress_bar() -> Progress:
    """On stderr; empty where that is not a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
