"""The machine that measures: device, memory, threads and random streams. Knows nothing of what is trained.

Read next: ``measuring/runs.py`` (trains on it).
"""

from __future__ import annotations

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

CHUNK = 2**28
"""Bytes of memory for the replicas trained at once on a CPU: fewer cost time for calls, more for fresh memory."""


@dataclass(frozen=True)
class Hardware:
    """A device, and how much of its memory may be used.

    Attributes:
        device: of torch: ``cpu`` or ``cuda``.
        most: bytes that the replicas trained at once may take; None for the default.
    """

    device: str = "cpu"
    most: int | None = None

    @classmethod
    def of(cls, name: str = "auto", most: int | None = None) -> Hardware:
        """The device called ``auto`` (CUDA if there is one), ``cpu`` or ``cuda``.

        Raises:
            UsageError: no such device here.
        """
        if name not in ("auto", "cpu", "cuda"):
            raise UsageError(f"no device named {name!r}; use auto, cpu or cuda")
        available = torch.cuda.is_available()
        if name == "cuda" and not available:
            raise UsageError("no CUDA device is available; use --device cpu or auto")
        return cls("cuda" if available and name != "cpu" else "cpu", most)

    @property
    def room(self) -> int:
        """Bytes for the replicas that are trained at once."""
        free = CHUNK
        if self.device != "cpu":
            kept = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
            free = int(0.7 * (torch.cuda.mem_get_info(self.device)[0] + kept))
        return free if self.most is None else min(self.most, free)

    @property
    def free(self) -> int | None:
        """Bytes that are free now; None where the system does not tell."""
        if self.device != "cpu":
            return int(torch.cuda.mem_get_info(self.device)[0])
        return free_memory()

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
        """Device, machine, versions, threads and memory, for reports."""
        return {
            "device": "cpu" if self.device == "cpu" else torch.cuda.get_device_name(self.device),
            "machine": machine(),
            "torch": torch.__version__,
            "python": sys.version.split()[0],
            "threads": threads(),
            "peak_memory_bytes": self.peak_memory,
        }


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


def threads() -> int:
    """Half of the cores this process may use: waiting for a busy core costs more than a core brings."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // 2)


@contextmanager
def spare_threads() -> Iterator[None]:
    """Only so many threads for torch."""
    usual = torch.get_num_threads()
    torch.set_num_threads(threads())
    try:
        yield
    finally:
        torch.set_num_threads(usual)


def generators(seeds: Iterable[int], device: str) -> list[torch.Generator]:
    """A random stream for each seed."""
    return [torch.Generator(device).manual_seed(seed) for seed in seeds]
