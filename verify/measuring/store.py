"""Keeps what every cell of a run measured, in memory or in a folder that an interrupted run continues from.

A folder holds ``plan.json`` (what was asked) and one small file per cell under ``cells``; files are written whole or
not at all, so that processes share a folder and a killed one costs only what it had not finished.
Read next: ``cells.py`` (what a cell is), ``runs.py`` (fills a store).
"""

from __future__ import annotations

import io
import json
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from scaling_algebra.errors import UsageError
from scaling_algebra.verify.judging.measurement import Record

PLAN = "plan.json"


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
                record = _read(folder / "cells" / run / f"{cell}.npz")
                if record is not None:
                    self._kept[run, cell] = record
                    break
        return self._kept.get((run, cell))

    def save(self, run: str, cell: str, record: Record) -> None:
        self._kept[run, cell] = record
        if self._folders:
            out = io.BytesIO()
            names = np.array([f"{name}@{t}" for name, t in record])
            np.savez_compressed(out, names=names, values=np.stack(list(record.values())))
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
                with suppress(OSError, ValueError):
                    told.append(json.loads(path.read_text(encoding="utf-8")))
        if not told:
            return {}
        devices = ", ".join(sorted({e["device"] for e in told}))
        memory = max(e["peak_memory_bytes"] or 0 for e in told)
        return {**told[0], "device": devices, "peak_memory_bytes": memory or None}


def _read(path: Path) -> Record | None:
    if not path.exists():
        return None
    try:
        with np.load(path) as file:
            names, values = file["names"].tolist(), file["values"]
        keys = [(name, int(t)) for name, _, t in (text.rpartition("@") for text in names)]
        return dict(zip(keys, values, strict=True))
    except Exception:  # a damaged file fails in as many ways as there are formats inside it
        return None


def _write(path: Path, content: bytes) -> None:
    """A file, whole or not at all.

    Raises:
        UsageError: it cannot be written.
    """
    part = path.with_suffix(f".{uuid.uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(content)
        part.replace(path)
    except OSError as reason:
        raise UsageError(f"cannot write {path}: {reason.strerror}; make room or choose another -o DIR") from None


def write_plan(folder: Path, plan: dict[str, Any], again: bool = False) -> None:
    """What a folder is about; ``again`` replaces what it was about before.

    Raises:
        UsageError: the folder cannot be written, or holds another run.
    """
    path = folder / PLAN
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not again and path.exists() and read_plan(folder)["runs"] != json.loads(json.dumps(plan["runs"])):
            raise UsageError(f"{folder} holds another run; continue it with --resume {folder}, or give another -o DIR")
    except OSError as reason:
        raise UsageError(f"cannot write {path}: {reason.strerror}; choose another -o DIR") from None
    _write(path, (json.dumps(plan, indent=1) + "\n").encode())


def read_plan(folder: Path) -> dict[str, Any]:
    """What a folder is about.

    Raises:
        UsageError: it is not a folder of a run.
    """
    path = folder / PLAN
    try:
        plan = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(plan, dict) and isinstance(plan.get("runs"), list):
            return plan
        reason = "it does not list runs"
    except OSError as error:
        reason = str(error.strerror)
    except ValueError:
        reason = "it is not JSON"
    raise UsageError(f"cannot read {path}: {reason}; give a folder that scalecalc verify -o DIR wrote")
