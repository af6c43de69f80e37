"""--format and -o FILE: how the commands of this folder print a document."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from scaling_algebra.documents import FORMATS, Document, format_of, render
from scaling_algebra.errors import UsageError, unknown_name


def printed(command: Callable[..., Any]) -> Callable[..., Any]:
    """--format and -o."""
    path = click.Path(dir_okay=False, path_type=Path)
    file = click.option("-o", "--output", type=path, metavar="FILE", help="Write to this file instead of stdout.")
    known = f"{', '.join(FORMATS)}; by default text, or what the ending of -o FILE says."
    return click.option("--format", "form", metavar="FORMAT", help=known)(file(command))


def chosen(form: str | None, output: Path | None, default: str) -> str:
    """The format that was asked for.

    Raises:
        UsageError: no such format, or a file whose ending none has.
    """
    if form is None:
        return default if output is None else format_of(output, default)
    if form.lower() not in FORMATS:
        raise unknown_name("format", form, FORMATS)
    return form.lower()


def emit(
    documents: Document | Sequence[Document], form: str | None, output: Path | None, default: str = "text"
) -> None:
    """Print documents, or write them to a file."""
    text = render(documents, chosen(form, output, default))
    if output is None:
        click.echo(text)
    else:
        save(output, text)


def save(path: Path, text: str) -> None:
    """UTF-8 with plain line ends on every system.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        path.write_bytes(encoded(text))
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}; choose another -o PATH") from None


def encoded(text: str) -> bytes:
    return (text + "\n").encode()
