"""Families of published models and the ray along which each of them grew, from the shapes in ``families.toml``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import log

from scaling_algebra.files import load_shipped_toml


@dataclass(frozen=True)
class MapFamily:
    """A family of published models (``families.toml``), and the ray along which it grew.

    Attributes:
        name: name of the family.
        source: source of its shapes.
        rates: log(growth of the axis) / log(growth of N) for every axis, from the first to the last member of the
            family.
            The numbers are rounded. Empty if N did not grow.
    """

    name: str
    source: str
    rates: Mapping[str, float]


@cache
def load_families() -> tuple[MapFamily, ...]:
    """Loads all families from the data file."""
    data = load_shipped_toml(__package__, "families.toml")
    entries = []
    for entry in data["family"]:
        first, *_, last = ({k: v for k, v in m.items() if k != "name"} for m in 2 * entry["member"])
        grown = log(last["N"] / first["N"])
        rates = {axis: log(last[axis] / first[axis]) / grown for axis in first} if grown else {}
        entries.append(MapFamily(entry["name"], entry["source"], rates))
    return tuple(entries)
