"""Every fault of a campaign on many processes is survived: what is killed, raises, is full, lost or of another version.

Cells are slowed down so that there is something to kill; the fault is in a module that client and workers import.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import contextmanager, suppress

import pytest

psutil = pytest.importorskip("psutil")
pytest.importorskip("distributed")

DEPENDS = ("verify/measuring", "verify/campaigns", "verify/commands")
FAULTS = """
import importlib.metadata, os, sys, time

if os.environ.get("VERSION"):
    real_version = importlib.metadata.version
    importlib.metadata.version = lambda name: os.environ["VERSION"] if name == "scalecalc" else real_version(name)
from scaling_algebra.verify.measuring import pool, runs

pool.WORTH = float(os.environ.get("WORTH", "0"))
real = runs.train_timed_cell


def timed_cell(hardware, setup, cell):
    if (cell.kind, cell.size, cell.first) == ("values", 1, 4):
        if os.environ.get("FAULT") == "raises":
            raise ArithmeticError("poisoned")
        if os.environ.get("FAULT") == "dies":
            os.kill(os.getpid(), 9)
    time.sleep(float(os.environ.get("PAUSE", "0.2")))
    return real(hardware, setup, cell)


runs.train_timed_cell = timed_cell


def run():
    if sys.argv[1] == "worker":
        from distributed.cli.dask_worker import main
    else:
        from scaling_algebra.cli import main
    main(sys.argv[1 + (sys.argv[1] == "worker"):])
"""
FAULTY = [sys.executable, "-c", "import faults; faults.run()"]
CAMPAIGN = """
sizes = [8, 12, 18, 27]
seeds = 16
steps = 1
together = 4
[[run]]
regimes = ["I", "III"]
optimizers = ["sgd"]
parameterizations = ["mup"]
"""
CELLS = 80
"""Rows of the store of a run less one cell each: two of them say where it was measured."""
REPORTS = ("report.json", "report.md", "report.html")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with the faults and the campaign."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "faults.py").write_text(FAULTS)
    (folder / "small.toml").write_text(CAMPAIGN)
    return folder


@pytest.fixture(scope="module")
def whole(home):
    """The reports of one process."""
    found = begun(home, "one", PAUSE="0").communicate(timeout=300)
    assert "Traceback" not in found[1], found
    return reports(home / "one")


def begun(home, out, *more, asked=("--campaign", "small.toml", "--device", "cpu"), **environment):
    """A run in a process of its own; ``PAUSE`` seconds a cell, a ``FAULT``."""
    command = [*FAULTY, "verify", *asked, *(["-o", out] if asked[0] != "--resume" else []), *more]
    there = {**os.environ, "PYTHONPATH": str(home), "OMP_NUM_THREADS": "1", **environment}
    return subprocess.Popen(
        command, cwd=home, env=there, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def resumed(home, out):
    process = begun(home, out, asked=("--resume", out, "--device", "cpu"), PAUSE="0")
    said = process.communicate(timeout=300)
    assert process.returncode in (0, 1, 3), said
    return reports(home / out)


def reports(folder):
    return {name: (folder / name).read_bytes() for name in REPORTS}


def stored(folder):
    """How many rows there are."""
    with suppress(sqlite3.Error):
        return sqlite3.connect(folder / "measured.sqlite").execute("SELECT count(*) FROM measured").fetchone()[0]
    return 0


def until(true, process, seconds=120):
    end = time.monotonic() + seconds
    while not true() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.02)


def workers_of(process):
    """The processes that train."""
    with suppress(psutil.Error):
        children = psutil.Process(process.pid).children(recursive=True)
        return [x for x in children if "spawn_main" in " ".join(x.cmdline())]
    return []


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_report_is_that_of_one_process_with_workers_killed_at_random(home, whole, workers, record_property):
    out, draw, killed = f"killed{workers}", random.Random(workers), 0
    process = begun(home, out, "--workers", str(workers))
    while process.poll() is None and killed < 4:  # what is killed thrice in a row is given up
        before = stored(home / out)
        until(lambda before=before: stored(home / out) > before + 4, process)
        time.sleep(draw.uniform(0, 1))
        alive = workers_of(process)
        for worker in draw.sample(alive, min(1, len(alive))):
            with suppress(psutil.Error):
                worker.kill()
                killed += 1
    said = process.communicate(timeout=600)
    assert reports(home / out) == whole and killed >= 3 and not said[1], said
    record_property("killed", killed)


@pytest.mark.parametrize(
    ("fault", "why"), [("raises", "ArithmeticError: poisoned"), ("dies", "3 workers died while executing it")]
)
def test_a_poisoned_cell_is_named_and_the_run_goes_on(home, fault, why):
    process = begun(home, fault, "--workers", "2", FAULT=fault, PAUSE="0.05")
    out, err = process.communicate(timeout=600)
    lines = err.splitlines()
    assert process.returncode == 3 and len(lines) == 2, (out, err)
    assert all("/values-n12-t1-1-4-4-" in line and why in line and "the run goes on" in line for line in lines)
    assert "INCONCLUSIVE: I-sgd-mup, III-sgd-mup" in out and stored(home / fault) == CELLS


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_whose_client_is_stopped_goes_on(home, whole, how):
    out = f"stopped{int(how)}"
    process = begun(home, out, "--workers", "2")
    until(lambda: stored(home / out) > 10, process)
    workers = workers_of(process)
    process.send_signal(how)
    said = process.communicate(timeout=120)
    assert process.returncode == (-9 if how == signal.SIGKILL else 130), said
    assert how == signal.SIGKILL or ("Traceback" not in said[1] and "--resume" in said[1]), said
    assert len(workers) == 2 and psutil.wait_procs(workers, timeout=60)[1] == []
    assert 10 < stored(home / out) < CELLS and resumed(home, out) == whole


@contextmanager
def cluster(home, *, version="", resource="cpu=1"):
    """A scheduler and a worker of their own."""
    file = home / "scheduler.json"
    file.unlink(missing_ok=True)
    there = {**os.environ, "PYTHONPATH": str(home), "OMP_NUM_THREADS": "1", "VERSION": version, "PAUSE": "0.2"}
    quiet = {"env": there, "cwd": home, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    told = ["--scheduler-file", str(file), "--no-dashboard"]
    scheduler = subprocess.Popen(
        [sys.executable, "-m", "distributed.cli.dask_scheduler", "--port", "0", "--host", "127.0.0.1", *told], **quiet
    )
    until(file.exists, scheduler)
    how = ["--nthreads", "1", "--no-nanny", "--resources", resource]
    worker = subprocess.Popen([*FAULTY, "worker", *told, *how], **quiet)
    try:
        yield scheduler, file
    finally:
        for process in (worker, scheduler):
            process.kill()
            process.wait()


def test_a_running_scheduler_is_used(home, whole):
    with cluster(home) as (_, file):
        process = begun(home, "theirs", "--scheduler", str(file))
        said = process.communicate(timeout=300)
    assert reports(home / "theirs") == whole, said


def test_a_lost_scheduler_leaves_a_folder_that_goes_on(home, whole):
    with cluster(home) as (scheduler, file):
        process = begun(home, "lost", "--scheduler", str(file))
        until(lambda: stored(home / "lost") > 4, process)
        scheduler.kill()
        said = process.communicate(timeout=300)
    assert process.returncode == 2 and "the scheduler is gone" in said[1] and len(said[1].splitlines()) == 1, said
    assert resumed(home, "lost") == whole


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ({"version": "9.9"}, "has scalecalc 9.9 and not "),
        ({"resource": "cuda=1"}, "no worker of the scheduler offers cpu"),
    ],
)
def test_workers_that_do_not_fit_are_refused(home, made, says):
    with cluster(home, **made) as (_, file):
        process = begun(home, "unfit", "--scheduler", str(file))
        said = process.communicate(timeout=300)
    assert process.returncode == 2 and says in said[1] and len(said[1].splitlines()) == 1, said
