"""The machine that trains: device, memory, threads and random streams. Independent of what is trained."""

from __future__ import annotations

import gc
import os
import platform
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from scaling_algebra.errors import UsageError

SHARED = "SCALECALC_SHARED"
"""Environment variable of a worker process: how many workers share its device."""
CHUNK = 2**28
"""Memory (bytes) for the replicas that a CPU trains at once; with less, the overhead of calls dominates, with more,
that of allocating memory."""


@dataclass(frozen=True)
class Hardware:
    """A device, with a limit on the memory that training may use on it.

    Attributes:
        device: name in torch: ``cpu``, ``cuda`` or one of several, ``cuda:3``.
        most: maximum memory in bytes for the replicas trained at the same time; None for the default.
    """

    device: str = "cpu"
    most: int | None = None

    @classmethod
    def of(cls, name: str = "auto", most: int | None = None) -> Hardware:
        """Returns the device called ``auto`` (CUDA if there is one), ``cpu``, ``cuda`` or ``cuda:3``.

        Raises:
            UsageError: this machine has no such device.
        """
        kind, _, index = name.partition(":")
        if kind not in ("auto", "cpu", "cuda") or (":" in name and (kind != "cuda" or not index.isdecimal())):
            raise UsageError(f"no device named {name!r}; use auto, cpu, cuda or cuda:N")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if kind == "cuda" and int(index or 0) >= count:
            here = f"there are {count}, from cuda:0" if count else "no CUDA device is available"
            raise UsageError(f"there is no device {name}: {here}; use --device cpu or auto")
        return cls(name if kind == "cuda" else "cuda" if count and kind == "auto" else "cpu", most)

    @property
    def kind(self) -> str:
        """``cpu`` or ``cuda``."""
        return self.device.partition(":")[0]

    @property
    def room(self) -> int:
        """Amount of memory in bytes that may be used for the replicas trained together: the limit ``most``, or a
        default."""
        free = CHUNK
        if self.device != "cpu":
            kept = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
            free = int(0.7 * (torch.cuda.mem_get_info(self.device)[0] + kept)) // int(os.environ.get(SHARED, 1))
        return free if self.most is None else min(self.most, free)

    @property
    def free(self) -> int | None:
        """Free memory (bytes); None if the system does not tell."""
        if self.device != "cpu":
            return int(torch.cuda.mem_get_info(self.device)[0])
        return get_free_memory()

    def release_memory(self) -> None:
        """Releases memory that is no longer used."""
        gc.collect()
        if self.device != "cpu":
            torch.cuda.empty_cache()

    @property
    def peak_memory(self) -> int | None:
        """Peak memory (bytes) so far; None if the system does not tell."""
        if self.device != "cpu":
            return int(torch.cuda.max_memory_allocated(self.device))
        try:
            import resource  # Windows has none
        except ImportError:
            return None
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

    def describe(self) -> dict[str, Any]:
        """Returns device, machine and versions, for reports."""
        return {
            "device": "cpu" if self.device == "cpu" else torch.cuda.get_device_name(self.device),
            "machine": describe_machine(),
            "torch": torch.__version__,
            "python": sys.version.split()[0],
        }


NO_ROOM = ("out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
"""Texts in torch's errors when memory runs out; an illegal memory access has none of them."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that the machine or its device ran out of memory."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(said in str(error) for said in NO_ROOM)
    )


def get_free_memory() -> int | None:
    """Returns the free main memory in bytes, also within this process's cgroup; None if the system does not tell."""
    limits = []
    with suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        limits += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")]
    with suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        most = int((group / "memory.max").read_text(encoding="utf-8"))
        limits.append(max(0, most - int((group / "memory.current").read_text(encoding="utf-8"))))
    return min(limits, default=None)


def describe_machine() -> str:
    """Returns the name of the CPU, if the system tells it, and the number of cores."""
    name = platform.processor() or platform.machine()
    with suppress(OSError):
        for line in reversed(Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()):
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
    return f"{name}, {os.cpu_count()} cores"


@contextmanager
def use_one_thread() -> Iterator[None]:
    """Restricts torch to one thread inside the block, so that sums have a fixed order and results are the same bytes
    on any machine. Several cores are used by several workers."""
    usual = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(usual)


def seed_generators(seeds: Iterable[int], device: str) -> list[torch.Generator]:
    """Returns a random generator for each seed."""
    return [torch.Generator(device).manual_seed(seed) for seed in seeds]
