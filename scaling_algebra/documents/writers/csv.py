"""The grids as comma-separated values, one after the other with an empty line between."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from scaling_algebra.documents.blocks import Document, Grid
from scaling_algebra.documents.notation import joined, plain

SUFFIX = ".csv"


def write(documents: Sequence[Document]) -> str:
    return "\n\n".join(_grid(block) for d in documents for block in d.blocks if isinstance(block, Grid))


def _grid(g: Grid) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    heads = [label.name for label in g.heads if label.name] or [g.heads[1].name]
    writer.writerow([*heads, *g.column_names])
    for row in g.rows:
        stub = [row.group.name, row.label.name][-len(heads) :]
        writer.writerow([*stub, *(joined(cell, plain) for cell in row.cells)])
    return out.getvalue().rstrip("\n")
