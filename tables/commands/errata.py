"""``scalecalc errata``: the published cells that differ from the derived ones, each with its evidence."""

from __future__ import annotations

from pathlib import Path

import click

from scaling_algebra.commands.options import emit, examples, printed
from scaling_algebra.tables.audit.errata import errata


@click.command("errata", epilog=examples("scalecalc errata", "scalecalc errata -o errata.tex"))
@printed
def command(form: str | None, output: Path | None) -> None:
    """List the published cells that differ from the derived ones: place, printed, derived, measured, and why."""
    emit(errata().document(), form, output)
