"""Writes `requirements.lock`: every package that development needs, with its hash.

Run: ``python benchmarks/lock.py`` (queries the package index; no large downloads). The hashes are of the files for this
platform and Python. `pip install --require-hashes --no-deps -r requirements.lock` installs exactly these.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"
HEAD = f"# Linux, x86_64, Python {sys.version_info[0]}.{sys.version_info[1]}; made by benchmarks/lock.py\n"


def read_requirements() -> list[str]:
    """Returns the requirements of the project and of all its optional parts."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return sum(project["optional-dependencies"].values(), project["dependencies"])  # type: ignore[no-any-return]


def normalise_name(name: str) -> str:
    """Returns the name of a package as the index spells it."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\[<>=~! ]", name)[0]).lower()


def resolve_packages() -> list[dict[str, Any]]:
    """Returns the packages that pip would install, with hashes."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
        subprocess.run([*command, "--report", report, "-c", ROOT / "constraints.txt", *read_requirements()], check=True)
        packages: list[dict[str, Any]] = json.loads(report.read_text("utf-8"))["install"]
        return sorted(packages, key=lambda x: normalise_name(x["metadata"]["name"]))


def main() -> None:
    """Writes the lock file."""
    lines = []
    for package in resolve_packages():
        digest, about = package["download_info"]["archive_info"]["hashes"]["sha256"], package["metadata"]
        lines.append(f"{normalise_name(about['name'])}=={about['version']} --hash=sha256:{digest}")
    LOCK.write_text(HEAD + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
