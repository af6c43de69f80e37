"""Comma-separated values: every grid with its header, every heading and line in a cell of its own, in order."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence

from scaling_algebra.documents.blocks import Block, Document, Grid, Heading, Lines
from scaling_algebra.documents.notation import joined, plain

SUFFIX = ".csv"


def write(documents: Sequence[Document]) -> str:
    return "\n\n".join(_text(_rows(block)) for d in documents for block in d.blocks)


def _text(rows: Iterable[Sequence[str]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue().rstrip("\n")


def _rows(block: Block) -> Iterator[Sequence[str]]:
    if isinstance(block, Heading):
        yield [plain(block.text)]
    elif isinstance(block, Lines):
        yield from (["".join(map(plain, line))] for line in block.lines)
    else:
        yield from _grid(block)


def _grid(g: Grid) -> Iterator[Sequence[str]]:
    heads = [label.name for label in g.heads if label.name] or [g.heads[1].name]
    yield [*heads, *g.column_names]
    for row in g.rows:
        stub = [row.group.name, row.label.name][-len(heads) :]
        yield [*stub, *(joined(cell, plain) for cell in row.cells)]
