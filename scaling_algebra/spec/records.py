"""Turns typed values into JSON: the only place where a result becomes a record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from .powers import Power


def plain(value: object) -> Any:
    """A value as objects, lists, texts and numbers.

    A power becomes an object from axis to exponent. A value with a method ``record`` becomes its result, one that
    prints itself, such as a ray, its text, and any other dataclass an object of its fields.

    Examples:
        >>> from fractions import Fraction
        >>> plain({"lr": Power.parse("M N^-1/2"), "steps": (Fraction(1, 2), None, 3)})
        {'lr': {'N': '-1/2', 'M': '1'}, 'steps': ['1/2', None, 3]}
    """
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Power):
        return {axis: str(e) for axis, e in value.terms}
    if callable(record := getattr(value, "record", None)):
        return plain(record())
    if isinstance(value, Mapping):
        return {key: plain(x) for key, x in value.items()}
    if type(value).__str__ is not object.__str__:
        return str(value)
    if is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    assert isinstance(value, Iterable)
    return [plain(x) for x in value]
