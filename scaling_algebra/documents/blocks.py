r"""Blocks of a document (headings, lines and grids) and the pieces of text inside them.

Text is *rich*: plain words with formulas between dollar signs, e.g. ``Router $Q$``; ``\$`` is a dollar sign. Every
writer typesets it in the manner of its format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from typing import Any, TypeAlias

from scaling_algebra.spec.powers import Power
from scaling_algebra.spec.records import convert_to_json


@dataclass(frozen=True)
class Text:
    """Text with two forms: ``plain`` for formats without formulas, and ``rich`` for formats that typeset them."""

    plain: str
    rich: str


@dataclass(frozen=True)
class Size:
    """A size Theta(n^exponent). An exponent of None means exactly zero."""

    exponent: Fraction | None


@dataclass(frozen=True)
class Marked:
    """A power of the axes, with a short note that is printed after it, such as ``tied``."""

    power: Power
    mark: str


@dataclass(frozen=True)
class Code:
    """Verbatim text, such as a command to type."""

    text: str


Piece: TypeAlias = str | Text | Fraction | Power | Size | Marked | Code
"""Content of a line or a cell. A str is rich text."""
ZERO = Size(None)
"""The size that is exactly zero."""


@dataclass(frozen=True)
class Heading:
    """A heading. Level 1 is the title of the document."""

    text: Piece
    level: int = 1


@dataclass(frozen=True)
class Lines:
    """Lines of text, or the items of a list.

    Attributes:
        lines: the pieces of each line.
        listed: the lines are items of a list.
    """

    lines: tuple[tuple[Piece, ...], ...]
    listed: bool = False

    @classmethod
    def of(cls, *lines: Piece | Sequence[Piece], listed: bool = False) -> Lines:
        """Makes lines of which each is given as one piece or as a sequence of pieces."""
        return cls(tuple((x,) if isinstance(x, Piece) else tuple(x) for x in lines), listed)


@dataclass(frozen=True)
class Label:
    """The heading of a row or a column.

    Attributes:
        name: plain text, as CSV and JSON have it.
        text: the same as rich text; empty if the name serves.
    """

    name: str
    text: str = ""

    @property
    def piece(self) -> Piece:
        return Text(self.name, self.text or literal(self.name))


@dataclass(frozen=True)
class Cell:
    """The content of a table cell: one value, or the values of several answers. Equal values are printed once.

    Attributes:
        values: the values; None where nothing is to be printed.
        names: the answer to which each value belongs, such as ``("mup", "mssp")``; empty if the values are
            alternatives.
    """

    values: tuple[Piece | None, ...]
    names: tuple[str, ...] = ()

    @property
    def shown(self) -> tuple[Piece | None, ...]:
        return tuple(dict.fromkeys(self.values))

    @property
    def bar(self) -> str:
        """The separator between two values."""
        return " | " if self.names else " or "


@dataclass(frozen=True)
class Row:
    """A row of cells.

    Attributes:
        group: the row group that it belongs to.
        label: its own heading.
        cells: one cell per column.
        part: the row details the row above; its heading is indented.
    """

    group: Label
    label: Label
    cells: tuple[Cell, ...]
    part: bool = False


@dataclass(frozen=True)
class Grid:
    """A table with grouped columns and grouped rows.

    Attributes:
        name: the name by which the table is referred to.
        title: rich text; LaTeX makes a float of a grid with a title.
        caption: rich text, printed after the title.
        heads: headings of the column of row groups and of the column of rows.
        columns: column groups with the columns of each; a group may have an empty name.
        rows: the rows; consecutive rows of one group are printed together.
        footnotes: rich text, printed below.
        sections: print row groups as headings of their own instead of as a first column.
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
        """Makes a plain grid from a header and rows; the first column holds the names of the rows."""
        body = []
        for first, *rest in rows:
            label = Label(first.plain, first.rich) if isinstance(first, Text) else Label(str(first))
            body.append(Row(Label(""), label, tuple(Cell((piece,)) for piece in rest)))
        columns = ((Label(""), tuple(map(Label, header[1:]))),)
        return cls("", "", "", (Label(""), Label(header[0])), columns, tuple(body), sections=True)

    @property
    def column_names(self) -> list[str]:
        """The name of every column, preceded by that of its group: ``Regime I SGD``."""
        return [f"{group.name} {column.name}".strip() for group, columns in self.columns for column in columns]

    @property
    def stub(self) -> list[Label]:
        """Headings of the leading columns, which name the rows."""
        return [self.heads[1]] if self.sections else list(self.heads)

    @property
    def header(self) -> list[Label]:
        """Headings of all columns."""
        return [*self.stub, *(column for _, columns in self.columns for column in columns)]

    def groups(self) -> Iterator[tuple[Label, list[Row]]]:
        """Yields each row group with its rows."""
        for group, rows in groupby(self.rows, key=lambda row: row.group):
            yield group, list(rows)


Block: TypeAlias = "Heading | Lines | Grid"


@dataclass(frozen=True)
class Document:
    """A result as blocks and as a record.

    Attributes:
        blocks: the content for people, in order.
        record: the content for programs: the JSON contract, made of typed values (``spec/records.py``).
        source: the command that writes the document, put in a comment if the format has comments.
        closing: the verdict in one line, printed on the terminal when the document is written to a file.
    """

    blocks: tuple[Block, ...]
    record: Mapping[str, Any]
    source: str = ""
    closing: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.record, Later):
            object.__setattr__(self, "record", convert_to_json(self.record))
            return
        object.__setattr__(self, "_later", self.record)
        object.__delattr__(self, "record")

    def __getattr__(self, name: str) -> Any:
        """Computes a `Later` record when it is first read."""
        if name != "record" or "_later" not in vars(self):
            raise AttributeError(name)
        object.__setattr__(self, "record", convert_to_json(vars(self)["_later"].compute()))
        return self.record


class Later(dict[str, Any]):
    """A record that is computed when it is first read.

    Most documents are only printed, and a record can take longer.
    """

    def __init__(self, compute: Callable[[], Mapping[str, Any]]) -> None:
        super().__init__()
        self.compute = compute


def literal(text: str) -> str:
    """Escapes plain text so that it reads the same as rich text."""
    return text.replace("$", r"\$")
