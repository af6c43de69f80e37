"""A release: sdist and wheel are built, hold what they must, and the wheel alone runs in a fresh environment."""

import json
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEPENDS = ("pyproject.toml",)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BUILD = "import sys; from setuptools import build_meta as b; print(getattr(b, sys.argv[1])(sys.argv[2]))"
MODEL = """
from torch import nn
def build(sizes):
    n = sizes["N"]
    return nn.Sequential(nn.Embedding(32, n), nn.RMSNorm(n), nn.Linear(n, 32, bias=False))
"""


def run(*words, cwd, codes=(0,)):
    found = subprocess.run([str(word) for word in words], cwd=cwd, capture_output=True, text=True, timeout=600)
    assert found.returncode in codes, found.stdout + found.stderr
    return found.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """What the sdist holds, unpacked: a wheel is built of that, as an installer does."""
    folder = tmp_path_factory.mktemp("dist")
    copy = folder / "checkout"
    tracked = run("git", "ls-files", "-z", cwd=ROOT).split("\0")
    for name in filter(None, tracked):
        if (ROOT / name).is_file() and not name.startswith("verify/evidence/blind"):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
    name = run(sys.executable, "-c", BUILD, "build_sdist", folder, cwd=copy).splitlines()[-1]
    with tarfile.open(folder / name) as packed:
        packed.extractall(folder / "source", filter="data")
    (unpacked,) = (folder / "source").iterdir()
    return unpacked


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    return folder / run(sys.executable, "-c", BUILD, "build_wheel", folder, cwd=source).splitlines()[-1]


@pytest.fixture(scope="module")
def fresh(wheel, tmp_path_factory):
    """An environment with the wheel; its dependencies are those of this one, the project itself is not."""
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder / "env")
    python = folder / "env" / "bin" / "python"
    quiet = ("-q", "--no-deps", "--no-index", "--no-compile")
    run(sys.executable, "-m", "pip", "--python", python, "install", *quiet, wheel, cwd=folder)
    (home,) = (folder / "env" / "lib").glob("python*/site-packages")
    here = [path for path in sys.path if path.endswith("-packages")] or [sysconfig.get_path("purelib")]
    (home / "dependencies.pth").write_text("\n".join(here), encoding="utf-8")
    where = run(python, "-c", "import scaling_algebra; print(scaling_algebra.__file__)", cwd=folder)
    assert str(folder) in where and str(ROOT) not in where
    return folder


def test_the_sdist_has_licence_readme_and_data(source):
    for name in ("LICENSE", "README.md", "pyproject.toml", "scaling_algebra/py.typed", "verify/campaigns/gpu.toml"):
        assert (source / name).is_file(), name


def test_the_wheel_says_what_it_is_and_holds_no_tests(wheel):
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        (about,) = (name for name in names if name.endswith("METADATA"))
        metadata = Parser().parsestr(packed.read(about).decode())
    assert "scaling_algebra/py.typed" in names and any(name.endswith("LICENSE") for name in names)
    assert not [name for name in names if name.startswith(("tests", "benchmarks")) or "/evidence/" in name]
    assert metadata["Version"] == PROJECT["version"] and "Typing :: Typed" in metadata.get_all("Classifier")
    assert f"version: {PROJECT['version']}" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert metadata["Requires-Python"] == PROJECT["requires-python"] and "# scalecalc" in metadata.get_payload()


def test_the_wheel_alone_derives_measures_and_checks_a_model(fresh, record_property):
    scalecalc = fresh / "env" / "bin" / "scalecalc"
    words = "derive --regime III --optimizer adam --parameterization mup --format json"
    assert json.loads(run(scalecalc, *words.split(), cwd=fresh))["tensors"]["router"]["c"] == "1"
    words = "verify --regime I --optimizer sgd --parameterization mup --sizes 16,32,64 --seeds 8 --device cpu"
    agreed = run(scalecalc, *words.split(), cwd=fresh, codes=(0, 3))  # few sizes leave some open
    assert " 0 refuted" in agreed
    (fresh / "mine.py").write_text(MODEL, encoding="utf-8")
    words = "check-model mine.py:build --base N=32 --target N=128"
    checked = run(scalecalc, *words.split(), cwd=fresh, codes=(0, 3))
    assert " 0 refuted" in checked
    record_property("printed", [agreed.splitlines()[2], checked.splitlines()[2]])


def test_the_command_of_the_gpu_is_rehearsed_from_the_wheel(fresh):
    """All parts, with a model of transformers."""
    pytest.importorskip("transformers")
    python = fresh / "env" / "bin" / "python"
    run(python, "-m", "scaling_algebra.verify.commands.gpu", "-o", "results", "--tiny", cwd=fresh)
    summary = json.loads((fresh / "results" / "summary.json").read_text(encoding="utf-8"))
    assert list(summary["parts"]) == ["run", "campaign", "check", "transfer"]
    assert all(part["exit_code"] in (0, 1, 3) for part in summary["parts"].values()), summary["parts"]
