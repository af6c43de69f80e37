"""Pools: this process, or several of this machine. One interface, so that a run is the same work anywhere.

A pool is called with tasks and yields each with its result as soon as it has one. A task is a function of a module and
its arguments; it gets its device from the pool, keeps no state and writes nothing: what is kept, the caller writes.
Read next: ``runs.py`` (cells as tasks), ``store.py`` (keeps results).
"""

from __future__ import annotations

import os
import signal
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from threading import current_thread, main_thread
from typing import Any

import torch

from scaling_algebra.errors import UsageError, told
from scaling_algebra.verify.hardware import SHARED, Hardware, spare_threads

TRIES = 3
"""Workers that may die of a task before it is given up."""
FRESH = get_context("spawn")
"""Workers begin as new processes: what a device or a thread of this one holds, they do not have."""


@dataclass(frozen=True)
class Work:
    """Work that any process can do.

    Attributes:
        name: in messages.
        call: a function of a module, called with the ``Hardware`` and the arguments.
        cost: in any unit; large ones are begun first.
    """

    name: str
    call: Callable[..., Any]
    arguments: tuple[Any, ...]
    cost: float = 1.0


@dataclass(frozen=True)
class Failed:
    """The reason why a task has no result."""

    task: Work
    why: str

    def __str__(self) -> str:
        return f"{self.task.name} failed: {self.why}"


class Here:
    """This process, one task after the other, as they come."""

    def __init__(self, hardware: Hardware) -> None:
        self.hardware, self.workers = hardware, 1

    @property
    def free(self) -> int | None:
        """Bytes that a task may take; None where nobody knows."""
        return self.hardware.free

    def __call__(self, tasks: Iterable[Work]) -> Iterator[tuple[Work, Any]]:
        """Every task with its result, or with ``Failed``.

        Raises:
            UsageError: what no other try would mend, such as too little memory.
        """
        for task in tasks:
            yield task, done(self.hardware, task)


class Workers(Here):
    """Processes of this machine, each with one task at a time: one that dies takes no other task with it."""

    def __init__(self, hardware: Hardware, workers: int) -> None:
        super().__init__(hardware)
        self.workers = workers
        self._processes: dict[Connection, tuple[BaseProcess, int]] = {}

    @property
    def free(self) -> int | None:
        free = self.hardware.free
        return free if free is None or self.hardware.kind != "cpu" else free // self.workers

    def close(self) -> None:
        """Ends the processes."""
        for place in [*self._processes]:
            self._end(place)

    def __call__(self, tasks: Iterable[Work]) -> Iterator[tuple[Work, Any]]:
        waiting = deque(sorted(tasks, key=lambda task: -task.cost))
        idle = [*self._processes]
        idle += [self._start(k) for k in range(len(idle), min(self.workers, len(waiting)))]
        running, deaths, results = dict[Connection, Work](), Counter[str](), list[tuple[Work, Any]]()
        while waiting or running or results:
            while waiting and idle:
                place, task = idle.pop(), waiting.popleft()
                running[place] = task
                with suppress(OSError):  # it has died, which is seen below
                    place.send((Hardware(self.hardware.kind, self.hardware.most), task))
            yield from results  # the workers are busy meanwhile
            results = []
            for place in (x for x in wait([*running]) if isinstance(x, Connection)) if running else ():
                task = running.pop(place)
                try:
                    result = place.recv()
                except (EOFError, OSError):
                    idle.append(self._start(self._end(place)))
                    deaths[task.name] += 1
                    if deaths[task.name] < TRIES:
                        waiting.append(task)
                        continue
                    result = Failed(task, f"{TRIES} workers died of it")
                else:
                    idle.append(place)
                if isinstance(result, UsageError):
                    raise result
                results.append((task, result))

    def _start(self, k: int) -> Connection:
        """The connection to a new process, the k-th."""
        here, there = FRESH.Pipe()
        process = FRESH.Process(target=served, args=(there,), daemon=True)
        with inherited(visible(self.hardware, k, self.workers)):
            process.start()
        there.close()
        self._processes[here] = process, k
        return here

    def _end(self, place: Connection) -> int:
        """Ends a process; which it was."""
        process, k = self._processes.pop(place)
        process.kill()
        process.join()
        place.close()
        return k


@contextmanager
def inherited(environment: dict[str, str]) -> Iterator[None]:
    """What a process that starts meanwhile begins with: an environment, and that it ignores Ctrl-C on the terminal."""
    before, alone = dict(os.environ), current_thread() is main_thread()
    usual = signal.signal(signal.SIGINT, signal.SIG_IGN) if alone else None
    os.environ.update(environment)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        if alone:
            signal.signal(signal.SIGINT, usual)


def served(place: Connection) -> None:
    """Does tasks until nobody sends any."""
    with suppress(EOFError, OSError):
        while True:
            hardware, task = place.recv()
            try:
                result = done(hardware, task)
            except UsageError as error:
                result = UsageError(str(error))
            place.send(result)


def done(hardware: Hardware, task: Work) -> Any:
    """The result of a task, in whatever process this is; or ``Failed``.

    Raises:
        UsageError: what no other try would mend.
    """
    try:
        with spare_threads():
            return task.call(hardware, *task.arguments)
    except UsageError:
        raise
    except Exception as error:
        return Failed(task, told(error))


@contextmanager
def pool(device: str = "auto", most: int | None = None, workers: int | None = None) -> Iterator[Here]:
    """A pool: this process, or ``workers`` processes of this machine.

    Args:
        device: as of ``Hardware.of``; ``cuda`` gives every process another device, in turn.
        most: bytes that the replicas trained at once may take.

    Raises:
        UsageError: no such device.
    """
    hardware = Hardware.of(device, most)
    if workers is None:
        yield Here(hardware)
        return
    with closing(Workers(hardware, workers)) as made:
        yield made


def visible(hardware: Hardware, k: int, workers: int) -> dict[str, str]:
    """The environment of process k of so many: the one CUDA device that it sees, and how many see it, too."""
    if hardware.kind == "cpu":
        return {}
    chosen = hardware.device.partition(":")[2]
    count = 1 if chosen else torch.cuda.device_count()
    index = int(chosen) if chosen else k % count
    names = [x for x in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if x]
    shared = len(range(k % count, workers, count))
    return {"CUDA_VISIBLE_DEVICES": names[index] if names else str(index), SHARED: str(shared)}
