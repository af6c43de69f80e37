"""Pools that execute tasks: this process, or the workers of a Dask cluster. Both have the same interface.

A pool is called with tasks and yields each task with its result as soon as the result exists. A task is a function at
module level with its arguments. It receives its device from the pool, keeps no state and writes no files; the caller
stores the results. Read next: ``runs.py`` (cells as tasks), ``store.py`` (keeps results).
"""

from __future__ import annotations

import logging
import os
import platform
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import torch

from scaling_algebra.errors import UsageError, describe_error, missing_package_error
from scaling_algebra.verify.hardware import SHARED, Hardware, use_one_thread

TRIES = 3
"""Number of workers on which a task may fail or die before the pool gives it up."""
WORTH = 2.0
"""Seconds of work in this process before workers are started, and half of the least work in seconds that must remain
for them. 0 disables work in this process."""
REACHED = 5.0
"""Timeout in seconds for the answer of a scheduler."""
PATIENCE = 300.0
"""Seconds without any worker after which a run is aborted."""


@dataclass(frozen=True)
class Work:
    """A task that any process can execute.

    Attributes:
        name: its name in messages.
        call: a function at module level, called with the ``Hardware`` of the process and ``arguments``.
        arguments: the arguments of ``call`` after the hardware.
        cost: the expected cost in any unit; expensive tasks are started first.
    """

    name: str
    call: Callable[..., Any]
    arguments: tuple[Any, ...]
    cost: float = 1.0


@dataclass(frozen=True)
class Failed:
    """A task that failed; a pool yields this in place of its result.

    Attributes:
        task: the task.
        why: the reason for the failure.
    """

    task: Work
    why: str

    def __str__(self) -> str:
        return f"{self.task.name} failed: {self.why}"


class Here:
    """A pool without workers: it executes the tasks in this process, one after the other in the given order."""

    def __init__(self, hardware: Hardware) -> None:
        self.hardware, self.workers = hardware, 1

    @property
    def free(self) -> int | None:
        """Free memory in bytes that a task may use; None if it is unknown."""
        return self.hardware.free

    def __call__(self, tasks: Iterable[Work]) -> Iterator[tuple[Work, Any]]:
        """Executes the tasks, and yields each with its result, or with a ``Failed`` if it raised an exception.

        Raises:
            UsageError: a task failed for a reason that the user has to mend, such as too little memory.
        """
        for task in tasks:
            yield task, self._try_task(task)

    def _try_task(self, task: Work) -> Any:
        try:
            return run_task(get_versions(), self.hardware, task.call, *task.arguments)
        except UsageError:
            raise
        except Exception as error:
            return Failed(task, describe_error(error))


class Cluster(Here):
    """The workers of a Dask cluster. Each executes one task at a time, so that a worker that dies takes no other task
    with it.

    Workers of this machine take seconds to start. On a CPU this process therefore executes cheap tasks itself until the
    workers are ready, and starts no workers if the remaining work would take less time than that.

    Args:
        hardware: the device of this process, of the kind that workers must offer.
        workers: number of workers to start.
        connect: starts or finds the workers, and returns a Dask client that is connected to them.
        local: whether the workers run on this machine.
    """

    def __init__(self, hardware: Hardware, workers: int, connect: Callable[[], Any], local: bool) -> None:
        super().__init__(hardware)
        self.workers, self._connect, self._local = workers, connect, local
        self._thread = ThreadPoolExecutor(1)
        self._client: Future[Any] | None = None
        self._spent = self._cost = 0.0

    def close(self) -> None:
        """Closes the connection and stops the workers that were started for it."""
        with suppress(Exception):
            if self._client is not None:
                client = self._client.result()
                if self._local:
                    client.cluster.close()
                client.close()
        self._thread.shutdown()

    @property
    def free(self) -> int | None:
        free = self.hardware.free if self._local else None
        return free if free is None or self.hardware.kind != "cpu" else free // self.workers

    def __call__(self, tasks: Iterable[Work]) -> Iterator[tuple[Work, Any]]:
        waiting = deque(sorted(tasks, key=lambda task: task.cost))
        left = sum(task.cost for task in waiting)
        alone = self._local and self.hardware.kind == "cpu" and WORTH > 0
        while waiting and alone and not (self._client and self._client.done()):
            task, began = waiting.popleft(), time.perf_counter()
            result = self._try_task(task)
            self._spent, self._cost = self._spent + time.perf_counter() - began, self._cost + task.cost
            left -= task.cost
            if self._client is None and min(self._spent, self._spent * left / self._cost / 2) > WORTH:
                self._client = self._thread.submit(self._connect)
            yield task, result
        if waiting:
            self._client = self._client or self._thread.submit(self._connect)
            yield from self._spread(self._client.result(), waiting)

    def _spread(self, client: Any, waiting: deque[Work]) -> Iterator[tuple[Work, Any]]:
        there = Hardware(self.hardware.kind, self.hardware.most)
        running: dict[Any, Work] = {}
        ended: SimpleQueue[Any] = SimpleQueue()
        what = {"resources": {there.kind: 1}, "retries": TRIES - 1, "pure": False}
        looked, seen, ready = -1.0, time.monotonic(), None
        try:
            while waiting or running or ready:
                if (now := time.monotonic()) - looked > EVERY:
                    looked, self.workers = now, self._places(client)
                    seen = now if self.workers else seen
                while waiting and len(running) < self.workers:
                    task = waiting.pop()
                    work = (get_versions(), there, task.call, *task.arguments)
                    future = client.submit(
                        run_task, *work, key=f"{task.name}-{uuid.uuid4().hex}", priority=task.cost, **what
                    )
                    running[future] = task
                    future.add_done_callback(ended.put)
                if ready:  # the workers are busy meanwhile
                    yield ready
                    ready = None
                    continue
                with suppress(Empty):
                    future = ended.get(timeout=EVERY)
                    ready = running[future], self._result(future, running.pop(future))
                if now - seen > PATIENCE:
                    raise UsageError(
                        f"no worker for {PATIENCE:.0f} s; start workers and repeat the command to continue"
                    )
        finally:
            with suppress(Exception):
                client.cancel(list(running))

    def _places(self, client: Any) -> int:
        """Counts the workers that offer the required kind of device.

        Raises:
            UsageError: there are workers, but none offers the device; or the scheduler does not answer any more.
        """
        kind = self.hardware.kind
        try:
            workers = client.scheduler_info()["workers"].values()
        except (OSError, RuntimeError):
            raise UsageError(LOST) from None
        fit = sum(bool(worker["resources"].get(kind)) for worker in workers)
        if workers and not fit:
            raise UsageError(f"no worker of the scheduler offers {kind}; start workers with --resources {kind}=1")
        return fit

    def _result(self, future: Any, task: Work) -> Any:
        """Returns the result of a task whose Dask future is finished, or a ``Failed`` if it raised an exception.

        Raises:
            UsageError: as ``run_task``; also if the scheduler is gone or a worker lacks the package.
        """
        from distributed import KilledWorker

        if future.status in ("cancelled", "lost"):
            raise UsageError(LOST)
        error = future.exception()
        if error is None:
            return future.result()
        if isinstance(error, UsageError):
            raise error
        if isinstance(error, ImportError):
            raise UsageError(f"a worker cannot load its task ({error}); install the same version of scalecalc there")
        return Failed(
            task,
            f"{TRIES} workers died while executing it" if isinstance(error, KilledWorker) else describe_error(error),
        )


EVERY = 1.0
"""Interval in seconds at which the workers are counted."""
MALLOC = {"ARENA_MAX": 1, "MMAP_THRESHOLD_": 2**25, "TRIM_THRESHOLD_": 2**30}
"""Settings of the memory allocator of a worker: it keeps freed memory, because every step requests the same sizes
again.

With Dask's own settings a worker spends a third of its time on page faults.
"""
LOST = "the connection to the scheduler is lost; start one and repeat the command to continue"


def get_versions() -> dict[str, str]:
    """Returns the versions of the packages on which measured numbers depend."""
    return {"scalecalc": version("scalecalc"), "torch": torch.__version__}


def run_task(asked: dict[str, str], hardware: Hardware, call: Callable[..., Any], *arguments: Any) -> Any:
    """Executes a task in the current process and returns its result.

    Args:
        asked: versions of the packages in the process that submitted the task.
        hardware: the device to use.
        call: the function of the task.
        *arguments: its arguments after the hardware.

    Raises:
        UsageError: other versions are installed here.
    """
    if (here := get_versions()) != asked:
        pairs = ", ".join(f"{name} {here[name]} and not {asked[name]}" for name in here if here[name] != asked[name])
        raise UsageError(f"a worker on {platform.node()} has {pairs}; install the versions of this machine there")
    with use_one_thread():
        return call(hardware, *arguments)


@contextmanager
def open_pool(
    device: str = "auto", most: int | None = None, workers: int | None = None, scheduler: str | None = None
) -> Iterator[Here]:
    """Opens a pool: this process, ``workers`` processes of this machine, or the cluster of a scheduler.

    Args:
        device: as for ``Hardware.of``; ``cuda`` assigns the devices to the processes in turn.
        most: maximum memory in bytes for the replicas that are trained at once.
        workers: number of processes to start on this machine.
        scheduler: address of a Dask scheduler, or the file that it wrote.

    Raises:
        UsageError: there is no such device or scheduler, or Dask is not installed.
    """
    if workers is None and scheduler is None:
        yield Here(Hardware.of(device, most))
        return
    try:
        import distributed
    except ImportError:
        raise missing_package_error(
            "--workers" if scheduler is None else "--scheduler", "distributed", "cluster"
        ) from None
    for name in ("distributed", "distributed.client"):  # errors are reported in one line instead
        logging.getLogger(name).setLevel(logging.CRITICAL)
    if scheduler is None:
        hardware = Hardware.of(device, most)
        cluster = Cluster(hardware, workers or 1, partial(_start_workers, hardware, workers or 1), local=True)
    else:
        where = {"scheduler_file": scheduler} if Path(scheduler).is_file() else {"address": scheduler}
        try:
            client = distributed.Client(**where, timeout=REACHED, set_as_default=False)
        except Exception as error:  # a file that is empty or was not written by Dask may raise any error
            why = describe_error(error) if str(error) else "the file does not name a scheduler"
            raise UsageError(f"cannot reach a scheduler at {scheduler!r}: {why}; give its address") from None
        hardware = Hardware("cuda" if device.startswith("cuda") else "cpu", most)
        cluster = Cluster(hardware, 1, lambda: client, local=False)
    with closing(cluster):
        yield cluster


def _start_workers(hardware: Hardware, workers: int) -> Any:
    """Starts worker processes on this machine, and returns a Dask client that is connected to them.

    A worker that was killed counts as lost only after a day, so that it has time to restart.
    """
    import dask
    from distributed import Client, Nanny, Scheduler, SpecCluster

    environ = {f"distributed.nanny.pre-spawn-environ.MALLOC_{name}": value for name, value in MALLOC.items()}
    dask.config.set({"distributed.deploy.lost-worker-timeout": "1 day", **environ})
    told: dict[str, Any] = {"host": "127.0.0.1", "protocol": "tcp://", "dashboard": False}
    quiet, http = {"silence_logs": logging.CRITICAL}, {"dashboard_address": "127.0.0.1:0"}
    one = {"nthreads": 1, "memory_limit": 0, "resources": {hardware.kind: 1}, **told, **quiet}
    specs = {
        k: {"cls": Nanny, "options": {**one, "env": build_worker_environment(hardware, k, workers)}}
        for k in range(workers)
    }
    scheduler = {"cls": Scheduler, "options": {"allowed_failures": TRIES - 1, "port": 0, **told, **http}}
    return Client(SpecCluster(specs, scheduler, **quiet), set_as_default=False)


def build_worker_environment(hardware: Hardware, k: int, workers: int) -> dict[str, str]:
    """Returns the environment variables of worker k: the one CUDA device it sees, and the number of workers that
    share it."""
    if hardware.kind == "cpu":
        return {}
    chosen = hardware.device.partition(":")[2]
    count = 1 if chosen else torch.cuda.device_count()
    index = int(chosen) if chosen else k % count
    names = [x for x in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if x]
    shared = len(range(k % count, workers, count))
    return {"CUDA_VISIBLE_DEVICES": names[index] if names else str(index), SHARED: str(shared)}
