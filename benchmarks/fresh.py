"""Python in a fresh process: what it takes, what it prints. Read next: the scripts here that time something."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple


class Spent(NamedTuple):
    """Wall-clock and CPU seconds, largest resident MB, exit status and output of a process."""

    seconds: float
    cpu: float
    megabytes: float
    status: int
    out: str
    err: str


def fresh(code: str, *arguments: str, limit: int = 0, folder: Path | None = None) -> Spent:
    """Runs code with ``sys.argv[1:]``.

    Args:
        limit: CPU seconds after which it is killed; 0 for none.
        folder: a checkout whose package it imports.
    """
    if limit:
        code = f"import resource; resource.setrlimit(resource.RLIMIT_CPU, ({limit}, {limit + 9}))\n{code}"
    kept = {"PYTHONDONTWRITEBYTECODE": ""}  # a module is compiled once, as that of any user
    environment = {**os.environ, **kept, **({"PYTHONPATH": str(folder)} if folder else {})}
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        began = time.perf_counter()
        command = [sys.executable, "-c", code, *arguments]
        process = subprocess.Popen(command, stdout=out, stderr=err, cwd=folder, env=environment)
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        texts = [(file.seek(0), file.read())[1] for file in (out, err)]
    return Spent(seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, process.returncode, *texts)


def command(*arguments: str) -> str:
    """Python that runs a command line."""
    return f"from scaling_algebra.cli import main; main({list(arguments)!r})"


def median(code: str, runs: int) -> float:
    """Median CPU seconds of so many fresh processes: other work on the machine moves them little."""
    return statistics.median(fresh(code).cpu for _ in range(runs))
