"""Shared parts of the commands of this folder: options, checks before the long part, and how a run ends.

Imports neither torch nor numpy: help is for every machine.
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

defaulted = partial(click.option, show_default=True)
"""An option whose help says its default."""


class Device(Name):
    """``auto``, ``cpu``, ``cuda``, or one of several, ``cuda:3``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        kind, _, index = str(value).lower().partition(":")
        if kind == "cuda" and index.isdecimal() and index.isascii() and int(index) <= limits.SIZE:
            return f"cuda:{int(index)}"
        return super().convert(value, param, ctx)


DEVICE = defaulted(
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
        help="Train in so many processes at once, each on a device of its own in turn; needs scalecalc[cluster].",
    ),
    click.option(
        "--scheduler", metavar="ADDRESS|FILE", help="Train on the workers of a running Dask scheduler instead."
    ),
)
"""The device, and the processes that train."""
RESUME = click.option(
    "--resume",
    type=PathType(),
    metavar="DIR",
    help="Keep every finished piece in this folder, and go on from those there.",
)
REPORTING = combine_options(
    defaulted(
        "--require",
        default="4/5",
        metavar="SHARE",
        help="Share of the exponents not predicted to be exactly zero that must agree, e.g. 9/10 or 90%.",
    ),
    click.option("--all", "every", is_flag=True, help="Print every row, not only those that do not agree."),
    FORMAT,
)
"""Verdicts as print and as an exit code."""


def place(output: Path | None, form: str | None) -> tuple[Path | None, Path | None]:
    """The place that -o DIR|FILE names: a folder, or a file, whose ending is that of a format; both are tried.

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


def integers(label: str, text: str) -> list[int]:
    """Integers with commas.

    Raises:
        UsageError: anything else, or one above ``limits.SIZE``.
    """
    values = _numbers(label, text, limits.parse_integer)
    for x in values:
        if abs(x) > limits.SIZE:
            raise UsageError(f"{label} are {text!r}; give numbers up to {limits.SIZE}")
    return values


def reals(label: str, text: str) -> list[float]:
    """Numbers with commas.

    Raises:
        UsageError: anything else.
    """
    return _numbers(label, text, limits.parse_real)


def positive(label: str, text: str) -> float:
    """One number above zero.

    Raises:
        UsageError: anything else.
    """
    with suppress(ValueError):
        if 0 < (value := limits.parse_real(text)) <= limits.SIZE:
            return value
    raise UsageError(f"the {label} is {text!r}; give one positive number up to {limits.SIZE:g}, e.g. 0.1")


def _numbers(label: str, text: str, kind: Callable[[str], Number]) -> list[Number]:
    try:
        if text.count(",") < limits.RATES:
            return [kind(part) for part in text.split(",")]
    except ValueError:
        pass
    raise UsageError(f"cannot read the {label} {text!r}; write numbers with commas, e.g. 32,64,128")


UNITS = {"": 1, "b": 1} | {f"{x}b": 1000**k for k, x in enumerate("kmgt", 1)}
UNITS |= {f"{x}ib": 1024**k for k, x in enumerate("kmgt", 1)} | {x: 1024**k for k, x in enumerate("kmgt", 1)}


def in_bytes(text: str) -> int:
    """``20GiB``, ``512MB`` or a number of bytes.

    >>> in_bytes("2KiB")
    2048

    Raises:
        UsageError: anything else.
    """
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?)\s*([A-Za-z]*)\s*", text[: limits.LONGEST + 1])
    number = float(match[1]) * UNITS.get(match[2].lower(), 0) if match and len(text) <= limits.LONGEST else 0
    if not 0 < number <= limits.MEMORY:
        raise UsageError(f"cannot read the memory {text!r}; write for example 20GiB or 512MB")
    return int(number)


@contextmanager
def pool(given: dict[str, Any], most: int | None = None) -> Iterator[Here]:
    """The pool that the options ``POOL`` ask for.

    Raises:
        UsageError: as ``measuring.pool.pool``; two of them at once.
    """
    from scaling_algebra.verify.measuring.pool import pool as started

    if given["workers"] is not None and given["scheduler"] is not None:
        raise UsageError("a scheduler has workers of its own; leave out --workers or --scheduler")
    with started(given["device"], most, given["workers"], given["scheduler"]) as made:
        yield made


def kept(folder: Path | None) -> Store:
    """The store of pieces: in memory, or in a folder that can be written.

    Raises:
        UsageError: it cannot.
    """
    from scaling_algebra.verify.measuring.store import INSTEAD, Store

    if folder is None:
        return Store()
    files.make_folder(folder, INSTEAD)
    return Store(folder)


def again(folder: Path | None) -> str:
    """Advice after an interrupt."""
    if folder is None:
        return "give --resume DIR to keep what is finished, or fewer sizes or seeds"
    return f"what is finished is kept in {folder}: give the same command again"


@contextmanager
def progress() -> Iterator[Callable[[int | None, int, str], None]]:
    """A line on the terminal while something is trained: called with how many parts there are, how many are done, and
    what is trained."""
    from scaling_algebra.verify.campaigns.session import progress_bar

    with progress_bar() as bar:
        line = bar.add_task("training", total=None)
        yield lambda total, done, what: bar.update(line, total=total, completed=done, description=what)


@contextmanager
def resumable(folder: Path | None, how: str = "") -> Iterator[None]:
    """Says after an interrupt how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo(f"scalecalc: {how or again(folder)}", err=True)
        raise


def required_share(text: str) -> Fraction:
    """``9/10``, ``0.9`` or ``90%``.

    Raises:
        UsageError: anything else.
    """
    try:
        part = limits.parse_rational(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        part = Fraction(-1)
    if not 0 < part <= 1:
        raise UsageError(f"cannot read the share {text!r}; write for example 9/10 or 90%")
    return part


def runs_of(plan: dict[str, Any]) -> tuple[list[Job], list[Claim], str]:
    """Runs, claims and command of a plan.

    Raises:
        UsageError: it is not one.
    """
    from scaling_algebra.verify.campaigns.plans import Job, distinct
    from scaling_algebra.verify.campaigns.schema import check_plan
    from scaling_algebra.verify.judging.claims import Claim

    check_plan(plan, "plan.json")
    claims = [Claim.parse(text) for text in plan.get("claims", [])]
    return distinct([Job.from_json(run) for run in plan["runs"]], "plan.json"), claims, str(plan.get("command", ""))


def finish(judged: Judged, command: str, folder: Path | None, file: Path | None, form: str | None, every: bool) -> int:
    """Prints what runs show or writes it to a file, then into a folder if there is one; the exit code."""
    from scaling_algebra.verify.reports import output

    print_or_write(output.document(judged, command, every), form, file)
    if folder is not None:
        output.write(folder, judged, command)
    return output.exit_code(judged)
