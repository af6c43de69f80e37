"""Keeps what every cell of a run measured, in memory or in a folder that an interrupted run continues from.

A folder holds ``plan.json`` (what was asked) and one small file per cell under ``cells``; files are written whole or
not at all, so that processes share a folder and a killed one costs only what it had not finished. A cell's file says
which cell of which run it holds, with a checksum: what does not fit is measured again.
Read next: ``cells.py`` (what a cell is), ``runs.py`` (fills a store).
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scaling_algebra import files
from scaling_algebra.errors import UsageError
from scaling_algebra.verify.judging.fit import Array
from scaling_algebra.verify.judging.measurement import Record

PLAN = "plan.json"
FORMAT = 1
"""Version of the files of a folder; newer ones are refused."""
MOST = 2**28
"""Bytes of a cell, as its file declares them before anything is read, and of a plan."""


class Store:
    """Records by run and cell.

    Args:
        folders: where records are looked for; new ones go to the first. None at all: they stay in memory.
    """

    def __init__(self, *folders: Path) -> None:
        self._folders = folders
        self._kept: dict[tuple[str, str], Record] = {}
        self._environments: dict[tuple[str, int], dict[str, Any]] = {}

    def load(self, run: str, cell: str) -> Record | None:
        """What a cell measured; None if it is not there (or was damaged: then it is measured again)."""
        if (run, cell) not in self._kept:
            for folder in self._folders:
                record = _read(folder / "cells" / run / f"{cell}.npz", run, cell)
                if record is not None:
                    self._kept[run, cell] = record
                    break
        return self._kept.get((run, cell))

    def save(self, run: str, cell: str, record: Record) -> None:
        self._kept[run, cell] = record
        if self._folders:
            out = io.BytesIO()
            names, values = [f"{name}@{t}" for name, t in record], np.stack(list(record.values()))
            about = json.dumps(_about(run, cell, names, values))
            np.savez_compressed(out, about=np.array(about), names=np.array(names), values=values)
            _write(self._folders[0] / "cells" / run / f"{cell}.npz", out.getvalue())

    def describe(self, run: str, rank: int, environment: dict[str, Any]) -> None:
        """Where and with what a process measures a run."""
        self._environments[run, rank] = environment
        if self._folders:
            path = self._folders[0] / "cells" / run / f"environment-{rank}.json"
            _write(path, json.dumps(environment).encode())

    def environment(self, run: str) -> dict[str, Any]:
        """Where and with what a run was measured; several processes: all their devices, and the largest memory."""
        told = [e for (name, _), e in sorted(self._environments.items()) if name == run]
        for folder in self._folders:
            for path in sorted((folder / "cells" / run).glob("environment-*.json")):
                told.append(_environment(path))
        if not any(told):
            return {}
        devices = ", ".join(sorted({str(e["device"]) for e in told if "device" in e}))
        taken = [e.get("peak_memory_bytes") for e in told]
        memory = max((n for n in taken if isinstance(n, int)), default=None)
        return {**next(filter(None, told)), "device": devices, "peak_memory_bytes": memory}


def _read(path: Path, run: str, cell: str) -> Record | None:
    """What a file holds of a cell; None where it is not there, damaged, or of another cell: that is measured again.

    Raises:
        UsageError: a newer version wrote it.
    """
    if not path.exists():
        return None
    try:
        with zipfile.ZipFile(path) as parts:
            if sum(part.file_size for part in parts.infolist()) > MOST:
                return None
        with np.load(path, allow_pickle=False) as file:
            about, names, values = json.loads(str(file["about"])), file["names"].tolist(), file["values"]
        if about["format"] > FORMAT:
            raise UsageError(f"{path} was written by a newer scalecalc (format {about['format']}); use that one")
        if about != _about(run, cell, names, values) or values.shape[:1] != (len(names),):
            return None
        keys = [(name, int(t)) for name, _, t in (text.rpartition("@") for text in names)]
        return dict(zip(keys, values, strict=True)) if len(set(keys)) == len(keys) else None
    except UsageError:
        raise
    except Exception:  # a damaged file fails in as many ways as there are formats inside it
        return None


def _about(run: str, cell: str, names: Sequence[str], values: Array) -> dict[str, Any]:
    """Which cell a file holds, in which format, and a checksum of what it holds."""
    told = json.dumps([run, cell, list(names), str(values.dtype), values.shape]).encode()
    checksum = hashlib.sha256(told + np.ascontiguousarray(values).tobytes()).hexdigest()
    return {"format": FORMAT, "run": run, "cell": cell, "sha256": checksum}


def _environment(path: Path) -> dict[str, Any]:
    """What a process told of where it measured; empty where that cannot be read."""
    try:
        told = json.loads(files.read_text(path, ""))
    except (UsageError, ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


def _write(path: Path, content: bytes) -> None:
    instead = "make room or choose another -o DIR"
    if not path.parent.is_dir():
        files.make_folder(path.parent, instead)
    files.write(path, content, instead)


def write_plan(folder: Path, plan: dict[str, Any], again: bool = False) -> None:
    """What a folder is about; ``again`` replaces what it was about before.

    Raises:
        UsageError: the folder cannot be written, or holds another run.
    """
    path = folder / PLAN
    files.make_folder(folder, "choose another -o DIR")
    files.sweep(folder)
    if not again and path.exists() and read_plan(folder)["runs"] != json.loads(json.dumps(plan["runs"])):
        raise UsageError(f"{folder} holds another run; continue it with --resume {folder}, or give another -o DIR")
    _write(path, (json.dumps({"format": FORMAT, **plan}, indent=1) + "\n").encode())


def read_plan(folder: Path) -> dict[str, Any]:
    """What a folder is about.

    Raises:
        UsageError: it is not a folder of a run, or a newer version wrote it.
    """
    path, instead = folder / PLAN, "give a folder that scalecalc verify -o DIR wrote"
    text = files.read_text(path, instead, MOST)
    try:
        plan = json.loads(text)
    except (ValueError, RecursionError):
        raise UsageError(f"cannot read {path}: it is not JSON; {instead}") from None
    if not isinstance(plan, dict) or not isinstance(plan.get("runs"), list):
        raise UsageError(f"cannot read {path}: it does not list runs; {instead}")
    version = plan.get("format", FORMAT)
    if isinstance(version, bool) or not isinstance(version, int) or not 0 < version <= FORMAT:
        raise UsageError(f"{path} was written by a newer scalecalc, or is damaged (format {version}); use that one")
    return plan
