"""Confirmed disagreements with the published tables, each with its evidence; ``errata.md`` is written from here.

Read next: ``errata.toml`` (the entries), ``commands/audit.py`` (who asks).
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from scaling_algebra.solver.report import markdown_table
from scaling_algebra.tables.published.reading import SOURCES

from .comparison import Verdict

Key = tuple[str, str, str, str, int | None]
"""(source, table, label, quantity, step) of a cell."""


WHERE = ("regime", "parameterization", "optimizer", "gate")
"""What of a setting tells configurations apart in reports."""


@dataclass(frozen=True)
class Measured:
    """A fitted slope of the quantity (or one that decides it), as ``command`` printed it."""

    quantity: str
    step: int
    slope: float
    interval: tuple[float, float]
    command: str


@dataclass(frozen=True)
class Erratum:
    """One confirmed disagreement.

    Attributes:
        why: what gives the derived exponent. ``inside``: what in the same paper implies it.
        cells: printed and derived value by key.
        measured: the evidence.
    """

    source: str
    title: str
    why: str
    inside: str
    cells: dict[Key, tuple[str, str]]
    measured: tuple[Measured, ...]


def errata() -> list[Erratum]:
    """Every confirmed disagreement, in file order."""
    found = []
    for e in tomllib.loads((Path(__file__).parent / "errata.toml").read_text(encoding="utf-8"))["erratum"]:
        cells = {
            (e["source"], c["table"], c.get("label", ""), c["quantity"], c.get("step")): (c["printed"], c["derived"])
            for c in e["cell"]
        }
        measured = tuple(
            Measured(m["quantity"], m["step"], m["slope"], (m["interval"][0], m["interval"][1]), m["command"])
            for m in e["measured"]
        )
        found.append(Erratum(e["source"], e["title"], e["why"], e["inside"], cells, measured))
    return found


def unlisted(verdicts: Iterable[Verdict], known: Iterable[Erratum]) -> tuple[list[Verdict], list[Key]]:
    """Disagreements no erratum lists with these values, and listed cells of the compared sources that agree by now."""
    listed = {key: values for e in known for key, values in e.cells.items()}
    verdicts = list(verdicts)
    wrong = [v for v in verdicts if v.status == "DISAGREES"]
    new = [v for v in wrong if listed.get(v.key) != (str(v.printed.value), v.derived)]
    there = {v.key for v in wrong}
    sources = {v.printed.source for v in verdicts}
    return new, [key for key in listed if key[0] in sources and key not in there]


def errata_markdown(verdicts: Iterable[Verdict], known: Iterable[Erratum]) -> str:
    """The confirmed disagreements, each with the winning matching of the engine and the measured slope."""
    by_key = {v.key: v for v in verdicts if v.status == "DISAGREES"}
    blocks = [
        "<!-- written by: scalecalc table --all -->",
        "# Errata",
        "Cells of the published tables whose exponent differs from the derived one. Each was derived by exact power "
        "counting, confirmed by a measurement with real optimizer steps, and follows from another place of the same "
        "paper. Exponents are powers of n on the ray of the configuration; `scalecalc audit` lists them all. A slope "
        "agrees with an exponent that lies within 0.1 of its interval, a drift that finite sizes leave.",
    ]
    for source in dict.fromkeys(e.source for e in known):
        blocks.append(f"## {SOURCES[source]}")
        for e in (x for x in known if x.source == source):
            rows = []
            for (_, table, label, quantity, step), (printed, derived) in e.cells.items():
                notation = by_key[source, table, label, quantity, step].printed.notation
                where = f"{table} {label}".strip()
                rows.append([where, quantity, str(step), f"${notation}$" if notation else "", printed, derived])
            header = ("where", "quantity", "updates", "printed as", "printed", "derived")
            first = by_key[next(iter(e.cells))]
            setting = ", ".join(f"{k} {first.printed.setting[k]}" for k in WHERE if k in first.printed.setting)
            blocks += [f"### {e.title}", f"Configuration: {setting}.", markdown_table(header, rows)]
            lines = [f"Why: {e.why}", f"In the same paper: {e.inside}", f"Winning matching: `{first.why}`"]
            lines += [
                f"Measured: {m.quantity} after {m.step} update{'' if m.step == 1 else 's'}, slope {m.slope:+.3f}, 95 % "
                f"interval [{m.interval[0]:+.3f}, {m.interval[1]:+.3f}], by `{m.command}`"
                for m in e.measured
            ]
            blocks.append("\n".join(f"- {line}" for line in lines))
    return "\n\n".join(blocks)
