"""``scalecalc page``: the calculator as a folder of files for a web server."""

from __future__ import annotations

from pathlib import Path

import click

from scaling_algebra import files
from scaling_algebra.page import assembly

from .options import PathType, format_examples


@click.command(
    "page",
    epilog=format_examples("scalecalc page -o site/calculator", "scalecalc page -o calculator --assets downloads"),
)
@click.option(
    "-o",
    "--output",
    type=PathType(),
    metavar="DIR",
    required=True,
    help="Folder to write: a new or empty one, or one with an earlier page.",
)
@click.option(
    "--assets",
    type=PathType(),
    metavar="DIR",
    help="Folder with Pyodide and the wheels; missing files are downloaded into it (npm, pip) and kept for the next "
    "time.",
)
def command(output: Path, assets: Path | None) -> None:
    """Build the calculator page: this package, unmodified, running in a browser.

    Any web server can serve the page; it fetches nothing from elsewhere. Its assets have fixed versions and are checked
    by sha256.
    """
    assembly.check(output)
    if assets is not None:
        files.check_place(assets, "give --assets another folder")
    size = assembly.assemble(output, assets, lambda line: click.echo(line, err=True))
    click.echo(f"{output}: {size / 2**20:.0f} MiB. To see it: python -m http.server -d {output}")
