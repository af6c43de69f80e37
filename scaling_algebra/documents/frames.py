"""Records as rows, one for each tensor, parameter, quantity, exponent or cell: what frames and CSV files have.

Beside a column of exact numbers, which are texts, stands one of floats: ``b`` is ``"1/2"`` and ``b_value`` 0.5.
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
"""Keys of records that hold rows: a list of them, or one by name."""
ZERO = "zero"
"""The value of an init std that is exactly zero; of a quantity it is nothing."""
SETTINGS, POWERS = ("init", "lr", "eps"), ("multiplier", "init_std", "lr", "eps")
ASKED = ("architecture", "regime", "ray", "optimizer", "epsilon", "parameterization", "readout_init", "level")
"""What every row says of the configuration that was asked for."""
_EXACT = re.compile(r"-?\d+(/\d+)?")
_ALWAYS = re.compile(rf"[abcd]|({'|'.join(POWERS)})\..*")
_OF_RECIPE = re.compile(r".*\.(base|rule|rule_at_base|factor|target)")
"""Columns of a recipe, whose numbers are floats and whose rules are no numbers."""


def rows(record: Mapping[str, Any]) -> list[Row] | None:
    """The rows of a record; None where it holds none.

    Examples:
        >>> rows({"tensors": {"router": {"b": "1/2", "lr": {"N": "-1"}}}})
        [{'name': 'router', 'b': '1/2', 'b_value': 0.5, 'b_is_zero': False, 'lr.N': '-1', 'lr.N_value': -1.0}]
    """
    tables = ("tensors",) if "aggregation" in record else TABLES
    key = next((x for x in tables if isinstance(record.get(x), list | Mapping)), None)
    if key is None:
        return None
    found = [dict(_flat(_whole(row, record))) for row in _named(record[key])]
    if "aggregation" in record:
        axes = record["ray"]
        found += [
            {**dict.fromkeys(found[0]), "name": name, **{f"multiplier.{axis}": x.get(axis, "0") for axis in axes}}
            for name, x in record["multipliers"].items()
        ]
    if "gates" in record:
        failed = "; ".join(gate["name"] for gate in record["gates"] if not gate["passed"])
        found = [{**row, "gates_failed": failed} for row in found]
    if key == "disagreements":  # of an audit, with what it could not compare
        found = [{"verdict": "DISAGREES", **row} for row in found]
        found += [{"verdict": "NOT COMPARABLE", **dict(_flat(row))} for row in record.get("not_comparable", ())]
    if "run" in record:  # of a recipe, with what is multiplied, and what batch and tokens do to betas
        found += [{"name": name, **dict(_flat({"multiplier": x}))} for name, x in record["multipliers"].items()]
        runs = record["run"].items()
        betas = {f"{o}.{k}_factor": x for o, run in runs for k, x in run.items() if k.startswith("one_minus")}
        betas |= {f"{o}.{k}": x for o, run in runs for k, x in run.items() if k.endswith("_power")}
        found = [{**row, "level": record.get("level"), **betas} for row in found]
    if key == "quantities" and "because" in record:  # of signals
        reasons = {name: "; ".join(dict.fromkeys(filter(None, x))) for name, x in record["because"].items()}
        found = [{**row, "because": reasons.get(row["name"])} for row in found]
    asked = _asked(record, key)
    return [{**row, **asked} for row in _valued(found)]


def _whole(row: Mapping[str, Any], record: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row with the columns of every answer. A power has all axes (0: it is not in it; nothing: there is no power), an
    interval two ends."""
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


def _asked(record: Mapping[str, Any], key: str) -> Row:
    """The configuration of an answer: a column each."""
    if key not in ("tensors", "quantities") or "architecture" not in record:
        return {}
    ray = ",".join(f"{axis}={rate}" for axis, rate in record["ray"].items())
    return {**{x: record[x] for x in ASKED if x in record}, "ray": ray}


def _named(table: Any) -> Iterator[Mapping[str, Any]]:
    if not isinstance(table, Mapping):
        yield from table
        return
    for name, x in table.items():
        if isinstance(x, Mapping) and isinstance(x.get("widths"), list):  # of a sweep: one for each run
            yield from ({"name": name, **run} for at in x["widths"] for run in _runs(at))
        elif isinstance(x, Mapping):
            yield {"name": name, **x}
        else:
            yield {"name": name, **({str(k): y for k, y in enumerate(x)} if isinstance(x, list) else {"exponent": x})}


def _runs(at: Mapping[str, Any]) -> Iterator[Row]:
    """Every run at one size of a sweep; ``loss`` is what is judged: that of the first batch where training diverged."""
    for x, losses, held in zip(at["grid"], at["losses"], at["held_out_losses"], strict=True):
        for seed, (loss, end) in enumerate(zip(losses, held, strict=True)):
            row = {**at["dims"], "size": at["width"], "parameters": at["parameters"], "lr": 2.0**x, "seed": seed}
            yield {**row, "loss": loss, "held_out_loss": end}


def _flat(row: Mapping[Any, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in row.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _valued(found: Sequence[Row]) -> list[Row]:
    """The rows with a column of floats after each of exact numbers, and a flag of what starts at zero."""
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
    """The rows of documents as CSV; of several ones, with the columns that tell them apart.

    Raises:
        UsageError: one is no table.
    """
    every: list[Row] = []
    for d in documents:
        if (found := rows(d.record)) is None:
            raise UsageError("this is no table, so there is no CSV of it; take json")
        told = [key for key, x in d.record.items() if any(x != other.record.get(key) for other in documents)]
        every += [{**{k: d.record[k] for k in told if isinstance(d.record[k], str)}, **row} for row in found]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for row in every for key in row)), lineterminator="\n")
    writer.writeheader()
    for row in every:
        writer.writerow({key: json.dumps(x) if isinstance(x, list) else x for key, x in row.items()})
    return text.getvalue().removesuffix("\n")
