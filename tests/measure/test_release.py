"""A release: sdist and wheel build, and the wheel alone derives, trains and checks a model in a fresh environment."""

import os
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import pytest

DEPENDS = ("pyproject.toml", "tests/measure/evidence.py")
ROOT = Path(__file__).resolve().parents[2]
MODEL = """
from torch import nn
SCALING = {"base": "N=16", "target": "N=64", "seeds": 24}
def build(sizes):
    n = sizes["N"]
    linear = lambda a, b: nn.Linear(a, b, bias=False)
    return nn.Sequential(linear(8, n), nn.ReLU(), linear(n, n), linear(n, 4))
"""


def run(*words, cwd):
    """What a command prints; it sees no tree of this project."""
    hidden = {key: x for key, x in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(list(map(str, words)), cwd=cwd, capture_output=True, text=True, timeout=1800, env=hidden)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with the sdist and the wheel that pip makes of it."""
    folder = tmp_path_factory.mktemp("dist")
    run("git", "-C", ROOT, "archive", "--format=tar", "-o", folder / "tree.tar", "HEAD", cwd=folder)
    with tarfile.open(folder / "tree.tar") as tree:
        tree.extractall(folder / "tree", filter="data")
    make = "from setuptools.build_meta import build_sdist; import sys; print(build_sdist(sys.argv[1]))"
    run(sys.executable, "-c", make, folder, cwd=folder / "tree")
    (sdist,) = folder.glob("scalecalc-*.tar.gz")
    pip = sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"
    run(*pip, "-w", folder, sdist, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def scalecalc(built, tmp_path_factory):
    """The command of the wheel in an environment of its own, which has the packages of this one but not the tree."""
    folder = tmp_path_factory.mktemp("fresh")
    run(sys.executable, "-m", "venv", folder, cwd=folder)
    (wheel,) = built.glob("scalecalc-*.whl")
    run(folder / "bin" / "python", "-m", "pip", "install", "-q", "--no-deps", wheel, cwd=folder)
    (site,) = folder.glob("lib/python3*/site-packages")
    others = [p for p in sys.path if p.endswith("-packages") and Path(p).is_dir()]
    (site / "others.pth").write_text("\n".join(others))  # paths alone: the hook of an editable tree is not run
    return folder / "bin" / "scalecalc"


def test_the_sdist_has_licence_citation_types_and_data(built):
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    wanted = {"LICENSE", "README.md", "pyproject.toml", "scaling_algebra/py.typed"}
    assert wanted <= names and "scaling_algebra/spec/networks/library.toml" in names


def test_the_wheel_is_what_runs(scalecalc, tmp_path):
    python = scalecalc.with_name("python")
    where = run(python, "-c", "import scaling_algebra.verify as v; print(v.__file__)", cwd=tmp_path)
    assert where.startswith(str(scalecalc.parents[1])), where
    assert "0.2.0" in run(scalecalc, "--version", cwd=tmp_path)
    about = run(python, "-c", "from importlib.metadata import metadata as m; print(m('scalecalc'))", cwd=tmp_path)
    assert "Typing :: Typed" in about and "MIT" in about
    assert sysconfig.get_python_version() in where


def test_the_wheel_derives_trains_and_checks(scalecalc, tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    assert "router" in run(scalecalc, "derive", "--regime", "III", "--optimizer", "adam", cwd=tmp_path)
    where = "--regime", "I", "--optimizer", "sgd", "--parameterization", "mup", "--architecture", "mlp"
    said = run(scalecalc, "verify", *where, "--sizes", "16,32,64", "--seeds", "8", "--device", "cpu", cwd=tmp_path)
    assert "agree, 0 refuted" in said
    said = run(scalecalc, "check-model", "model.py:build", cwd=tmp_path)
    assert "agree, 0 refuted" in said
