"""Reads sizes that somebody else logged: a CSV file, or rows with quantity, n, seed, value and optionally step.

Read next: ``verdicts.py`` (judges them).
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import takewhile
from pathlib import Path
from types import EllipsisType
from typing import Any

import numpy as np

from scaling_algebra import files, limits
from scaling_algebra.errors import UsageError, quote_value
from scaling_algebra.solver.derivation import Signals
from scaling_algebra.spec.axes import Ray

from .measurement import Measurement, Prediction

COLUMNS = ("quantity", "n", "seed", "value")
"""Columns that a log must have; ``step`` is 0 if missing."""

SIZE, STEPS, MOST = 1e12, 10**6, 2**26
"""Maximum n and maximum step of a log, and maximum size of its file in bytes."""

Logged = str | Path | Iterable[Mapping[str, Any]]
Exponent = Fraction | int | str | None
Row = Sequence[Fraction | EllipsisType | None]
Predicted = Signals | Mapping[str, Exponent | Row]


def read_log(source: Logged, ray: Ray | None = None) -> Measurement:
    """Reads sizes that somebody else logged, and returns them as a measurement.

    Args:
        source: a CSV file, rows, or a pandas data frame.
        ray: the ray on which the sizes n lie, which decides which exponents are possible; by default they are multiples
            of 1/2.

    Raises:
        UsageError: a file or row that cannot be used, or, with ``ray``, a row without a step; the message quotes it.
    """
    where, rows = _read_rows(source)
    log: dict[tuple[str, int], dict[float, dict[str, float]]] = {}
    for k, row in enumerate(rows, 2 if isinstance(source, str | Path) else 1):
        place = f"{where}, {'line' if isinstance(source, str | Path) else 'row'} {k}"
        if not isinstance(row, Mapping):
            raise UsageError(f"{place} is {quote_value(row)}; a row has {', '.join(COLUMNS)} and perhaps step")
        if None in row:
            raise UsageError(f"{place}: more entries than columns; write numbers with a point")
        missing = [c for c in COLUMNS if _is_empty(row.get(c))]
        if missing:
            raise UsageError(f"{place}: no {missing[0]}; a log has {', '.join(COLUMNS)} and perhaps step")
        if ray is not None and _is_empty(row.get("step")):
            raise UsageError(f"{place}: no step; give the number of updates after which it was logged, 0 at the start")
        step = 0 if _is_empty(row.get("step")) else row["step"]
        n, t = (_read_number(x, c, place, 0, most) for c, x, most in (("n", row["n"], SIZE), ("step", step, STEPS)))
        value = _read_number(row["value"], "value", place, -math.inf, math.inf)
        if n == 0 or t != int(t):
            raise UsageError(
                f"{place}: n is {quote_value(row['n'])} and step {quote_value(step)}; n is above 0, step 0, 1, 2, ..."
            )
        seeds = log.setdefault((str(row["quantity"]), int(t)), {}).setdefault(n, {})
        if str(row["seed"]) in seeds:
            raise UsageError(f"{place}: {row['quantity']} at n={n:g}, seed {row['seed']} is there twice")
        seeds[str(row["seed"])] = abs(value)
    if not log:
        raise UsageError(f"{where}: no rows; a log has {', '.join(COLUMNS)} and perhaps step")
    sizes = sorted({n for series in log.values() for n in series})
    for (name, t), series in log.items():
        gone = [n for n in sizes if n not in series]
        if gone:
            raise UsageError(f"{where}: {name} at step {t} has no value at n={gone[0]:g}; log it at every size")
    ray = ray or Ray({"N": 1, "N_e": 1, "M": 1})
    measured = Measurement(ray, max(t for _, t in log), list(sizes), logged=True)
    for key, series in log.items():
        measured.values[key] = [np.array(list(series[n].values())) for n in sizes]
    return measured


def read_exponents(prediction: Predicted, steps: int) -> Prediction:
    """Returns predicted exponents of n by quantity, one for each of ``steps`` updates and the initial state.

    Args:
        prediction: exponents by quantity, where a single one applies to every step; or the result of ``signals``.
        steps: number of updates.

    Raises:
        UsageError: an exponent is not a rational number.
    """
    if isinstance(prediction, Signals):
        return get_decided(prediction)
    return {q: _read_series(q, p, steps) for q, p in prediction.items()}


def get_decided(answer: Signals) -> Prediction:
    """Returns the certified exponents of n by quantity after 0, 1, ... updates, up to the first undecided step; None
    stands for exactly zero.
    """
    rows = {q: tuple(a.exponent for a in takewhile(lambda a: a.decided, row)) for q, row in answer.quantities.items()}
    return {q: row for q, row in rows.items() if row}


def _is_empty(cell: Any) -> bool:
    """Whether a cell is None or an empty string (an array never is)."""
    return cell is None or (isinstance(cell, str) and not cell)


def _read_rows(source: Logged) -> tuple[str, Iterable[Mapping[str, Any]]]:
    """Returns a name for the source, for messages, and its rows."""
    if hasattr(source, "to_dict"):  # a pandas DataFrame
        source = source.to_dict("records")
    if not isinstance(source, str | Path):
        return "sizes", source
    instead = f"give a CSV file with {', '.join(COLUMNS)}"
    text = files.read_text(Path(source), instead, MOST)
    try:
        reader = csv.DictReader(io.StringIO(text, newline=""))
        rows, columns = list(reader), reader.fieldnames or ()
    except csv.Error as reason:
        raise UsageError(f"cannot read {source}: {reason}; {instead}") from None
    missing = [c for c in COLUMNS if c not in columns]
    if missing:
        raise UsageError(f"{source} has no column {missing[0]}; its first line names {', '.join(COLUMNS)}")
    if twice := [c for c in (*COLUMNS, "step") if columns.count(c) > 1]:
        raise UsageError(f"{source} has two columns {twice[0]}; leave one out")
    return str(source), rows


def _read_number(entry: Any, column: str, place: str, least: float, most: float) -> float:
    """Returns a cell of a table as a number.

    Args:
        entry: the cell.
        column: its column, for messages.
        place: its row, for messages.
        least: smallest allowed number.
        most: largest allowed number.

    Raises:
        UsageError: it is not a finite number in ASCII digits from ``least`` to ``most``; the message quotes it.
    """
    try:
        number = (
            math.nan if isinstance(entry, bool) else _parse_float(entry) if isinstance(entry, str) else float(entry)
        )
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(f"{place}: {column} is {quote_value(entry)}, not a finite number")
    if not least <= number <= most:
        raise UsageError(f"{place}: {column} is {quote_value(entry)}; give a number from {least:g} to {most:g}")
    return number


def _parse_float(text: str) -> float:
    return float(text) if text.isascii() and "_" not in text else math.nan


def _read_series(name: str, exponent: Exponent | Row, steps: int) -> Row:
    if isinstance(exponent, Sequence) and not isinstance(exponent, str):
        return exponent
    if isinstance(exponent, float):
        raise TypeError(f"the exponent of {name} is the float {exponent!r}; give an int, a Fraction or a string")
    try:
        exact = None if exponent is None else limits.parse_rational(exponent)
    except ValueError as error:
        raise UsageError(
            f"the exponent of {name} is {exponent!r}, {error}; give a rational such as -1/2, or None"
        ) from None
    return [exact] * (steps + 1)
