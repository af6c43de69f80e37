"""Runs tests with the oldest versions that `pyproject.toml` allows (`tests/oldest.txt`), in a separate environment.

Run: ``python benchmarks/floors.py`` (downloads old packages; `make measure` does it). Exits with the code of the tests.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
OLDEST = ROOT / "tests" / "oldest.txt"
RUN_WITH = ("pandas", "pytest", "pytest-timeout", "hypothesis")
TESTS = ("tests/engine/test_commands.py", "tests/engine/test_documents.py", "tests/verify/test_fit.py")
TESTS += ("tests/verify/test_session.py", "tests/verify/test_cluster.py", "tests/verify/test_output.py")
TESTS += ("tests/engine/test_level.py",)


def main() -> int:
    """Installs the packages, lists their versions, and runs the tests."""
    (torch,) = re.findall(r"^torch==\S+$", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE)
    with tempfile.TemporaryDirectory() as place:
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
        python = Path(place) / "bin" / "python"
        install = [python, "-m", "pip", "install", "-q", "-c", OLDEST]
        subprocess.run([*install, torch], check=True)
        subprocess.run([*install, "-e", f"{ROOT}[verify,cluster]", *RUN_WITH], check=True)
        subprocess.run([python, "-m", "pip", "list"], check=True)
        environ = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        return subprocess.run([python, "-m", "pytest", "-x", *TESTS], cwd=ROOT, env=environ).returncode


if __name__ == "__main__":
    sys.exit(main())
