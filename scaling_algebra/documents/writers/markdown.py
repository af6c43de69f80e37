"""GitHub-flavoured markdown; GitHub sets the formulas."""

from __future__ import annotations

import re
from collections.abc import Sequence

from scaling_algebra.documents.blocks import Block, Code, Document, Grid, Heading, Piece
from scaling_algebra.documents.notation import joined, rich, spans

SUFFIX = ".md"


def write(documents: Sequence[Document]) -> str:
    parts = []
    for d in documents:
        parts += [f"<!-- written by: {d.source} -->"] if d.source else []
        parts += [_block(block) for block in d.blocks]
    return "\n\n".join(parts)


def _block(block: Block) -> str:
    if isinstance(block, Heading):
        return f"{'#' * block.level} {_marked(block.text)}"
    if isinstance(block, Grid):
        return _grid(block)
    lines = ["".join(map(_marked, line)) for line in block.lines]
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
            rows.append([*stub, *(joined(cell, _cell, cell.bar.replace("|", r"\|")) for cell in row.cells)])
    table = tabulate(rows, header, tablefmt="github", disable_numparse=True)
    long = [_marked(group.piece) for group, _ in g.columns if group.text]
    notes = [*([f"{'; '.join(long)}."] if long else []), *map(_marked, g.footnotes)]
    above = [f"**{_marked(g.title)}.** {_marked(g.caption)}"] if g.title else []
    return "\n\n".join([*above, table, *(["\n".join(f"- {note}" for note in notes)] if notes else [])])


def _cell(piece: Piece | None) -> str:
    return _marked(piece).replace("|", r"\|")


def _marked(piece: Piece | None) -> str:
    """Formulas and code as they are, words with what markdown would read as markup escaped."""
    if isinstance(piece, Code):
        return f"`{piece.text}`"
    return "".join(f"${text}$" if formula else _words(text) for formula, text in spans(rich(piece)))


def _words(text: str) -> str:
    """Underscores inside a word are no markup; what would be the target of a link is plain."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace("](", "]\\(")
    return re.sub(r"(?<!\w)_|_(?!\w)|[\\*`$]", lambda m: "\\" + m[0], text)
