"""The inputs of a recipe, read from files: sizes and tuned values in TOML, sizes from a published configuration.

Read next: ``sizes.py`` (what sizes may be), ``families.toml`` (where a configuration keeps them).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from scaling_algebra import files, limits
from scaling_algebra.errors import UsageError, check_names, shown
from scaling_algebra.spec.axes import about

from .sizes import read_sizes

VALUES = ("lr", "eps", "std", "decay")
"""Settings that may be tuned at the base."""


@dataclass(frozen=True)
class Start:
    """Sizes of a model, and what was tuned on it: by name, then by role (empty: every other one)."""

    sizes: Mapping[str, int]
    values: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def read_start(text: str, label: str) -> Start:
    """Sizes as ``N=1024,M=64``, or a TOML file with the axes as keys and ``lr``, ``eps``, ``std``, ``decay``, each a
    number or a table by role with ``all`` for the rest.

    Raises:
        UsageError: neither can be read.
    """
    if "=" in text or not text.lower().endswith(".toml"):
        return Start(read_sizes(text, label))
    path = Path(text)
    content = files.read_text(path, f"give another --{label}")
    try:
        record = files.toml(content)
    except UsageError as error:
        raise UsageError(f"{path}: {error}; write for example N = 1024") from None
    if run := [name for name in ("beta1", "beta2", "wd", "warmup") if name in record]:
        alone = f"recipe --batch FROM:TO --base {run[0]}=NUMBER, without sizes, has it at the target"
        raise UsageError(f"{path} gives {run[0]}; a model's file has sizes, {', '.join(VALUES)}; {alone}")
    tables = {name: record[name] if isinstance(record[name], dict) else {"all": record[name]} for name in record}
    tuned = {name: {"" if r == "all" else r: x for r, x in tables[name].items()} for name in VALUES if name in record}
    return Start(read_sizes({axis: size for axis, size in record.items() if axis not in VALUES}, label), tuned)


def values(label: str, texts: Iterable[str]) -> dict[str, float]:
    """``"3e-3"`` for every tensor, ``"router=1e-3"`` for one.

    Raises:
        UsageError: no number, or one tensor twice.
    """
    tuned: dict[str, float] = {}
    for text in texts:
        role, equals, value = (x.strip() for x in text.rpartition("="))
        if equals and not role:
            raise UsageError(f"cannot read --{label} {text!r}; give a number, or ROLE=NUMBER")
        if role in tuned:
            raise UsageError(f"--{label} gives {role or 'the value of all tensors'} twice")
        try:
            tuned[role] = limits.real(value)
        except ValueError:
            raise UsageError(f"cannot read --{label} {text!r}; give a number, or ROLE=NUMBER") from None
    return tuned


def config_sizes(path: Path) -> dict[str, int]:
    """N, L and, with experts, N_e, M, K of a ``config.json`` of Hugging Face transformers.

    Raises:
        UsageError: it cannot be read, its family is not known, or a size is missing.
    """
    record = read_config(path, ", or sizes with --base and --target")
    heads, keys = (record.get(name) for name in ("num_attention_heads", "num_key_value_heads"))
    if isinstance(heads, int) and isinstance(keys, int) and (keys < 1 or heads % keys):
        raise UsageError(
            f"{path} has {heads} num_attention_heads and {keys} num_key_value_heads; give a divisor of them"
        )
    return _sizes(record, str(path))


def read_config(path: Path, instead: str = "") -> dict[str, Any]:
    """A ``config.json`` with its family, ``model_type``.

    Raises:
        UsageError: it is none; the message ends with what else to give.
    """
    text = files.read_text(path, "give a config.json")
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no JSON file: {error}; give a config.json") from None
    if not isinstance(record, dict) or not isinstance(record.get("model_type"), str):
        raise UsageError(f"{path} has no model_type; give the config.json of a model{instead}")
    return record


def _sizes(record: Mapping[str, Any], label: str) -> dict[str, int]:
    default, families = _families()["default"], {k: table for k, table in _families().items() if k != "default"}
    family = str(record.get("model_type", ""))
    check_names(f"family (model_type of {label})", [family], families)
    sizes = {}
    for axis, names in {**default, **families[family]}.items():
        size = next((record[name] for name in names if record.get(name) is not None), None)
        meaning = f"{axis} ({about(axis)})"
        if size is None:
            raise UsageError(f"{label} has no {names[0]}, which is {meaning} of {family}; give --base sizes")
        if isinstance(size, bool) or not isinstance(size, int):
            raise UsageError(f"{names[0]} in {label} is {shown(size)}; it is {meaning}: give one whole number")
        sizes[axis] = size
    return read_sizes(sizes, label)


@cache
def _families() -> Mapping[str, Mapping[str, Any]]:
    return files.shipped(__package__, "families.toml")
