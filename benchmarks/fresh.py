"""Runs Python in a fresh process and returns its output and its cost. Read next: the scripts here that time
something."""

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
    """The cost and the output of a process.

    Attributes:
        seconds: wall-clock time.
        cpu: CPU time in seconds.
        megabytes: largest resident memory.
        status: exit status.
        out: standard output.
        err: standard error.
    """

    seconds: float
    cpu: float
    megabytes: float
    status: int
    out: str
    err: str


def run_fresh(code: str, *arguments: str, limit: int = 0, folder: Path | None = None) -> Spent:
    """Runs code in a fresh process.

    Args:
        code: the program.
        arguments: its ``sys.argv[1:]``.
        limit: CPU seconds after which it is killed; 0 for no limit.
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


def build_command(*arguments: str) -> str:
    """Returns Python code that runs ``scalecalc`` with these arguments."""
    return f"from scaling_algebra.cli import main; main({list(arguments)!r})"


def measure_median(code: str, runs: int) -> float:
    """Returns the median CPU seconds of several fresh processes, which other work on the machine hardly affects."""
    return statistics.median(run_fresh(code).cpu for _ in range(runs))
