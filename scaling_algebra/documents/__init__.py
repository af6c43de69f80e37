"""Documents: blocks of text and tables in which results are presented, with one writer per format.

To add a format, add a module to ``writers``.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Sequence
from functools import singledispatch
from pathlib import Path
from types import ModuleType
from typing import Any

from scaling_algebra.errors import UsageError, unknown_name_error

from . import writers
from .blocks import Document
from .frames import as_csv, rows

__all__ = ["CSV", "FORMATS", "Document", "Rendered", "document_of", "format_of", "render", "suffixes"]

FORMATS: tuple[str, ...] = tuple(module.name for module in pkgutil.iter_modules(writers.__path__))
"""Names of the formats in which every document can be written."""
CSV = "csv"
"""Name of the format that only tables have."""


def render(documents: Document | Sequence[Document], form: str = "text") -> str:
    """Renders one document or several in a format, without a final newline.

    Raises:
        UsageError: there is no such format, or CSV was asked for and a document is not a table.
    """
    if form.lower() == CSV:
        return as_csv([documents] if isinstance(documents, Document) else documents)
    return str(_writer(form).write([documents] if isinstance(documents, Document) else list(documents)))


def suffixes() -> dict[str, str]:
    """Returns the file name suffix of every format."""
    return {name: _writer(name).SUFFIX for name in FORMATS}


def format_of(path: Path, default: str = "", besides: Iterable[str] = ()) -> str:
    """Finds the format of a file by its suffix.

    Args:
        path: the file; it need not exist.
        default: the format of a path without a suffix; empty if there is none.
        besides: suffixes that the caller handles itself; they are only listed in the message.

    Raises:
        UsageError: no format has this suffix.
    """
    formats = {suffix: name for name, suffix in suffixes().items()} | {".csv": CSV}
    if path.suffix.lower() in formats:
        return formats[path.suffix.lower()]
    if default and not path.suffix:
        return default
    endings = ", ".join([*formats, *besides])
    raise UsageError(f"the ending of {path} is not that of a known format; use one of {endings}, or give --format")


@singledispatch
def document_of(result: object) -> Document:
    """Returns the document in which a result is printed.

    This generic function has an implementation for each class of results, which the ``presentation`` module of the
    package with this class registers.
    """
    raise NotImplementedError(f"no document of {type(result).__name__}")


class Rendered:
    """A result that is presented as a document: ``str()`` gives plain text, and a notebook shows HTML."""

    def document(self) -> Document:
        return document_of(self)

    @property
    def about(self) -> str:
        """The subject of the result, in one line."""
        raise NotImplementedError

    def __str__(self) -> str:
        return render(self.document())

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.about}>"

    def to_frame(self) -> Any:
        """Returns the rows of the record as a ``pandas.DataFrame``; ``frames.py`` describes the columns.

        Raises:
            UsageError: pandas is not installed, or the result is not a table.
        """
        try:
            from pandas import DataFrame
        except ModuleNotFoundError:
            raise UsageError("to_frame needs pandas; install it with: pip install pandas") from None
        if (found := self.as_rows()) is None:
            raise UsageError(
                f"{type(self).__name__} has no rows for a data frame; use the record result.document().record"
            )
        return DataFrame(found)

    def as_rows(self) -> list[dict[str, Any]] | None:
        """Returns the rows of the data frame; None if the record is not a table.

        If the record says how much of the answer is certified, this is the column ``level`` of every row.
        """
        record = self.document().record
        level = {"level": record["level"]} if record.get("level") else {}
        return None if (found := rows(record)) is None else [{**row, **level} for row in found]

    def _repr_html_(self) -> str:
        from .writers.html import fragment

        return fragment([self.document()])

    def _repr_latex_(self) -> str:
        return render(self.document(), "latex")


def _writer(form: str) -> ModuleType:
    if form.lower() not in FORMATS:
        raise unknown_name_error("format", form, (*FORMATS, CSV))
    return importlib.import_module(f"{writers.__name__}.{form.lower()}")
