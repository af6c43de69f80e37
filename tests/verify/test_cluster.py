"""Many processes: the same bytes as one, and what a pool does with work that fails."""

from __future__ import annotations

import weakref

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("distributed")

from scaling_algebra.errors import UsageError
from scaling_algebra.spec.configuration import Configuration
from scaling_algebra.verify.campaigns.plans import Effort, build_job
from scaling_algebra.verify.hardware import Hardware, is_out_of_memory
from scaling_algebra.verify.measuring import pool, runs
from scaling_algebra.verify.measuring.cells import RunCell
from scaling_algebra.verify.measuring.pool import Failed, Here, Work

from ..shared import scalecalc as run

VERIFY = ["verify", "--regime", "I", "--optimizer", "sgd", "--parameterization", "sp", "--sizes", "8,12,18"]
VERIFY += ["--seeds", "8", "--steps", "1", "--device", "cpu"]
REPORTS = ("report.json", "report.md", "report.html")


def reports(folder):
    return {name: (folder / name).read_bytes() for name in REPORTS}


def test_two_processes_write_the_report_of_one(tmp_path, monkeypatch):
    monkeypatch.setattr(pool, "WORTH", 0)
    one, two = run(*VERIFY, "-o", tmp_path / "one"), run(*VERIFY, "--workers", "2", "-o", tmp_path / "two")
    assert one.exit_code == two.exit_code and not one.stderr and not two.stderr, (one.stderr, two.stderr)
    assert reports(tmp_path / "one") == reports(tmp_path / "two")


def test_shards_are_merged_to_the_report_of_one(tmp_path):
    whole, folders = run(*VERIFY, "-o", tmp_path / "one"), [tmp_path / f"part{k}" for k in (1, 2, 3)]
    for k, folder in enumerate(folders, 1):
        found = run(*VERIFY, "--shard", f"{k}/3", "-o", folder)
        assert found.exit_code == 0 and "verify --merge" in found.stdout
        assert {p.name for p in folder.iterdir()} == {"plan.json", "measured.sqlite"}
    assert run("verify", "--merge", *folders[:2], "-o", tmp_path / "few").exit_code == 3
    merged = run("verify", "--merge", *folders, "-o", tmp_path / "all")
    assert merged.exit_code == whole.exit_code and reports(tmp_path / "all") == reports(tmp_path / "one")
    assert run("verify", "--resume", folders[0], "--device", "cpu").stdout.startswith("shard 1/3")


def twice(hardware, x):
    if x < 0:
        raise ValueError("below zero")
    return 2 * x


def test_what_fails_is_told_and_the_others_go_on():
    tasks = [Work(f"task {x}", twice, (x,)) for x in (1, -1, 2)]
    (_, first), (_, failed), (_, last) = Here(Hardware())(tasks)
    assert (first, last) == (2, 4) and isinstance(failed, Failed)
    assert str(failed) == "task -1 failed: ValueError: below zero"


def test_other_versions_are_refused_with_both():
    with pytest.raises(UsageError, match=r"has torch .* and not 1\.0; install the versions"):
        pool.run_task({**pool.get_versions(), "torch": "1.0"}, Hardware(), twice, 1)
    assert pool.run_task(pool.get_versions(), Hardware(), twice, 1) == 2


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory"), True),
        (MemoryError(), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (RuntimeError("shapes cannot be multiplied"), False),
    ],
)
def test_no_memory_is_told_from_other_errors(error, is_memory):
    assert is_out_of_memory(error) is is_memory


@pytest.fixture(scope="module")
def setup():
    return build_job(Configuration.of("III", "sgd", "mup"), Effort(steps=1, sizes=(8, 12, 16), seeds=8)).setup()


def test_another_error_is_raised_as_it_is(setup, monkeypatch):
    def fails(*given):
        raise RuntimeError("shapes cannot be multiplied")

    monkeypatch.setattr(runs, "train_network", fails)
    with pytest.raises(RuntimeError, match="shapes"):
        runs.train_cell(setup, RunCell("values", 0, 0, 2), Hardware())


def test_memory_is_given_back_when_nothing_holds_the_failed_tensors(setup, monkeypatch):
    """A traceback holds what its frames hold: as long as one is alive, nothing is free."""
    held, seen = [], []

    def fails(*given):
        large = torch.zeros(4)
        held.append(weakref.ref(large))
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(runs, "train_network", fails)
    monkeypatch.setattr(Hardware, "release_memory", lambda self: seen.append([x() is None for x in held]))
    with pytest.raises(UsageError, match="not enough memory"):
        runs.train_cell(setup, RunCell("values", 0, 0, 4), Hardware())
    assert seen == [[True] * k for k in (1, 2, 3)]


def test_workers_on_one_device_share_its_memory(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    shares = [pool.build_worker_environment(Hardware("cuda"), k, 3) for k in range(3)]
    assert shares == [{"CUDA_VISIBLE_DEVICES": str(k % 2), "SCALECALC_SHARED": n} for k, n in enumerate("212")]
    assert pool.build_worker_environment(Hardware("cuda:1"), 0, 4) == {
        "CUDA_VISIBLE_DEVICES": "1",
        "SCALECALC_SHARED": "4",
    }
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 1000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 0)
    rooms = [Hardware("cuda").room]
    monkeypatch.setenv("SCALECALC_SHARED", "4")
    assert [*rooms, Hardware("cuda").room] == [700, 175]


def test_memory_that_runs_out_halves_the_replicas(setup, monkeypatch):
    """A device with room for three replicas gives the record of one with room for all; one replica is the end."""
    cell, real, most, tried = RunCell("values", 0, 0, 8), runs.train_network, 3, []
    whole = runs.train_cell(setup, cell, Hardware())

    def small(setup, draw, checked):
        tried.append(len(draw))
        if len(draw) > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(setup, draw, checked)

    monkeypatch.setattr(runs, "train_network", small)
    cut = runs.train_cell(setup, cell, Hardware())
    assert tried == [8, 4, 2, 2, 2, 2] and all((cut[key] == values).all() for key, values in whole.items())
    most = 0
    with pytest.raises(UsageError, match="not enough memory"):
        runs.train_cell(setup, cell, Hardware())
