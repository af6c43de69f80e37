"""Reads TOML files of laws, assumptions, invariants, rules and models, by ``spec/entries.py``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from scaling_algebra.errors import UsageError
from scaling_algebra.files import parse_toml, read_text
from scaling_algebra.spec.entries import READERS

from .expressions import expression, monomial, relation
from .monomials import Monomial, Posynomial, Relation

READERS |= {Monomial: monomial, Posynomial: expression, Relation: relation}
MOST = 2**16
"""Maximum number of bytes of a file."""
Built = TypeVar("Built")


def read_file(path: Path, what: str, build: Callable[[str, dict[str, Any]], Built]) -> Built:
    """Reads a TOML file and builds an object from it.

    Args:
        path: the file.
        what: its content, for messages.
        build: builds the object from the file's name and its tables. A number with a decimal point reaches it as a
            string, so that it can be read exactly.

    Raises:
        UsageError: it cannot be read; one line that begins with the file's name.
    """
    text = read_text(path, f"give a TOML file with {what}", MOST)
    try:
        return build(path.stem, parse_toml(text, number=str))
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
