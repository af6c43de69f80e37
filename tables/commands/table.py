"""Implements ``scalecalc table``: prints a derived table, or writes all of them."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from scaling_algebra.all_rays.phases import phases
from scaling_algebra.all_rays.picture import phases_svg
from scaling_algebra.commands.options import Name, PathType, check_output, format_examples, print_or_write, write_text
from scaling_algebra.documents import FORMATS, render, suffixes
from scaling_algebra.errors import UsageError
from scaling_algebra.files import make_folder
from scaling_algebra.spec.parameterizations import DERIVED
from scaling_algebra.tables.derived.layouts import TABLES, table

EMITTED = Path(__file__).parent.parent / "emitted"
WRITTEN = ("markdown", "latex")
"""Formats that ``--all`` writes."""


@click.command("table", epilog=format_examples("scalecalc table b1", "scalecalc table j43 -o j43.tex"))
@click.argument("name", type=Name("table", TABLES), metavar="[NAME]", required=False)
@click.option("--all", "every", is_flag=True, help="Write every table and the maps to tables/emitted.")
@click.option(
    "--format",
    "form",
    type=Name("format", FORMATS),
    metavar="FORMAT",
    help=f"{', '.join(FORMATS)}; by default what the ending of -o says, text on a terminal, else markdown.",
)
@click.option(
    "-o",
    "--output",
    type=PathType(),
    metavar="PATH",
    help="Write to this file instead of stdout; with --all a folder instead of tables/emitted.",
)
def command(name: str | None, every: bool, form: str | None, output: Path | None) -> int:
    """Print a published table with every cell derived.

    NAME: b1, g1, g2 (Tables B.1, G.1, G.2 of the MSSP paper), j32, j34, j43, j45 (its signal tables, App. J),
    routers1, routers2 (Tables 1, 2 of the routers paper), transfer1 (Table 1 of the HP-transfer paper), everett
    (largest stable learning rates per layer, in the setting of Everett et al. 2024), muon (public code).

    LaTeX output is one or more table* floats; the first line says what the preamble needs.
    """
    if name is None and not every:
        raise UsageError(f"Missing argument NAME; give a table ({', '.join(TABLES)}) or --all")
    if name is not None and every:
        raise UsageError(f"both the table {name!r} and --all were given; give one of them")
    if name is not None:
        if output is not None:
            check_output(output, form)
        default = "text" if output is None and sys.stdout.isatty() else "markdown"
        print_or_write(table(name).document(), form, output, default)
        return 0
    if form is not None:
        raise UsageError(f"--format goes with one printed table; --all uses {' and '.join(WRITTEN)}")
    folder = output or EMITTED
    if output is None and not folder.is_dir():
        raise UsageError(f"there is no folder {folder}; run this in a source checkout, or choose a folder with -o")
    make_folder(folder, "choose another -o FOLDER")
    files = render_files()
    for file, text in files.items():
        write_text(folder / file, text)
    click.echo(f"{len(files)} files written to {folder}")
    return 0


def render_files() -> dict[str, str]:
    """Renders the tables and the maps; returns the content of every file by its name."""
    documents = {name: table(name).document() for name in TABLES}
    texts = {f"{name}{suffixes()[form]}": render(documents[name], form) for name in TABLES for form in WRITTEN}
    texts |= {f"map_{name}_sgd.svg": phases_svg(phases("sgd", name)) for name in DERIVED}
    return {file: f"{text}\n" for file, text in texts.items()}
