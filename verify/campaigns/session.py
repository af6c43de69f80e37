"""Does all runs of a plan on some hardware, with progress."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from scaling_algebra.errors import UsageError
from scaling_algebra.verify.hardware import Hardware
from scaling_algebra.verify.measuring import runs
from scaling_algebra.verify.measuring.cells import BLOCK, RunCell, Setup, cells, cost, kept
from scaling_algebra.verify.measuring.pool import Failed, Here
from scaling_algebra.verify.measuring.sizes import plan_sizes
from scaling_algebra.verify.measuring.store import Store

from .budget import LEAST_ENTRIES, LOOKS, largest, more_seeds, open_to_noise
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
                stored = f"{run} at n={at[1]} with {at[2]} steps"
                raise UsageError(f"plan.json is the plan of another run: it has no {stored}, as is stored beside it; "
                                 "put its own plan back, or begin with another -o DIR")  # fmt: skip

    def todo(self, jobs: Sequence[Job]) -> list[tuple[Setup, RunCell]]:
        """All cells of this part that are not in the store.

        Raises:
            UsageError, Infeasible: one cannot be done here.
        """
        setups, (part, parts) = derived(distinct(jobs, "the plan")), self.shard
        every = [(setup, cell) for setup in setups for cell in cells(setup)]
        if parts > 1:
            every = sorted(every, key=lambda item: -cost(*item))[part - 1 :: parts]
        missing = [item for item in every if kept(*item, self.store) is None]
        for setup in {setup.run: setup for setup, _ in missing}.values():
            runs.check(setup, self.pool.hardware.most, self.pool.free)
        return missing

    def perform(self, jobs: Sequence[Job]) -> None:
        """Does all cells of this part that are not in the store; an interrupt ends it, nothing is lost."""
        with progress_bar() as bar:
            self._cells(self.todo(jobs), bar, bar.add_task("starting", total=None))

    def within(
        self, jobs: Sequence[Job], time_allowed: float, keep: Callable[[Sequence[Job], bool], None]
    ) -> list[Job]:
        """Measures all runs in about so many seconds; returns them with the sizes and seeds that were used.

        After an interrupt the runs that have not begun keep the sizes and seeds they came with.

        Args:
            keep: called with the runs as they are now, whenever one has changed.

        Raises:
            UsageError, Infeasible: as ``derived``, before anything is trained; not even the smallest sizes fit.
        """
        current = list(jobs)
        derived(jobs)
        end = time.monotonic() + time_allowed
        for k, job in enumerate(jobs):

            def changed(new: Job, k: int = k) -> None:
                current[k] = new
                keep(current, True)

            try:
                self._within(job, (end - time.monotonic()) / (len(jobs) - k), changed)
            except KeyboardInterrupt:
                self.interrupted = True
            if self.interrupted:
                break
        return current

    def _within(self, job: Job, time_allowed: float, changed: Callable[[Job], None]) -> None:
        end = time.monotonic() + time_allowed
        job.prediction()  # where M > N it takes half a minute
        first = 1
        if job.looks == LOOKS:  # begun before an interrupt: its sizes and seeds stay, and it is looked at once more
            first = LOOKS
        else:
            setup = job.setup()
            speed = self._speed(setup)
            sizes = self._fitting(setup, largest(speed, max(1.0, end - time.monotonic()), job.steps))
            # small cells, because seeds are added in steps of BLOCK
            job = replace(job, sizes=sizes, seeds=(BLOCK,) * len(sizes), looks=LOOKS, together=BLOCK)
            changed(job)
        with progress_bar() as bar:
            line = bar.add_task("first seeds", total=None)
            for look in range(first, LOOKS + 1):
                setup = job.setup()
                todo = [(setup, cell) for cell in cells(setup) if kept(setup, cell, self.store) is None]
                began = time.monotonic()
                self._cells(todo, bar, line)
                if self.interrupted:
                    break
                speed = sum(cost(*item) for item in todo) / max(1e-9, time.monotonic() - began)
                undecided = open_to_noise(job.report(self.store).rows)
                left = end - time.monotonic()
                if look == LOOKS or not undecided or left <= 0:
                    break
                spend = left * (0.5 if look < LOOKS - 1 else 0.9) * speed / (job.steps + 1)
                seeds = more_seeds(setup, spend)
                if seeds == job.seeds:
                    break
                job = replace(job, seeds=seeds)
                changed(job)
                bar.update(line, description=f"look {look}: {len(undecided)} exponents open")

    def _cells(self, todo: Sequence[tuple[Setup, RunCell]], bar: Progress, line: TaskID) -> None:
        began, count = time.monotonic(), 0

        def progress(done: float, total: float, what: str | Failed) -> None:
            nonlocal count
            count += 1
            if isinstance(what, Failed):
                bar.console.print(f"scalecalc: {what}; the run goes on", soft_wrap=True, markup=False, highlight=False)
            minute = f"{60 * count / max(1e-9, time.monotonic() - began):.0f} cells a minute"
            who = f"{self.pool.workers} workers, {minute}" if self.pool.workers > 1 else minute
            bar.update(line, total=total, completed=done, description=f"{what}; {who}")

        try:
            self.failed += runs.perform(todo, self.pool, self.store, progress)
        except KeyboardInterrupt:
            self.interrupted = True

    def _fitting(self, setup: Setup, entries: float) -> tuple[int, ...]:
        """Sizes up to so many weight entries, or as many as fit the memory.

        Raises:
            UsageError: not even the smallest sizes fit.
        """
        most = self.pool.hardware.most
        while True:
            sizes = tuple(plan_sizes(setup.derivation.ray, None, max(entries, LEAST_ENTRIES), setup.network))
            fitting = replace(setup, sizes=sizes)
            if most is None or runs.replica_bytes(fitting, fitting.dims(len(sizes) - 1)) <= most:
                return sizes
            if entries < LEAST_ENTRIES:
                runs.check(fitting, most, self.pool.free)
            entries *= 0.8

    def _speed(self, setup: Setup) -> float:
        """Weight entries a second (``cells.cost``) of all workers, tried on a small model."""
        small = self._fitting(setup, 1e6)
        trial = replace(setup, sizes=small, seeds=(0,) * (len(small) - 1) + (BLOCK,), standard=None)
        todo = [cell for cell in cells(trial) if cell.kind == "values"]
        took = []
        for _ in range(2):  # the first one warms up
            began = time.perf_counter()
            runs.perform(((trial, cell) for cell in todo), Here(self.pool.hardware), Store())
            took.append(time.perf_counter() - began)
        return self.pool.workers * sum(cost(trial, c) for c in todo) / min(took)


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
