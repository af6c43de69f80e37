"""Implements ``scalecalc audit``: compares published cells, or rules of public code, with the engine or a measurement.

Read next: ``audit/comparison.py`` (the comparison), ``audit/errata.py`` (known disagreements),
``implementations/comparison.py`` (rules of public code).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from scaling_algebra.commands.options import Answer, Name, PathType, Verb, format_examples, prints_answer
from scaling_algebra.errors import UsageError
from scaling_algebra.tables.audit.comparison import Audit, audit, compare
from scaling_algebra.tables.audit.errata import errata, find_unlisted
from scaling_algebra.tables.audit.own import own
from scaling_algebra.tables.audit.presentation import difference
from scaling_algebra.tables.implementations.comparison import implementations as shipped
from scaling_algebra.tables.implementations.shipped import NAMES
from scaling_algebra.tables.published.printed import SCHEMA, SOURCES, Key


@click.command(
    "audit",
    cls=Verb,
    forms={"--errata": ("List the published cells that are wrong.", "scaling_algebra.tables.commands.errata")},
    epilog=format_examples(
        "scalecalc audit",
        "scalecalc audit --source routers -o audit.md",
        "scalecalc audit --implementations --source megatron-lm",
        "scalecalc audit --errata",
        "scalecalc audit mine.toml",
    ),
)
@click.argument("file", type=PathType(), metavar="[FILE.toml]", required=False)
@click.option(
    "--source",
    type=Name("source", (*SOURCES, *NAMES)),
    metavar="NAME",
    help=f"Compare only this paper: {', '.join(SOURCES)}; with --implementations only this code: {', '.join(NAMES)}.",
)
@click.option("--measure", is_flag=True, help="Also train torch models and fit the slope of every disagreement.")
@click.option("--implementations", is_flag=True, help="Compare the rules of public code instead of papers.")
@click.option("--schema", is_flag=True, help="Print an example of FILE.toml.")
@prints_answer()
def command(
    file: Path | None, source: str | None, measure: bool, implementations: bool, schema: bool
) -> Answer | tuple[Answer, int]:
    """Compare every published table with the engine, cell by cell; or a table of your own, FILE.toml.

    Each cell AGREES, DISAGREES or is NOT COMPARABLE, with the reason. Exit code 0 if every disagreement is a listed
    erratum (audit --errata), 1 if there is a new one or a listed one now agrees. For FILE.toml: 0 if every cell that
    can be compared agrees, 1 if one does not, 3 if none can be compared.

    With --implementations: which powers of a rule differ from the derived ones, and which desiderata fail with the
    rule. Exit code 0, or 3 if a desideratum is undecided.
    """
    if schema:
        if file is not None or source or measure or implementations:
            raise UsageError("--schema only prints an example of FILE.toml; leave out the other arguments")
        return SCHEMA.rstrip()
    if file is not None:
        if source or implementations:
            raise UsageError(f"{file} is compared by itself; leave out --source and --implementations")
        cells = own(file)
        if measure and all(cell.step is None for cell in cells):
            raise UsageError(f"--measure measures signals, but {file} has no [[row]] with one; leave it out")
        mine = Audit(compare(cells), file=file.name)
        if measure and all(c.printed.step is None for c in mine.disagreements):
            click.echo("scalecalc: no signal disagrees, so there is nothing to measure", err=True)
        mine = replace(mine, slopes=_slopes(mine)) if measure else mine
        compared = any(c.status == "AGREES" for c in mine.comparisons)
        return mine.document(), 1 if mine.disagreements else 0 if compared else 3
    if implementations:
        if measure:
            raise UsageError("--measure applies to the cells of papers; leave it out with --implementations")
        rules = shipped(source)
        return rules.document(), 3 if any(h.undecided for h in rules.held) else 0
    a = audit(source)
    new, gone = find_unlisted(a, errata())
    for c in new:
        click.echo(f"scalecalc: not in the errata: {difference(c)}", err=True)
    for key in gone:
        click.echo(f"scalecalc: listed in the errata, but it agrees: {' '.join(map(str, key))}", err=True)
    document = (replace(a, slopes=_slopes(a)) if measure else a).document()
    return document, 1 if new or gone else 0


def _slopes(a: Audit) -> dict[Key, str]:
    """Measures the exponent of every signal that disagrees. Returns the slope with its interval as text, by the key of
    the cell.
    """
    from scaling_algebra.verify.studies.blocks import fit_slopes  # torch is loaded here

    signals = {
        c.key: (c.derivation, c.printed.quantity, c.printed.step)
        for c in a.disagreements
        if c.derivation is not None and c.printed.step is not None
    }
    return dict(zip(signals, fit_slopes(list(signals.values())), strict=True))
