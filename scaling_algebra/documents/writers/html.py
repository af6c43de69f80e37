"""Writes a self-contained HTML page without scripts. Wide tables scroll on narrow screens."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from scaling_algebra.documents.blocks import Block, Document, Grid, Heading, Lines
from scaling_algebra.documents.notation import html as set_
from scaling_algebra.documents.notation import join_values, plain

SUFFIX = ".html"
STYLE = "\n" + Path(__file__).with_name("style.css").read_text("utf-8")


def write(documents: Sequence[Document]) -> str:
    first = next(
        (block for d in documents for block in d.blocks[:1] if not isinstance(block, Lines)), Heading("scalecalc")
    )
    title = escape(plain(first.title if isinstance(first, Grid) else first.text))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{fragment(documents)}\n</body>\n</html>"
    )


def fragment(documents: Sequence[Document]) -> str:
    """Renders the body of the page, which is what a notebook shows."""
    parts = []
    for d in documents:
        parts += [f"<!-- written by: {escape(d.source)} -->"] if d.source else []
        parts += [_block(block) for block in d.blocks]
    return "\n".join(parts)


def _block(block: Block) -> str:
    if isinstance(block, Heading):
        return f"<h{block.level}>{set_(block.text)}</h{block.level}>"
    if isinstance(block, Grid):
        return _grid(block)
    tag = "li" if block.listed else "p"
    lines = "\n".join(f"<{tag}>{''.join(map(set_, line))}</{tag}>" for line in block.lines)
    return f"<ul>\n{lines}\n</ul>" if block.listed else lines


def _grid(g: Grid) -> str:
    above = [f"<p><b>{set_(g.title)}.</b> {set_(g.caption)}</p>"] if g.title else []
    lines = [*above, '<div class="wide" tabindex="0">', "<table>", "<thead>"]
    if any(group.name for group, _ in g.columns):
        groups = "".join(f'<th colspan="{len(columns)}">{set_(group.piece)}</th>' for group, columns in g.columns)
        lines.append("<tr>" + "<th></th>" * len(g.stub) + groups + "</tr>")
    if any(label.name for label in g.header):
        lines.append("<tr>" + "".join(f"<th>{set_(label.piece)}</th>" for label in g.header) + "</tr>")
    lines += ["</thead>", "<tbody>"]
    for group, rows in g.groups():
        if g.sections and group.name:
            span = len(g.column_names) + 1
            lines.append(f'<tr><th class="group" colspan="{span}">{set_(group.piece)}</th></tr>')
        for k, row in enumerate(rows):
            stub = "" if g.sections else f"<th>{set_(group.piece) if k == 0 else ''}</th>"
            kind = ' class="part"' if row.part else ""
            name = escape(row.label.name)
            stub += f'<th{kind} title="{name}">{set_(row.label.piece)}</th>'
            lines.append(f"<tr>{stub}{''.join(f'<td>{join_values(c, set_)}</td>' for c in row.cells)}</tr>")
    notes = [f"<p>{set_(note)}</p>" for note in g.footnotes]
    return "\n".join([*lines, "</tbody>", "</table>", "</div>", *notes])
