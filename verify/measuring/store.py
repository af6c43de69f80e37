"""Keeps what a long command has measured, in memory or in a folder that an interrupted command continues from.

A folder holds ``plan.json`` (what was asked) and ``measured.sqlite``: cells of runs, and pieces (losses, findings)
under all that they depend on. A transaction is done or not: a killed process costs only what it had not finished.
Read next: ``cells.py`` (what a cell is), ``runs.py`` (fills a store), ``studies/sweep.py`` (keeps pieces).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from scaling_algebra import files
from scaling_algebra.errors import UsageError
from scaling_algebra.verify.judging.fit import Array
from scaling_algebra.verify.judging.measurement import Record

PLAN, MEASURED = "plan.json", "measured.sqlite"
FORMAT = 2
"""Version of the files of a folder; others are refused."""
MOST = 2**28
"""Bytes of a plan."""
INSTEAD = "make room or choose another folder"

Table = dict[tuple[str, int], Array]
"""A record by name and step; what is not finite is NaN, as of a run that diverged."""


def joined(tables: Iterable[Table]) -> Table:
    """The replicas of several tables, one after the other; what one of them lacks is left out."""
    first, *rest = tables
    common = [key for key in first if all(key in table for table in rest)]
    return {key: np.concatenate([first[key], *(table[key] for table in rest)]) for key in common}


@lru_cache(maxsize=256)
def _keys(names: str) -> list[tuple[str, int]]:
    """Name and step of every row of a cell; cells of a run share them."""
    return [(name, int(t)) for name, _, t in (text.rpartition("@") for text in json.loads(names))]


class Store:
    """Records by run and cell, and pieces.

    Args:
        folders: where they are looked for; new ones go to the first. None at all: they stay in memory.
    """

    def __init__(self, *folders: Path) -> None:
        self._folders = folders
        self._cells: dict[tuple[str, str], Table] = {}
        self._environments: dict[str, dict[str, Any]] = {}

    def load(self, run: str, cell: str, replicas: int | None = None) -> Table | None:
        """The record of a cell; None if it is not there.

        Args:
            replicas: how many it must have.
        """
        if (run, cell) not in self._cells:
            for names, content in self._read(f"{run}/{cell}"):
                keys = _keys(names)
                rows = np.frombuffer(content).reshape(len(keys), -1)
                self._cells.setdefault((run, cell), dict(zip(keys, rows, strict=True)))
        table = self._cells.get((run, cell))
        return table if table is None or replicas in (None, len(next(iter(table.values())))) else None

    def save(self, run: str, cell: str, record: Record) -> None:
        values = np.stack([np.asarray(row, dtype=np.float64) for row in record.values()])
        values = np.where(np.isfinite(values), values, np.nan)
        self._cells[run, cell] = dict(zip(record, values, strict=True))
        self._write(f"{run}/{cell}", [f"{name}@{t}" for name, t in record], values.tobytes())

    def names(self) -> Iterator[tuple[str, str]]:
        """Run and cell of everything that folders hold."""
        for folder in self._folders:
            if (folder / MEASURED).exists():
                with _opened(folder / MEASURED) as database:
                    for (key,) in database.execute("SELECT key FROM measured"):
                        run, _, cell = key.rpartition("/")
                        yield run, cell

    def describe(self, run: str, environment: dict[str, Any]) -> None:
        """The circumstances of a measurement."""
        self._environments[run] = environment
        self._write(f"{run}/environment", [], json.dumps(environment).encode())

    def environment(self, run: str) -> dict[str, Any]:
        """The circumstances of a measurement; in several folders: all their devices, and the largest memory."""
        records = [json.loads(content) for _, content in self._read(f"{run}/environment")]
        records = records or [e for name, e in self._environments.items() if name == run]
        if not records:
            return {}
        devices = ", ".join(sorted({str(e["device"]) for e in records if "device" in e}))
        memory = max((e["peak_memory_bytes"] for e in records if e.get("peak_memory_bytes")), default=None)
        return {**records[0], "device": devices, "peak_memory_bytes": memory}

    def piece(self, what: Mapping[str, Any], make: Callable[[], Any]) -> Any:
        """A value that JSON can hold and that depends on exactly these settings: read, or made and kept."""
        if not self._folders:
            return make()
        key = json.dumps(what, sort_keys=True)
        for _, content in self._read(key):
            return json.loads(content)
        text = json.dumps(make())
        self._write(key, [], text.encode())
        return json.loads(text)

    def _read(self, key: str) -> list[tuple[str, bytes]]:
        rows: list[tuple[str, bytes]] = []
        for folder in self._folders:
            if (folder / MEASURED).exists():
                with _opened(folder / MEASURED) as database:
                    rows += database.execute("SELECT names, content FROM measured WHERE key = ?", [key])
        return rows

    def _write(self, key: str, names: list[str], content: bytes) -> None:
        if self._folders:
            files.make_folder(self._folders[0], INSTEAD)
            with _opened(self._folders[0] / MEASURED) as database:
                database.execute("REPLACE INTO measured VALUES (?, ?, ?)", [key, json.dumps(names), content])


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """One transaction.

    Raises:
        UsageError: no database of this version, or no room.
    """
    if path.exists() and not path.is_file():  # a pipe or a device, which never ends
        raise UsageError(f"cannot use {path}: it is no file; {INSTEAD}")
    try:
        with closing(sqlite3.connect(path, timeout=60)) as database, database:
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version > FORMAT:
                raise UsageError(f"{path} was written by a newer scalecalc (format {version}); use that one")
            if version < FORMAT:
                database.execute("CREATE TABLE IF NOT EXISTS measured (key TEXT PRIMARY KEY, names TEXT, content BLOB)")
                database.execute(f"PRAGMA user_version = {FORMAT}")
            yield database
    except sqlite3.Error as error:
        raise UsageError(f"cannot use {path}: {error}; {INSTEAD}") from None


def write_plan(folder: Path, plan: dict[str, Any], again: bool = False) -> None:
    """Writes the plan of a folder; ``again`` replaces another plan.

    Raises:
        UsageError: the folder cannot be written, or holds another run.
    """
    path = folder / PLAN
    files.make_folder(folder, "choose another -o DIR")
    files.sweep(folder)
    if not again and path.exists() and read_plan(folder)["runs"] != json.loads(json.dumps(plan["runs"])):
        raise UsageError(f"{folder} holds another run; continue it with --resume {folder}, or give another -o DIR")
    files.write(path, json.dumps({"format": FORMAT, **plan}, indent=1) + "\n", INSTEAD)


def read_plan(folder: Path) -> dict[str, Any]:
    """The plan of a folder.

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
