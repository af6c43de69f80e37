"""Tables of TOML that somebody wrote, against the keys that they may have: for laws and for assumptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scaling_algebra.errors import UsageError, unknown_name
from scaling_algebra.limits import line

KINDS = {str: "a text of one line", list: "a list", dict: "a table", bool: "true or false"}
MOST, MANY = 2**16, 100
"""Bytes of a file, and entries of a list in it."""


def entry(value: Any, known: Mapping[str, type], where: str = "", needed: Sequence[str] = ()) -> Mapping[str, Any]:
    """A table whose keys are known, with values of their kinds.

    Args:
        where: what the table is, for messages; empty for the whole file.

    Raises:
        UsageError: it is none.
    """
    before = f"{where}: " if where else ""
    for key, x in table(value, where).items():
        if key not in known:
            raise unknown_name(f"key of {where}" if where else "key", key, known)
        if not isinstance(x, known[key]):
            raise UsageError(f"{before}{key} is {x!r}; it must be {KINDS[known[key]]}")
        if isinstance(x, str):
            line(f"{before}{key}", x)
        if isinstance(x, list) and len(x) > MANY:
            raise UsageError(f"{before}{key} has {len(x)} entries; give at most {MANY}")
    for key in needed:
        if key not in value:
            raise UsageError(f"{before}{key} is missing; give {', '.join(needed)}")
    found: Mapping[str, Any] = value
    return found


def table(value: Any, where: str) -> Mapping[str, Any]:
    """Raises UsageError for anything else."""
    if not isinstance(value, Mapping):
        raise UsageError(f"{where} is {value!r}; it must be a table")
    for key in value:
        line(f"a key of {where or 'it'}", key)
    return value
