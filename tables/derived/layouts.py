"""Registers every table by name. To add a table, add an entry to ``TABLES``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from scaling_algebra.documents import Document, Rendered
from scaling_algebra.documents.blocks import Cell, Grid, Marked, Piece, Size
from scaling_algebra.documents.notation import plain
from scaling_algebra.errors import find_entry
from scaling_algebra.spec.powers import Power

from .muon_rates import table_muon
from .scaling_tables import table_b1, table_b2, table_g1, table_g2, table_routers, table_transfer1
from .signal_tables import NAMES, signal_table
from .stable_rates import table_everett

TABLES: Mapping[str, Callable[[], Grid]] = {
    "b1": table_b1,
    "b2": table_b2,
    "g1": table_g1,
    "g2": table_g2,
    **{name: partial(signal_table, name) for name in NAMES},
    "routers1": partial(table_routers, "routers1", "sgd"),
    "routers2": partial(table_routers, "routers2", "adam"),
    "transfer1": table_transfer1,
    "everett": table_everett,
    "muon": table_muon,
}
"""Maps the name of a table to the function that derives it."""


@dataclass(frozen=True, repr=False)
class DerivedTable(Rendered):
    """A published table with every cell derived.

    Attributes:
        grid: its rows and columns.
    """

    grid: Grid

    @property
    def about(self) -> str:
        return f"{self.grid.title}, derived"

    def document(self) -> Document:
        """Renders the table. In JSON exponents are strings, ``"zero"`` is exactly zero, and null is an empty cell."""
        g = self.grid
        group, label = (head.name for head in g.heads)
        rows = [
            {
                **({group: row.group.name} if group else {}),
                label: row.label.name,
                "cells": {name: _record(c) for name, c in zip(g.column_names, row.cells, strict=True)},
            }
            for row in g.rows
        ]
        head = {"table": g.name, "title": g.title, "caption": g.caption, "columns": g.column_names}
        record = {**head, "rows": rows, "footnotes": list(g.footnotes)}
        return Document((replace(g, title=self.about),), record, f"scalecalc table {g.name}")


def table(name: str) -> DerivedTable:
    """Derives a published table.

    Args:
        name: b1, g1, g2, j32, ...: one of ``TABLES``.

    Raises:
        UsageError: there is no such table.
    """
    return DerivedTable(find_entry("table", name, TABLES)())


def _record(cell: Cell) -> object:
    """Converts a table cell to JSON: values with names to a dict, a text to the list of all texts that tie, any other
    value to itself.
    """
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
