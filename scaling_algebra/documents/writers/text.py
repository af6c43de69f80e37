"""Plain text, aligned for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from scaling_algebra.documents.blocks import Block, Document, Grid, Heading, Lines
from scaling_algebra.documents.notation import joined, plain

SUFFIX = ".txt"


def write(documents: Sequence[Document]) -> str:
    """Documents are separated by an empty line; what belongs to a heading stands below it, further right."""
    return "\n\n".join(filter(None, ("\n".join(_lines(d.blocks)) for d in documents)))


def _lines(blocks: Sequence[Block]) -> list[str]:
    found: list[str] = []
    level, headed = 1, False
    for block in blocks:
        level = block.level if isinstance(block, Heading) else level
        margin = "  " * max(0, level - 2)
        apart = not headed if isinstance(block, Heading) else level == 1 and isinstance(block, Grid)
        headed = isinstance(block, Heading)
        if found and (apart or (level == 1 and found[-1] == "")):
            found += [""] * (found[-1] != "")
        inner = margin + "  " * (level > 1 or (isinstance(block, Lines) and block.listed))
        if isinstance(block, Heading):
            found.append(margin + plain(block.text))
        elif isinstance(block, Lines):
            found += [(inner if block.listed else margin) + "".join(map(plain, line)) for line in block.lines]
        else:
            found += [f"{inner}{line}".rstrip() for line in grid(block)] + [""] * (level == 1)
    return found[:-1] if found and not found[-1] else found


def grid(g: Grid) -> list[str]:
    """Title and caption, columns of equal width, footnotes."""
    rows = []
    for group, members in g.groups():
        if g.sections and group.name:
            rows.append([f"{plain(group.piece)}:", *[""] * len(g.column_names)])
        for k, row in enumerate(members):
            label = "- " * row.part + plain(row.label.piece)
            stub = [label] if g.sections else [plain(group.piece) if k == 0 else "", label]
            rows.append([*stub, *(joined(cell, plain) for cell in row.cells)])
    above = [f"{plain(g.title)}. {plain(g.caption)}", ""] if g.title else []
    below = ["", *map(plain, g.footnotes)] if g.footnotes else []
    return [*above, *aligned([*(label.name for label in g.stub), *g.column_names], rows), *below]


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns padded to equal width; no header where all of it is empty."""
    from tabulate import tabulate

    lines = tabulate([header, *rows] if any(header) else rows, tablefmt="plain", disable_numparse=True).splitlines()
    return [line.rstrip() for line in lines]
