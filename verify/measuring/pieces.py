"""Keeps finished pieces of a long command in a folder, so that the same command goes on from there.

A piece is what JSON can hold, under all that it depends on; its file repeats that, with a checksum, so that a piece of
another question, or a damaged one, is made again.
Read next: ``transfer/sweep.py`` and ``experiments/runner.py`` (whose pieces are losses and findings).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from scaling_algebra import files
from scaling_algebra.errors import UsageError

FORMAT = 1
"""Version of the files; newer ones are refused."""
_INSTEAD = "make room or choose another --resume DIR"


class Pieces:
    """Finished pieces.

    Args:
        folder: where they are kept; None: nowhere.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        if folder is not None:
            files.make_folder(folder, _INSTEAD)
            files.sweep(folder)

    def of(self, what: Mapping[str, Any], make: Callable[[], Any]) -> Any:
        """The piece that depends on exactly this: as it is kept, or made and kept.

        Raises:
            UsageError: the folder cannot be written, or a newer version wrote it.
        """
        if self.folder is None:
            return make()
        told = json.dumps(what, sort_keys=True)
        path = self.folder / f"{_sum(told)[:32]}.json"
        if path.exists() and (kept := _read(path, told)) is not None:
            return kept[0]
        piece = json.dumps(make())
        content = {"format": FORMAT, "what": what, "sha256": _sum(told + piece), "piece": json.loads(piece)}
        files.write(path, json.dumps(content) + "\n", _INSTEAD)
        return json.loads(piece)


def _read(path: Path, told: str) -> tuple[Any] | None:
    try:
        content = json.loads(files.read_text(path, _INSTEAD, ours=True))
        version, piece = content["format"], content["piece"]
        fits = json.dumps(content["what"], sort_keys=True) == told
        whole = content["sha256"] == _sum(told + json.dumps(piece))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if isinstance(version, int) and version > FORMAT:
        raise UsageError(f"{path} was written by a newer scalecalc (format {version}); use that one")
    return (piece,) if fits and whole else None


def _sum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
