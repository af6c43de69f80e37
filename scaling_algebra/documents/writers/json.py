"""Writes records for programs: an object for one document, a list of objects for several."""

from __future__ import annotations

import json
from collections.abc import Sequence

from scaling_algebra.documents.blocks import Document

SUFFIX = ".json"
SCHEMA = 1
"""Version of the JSON contract. It rises when a key changes its meaning or is removed."""


def write(documents: Sequence[Document]) -> str:
    records = [{"schema": SCHEMA, **d.record} for d in documents]
    return json.dumps(records[0] if len(records) == 1 else records, indent=2)
