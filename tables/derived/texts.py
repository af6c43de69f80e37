"""Reads title, caption and footnotes of every derived table from ``texts.toml``."""

from __future__ import annotations

from typing import Any

from scaling_algebra.files import load_shipped_toml

_TEXTS = load_shipped_toml(__package__, "texts.toml")
_CERTIFIED: str = _TEXTS["certified"]


def read_texts(table: str, *more: str, **put: str) -> dict[str, Any]:
    """Returns title, caption and footnotes of a table, as keyword arguments of ``Grid``.

    Args:
        table: its name.
        more: footnotes to add below the others.
        put: texts that replace the placeholders ``<<name>>``.
    """
    put |= {"certified": _CERTIFIED, "Certified": _CERTIFIED.capitalize()}

    def said(text: str) -> str:
        for name, x in put.items():
            text = text.replace(f"<<{name}>>", x)
        return text

    texts = _TEXTS[table]
    notes = (*map(said, texts["footnotes"]), *more)
    return {"title": said(texts["title"]), "caption": said(texts["caption"]), "footnotes": notes}
