"""All measurements of one GPU: rehearsed on the CPU; what fails or is late takes nothing else with it."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")

from scaling_algebra.cli import main as scalecalc
from scaling_algebra.verify.campaigns.plans import load
from scaling_algebra.verify.commands import gpu


def run(*words):
    return CliRunner().invoke(gpu.main, [str(word) for word in words])


@pytest.mark.parametrize("name", gpu.PARTS)
@pytest.mark.parametrize("which", [0, 1])
def test_every_command_is_understood(name, which):
    verb, *words = gpu.PARTS[name][which].split()
    known = scalecalc.get_command(None, verb).make_context(verb, [*words]).params
    assert not known.get("campaign") or len(load(known["campaign"])) == 12
    assert ("cuda" in words) == (which == 0 and name != "check")


def test_the_parts_fit_into_ten_minutes():
    assert sum(most for *_, most in gpu.PARTS.values()) <= 600


def test_a_rehearsal_writes_results_of_every_part(tmp_path):
    """Of all but what reads a model of transformers, which takes long."""
    pytest.importorskip("transformers")
    found = run("-o", tmp_path, "--tiny", "--only", "run", "--only", "campaign")
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert found.exit_code == 0, found.output
    assert (
        summary["tiny"]
        and summary["environment"]["versions"]["torch"]
        and list(summary["parts"]) == ["run", "campaign"]
    )
    assert all(part["exit_code"] in (0, 1, 3) and part["seconds"] > 0 for part in summary["parts"].values())
    assert "exponents agree" in (tmp_path / "run.txt").read_text()
    assert (tmp_path / "campaign" / "report.json").exists()


def test_what_fails_or_is_late_takes_nothing_else_with_it(tmp_path, monkeypatch):
    parts = {
        "wrong": ("", "derive --regime IV", 60),
        "late": ("", "derive --regime III", 0.01),
        "good": ("", "list", 60),
    }
    monkeypatch.setattr(gpu, "PARTS", parts)
    gone = gpu.run_part(tmp_path, "late", parts.pop("late")[1], 0.01)
    summary = gpu.run_parts(tmp_path, True, tuple(parts))
    assert {name: part["exit_code"] for name, part in summary["parts"].items()} == {"wrong": 2, "good": 0}
    assert "no regime named 'IV'" in (tmp_path / "wrong.txt").read_text()
    assert gone["exit_code"] is None
    assert "stopped after" in (tmp_path / "late.txt").read_text()


def test_what_is_missing_is_said_before_anything_runs(tmp_path, monkeypatch):
    if not torch.cuda.is_available():
        found = run("-o", tmp_path)
        assert found.exit_code == 2 and "no CUDA device is available; --tiny rehearses" in found.stderr
    monkeypatch.setitem(gpu.NEEDED, "not_there", "not-there")
    found = run("-o", tmp_path, "--tiny")
    assert found.exit_code == 2 and "bring these wheels: pip install not-there" in found.stderr
    assert not list(tmp_path.iterdir())
