"""Imports matplotlib for writing files only; the backend that a notebook or shell has chosen stays as it is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def headless() -> Iterator[None]:
    """Makes matplotlib, when imported in this context, use the backend that writes files."""
    backend = os.environ.get("MPLBACKEND")
    os.environ["MPLBACKEND"] = "agg"
    try:
        yield
    finally:
        if backend is None:
            del os.environ["MPLBACKEND"]
        else:
            os.environ["MPLBACKEND"] = backend
