"""Documents: what results say, made of blocks, and one writer per format. Knows no result.

Adding a format: one more module in ``writers``.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Sequence
from functools import singledispatch
from pathlib import Path
from types import ModuleType
from typing import Any

from scaling_algebra.errors import UsageError, unknown_name

from . import writers
from .blocks import Document
from .frames import as_csv, rows

__all__ = ["CSV", "FORMATS", "Document", "Rendered", "document_of", "format_of", "render", "suffixes"]

FORMATS: tuple[str, ...] = tuple(module.name for module in pkgutil.iter_modules(writers.__path__))
"""Every format of every document, by name."""
CSV = "csv"
"""The format of tables alone."""


def render(documents: Document | Sequence[Document], form: str = "text") -> str:
    """One document or several in a format, without a final newline.

    Raises:
        UsageError: no such format, or CSV of what is no table.
    """
    if form.lower() == CSV:
        return as_csv([documents] if isinstance(documents, Document) else documents)
    return str(_writer(form).write([documents] if isinstance(documents, Document) else list(documents)))


def suffixes() -> dict[str, str]:
    """The ending of the files of every format."""
    return {name: _writer(name).SUFFIX for name in FORMATS}


def format_of(path: Path, default: str = "", besides: Iterable[str] = ()) -> str:
    """The format of a file by its ending; the default where it has none.

    Args:
        besides: endings that are known elsewhere, for the message.

    Raises:
        UsageError: no format has this ending.
    """
    formats = {suffix: name for name, suffix in suffixes().items()} | {".csv": CSV}
    if path.suffix.lower() in formats:
        return formats[path.suffix.lower()]
    if default and not path.suffix:
        return default
    endings = ", ".join([*formats, *besides])
    raise UsageError(f"cannot tell the format of {path} by its ending; give one of {endings}, or --format")


@singledispatch
def document_of(result: object) -> Document:
    """The document of a result. The presentation of its room registers this for it, and the room imports both."""
    raise NotImplementedError(f"no document of {type(result).__name__}")


class Rendered:
    """A result that says what it says as a document: ``str()`` is the text, a notebook shows the page."""

    def document(self) -> Document:
        return document_of(self)

    @property
    def about(self) -> str:
        """The subject, in a line."""
        raise NotImplementedError

    def __str__(self) -> str:
        return render(self.document())

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.about}>"

    def to_frame(self) -> Any:
        """The rows of its record as a ``pandas.DataFrame``: see ``frames.py``.

        Raises:
            UsageError: pandas is not installed, or the result is no table.
        """
        try:
            from pandas import DataFrame
        except ModuleNotFoundError:
            raise UsageError("to_frame needs pandas; install it with: pip install pandas") from None
        if (found := self.as_rows()) is None:
            raise UsageError(f"{type(self).__name__} is no table; its record is result.document().record")
        return DataFrame(found)

    def as_rows(self) -> list[dict[str, Any]] | None:
        """The rows of a frame, with the level of the answer; None where the record holds none."""
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
        raise unknown_name("format", form, (*FORMATS, CSV))
    return importlib.import_module(f"{writers.__name__}.{form.lower()}")
