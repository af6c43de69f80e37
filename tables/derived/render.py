"""Formats of a table. Adding a format: one more entry in ``FORMATS``. Read next: ``command.py``."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Mapping
from html import escape

from scaling_algebra.solver.report import latex_escape, latex_power, markdown_table
from scaling_algebra.spec.powers import Power, exponent_text

from .cells import INDENT, Cell, Label, Row, Size, Table, Value

NOTHING = "\N{EN DASH}"
PAGE, WRAP = 44, 30
"""Lines that fit on a page, and characters in a line of a text column: a longer LaTeX table is split at a section."""


def rich(v: Value) -> str:
    """A value as rich text."""
    if v.zero:
        return "$0$"
    if v.content is None:
        return NOTHING
    if isinstance(v.content, str):
        return v.content
    if isinstance(v.content, Power):
        power = latex_power(v.content)
        return rf"$({power})^{{\mathrm{{tied}}}}$" if v.tied else f"${power}$"
    if isinstance(v.content, Size):
        e = v.content.exponent
        return rf"$\Theta({'n' if e == 1 else f'n^{{{e}}}' if e else '1'})$"
    return f"${v.content}$"


def plain(v: Value) -> str:
    """A value as plain text."""
    if v.zero:
        return "0"
    if v.content is None:
        return "-"
    text = f"n^{exponent_text(v.content.exponent)}" if isinstance(v.content, Size) else str(v.content)
    return f"{text} (tied)" if v.tied else text


def as_json(cell: Cell) -> object:
    """Named values by name, text as a list of what ties, any other value by itself."""
    shown = [_value_json(v) for v in cell.values]
    if cell.names:
        return dict(zip(cell.names, shown, strict=True))
    return shown if isinstance(cell.values[0].content, str) else shown[0]


def _value_json(v: Value) -> object:
    if v.zero:
        return "zero"
    if isinstance(v.content, Power):
        return {"power": v.content.as_strings(), "tied": v.tied}
    if isinstance(v.content, Size):
        return {"exponent": str(v.content.exponent)}
    return None if v.content is None else str(v.content)


def _join(cell: Cell, show: Callable[[Value], str], bar: str = " | ") -> str:
    return (bar if cell.names else " or ").join(show(v) for v in cell.shown)


# markdown ------------------------------------------------------------------------------------------------------


def markdown(t: Table) -> str:
    """GitHub-flavoured; GitHub sets the formulas."""
    header = [h.capitalize() for h in t.stub]
    header += [f"{g.name} {c.rich}".strip() for g, columns in t.columns for c in columns]
    rows = []
    for group, members in t.groups():
        if t.sections and group.name:
            rows.append([f"**{group.rich}**", *[""] * len(t.column_names)])
        for row in members:
            label = row.label.rich.replace(INDENT, "&emsp;")
            stub = [label] if t.sections else [_capital(group.rich), label]
            rows.append(stub + [_join(c, rich) for c in row.cells])
    long = [g.rich for g, _ in t.columns if g.text]
    notes = [*([f"{'; '.join(long)}."] if long else []), *t.footnotes]
    lines = [_source(t, "<!-- ", " -->"), "", f"**{t.title}, derived.** {t.caption}", ""]
    return "\n".join([*lines, markdown_table(header, rows), "", *(f"- {f}" for f in notes)])


# latex ---------------------------------------------------------------------------------------------------------


def latex(t: Table) -> str:
    """``table*`` floats with booktabs rules: one, or several where the rows do not fit on a page."""
    parts = _pages(t)
    opens, closes = _open_close(t)
    lines = [_source(t, "% ", r"; \usepackage{booktabs,tabularx}")]
    for k, rows in enumerate(parts):
        head = rf"\textbf{{{_tex(t.title)}, derived.}} {_tex(t.caption)}"
        again = rf"\textbf{{{_tex(t.title)}, derived, continued.}}"
        lines += [r"\begin{table*}[tp]", r"\centering", r"\footnotesize", r"\setlength{\tabcolsep}{4pt}"]
        lines += [r"\renewcommand{\arraystretch}{1.3}"]
        lines += [rf"\caption{{{head}}}", rf"\label{{tab:{t.name}}}"] if k == 0 else []
        lines += [r"\addtocounter{table}{-1}", rf"\caption{{{again}}}"] if k else []
        lines += [r"\par\smallskip", opens, r"\toprule", *_head(t)]
        lines += _body(t, rows)
        lines += [r"\bottomrule", closes]
        if k == len(parts) - 1:
            notes = r" \\ ".join(map(_tex, t.footnotes))
            lines += [r"\par\medskip", rf"\parbox{{\linewidth}}{{\footnotesize {notes}}}"]
        lines += [r"\end{table*}"]
    return "\n".join(lines)


def _pages(t: Table) -> list[list[tuple[Label, list[Row]]]]:
    """Row groups, packed into as few pages as their order allows."""
    pages: list[list[tuple[Label, list[Row]]]] = [[]]
    used = 0
    for group, rows in t.groups():
        lines = 1 + sum(max(1 + len(_join(c, plain)) // WRAP for c in row.cells) for row in rows)
        if used and used + lines > PAGE:
            pages.append([])
            used = 0
        pages[-1].append((group, rows))
        used += lines
    return pages


def _open_close(t: Table) -> tuple[str, str]:
    """The environment of the rows: centred columns, or as wide as the page with text that wraps."""
    text = [any(isinstance(row.cells[k].values[0].content, str) for row in t.rows) for k in range(len(t.column_names))]
    columns = "l" * len(t.stub) + "".join(r">{\raggedright\arraybackslash}X" if wraps else "c" for wraps in text)
    if any(text):
        return rf"\begin{{tabularx}}{{\linewidth}}{{{columns}}}", r"\end{tabularx}"
    return rf"\begin{{tabular}}{{{columns}}}", r"\end{tabular}"


def _head(t: Table) -> list[str]:
    first = len(t.stub) + 1
    groups, rules, lines = [""] * len(t.stub), [], []
    for group, columns in t.columns:
        groups.append(rf"\multicolumn{{{len(columns)}}}{{c}}{{{_tex(group.rich)}}}")
        rules.append(rf"\cmidrule(lr){{{first}-{first + len(columns) - 1}}}")
        first += len(columns)
    if any(group.name for group, _ in t.columns):
        lines = [" & ".join(groups) + r" \\", " ".join(rules)]
    stub = [h.capitalize() for h in t.stub]
    return [*lines, " & ".join([*stub, *(_tex(c.rich) for _, columns in t.columns for c in columns)]) + r" \\"]


def _body(t: Table, groups: list[tuple[Label, list[Row]]]) -> list[str]:
    lines = []
    for group, rows in groups:
        lines.append(r"\midrule")
        if t.sections and group.name:
            lines.append(rf"\multicolumn{{{len(t.column_names) + 1}}}{{l}}{{\textit{{{_tex(group.rich)}}}}} \\")
        for k, row in enumerate(rows):
            stub = [] if t.sections else [_capital(_tex(group.rich)) if k == 0 else ""]
            cells = [_join(c, _tex_value, r" $\mid$ ") for c in row.cells]
            lines.append(" & ".join([*stub, _tex(row.label.rich), *cells]) + r" \\")
    return lines


def _tex_value(v: Value) -> str:
    """Text stays in one piece: a cell breaks between its values."""
    text = _tex(rich(v))
    return rf"\mbox{{{text}}}" if isinstance(v.content, str) else text


def _tex(text: str) -> str:
    """Rich text as LaTeX."""
    parts = text.split("$")
    for k in range(0, len(parts), 2):
        parts[k] = latex_escape(parts[k]).replace("|", r"$\mid$").replace(NOTHING, "--").replace(INDENT, r"\quad ")
    return "".join(f"${part}$" if k % 2 else part for k, part in enumerate(parts))


# csv, json, html -----------------------------------------------------------------------------------------------


def csv_text(t: Table) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    grouped = bool(t.heads[0])
    writer.writerow([*([t.heads[0]] if grouped else []), t.heads[1], *t.column_names])
    for row in t.rows:
        stub = [row.group.name, row.label.name] if grouped else [row.label.name]
        writer.writerow([*stub, *(_join(c, plain) for c in row.cells)])
    return out.getvalue().rstrip("\n")


def json_text(t: Table) -> str:
    rows = [
        {
            **({t.heads[0]: row.group.name} if t.heads[0] else {}),
            t.heads[1]: row.label.name,
            "cells": {name: as_json(c) for name, c in zip(t.column_names, row.cells, strict=True)},
        }
        for row in t.rows
    ]
    head = {"table": t.name, "title": t.title, "caption": t.caption, "columns": t.column_names}
    return json.dumps({**head, "rows": rows, "footnotes": t.footnotes}, indent=2)


def html(t: Table) -> str:
    """A fragment without scripts: formulas are set with characters, subscripts and superscripts."""
    width = len(t.column_names)
    groups = "".join(f'<th colspan="{len(columns)}">{_html(g.rich)}</th>' for g, columns in t.columns)
    lines = [_source(t, "<!-- ", " -->"), "<table>"]
    lines += [f"<caption><b>{_html(t.title)}, derived.</b> {_html(t.caption)}</caption>", "<thead>"]
    if any(g.name for g, _ in t.columns):
        lines.append("<tr>" + "<th></th>" * len(t.stub) + groups + "</tr>")
    heads = [h.capitalize() for h in t.stub] + [_html(c.rich) for _, columns in t.columns for c in columns]
    lines += ["<tr>" + "".join(f"<th>{h}</th>" for h in heads) + "</tr>", "</thead>", "<tbody>"]
    for group, rows in t.groups():
        if t.sections and group.name:
            lines.append(f'<tr><th colspan="{width + 1}">{_html(group.rich)}</th></tr>')
        for row in rows:
            stub = [row.label] if t.sections else [group, row.label]
            cells = "".join(f'<th title="{escape(x.name)}">{_html(x.rich)}</th>' for x in stub)
            cells += "".join(f"<td>{_join(c, lambda v: _html(rich(v)))}</td>" for c in row.cells)
            lines.append(f"<tr>{cells}</tr>")
    return "\n".join([*lines, "</tbody>", "</table>", *(f"<p>{_html(f)}</p>" for f in t.footnotes)])


ENTITIES = {"asymp": "asympeq", "partial": "part", "to": "rarr"}
"""LaTeX commands whose HTML entity has another name."""


def _html(text: str) -> str:
    """Rich text as HTML."""
    parts = escape(text).split("$")
    return "".join(_formula(part) if k % 2 else part for k, part in enumerate(parts))


def _formula(tex: str) -> str:
    """A formula of the few commands that the tables use: most are called alike in HTML."""
    tex = re.sub(r"\\mathrm\{(\w+)\}", r"\1", tex)
    tex = re.sub(r"\\dot\\([A-Za-z]+)", r"&\1;&#775;", tex)
    tex = re.sub(r"\\([A-Za-z]+)", lambda m: f"&{ENTITIES.get(m[1], m[1])};", tex)
    for mark, tag in (("_", "sub"), (r"\^", "sup")):
        tex = re.sub(mark + r"(?:\{([^{}]*)\}|(\w|&top;))", rf"<{tag}>\1\2</{tag}>", tex)
    return tex


def _source(t: Table, before: str, after: str) -> str:
    return f"{before}written by: scalecalc table {t.name}{after}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


FORMATS: Mapping[str, Callable[[Table], str]] = {
    "markdown": markdown,
    "latex": latex,
    "csv": csv_text,
    "json": json_text,
    "html": html,
}
"""Every format, by name."""
