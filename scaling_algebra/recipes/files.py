"""Reads the inputs of a recipe from files: sizes and tuned values in TOML, sizes from a published configuration.

Read next: ``sizes.py`` (permitted sizes), ``families.toml`` (the keys of sizes in a configuration).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from scaling_algebra import files, limits
from scaling_algebra.errors import UsageError, check_names, quote_value
from scaling_algebra.spec.axes import describe_axis

from .sizes import read_sizes

HEADS = ("num_attention_heads", "n_head")
"""Keys for the number of heads in a configuration; the one that most families of Hugging Face use is first."""
OF_HEADS = (*HEADS, "num_key_value_heads", "head_dim")
WIDTHS = ("intermediate_size", "vocab_size")
VALUES = ("lr", "eps", "std", "decay")
"""Settings that can be tuned at the base."""


@dataclass(frozen=True)
class Start:
    """A model with its tuned values.

    Attributes:
        sizes: size of each axis.
        values: tuned values by setting, then by role; the empty role stands for every other tensor.
    """

    sizes: Mapping[str, int]
    values: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def read_start(text: str, label: str) -> Start:
    """Reads the sizes of a model, such as ``N=1024,M=64``, or a TOML file with its sizes and tuned values.

    The keys of the file are the axes and ``lr``, ``eps``, ``std``, ``decay``, each a number, or a table by role with
    ``all`` for the rest.

    Args:
        text: the sizes, or the path of the file.
        label: ``base`` or ``target``, for messages.

    Raises:
        UsageError: the text or the file cannot be read.
    """
    if "=" in text or not text.lower().endswith(".toml"):
        return Start(read_sizes(text, label))
    path = Path(text)
    content = files.read_text(path, f"give another --{label}")
    try:
        record = files.parse_toml(content)
    except UsageError as error:
        raise UsageError(f"{path}: {error}; write for example N = 1024") from None
    if run := [name for name in ("beta1", "beta2", "wd", "warmup") if name in record]:
        alone = f"recipe --batch FROM:TO --base {run[0]}=NUMBER, without sizes, computes its value at the target"
        raise UsageError(
            f"{path} gives {run[0]}, but the file of a model may have only sizes, {', '.join(VALUES)}; {alone}"
        )
    tables = {name: record[name] if isinstance(record[name], dict) else {"all": record[name]} for name in record}
    tuned = {name: {"" if r == "all" else r: x for r, x in tables[name].items()} for name in VALUES if name in record}
    return Start(read_sizes({axis: size for axis, size in record.items() if axis not in VALUES}, label), tuned)


def values(label: str, texts: Iterable[str]) -> dict[str, float]:
    """Parses the tuned values of an option: ``"3e-3"`` for every tensor, ``"router=1e-3"`` for one.

    Args:
        label: the option, for messages.
        texts: the texts.

    Returns:
        The values by role; the empty role stands for every other tensor.

    Raises:
        UsageError: a text is no number, or a tensor is given twice.
    """
    tuned: dict[str, float] = {}
    for text in texts:
        role, equals, value = (x.strip() for x in text.rpartition("="))
        if equals and not role:
            raise UsageError(f"cannot read --{label} {text!r}; give a number, or ROLE=NUMBER")
        if role in tuned:
            raise UsageError(f"--{label} gives {role or 'the value of all tensors'} twice")
        try:
            tuned[role] = limits.parse_real(value)
        except ValueError:
            raise UsageError(f"cannot read --{label} {text!r}; give a number, or ROLE=NUMBER") from None
    return tuned


def config_sizes(path: Path) -> dict[str, int]:
    """Reads the sizes N and L, and for a model with experts N_e, M and K, from a Hugging Face ``config.json``.

    Raises:
        UsageError: the file cannot be read, its family is not known, or a size is missing.
    """
    return _sizes(read_config(path, ", or sizes with --base and --target"), str(path))


def read_config(path: Path, instead: str = "") -> dict[str, Any]:
    """Reads the ``config.json`` of a model and checks its sizes. Its key ``model_type`` names the model family.

    Args:
        path: the file.
        instead: end of the error message: what the user can give instead of this file.

    Raises:
        UsageError: the file is no such configuration, a size is not a positive integer, or one does not divide another.
    """
    text = files.read_text(path, "give a config.json")
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not valid JSON: {error}; give the config.json of a model") from None
    if not isinstance(record, dict) or not isinstance(record.get("model_type"), str):
        raise UsageError(f"{path} has no model_type; give the config.json of a model{instead}")
    _check_config(record, str(path))
    return record


def _check_config(record: Mapping[str, Any], label: str) -> None:
    """Checks that sizes are positive integers, that heads divide what is split into them, and that K is at most M.

    Raises:
        UsageError: an entry is wrong; the message quotes the first.
    """
    axes, listed = size_names(record["model_type"], record), record["model_type"] in _families()
    counts = {*axes.get("M", ()), *axes.get("K", ())}  # in an unlisted family, 0 means that there are no experts
    needed = {*axes["N"], *axes["L"], HEADS[0]}
    for key, value in record.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise UsageError(f"{label}: {key} is {value}; give a finite number")
        if key not in {*OF_HEADS, *WIDTHS, *(name for names in axes.values() for name in names)}:
            continue
        for size in value if isinstance(value, list) else [value]:
            if size is None and key not in needed:
                continue
            if isinstance(size, bool) or not isinstance(size, int) or size < (listed or key not in counts):
                raise UsageError(f"{label}: {key} is {quote_value(size)}; give a positive whole number")
    width = next((name for name in axes["N"] if name in record), "")
    pairs = [(HEADS[0], "num_key_value_heads")]
    said = any(record[name] for name in record if re.search("head_(dim|size)", name))
    pairs += [(width, key) for key in HEADS if not said]
    for whole, part in pairs:
        if isinstance(n := record.get(whole), int) and isinstance(m := record.get(part), int) and n % m:
            raise UsageError(f"{label} has {n} {whole} and {m} {part}, which does not divide {n}; correct one of them")
    most, active = (next((name for name in axes.get(axis, ()) if name in record), "") for axis in "MK")
    if isinstance(m := record.get(most), int) and isinstance(k := record.get(active), int) and k > m:
        raise UsageError(f"{label} has {m} {most} but {k} {active}; at most {m} experts can be active")


def _sizes(record: Mapping[str, Any], label: str) -> dict[str, int]:
    """Returns the sizes in a configuration, by axis.

    Raises:
        UsageError: the family is not known, or a size is missing.
    """
    default, families = _families()["default"], {k: table for k, table in _families().items() if k != "default"}
    family = str(record.get("model_type", ""))
    check_names(f"family (model_type of {label})", [family], families)
    sizes = {}
    for axis, names in {**default, **families[family]}.items():
        size = next((record[name] for name in names if record.get(name) is not None), None)
        meaning = f"{axis} ({describe_axis(axis)})"
        if size is None:
            raise UsageError(f"{label} has no {names[0]}, which is {meaning} of {family}; give --base sizes")
        if isinstance(size, bool) or not isinstance(size, int):
            raise UsageError(f"{names[0]} in {label} is {quote_value(size)}; it is {meaning}: give one whole number")
        sizes[axis] = size
    return read_sizes(sizes, label)


def size_names(family: str, record: Mapping[str, Any]) -> dict[str, list[str]]:
    """Returns the keys under which a model family stores its sizes, by axis.

    For a family that ``families.toml`` does not list, these are the keys of all listed families that occur in the
    configuration ``record``.
    """
    every = _families()
    alike = (t for t in every.values() if "M" in t and all(any(n in record for n in t[a]) for a in ("M", "N_e", "K")))
    experts = {"moe_intermediate_size"} & record.keys()  # if present, intermediate_size is that of dense layers
    known = every.get(family) or max(alike, key=lambda t: experts <= {*t["N_e"]}, default={})
    return {
        axis: [n for n in names if n in record] or list(names[:1])
        for axis, names in {**every["default"], **known}.items()
    }


@cache
def _families() -> Mapping[str, Mapping[str, Any]]:
    return files.load_shipped_toml(__package__, "families.toml")
