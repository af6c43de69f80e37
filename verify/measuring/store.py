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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import read_array

from scaling_algebra import files, limits
from scaling_algebra.errors import UsageError
from scaling_algebra.verify.judging.fit import Array
from scaling_algebra.verify.judging.measurement import Record

PLAN = "plan.json"
FORMAT = 1
"""Version of the files of a folder; newer ones are refused."""
MOST = 2**28
"""Bytes of a cell, as its file declares them before anything is read, and of a plan."""


Key = tuple[str, int]


class Table(Mapping[Key, Array]):
    """A record as one array.

    Attributes:
        rows: where each key stands.
        array: (keys, replicas). What is not finite is NaN, as of a run that diverged.
    """

    def __init__(self, rows: Mapping[Key, int], array: Array) -> None:
        self.rows, self.array = rows, array

    @classmethod
    def of(cls, record: Record) -> Table:
        values = np.stack([np.asarray(row, dtype=np.float64) for row in record.values()])
        return cls(_rows(tuple(f"{name}@{t}" for name, t in record)), np.where(np.isfinite(values), values, np.nan))

    @property
    def names(self) -> list[str]:
        return [f"{name}@{t}" for name, t in self.rows]

    def fits(self, replicas: int | None) -> bool:
        """Has it so many replicas?"""
        return replicas in (None, self.array.shape[1])

    def __getitem__(self, key: Key) -> Array:
        row: Array = self.array[self.rows[key]]
        return row

    def __iter__(self) -> Iterator[Key]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)


def joined(tables: Iterable[Table]) -> Table:
    """The replicas of several tables, one after the other; what one of them lacks is left out."""
    first, *rest = tables
    if all(table.rows == first.rows for table in rest):
        return Table(first.rows, np.concatenate([first.array, *(table.array for table in rest)], axis=1))
    common = [key for key in first if all(key in table for table in rest)]
    return Table.of({key: np.concatenate([first[key], *(table[key] for table in rest)]) for key in common})


@lru_cache(maxsize=256)
def _rows(names: tuple[str, ...]) -> Mapping[Key, int]:
    """Where each ``name@t`` stands; cells of a run share it.

    Raises:
        ValueError: one is no such name, or there twice.
    """
    keys = [(name, limits.update(t)) for name, _, t in (text.rpartition("@") for text in names)]
    if len(set(keys)) < len(keys) or not all(name for name, _ in keys):
        raise ValueError("a name is missing, or there twice")
    return {key: row for row, key in enumerate(keys)}


class Store:
    """Records by run and cell.

    Args:
        folders: where records are looked for; new ones go to the first. None at all: they stay in memory.
    """

    def __init__(self, *folders: Path) -> None:
        self._folders = folders
        self._kept: dict[tuple[str, str], Table] = {}
        self._environments: dict[tuple[str, int], dict[str, Any]] = {}

    def load(self, run: str, cell: str, replicas: int | None = None) -> Table | None:
        """What a cell measured; None if it is not there (or was damaged: then it is measured again).

        Args:
            replicas: how many it must have.
        """
        if (run, cell) in self._kept:
            return self._kept[run, cell] if self._kept[run, cell].fits(replicas) else None
        for folder in self._folders:
            table = _read(folder.joinpath("cells", run, f"{cell}.npz"), run, cell)
            if table is not None and table.fits(replicas):
                self._kept[run, cell] = table
                return table
        return None

    def save(self, run: str, cell: str, record: Record) -> None:
        table = self._kept[run, cell] = Table.of(record)
        if self._folders:
            out = io.BytesIO()
            about = json.dumps(identity(run, cell, table.names, table.array))
            np.savez_compressed(out, about=np.array(about), names=np.array(table.names), values=table.array)
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


def _read(path: Path, run: str, cell: str) -> Table | None:
    """What a file holds of a cell; None where it is not there, damaged, or of another cell: that is measured again.

    Raises:
        UsageError: a newer version wrote it.
    """
    if not path.is_file():  # nor a pipe or a device, which never ends
        return None
    try:
        with zipfile.ZipFile(path) as file:
            if sum(part.file_size for part in file.infolist()) > MOST:
                return None
            told, named, values = (read_array(io.BytesIO(file.read(f"{k}.npy"))) for k in ("about", "names", "values"))
        about, names = json.loads(str(told)), named.tolist()
        if about["format"] > FORMAT:
            raise UsageError(f"{path} was written by a newer scalecalc (format {about['format']}); use that one")
        if about != identity(run, cell, names, values) or values.dtype != np.float64 or np.isinf(values).any():
            return None
        return Table(_rows(tuple(names)), values) if values.ndim == 2 and len(values) == len(names) else None
    except UsageError:
        raise
    except Exception:  # a damaged file fails in as many ways as there are formats inside it
        return None


def identity(run: str, cell: str, names: Sequence[str], values: Array) -> dict[str, Any]:
    """Which cell a file holds, in which format, and a checksum of what it holds."""
    told = json.dumps([run, cell, list(names), str(values.dtype), values.shape]).encode()
    checksum = hashlib.sha256(told + np.ascontiguousarray(values).tobytes()).hexdigest()
    return {"format": FORMAT, "run": run, "cell": cell, "sha256": checksum}


def _environment(path: Path) -> dict[str, Any]:
    """What a process told of where it measured; empty where that cannot be read."""
    try:
        told = json.loads(files.read_text(path, "", ours=True))
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
    text = files.read_text(path, instead, MOST, ours=True)
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
