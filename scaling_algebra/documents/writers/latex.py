"""Writes LaTeX to be included in a document: sections, lists, and booktabs tables that fit the width of the page.

A grid with a title becomes a float, or several if its rows do not fit on a page. Any other grid stays in the text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from scaling_algebra.documents.blocks import Block, Cell, Code, Document, Grid, Heading, Label, Piece, Row, Text
from scaling_algebra.documents.notation import NOTHING, join_values, plain, rich, spans, width

SUFFIX = ".tex"
PACKAGES = r"\usepackage{amsmath,booktabs,tabularx}"
WRAP = 28
"""A column with entries wider than this many characters wraps its words."""
FLOAT, HERE = (42, 112), (34, 82)
"""(lines per page, characters per line) of a float across the page and of a table in the text."""
_LEVELS = ("section", "subsection", "subsubsection", "paragraph")


def write(documents: Sequence[Document]) -> str:
    """Renders documents; the first line of each is a comment with the packages that the preamble needs."""
    parts = []
    for d in documents:
        source = f"written by: {d.source}; " if d.source else ""
        parts += [f"% {source}{PACKAGES}", *map(_block, d.blocks)] if d.blocks else []
    return "\n".join(parts)


def _block(block: Block) -> str:
    if isinstance(block, Heading):
        return rf"\{_LEVELS[block.level - 1]}*{{\raggedright {_set(block.text)}}}"
    if isinstance(block, Grid):
        return "\n".join(_float(block) if block.title else _inline(block))
    lines = ["".join(_set(piece, spaces=True) for piece in line) for line in block.lines]
    if block.listed:
        return "\n".join([r"\begin{itemize}\raggedright", *(rf"\item {line}" for line in lines), r"\end{itemize}"])
    return "\n".join(rf"{{\noindent\raggedright {line}\par}}" for line in lines)


# grids ---------------------------------------------------------------------------------------------------------

_SMALL = [r"\footnotesize", r"\setlength{\tabcolsep}{4pt}", r"\renewcommand{\arraystretch}{1.3}"]
Page = list[tuple[Label, list[Row]]]


def _inline(g: Grid) -> list[str]:
    lines = [r"\begingroup", *_SMALL]
    for rows in _pages(g):
        lines += [r"\par\smallskip\noindent", *_tabular(g, rows)]
    return [*lines, r"\par\smallskip", r"\endgroup"]


def _tabular(g: Grid, rows: Page) -> list[str]:
    opens, closes = _environment(g)
    return [opens, r"\toprule", *_head(g), *_body(g, rows), r"\bottomrule", closes]


def _float(g: Grid) -> list[str]:
    parts, lines = _pages(g), []
    for k, rows in enumerate(parts):
        lines += [r"\begin{table*}[tp]", r"\centering", *_SMALL]
        if k == 0:
            lines += [rf"\caption{{\textbf{{{_set(g.title)}.}} {_set(g.caption)}}}", rf"\label{{tab:{g.name}}}"]
        else:
            lines += [r"\addtocounter{table}{-1}", rf"\caption{{\textbf{{{_set(g.title)}, continued.}}}}"]
        lines += [r"\par\smallskip", *_tabular(g, rows)]
        if k == len(parts) - 1 and g.footnotes:
            notes = r" \\ ".join(map(_set, g.footnotes))
            lines += [r"\par\medskip", rf"\parbox{{\linewidth}}{{\footnotesize {notes}}}"]
        lines += [r"\end{table*}"]
    return lines


def _pages(g: Grid) -> list[Page]:
    """Divides the rows of a table into as few pages as possible without reordering them; breaks between groups if it
    can."""
    (limit, line), rooms, first = FLOAT if g.title else HERE, _rooms(g), len(g.stub) - 1
    notes = sum(-(-width(note) // line) for note in g.footnotes)
    pages: list[Page] = [[]]
    used, left = 0, len(g.rows)
    for group, rows in g.groups():
        left -= len(rows)
        heights = [
            max(
                -(-width(piece) // rooms.get(k, 999))
                for k, piece in enumerate([row.label.piece, *map(_as_piece, row.cells)], first)
            )
            for row in rows
        ]
        whole = 1 + sum(heights) + (0 if left else notes)
        if used and used + whole > limit and whole <= limit:
            pages, used = [*pages, []], 0
        pages[-1].append((group, []))
        used += 1
        for row, height in zip(rows, heights, strict=True):
            if used + height > limit and pages[-1][-1][1]:
                pages, used = [*pages, [(group, [])]], 1
            pages[-1][-1][1].append(row)
            used += height
    return pages


def _environment(g: Grid) -> tuple[str, str]:
    """Returns the opening and closing of a tabular, or of a tabularx as wide as the page if some columns wrap."""
    rooms, kinds = _rooms(g), []
    for k, column in enumerate(_columns(g)):
        if k in rooms:
            share = rooms[k] * len(rooms) / sum(rooms.values())
            size = rf"\hsize={share:.2f}\hsize" if len(rooms) > 1 else ""
            kinds.append(rf">{{\raggedright\arraybackslash{size}}}X")
        else:
            lettered = any(re.search(r"[^\W\d]", text) for piece in column[1:] for text in _words(piece))
            kinds.append("l" if k < len(g.stub) or lettered else "c")
    if rooms:
        return rf"\begin{{tabularx}}{{\linewidth}}{{{''.join(kinds)}}}", r"\end{tabularx}"
    return rf"\begin{{tabular}}{{{''.join(kinds)}}}", r"\end{tabular}"


def _columns(g: Grid) -> list[list[Piece | None]]:
    """Returns the pieces of text in each column, beginning with its heading."""
    lines: list[list[Piece | None]] = [[label.piece for label in g.header]]
    for row in g.rows:
        stub = [row.label] if g.sections else [row.group, row.label]
        lines.append([*(label.piece for label in stub), *map(_as_piece, row.cells)])
    return [list(column) for column in zip(*lines, strict=True)]


def _as_piece(cell: Cell) -> Piece | None:
    """Merges the values of a cell into one piece."""
    return cell.values[0] if len(cell.shown) == 1 else Text(join_values(cell, plain), join_values(cell, rich))


def _rooms(g: Grid) -> dict[int, int]:
    """Selects the columns of a table in which text may wrap; returns their widths in characters, by column number.

    Columns with long words wrap, and further ones while the table is wider than a line.
    """
    columns, line = _columns(g), (FLOAT if g.title else HERE)[1]
    widths = [max(map(width, column)) for column in columns]
    words = [max((len(text) for piece in column for text in _words(piece)), default=0) for column in columns]
    wraps = {k for k in range(len(columns)) if widths[k] > WRAP and words[k] > 20}
    for k in sorted(set(range(len(columns))) - wraps, key=lambda k: -widths[k]):
        full = sum(w + 2 for c, w in enumerate(widths) if c not in wraps) + 12 * len(wraps) > line
        if full and widths[k] > 15 and any(isinstance(piece, str | Text) for piece in columns[k][1:]):
            wraps.add(k)
    free = line - sum(w + 2 for c, w in enumerate(widths) if c not in wraps)
    least = {k: max(map(_longest_word, columns[k])) for k in wraps}
    more = {k: max(0, widths[k] - least[k]) for k in wraps}
    spare = max(0, free - sum(n + 2 for n in least.values()))
    return {k: least[k] + spare * more[k] // max(1, sum(more.values())) for k in sorted(wraps)}


def _words(piece: Piece | None) -> list[str]:
    """Returns the words of a piece outside its formulas; numbers and powers have none."""
    if not isinstance(piece, str | Text | Code):
        return []
    return [text for formula, text in spans(rich(piece)) if not formula]


def _longest_word(piece: Piece | None) -> int:
    """Returns the number of characters of the longest part that cannot be broken across lines."""
    lengths = [4]
    for formula, text in spans(rich(piece)):
        if formula:
            parts = re.split(r"\\allowbreak|\\in |=", _parting(text))
            lengths += [width(f"${part}$") for part in parts if part.strip()]
        else:
            words = (_BREAKS.sub(r"\1 ", word) if len(word) >= LONG else word for word in text.split())
            lengths += [len(part) for word in words for part in word.split()]
    return min(max(lengths), WRAP)


def _head(g: Grid) -> list[str]:
    first = len(g.stub) + 1
    groups, rules, lines = [""] * len(g.stub), [], []
    for group, columns in g.columns:
        groups.append(rf"\multicolumn{{{len(columns)}}}{{c}}{{{_set(group.piece)}}}")
        rules.append(rf"\cmidrule(lr){{{first}-{first + len(columns) - 1}}}")
        first += len(columns)
    if any(group.name for group, _ in g.columns):
        lines = [" & ".join(groups) + r" \\", " ".join(rules)]
    if any(label.name for label in g.header):
        lines.append(" & ".join(_set(label.piece) for label in g.header) + r" \\")
    return lines


def _body(g: Grid, groups: Page) -> list[str]:
    lines = []
    for group, rows in groups:
        lines.append(r"\midrule")
        if g.sections and group.name:
            lines.append(rf"\multicolumn{{{len(g.column_names) + 1}}}{{l}}{{\textit{{{_set(group.piece)}}}}} \\")
        for k, row in enumerate(rows):
            stub = [] if g.sections else [_set(group.piece) if k == 0 else ""]
            label = (r"\quad " if row.part else "") + _set(row.label.piece)
            cells = [
                join_values(c, _as_mbox if len(c.shown) > 1 else _set, c.bar.replace("|", r"$\mid$")) for c in row.cells
            ]
            lines.append(" & ".join([*stub, label, *cells]) + r" \\")
    return lines


def _as_mbox(piece: Piece | None) -> str:
    """Keeps text on one line, so that a cell breaks only between its values."""
    return rf"\mbox{{{_set(piece)}}}" if isinstance(piece, str) else _set(piece)


# text ----------------------------------------------------------------------------------------------------------


def _set(piece: Piece | None, spaces: bool = False) -> str:
    """Renders a piece as LaTeX.

    Args:
        piece: the piece; None is printed as a dash.
        spaces: allow line breaks at the spaces of its formulas, for products in running text.
    """
    if isinstance(piece, Code):
        return rf"\texttt{{{_breakable(piece.text, 1)}}}"
    parts = spans(rich(piece))
    return "".join(f"${_parting(text, spaces)}$" if formula else _breakable(text) for formula, text in parts)


def _parting(tex: str, spaces: bool = False) -> str:
    """Returns a long LaTeX formula with line breaks allowed after commas and semicolons and around words."""
    if width(f"${tex}$") < WRAP:
        return tex
    tokens, depth, before = [], 0, ""
    for token in re.findall(r"\\text\{[^{}]*\}|\\[A-Za-z]+|\\.|.", tex):
        depth += {"{": 1, "}": -1}.get(token, 0)
        word = token.startswith(r"\text{")
        gap = token in (",", ";", r"\quad") or (spaces and token == " " and not re.match(r"\\[A-Za-z]", before))
        tokens += [r"\allowbreak "] if word and not depth else []
        tokens += [token, r"\allowbreak "] if (word or gap) and not depth else [token]
        before = token
    return "".join(tokens)


LONG = 15
_BREAKS = re.compile(r"([.,\]/=_])(?=[\w\[(\\])")
"""Places where a long word may break."""


def _breakable(text: str, length: int = LONG) -> str:
    """Escapes words for LaTeX. Words longer than ``length`` may break after ``.``, ``,``, ``_`` and closing
    brackets.
    """

    def part(word: re.Match[str]) -> str:
        if len(word[0]) < length:
            return escape(word[0])
        return r"\allowbreak{}".join(map(escape, _BREAKS.sub("\\1\0", word[0]).split("\0")))

    return re.sub(r"\S+", part, text)


_SPECIAL: dict[str, str] = {
    "\\": r"\textbackslash{}", "^": r"\^{}", "~": r"$\sim$", "<": "$<$", ">": "$>$", "|": r"$\mid$",
    NOTHING: r"\textendash{}",
    **{c: "\\" + c for c in "_%&#{}$"},
}  # fmt: skip


def escape(text: str) -> str:
    """Escapes the characters of plain text that LaTeX would read as markup."""
    text = "".join(_SPECIAL.get(c, c) for c in text)
    return text.replace("$<$=", r"$\leq$").replace("$>$=", r"$\geq$").replace("--", "-{}-")
