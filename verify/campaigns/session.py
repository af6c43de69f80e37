"""Does all runs of a plan on some hardware, with progress.

Read next: ``plans.py`` (what a run is), ``cells.py`` (how it is cut), ``budget.py`` (how long it takes).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from scaling_algebra.errors import UsageError
from scaling_algebra.verify.hardware import Hardware
from scaling_algebra.verify.measuring import runs
from scaling_algebra.verify.measuring.cells import BLOCK, RunCell, Setup, cells, cost, kept
from scaling_algebra.verify.measuring.sizes import plan_sizes
from scaling_algebra.verify.measuring.store import Store

from .budget import LEAST_ENTRIES, LOOKS, largest, more_seeds, open_to_noise
from .plans import Job, distinct

SIZED = re.compile(r"\w+-n(\d+)-t(\d+)-")
"""Size and steps in the name of a cell (``Setup.name``)."""


@dataclass
class Session:
    """Where runs are done and kept."""

    store: Store
    hardware: Hardware
    interrupted: bool = False

    def check(self, jobs: Sequence[Job]) -> None:
        """Raises UsageError or Infeasible for a run that cannot be done here, before anything is written or trained."""
        self._setups(jobs)

    def elsewhere(self, jobs: Sequence[Job]) -> str:
        """Differences between this machine and the one where these runs were begun; empty if there are none."""
        here = self.hardware.described()
        begun = next(filter(None, (self.store.environment(job.name) for job in jobs)), {})
        changed = [k for k in ("torch", "machine") if begun.get(k, here[k]) != here[k]]
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
        """All cells that are not in the store."""
        every = ((setup, cell) for setup in self._setups(jobs) for cell in cells(setup))
        return [item for item in every if not self._done(*item)]

    def perform(self, jobs: Sequence[Job]) -> None:
        """Does all cells that are not in the store; an interrupt ends it, nothing is lost."""
        todo = self.todo(jobs)
        total, done = sum(cost(*item) for item in todo), 0
        with progress_bar() as bar:
            task = bar.add_task("starting", total=total)
            try:
                for _, of_job in groupby(todo, key=lambda item: item[0].run):
                    items = list(of_job)
                    self._cells(items[0][0], [cell for _, cell in items], bar, task)
                    done += sum(cost(*item) for item in items)
                    bar.update(task, completed=done, total=total)
            except KeyboardInterrupt:
                self.interrupted = True

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
            task = bar.add_task("first seeds", total=None)
            for look in range(first, LOOKS + 1):
                setup = job.setup()
                todo = [cell for cell in cells(setup) if not self._done(setup, cell)]
                began = time.monotonic()
                self._cells(setup, todo, bar, task)
                speed = sum(cost(setup, c) for c in todo) / max(1e-9, time.monotonic() - began)
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
                bar.update(task, description=f"look {look}: {len(undecided)} exponents open")

    def _done(self, setup: Setup, cell: RunCell) -> bool:
        return kept(setup, cell, self.store) is not None

    def _cells(self, setup: Setup, todo: Sequence[RunCell], bar: Progress, task: TaskID) -> None:
        before = bar.tasks[task].completed

        def progress(done: int, total: int, message: str) -> None:
            bar.update(task, completed=before + done, description=f"{setup.run}, {message}")

        try:
            runs.perform(setup, todo, self.hardware, self.store, progress)
        finally:
            self.store.describe(setup.run, runs.described(self.hardware, setup))

    def _fitting(self, setup: Setup, entries: float) -> tuple[int, ...]:
        """Sizes up to so many weight entries, or as many as fit the memory.

        Raises:
            UsageError: not even the smallest sizes fit.
        """
        most = self.hardware.most
        while True:
            sizes = tuple(plan_sizes(setup.derivation.ray, None, max(entries, LEAST_ENTRIES), setup.network))
            fitting = replace(setup, sizes=sizes)
            if most is None or runs.replica_bytes(fitting, fitting.dims(len(sizes) - 1)) <= most:
                return sizes
            if entries < LEAST_ENTRIES:
                runs.check(fitting, most, self.hardware.free)
            entries *= 0.8

    def _setups(self, jobs: Sequence[Job]) -> list[Setup]:
        setups = derived(distinct(jobs, "the plan"))
        for setup in setups:
            if not all(self._done(setup, cell) for cell in cells(setup)):
                runs.check(setup, self.hardware.most, self.hardware.free)
        return setups

    def _speed(self, setup: Setup) -> float:
        """Weight entries a second (``cells.cost``), tried on a small model."""
        small = self._fitting(setup, 1e6)
        trial = replace(setup, sizes=small, seeds=(0,) * (len(small) - 1) + (BLOCK,), standard=None)
        todo = [cell for cell in cells(trial) if cell.kind == "values"]
        took = []
        for _ in range(2):  # the first one warms up
            began = time.perf_counter()
            runs.perform(trial, todo, self.hardware, Store())
            took.append(time.perf_counter() - began)
        return sum(cost(trial, c) for c in todo) / min(took)


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
