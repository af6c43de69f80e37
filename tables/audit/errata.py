"""Lists confirmed disagreements with the published tables, each with its evidence.

Read next: ``errata.toml`` (the entries), ``presentation.py`` (their text).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from scaling_algebra.documents import Rendered
from scaling_algebra.files import load_shipped_toml
from scaling_algebra.spec.entries import read_value
from scaling_algebra.tables.published.printed import Key

from .comparison import Audit, Comparison


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A measurement that shows that a printed exponent is wrong: the exponent of the same quantity, or of another one
    from which the right value follows.

    Attributes:
        quantity: what was measured.
        step: number of updates; None for a quantity that does not depend on them.
        slope: the fitted exponent of n.
        interval: its 95 % confidence interval.
        command: the command that measured it.
        drift: allowed distance of the derived exponent from the interval, since networks are trained at finite sizes; 0
            if no network was trained.
        at: values of the parameters in the printed and derived exponents.
    """

    quantity: str
    step: int | None = None
    slope: float
    interval: tuple[float, ...]
    command: str
    drift: float = 0.1
    at: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class WrongCell:
    """A wrong value in a paper: where it is printed, what is printed, and the derived value."""

    table: str
    label: str = ""
    quantity: str
    step: int | None = None
    printed: str
    derived: str


@dataclass(frozen=True)
class Erratum:
    """A confirmed disagreement.

    Attributes:
        source: the paper.
        title: one line.
        why: how the derived exponent follows.
        inside: the place in the same paper that implies the derived exponent.
        cell: the wrong cells.
        measured: measurements that confirm it.
    """

    source: str
    title: str
    why: str
    inside: str
    cell: tuple[WrongCell, ...]
    measured: tuple[Measured, ...]

    @property
    def cells(self) -> dict[Key, WrongCell]:
        return {(self.source, c.table, c.label, c.quantity, c.step): c for c in self.cell}


@dataclass(frozen=True, repr=False)
class Errata(Rendered):
    """Confirmed disagreements with published tables, in the order of ``errata.toml``."""

    entries: tuple[Erratum, ...]

    def __iter__(self) -> Iterator[Erratum]:
        return iter(self.entries)

    @property
    def about(self) -> str:
        return f"{len(self.entries)} errata in {sum(len(e.cell) for e in self)} places"


def errata(source: str | None = None) -> Errata:
    """Returns the confirmed disagreements with one paper, or with all papers if ``source`` is None."""
    entries = read_value(tuple[Erratum, ...], load_shipped_toml(__package__, "errata.toml")["erratum"], "erratum")
    return Errata(tuple(e for e in entries if source in (None, e.source)))


def find_unlisted(compared: Audit, entries: Iterable[Erratum]) -> tuple[list[Comparison], list[Key]]:
    """Checks the disagreements that an audit finds against the list of errata.

    Returns:
        Disagreements that no erratum lists with these values, and the keys of listed cells of the same papers that now
        agree.
    """
    listed = {key: (c.printed, c.derived) for e in entries for key, c in e.cells.items()}
    wrong = compared.disagreements
    new = [c for c in wrong if listed.get(c.key) != (str(c.printed.value), c.derived)]
    there = {c.key for c in wrong}
    sources = {c.printed.source for c in compared.comparisons}
    return new, [key for key in listed if key[0] in sources and key not in there]
