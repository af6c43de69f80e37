"""What the commands of this folder share: options, checks before the long part, and how a run ends.

Imports neither torch nor numpy: help is for every machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from scaling_algebra.commands.options import FORMAT, emit, options
from scaling_algebra.documents import format_of
from scaling_algebra.errors import UsageError

if TYPE_CHECKING:
    from scaling_algebra.verify.campaigns.plans import Job
    from scaling_algebra.verify.judging.claims import Claim
    from scaling_algebra.verify.reports.output import Judged

Number = TypeVar("Number", int, float)

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


def check_file(output: Path | None, form: str | None = None) -> None:
    """Before the long part: raises UsageError where a file cannot be written, or its ending names no format."""
    if output is None:
        return
    if form is None:
        format_of(output, "text")
    if not output.parent.is_dir():
        raise UsageError(f"cannot write {output}: {output.parent} is not a folder; create it or choose another -o FILE")
    if not os.access(output if output.exists() else output.parent, os.W_OK):
        raise UsageError(f"cannot write {output}: permission denied; choose another -o FILE")


def place(output: Path | None, form: str | None) -> tuple[Path | None, Path | None]:
    """What -o DIR|FILE names: a folder, or a file, whose ending is that of a format.

    Raises:
        UsageError: the file cannot be written.
    """
    if output is None or output.is_dir() or not output.suffix:
        return output, None
    check_file(output, form)
    return None, output


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


def finish(judged: Judged, command: str, folder: Path | None, file: Path | None, form: str | None, every: bool) -> int:
    """Writes what runs show into a folder if there is one, and prints it or writes it to a file; the exit code."""
    from scaling_algebra.verify.reports import output

    if folder is not None:
        output.write(folder, judged, command)
    emit(output.document(judged, command, every), form, file)
    return output.exit_code(judged)
