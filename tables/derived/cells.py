"""What a table is: columns in groups over rows in groups, and in each cell one or more printable values.

Text is *rich*: plain words with formulas between dollar signs, e.g. ``Router $Q$``; every format sets it its own way.
Read next: ``layouts.py`` (the tables), ``render.py`` (their formats).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby

from scaling_algebra.spec.powers import Power

INDENT = "\u2003"
"""Em space: in a row's heading it sets a part off from the whole above it."""


@dataclass(frozen=True)
class Size:
    """Theta(n^exponent)."""

    exponent: Fraction


@dataclass(frozen=True)
class Value:
    """One printable value.

    Attributes:
        content: a power of the axes, a size, a plain number, rich text, or None where nothing is to be printed.
        zero: exactly zero; then there is no content.
        tied: the experts share their initial values.
    """

    content: Power | Size | Fraction | str | None = None
    zero: bool = False
    tied: bool = False


@dataclass(frozen=True)
class Cell:
    """What one or more answers say; printed once where they agree.

    Attributes:
        values: the answers.
        names: whose answers they are, e.g. ``("mup", "mssp")``; empty where the values simply tie.
    """

    values: tuple[Value, ...]
    names: tuple[str, ...] = ()

    @property
    def shown(self) -> tuple[Value, ...]:
        return tuple(dict.fromkeys(self.values))


@dataclass(frozen=True)
class Label:
    """A heading: its name in CSV and JSON, and the same as rich text."""

    name: str
    text: str = ""

    @property
    def rich(self) -> str:
        return self.text or self.name


@dataclass(frozen=True)
class Row:
    """A line of cells: the group it belongs to, its own heading, its cells."""

    group: Label
    label: Label
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Table:
    """Grouped columns over grouped rows.

    Attributes:
        name: what the command line calls it.
        title: what it is, e.g. ``Table B.1 of the MSSP paper``.
        caption: what the cells are and how they were derived, rich text.
        heads: headings of the row groups and of the rows.
        columns: column groups and the columns in each; a group may have an empty name.
        rows: consecutive rows of one group belong together.
        footnotes: rich text, printed below.
        sections: row groups are printed as headings of their own, not as a first column.
    """

    name: str
    title: str
    caption: str
    heads: tuple[str, str]
    columns: tuple[tuple[Label, tuple[Label, ...]], ...]
    rows: tuple[Row, ...]
    footnotes: tuple[str, ...] = ()
    sections: bool = False

    @property
    def column_names(self) -> list[str]:
        """Name of every column with that of its group: ``Regime I SGD``."""
        return [f"{group.name} {column.name}".strip() for group, columns in self.columns for column in columns]

    @property
    def stub(self) -> list[str]:
        """Headings of the leading columns."""
        return [self.heads[1]] if self.sections else list(self.heads)

    def groups(self) -> Iterator[tuple[Label, list[Row]]]:
        """The row groups with their rows."""
        for group, rows in groupby(self.rows, key=lambda row: row.group):
            yield group, list(rows)
