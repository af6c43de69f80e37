"""What the commands of this folder read and check alike. Needs neither torch nor numpy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from scaling_algebra.errors import UsageError

FORMATS = ("text", "json")

Number = TypeVar("Number", int, float)


def check_format(name: str) -> None:
    """Raises UsageError if there is no such format."""
    if name not in FORMATS:
        raise UsageError(f"no format named {name!r}; use {' or '.join(FORMATS)}")


def check_file(output: Path | None) -> None:
    """Raises UsageError where a file cannot be written, before the long part."""
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
