"""Machines without torch, numpy or ``resource``: help, one clear line, and measuring all the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

VERIFY = Path(__file__).parents[2] / "verify"
MISSING = "import sys; sys.modules.update(dict.fromkeys({gone}))\nfrom scaling_algebra.cli import main\nmain({args})"


def run(args, *gone):
    """A command where these modules are missing."""
    code = MISSING.format(gone=list(gone), args=list(args))
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, encoding="utf-8", check=False)


@pytest.mark.parametrize("verb", ["verify", "report", "experiment", "transfer"])
def test_help_needs_no_torch_and_no_numpy(verb):
    found = run([verb, "--help"], "torch", "numpy", "scipy", "matplotlib", "jinja2", "sklearn")
    assert found.returncode == 0 and f"scalecalc {verb}" in found.stdout.replace("-c", "scalecalc"), found.stderr


@pytest.mark.parametrize("gone", ["torch", "numpy"])
@pytest.mark.parametrize(
    "args",
    [
        ["verify", "--regime", "III", "--sizes", "8,12,18", "--seeds", "8"],
        ["experiment", "routers"],
        ["transfer", "--regime", "I"],
    ],
)
def test_what_is_missing_is_one_line(args, gone):
    found = run(args, gone)
    assert found.returncode == 2 and not found.stdout
    assert found.stderr == f"scalecalc: {args[0]} needs {gone}; install it with: pip install 'scalecalc[verify]'\n"


def test_wrong_use_is_seen_before_torch_is_loaded():
    found = run(["verify", "--regime", "III", "--sizes", "8,4"], "torch")
    assert found.returncode == 2 and "torch" not in found.stderr and len(found.stderr.splitlines()) == 1


@pytest.mark.slow
def test_a_system_without_resource_measures_all_the_same(monkeypatch):
    """Windows has none."""
    pytest.importorskip("torch")
    from scaling_algebra.verify.hardware import Hardware

    assert Hardware().peak_memory > 2**20
    monkeypatch.setitem(sys.modules, "resource", None)
    assert Hardware().peak_memory is None
    found = run(["verify", "--regime", "III", "--sizes", "8,12,18", "--seeds", "4", "--device", "cpu"], "resource")
    assert found.returncode == 3 and "peak memory unknown" in found.stdout, found.stderr


@pytest.mark.slow
def test_every_file_is_opened_as_utf8(tmp_path):
    """A run whose files are read and written, on a system whose own encoding is another one."""
    pytest.importorskip("torch")
    code = MISSING.format(gone=[], args=["report", str(tmp_path / "run"), "--evidence", str(tmp_path / "kept")])
    asked = ["verify", "--regime", "III", "--sizes", "8,12,18", "--seeds", "4", "-o", str(tmp_path / "run")]
    assert run([*asked, "--device", "cpu"]).returncode == 3
    warned = [sys.executable, "-X", "warn_default_encoding", "-W", "always::EncodingWarning", "-c", code]
    found = subprocess.run(warned, capture_output=True, text=True, encoding="utf-8", check=False)
    ours = [line for line in found.stderr.splitlines() if "EncodingWarning" in line and "site-packages" not in line]
    assert found.returncode == 3 and not [line for line in ours if str(VERIFY) in line], ours
