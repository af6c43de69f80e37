"""Assembles the page as a folder for any web server: site, runtime, wheels, maps, and answers computed in advance."""

from __future__ import annotations

import json
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.metadata import version
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

from scaling_algebra import files
from scaling_algebra.errors import UsageError
from scaling_algebra.spec.axes import REGIMES
from scaling_algebra.spec.configuration import DEFAULT_OPTIMIZER, DEFAULT_PARAMETERIZATION

from .assets import RUNTIME, RUNTIME_FILES, WHEELS, collect_assets
from .maps import load_maps
from .package import wheel
from .questions import COPIES, answer_question, choices

MANIFEST = "page.json"
MADE_BY = "scalecalc page"
ANSWERED = ("adam", "adamw", "sgd")
"""Optimizers whose answers in the regimes are computed in advance."""
FIRST = {"ask": "derive", "regime": "III", "optimizer": DEFAULT_OPTIMIZER, "parameterization": DEFAULT_PARAMETERIZATION}
"""The question that the page shows first: the defaults of ``derive``."""


def questions() -> Iterator[dict[str, str]]:
    """Yields every question that is answered in advance: each derived parameterization in each regime."""
    for optimizer in ANSWERED:
        for rule in choices()["derived"]:
            for regime in REGIMES:
                yield {"ask": "derive", "regime": regime, "optimizer": optimizer, "parameterization": rule}


def key(question: dict[str, str]) -> str:
    """Serialises a question exactly as ``site/engine.js`` does, so that the page finds the stored answer by this
    text.
    """
    return json.dumps(question, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def check(folder: Path) -> None:
    """Checks that the page may be written into a folder: a new one, an empty one, or one with a page.

    Raises:
        UsageError: ``folder`` is no folder, contains other files, or cannot be written.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"cannot write into {folder}: it is not a folder; give -o another one")
    if folder.is_dir() and _before(folder) is None and any(folder.iterdir()):
        raise UsageError(f"{folder} contains files that are no page of scalecalc; give -o another folder")
    files.check_place(folder, "give -o another folder")


def assemble(folder: Path, assets: Path | None = None, say: Callable[[str], None] = lambda _: None) -> int:
    """Assembles the page.

    Args:
        folder: the folder to write; a page in it is replaced.
        assets: a folder with the runtime and the wheels; missing files are downloaded into it. Without it everything is
            downloaded to a temporary folder.
        say: called with a line for every step.

    Returns:
        The size of the page in bytes.

    Raises:
        UsageError: the folder has other files, or an asset is not available.
    """
    check(folder)
    contents: dict[str, bytes] = {}
    with tempfile.TemporaryDirectory() as temporary:
        source = Path(temporary) if assets is None else assets
        files.make_folder(source, "give --assets another folder")
        collect_assets(source, say)
        contents |= dict(_runtime(source / RUNTIME.file))
        contents |= {f"wheels/{w.file}": (source / w.file).read_bytes() for w in WHEELS}
    package, content = wheel()
    contents[f"wheels/{package}"] = content
    contents |= {f"maps/{name}.json": _json(record) for name, record in load_maps().items()}
    contents |= {x.name: x.read_bytes() for x in (resources(__package__) / "site").iterdir() if x.is_file()}
    names: dict[str, str] = {}
    for k, question in enumerate(questions(), 1):
        say(f"answering {question['parameterization']}, {question['optimizer']}, regime {question['regime']}")
        names[key(question)] = f"answers/{k}.json"
        copies = {form: answer_question({**question, "as": form})["text"] for form in COPIES}
        contents[f"answers/{k}.json"] = _json({**answer_question(question), "copies": copies})
    manifest = {
        "made_by": MADE_BY,
        "version": version("scalecalc"),
        "pyodide": RUNTIME.version,
        "wheels": [{"file": w.file, "for": w.needed} for w in WHEELS] + [{"file": package, "for": ""}],
        "first": FIRST,
        "answers": names,
        "choices": choices(),
        "files": sorted(contents),
    }
    say(f"writing {folder}")
    _write(folder, contents, manifest)
    return sum(map(len, contents.values()))


def _before(folder: Path) -> list[str] | None:
    """Lists the files that an earlier assembly wrote into a folder; None if the folder has no page."""
    with suppress(OSError, ValueError, AttributeError, TypeError):
        manifest = json.loads((folder / MANIFEST).read_text("utf-8"))
        if manifest.get("made_by") == MADE_BY:
            names = [str(name) for name in manifest["files"]]
            return [name for name in names if ".." not in Path(name).parts and not Path(name).is_absolute()]
    return None


def _write(folder: Path, contents: dict[str, bytes], manifest: dict[str, Any]) -> None:
    """Writes the page, and removes files that only the old page had.

    The manifest is written first, so that a page whose writing was interrupted is recognised as one.
    """
    files.make_folder(folder, "give -o another folder")
    for name in set(_before(folder) or ()) - set(contents):
        with suppress(OSError):
            (folder / name).unlink()
    files.write_file(folder / MANIFEST, _json(manifest))
    for name, content in contents.items():
        files.make_folder((folder / name).parent, "give -o another folder")
        files.write_file(folder / name, content)


def _runtime(archive: Path) -> Iterator[tuple[str, bytes]]:
    """Yields (path in the page, content) of those files in the archive of Pyodide, the Python for browsers, that the
    page needs.
    """
    with tarfile.open(archive) as members:
        for name in RUNTIME_FILES:
            member = members.extractfile(f"package/{name}")
            assert member is not None
            yield f"pyodide/{name}", member.read()


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
