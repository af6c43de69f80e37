"""Every tensor is made on the device that was asked for: on a GPU a forgotten one would stop a run.

No GPU is needed: with torch's default device set to ``meta``, whose tensors have no data, whatever is made without
naming a device fails as soon as it meets the others.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from scaling_algebra import derive
from scaling_algebra.verify.campaigns.campaign import job
from scaling_algebra.verify.experiments.fixed_experts import measure_fixed_experts
from scaling_algebra.verify.measuring import runs
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
    setup = job(None, rule, "mup", ray=ray, architecture=architecture, sizes=sizes, seeds=2, dtype=dtype).setup()
    here = runs._measured(setup, [Cell(kind, 0, 0, 2)], "cpu", None)[0]
    with torch.device("meta"):
        there = runs._measured(setup, [Cell(kind, 0, 0, 2)], "cpu", None)[0]
    assert there.keys() == here.keys()
    for key, values in here.items():
        assert there[key] == pytest.approx(values, rel=1e-9, abs=1e-12, nan_ok=True), key


@pytest.mark.parametrize("rule", ["sgd", "adamw"])
def test_a_stack_of_sizes_names_its_device(rule):
    setup = job("III", rule, "mssp", sizes=(8, 12, 16), seeds=2).setup()
    group = [Cell("values", 0, 0, 2), Cell("control", 1, 0, 1), Cell("values", 2, 0, 2)]
    here = runs._measured(setup, group, "cpu", None)
    with torch.device("meta"):
        there = runs._measured(setup, group, "cpu", None)
    for cell, a, b in zip(group, here, there, strict=True):
        assert all(len(values) == cell.count for values in a.values())
        for key, values in a.items():
            assert b[key] == pytest.approx(values, rel=1e-9, abs=1e-12, nan_ok=True), key


def test_fixed_experts_name_their_device():
    d = derive("I", "sgd", "mup-sigmoid", architecture="routers-softmax-topk")
    with torch.device("meta"):
        measure_fixed_experts(d, sizes=[8, 12, 16], seeds=4, steps=1, device="cpu")


def test_a_forgotten_device_would_be_seen(monkeypatch):
    """Negative control."""
    setup, real = job("III", "sgd", "mup", sizes=(8, 12, 16), seeds=2).setup(), runs.outer_norm
    monkeypatch.setattr(runs, "outer_norm", lambda *sides: real(*sides) * torch.ones(1))
    with torch.device("meta"), pytest.raises((NotImplementedError, RuntimeError)):
        runs._measured(setup, [Cell("values", 0, 0, 2)], "cpu", None)
