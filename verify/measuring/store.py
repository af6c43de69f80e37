"""Stores the measurements of a long command, in memory or in a folder from which an interrupted command continues.

A folder contains ``plan.json`` (the request) and ``measured.sqlite``: cells of runs, and pieces (losses, findings),
each with a key of everything it depends on. Writes are transactions, so a killed process loses only unfinished work.
Every row has a checksum; damaged rows are treated as missing. Only one process writes into a folder.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
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
FORMAT = 3
"""Version of the files of a folder. Other versions are refused, except older plans."""
MOST = 2**28
"""Maximum size of a plan in bytes."""
INSTEAD = "make room or choose another folder"
CHECKED = 16
"""Length in bytes of the checksum before the content of a row."""

Table = dict[tuple[str, int], Array]
"""A record: (name, step) -> values. Values that are not finite, as after divergence, are NaN."""


def concatenate_tables(tables: Iterable[Table]) -> Table:
    """Joins the values of several tables (name, step) -> values of all replicas, one after the other. Keys that are
    missing from one of the tables are omitted.
    """
    first, *rest = tables
    common = [key for key in first if all(key in table for table in rest)]
    return {key: np.concatenate([first[key], *(table[key] for table in rest)]) for key in common}


@lru_cache(maxsize=256)
def _parse_keys(names: str) -> list[tuple[str, int]]:
    """Parses the stored list of names ``QUANTITY@STEP`` of a cell into pairs. Results are cached, since the many cells
    of a run have the same list.
    """
    return [(name, int(t)) for name, _, t in (text.rpartition("@") for text in json.loads(names))]


def _compute_checksum(key: str, names: str, content: bytes) -> bytes:
    return hashlib.blake2b(b"\0".join([key.encode(), names.encode(), content]), digest_size=CHECKED).digest()


_PLACES = {"device": ", ", "machine": "; "}


def merge_environments(environments: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merges the descriptions of the machines on which one run was measured; the result lists the devices and names of
    all.
    """
    records = [e for e in environments if e]
    together = dict(records[0]) if records else {}
    for part, between in _PLACES.items():
        if names := {x for e in records for x in str(e.get(part, "")).split(between) if x}:
            together[part] = between.join(sorted(names))
    return together


class Store:
    """A store of measurements, in folders or in memory.

    It holds a table of numbers for each cell (group of replicas) of a run, and pieces, which are results of other tasks
    (losses, findings), each under a key that contains all settings of its task.

    Args:
        *folders: folders to read from; new rows are written to the first. Without folders everything is kept in memory.
    """

    def __init__(self, *folders: Path) -> None:
        self._folders = folders
        self._memory: dict[str, tuple[str, bytes]] = {}
        self._writer = 0
        self.damaged: set[str] = set()
        """Keys of rows that fail their checksum."""

    def load(self, run: str, cell: str, replicas: int | None = None) -> Table | None:
        """Loads what a cell measured, by quantity and step; returns None if it is not stored.

        Args:
            run: name of the run.
            cell: name of the cell.
            replicas: required number of replicas; None accepts any.
        """
        for names, content in self._read(f"{run}/{cell}"):
            keys = _parse_keys(names)
            rows = np.frombuffer(content).reshape(len(keys), -1)
            if replicas in (None, rows.shape[1]):
                return dict(zip(keys, rows, strict=True))
        return None

    def save(self, run: str, cell: str, record: Record) -> None:
        values = np.stack([np.asarray(row, dtype=np.float64) for row in record.values()])
        values = np.where(np.isfinite(values), values, np.nan)
        self._write(f"{run}/{cell}", [f"{name}@{t}" for name, t in record], values.tobytes())

    def names(self) -> Iterator[tuple[str, str]]:
        """Yields the names of the run and of the cell for every row in the folders."""
        for folder in self._folders:
            if (folder / MEASURED).exists():
                with _open_database(folder / MEASURED) as database:
                    for (key,) in database.execute("SELECT key FROM measured"):
                        run, _, cell = str(key).rpartition("/")
                        yield run, cell

    def describe(self, run: str, environment: Mapping[str, Any]) -> None:
        """Adds a machine (its device, name and versions) to the stored description of those on which a run was
        measured.
        """
        before = self.environment(run)
        if (now := merge_environments([before, environment])) != before:
            self._write(f"{run}/environment", [], json.dumps(now).encode())

    def environment(self, run: str) -> dict[str, Any]:
        """Returns the environment of a run (device, versions), merged over all machines on which it was measured."""
        return merge_environments(json.loads(content) for _, content in self._read(f"{run}/environment"))

    def piece(self, what: Mapping[str, Any]) -> Any:
        """Returns the stored value of the task that was run with exactly the settings ``what``, or None if there is
        none.
        """
        for _, content in self._read(json.dumps(what, sort_keys=True)):
            return json.loads(content)
        return None

    def keep(self, what: Mapping[str, Any], value: Any) -> Any:
        """Stores the JSON value of the task with exactly the settings ``what``, and returns it as ``piece`` will return
        it.
        """
        text = json.dumps(value)
        self._write(json.dumps(what, sort_keys=True), [], text.encode())
        return json.loads(text)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Locks the folder against other processes that write.

        Raises:
            UsageError: another process holds the lock.
        """
        if not self._folders:
            yield
            return
        files.make_folder(self._folders[0], INSTEAD)
        with files.lock(self._folders[0], "wait for it, or choose another folder"):
            yield

    def _read(self, key: str) -> list[tuple[str, bytes]]:
        """Returns pairs (list of names as JSON, numbers as bytes) of all undamaged rows with a key, from memory and
        every folder.
        """
        rows: list[tuple[Any, Any]] = [self._memory[key]] if key in self._memory else []
        for folder in self._folders:
            if (folder / MEASURED).exists():
                with _open_database(folder / MEASURED) as database:
                    rows += database.execute("SELECT names, content FROM measured WHERE key = ?", [key])
        sound = [(names, content) for names, content in rows if _is_whole(key, names, content)]
        self.damaged |= {key} if len(sound) < len(rows) else set()
        return [(names, content[CHECKED:]) for names, content in sound]

    def _write(self, key: str, names: list[str], content: bytes) -> None:
        text = json.dumps(names)
        content = _compute_checksum(key, text, content) + content
        self.damaged.discard(key)
        if not self._folders:
            self._memory[key] = text, content
            return
        files.make_folder(self._folders[0], INSTEAD)
        path = self._folders[0] / MEASURED
        with _open_database(path) as database:
            database.execute("BEGIN IMMEDIATE")
            (last,) = database.execute("PRAGMA application_id").fetchone()
            if not self._writer:
                self._writer = secrets.randbelow(2**31 - 1) + 1
                database.execute(f"PRAGMA application_id = {self._writer}")
            elif last != self._writer:
                raise UsageError(f"another process wrote into {path} meanwhile; begin again, one process at a time")
            database.execute("REPLACE INTO measured VALUES (?, ?, ?)", [key, text, content])


def _is_whole(key: str, names: Any, content: Any) -> bool:
    """Tells whether a row of the database, read under ``key``, is undamaged: it agrees with its checksum."""
    if not isinstance(names, str) or not isinstance(content, bytes):
        return False
    return content[:CHECKED] == _compute_checksum(key, names, content[CHECKED:])


@contextmanager
def _open_database(path: Path) -> Iterator[sqlite3.Connection]:
    """Opens the database of a store for one transaction.

    Raises:
        UsageError: it is not a database of this version, or there is no room.
    """
    if path.exists() and not path.is_file():  # a pipe or a device, which never ends
        raise UsageError(f"cannot use {path}: it is a pipe or a device, not a regular file; {INSTEAD}")
    try:
        with closing(sqlite3.connect(path, timeout=60)) as database, database:
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version not in (0, FORMAT):
                age = "a newer" if version > FORMAT else "an older"
                raise UsageError(f"{path} was written by {age} scalecalc (format {version}); use that one")
            if not version:
                database.execute("CREATE TABLE IF NOT EXISTS measured (key TEXT PRIMARY KEY, names TEXT, content BLOB)")
                database.execute(f"PRAGMA user_version = {FORMAT}")
            yield database
    except sqlite3.Error as error:
        raise UsageError(f"cannot use {path}: {error}; {INSTEAD}") from None


def write_plan(folder: Path, plan: dict[str, Any], again: bool = False) -> None:
    """Writes ``plan.json``, which says what is measured in a folder.

    Args:
        folder: the folder.
        plan: the plan, in JSON types.
        again: whether another plan may be replaced.

    Raises:
        UsageError: the folder cannot be written, or contains another run.
    """
    path = folder / PLAN
    files.make_folder(folder, "choose another -o DIR")
    if not again and path.exists() and read_plan(folder)["runs"] != json.loads(json.dumps(plan["runs"])):
        raise UsageError(f"{folder} holds another run; continue it with --resume {folder}, or give another -o DIR")
    files.write_file(path, json.dumps({"format": FORMAT, **plan}, indent=1) + "\n", INSTEAD)


def read_plan(folder: Path) -> dict[str, Any]:
    """Reads ``plan.json``, which says what is measured in a folder.

    Raises:
        UsageError: it is not the folder of a run, or a newer version wrote it.
    """
    path, instead = folder / PLAN, "give a folder that scalecalc verify -o DIR wrote, or begin again with -o DIR"
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
