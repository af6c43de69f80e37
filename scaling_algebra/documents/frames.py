"""Records as rows for data frames and CSV files: one per tensor, parameter, quantity, exponent or table cell.

Exact numbers are strings. Each such column is followed by a column of floats: ``b`` is ``"1/2"``, ``b_value`` is 0.5.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from scaling_algebra.errors import UsageError

from .blocks import Document

Row = dict[str, Any]
TABLES = (
    "parameters", "tensors", "quantities", "exponents", "parameterizations", "disagreements", "cells", "theorems",
    "implementations", "errata", "fitted",
)  # fmt: skip
"""Keys of a record whose value holds rows: a list of rows, or a mapping from names to rows."""
ZERO = "zero"
"""Printed for an init std of exactly 0. For a quantity, exactly 0 is an empty cell."""
SETTINGS, POWERS = ("init", "lr", "eps"), ("multiplier", "init_std", "lr", "eps")
ASKED = ("architecture", "regime", "ray", "optimizer", "epsilon", "parameterization", "readout_init", "level")
"""Columns that every row has for the configuration of the answer."""
_EXACT = re.compile(r"-?\d+(/\d+)?")
_ALWAYS = re.compile(rf"[abcd]|({'|'.join(POWERS)})\..*")
_OF_RECIPE = re.compile(r".*\.(base|rule|rule_at_base|factor|target)")
"""Columns of a recipe: values are floats, rules are strings."""


def rows(record: Mapping[str, Any]) -> list[Row] | None:
    """Returns the rows of a record; None if it is not a table.

    Examples:
        >>> rows({"tensors": {"router": {"b": "1/2", "lr": {"N": "-1"}}}})
        [{'name': 'router', 'b': '1/2', 'b_value': 0.5, 'b_is_zero': False, 'lr.N': '-1', 'lr.N_value': -1.0}]
    """
    tables = ("tensors",) if "aggregation" in record else TABLES
    key = next((x for x in tables if isinstance(record.get(x), list | Mapping)), None)
    if key is None:
        return None
    found = [dict(_flatten(_complete_row(row, record))) for row in _iterate_rows(record[key])]
    if "aggregation" in record:
        axes = record["ray"]
        found += [
            {**dict.fromkeys(found[0]), "name": name, **{f"multiplier.{axis}": x.get(axis, "0") for axis in axes}}
            for name, x in record["multipliers"].items()
        ]
    if "gates" in record:
        failed = "; ".join(gate["name"] for gate in record["gates"] if not gate["passed"])
        found = [{**row, "gates_failed": failed} for row in found]
    if key == "disagreements":  # an audit; cells that it could not compare follow
        found = [{"verdict": "DISAGREES", **row} for row in found]
        found += [{"verdict": "NOT COMPARABLE", **dict(_flatten(row))} for row in record.get("not_comparable", ())]
    if "run" in record:  # a recipe: add multipliers and the effect of batch and tokens on betas
        found += [{"name": name, **dict(_flatten({"multiplier": x}))} for name, x in record["multipliers"].items()]
        runs = record["run"].items()
        betas = {f"{o}.{k}_factor": x for o, run in runs for k, x in run.items() if k.startswith("one_minus")}
        betas |= {f"{o}.{k}": x for o, run in runs for k, x in run.items() if k.endswith("_power")}
        found = [{**row, "level": record.get("level"), **betas} for row in found]
    if key == "quantities" and "because" in record:  # signals
        reasons = {name: "; ".join(dict.fromkeys(filter(None, x))) for name, x in record["because"].items()}
        found = [{**row, "because": reasons.get(row["name"])} for row in found]
    asked = _question_columns(record, key)
    return [{**row, **asked} for row in _add_float_columns(found)]


def _complete_row(row: Mapping[str, Any], record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a row with the columns that every row of its table has.

    A power gets a column per axis: "0" if the axis does not occur, empty if there is no power. An interval gets a
    column per end.
    """
    if "aggregation" in record:

        def powers(of: Mapping[str, Any]) -> Row:
            axes = record["ray"]
            return {x: {a: None if of[x] is None else of[x].get(a, "0") for a in axes} for x in POWERS if x in of}

        told: Row = {"tied": row["name"] in record["tied"]}
        told["undecided"] = any(row["name"] in (x["tensor"], x["quantity"]) for x in record["open"])
        return {**row, **powers(row), **told, "because": {x: row["because"].get(x) for x in SETTINGS}}
    if "ci" in row:
        low, high = row["ci"] or (None, None)
        return {**{key: x for key, x in row.items() if key != "note"}, "ci_low": low, "ci_high": high}
    return row


def _question_columns(record: Mapping[str, Any], key: str) -> Row:
    """Returns the columns that say to which configuration (network, ray, optimizer, ...) the rows of a record belong.

    Args:
        record: the record.
        key: the key of its table. Only tables of tensors and of quantities get these columns.
    """
    if key not in ("tensors", "quantities") or "architecture" not in record:
        return {}
    ray = ",".join(f"{axis}={rate}" for axis, rate in record["ray"].items())
    return {**{x: record[x] for x in ASKED if x in record}, "ray": ray}


def _iterate_rows(table: Any) -> Iterator[Mapping[str, Any]]:
    """Yields the rows of a table: a list of rows, or a mapping from the name of each row to its content.

    The content is a mapping of columns, a list of columns, a single exponent, or a sweep over learning rates, which
    gives a row for each training run.
    """
    if not isinstance(table, Mapping):
        yield from table
        return
    for name, x in table.items():
        if isinstance(x, Mapping) and isinstance(x.get("widths"), list):  # a sweep: a row per run
            yield from ({"name": name, **run} for at in x["widths"] for run in _runs(at))
        elif isinstance(x, Mapping):
            yield {"name": name, **x}
        else:
            yield {"name": name, **({str(k): y for k, y in enumerate(x)} if isinstance(x, list) else {"exponent": x})}


def _runs(at: Mapping[str, Any]) -> Iterator[Row]:
    """Yields a row for every training run at one size of a sweep over learning rates.

    The column ``loss`` is the loss that is judged: if training diverged, that of the first batch.
    """
    for x, losses, held in zip(at["grid"], at["losses"], at["held_out_losses"], strict=True):
        for seed, (loss, end) in enumerate(zip(losses, held, strict=True)):
            row = {**at["dims"], "size": at["width"], "parameters": at["parameters"], "lr": 2.0**x, "seed": seed}
            yield {**row, "loss": loss, "held_out_loss": end}


def _flatten(row: Mapping[Any, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the entries of nested mappings: ``{"lr": {"N": "-1"}}`` gives ``("lr.N", "-1")``.

    Args:
        row: the outermost mapping.
        above: text before every key.
    """
    for key, value in row.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _add_float_columns(found: Sequence[Row]) -> list[Row]:
    """Adds to each column of exact numbers a column of floats, and to each that can be zero a column of flags."""
    texts: dict[str, list[str]] = {}
    for row in found:
        for key, x in row.items():
            texts.setdefault(key, []).extend([x] if isinstance(x, str) else [])
    nothing = {key for key in texts if key.isdigit() or key == "predicted"}
    texts = {key: said for key, said in texts.items() if not _OF_RECIPE.fullmatch(key)}
    exact = {key for key, said in texts.items() if _ALWAYS.fullmatch(key) or any(map(_EXACT.fullmatch, said))} | nothing
    zero = {key for key, said in texts.items() if key == "b" or ZERO in said} | nothing
    made: list[Row] = []
    for row in found:
        made.append({})
        for key, x in row.items():
            made[-1][key] = x
            if key in exact:
                number = isinstance(x, str) and _EXACT.fullmatch(x)
                made[-1][f"{key}_value"] = float(Fraction(x)) if number else None
            if key in zero:
                made[-1][f"{key}_is_zero"] = x == ZERO or (x is None and key in nothing)
    return made


def as_csv(documents: Sequence[Document]) -> str:
    """Returns the rows of documents as CSV. Several documents get the columns that distinguish them.

    Raises:
        UsageError: a document is not a table.
    """
    every: list[Row] = []
    for d in documents:
        if (found := rows(d.record)) is None:
            raise UsageError("this answer is not a table and cannot be written as CSV; give --format json")
        told = [key for key, x in d.record.items() if any(x != other.record.get(key) for other in documents)]
        every += [{**{k: d.record[k] for k in told if isinstance(d.record[k], str)}, **row} for row in found]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for row in every for key in row)), lineterminator="\n")
    writer.writeheader()
    for row in every:
        writer.writerow({key: json.dumps(x) if isinstance(x, list) else x for key, x in row.items()})
    return text.getvalue().removesuffix("\n")
