"""Training text that every machine has: the sources of the Python standard library, as bytes.

Deterministic for one Python version: files in sorted order, every ``HELD_OUT``-th one held out for validation, tests
and site packages left out. ``digest`` goes into reports, because another Python version is another text.
Read next: ``tasks.py`` (cuts batches from it).
"""

from __future__ import annotations

import hashlib
import sysconfig
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scaling_algebra.errors import UsageError

VOCABULARY = 256
"""Tokens are bytes."""

HELD_OUT = 10
"""One file in this many is for validation."""

SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo", "__pycache__"}
"""Folders left out: installed packages, and parts of the library that some systems ship separately."""

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class TextData:
    """Byte tokens, split by file.

    Attributes:
        train, held: the files of each part one after the other, shape (bytes,).
        files: how many files each part has.
        digest: of both parts.
    """

    train: Bytes
    held: Bytes
    files: tuple[int, int]
    digest: str


@lru_cache(maxsize=4)
def standard_library(folder: Path | None = None) -> TextData:
    """The text of all ``*.py`` files below a folder, by default this Python's standard library.

    Raises:
        UsageError: too few files for a split; some Pythons ship their library compiled only.
    """
    root = Path(sysconfig.get_path("stdlib")) if folder is None else folder
    names = sorted(p.relative_to(root).as_posix() for p in root.rglob("*.py"))
    names = [name for name in names if not SKIPPED & set(name.split("/")[:-1])]
    held = names[HELD_OUT - 1 :: HELD_OUT]
    train = [name for name in names if name not in set(held)]
    if not held:
        raise UsageError(f"{root} has {len(names)} Python files, at least {HELD_OUT} needed; give --data digits")
    parts = [b"\n".join((root / name).read_bytes() for name in part) for part in (train, held)]
    arrays = [np.frombuffer(part, dtype=np.uint8) for part in parts]
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    return TextData(arrays[0], arrays[1], (len(train), len(held)), digest)


def windows(text: Bytes, count: int, context: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """``count`` random stretches of ``context + 1`` bytes, shape (count, context + 1): inputs and next bytes.

    Raises:
        UsageError: the text is shorter than one stretch.
    """
    if len(text) <= context:
        raise UsageError(f"the context is {context} bytes, but the text has only {len(text)}; give a shorter one")
    starts = rng.integers(0, len(text) - context, count)
    cut: NDArray[np.int64] = text[starts[:, None] + np.arange(context + 1)].astype(np.int64)
    return cut
