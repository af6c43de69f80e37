"""``scalecalc table``: print a derived table."""

from __future__ import annotations

from pathlib import Path

import click

from scaling_algebra.errors import UsageError, unknown_name

from .layouts import TABLES
from .render import FORMATS


@click.command("table")
@click.argument("name", metavar="NAME")
@click.option("--format", "form", default="markdown", show_default=True, metavar="FORMAT", help=", ".join(FORMATS))
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file instead of stdout."
)
def table(name: str, form: str, output: Path | None) -> None:
    """Print a published table with every cell derived. NAME: b1 (Table B.1 of the MSSP paper).

    LaTeX output is a table* float; the document's preamble needs \\usepackage{booktabs}.
    """
    if name.lower() not in TABLES:
        raise unknown_name("table", name, TABLES)
    if form.lower() not in FORMATS:
        raise unknown_name("format", form, FORMATS)
    text = FORMATS[form.lower()](TABLES[name.lower()]())
    if output is None:
        click.echo(text)
        return
    try:
        output.write_text(text + "\n")
    except OSError as error:
        raise UsageError(f"cannot write {output}: {error.strerror}; choose another -o FILE") from None
