"""What is measured is neither lost nor taken for something else: writers, stored cells, kills, full disks, signals."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from scaling_algebra import files
from scaling_algebra.errors import UsageError
from scaling_algebra.spec.configuration import Configuration
from scaling_algebra.verify.campaigns.plans import Effort, job
from scaling_algebra.verify.measuring import store as stored
from scaling_algebra.verify.measuring.cells import cells
from scaling_algebra.verify.measuring.store import Store, read_plan, write_plan

from ..shared import scalecalc as run

VERIFY = ["verify", "--regime", "I", "--optimizer", "sgd", "--parameterization", "sp", "--sizes", "8,12,18"]
VERIFY += ["--seeds", "8", "--device", "cpu", "--steps", "3"]
RECORD = {("h1", 0): np.arange(4.0), ("h1", 1): np.ones(4)}


def started(*arguments):
    command = [sys.executable, "-m", "scaling_algebra", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run that nothing stopped, and its exit code."""
    folder = tmp_path_factory.mktemp("kept") / "whole"
    return folder, run(*VERIFY, "-o", folder).exit_code


# writing ---------------------------------------------------------------------------------------------------------


def test_a_file_is_whole_or_as_it_was(tmp_path, monkeypatch):
    """The disk is full at any moment of the writing."""
    path = tmp_path / "report.json"
    files.write_file(path, "old")
    for name in ("fsync", "replace"):

        def full(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os if name == "fsync" else Path, name, full)
        with pytest.raises(UsageError, match=r"cannot write .*No space left on device"):
            files.write_file(path, "new")
        monkeypatch.undo()
        assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["report.json"]


def test_a_file_that_grows_too_large_is_one_line_and_the_result_is_printed(tmp_path):
    limited = f"ulimit -f 1; exec {sys.executable} -B -m scaling_algebra list -o {tmp_path / 'e.json'}"
    found = subprocess.run(["bash", "-c", limited], capture_output=True, text=True, timeout=60)
    assert found.returncode == 2 and "cannot write" in found.stderr and len(found.stderr.splitlines()) == 1
    assert json.loads(found.stdout) and not list(tmp_path.iterdir())


def test_a_link_in_a_folder_is_replaced_and_a_device_is_written_into(tmp_path):
    kept = tmp_path / "mine.txt"
    kept.write_text("mine")
    (tmp_path / "report.md").symlink_to(kept)
    files.write_file(tmp_path / "report.md", "report")
    assert kept.read_text() == "mine" and (tmp_path / "report.md").read_text() == "report"
    files.write_file(Path(os.devnull), "nothing")
    assert not Path(os.devnull).is_file()


@pytest.mark.parametrize("place", ["", "  ", "/proc/x.json", "n" * 300, "/nonexistent/x.json"])
def test_a_place_that_cannot_be_written_is_refused_before_the_run(place, monkeypatch):
    monkeypatch.setattr("scaling_algebra.verify.campaigns.session.Session.perform", lambda *_: pytest.fail("it ran"))
    found = run(*VERIFY, "-o", place)
    assert found.exit_code == 2 and len(found.stderr.splitlines()) == 1, found.output


@pytest.mark.parametrize(
    "verb", ["audit --errata", "list", "table b1", "recipe --hold sde", "law chinchilla", "law switch-cluster"]
)
def test_a_link_in_a_circle_is_refused(verb, tmp_path):
    link = tmp_path / "x.json"
    link.symlink_to(link)
    for place in (link, link / "x.json"):
        found = run(*verb.split(), "-o", place)
        assert found.exit_code == 2 and "cannot use" in found.stderr and len(found.stderr.splitlines()) == 1
    for write in (
        lambda: files.resolve_link(link),
        lambda: files.check_writable(link),
        lambda: files.write_file(link / "x", ""),
    ):
        with pytest.raises(UsageError):
            write()


def test_a_page_is_refused_before_anything_is_downloaded(tmp_path, monkeypatch):
    monkeypatch.setattr("scaling_algebra.page.assembly.collect_assets", lambda *_: pytest.fail("it downloaded"))
    link = tmp_path / "x"
    link.symlink_to(link)
    for asked in (["-o", link], ["-o", "/proc/none"], ["-o", tmp_path / "page", "--assets", "/proc/none"]):
        assert run("page", *asked).exit_code == 2


# stored cells ----------------------------------------------------------------------------------------------------


def cell(folder):
    Store(folder).save("I-sgd-sp", "values-n8", RECORD)
    return folder / stored.MEASURED


def test_a_cell_comes_back_as_it_was(tmp_path):
    cell(tmp_path)
    found = Store(tmp_path).load("I-sgd-sp", "values-n8", 4)
    assert found is not None and all(np.array_equal(found[key], RECORD[key]) for key in RECORD)
    for run_name, name, replicas in (
        ("II-sgd-sp", "values-n8", 4),
        ("I-sgd-sp", "values-n12", 4),
        ("I-sgd-sp", "values-n8", 5),
    ):
        assert Store(tmp_path).load(run_name, name, replicas) is None


def test_a_run_that_diverged_is_kept_as_no_numbers(tmp_path):
    Store(tmp_path).save("run", "cell", {("h1", 0): np.array([1.0, np.inf]), ("h1", 1): np.array([-np.inf, np.nan])})
    found = Store(tmp_path).load("run", "cell", 2)
    assert np.array_equal(found["h1", 0], [1, np.nan], equal_nan=True) and np.isnan(found["h1", 1]).all()


def test_cells_of_different_names_are_joined_by_what_they_share():
    one, other = ({(name, 0): np.ones(2) for name in names} for names in ("ab", "cb"))
    both = stored.joined([one, other])
    assert list(both) == [("b", 0)] and both["b", 0].shape == (4,)


def test_a_newer_format_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(stored, "FORMAT", stored.FORMAT + 1)
    cell(tmp_path)
    write_plan(tmp_path, {"runs": [{}]})
    monkeypatch.undo()
    for read in (lambda: Store(tmp_path).load("I-sgd-sp", "values-n8"), lambda: read_plan(tmp_path)):
        with pytest.raises(UsageError, match="newer scalecalc"):
            read()


def test_what_is_no_store_is_one_line_and_not_waited_for(tmp_path):
    """A damaged file, and a pipe where a store or a plan belongs."""
    path = cell(tmp_path)
    path.write_bytes(b"x" * 5000)
    with pytest.raises(UsageError, match=r"cannot use .*measured\.sqlite: file is not a database"):
        Store(tmp_path).load("I-sgd-sp", "values-n8")
    path.unlink()
    os.mkfifo(path)
    os.mkfifo(tmp_path / "plan.json")
    for read in (lambda: Store(tmp_path).environment("I-sgd-sp"), lambda: read_plan(tmp_path)):
        with pytest.raises(UsageError, match=r"it is .*not a regular file"):
            read()


def test_pieces_come_back_as_they_were(tmp_path):
    what = {"task": "digits", "lr": 0.5}
    for store in (Store(tmp_path), Store()):
        first = store.keep(what, (1.5, float("nan")))
        assert repr(first) == repr(store.piece(what)) == "[1.5, nan]" and store.piece({**what, "lr": 0.25}) is None
    assert repr(Store(tmp_path).piece(what)) == repr(first) and Store().piece(what) is None


def altered(path, name, value):
    """A row in which this is put: raw values that sqlite takes, or the content cut or zeroed."""
    with closing(sqlite3.connect(path)) as database, database:
        (content,) = database.execute("SELECT content FROM measured").fetchone()
        value = {"cut": content[:-8], "zeroed": content[:16] + bytes(len(content) - 16)}.get(value, value)
        database.execute(f"UPDATE measured SET {name} = ?", [value])


DAMAGES = [("names", x) for x in (None, 3, "", "[", "[1]", '["h1@x"]', b"[]")]
DAMAGES += [("content", x) for x in (None, 1.5, "", b"", b"x" * 17, "text", "cut", "zeroed")]
DAMAGES += [("key", x) for x in (None, 7, b"\xff", "I-sgd-sp/other")]


@pytest.mark.parametrize(("name", "value"), DAMAGES)
def test_a_damaged_row_counts_as_not_there(name, value, tmp_path):
    """Names of the wrong type, content cut, zeroed or no bytes, a row under another key."""
    altered(cell(tmp_path), name, value)
    found = Store(tmp_path)
    assert found.load("I-sgd-sp", "values-n8") is None
    assert found.damaged == ({"I-sgd-sp/values-n8"} if name != "key" else set()) and len(list(found.names())) == 1
    found.save("I-sgd-sp", "values-n8", RECORD)
    assert Store(tmp_path).load("I-sgd-sp", "values-n8") is not None and not found.damaged


@pytest.mark.parametrize("name", ["names", "content"])
def test_a_damaged_environment_counts_as_not_there(name, tmp_path):
    Store(tmp_path).describe("run", {"device": "cpu"})
    assert Store(tmp_path).environment("run") == {"device": "cpu"}
    altered(tmp_path / stored.MEASURED, name, "7")
    assert Store(tmp_path).environment("run") == {}


@pytest.mark.parametrize("how", ["DELETE FROM measured WHERE", "UPDATE measured SET content = x'00' WHERE"])
def test_lost_circumstances_are_told_again(how, whole, tmp_path):
    shutil.copytree(whole[0], tmp_path, dirs_exist_ok=True)
    before = json.loads((tmp_path / "report.json").read_text())["runs"][0]["environment"]
    with closing(sqlite3.connect(tmp_path / stored.MEASURED)) as database, database:
        assert database.execute(f"{how} key LIKE '%/environment'").rowcount == 1
    warned = ["damaged" in run("verify", "--resume", tmp_path).stderr for _ in range(2)]
    after = json.loads((tmp_path / "report.json").read_text())["runs"][0]["environment"]
    assert warned == ["UPDATE" in how, False]
    assert {x: after[x] for x in ("torch", "device", "dtype")} == {x: before[x] for x in ("torch", "device", "dtype")}


def test_a_store_that_two_write_is_refused(tmp_path):
    """The lock first; without it, as on a file system that has none, what is written."""
    first, second = Store(tmp_path), Store(tmp_path)
    with first.alone(), pytest.raises(UsageError, match="another process writes into"), second.alone():
        pass
    with second.alone():
        pass
    for store, where in ((first, "a"), (first, "b"), (second, "c")):
        store.save("run", where, RECORD)
    with pytest.raises(UsageError, match="another process wrote into"):
        first.save("run", "d", RECORD)


# interrupts ------------------------------------------------------------------------------------------------------


def verdicts(folder):
    """All that a report says but times."""
    report = json.loads((folder / "report.json").read_text())
    return [{key: run[key] for key in run if key not in ("environment", "job")} for run in report["runs"]]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_every_verb_may_be_stopped(how, monkeypatch):
    monkeypatch.setattr(
        "scaling_algebra.solver.derivation.Configuration.of", lambda *_, **__: os.kill(os.getpid(), how)
    )
    usual = signal.default_int_handler if how is signal.SIGINT else signal.SIG_DFL
    before = signal.signal(how, usual)  # a suite in the background is told to ignore some
    try:
        found = run("signals", "--regime", "I")
        assert found.exit_code == 130 and found.stderr == "scalecalc: interrupted\n"
        assert signal.getsignal(how) is usual
    finally:
        signal.signal(how, before)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_stopped_goes_on_to_the_same_report(how, whole, tmp_path):
    process = started(*VERIFY, "-o", tmp_path / "cut")
    end = time.monotonic() + 60
    while not any(tmp_path.glob("cut/measured.sqlite")) and time.monotonic() < end and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(how)
    out, err = process.communicate(timeout=60)
    if how is not signal.SIGKILL:
        assert process.returncode == 130 and "Traceback" not in err and "--resume" in err, (out, err)
    again = run("verify", "--resume", tmp_path / "cut")
    assert again.exit_code == whole[1], again.output
    assert verdicts(tmp_path / "cut") == verdicts(whole[0])
    assert how is signal.SIGKILL or not list(tmp_path.rglob("*.part"))


def test_a_full_disk_costs_only_what_did_not_fit(whole, tmp_path):
    """On a small disk of its own, which then grows."""
    alone = ["unshare", "--user", "--map-root-user", "--mount", "bash", "-c"]
    disk, out = tmp_path / "disk", tmp_path / "out"
    disk.mkdir(), out.mkdir()
    mounted = f"mount -t tmpfs -o size=64k none {disk}"
    if not shutil.which("unshare") or subprocess.run([*alone, mounted], capture_output=True, check=False).returncode:
        pytest.skip("this system lets no test mount a disk")
    begun = f"{sys.executable} -m scaling_algebra " + " ".join([*VERIFY, "-o", str(disk / "run")])
    goes_on = f"{sys.executable} -m scaling_algebra verify --resume {disk / 'run'}"
    steps = [
        mounted,
        f"{begun} 2> {out}/stderr; echo $? > {out}/code",
        f"find {disk} -type f > {out}/files",
        f"mount -o remount,size=64m {disk}",
        f"{goes_on} > /dev/null 2>&1",
        f"cp {disk}/run/report.json {out}",
    ]
    subprocess.run([*alone, "; ".join(steps)], check=True, timeout=300)
    said, files_left = (out / "stderr").read_text(), (out / "files").read_text()
    full = "is full" in said or "No space left" in said
    assert (out / "code").read_text().strip() == "2" and full and len(said.splitlines()) == 1, said
    assert ".part" not in files_left
    assert verdicts(out) == verdicts(whole[0])


def test_a_resume_elsewhere_says_so_once(tmp_path):
    begun = job(Configuration.of("I", "sgd", "sp"), Effort(1, (8, 12, 18), 4))
    write_plan(tmp_path, {"runs": [begun.as_json()]})
    Store(tmp_path).describe(begun.name, {"torch": "1.0", "machine": "another"})
    found = run("verify", "--resume", tmp_path)
    said = [line for line in found.stderr.splitlines() if "warning" in line]
    assert len(said) == 1 and "torch 1.0" in said[0] and "another" in said[0]


@pytest.mark.parametrize("other", [{"steps": 0}, {"sizes": (8, 12, 27)}, {"optimizer": "adam"}])
def test_a_plan_of_another_run_is_refused(other, tmp_path):
    def planned(optimizer="sgd", steps=1, sizes=(8, 12, 18)):
        return job(Configuration.of("I", optimizer, "sp"), Effort(steps, sizes, 4))

    setup = planned().setup()
    cell = next(c for c in cells(setup) if c.kind == "values" and c.size == 2)
    Store(tmp_path).save(setup.run, setup.name(cell), RECORD)
    write_plan(tmp_path, {"runs": [planned(**other).as_json()]})
    found = run("verify", "--resume", tmp_path, "--device", "cpu")
    assert found.exit_code == 2 and "plan of another run" in found.stderr and len(found.stderr.splitlines()) == 1


TRANSFER = "study transfer --model mlp.py:build --optimizer sgd --base N=8 --widths 8,16,32"
TRANSFER = f"{TRANSFER} --grid=-8,-4,2 --seeds 2 --steps 3 --extend 0 --device cpu".split()
MLP = """
from torch import nn
def build(sizes):
    return nn.Sequential(nn.Linear(64, sizes["N"], bias=False), nn.ReLU(), nn.Linear(sizes["N"], 10, bias=False))
"""


def test_transfer_goes_on_from_finished_pieces(tmp_path, monkeypatch):
    from scaling_algebra.verify.studies import transfer as sweep

    monkeypatch.chdir(tmp_path)
    (tmp_path / "mlp.py").write_text(MLP, encoding="utf-8")
    whole, usual, trained = run(*TRANSFER, "--format", "json"), sweep.trained, []

    def counted(*given):
        trained.append(1)
        if len(trained) == 5:
            raise KeyboardInterrupt
        return usual(*given)

    monkeypatch.setattr(sweep, "trained", counted)
    cut = run(*TRANSFER, "--resume", tmp_path / "kept")
    assert (cut.exit_code, "same command again" in cut.stderr) == (130, True), cut.stderr
    again = run(*TRANSFER, "--resume", tmp_path / "kept", "--format", "json")
    assert again.exit_code == whole.exit_code and len(trained) == 5 + 30 - 4
    assert json.loads(again.output)["parameterizations"] == json.loads(whole.output)["parameterizations"]


def test_an_interrupted_trial_is_not_kept(tmp_path, monkeypatch):
    from scaling_algebra.verify.measuring import runs

    def stops(*_):
        raise KeyboardInterrupt

    command = ["study", "epsilon", "--sizes", "8,12,18", "--seeds", "4", "--device", "cpu", "--resume", tmp_path]
    with monkeypatch.context() as patched:
        patched.setattr(runs, "train_network", stops)
        assert run(*command).exit_code == 130
    assert not [*Store(tmp_path).names()]


def test_experiments_go_on_from_finished_trials(tmp_path, monkeypatch):
    from scaling_algebra.verify.studies import runner

    command = ["study", "epsilon", "--sizes", "8,12,18", "--seeds", "4", "--device", "cpu", "--format", "json"]
    whole = run(*command, "--resume", tmp_path)
    asked = runner.EXPERIMENTS["epsilon"]
    never = tuple(replace(trial, run=lambda *_: pytest.fail("it ran again")) for trial in asked.trials)
    monkeypatch.setitem(runner.EXPERIMENTS, "epsilon", replace(asked, trials=never))
    again = run(*command, "--resume", tmp_path)
    assert again.exit_code == whole.exit_code


# exits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [">&-", "2>&-", ">&- 2>&-", ">/dev/full"])
def test_streams_that_are_closed_or_full_end_without_a_traceback(stream):
    line = f"{sys.executable} -m scaling_algebra list {stream}"
    found = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60)
    assert found.returncode in (0, 2) and "Traceback" not in found.stderr, found.stderr


@pytest.mark.parametrize("debug", ["", "1"])
def test_a_fault_is_exit_70_and_shows_where_on_request(debug, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("x" * 5000)

    monkeypatch.setattr("scaling_algebra.solver.derivation.Configuration.of", broken)
    monkeypatch.setenv("SCALECALC_DEBUG", debug)
    found = run("signals", "--regime", "I")
    assert found.exit_code == 70 and ("Traceback" in found.stderr) == bool(debug)
    assert found.stderr.splitlines()[-1].startswith("scalecalc: internal error (please report): RuntimeError: xxx")
    assert len(found.stderr.splitlines()[-1]) < 900


# determinism -----------------------------------------------------------------------------------------------------


def test_hash_seeds_and_threads_change_no_byte():
    lines = ("derive --regime II --optimizer adam --format json", "list", "explain h3 --regime I")
    code = f"from scaling_algebra.cli import main\nfor x in {lines}: main(x.split(), standalone_mode=False)"
    told = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "OMP_NUM_THREADS": threads},
            capture_output=True,
            check=True,
        ).stdout
        for seed, threads in (("0", "1"), ("4242", "2"))
    }
    assert len(told) == 1 and len(told.pop()) > 1000
