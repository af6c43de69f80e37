"""Machines without torch, numpy or ``resource``, with a GPU, or with another encoding."""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from scaling_algebra import derive
from scaling_algebra.spec.configuration import Configuration
from scaling_algebra.verify import measure
from scaling_algebra.verify.campaigns.plans import Effort, build_job
from scaling_algebra.verify.hardware import Hardware
from scaling_algebra.verify.measuring import runs
from scaling_algebra.verify.measuring.cells import RunCell
from scaling_algebra.verify.networks import moment

MISSING = "import sys; sys.modules.update(dict.fromkeys({gone}))\nfrom scaling_algebra.cli import main\nmain({args})"
SMALL = ["--regime", "III", "--sizes", "8,12,18", "--seeds", "4"]


def run(args, *gone):
    """A command where these modules are missing."""
    code = MISSING.format(gone=list(gone), args=list(args))
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, encoding="utf-8", check=False)


@pytest.mark.parametrize(
    ("args", "gone"),
    [(["verify", *SMALL], "torch"), (["study", "routers"], "numpy"), (["study", "transfer"], "torch")],
)
def test_what_is_missing_is_one_line(args, gone):
    found = run(args, gone)
    assert found.returncode == 2 and not found.stdout
    hint = 'pip install "scalecalc[verify] @ git+<URL of its repository>", or in a checkout: pip install -e ".[verify]"'
    assert found.stderr == f"scalecalc: {args[0]} needs {gone}; install it with: {hint}\n"


def test_wrong_use_is_seen_before_torch_is_loaded():
    found = run(["verify", "--regime", "III", "--sizes", "8,4"], "torch")
    assert found.returncode == 2 and "torch" not in found.stderr and len(found.stderr.splitlines()) == 1


def test_a_system_without_resource_measures_all_the_same(monkeypatch):
    """Windows has none."""
    assert Hardware().peak_memory > 2**20
    monkeypatch.setitem(sys.modules, "resource", None)
    assert Hardware().peak_memory is None


# A GPU. With torch's default device set to ``meta``, whose tensors have no data, whatever is made without naming a
# device fails as soon as it meets the others.


@pytest.mark.parametrize("kind", ["values", "control", "standard"])
@pytest.mark.parametrize(
    ("rule", "ray", "dtype"),
    [("sgd", "N=1,N_e=1,M=1", "float64"), ("adamw", "N=1,N_e=1,M=1,K=1/2", "float32")],
)
def test_a_cell_names_its_device(rule, ray, dtype, kind):
    effort = Effort(sizes=(8, 12, 16), seeds=2, dtype=dtype)
    setup = build_job(Configuration.of(None, rule, "mup", ray=ray), effort).setup()
    here = runs.train_cell(setup, RunCell(kind, 0, 0, 2), Hardware())
    with torch.device("meta"):
        there = runs.train_cell(setup, RunCell(kind, 0, 0, 2), Hardware())
    assert there.keys() == here.keys()
    for key, values in here.items():
        assert there[key] == pytest.approx(values, rel=1e-9, abs=1e-12, nan_ok=True), key


@pytest.mark.parametrize("architecture", ["routers-softmax-topk", "routers-sigmoid-noise", "moe-rmsnorm"])
def test_any_network_names_its_device(architecture):
    d = derive("I", "sgd", "mup-sigmoid" if "routers" in architecture else "sp", architecture=architecture)
    with torch.device("meta"):
        measure(d, sizes=[8, 12, 16], seeds=4, steps=1, device="cpu")


def test_a_forgotten_device_would_be_seen(monkeypatch):
    """Negative control."""
    setup, real = build_job(Configuration.of("III", "sgd"), Effort(sizes=(8, 12, 16), seeds=2)).setup(), moment.contract
    monkeypatch.setattr(moment, "contract", lambda *sides: real(*sides) * torch.ones(1))
    with torch.device("meta"), pytest.raises((NotImplementedError, RuntimeError)):
        runs.train_cell(setup, RunCell("values", 0, 0, 2), Hardware())
