"""What the commands of this folder share: options, checks before the long part, and how a run ends.

Imports neither torch nor numpy: help is for every machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from tabulate import tabulate

from scaling_algebra.commands.options import Name, options
from scaling_algebra.errors import UsageError

if TYPE_CHECKING:
    from scaling_algebra.verify.campaigns.plans import Job
    from scaling_algebra.verify.judging.claims import Claim
    from scaling_algebra.verify.reports.output import Judged

Number = TypeVar("Number", int, float)

FORMAT = click.option(
    "--format",
    "form",
    type=Name("format", ("text", "json")),
    default="text",
    show_default=True,
    metavar="FORMAT",
    help="text or json.",
)
DEVICE = click.option("--device", default="auto", show_default=True, metavar="NAME", help="auto, cpu or cuda.")
REPORTING = options(
    click.option(
        "--require",
        default="4/5",
        show_default=True,
        metavar="SHARE",
        help="Share of the exponents not predicted to be exactly zero that must agree, e.g. 9/10 or 90%.",
    ),
    click.option("--all", "every", is_flag=True, help="Print every row, not only those that do not agree."),
    FORMAT,
)
"""How verdicts are printed and turned into an exit code."""


def check_file(output: Path | None) -> None:
    """Raises UsageError where a file cannot be written."""
    if output is not None and not output.parent.is_dir():
        raise UsageError(f"cannot write {output}: {output.parent} is not a folder; create it or choose another -o FILE")


def numbers(label: str, text: str, kind: Callable[[str], Number]) -> list[Number]:
    """Numbers with commas.

    Raises:
        UsageError: anything else.
    """
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"cannot read the {label} {text!r}; write numbers with commas, e.g. 32,64,128") from None


def required_share(text: str) -> Fraction:
    """``9/10``, ``0.9`` or ``90%``.

    Raises:
        UsageError: anything else.
    """
    try:
        part = Fraction(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except (ValueError, ZeroDivisionError):
        part = Fraction(-1)
    if not 0 < part <= 1:
        raise UsageError(f"cannot read the share {text!r}; write for example 9/10 or 90%")
    return part


def runs_of(plan: dict[str, Any]) -> tuple[list[Job], list[Claim], str]:
    """Runs, claims and command of a plan.

    Raises:
        UsageError: it is not one.
    """
    from scaling_algebra.verify.campaigns.plans import Job
    from scaling_algebra.verify.judging.claims import Claim

    claims = [Claim.parse(text) for text in plan.get("claims", [])]
    return [Job.from_json(run) for run in plan["runs"]], claims, str(plan.get("command", ""))


def finish(judged: Judged, command: str, folder: Path | None, form: str, every: bool) -> int:
    """Prints what runs show, writes it into a folder if there is one; the exit code."""
    from scaling_algebra.verify.reports import output

    if folder is not None:
        output.write(folder, judged, command)
    if form == "json":
        click.echo(json.dumps(output.contract(judged, command), indent=2))
    elif len(judged) == 1:
        ((job, report),) = judged
        click.echo(report.text(job.heading, every))
    else:
        click.echo(_summary(judged, every))
    return output.exit_code(judged)


def _summary(judged: Judged, every: bool) -> str:
    """One closing line, a table of runs, and what does not agree."""
    from scaling_algebra.verify.reports.output import closing, sentence

    rows = [
        (run.name, *report.counts.values(), f"{report.environment.get('wall_seconds', 0):.0f} s")
        for run, report in judged
    ]
    table = tabulate(rows, ("run", "agree", "refuted", "inconclusive", "time"), tablefmt="simple")
    shown = [
        f"{job.name}: {line}"
        for job, report in judged
        for line in [
            *(str(g) for g in report.gates if every or not g.passed),
            *(sentence(r) for r in report.judged if every or str(r.verdict) != "AGREES"),
        ]
    ]
    return "\n\n".join([closing(judged), table, *(["\n".join(shown)] if shown else [])])
