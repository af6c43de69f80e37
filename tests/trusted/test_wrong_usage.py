"""Wrong usage of every command: one line that says what is wrong, and exit code 2."""

import importlib
import shlex
import sys
from pathlib import Path

import pytest

from scaling_algebra.errors import UsageError

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


def forget(monkeypatch, missing, *imported):
    """Makes a package look as if it were not installed, to modules that are imported again."""
    for name in [x for x in sys.modules if x.startswith(imported)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)


def test_jax_that_is_not_installed_is_one_line(monkeypatch):
    forget(monkeypatch, "jax", "scaling_algebra.jax")
    with pytest.raises(UsageError, match=r"scaling_algebra.jax needs jax; install it with: .*\[jax\]"):
        importlib.import_module("scaling_algebra.jax")


def test_statsmodels_that_is_not_installed_is_one_line(monkeypatch, tmp_path):
    forget(monkeypatch, "statsmodels.regression.linear_model", "scaling_algebra.verify.judging.rates", "statsmodels")
    (tmp_path / "runs.csv").write_text("N,lr,loss\n128,1,2\n128,2,1\n128,4,3\n")
    found = scalecalc("law", "--fit-rate", str(tmp_path / "runs.csv"), "--size", "N")
    assert found.exit_code == 2 and "law needs statsmodels" in found.stderr, found.output
    assert "[verify]" in found.stderr and found.stderr.count("\n") == 1
