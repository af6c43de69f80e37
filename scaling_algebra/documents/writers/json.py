"""The record of a document, for programs. One document is an object, several are a list of them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from scaling_algebra.documents.blocks import Document

SUFFIX = ".json"
SCHEMA = 1
"""Rises when the meaning of a key changes or a key goes."""


def write(documents: Sequence[Document]) -> str:
    records = [{"schema": SCHEMA, **d.record} for d in documents]
    return json.dumps(records[0] if len(records) == 1 else records, indent=2)
