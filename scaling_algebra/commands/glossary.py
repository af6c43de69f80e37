"""``scalecalc explain WORD`` without a regime: what a word of the glossary is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from scaling_algebra.documents import Document

from .list import GLOSSARY, sections_document
from .options import printed


def meant(arguments: Sequence[str]) -> str | None:
    """This module, if the first argument is a word of the glossary and no question about a ray follows."""
    ray = any(x.startswith(("--regime", "--ray")) for x in arguments)
    return None if ray or not arguments or not _rows(arguments[0]) else __name__


def _rows(word: str) -> dict[str, Mapping[str, str]]:
    """Entries called ``B``, or ``mechanism B``, in any case."""
    rows: dict[str, Mapping[str, str]] = {}
    for title, entries in GLOSSARY.items():
        asked = word.lower().removeprefix(f"{title.removesuffix('s')} ").strip()
        if found := {name: text for name, text in entries.items() if name.lower() == asked}:
            rows[title] = found
    return rows


@click.command("explain")
@click.argument("word", metavar="WORD")
@printed()
def command(word: str) -> Document:
    """What a word, a mechanism or a desideratum is (scalecalc list --glossary has all of them)."""
    return sections_document(_rows(word), {})
