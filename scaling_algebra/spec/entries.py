"""Reads TOML tables into dataclasses, by the annotations of their fields.

A key is the name of its field, without an underscore at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Literal, NewType, get_args, get_origin, get_type_hints

from scaling_algebra.errors import UsageError, check_names, quote_value
from scaling_algebra.limits import check_line

from .powers import Power

READERS: dict[Any, Callable[[str], Any]] = {
    str: str, Power: Power.parse, Power | None: lambda text: None if text == "0" else Power.parse(text),
}  # fmt: skip
"""Parsers of texts, by the annotated type; ``laws/entries.py`` adds those of laws."""
Lines = NewType("Lines", str)
"""A text of any number of lines."""
KINDS: dict[Any, tuple[Any, str]] = {
    bool: (bool, "true or false"), int: (int, "a whole number"), float: (int | float, "a number"),
    Lines: (str, "a text"),
}  # fmt: skip
LISTS: dict[Any, Any] = {tuple: tuple, frozenset: frozenset, Sequence: tuple}
MANY = 100
"""Maximum number of entries of a tuple or set; a ``Sequence`` has no limit but the file's size."""


def read_registry(
    file: str, tables: dict[str, Any], kind: Any, ready: Callable[[dict[str, Any]], dict[str, Any]] = dict
) -> Any:
    """Reads the tables of a shipped file into a dict by name.

    Args:
        file: the file name, for messages.
        tables: the content of the file, a table by name.
        kind: the dataclass of an entry; it has a field ``name``.
        ready: a function that converts each table before it is read into the dataclass.

    Raises:
        UsageError: a table is wrong; one line names the file, the table and the key.
    """
    found = {}
    for name, record in tables.items():
        try:
            found[name] = read_value(kind, {"name": name, **ready(_check_kind(record, dict, "a table", name))})
        except UsageError as error:
            raise UsageError(f"{file}: [{name}]: {error}") from None
    return found


def read_value(kind: Any, value: Any, where: str = "", number: bool = False) -> Any:
    """Converts a TOML value to an annotated type: a dataclass, tuple, mapping, number, or a type with a parser of
    texts.

    Args:
        kind: the annotation.
        value: the value from TOML.
        where: its place, for messages; empty for a whole file.
        number: True to accept an integer as a text, where the annotation requires a text or a type that is parsed
            from one.

    Raises:
        UsageError: the value does not fit; one line.
    """
    parts = get_args(kind)
    if is_dataclass(kind) and kind not in READERS:
        return _read_record(kind, _check_kind(value, dict, "a table", where or "it"), where)
    if (origin := get_origin(kind)) is UnionType and kind not in READERS:
        return read_value(parts[0], value, where)
    if origin is Literal:
        return value if value in parts else _check_kind(value, (), f"one of {', '.join(map(repr, parts))}", where)
    if origin in LISTS:
        such = f", such as [{quote_value(value)}]" if isinstance(value, str) else ""
        if len(_check_kind(value, list, f"a list{such}", where)) > MANY and origin is not Sequence:
            raise UsageError(f"{where} has {len(value)} entries; give at most {MANY}")
        return LISTS[origin](read_value(parts[0], x, f"{where} {k}") for k, x in enumerate(value, 1))
    if origin is Mapping:
        items, number = (
            _check_kind(value, dict, "a table, such as { NAME = VALUE }", where).items(),
            parts[1] is not str,
        )
        return {
            check_line(f"a key of {where}", key): read_value(parts[1], x, f"{where} {key}", number) for key, x in items
        }
    if kind is Any or origin is Callable:
        return value
    if kind in KINDS:
        if kind is not bool and isinstance(value, bool):
            value = _check_kind(value, (), KINDS[kind][1], where)
        try:
            return kind(_check_kind(value, *KINDS[kind], where))
        except OverflowError:
            raise UsageError(f"{where} is {quote_value(value)}; it must be a number below 1e308") from None
    text = str(value) if number and type(value) is int else value
    return READERS[kind](
        check_line(where, _check_kind(text, str, "a text or a number" if number else "a text of one line", where))
    )


@cache
def list_keys(kind: type) -> dict[str, tuple[str, Any, bool]]:
    """Returns the keys of a dataclass's table: ``{key: (field name, annotation, whether it is optional)}``."""
    hints = get_type_hints(kind)
    return {
        f.name.rstrip("_"): (f.name, hints[f.name], f.default is not MISSING or f.default_factory is not MISSING)
        for f in fields(kind)
    }


def _read_record(kind: Any, value: Mapping[str, Any], where: str) -> Any:
    """Reads a TOML table into a dataclass; unknown and missing keys raise UsageError."""
    before, allowed = f"{where}: " if where else "", list_keys(kind)
    names = (check_line(f"a key of {where or 'it'}", key) for key in value)
    check_names(f"key of {where}" if where else "key", names, allowed)
    needed = [key for key, (_, _, optional) in allowed.items() if not optional]
    if missing := [key for key in needed if key not in value]:
        raise UsageError(f"{before}{missing[0]} is missing; give {', '.join(needed)}")
    return kind(**{allowed[key][0]: read_value(allowed[key][1], x, f"{before}{key}") for key, x in value.items()})


def _check_kind(value: Any, kind: Any, what: str, where: str) -> Any:
    """Returns a value if it is an instance of ``kind``, else raises UsageError: ``WHERE is VALUE; it must be WHAT``."""
    if not isinstance(value, kind):
        raise UsageError(f"{where} is {quote_value(value)}; it must be {what}")
    return value
