"""The runtime and the wheels of the page, taken from a folder or from the registries configured in npm and pip.

Only the files that ``assets.toml`` lists, identified by their sha256, get onto the page.
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
from scaling_algebra.files import describe_cause, load_shipped_toml, write_file

REGISTRY = "https://registry.npmjs.org"
"""The registry of the runtime if npm is not installed."""
SECONDS = 300


@dataclass(frozen=True)
class Asset:
    """A file with a fixed content.

    Attributes:
        name: the package.
        version: its version.
        file: the file name.
        sha256: the hash of its content.
        needed: the module whose import loads it; empty if the page loads it at the start.
    """

    name: str
    version: str
    file: str
    sha256: str
    needed: str = ""

    def fits(self, path: Path) -> bool:
        """Tests whether a file has exactly the expected content."""
        return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == self.sha256


_DATA = load_shipped_toml(__package__, "assets.toml")
RUNTIME = Asset(**_DATA["runtime"])
"""The npm archive of Pyodide."""
RUNTIME_FILES: Sequence[str] = _DATA["files"]
"""The files of that archive that a page needs."""
WHEELS = [Asset(**entry) for entry in _DATA["wheel"]]
"""The packages that the engine imports."""


def collect_assets(folder: Path, say: Callable[[str], None]) -> None:
    """Downloads the assets that a folder lacks, and verifies all of them.

    Raises:
        UsageError: an asset is not available, or has another content than ``assets.toml`` says.
    """
    if not RUNTIME.fits(folder / RUNTIME.file):
        say(f"downloading {RUNTIME.name} {RUNTIME.version} (npm)")
        _load_with_npm(RUNTIME, folder)
    missing = [wheel for wheel in WHEELS if not wheel.fits(folder / wheel.file)]
    if missing:
        say(f"downloading {', '.join(f'{w.name} {w.version}' for w in missing)} (pip)")
        _load_with_pip(missing, folder)
    for asset in (RUNTIME, *WHEELS):
        if not asset.fits(path := folder / asset.file):
            raise UsageError(
                f"{path} differs from {asset.name} {asset.version} (sha256); remove it, so that it is downloaded again"
            )


def _load_with_npm(asset: Asset, folder: Path) -> None:
    """Loads an asset with npm in the user's configuration, or from the public registry if npm is not installed."""
    if npm := shutil.which("npm"):
        _run([npm, "pack", f"{asset.name}@{asset.version}", "--silent", "--pack-destination", str(folder)], asset.name)
        return
    try:
        with urlopen(f"{REGISTRY}/{asset.name}/-/{asset.file}", timeout=SECONDS) as answer:
            write_file(folder / asset.file, answer.read())
    except OSError as error:
        raise _offline(asset.name, str(describe_cause(error))) from None


def _load_with_pip(missing: Sequence[Asset], folder: Path) -> None:
    """Loads wheels with the pip of this Python in the user's configuration."""
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
