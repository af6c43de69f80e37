"""Executes all runs of a plan on given hardware and displays the progress."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from scaling_algebra.errors import UsageError, count_noun
from scaling_algebra.verify.hardware import Hardware
from scaling_algebra.verify.measuring import runs
from scaling_algebra.verify.measuring.cells import RunCell, Setup, estimate_cost, list_cells, load_record
from scaling_algebra.verify.measuring.pool import Failed, Here
from scaling_algebra.verify.measuring.store import Store

from .plans import Job, remove_duplicates

SIZED = re.compile(r"\w+-n(\d+)-t(\d+)-")
"""Matches the name of a cell (``Setup.name``); the groups are its size and its number of steps."""


@dataclass
class Session:
    """The execution of the runs of a plan: a store for the results, and the pool that trains.

    Attributes:
        store: where results are kept.
        pool: the processes that train the cells.
        shard: (i, n): execute only the i-th of n parts of all cells (groups of replicas), counted from 1. All parts
            take about the same time.
        interrupted: whether the user interrupted the session.
        failed: cells that could not be trained.
    """

    store: Store
    pool: Here
    shard: tuple[int, int] = (1, 1)
    interrupted: bool = False
    failed: list[Failed] = field(default_factory=list)

    def check(self, jobs: Sequence[Job]) -> None:
        """Checks that all runs can be executed here, before anything is written or trained.

        Raises:
            UsageError, Infeasible: a run cannot be executed here.
        """
        self.todo(jobs)

    def elsewhere(self, jobs: Sequence[Job]) -> str:
        """Describes how this machine and its torch version differ from those with which the stored results were
        measured; empty if they do not.
        """
        here = Hardware().describe()
        begun = next(filter(None, (self.store.environment(job.name) for job in jobs)), {})
        changed = [k for k in ("torch", "machine") if here[k] not in begun.get(k, here[k]).split("; ")]
        return "; ".join(f"begun with {k} {begun[k]}, goes on with {here[k]}" for k in changed)

    def check_stored(self, jobs: Sequence[Job]) -> None:
        """Checks that the plan fits the store: results are stored only for runs, sizes and numbers of steps that are in
        the plan.

        Raises:
            UsageError: there are results of another run; the message names it.
        """
        planned = {(job.name, str(n), str(job.steps)) for job in jobs for n in job.sizes}
        for run, cell in self.store.names():
            if (at := SIZED.match(cell)) and (run, *at.groups()) not in planned:
                stored = f"{run} at n={at[1]} with {count_noun(int(at[2]), 'step')}"
                raise UsageError(f"plan.json is the plan of another run: it has no {stored}, as is stored beside it; "
                                 "put its own plan back, or begin with another -o DIR")  # fmt: skip

    def todo(self, jobs: Sequence[Job]) -> list[tuple[Setup, RunCell]]:
        """Lists the cells (groups of replicas) of this shard that are still to be trained, since they are not in the
        store.

        If the store lacks the environment of a run, the first cell of that run is trained again to record it.

        Raises:
            UsageError, Infeasible: a run cannot be executed here.
        """
        setups, (part, parts) = derive_setups(remove_duplicates(jobs, "the plan")), self.shard
        every = [(setup, cell) for setup in setups for cell in list_cells(setup)]
        if parts > 1:
            every = sorted(every, key=lambda item: -estimate_cost(*item))[part - 1 :: parts]
        lost = {setup.run for setup in setups if not self.store.environment(setup.run)}
        again = {setup.run: cell for setup, cell in reversed(every) if setup.run in lost}
        missing = [x for x in every if again.get(x[0].run) == x[1] or load_record(*x, self.store) is None]
        for setup in {setup.run: setup for setup, _ in missing}.values():
            runs.check_run(setup, self.pool.hardware.most, self.pool.free)
        return missing

    def perform(self, jobs: Sequence[Job]) -> None:
        """Trains all cells (groups of replicas) of this shard that are not in the store, and stores what they measure.

        An interrupt ends the session without loss of results.
        """
        began, count = time.monotonic(), 0
        with build_progress_bar() as bar:
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
                self.failed += runs.train_cells(self.todo(jobs), self.pool, self.store, progress)
            except KeyboardInterrupt:
                self.interrupted = True


def derive_setups(jobs: Sequence[Job]) -> list[Setup]:
    """Derives the powers with which every run is trained, and returns the runs with them, ready to be trained.

    Raises:
        UsageError, Infeasible: as ``derive``. If there are several runs, the message names the first one that fails.
    """
    setups = []
    for job in jobs:
        try:
            setups.append(job.setup())
        except UsageError as reason:
            raise UsageError(f"{job.name}: {reason}" if len(jobs) > 1 else str(reason)) from None
    return setups


def build_progress_bar() -> Progress:
    """Makes a progress bar on stderr, which displays nothing if stderr is not a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
