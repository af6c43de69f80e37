"""Writes GitHub-flavoured markdown; GitHub typesets the formulas."""

from __future__ import annotations

import re
from collections.abc import Sequence

from scaling_algebra.documents.blocks import Block, Code, Document, Grid, Heading, Piece
from scaling_algebra.documents.notation import join_values, rich, spans

SUFFIX = ".md"


def write(documents: Sequence[Document]) -> str:
    parts = []
    for d in documents:
        parts += [f"<!-- written by: {d.source} -->"] if d.source else []
        parts += [_block(block) for block in d.blocks]
    return "\n\n".join(parts)


def _block(block: Block) -> str:
    if isinstance(block, Heading):
        return f"{'#' * block.level} {_to_markdown(block.text)}"
    if isinstance(block, Grid):
        return _grid(block)
    lines = ["".join(map(_to_markdown, line)) for line in block.lines]
    return "\n".join(f"- {line}" for line in lines) if block.listed else "  \n".join(lines)


def _grid(g: Grid) -> str:
    from tabulate import tabulate

    header = [_cell(label.piece) for label in g.stub]
    header += [f"{_cell(group.name)} {_cell(c.piece)}".strip() for group, columns in g.columns for c in columns]
    rows = []
    for group, members in g.groups():
        if g.sections and group.name:
            rows.append([f"**{_cell(group.piece)}**", *[""] * len(g.column_names)])
        for row in members:
            label = ("&emsp;" if row.part else "") + _cell(row.label.piece)
            stub = [label] if g.sections else [_cell(group.piece), label]
            rows.append([*stub, *(join_values(cell, _cell, cell.bar.replace("|", r"\|")) for cell in row.cells)])
    table = tabulate(rows, header, tablefmt="github", disable_numparse=True)
    long = [_to_markdown(group.piece) for group, _ in g.columns if group.text]
    notes = [*([f"{'; '.join(long)}."] if long else []), *map(_to_markdown, g.footnotes)]
    above = [f"**{_to_markdown(g.title)}.** {_to_markdown(g.caption)}"] if g.title else []
    return "\n\n".join([*above, table, *(["\n".join(f"- {note}" for note in notes)] if notes else [])])


def _cell(piece: Piece | None) -> str:
    return _to_markdown(piece).replace("|", r"\|")


def _to_markdown(piece: Piece | None) -> str:
    """Renders a piece: formulas and code unchanged, words with markdown's special characters escaped."""
    if isinstance(piece, Code):
        return f"`{piece.text}`"
    return "".join(f"${text}$" if formula else _words(text) for formula, text in spans(rich(piece)))


def _words(text: str) -> str:
    """Escapes words. Underscores inside a word are no markup and stay; link targets become plain text."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace("](", "]\\(")
    return re.sub(r"(?<!\w)_|_(?!\w)|[\\*`$]", lambda m: "\\" + m[0], text)
