"""``scalecalc verify --merge``: merges measurements in one or several folders into one report."""

from __future__ import annotations

from pathlib import Path

import click

from scaling_algebra import files
from scaling_algebra.commands.options import PathType, format_examples
from scaling_algebra.errors import UsageError

from .shared import REPORTING, choose_place, finish_run, parse_share, read_runs


@click.command(
    "verify --merge",
    epilog=format_examples(
        "scalecalc verify --merge runs/a",
        "scalecalc verify --merge runs/a runs/b -o runs/both --all",
        "scalecalc verify --merge runs/a -o verdicts.tex",
    ),
)
@click.argument("folders", nargs=-1, required=True, type=PathType(), metavar="DIR...")
@REPORTING
@click.option(
    "-o",
    "--output",
    type=PathType(),
    metavar="DIR|FILE",
    help="Folder for the reports (by default the first DIR), or a file for the text instead of stdout.",
)
@click.option(
    "--evidence",
    type=PathType(),
    metavar="DIR",
    help="Also write a short record of the results, to be kept, into this folder.",
)
def command(
    folders: tuple[Path, ...], require: str, every: bool, form: str | None, output: Path | None, evidence: Path | None
) -> int:
    """Merge measurements in one or several folders into one report: report.json, report.md, report.html.

    All DIRs must hold parts of the same plan, as `scalecalc verify -o DIR` writes it. Exit codes as for verify; 3 if
    parts are missing.
    """
    required = parse_share(require)

    from scaling_algebra.verify.measuring.store import Store, read_plan
    from scaling_algebra.verify.reports.output import build_evidence as write_evidence

    plans = [read_plan(folder) for folder in folders]
    folder, file = choose_place(output or folders[0], form)
    if evidence is not None:
        files.check_place(evidence, "choose another --evidence DIR")
    for part, plan in zip(folders, plans, strict=True):
        if plan["runs"] != plans[0]["runs"]:
            raise UsageError(f"{part} contains other runs than {folders[0]}; merge them separately")
    jobs, claims, written_by = read_runs(plans[0])
    store = Store(*folders)
    judged = [(run, run.report(store, claims, required=required)) for run in jobs]
    if store.damaged:
        said = "damaged rows are ignored; measure them again with verify --resume"
        click.echo(f"scalecalc: warning: {said}: {len(store.damaged)}", err=True)
    if evidence is not None:
        write_evidence(evidence, judged, written_by)
    return finish_run(judged, written_by, folder, file, form, every)
