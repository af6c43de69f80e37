"""Writes `requirements.lock`, every package that development needs with its hash, and the table of their licences.

Run: ``python benchmarks/lock.py`` (asks the package index, downloads nothing large). The hashes are of the files for
this platform and Python. `pip install --require-hashes --no-deps -r requirements.lock` installs exactly these.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any

from tabulate import tabulate

ROOT = Path(__file__).parents[1]
LOCK, TABLE = ROOT / "requirements.lock", ROOT / "docs" / "dependencies.md"
HEAD = f"# Linux, x86_64, Python {sys.version_info[0]}.{sys.version_info[1]}; made by benchmarks/lock.py\n"

ELSEWHERE = {"cvc5": "BSD-3-Clause", "mkdocstrings": "ISC"}
"""Licences that a package has in its sources and not in its description."""


def direct() -> dict[str, list[str]]:
    """Direct dependencies by name, with the parts of the project that need them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    parts = {"always": project["dependencies"], **project["optional-dependencies"]}
    parts_of: dict[str, list[str]] = {}
    for part, entries in parts.items():
        for entry in entries:
            parts_of.setdefault(plain(entry), []).append(part)
    return dict(sorted(parts_of.items()))


def plain(name: str) -> str:
    """The name of a package as the index has it."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\[<>=~! ]", name)[0]).lower()


def licence(name: str, index_entry: dict[str, Any] | None = None) -> str:
    """The licence that an installed package says it has: its expression, its classifier, or its first line.

    Args:
        index_entry: what the index says, for a package that is not installed.
    """
    try:
        about = metadata(name)
        classifiers, text = about.get_all("Classifier", []), about.get("License")
        expression = about.get("License-Expression")
    except PackageNotFoundError:
        entry = index_entry or {}
        classifiers, text, expression = (entry.get(x) for x in ("classifier", "license", "license_expression"))
    expression = expression or ELSEWHERE.get(name)
    kinds = [x.rsplit(" :: ", 1)[1] for x in classifiers or () if x.startswith("License ::") and x.count(" :: ") > 1]
    return str(expression or " or ".join(kinds) or str(text or "not said").strip().splitlines()[0][:60])


def resolved() -> list[dict[str, Any]]:
    """The packages that pip would install, with hashes."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
        requirements = sum(project["optional-dependencies"].values(), project["dependencies"])
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
        subprocess.run([*command, "--report", report, "-c", ROOT / "constraints.txt", *requirements], check=True)
        packages: list[dict[str, Any]] = json.loads(report.read_text("utf-8"))["install"]
        return sorted(packages, key=lambda x: plain(x["metadata"]["name"]))


def main() -> None:
    """Writes both files."""
    lines, rows, parts = [], [], direct()
    for package in resolved():
        name, about = plain(package["metadata"]["name"]), package["metadata"]
        digest = package["download_info"]["archive_info"]["hashes"]["sha256"]
        lines.append(f"{name}=={about['version']} --hash=sha256:{digest}")
        if name in parts:
            rows.append([name, about["version"], licence(name, about), ", ".join(parts[name])])
    LOCK.write_text(HEAD + "\n".join(lines) + "\n", encoding="utf-8")
    head = (
        "# Dependencies\n\nWhat the project needs, in the versions that `requirements.lock` has, with their licences;\n"
    )
    head += "made by `python benchmarks/lock.py`. Only what is needed *always* is needed to derive.\n\n"
    TABLE.write_text(head + tabulate(rows, ("package", "version", "licence", "part"), "github") + "\n", "utf-8")


if __name__ == "__main__":
    main()
