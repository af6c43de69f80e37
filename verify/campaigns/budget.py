"""How much to measure in a given time and memory: sizes from the speed of this machine, seeds by sequential testing.

A run starts with few seeds at every size. Then the data are looked at up to ``LOOKS`` times: as long as noise leaves
some exponent open, the time left is spent on the sizes where it narrows those exponents most (Neyman allocation), half
of it before each further look. Intervals have level 1 - 0.05 / LOOKS (``Job.looks``), so that all looks together are
wrong as rarely as one (Bonferroni).
Read next: ``session.py`` (runs it), ``sizes.py`` (sizes and seeds without a budget).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from scaling_algebra import limits
from scaling_algebra.errors import UsageError
from scaling_algebra.verify.judging.fit import DRIFT, Verdict
from scaling_algebra.verify.judging.measurement import Measurement
from scaling_algebra.verify.judging.report import Row
from scaling_algebra.verify.measuring.cells import BLOCK, Setup
from scaling_algebra.verify.measuring.sizes import elements

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
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?)\s*([A-Za-z]*)\s*", text)
    if found is None or len(text) > limits.LONGEST or found[2].lower() not in units or float(found[1]) == 0:
        raise UsageError(f"cannot read the {what} {text!r}; write for example {examples}")
    amount = float(found[1]) * units[found[2].lower()]
    if amount > most:
        raise UsageError(f"the {what} {text!r} is beyond {most:.0e}; write for example {examples}")
    return amount


def largest(speed: float, time: float, steps: int) -> float:
    """Weight entries of the largest model for which ``BLOCK`` seeds at every size fit the first share of the time.

    Args:
        speed: weight entries a second, times updates and their measurement (``cells.cost``).
    """
    return FIRST * time * speed / (BLOCK * 2 * 2 * (steps + 1))  # sizes spread geometrically, and the controls


def open_to_noise(rows: Sequence[Row]) -> list[Row]:
    """Rows that more seeds may decide: inconclusive, and their standard error is not small."""
    return [
        r for r in rows if r.verdict is Verdict.INCONCLUSIVE and math.isfinite(r.fit.se) and 2 * r.fit.se > DRIFT / 2
    ]


def allocate(setup: Setup, m: Measurement, rows: Sequence[Row], entries: float) -> tuple[int, ...]:
    """Seeds at every size that narrow the slopes of ``rows`` most for so many further weight entries.

    Law: seeds at size i ~ sqrt(sum over rows of (weight_i sd_i)^2 / cost_i), where weight_i is the weight of size i in
    a least-squares slope, sd_i the standard deviation of log2(rms) for one seed, cost_i the entries of a replica.
    Source: Neyman (1934), On the two different aspects of the representative method, Sec. 3.
    """
    x = np.log2(m.sizes)
    weight = (x - x.mean()) / np.square(x - x.mean()).sum()
    variance = np.zeros(len(x))
    for row in rows:
        for i, v in enumerate(m.values[row.quantity, row.step]):
            square = np.square(v)
            if square.mean() > 0:
                variance[i] += np.square(weight[i] * square.std() / square.mean())
    cost = np.array([elements(d, setup.network) for d in m.dims], dtype=float)
    wanted = np.sqrt(variance / cost)
    now = np.array(setup.seeds, dtype=float)
    if not wanted.any():
        return setup.seeds
    low, high = 0.0, float((now.max() * 1e3) / wanted[wanted > 0].min())
    for _ in range(60):  # the scale at which exactly these entries are spent
        middle = (low + high) / 2
        spent = float((np.maximum(wanted * middle - now, 0) * cost).sum())
        low, high = (low, middle) if spent > entries else (middle, high)
    more = np.maximum(wanted * low - now, 0) / BLOCK
    return tuple(int(n + BLOCK * math.floor(k)) for n, k in zip(setup.seeds, more, strict=True))
