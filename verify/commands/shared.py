"""Shared by the commands of this folder: options, checks before the long part, and the end of a run.

Imports neither torch nor numpy, so that --help works on every machine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from scaling_algebra import files, limits
from scaling_algebra.commands.options import (
    FORMAT,
    Count,
    Name,
    PathType,
    check_output,
    combine_options,
    print_or_write,
)
from scaling_algebra.errors import UsageError

if TYPE_CHECKING:
    from scaling_algebra.verify.campaigns.plans import Job
    from scaling_algebra.verify.judging.claims import Claim
    from scaling_algebra.verify.measuring.pool import Here
    from scaling_algebra.verify.measuring.store import Store
    from scaling_algebra.verify.reports.output import Judged

Number = TypeVar("Number", int, float)

option_with_default = partial(click.option, show_default=True)
"""A click option whose help shows its default."""


class Device(Name):
    """The type of ``--device``: ``auto``, ``cpu``, ``cuda``, or one of several, ``cuda:3``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        kind, _, index = str(value).lower().partition(":")
        if kind == "cuda" and index.isdecimal() and index.isascii() and int(index) <= limits.SIZE:
            return f"cuda:{int(index)}"
        return super().convert(value, param, ctx)


DEVICE = option_with_default(
    "--device",
    type=Device("device", ("auto", "cpu", "cuda")),
    default="auto",
    metavar="NAME",
    help="auto, cpu, cuda (all of them, with --workers) or one such as cuda:3.",
)
POOL = combine_options(
    DEVICE,
    click.option(
        "--workers",
        type=Count(1, limits.WORKERS),
        metavar="N",
        help="Number of processes that train at once; they take devices in turn. Needs scalecalc[cluster].",
    ),
    click.option(
        "--scheduler", metavar="ADDRESS|FILE", help="Train on the workers of a running Dask scheduler instead."
    ),
)
"""Options for the device and the worker processes."""
RESUME = click.option(
    "--resume",
    type=PathType(),
    metavar="DIR",
    help="Save every finished part in this folder, and continue from those already there.",
)
REPORTING = combine_options(
    option_with_default(
        "--require",
        default="4/5",
        metavar="SHARE",
        help="Share of the nonzero exponents that must agree with the prediction, such as 9/10 or 90%.",
    ),
    click.option("--all", "every", is_flag=True, help="Print all rows, including those that agree."),
    FORMAT,
)
"""Options for printing verdicts and for the exit code."""


def choose_place(output: Path | None, form: str | None) -> tuple[Path | None, Path | None]:
    """Returns (folder, file): the one that -o names, and None for the other; both None without -o.

    A path with an ending, such as ``.json``, is a file unless a folder of this name exists.

    Raises:
        UsageError: it cannot be written.
    """
    if output is None:
        return None, None
    if output.is_dir() or not output.suffix:
        files.check_place(output, "choose another -o DIR")
        return output, None
    check_output(output, form)
    return None, output


def parse_integers(label: str, text: str) -> list[int]:
    """Reads integers separated by commas.

    Raises:
        UsageError: the text is anything else, or an integer exceeds ``limits.SIZE``.
    """
    values = _parse_numbers(label, text, limits.parse_integer)
    for x in values:
        if abs(x) > limits.SIZE:
            raise UsageError(f"{label} are {text!r}; give numbers up to {limits.SIZE}")
    return values


def parse_reals(label: str, text: str) -> list[float]:
    """Reads numbers separated by commas.

    Raises:
        UsageError: the text is anything else.
    """
    return _parse_numbers(label, text, limits.parse_real)


def parse_positive(label: str, text: str) -> float:
    """Reads one positive number.

    Raises:
        UsageError: the text is anything else.
    """
    with suppress(ValueError):
        if 0 < (value := limits.parse_real(text)) <= limits.SIZE:
            return value
    raise UsageError(f"the {label} is {text!r}; give one positive number up to {limits.SIZE:g}, e.g. 0.1")


def _parse_numbers(label: str, text: str, kind: Callable[[str], Number]) -> list[Number]:
    try:
        if text.count(",") < limits.RATES:
            return [kind(part) for part in text.split(",")]
    except ValueError:
        pass
    raise UsageError(f"cannot read the {label} {text!r}; write numbers with commas, e.g. 32,64,128")


UNITS = {"": 1, "b": 1} | {f"{x}b": 1000**k for k, x in enumerate("kmgt", 1)}
UNITS |= {f"{x}ib": 1024**k for k, x in enumerate("kmgt", 1)} | {x: 1024**k for k, x in enumerate("kmgt", 1)}


def parse_bytes(text: str) -> int:
    """Parses an amount of memory such as ``20GiB``, ``512MB`` or a number of bytes.

    >>> parse_bytes("2KiB") 2048

    Raises:
        UsageError: the text is anything else.
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?)\s*([A-Za-z]*)\s*", text[: limits.LONGEST + 1])
    number = float(match[1]) * UNITS.get(match[2].lower(), 0) if match and len(text) <= limits.LONGEST else 0
    if not 0 < number <= limits.MEMORY:
        raise UsageError(f"cannot read the memory {text!r}; write for example 20GiB or 512MB")
    return int(number)


@contextmanager
def open_pool(given: dict[str, Any], most: int | None = None) -> Iterator[Here]:
    """Opens the pool that executes tasks, as the options ``--device``, ``--workers`` and ``--scheduler`` say.

    Raises:
        UsageError: both workers and a scheduler are given, or an error of ``measuring.pool.open_pool``.
    """
    from scaling_algebra.verify.measuring.pool import open_pool as start_pool

    if given["workers"] is not None and given["scheduler"] is not None:
        raise UsageError("--workers starts processes here, but --scheduler already has workers; leave out one of them")
    with start_pool(given["device"], most, given["workers"], given["scheduler"]) as made:
        yield made


def open_store(folder: Path | None) -> Store:
    """Opens the store of results: in memory, or in a folder.

    Raises:
        UsageError: the folder cannot be written.
    """
    from scaling_algebra.verify.measuring.store import INSTEAD, Store

    if folder is None:
        return Store()
    files.make_folder(folder, INSTEAD)
    return Store(folder)


def advise_resuming(folder: Path | None) -> str:
    """Returns advice to the user on how to continue after an interrupt; without a folder nothing was kept."""
    if folder is None:
        return "give --resume DIR to keep what is finished, or fewer sizes or seeds"
    return f"what is finished is kept in {folder}: give the same command again"


@contextmanager
def show_progress() -> Iterator[Callable[[int | None, int, str], None]]:
    """Shows a progress line during training; yields a function of (total, done, what is being trained)."""
    from scaling_algebra.verify.campaigns.session import build_progress_bar

    with build_progress_bar() as bar:
        line = bar.add_task("training", total=None)
        yield lambda total, done, what: bar.update(line, total=total, completed=done, description=what)


@contextmanager
def explain_interrupts(folder: Path | None, how: str = "") -> Iterator[None]:
    """Prints how to continue if the user interrupts the statements in this context. ``how`` replaces the usual
    advice.
    """
    try:
        yield
    except KeyboardInterrupt:
        click.echo(f"scalecalc: {how or advise_resuming(folder)}", err=True)
        raise


def parse_share(text: str) -> Fraction:
    """Parses a share above 0 and at most 1, such as ``9/10``, ``0.9`` or ``90%``.

    Raises:
        UsageError: the text is anything else.
    """
    try:
        part = limits.parse_rational(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        part = Fraction(-1)
    if not 0 < part <= 1:
        raise UsageError(f"cannot read the share {text!r}; write for example 9/10 or 90%")
    return part


def read_runs(plan: dict[str, Any]) -> tuple[list[Job], list[Claim], str]:
    """Returns the runs, claims and command line of a stored plan.

    Raises:
        UsageError: ``plan`` does not have the form of a plan.
    """
    from scaling_algebra.verify.campaigns.plans import Job, remove_duplicates
    from scaling_algebra.verify.campaigns.schema import check_plan
    from scaling_algebra.verify.judging.claims import Claim

    check_plan(plan, "plan.json")
    claims = [Claim.parse(text) for text in plan.get("claims", [])]
    return (
        remove_duplicates([Job.from_json(run) for run in plan["runs"]], "plan.json"),
        claims,
        str(plan.get("command", "")),
    )


def finish_run(
    judged: Judged, command: str, folder: Path | None, file: Path | None, form: str | None, every: bool
) -> int:
    """Prints the results or writes them to a file, writes the reports into the folder if given, and returns the exit
    code."""
    from scaling_algebra.verify.reports import output

    print_or_write(output.build_document(judged, command, every), form, file)
    if folder is not None:
        output.write_reports(folder, judged, command)
    return output.compute_exit_code(judged)
