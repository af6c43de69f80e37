"""``scalecalc audit --errata``: the published cells that differ from the derived ones, each with its evidence."""

from __future__ import annotations

import click

from scaling_algebra.commands.options import Answer, examples, printed
from scaling_algebra.tables.audit.errata import errata


@click.command("audit --errata", epilog=examples("scalecalc audit --errata", "scalecalc audit --errata -o errata.tex"))
@printed()
def command() -> Answer:
    """List the published cells that differ from the derived ones: place, printed, derived, measured, and why."""
    return errata().document()
