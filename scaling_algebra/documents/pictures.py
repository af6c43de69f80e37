"""matplotlib for files only: whatever a notebook or a shell chose as its backend neither fails nor changes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def headless() -> Iterator[None]:
    """Inside, matplotlib is imported with the backend for files."""
    backend = os.environ.get("MPLBACKEND")
    os.environ["MPLBACKEND"] = "agg"
    try:
        yield
    finally:
        if backend is None:
            del os.environ["MPLBACKEND"]
        else:
            os.environ["MPLBACKEND"] = backend
