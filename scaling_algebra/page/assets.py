"""Sources of the page's runtime and wheels: a folder, or the registries that npm and pip are set to.

What is taken is what ``assets.toml`` names, by its sha256; nothing else gets onto the page.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from scaling_algebra.errors import UsageError
from scaling_algebra.files import reason, shipped, write

REGISTRY = "https://registry.npmjs.org"
"""The source of the runtime where there is no npm."""
SECONDS = 300


@dataclass(frozen=True)
class Asset:
    """A file of a fixed content. ``needed``: the module whose import asks for it; empty for the start."""

    name: str
    version: str
    file: str
    sha256: str
    needed: str = ""

    def fits(self, path: Path) -> bool:
        """Is this the file, to the last byte?"""
        return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == self.sha256


_DATA = shipped(__package__, "assets.toml")
RUNTIME = Asset(**_DATA["runtime"])
"""The npm archive of Pyodide."""
RUNTIME_FILES: Sequence[str] = _DATA["files"]
"""The files of that archive that a page needs."""
WHEELS = [Asset(**entry) for entry in _DATA["wheel"]]
"""The packages that the engine imports."""


def collected(folder: Path, say: Callable[[str], None]) -> None:
    """Every asset in a folder; what is missing is downloaded into it.

    Raises:
        UsageError: it cannot be had, or is another file than ``assets.toml`` names.
    """
    if not RUNTIME.fits(folder / RUNTIME.file):
        say(f"downloading {RUNTIME.name} {RUNTIME.version} (npm)")
        _npm(RUNTIME, folder)
    missing = [wheel for wheel in WHEELS if not wheel.fits(folder / wheel.file)]
    if missing:
        say(f"downloading {', '.join(f'{w.name} {w.version}' for w in missing)} (pip)")
        _pip(missing, folder)
    for asset in (RUNTIME, *WHEELS):
        if not asset.fits(path := folder / asset.file):
            raise UsageError(f"{path} is not {asset.name} {asset.version}: its sha256 is another; remove it")


def _npm(asset: Asset, folder: Path) -> None:
    """By npm, with the user's configuration; without npm from its public registry."""
    if npm := shutil.which("npm"):
        _run([npm, "pack", f"{asset.name}@{asset.version}", "--silent", "--pack-destination", str(folder)], asset.name)
        return
    try:
        with urlopen(f"{REGISTRY}/{asset.name}/-/{asset.file}", timeout=SECONDS) as answer:
            write(folder / asset.file, answer.read())
    except OSError as error:
        raise _offline(asset.name, str(reason(error))) from None


def _pip(missing: Sequence[Asset], folder: Path) -> None:
    """By the pip of this python, with the user's configuration."""
    named = [f"{wheel.name}=={wheel.version}" for wheel in missing]
    target = ["--only-binary", ":all:", "--platform", _DATA["platform"], "--python-version", _DATA["python"]]
    command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps", *target]
    _run([*command, "--dest", str(folder), *named], ", ".join(wheel.name for wheel in missing))


def _run(command: Sequence[str], what: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise _offline(what, str(error)) from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()]
        raise _offline(what, (errors or lines or ["no reason given"])[-1])


def _offline(what: str, why: str) -> UsageError:
    cause, files = why.strip()[:160], ", ".join(asset.file for asset in (RUNTIME, *WHEELS))
    return UsageError(f"cannot download {what} ({cause}); go online, or give --assets a folder with {files}")
