"""Wrong usage of every command: one line that says what is wrong, and exit code 2."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ..shared import scalecalc

SHORT = {
    "CLUSTER": "law switch-cluster",
    "MOE": "law moe-transformer",
    "SUM": "law 'N**-p + N/n' --min N --in n",
    "HORIZON": "recipe --batch 1:1 --optimizer adamw",
    "SMALL": "recipe --base N=64,L=2 --target N=128,L=2",
    "LARGE": "recipe --target N=4096,N_e=1024,M=256,K=8 --base",
    "EACH": "derive --architecture routers-softmax --regime I --without each",
    "FORMULA": "explain --formula",
    "WHY": "explain --regime III",
    "RUN": "verify --regime I --optimizer sgd --parameterization sp --sizes 8,12,18 --seeds 8",
    "TRANSFER": "study transfer --model tests/shared.py:build",
}
"""Beginnings of commands."""
WRONG = Path(__file__).with_name("wrong_usage.txt").read_text(encoding="utf-8")
"""Commands, from the root of the repository, and words of what they say."""


@pytest.mark.parametrize("line", WRONG.splitlines())
def test_wrong_usage_is_one_line(line, request, monkeypatch):
    monkeypatch.chdir(request.config.rootpath)
    command, _, words = line.rpartition(" | ")
    first, _, rest = command.partition(" ")
    found = scalecalc(*shlex.split(f"{SHORT.get(first, first)} {rest}"))
    assert found.exit_code == 2 and words in found.stderr and found.stderr.count("\n") == 1, found.output


@pytest.mark.parametrize(
    ("missing", "code", "said"),
    [
        ("jax", "import scaling_algebra.jax", ["scaling_algebra.jax needs jax; install it with: ", "[jax]"]),
        (
            "statsmodels",
            "from scaling_algebra.cli import main; main(['law', '--fit-rate', 'runs.csv', '--size', 'N'])",
            ["scalecalc: law needs statsmodels; install it with: ", "[verify]"],
        ),
    ],
)
def test_a_package_that_is_not_installed_is_named(missing, code, said, tmp_path):
    (tmp_path / "runs.csv").write_text("N,lr,loss\n128,1,2\n128,2,1\n128,4,3\n")
    code = f"import sys; sys.modules[{missing!r}] = None; {code}"
    found = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    last = found.stderr.splitlines()[-1]
    assert found.returncode and all(words in last for words in said), found.stderr
