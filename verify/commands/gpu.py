"""Runs all measurements that need a GPU: ``python -m scaling_algebra.verify.commands.gpu -o DIR``, or ``make gpu``.

They take ten minutes on an H100. Every part is a separate command in its own process with its own time limit, so a
failure does not affect the others. ``--tiny`` rehearses all parts on the CPU.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from scaling_algebra import files
from scaling_algebra.commands.options import PathType
from scaling_algebra.errors import UsageError

NEEDED = {
    "click": "click", "msgspec": "msgspec", "numpy": "numpy", "rich": "rich", "scipy": "scipy", "sympy": "sympy",
    "tabulate": "tabulate", "torch": "torch", "transformers": "transformers", "z3": "z3-solver",
    "matplotlib": "matplotlib",
}  # fmt: skip
"""Module that the parts import -> name of its wheel."""
INSTEAD = "choose another -o DIR"
MIXTRAL = {"model_type": "mixtral", "num_hidden_layers": 2, "num_local_experts": 4, "num_experts_per_tok": 2}
TRANSFER = "study transfer --model mixtral --seeds 1 --extend 0 -o transfer.json --plot transfer.png --resume pieces"
PARTS: dict[str, tuple[str, str, int]] = {
    "run": (
        "verify --regime III --optimizer adam --parameterization mup --device cuda",
        "verify --regime III --optimizer sgd --parameterization sp --device cpu --sizes 8,12,18 --seeds 4 --steps 1",
        45,
    ),
    "campaign": (
        "verify --campaign gpu --device cuda -o campaign",
        "verify --regime I --optimizer sgd --parameterization sp --device cpu --sizes 8,12,18 --seeds 4 -o campaign",
        140,
    ),
    "check": (
        "check-model hf:mixtral.json --base N=64,N_e=128,M=4,K=4 --target N=512,N_e=1024,M=4,K=4 --points 3 --seeds 4",
        "check-model hf:mixtral.json --base N=32,N_e=16,M=2,K=2 --target N=128,N_e=64,M=2,K=2 --points 3 --seeds 4",
        125,
    ),
    "transfer": (
        f"{TRANSFER} --base N=64,N_e=128,M=8,K=2,L=2 --widths 64,256,1024 --steps 300 --grid=-10,-7 --device cuda "
        "--set batch=32 --set context=128 --parameterization mup --parameterization sp",
        f"{TRANSFER} --base N=32,N_e=16,M=2,K=1,L=1 --widths 32,64 --steps 2 --grid=-9,-7 --device cpu "
        "--set batch=2 --set context=8 --parameterization sp",
        290,
    ),
}
"""Name of a part -> (command on the GPU, command of the rehearsal, time limit in seconds)."""
PATIENCE = 1800
"""Time limit of a part in the rehearsal, in seconds."""
FINISHED = (0, 1, 3)
"""Exit codes of commands that finished: agrees, refuted, inconclusive."""


@click.command("gpu")
@click.option("-o", "--output", "folder", type=PathType(), required=True, help="Folder for the results.")
@click.option("--tiny", is_flag=True, help="Test all parts on the CPU, at sizes too small for valid results.")
@click.option("--only", multiple=True, type=click.Choice(list(PARTS)), help="Run only this part (repeatable).")
def main(folder: Path, tiny: bool, only: tuple[str, ...]) -> None:
    """Run the measurements that need a GPU, in ten minutes, and save the results."""
    try:
        summary = run_parts(folder, tiny, only or tuple(PARTS))
    except UsageError as reason:
        click.echo(f"scalecalc: {reason}", err=True)
        raise SystemExit(2) from None
    raise SystemExit(0 if all(part["exit_code"] in FINISHED for part in summary["parts"].values()) else 1)


def run_parts(folder: Path, tiny: bool, chosen: tuple[str, ...]) -> dict[str, Any]:
    """Runs the parts one after the other; the summary is also written after each.

    Args:
        folder: for results.
        tiny: whether to rehearse on the CPU.
        chosen: names of the parts.

    Returns:
        The summary.

    Raises:
        UsageError: a wheel is missing, there is no GPU, or the folder cannot be written.
    """
    if gone := [wheel for module, wheel in NEEDED.items() if find_spec(module) is None]:
        raise UsageError(f"this machine lacks {', '.join(gone)}; bring these wheels: pip install {' '.join(gone)}")
    import torch

    if not tiny and not torch.cuda.is_available():
        raise UsageError("no CUDA device is available; --tiny rehearses on the CPU")
    files.make_folder(folder, INSTEAD)
    files.write_file(folder / "mixtral.json", json.dumps(MIXTRAL), INSTEAD)
    summary: dict[str, Any] = {"tiny": tiny, "environment": describe_environment(), "parts": {}}
    for name in chosen:
        large, small, most = PARTS[name]
        summary["parts"][name] = run_part(folder, name, *((small, PATIENCE) if tiny else (large, most)))
        files.write_file(folder / "summary.json", json.dumps(summary, indent=1) + "\n", INSTEAD)
    return summary


def run_part(folder: Path, name: str, command: str, most: int) -> dict[str, Any]:
    """Runs one command, saves its output in the folder, and returns its exit code (None if it took longer than ``most``
    seconds) and the time it took.
    """
    click.echo(f"{name}: scalecalc {command}", err=True)
    began = time.perf_counter()
    words = [sys.executable, "-m", "scaling_algebra", *command.split()]
    try:
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=most, check=False)
        code, said = done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired as late:
        code, said = None, f"{_decode_output(late.stdout)}{_decode_output(late.stderr)}stopped after {most} seconds\n"
    seconds = round(time.perf_counter() - began, 1)
    files.write_file(folder / f"{name}.txt", said, INSTEAD)
    click.echo(f"{name}: exit code {code}, {seconds} s", err=True)
    return {"command": f"scalecalc {command}", "exit_code": code, "seconds": seconds}


def _decode_output(said: Any) -> str:
    return said.decode(errors="replace") if isinstance(said, bytes) else said or ""


def describe_environment() -> dict[str, Any]:
    """Returns the hardware and the versions of the packages."""
    from scaling_algebra.verify.hardware import Hardware

    versions = {}
    for wheel in ("scalecalc", *NEEDED.values()):
        try:
            versions[wheel] = version(wheel)
        except PackageNotFoundError:
            versions[wheel] = "not installed as a wheel"
    return {**Hardware.of("auto").describe(), "versions": versions}


if __name__ == "__main__":
    main()
