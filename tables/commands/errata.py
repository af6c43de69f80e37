"""Implements ``scalecalc audit --errata``: the published cells that differ from the derived ones, with evidence."""

from __future__ import annotations

import click

from scaling_algebra.commands.options import Answer, Name, format_examples, prints_answer
from scaling_algebra.tables.audit.errata import errata
from scaling_algebra.tables.published.printed import SOURCES


@click.command(
    "audit --errata", epilog=format_examples("scalecalc audit --errata", "scalecalc audit --errata -o errata.tex")
)
@click.option(
    "--source",
    type=Name("source", SOURCES),
    metavar="NAME",
    help=f"List only the errata of this paper: {', '.join(SOURCES)}.",
)
@prints_answer()
def command(source: str | None) -> Answer:
    """List the published cells that differ from the derived ones: place, printed, derived, measured, and why."""
    return errata(source).document()
