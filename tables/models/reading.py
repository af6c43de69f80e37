"""Reads what is published of public models (``models.toml``); the engine never imports this.

A family more: one more entry there. Read next: ``layout.py`` (the table).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from scaling_algebra.errors import UsageError
from scaling_algebra.recipes.sizes import read_sizes
from scaling_algebra.spec.axes import AXES

GATES = ("1/K", "1/M", "1")
VALUES = ("routed_scale", "bias_step", "init_std", "lr", "decay")
"""What may be published of a model besides its sizes and its gate."""
SETTINGS = ("init_std", "lr", "decay")
"""Those that a power is derived for."""
FAMILY = ("name", "title", "optimizer", "settings", "notes", "model")
MODEL = ("name", "config", "report", "sizes", "gate", *VALUES)


@dataclass(frozen=True)
class PublishedModel:
    """One model.

    Attributes:
        config, report: where sizes and gate stand, and where the rest does; empty: nothing is published.
        sizes: N, N_e, M, K, L. gate: what it brings to the sum over experts; empty: not published.
        values: what is published, by name; empty cells are not there.
    """

    name: str
    config: str
    report: str
    sizes: Mapping[str, int]
    gate: str
    values: Mapping[str, float]


@dataclass(frozen=True)
class ModelFamily:
    """Models of one family, from the smallest to the largest; one: there is no ray.

    Attributes:
        optimizer: for which powers are derived. settings: of what they are.
    """

    name: str
    title: str
    optimizer: str
    settings: tuple[str, ...]
    notes: tuple[str, ...]
    models: tuple[PublishedModel, ...]


@cache
def families() -> tuple[ModelFamily, ...]:
    """Every family."""
    return parse(files(__package__).joinpath("models.toml").read_text("utf-8"))


def parse(text: str) -> tuple[ModelFamily, ...]:
    """The families of a file.

    Raises:
        UsageError: a key that is not known or is missing, or sizes that no model has.
    """
    try:
        return tuple(_family(record) for record in tomllib.loads(text)["family"])
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"models: {error}; every entry needs the keys of the others") from None


def _family(record: Mapping[str, Any]) -> ModelFamily:
    _check(record, FAMILY, SETTINGS, record.get("settings", ()))
    models = tuple(_model(model) for model in record["model"])
    kept = tuple(record.get("settings", SETTINGS)), tuple(record.get("notes", ()))
    return ModelFamily(record["name"], record["title"], record["optimizer"], *kept, models)


def _model(record: Mapping[str, Any]) -> PublishedModel:
    _check(record, MODEL, (*GATES, ""), [record.get("gate", "")])
    sizes = read_sizes(record["sizes"], record["name"])
    if set(sizes) != set(AXES):
        raise ValueError(f"{record['name']} has the sizes {', '.join(sizes)}")
    values = {name: float(record[name]) for name in VALUES if name in record}
    if values and not record.get("report") and set(values) != {"routed_scale"}:
        raise ValueError(f"{record['name']} has values of no report")
    return PublishedModel(
        record["name"], record["config"], record.get("report", ""), sizes, record.get("gate", ""), values
    )


def _check(record: Mapping[str, Any], keys: tuple[str, ...], names: tuple[str, ...], given: Any) -> None:
    for name, known in ((k, keys) for k in record):
        if name not in known:
            raise ValueError(f"{record.get('name')} has {name!r}")
    for name in given:
        if name not in names:
            raise ValueError(f"{record.get('name')} has {name!r}")
