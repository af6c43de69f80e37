"""Confirmed disagreements with the published tables, each with its evidence.

Read next: ``errata.toml`` (the entries), ``presentation.py`` (what they say).
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from scaling_algebra.documents import Rendered
from scaling_algebra.laws.entries import read

from .comparison import Audit, Comparison, Key


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A fitted slope of the quantity (or one that decides it), as ``command`` printed it.

    Attributes:
        drift: how far the exponent may lie from the interval; 0 where nothing is finite about it.
        at: values of the parameters that stand in printed and derived exponents.
    """

    quantity: str
    step: int | None = None
    slope: float
    interval: tuple[float, ...]
    command: str
    drift: float = 0.1
    at: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Erratum:
    """One confirmed disagreement.

    Attributes:
        why: what gives the derived exponent. ``inside``: what in the same paper implies it.
        cells: printed and derived value by key.
        measured: the evidence.
    """

    source: str
    title: str
    why: str
    inside: str
    cells: dict[Key, tuple[str, str]]
    measured: tuple[Measured, ...]


@dataclass(frozen=True, repr=False)
class Errata(Rendered):
    """Confirmed disagreements, in file order."""

    entries: tuple[Erratum, ...]

    def __iter__(self) -> Iterator[Erratum]:
        return iter(self.entries)

    @property
    def about(self) -> str:
        return f"{len(self.entries)} errata in {sum(len(e.cells) for e in self)} places"


def errata() -> Errata:
    """Every confirmed disagreement."""
    found = []
    for e in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["erratum"]:
        keys = ((e["source"], c["table"], c.get("label", ""), c["quantity"], c.get("step")) for c in e["cell"])
        cells = {key: (c["printed"], c["derived"]) for key, c in zip(keys, e["cell"], strict=True)}
        measured = read(tuple[Measured, ...], e["measured"], e["title"])
        found.append(Erratum(e["source"], e["title"], e["why"], e["inside"], cells, measured))
    return Errata(tuple(found))


def unlisted(found: Audit, known: Iterable[Erratum]) -> tuple[list[Comparison], list[Key]]:
    """Disagreements no erratum lists with these values, and listed cells of the compared sources that agree by now."""
    listed = {key: values for e in known for key, values in e.cells.items()}
    wrong = found.disagreements
    new = [c for c in wrong if listed.get(c.key) != (str(c.printed.value), c.derived)]
    there = {c.key for c in wrong}
    sources = {c.printed.source for c in found.comparisons}
    return new, [key for key in listed if key[0] in sources and key not in there]
