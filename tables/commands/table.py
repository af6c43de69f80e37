"""``scalecalc table``: print a derived table, write all of them, or check that the written ones are fresh."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click

from scaling_algebra.errors import UsageError, unknown_name
from scaling_algebra.phase_map.phases import phases
from scaling_algebra.phase_map.picture import phases_svg
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.parameterizations import DERIVED
from scaling_algebra.tables.audit.comparison import audit
from scaling_algebra.tables.audit.errata import errata, errata_markdown
from scaling_algebra.tables.derived.layouts import TABLES, table_b1
from scaling_algebra.tables.derived.render import FORMATS

EMITTED = Path(__file__).parent.parent / "emitted"
SUFFIXES = {"markdown": ".md", "latex": ".tex"}
"""Formats that ``--all`` writes."""


@click.command("table")
@click.argument("name", metavar="[NAME]", required=False)
@click.option("--all", "every", is_flag=True, help="Every table, the errata and the maps, written to tables/emitted.")
@click.option("--format", "form", metavar="FORMAT", help=f"{', '.join(FORMATS)}; default: markdown.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Write to this file instead of stdout; with --all or --check a folder instead of tables/emitted.",
)
@click.option("--ray", metavar="RATES", help="Table b1 for this ray instead of regimes I to III.")
@click.option("--check", is_flag=True, help="Write nothing: recompute, and exit with 1 if a written table is stale.")
def command(name: str | None, every: bool, form: str | None, output: Path | None, ray: str | None, check: bool) -> int:
    """Print a published table with every cell derived.

    NAME: b1, g1, g2 (Tables B.1, G.1, G.2 of the MSSP paper), j32, j34, j43, j45 (its signal tables, App. J), routers1,
    routers2 (Tables 1, 2 of the routers paper), transfer1 (Table 1 of the HP-transfer paper), unified (one formula for
    every ray with M + N_e >= N).

    LaTeX output is one or more table* floats; the preamble needs \\usepackage{booktabs,tabularx}.
    """
    if name is None and not every:
        raise UsageError(f"Missing argument NAME; give a table ({', '.join(TABLES)}) or --all")
    if name is not None and every:
        raise UsageError(f"both the table {name!r} and --all were given; give one of them")
    if name is not None and name.lower() not in TABLES:
        raise unknown_name("table", name, TABLES)
    if form is not None and form.lower() not in FORMATS:
        raise unknown_name("format", form, FORMATS)
    if ray is not None and (check or (name or "").lower() != "b1"):
        raise UsageError("--ray goes with the table b1, printed")
    names = list(TABLES) if name is None else [name.lower()]
    if not (every or check):
        made = TABLES[names[0]]() if ray is None else table_b1(Ray.parse(ray))
        _print(FORMATS[(form or "markdown").lower()](made), output)
        return 0
    if form is not None:
        raise UsageError(
            f"--format goes with one printed table; {'--check' if check else '--all'} uses markdown and latex"
        )
    folder = output or EMITTED
    if output is None and not folder.is_dir():
        raise UsageError(f"no folder {folder}; run in a source checkout or choose one with -o FOLDER")
    return _check(names, folder) if check else _write(names, folder)


def _print(text: str, output: Path | None) -> None:
    if output is None:
        click.echo(text)
    else:
        _save(output, text)


def _write(names: Iterable[str], folder: Path) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write to the folder {folder}: {error.strerror}; choose another -o FOLDER") from None
    files = rendered(names)
    for file, text in files.items():
        _save(folder / file, text)
    click.echo(f"{len(files)} files written to {folder}")
    return 0


def _check(names: Iterable[str], folder: Path) -> int:
    """One line for each file that is missing or not what would be written now."""
    again = "scalecalc table --all" + ("" if folder == EMITTED else f" -o {folder}")
    files = rendered(names)
    wrong = 0
    for file, text in files.items():
        path = folder / file
        state = "missing" if not path.is_file() else "" if path.read_bytes() == _bytes(text) else "stale"
        if state:
            click.echo(f"{path}: {state}; write it with: {again}")
            wrong += 1
    if not wrong:
        click.echo(f"{len(files)} files in {folder} are fresh")
    return 1 if wrong else 0


def rendered(names: Iterable[str]) -> dict[str, str]:
    """Text of every file that is written for these tables, by file name; all tables bring the errata and the maps."""
    names = list(names)
    found = {f"{name}{suffix}": FORMATS[form](TABLES[name]()) for name in names for form, suffix in SUFFIXES.items()}
    if names == list(TABLES):
        found["errata.md"] = errata_markdown(audit(), errata())
        found |= {f"map_{name}_sgd.svg": phases_svg(phases("sgd", name)) for name in DERIVED}
    return found


def _save(path: Path, text: str) -> None:
    try:
        path.write_bytes(_bytes(text))
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}; choose another -o PATH") from None


def _bytes(text: str) -> bytes:
    return (text + "\n").encode()
