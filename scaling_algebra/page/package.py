"""Builds a wheel of the package from the installed files, so that the browser runs the same code."""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from scaling_algebra.errors import UsageError

ROOT = __name__.partition(".")[0]
MAPPED = ("tables", "verify")
"""Packages whose folders are elsewhere in a checkout."""
_NOT_INSTALLED = {"__pycache__", "emitted", "evidence"}
_BUILT = {".so", ".pyd"}
"""Suffixes of compiled files, which run on this platform only."""
_THEN = (1980, 1, 1, 0, 0, 0)


def wheel() -> tuple[str, bytes]:
    """Builds the wheel, and returns its file name and content. The same files give the same bytes."""
    number = version("scalecalc")
    info = f"scalecalc-{number}.dist-info"
    entries = dict(sorted((name, path.read_bytes()) for name, path in list_installed()))
    entries[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: scalecalc\nVersion: {number}\n".encode()
    entries[f"{info}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: scalecalc page\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    record = [f"{name},sha256={_hash(content)},{len(content)}" for name, content in entries.items()]
    entries[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(zipfile.ZipInfo(name, _THEN), content, zipfile.ZIP_DEFLATED)
    return f"scalecalc-{number}-py3-none-any.whl", out.getvalue()


def list_installed() -> Iterator[tuple[str, Path]]:
    """Yields every file of the package, with its name in a wheel.

    Raises:
        UsageError: the package is not installed as files in a folder.
    """
    folders = {ROOT: _folder(ROOT)} | {f"{ROOT}/{name}": _folder(f"{ROOT}.{name}") for name in MAPPED}
    for prefix, folder in folders.items():
        for path in folder.rglob("*"):
            inside = path.relative_to(folder)
            mapped = prefix == ROOT and inside.parts[0] in MAPPED
            if path.is_file() and path.suffix not in _BUILT and not mapped and not _NOT_INSTALLED & set(inside.parts):
                yield f"{prefix}/{inside.as_posix()}", path


def _folder(name: str) -> Path:
    spec = find_spec(name)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not places or not Path(places[0]).is_dir():
        raise UsageError(f"{name} is not installed as files; install scalecalc with pip")
    return Path(places[0])


def _hash(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
