"""What several commands share: names that complete and correct themselves, one configuration, one way to print.

Read next: any other file of this folder, each one verb.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from pathlib import Path
from shutil import get_terminal_size
from textwrap import TextWrapper
from typing import TYPE_CHECKING, Any

import click

from scaling_algebra.documents import FORMATS, Document, format_of, render
from scaling_algebra.errors import UsageError, unknown_name
from scaling_algebra.spec.axes import REGIMES
from scaling_algebra.spec.configuration import (
    DEFAULT_ARCHITECTURE,
    DEFAULT_OPTIMIZER,
    DEFAULT_PARAMETERIZATION,
    Configuration,
)
from scaling_algebra.spec.networks.library import ARCHITECTURES
from scaling_algebra.spec.optimizers import OPTIMIZERS
from scaling_algebra.spec.parameterizations import PARAMETERIZATIONS, READOUTS

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Command = Callable[..., Any]


class Name(click.ParamType[str]):
    """One of a registry's names, in any case. A shell completes it; a wrong one is corrected in one line."""

    name = "name"

    def __init__(self, kind: str, known: Iterable[str]) -> None:
        self.kind, self.known = kind, tuple(known)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        for name in self.known:
            if str(value).lower() == name.lower():
                return name
        raise unknown_name(self.kind, str(value), self.known)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        begun = incomplete.lower()
        return [CompletionItem(name) for name in self.known if name.lower().startswith(begun)]


def examples(*lines: str) -> str:
    """The end of a help text: commands to copy, one a line."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def options(*made: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Several options as one decorator, in the order of the help text."""

    def decorate(command: Command) -> Command:
        for option in reversed(made):
            command = option(command)
        return command

    return decorate


OPTIMIZER = click.option(
    "--optimizer",
    type=Name("optimizer", OPTIMIZERS),
    default=DEFAULT_OPTIMIZER,
    show_default=True,
    metavar="NAME",
    help="Optimizer.",
)
RAY = options(
    click.option(
        "--regime",
        type=Name("regime", REGIMES),
        metavar="NAME",
        help="I: width and expert width grow; II: width and experts; III: all three.",
    ),
    click.option(
        "--ray",
        metavar="RATES",
        help="Instead of a regime, how each axis grows: N=1,N_e=1/2,M=3/2; K=1/2 for fewer active experts.",
    ),
)
WHERE = options(RAY, OPTIMIZER)
"""--regime or --ray, and --optimizer."""
ARCHITECTURE = click.option(
    "--architecture",
    type=Name("architecture", ARCHITECTURES),
    default=DEFAULT_ARCHITECTURE,
    show_default=True,
    metavar="NAME",
    help="Network.",
)
READOUT_INIT = click.option(
    "--readout-init",
    type=Name("readout init", READOUTS),
    metavar="KIND",
    help=f"{' or '.join(READOUTS)}; by default that of the parameterization's definition.",
)


def parameterization(known: Iterable[str] = PARAMETERIZATIONS, **more: Any) -> Callable[[Command], Command]:
    """--parameterization; ``default=None`` and another help text where a command takes several."""
    said = {"default": DEFAULT_PARAMETERIZATION, "show_default": True, "help": "Parameterization.", **more}
    return click.option("--parameterization", type=Name("parameterization", known), metavar="NAME", **said)


def configured(command: Command) -> Command:
    """Options that name one configuration; the command gets it as its first argument."""

    @wraps(command)
    def run(
        *arguments: Any,
        regime: str | None,
        ray: str | None,
        optimizer: str,
        parameterization: str,
        readout_init: str | None,
        architecture: str,
        **rest: Any,
    ) -> Any:
        where: dict[str, Any] = {"ray": ray, "readout_init": readout_init, "architecture": architecture}
        return command(Configuration.of(regime, optimizer, parameterization, **where), *arguments, **rest)

    return options(WHERE, parameterization(), ARCHITECTURE, READOUT_INIT)(run)


FORMAT = click.option(
    "--format",
    "form",
    type=Name("format", FORMATS),
    metavar="FORMAT",
    help=f"{', '.join(FORMATS)}; by default text, or what the ending of -o FILE says.",
)


def printed(command: Command) -> Command:
    """--format and -o; the command gets ``form`` (None: not given) and ``output``, for ``emit``."""
    return options(
        FORMAT,
        click.option(
            "-o",
            "--output",
            type=click.Path(dir_okay=False, path_type=Path),
            metavar="FILE",
            help="Write to this file instead of stdout.",
        ),
    )(command)


def emit(
    documents: Document | Sequence[Document], form: str | None, output: Path | None, default: str = "text"
) -> None:
    """Print documents, or write them to a file."""
    chosen = form or (format_of(output, default) if output is not None else default)
    text = render(documents, chosen)
    if output is not None:
        write(output, text + "\n")
    elif text:
        click.echo(fitted(text, get_terminal_size().columns) if chosen == "text" and sys.stdout.isatty() else text)


def fitted(text: str, width: int) -> str:
    """Lines that are wider than the terminal go on below where their last column begins."""
    lines: list[str] = []
    for line in text.splitlines():
        column = line.rstrip().rfind("  ", 0, 2 * width // 3) + 2
        start = column if column > 1 else len(line) - len(line.lstrip()) + 2
        wrap = TextWrapper(width, subsequent_indent=" " * start, break_long_words=False, break_on_hyphens=False)
        lines += wrap.wrap(line) if len(line) > width else [line]
    return "\n".join(lines)


def write(file: Path, text: str) -> None:
    """A text file, in UTF-8 and with plain line ends on every system.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        file.write_bytes(text.encode())
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}; choose another file") from None
