"""How much to measure in a given time and memory: sizes from the speed of this machine, seeds by sequential testing.

A run starts with few seeds at every size. Then the data are looked at up to ``LOOKS`` times: as long as noise leaves
some exponent open, the time left is spent on more seeds, half of it before each further look. Intervals have level
1 - 0.05 / LOOKS (``Job.looks``), so that all looks together are wrong as rarely as one (Bonferroni).
Read next: ``session.py`` (runs it), ``sizes.py`` (sizes and seeds without a budget).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from scaling_algebra import limits
from scaling_algebra.errors import UsageError
from scaling_algebra.verify.judging.fit import DRIFT, Verdict
from scaling_algebra.verify.judging.report import ReportRow
from scaling_algebra.verify.measuring.cells import BLOCK, Setup

LOOKS = 5

LEAST_ENTRIES = 3e4
"""Weight entries of the largest model below which a run makes no sense, however little time there is."""

FIRST = 0.35
"""Share of the time for the first seeds of every size; it sets the largest size."""

_SECONDS = {"s": 1, "": 1, "m": 60, "min": 60, "h": 3600}
_BYTES = {"": 1, "b": 1} | {
    f"{letter}{end}": base**power
    for power, letter in enumerate("kmgt", 1)
    for end, base in (("ib", 1024), ("b", 1000), ("", 1024))
}


def seconds(text: str) -> float:
    """``60s``, ``5m``, ``1.5h`` or a number of seconds.

    >>> seconds("5m")
    300.0

    Raises:
        UsageError: anything else.
    """
    return _amount(text, _SECONDS, "time", "60s, 5m or 1h", limits.TIME)


def in_bytes(text: str) -> int:
    """``20GiB``, ``512MB`` or a number of bytes.

    >>> in_bytes("2KiB")
    2048

    Raises:
        UsageError: anything else.
    """
    return int(_amount(text, _BYTES, "memory", "20GiB or 512MB", limits.MEMORY))


def _amount(text: str, units: dict[str, int], what: str, examples: str, most: float) -> float:
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?)\s*([A-Za-z]*)\s*", text)
    if match is None or len(text) > limits.LONGEST or match[2].lower() not in units or float(match[1]) == 0:
        raise UsageError(f"cannot read the {what} {text!r}; write for example {examples}")
    amount = float(match[1]) * units[match[2].lower()]
    if amount > most:
        raise UsageError(f"the {what} {text!r} is beyond {most:.0e}; write for example {examples}")
    return amount


def largest(speed: float, time: float, steps: int) -> float:
    """Weight entries of the largest model for which ``BLOCK`` seeds at every size fit the first share of the time.

    Args:
        speed: weight entries a second, times updates and their measurement (``cells.cost``).
    """
    return FIRST * time * speed / (BLOCK * 2 * 2 * (steps + 1))  # sizes spread geometrically, and the controls


def open_to_noise(rows: Sequence[ReportRow]) -> list[ReportRow]:
    """Rows that more seeds may decide: inconclusive, and their standard error is not small."""
    return [
        r for r in rows if r.verdict is Verdict.INCONCLUSIVE and math.isfinite(r.fit.se) and 2 * r.fit.se > DRIFT / 2
    ]


def more_seeds(setup: Setup, entries: float) -> tuple[int, ...]:
    """As many more seeds at every size, in steps of ``BLOCK``, as cost so many further weight entries."""
    blocks = int(entries / (BLOCK * sum(setup.entries)))
    return tuple(n + BLOCK * blocks for n in setup.seeds)
