"""LaTeX to be included in a document: sections, lists and booktabs tables that fit the width of the page.

A grid with a title is a float (several where its rows do not fit on a page), any other one stands where it is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from scaling_algebra.documents.blocks import (
    Block,
    Cell,
    Code,
    Document,
    Formula,
    Grid,
    Heading,
    Label,
    Piece,
    Row,
    Text,
)
from scaling_algebra.documents.notation import NOTHING, joined, plain, rich, spans, width

SUFFIX = ".tex"
PACKAGES = r"\usepackage{amsmath,booktabs,tabularx}"
PAGE, LINE, WRAP = 44, 88, 28
"""Lines that fit on a page, characters that fit in a line, and those from which on the words of a column wrap."""
_LEVELS = ("section", "subsection", "subsubsection", "paragraph")


def write(documents: Sequence[Document]) -> str:
    """The first line names the packages that the preamble needs."""
    parts = []
    for d in documents:
        source = f"written by: {d.source}; " if d.source else ""
        parts += [f"% {source}{PACKAGES}", *map(_block, d.blocks)] if d.blocks else []
    return "\n".join(parts)


def _block(block: Block) -> str:
    if isinstance(block, Heading):
        return rf"\{_LEVELS[block.level - 1]}*{{\raggedright {_set(block.text)}}}"
    if isinstance(block, Formula):
        return rf"\[ {block.text.rich.strip('$')} \]"
    if isinstance(block, Grid):
        return "\n".join(_float(block) if block.title else _inline(block))
    lines = ["".join(map(_set, line)) for line in block.lines]
    if block.listed:
        return "\n".join([r"\begin{itemize}\raggedright", *(rf"\item {line}" for line in lines), r"\end{itemize}"])
    return "\n".join(rf"{{\noindent\raggedright {line}\par}}" for line in lines)


# grids ---------------------------------------------------------------------------------------------------------

_SMALL = [r"\footnotesize", r"\setlength{\tabcolsep}{4pt}", r"\renewcommand{\arraystretch}{1.3}"]
Page = list[tuple[Label, list[Row]]]


def _inline(g: Grid) -> list[str]:
    opens, closes = _environment(g)
    lines = [r"\begingroup", *_SMALL]
    for rows in _pages(g):
        lines += [r"\par\smallskip\noindent", opens, r"\toprule", *_head(g), *_body(g, rows), r"\bottomrule", closes]
    return [*lines, r"\par\smallskip", r"\endgroup"]


def _float(g: Grid) -> list[str]:
    parts = _pages(g)
    opens, closes = _environment(g)
    lines = []
    for k, rows in enumerate(parts):
        lines += [r"\begin{table*}[tp]", r"\centering", *_SMALL]
        if k == 0:
            lines += [rf"\caption{{\textbf{{{_set(g.title)}.}} {_set(g.caption)}}}", rf"\label{{tab:{g.name}}}"]
        else:
            lines += [r"\addtocounter{table}{-1}", rf"\caption{{\textbf{{{_set(g.title)}, continued.}}}}"]
        lines += [r"\par\smallskip", opens, r"\toprule", *_head(g), *_body(g, rows), r"\bottomrule", closes]
        if k == len(parts) - 1 and g.footnotes:
            notes = r" \\ ".join(map(_set, g.footnotes))
            lines += [r"\par\medskip", rf"\parbox{{\linewidth}}{{\footnotesize {notes}}}"]
        lines += [r"\end{table*}"]
    return lines


def _pages(g: Grid) -> list[Page]:
    """The rows, packed into as few pages as their order allows: cut between groups where that does."""
    pages: list[Page] = [[]]
    used = 0
    for group, rows in g.groups():
        heights = [max(1 + len(joined(cell, plain)) // WRAP for cell in row.cells) for row in rows]
        if used and used + 1 + sum(heights) > PAGE and 1 + sum(heights) <= PAGE:
            pages, used = [*pages, []], 0
        pages[-1].append((group, []))
        used += 1
        for row, height in zip(rows, heights, strict=True):
            if used + height > PAGE and pages[-1][-1][1]:
                pages, used = [*pages, [(group, [])]], 1
            pages[-1][-1][1].append(row)
            used += height
    return pages


def _environment(g: Grid) -> tuple[str, str]:
    """What opens and closes the rows: columns as wide as they are, or as wide as the page with words that wrap."""
    wraps, texts = _wrapping(g), _texts(g)
    kinds = [k >= len(g.stub) and not any(map(_lettered, texts[k])) for k in range(len(texts))]
    shares = {k: rf"\hsize={share:.2f}\hsize" if len(wraps) > 1 else "" for k, share in wraps.items()}
    columns = "".join(
        rf">{{\raggedright\arraybackslash{shares[k]}}}X" if k in wraps else "c" if centred else "l"
        for k, centred in enumerate(kinds)
    )
    if wraps:
        return rf"\begin{{tabularx}}{{\linewidth}}{{{columns}}}", r"\end{tabularx}"
    return rf"\begin{{tabular}}{{{columns}}}", r"\end{tabular}"


def _texts(g: Grid) -> list[list[Piece | None]]:
    """What stands in each column."""
    stub: list[list[Piece | None]] = [[row.label.piece for row in g.rows]]
    stub = stub if g.sections else [[row.group.piece for row in g.rows], *stub]
    cells = [[joined_piece(row.cells[k]) for row in g.rows] for k in range(len(g.column_names))]
    return [*stub, *cells]


def joined_piece(cell: Cell) -> Piece | None:
    """A cell as one piece."""
    return cell.values[0] if len(cell.shown) == 1 else Text(joined(cell, plain), joined(cell, rich))


def _wrapping(g: Grid) -> dict[int, float]:
    """The columns of words that wrap, each with its share of the room: the long ones, and more where a line is full."""
    texts = _texts(g)
    names = [*(label.name for label in g.stub), *(c.name for _, columns in g.columns for c in columns)]
    widths = [max([len(name), *map(width, column)]) for name, column in zip(names, texts, strict=True)]
    able = [k for k, column in enumerate(texts) if any(map(_words, column))]
    wraps = {k for k in able if widths[k] > WRAP}
    for k in sorted(set(able) - wraps, key=lambda k: -widths[k]):
        if sum(w + 2 for c, w in enumerate(widths) if c not in wraps) + 14 * len(wraps) > LINE:
            wraps.add(k)
    total = sum(min(widths[k], LINE) for k in wraps)
    return {k: len(wraps) * min(widths[k], LINE) / total for k in wraps}


def _words(piece: Piece | None) -> bool:
    """Are there words in it that may part at the end of a line?"""
    if not isinstance(piece, str | Text | Code):
        return False
    return isinstance(piece, Code) or any(not formula and len(text) > 20 for formula, text in spans(rich(piece)))


def _lettered(piece: Piece | None) -> bool:
    """Are there words in it?"""
    if not isinstance(piece, str | Text | Code):
        return False
    return any(not formula and re.search(r"[^\W\d]", text) for formula, text in spans(rich(piece)))


def _head(g: Grid) -> list[str]:
    first = len(g.stub) + 1
    groups, rules, lines = [""] * len(g.stub), [], []
    for group, columns in g.columns:
        groups.append(rf"\multicolumn{{{len(columns)}}}{{c}}{{{_set(group.piece)}}}")
        rules.append(rf"\cmidrule(lr){{{first}-{first + len(columns) - 1}}}")
        first += len(columns)
    if any(group.name for group, _ in g.columns):
        lines = [" & ".join(groups) + r" \\", " ".join(rules)]
    names = [*g.stub, *(c for _, columns in g.columns for c in columns)]
    if any(label.name for label in names):
        lines.append(" & ".join(_set(label.piece) for label in names) + r" \\")
    return lines


def _body(g: Grid, groups: Page) -> list[str]:
    lines = []
    for group, rows in groups:
        lines.append(r"\midrule")
        if g.sections and group.name:
            lines.append(rf"\multicolumn{{{len(g.column_names) + 1}}}{{l}}{{\textit{{{_set(group.piece)}}}}} \\")
        for k, row in enumerate(rows):
            stub = [] if g.sections else [_set(group.piece) if k == 0 else ""]
            label = r"\quad " * row.part + _set(row.label.piece)
            cells = [joined(c, _boxed if len(c.shown) > 1 else _set, c.bar.replace("|", r"$\mid$")) for c in row.cells]
            lines.append(" & ".join([*stub, label, *cells]) + r" \\")
    return lines


def _boxed(piece: Piece | None) -> str:
    """Text stays in one piece: a cell breaks between its values."""
    return rf"\mbox{{{_set(piece)}}}" if isinstance(piece, str) else _set(piece)


# text ----------------------------------------------------------------------------------------------------------


def _set(piece: Piece | None) -> str:
    if isinstance(piece, Code):
        return rf"\texttt{{{_breakable(escaped(piece.text), 1)}}}"
    return "".join(f"${text}$" if formula else _breakable(escaped(text), 15) for formula, text in spans(rich(piece)))


def _breakable(text: str, length: int) -> str:
    """Long words may part behind a point, a comma, an underscore or a closing bracket."""

    def part(word: re.Match[str]) -> str:
        return re.sub(r"([.,\]/=]|\\_)(?=[\w\\\[(])", r"\1\\allowbreak{}", word[0])

    return re.sub(rf"\S{{{length},}}", part, text)


_SPECIAL: dict[str, str] = {
    "\\": r"\textbackslash{}", "^": r"\^{}", "~": r"$\sim$", "<": "$<$", ">": "$>$", "|": r"$\mid$", NOTHING: r"\textendash{}",
    **{c: "\\" + c for c in "_%&#{}$"},
}  # fmt: skip


def escaped(text: str) -> str:
    """Plain text, with what LaTeX would read as markup escaped."""
    text = "".join(_SPECIAL.get(c, c) for c in text)
    return text.replace("$<$=", r"$\leq$").replace("$>$=", r"$\geq$").replace("--", "-{}-")
