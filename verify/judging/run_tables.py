"""Tables of runs: reads a CSV file with one run per row, and selects the runs at the best rate of each size."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scaling_algebra import files
from scaling_algebra.errors import UsageError, count_noun, quote_value

from .laws import LOSS, RATE, Columns
from .resampling import Array

MOST = 2**24
"""Maximum size of a table, in bytes."""


@dataclass(frozen=True)
class RunTable:
    """A CSV file of runs.

    Attributes:
        path: path of the file.
        columns: names of its columns, renamed as ``--columns`` says.
        rows: (line number, cells by column).
    """

    path: Path
    columns: tuple[str, ...]
    rows: Sequence[tuple[int, Mapping[str, str]]]

    @classmethod
    def read(cls, path: Path, names: Mapping[str, str]) -> RunTable:
        """Reads a file.

        Args:
            path: path of the file.
            names: new name -> name in the file.

        Raises:
            UsageError: the file is no CSV, or lacks a column that is renamed.
        """
        instead = "give a CSV file with a line of names"
        reader = csv.reader(io.StringIO(files.read_text(path, instead, MOST), newline=""), skipinitialspace=True)
        try:
            lines = [(reader.line_num, [x.strip() for x in row]) for row in reader if any(map(str.strip, row))]
        except csv.Error as error:
            raise UsageError(f"{path} is no CSV ({error}); {instead}") from None
        header = lines[0][1] if lines else []
        if gone := [old for old in names.values() if old not in header]:
            raise UsageError(f"--columns: {_describe_missing_columns(path, gone, header)}")
        new = {old: name for name, old in names.items()}
        columns = [new.get(old, "" if old in names else old) for old in header]
        for k, row in lines[1:]:  # a number written as 1,024, or an incomplete line
            if len(row) != len(columns):
                raise UsageError(
                    f"{path}, line {k} has {count_noun(len(row), 'field')}, and the first {len(columns)}; give each"
                )
        rows = [(k, dict(zip(columns, row, strict=True))) for k, row in lines[1:]]
        return cls(path, tuple(columns), rows)

    def numbers(self, wanted: Sequence[str], by: str = "") -> dict[str, Columns]:
        """Returns columns of positive numbers, grouped by the column ``by`` if given. Losses of diverged runs (nan, inf
        or blank) are NaN.

        Raises:
            UsageError: a column is missing, or an entry is not a positive number.
        """
        instead = f"give a CSV file with columns {', '.join(wanted)}, or name them: --columns {wanted[0]}=..."
        if gone := [name for name in wanted if name not in self.columns]:
            raise UsageError(f"{_describe_missing_columns(self.path, gone, self.columns)}; {instead}")
        found: dict[str, dict[str, list[float]]] = {}
        for k, row in self.rows:
            group = found.setdefault(row.get(by, "") if by else "", {name: [] for name in wanted})
            for name in wanted:
                try:
                    number = float(row[name] or ("nan" if name == LOSS else ""))
                except ValueError:
                    number = -1.0
                if name == LOSS and not np.isfinite(number) and number != -np.inf:
                    number = np.nan
                elif not 0 < number < np.inf:
                    raise UsageError(
                        f"{self.path}, line {k}: {name} is {quote_value(row[name])}; give a positive number"
                    )
                group[name].append(number)
        if not self.rows:
            raise UsageError(f"{self.path} has no rows; {instead}")
        return {key: {name: np.array(values) for name, values in group.items()} for key, group in found.items()}

    def varying_beside(self, sizes: Sequence[str]) -> list[str]:
        """Returns the names of numeric columns, other than sizes and loss, whose values differ among runs with the same
        sizes.

        Columns with seeds or names of runs are ignored.
        """
        groups: dict[tuple[str, ...], list[Mapping[str, str]]] = {}
        for _, row in self.rows:
            groups.setdefault(tuple(row[name] for name in sizes), []).append(row)
        return [
            name
            for name in self.columns
            if name not in (*sizes, LOSS, "seed", "name", "")
            and any(len({_parse_positive(row[name]) for row in rows} - {None}) > 1 for rows in groups.values())
        ]


def _parse_positive(text: str) -> float | None:
    """Returns a positive number, or None if the text is not one."""
    try:
        return number if 0 < (number := float(text)) < np.inf else None
    except ValueError:
        return None


def _describe_missing_columns(path: Path, gone: Sequence[str], columns: Sequence[str]) -> str:
    """Returns a sentence on the columns that a file lacks and those that it has."""
    there = f"it has {', '.join(columns)}" if columns else "it is empty"
    if len(columns) == 1 and ";" in columns[0]:
        there = f"its columns are separated by semicolons ({columns[0]}), give commas"
    return f"{path} has no column {', '.join(map(repr, gone))}; {there}"


def count_diverged(groups: Iterable[Columns]) -> str:
    """Returns the end of a line of output that says how many runs in all groups diverged; empty if none did."""
    count = sum(int(np.isnan(x[LOSS]).sum()) for x in groups)
    return f"; {count} that diverged ignored" if count else ""


def select_best_rate_runs(x: Columns, sizes: Sequence[str]) -> tuple[Array, list[str]]:
    """Selects the runs at the learning rate with the lowest mean loss, for each size.

    Args:
        x: columns of sizes, lr and loss, one entry per run.
        sizes: names of the columns that define a size; if empty, all runs have one size.

    Returns:
        A mask of the selected runs, and the sizes whose best rate is the smallest or largest of several.
    """
    chosen, edges, ended = np.zeros(len(x[LOSS]), dtype=bool), list[str](), np.isfinite(x[LOSS])
    table = np.column_stack([x[name] for name in sizes]) if sizes else np.zeros((len(ended), 1))
    for row in np.unique(table, axis=0):
        mine = (table == row).all(axis=1) & ended
        rates = np.unique(x[RATE][mine])
        if not len(rates):
            continue
        best = int(np.argmin([x[LOSS][mine & (x[RATE] == rate)].mean() for rate in rates]))
        chosen |= mine & (x[RATE] == rates[best])
        if len(rates) > 1 and best in (0, len(rates) - 1):
            edges.append(", ".join(f"{name}={value:g}" for name, value in zip(sizes, row, strict=False)))
    return chosen, edges
