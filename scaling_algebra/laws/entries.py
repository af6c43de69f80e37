"""Files of laws, assumptions, invariants, rules and models, read as ``spec/entries.py`` reads a table."""

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
"""Bytes of a file."""
Built = TypeVar("Built")


def read_file(path: Path, what: str, build: Callable[[str, dict[str, Any]], Built]) -> Built:
    """A file, built of its name and its tables.

    Raises:
        UsageError: one line that begins with the file's name.
    """
    text = read_text(path, f"give a TOML file with {what}", MOST)
    try:
        return build(path.stem, parse_toml(text, number=str))
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
