"""The oldest versions that pyproject.toml allows, installed and run with."""

import os
import re
import subprocess
import sys
import tomllib

from .evidence import ROOT

DEPENDS = ("pyproject.toml", "tests/oldest.txt", "scaling_algebra", "tables", "verify")
OLDEST = dict(re.findall(r"^([\w-]+)==(\S+)$", (ROOT / "tests/oldest.txt").read_text(), re.MULTILINE))
RUN = ["tests/engine/test_commands.py", "tests/engine/test_documents.py", "tests/verify/test_session.py"]
RUN += ["tests/verify/test_cluster.py", "tests/verify/test_output.py", "tests/verify/test_fit.py"]


def test_every_floor_is_one_that_is_tried():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["verify"], *extras["cluster"]]
    floors = dict(x.split(">=") for x in wanted if not x.startswith("torch"))
    assert set(floors) == set(OLDEST)
    assert all(f"{OLDEST[name]}.".startswith(f"{least}.") for name, least in floors.items())


def test_the_oldest_versions_work(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", tmp_path], check=True)
    pip = [tmp_path / "bin" / "pip", "install", "-q", "-c", ROOT / "tests/oldest.txt"]
    (torch,) = re.findall(r"^torch==\S+$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    subprocess.run([*pip, torch], check=True)
    subprocess.run([*pip, f"{ROOT}[verify,cluster]", "pytest", "pytest-timeout", "hypothesis"], check=True)
    environ = {key: x for key, x in os.environ.items() if key != "PYTHONPATH"}
    subprocess.run([tmp_path / "bin" / "python", "-m", "pytest", "-x", *RUN], cwd=ROOT, env=environ, check=True)
