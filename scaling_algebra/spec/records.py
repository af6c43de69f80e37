"""Converts results to JSON types; used by every command."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from .powers import Power


def convert_to_json(value: object) -> Any:
    """Converts a value to dicts, lists, texts and numbers.

    A power becomes a dict from axis to exponent. A value with a method ``record`` becomes the result of this method,
    one with its own ``__str__``, such as a ray, becomes a text, and any other dataclass a dict of its fields.

    Examples:
        >>> from fractions import Fraction
        >>> convert_to_json({"lr": Power.parse("M N^-1/2"), "steps": (Fraction(1, 2), None, 3)})
        {'lr': {'N': '-1/2', 'M': '1'}, 'steps': ['1/2', None, 3]}
    """
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Power):
        return {axis: str(e) for axis, e in value.terms}
    if callable(record := getattr(value, "record", None)):
        return convert_to_json(record())
    if isinstance(value, Mapping):
        return {key: convert_to_json(x) for key, x in value.items()}
    if type(value).__str__ is not object.__str__:
        return str(value)
    if is_dataclass(value):
        return {f.name: convert_to_json(getattr(value, f.name)) for f in fields(value)}
    assert isinstance(value, Iterable)
    return [convert_to_json(x) for x in value]
