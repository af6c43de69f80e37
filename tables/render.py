"""Formats of a table. Adding a format: one more entry in ``FORMATS``."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping
from html import escape

from scaling_algebra.exponents import Power
from scaling_algebra.report import latex_escape, latex_power, markdown_table

from .layouts import Cell, Entry, Table


def _math(e: Entry) -> str:
    if e.zero:
        return "$0$"
    if e.power is None:
        return "--"
    text = latex_power(e.power)
    return rf"$({text})^{{\mathrm{{tied}}}}$" if e.tied else f"${text}$"


def _plain(e: Entry) -> str:
    if e.zero:
        return "0"
    text = "-" if e.power is None else str(e.power)
    return f"{text} (tied)" if e.tied else text


def _html(e: Entry) -> str:
    def power(p: Power) -> str:
        return (
            " ".join(
                escape(a).replace("N_e", "N<sub>e</sub>") + (f"<sup>{x}</sup>" if x != 1 else "") for a, x in p.terms
            )
            or "1"
        )

    if e.zero:
        return "0"
    text = "&ndash;" if e.power is None else power(e.power)
    return f"{text} <i>tied</i>" if e.tied else text


def _join(cell: Cell, show: Callable[[Entry], str], bar: str) -> str:
    return bar.join(show(e) for e in cell.entries)


def markdown(t: Table) -> str:
    header = ["tensor", "quantity", *(f"{g.split(' (')[0]} {c}" for g, cs in t.groups for c in cs)]
    rows = [[group, label, *(_join(c, _math, " | ") for c in cells)] for group, label, cells in t.rows]
    growth = "; ".join(g for g, _ in t.groups)
    return "\n".join(
        [
            f"**Table {t.name.upper()}.** {t.caption} {growth}.",
            "",
            markdown_table(header, rows),
            "",
            *(f"- {f}" for f in t.footnotes),
        ]
    )


def latex(t: Table) -> str:
    """A ``table*`` float with booktabs rules."""
    lines = [
        r"\begin{table*}",
        r"\centering",
        r"\small",
        rf"\begin{{tabular}}{{ll{'c' * sum(len(c) for _, c in t.groups)}}}",
        r"\toprule",
    ]
    first = 3
    rules = []
    heads = ["", ""]
    for title, columns in t.groups:
        name, _, growth = title.rstrip(")").partition(" (")
        growth = growth.replace("N_e", "N_e").replace("~", r"\asymp")
        heads.append(rf"\multicolumn{{{len(columns)}}}{{c}}{{{latex_escape(name)} (${growth}$)}}")
        rules.append(rf"\cmidrule(lr){{{first}-{first + len(columns) - 1}}}")
        first += len(columns)
    lines += [" & ".join(heads) + r" \\", " ".join(rules)]
    lines += [" & ".join(["Tensor", "Quantity", *(c for _, columns in t.groups for c in columns)]) + r" \\"]
    previous = ""
    for group, label, cells in t.rows:
        if group != previous:
            lines.append(r"\midrule")
        lines.append(
            " & ".join(
                [
                    latex_escape(group if group != previous else ""),
                    label,
                    *(_join(c, _math, r" $\mid$ ") for c in cells),
                ]
            )
            + r" \\"
        )
        previous = group
    notes = " ".join(f.replace("|", r"$\mid$").replace("~", r"$\sim$") for f in t.footnotes)
    lines += [r"\bottomrule", r"\end{tabular}", rf"\caption{{{t.caption} {notes}}}", r"\end{table*}"]
    return "\n".join(lines)


def csv_text(t: Table) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["tensor", "quantity", *(f"{g.split(' (')[0]} {c}" for g, cs in t.groups for c in cs)])
    for group, label, cells in t.rows:
        writer.writerow([group, label, *(_join(c, _plain, " | ") for c in cells)])
    return out.getvalue().rstrip("\n")


def json_text(t: Table) -> str:
    def show(e: Entry) -> object:
        return "zero" if e.zero else None if e.power is None else {"power": e.power.as_strings(), "tied": e.tied}

    columns = [f"{g.split(' (')[0]} {c}" for g, cs in t.groups for c in cs]
    rows = [
        {
            "tensor": group,
            "quantity": label,
            "cells": {name: {"mup": show(c.mup), "mssp": show(c.mssp)} for name, c in zip(columns, cells, strict=True)},
        }
        for group, label, cells in t.rows
    ]
    return json.dumps(
        {"table": t.name, "caption": t.caption, "columns": columns, "rows": rows, "footnotes": t.footnotes}, indent=2
    )


def html(t: Table) -> str:
    head = "".join(f'<th colspan="{len(cs)}">{escape(g).replace("N_e", "N<sub>e</sub>")}</th>' for g, cs in t.groups)
    sub = "".join(f"<th>{escape(c)}</th>" for _, cs in t.groups for c in cs)
    body = "\n".join(
        f"<tr><th>{escape(group)}</th><th>{escape(label)}</th>"
        + "".join(f"<td>{_join(c, _html, ' | ')}</td>" for c in cells)
        + "</tr>"
        for group, label, cells in t.rows
    )
    notes = "".join(f"<p>{escape(f)}</p>" for f in t.footnotes)
    return (
        f"<table>\n<caption>{escape(t.caption)}</caption>\n<thead><tr><th></th><th></th>{head}</tr>\n"
        f"<tr><th>tensor</th><th>quantity</th>{sub}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>\n{notes}"
    )


FORMATS: Mapping[str, Callable[[Table], str]] = {
    "markdown": markdown,
    "latex": latex,
    "csv": csv_text,
    "json": json_text,
    "html": html,
}
"""Every format, by name."""
