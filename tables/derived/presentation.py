"""A table as a document, with its record. Read next: ``commands/table.py`` (who asks)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from scaling_algebra.documents import document_of
from scaling_algebra.documents.blocks import Cell, Document, Grid, Marked, Piece, Size
from scaling_algebra.documents.notation import plain
from scaling_algebra.spec.powers import Power

from .layouts import DerivedTable


@document_of.register(DerivedTable)
def table(t: DerivedTable) -> Document:
    """One derived table."""
    g = t.grid
    return Document((replace(g, title=f"{g.title}, derived"),), _record(g), f"scalecalc table {g.name}")


def _record(g: Grid) -> dict[str, Any]:
    """The JSON contract: exponents are strings, ``"zero"`` is exactly zero, null is nothing."""
    group, label = (head.name for head in g.heads)
    rows = [
        {
            **({group: row.group.name} if group else {}),
            label: row.label.name,
            "cells": {name: _cell(c) for name, c in zip(g.column_names, row.cells, strict=True)},
        }
        for row in g.rows
    ]
    head = {"table": g.name, "title": g.title, "caption": g.caption, "columns": g.column_names}
    return {**head, "rows": rows, "footnotes": list(g.footnotes)}


def _cell(cell: Cell) -> object:
    """Named values by name, text as a list of what ties, any other value by itself."""
    shown = [_value(piece) for piece in cell.values]
    if cell.names:
        return dict(zip(cell.names, shown, strict=True))
    return shown if isinstance(cell.values[0], str) else shown[0]


def _value(piece: Piece | None) -> object:
    if isinstance(piece, Power):
        return {"power": piece, "tied": False}
    if isinstance(piece, Marked):
        return {"power": piece.power, "tied": True}
    if isinstance(piece, Size):
        return "zero" if piece.exponent is None else {"exponent": piece.exponent}
    return None if piece is None else plain(piece)
