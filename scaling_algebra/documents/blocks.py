"""Blocks of a document: headings, lines and grids, and the pieces of text inside them.

Text is *rich*: plain words with formulas between dollar signs, e.g. ``Router $Q$``; ``\\$`` is a dollar sign. Every
format sets it its own way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from typing import Any, TypeAlias

from scaling_algebra.spec.powers import Power
from scaling_algebra.spec.records import plain


@dataclass(frozen=True)
class Text:
    """Words that read one way in plain formats and another in those that set formulas: ``Q_0 dh1``, ``$Q_0 ...$``."""

    plain: str
    rich: str


@dataclass(frozen=True)
class Size:
    """Theta(n^exponent); None is exactly zero."""

    exponent: Fraction | None


@dataclass(frozen=True)
class Marked:
    """A power with a remark on it, e.g. ``tied``."""

    power: Power
    mark: str


@dataclass(frozen=True)
class Code:
    """Something to type, or to be read letter by letter."""

    text: str


Piece: TypeAlias = str | Text | Fraction | Power | Size | Marked | Code
"""Content of a line or a cell; a str is rich text."""
ZERO = Size(None)
"""Exactly zero."""


@dataclass(frozen=True)
class Heading:
    """Level 1 names the document."""

    text: Piece
    level: int = 1


@dataclass(frozen=True)
class Lines:
    """Lines of pieces, or the points of a list."""

    lines: tuple[tuple[Piece, ...], ...]
    listed: bool = False

    @classmethod
    def of(cls, *lines: Piece | Sequence[Piece], listed: bool = False) -> Lines:
        """Each line one piece or several."""
        return cls(tuple((x,) if isinstance(x, Piece) else tuple(x) for x in lines), listed)


@dataclass(frozen=True)
class Label:
    """A heading of a row or a column: its name in CSV and JSON, and the same as rich text."""

    name: str
    text: str = ""

    @property
    def piece(self) -> Piece:
        return Text(self.name, self.text or literal(self.name))


@dataclass(frozen=True)
class Cell:
    """The content of one or more answers; printed once where they agree.

    Attributes:
        values: the answers; None where nothing is to be printed.
        names: whose answers they are, e.g. ``("mup", "mssp")``; empty where the values simply tie.
    """

    values: tuple[Piece | None, ...]
    names: tuple[str, ...] = ()

    @property
    def shown(self) -> tuple[Piece | None, ...]:
        return tuple(dict.fromkeys(self.values))

    @property
    def bar(self) -> str:
        """The separator of two values."""
        return " | " if self.names else " or "


@dataclass(frozen=True)
class Row:
    """A line of cells: the group it belongs to, its own heading, its cells."""

    group: Label
    label: Label
    cells: tuple[Cell, ...]
    part: bool = False
    """A part of the row above; the heading is set off."""


@dataclass(frozen=True)
class Grid:
    """Grouped columns over grouped rows.

    Attributes:
        name: what it is referred to by.
        title, caption: rich text above it; a grid with a title floats.
        heads: headings of the row groups and of the rows.
        columns: column groups and the columns in each; a group may have an empty name.
        rows: consecutive rows of one group belong together.
        footnotes: rich text, printed below.
        sections: row groups are printed as headings of their own, not as a first column.
    """

    name: str
    title: str
    caption: str
    heads: tuple[Label, Label]
    columns: tuple[tuple[Label, tuple[Label, ...]], ...]
    rows: tuple[Row, ...]
    footnotes: tuple[str, ...] = ()
    sections: bool = False

    @classmethod
    def of(cls, header: Sequence[str], rows: Iterable[Sequence[Piece | None]]) -> Grid:
        """A plain one: a header and rows, of which the first column names the row."""
        body = []
        for first, *rest in rows:
            label = Label(first.plain, first.rich) if isinstance(first, Text) else Label(str(first))
            body.append(Row(Label(""), label, tuple(Cell((piece,)) for piece in rest)))
        columns = ((Label(""), tuple(map(Label, header[1:]))),)
        return cls("", "", "", (Label(""), Label(header[0])), columns, tuple(body), sections=True)

    @property
    def column_names(self) -> list[str]:
        """Name of every column with that of its group: ``Regime I SGD``."""
        return [f"{group.name} {column.name}".strip() for group, columns in self.columns for column in columns]

    @property
    def stub(self) -> list[Label]:
        """Headings of the leading columns."""
        return [self.heads[1]] if self.sections else list(self.heads)

    @property
    def header(self) -> list[Label]:
        """Headings of all columns."""
        return [*self.stub, *(column for _, columns in self.columns for column in columns)]

    def groups(self) -> Iterator[tuple[Label, list[Row]]]:
        """The row groups with their rows."""
        for group, rows in groupby(self.rows, key=lambda row: row.group):
            yield group, list(rows)


Block: TypeAlias = "Heading | Lines | Grid"


@dataclass(frozen=True)
class Document:
    """A result as blocks and as a record.

    Attributes:
        blocks: for people, in order.
        record: for programs: the JSON contract, made of typed values (``spec/records.py``).
        source: the command that writes it, said in a comment where the format has one.
        closing: the verdict in a line, printed where the document goes to a file.
    """

    blocks: tuple[Block, ...]
    record: Mapping[str, Any]
    source: str = ""
    closing: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.record, Later):
            object.__setattr__(self, "record", plain(self.record))
            return
        object.__setattr__(self, "_later", self.record)
        object.__delattr__(self, "record")

    def __getattr__(self, name: str) -> Any:
        """The record, where it is computed when it is first read."""
        if name != "record" or "_later" not in vars(self):
            raise AttributeError(name)
        object.__setattr__(self, "record", plain(vars(self)["_later"].compute()))
        return self.record


class Later(dict[str, Any]):
    """A record that is computed when a document's is first read: most are printed, and their records take longer."""

    def __init__(self, compute: Callable[[], Mapping[str, Any]]) -> None:
        super().__init__()
        self.compute = compute


def literal(text: str) -> str:
    """Plain text as rich text."""
    return text.replace("$", r"\$")
