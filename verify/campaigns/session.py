"""Does all runs of a plan on one device, in one or several processes, with progress, and judges what is there.

Read next: ``campaign.py`` (what a run is), ``cells.py`` (how it is cut), ``budget.py`` (how long it takes).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from scaling_algebra.errors import UsageError
from scaling_algebra.verify.measuring import runs
from scaling_algebra.verify.measuring.cells import BLOCK, Cell, Setup, cells, cost, share
from scaling_algebra.verify.measuring.sizes import plan_sizes
from scaling_algebra.verify.measuring.stacks import replica_bytes, stacks
from scaling_algebra.verify.measuring.store import Store

from .budget import LOOKS, SMALLEST, allocate, largest, open_to_noise
from .campaign import Job


@dataclass
class Session:
    """Where and how runs are done.

    Attributes:
        device: ``cpu``, ``cuda`` or ``cuda:0``, checked.
        most: bytes that a batch of replicas may take; None for the default.
        rank, ranks: which process this is, and of how many.
    """

    store: Store
    device: str
    most: int | None = None
    rank: int = 0
    ranks: int = 1
    interrupted: bool = False

    def perform(self, jobs: Sequence[Job]) -> None:
        """Does this process's share of all cells that are not in the store; an interrupt ends it, nothing is lost."""
        todo = [(cost(setup, cell), (job, setup, cell)) for job, setup in self._setups(jobs) for cell in cells(setup)]
        mine = [item for item in share(todo, self.rank, self.ranks) if not self._done(item[0], item[2])]
        total, done = sum(cost(setup, cell) for _, setup, cell in mine), 0
        with _bar() as bar:
            task = bar.add_task("starting", total=total)
            try:
                for job, setup, group in self._stacks(mine):
                    self._cells(job, setup, group, bar, task)
                    done += sum(cost(setup, cell) for cell in group)
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
            UsageError: not even the smallest sizes fit.
        """
        found = list(jobs)
        end = time.monotonic() + time_allowed
        for k, job in enumerate(jobs):

            def changed(new: Job, k: int = k) -> None:
                found[k] = new
                keep(found, True)

            try:
                self._within(job, (end - time.monotonic()) / (len(jobs) - k), changed)
            except KeyboardInterrupt:
                self.interrupted = True
                break
        return found

    def _within(self, job: Job, time_allowed: float, changed: Callable[[Job], None]) -> None:
        end = time.monotonic() + time_allowed
        job.prediction()  # where M > N it takes half a minute
        setup = job.setup()
        speed = self._speed(setup)
        sizes = self._fitting(setup, largest(speed, max(1.0, end - time.monotonic()), job.steps))
        # small cells, because seeds are added in steps of BLOCK
        job = replace(job, sizes=sizes, seeds=(BLOCK,) * len(sizes), looks=LOOKS, together=BLOCK)
        changed(job)
        with _bar() as bar:
            task = bar.add_task("first seeds", total=None)
            for look in range(1, LOOKS + 1):
                setup = job.setup()
                todo = [cell for cell in cells(setup) if not self._done(job, cell)]
                began = time.monotonic()
                self._cells(job, setup, todo, bar, task)
                speed = sum(cost(setup, c) for c in todo) / max(1e-9, time.monotonic() - began)
                undecided = open_to_noise(job.report(self.store).rows)
                left = end - time.monotonic()
                if look == LOOKS or not undecided or left <= 0:
                    break
                spend = left * (0.5 if look < LOOKS - 1 else 0.9) * speed / (job.steps + 1)
                seeds = allocate(setup, job.measured(self.store), undecided, spend)
                if seeds == job.seeds:
                    break
                job = replace(job, seeds=seeds)
                changed(job)
                bar.update(task, description=f"look {look}: {len(undecided)} exponents open")

    def _stacks(self, items: Sequence[tuple[Job, Setup, Cell]]) -> Iterator[tuple[Job, Setup, list[Cell]]]:
        """What is trained together: cells of one job."""
        for _, of_job in groupby(items, key=lambda item: item[0].name):
            same = list(of_job)
            job, setup, _ = same[0]
            for group in stacks(setup, [cell for *_, cell in same], self.device, runs.room(self.device, self.most)):
                yield job, setup, group

    def _done(self, job: Job, cell: Cell) -> bool:
        return self.store.load(job.name, job.setup().name(cell)) is not None

    def _cells(self, job: Job, setup: Setup, todo: Sequence[Cell], bar: Progress, task: TaskID) -> None:
        before = bar.tasks[task].completed

        def progress(done: int, total: int, message: str) -> None:
            bar.update(task, completed=before + done, description=f"{job.name}, {message}")

        try:
            runs.perform(setup, todo, self.device, self.store, job.name, progress, self.most)
        finally:
            self.store.describe(job.name, self.rank, runs.described(self.device, setup))

    def _fitting(self, setup: Setup, entries: float) -> tuple[int, ...]:
        """Sizes up to so many weight entries, or as many as fit the memory.

        Raises:
            UsageError: not even the smallest sizes fit.
        """
        while True:
            sizes = tuple(plan_sizes(setup.ray, None, max(entries, SMALLEST)))
            fitting = replace(setup, sizes=sizes)
            if self.most is None or replica_bytes(fitting, fitting.dims(len(sizes) - 1)) <= self.most:
                return sizes
            if entries < SMALLEST:
                runs.check(fitting, self.most)
            entries *= 0.8

    def _setups(self, jobs: Sequence[Job]) -> list[tuple[Job, Setup]]:
        found = []
        for job in jobs:
            setup = job.setup()
            runs.check(setup, self.most)
            found.append((job, setup))
        names = [job.name for job in jobs]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise UsageError(f"the run {twice[0]} is there twice; leave one out")
        return found

    def _speed(self, setup: Setup) -> float:
        """Weight entries a second (``cells.cost``), tried on a small model."""
        small = self._fitting(setup, 1e6)
        trial = replace(setup, sizes=small, seeds=(0,) * (len(small) - 1) + (BLOCK,), standard=None)
        todo = [cell for cell in cells(trial) if cell.kind == "values"]
        took = []
        for _ in range(2):  # the first one warms up
            began = time.perf_counter()
            runs.perform(trial, todo, self.device, Store(), "trial", most=self.most)
            took.append(time.perf_counter() - began)
        return sum(cost(trial, c) for c in todo) / min(took)


def device_of(name: str) -> str:
    """The torch device for ``auto``, ``cpu`` or ``cuda``; each process of a node takes its own GPU.

    Raises:
        UsageError: no such device here.
    """
    found = runs._device(name)
    local = os.environ.get("LOCAL_RANK", "")
    return f"{found}:{int(local) % torch.cuda.device_count()}" if found == "cuda" and local.isdigit() else found


def _bar() -> Progress:
    """On stderr; nothing where that is not a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
