"""Model families and the ray along which each of them grew, estimated from the shapes of its members.

Read next: ``families.toml`` (the shapes and their sources), ``phases.py`` (the map they are placed on).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import log
from pathlib import Path


@dataclass(frozen=True)
class Member:
    """One model: width N, expert width N_e, experts M, active experts K."""

    name: str
    shape: Mapping[str, int]


@dataclass(frozen=True)
class MapFamily:
    """A model family, smallest member first, with the source of its shapes."""

    name: str
    source: str
    members: tuple[Member, ...]

    def rates(self) -> dict[str, float]:
        """Estimated rate of every axis per unit of N between the first and the last member; empty if N did not grow.

        An estimate: a logarithm of two shapes, and no exact ray.
        """
        first, last = self.members[0].shape, self.members[-1].shape
        if first["N"] == last["N"]:
            return {}
        return {axis: log(last[axis] / first[axis]) / log(last["N"] / first["N"]) for axis in first}


@cache
def families() -> tuple[MapFamily, ...]:
    """Every family in the data file."""
    data = tomllib.loads((Path(__file__).parent / "families.toml").read_text(encoding="utf-8"))
    found = []
    for entry in data["family"]:
        members = tuple(Member(m["name"], {k: v for k, v in m.items() if k != "name"}) for m in entry["member"])
        found.append(MapFamily(entry["name"], entry["source"], members))
    return tuple(found)
