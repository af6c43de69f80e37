"""Writes plain text, aligned for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from scaling_algebra.documents.blocks import Block, Document, Grid, Heading
from scaling_algebra.documents.notation import join_values, plain

SUFFIX = ".txt"


def write(documents: Sequence[Document]) -> str:
    """Renders documents, separated by an empty line; the content below a heading is indented."""
    return "\n\n".join(filter(None, ("\n".join(_lines(d.blocks)) for d in documents)))


def _lines(blocks: Sequence[Block]) -> list[str]:
    lines: list[str] = []
    level, headed = 1, False
    for block in blocks:
        level = block.level if isinstance(block, Heading) else level
        margin = "  " * max(0, level - 2)
        apart = not headed if isinstance(block, Heading) else level == 1 and isinstance(block, Grid)
        headed = isinstance(block, Heading)
        if apart and lines and lines[-1]:
            lines.append("")
        if isinstance(block, Heading):
            lines.append(margin + plain(block.text))
        elif isinstance(block, Grid):
            inner = f"{margin}  " if level > 1 else margin
            lines += [f"{inner}{line}".rstrip() for line in _grid(block)]
            lines += [""] if level == 1 else []
        else:
            inner = f"{margin}  " if block.listed else margin
            lines += [inner + "".join(map(plain, line)) for line in block.lines]
    return lines[:-1] if lines and not lines[-1] else lines


def _grid(g: Grid) -> list[str]:
    """Returns the lines of a table: title and caption, aligned columns, footnotes."""
    from tabulate import tabulate

    rows = []
    for group, members in g.groups():
        if g.sections and group.name:
            rows.append([f"{plain(group.piece)}:", *[""] * len(g.column_names)])
        for k, row in enumerate(members):
            label = ("- " if row.part else "") + plain(row.label.piece)
            stub = [label] if g.sections else [plain(group.piece) if k == 0 else "", label]
            rows.append([*stub, *(join_values(cell, plain) for cell in row.cells)])
    header = [*(label.name for label in g.stub), *g.column_names]
    table = tabulate([header, *rows] if any(header) else rows, tablefmt="plain", disable_numparse=True)
    above = [f"{plain(g.title)}. {plain(g.caption)}", ""] if g.title else []
    below = ["", *map(plain, g.footnotes)] if g.footnotes else []
    return [*above, *(line.rstrip() for line in table.splitlines()), *below]
