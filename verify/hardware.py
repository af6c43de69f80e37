"""The machine that measures: device, memory, threads and random streams. Knows nothing of what is trained."""

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
"""In the environment of a worker: how many workers share its device."""
CHUNK = 2**28
"""Bytes of memory for the replicas trained at once on a CPU: fewer cost time for calls, more for fresh memory."""


@dataclass(frozen=True)
class Hardware:
    """A device, and how much of its memory may be used.

    Attributes:
        device: of torch: ``cpu``, ``cuda`` or one of several, ``cuda:3``.
        most: bytes that the replicas trained at once may take; None for the default.
    """

    device: str = "cpu"
    most: int | None = None

    @classmethod
    def of(cls, name: str = "auto", most: int | None = None) -> Hardware:
        """The device called ``auto`` (CUDA if there is one), ``cpu``, ``cuda`` or ``cuda:3``.

        Raises:
            UsageError: no such device here.
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
        """Bytes for the replicas that are trained at once."""
        free = CHUNK
        if self.device != "cpu":
            kept = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
            free = int(0.7 * (torch.cuda.mem_get_info(self.device)[0] + kept)) // int(os.environ.get(SHARED, 1))
        return free if self.most is None else min(self.most, free)

    @property
    def free(self) -> int | None:
        """Bytes that are free now; None where the system does not tell."""
        if self.device != "cpu":
            return int(torch.cuda.mem_get_info(self.device)[0])
        return free_memory()

    def forget(self) -> None:
        """Gives memory back that nothing uses."""
        gc.collect()
        if self.device != "cpu":
            torch.cuda.empty_cache()

    @property
    def peak_memory(self) -> int | None:
        """Most bytes that were taken so far; None where the system does not tell."""
        if self.device != "cpu":
            return int(torch.cuda.max_memory_allocated(self.device))
        try:
            import resource  # Windows has none
        except ImportError:
            return None
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

    def described(self) -> dict[str, Any]:
        """Device, machine and versions, for reports."""
        return {
            "device": "cpu" if self.device == "cpu" else torch.cuda.get_device_name(self.device),
            "machine": machine(),
            "torch": torch.__version__,
            "python": sys.version.split()[0],
        }


NO_ROOM = ("out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
"""What torch's errors say where there is no memory; an illegal memory access is none of them."""


def out_of_memory(error: BaseException) -> bool:
    """Did the memory run out, of the machine or of its device?"""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(said in str(error) for said in NO_ROOM)
    )


def free_memory() -> int | None:
    """Bytes of main memory that are free now, in this process's group too; None where the system does not tell."""
    limits = []
    with suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        limits += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")]
    with suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        most = int((group / "memory.max").read_text(encoding="utf-8"))
        limits.append(max(0, most - int((group / "memory.current").read_text(encoding="utf-8"))))
    return min(limits, default=None)


def machine() -> str:
    """The name of the CPU, where the system tells it, and its number of cores."""
    name = platform.processor() or platform.machine()
    with suppress(OSError):
        for line in reversed(Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()):
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
    return f"{name}, {os.cpu_count()} cores"


@contextmanager
def spare_threads() -> Iterator[None]:
    """One thread for torch, on any machine: sums over entries keep their order, so that a cell gives the same bytes
    wherever it is done. What has many cores is filled by many workers."""
    usual = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(usual)


def generators(seeds: Iterable[int], device: str) -> list[torch.Generator]:
    """A random stream for each seed."""
    return [torch.Generator(device).manual_seed(seed) for seed in seeds]
