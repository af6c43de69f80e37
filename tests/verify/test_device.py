"""Every tensor is made on the device that was asked for: on a GPU a forgotten one would stop a run.

No GPU is needed: with torch's default device set to ``meta``, whose tensors have no data, whatever is made without
naming a device fails as soon as it meets the others.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from scaling_algebra import derive
from scaling_algebra.spec.configuration import Configuration
from scaling_algebra.verify import measure
from scaling_algebra.verify.campaigns.plans import Effort, job
from scaling_algebra.verify.hardware import Hardware
from scaling_algebra.verify.measuring import block, runs
from scaling_algebra.verify.measuring.cells import Cell


@pytest.mark.parametrize("kind", ["values", "control", "standard"])
@pytest.mark.parametrize(
    ("architecture", "rule", "ray", "dtype"),
    [
        ("moe", "sgd", "N=1,N_e=1,M=1", "float64"),
        ("moe", "adam", "N=1,N_e=1,M=1,K=1/2", "float64"),
        ("moe", "adamw", "N=1,N_e=0,M=1", "float32"),
        ("transformer", "adamw", "N=1,N_e=1,M=1", "float64"),
    ],
)
def test_a_cell_names_its_device(architecture, rule, ray, dtype, kind):
    sizes = (8, 12, 16) if architecture == "moe" else (32, 48, 64)
    asked = Configuration.of(None, rule, "mup", ray=ray)
    setup = job(
        asked, Effort(sizes=sizes, seeds=2, dtype=dtype), architecture if architecture == "transformer" else ""
    ).setup()
    here = runs.train_cell(setup, Cell(kind, 0, 0, 2), Hardware())
    with torch.device("meta"):
        there = runs.train_cell(setup, Cell(kind, 0, 0, 2), Hardware())
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
    setup, real = job(Configuration.of("III", "sgd"), Effort(sizes=(8, 12, 16), seeds=2)).setup(), block.outer_norm
    monkeypatch.setattr(block, "outer_norm", lambda *sides: real(*sides) * torch.ones(1))
    with torch.device("meta"), pytest.raises((NotImplementedError, RuntimeError)):
        runs.train_cell(setup, Cell("values", 0, 0, 2), Hardware())
