"""Published families: the roles of their parameters by name, and small models of them, with random weights.

Read next: ``families.toml`` (the data), ``planning.py`` (roles), ``checking.py`` (trains what is built).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from torch import nn

from scaling_algebra.errors import UsageError, missing, unknown_name
from scaling_algebra.recipes.sizes import Sizes

from .parts import VOCABULARY

HEAD = 8
"""Dimension of a head, the same at every width."""


@cache
def table() -> Mapping[str, Any]:
    """The content of ``families.toml``."""
    return tomllib.loads(files(__package__).joinpath("families.toml").read_text("utf-8"))


def roles_of(family: str) -> Mapping[str, str]:
    """Role by regular expression on names, the first that matches; alike for all families.

    Raises:
        UsageError: it is one that needs an adapter.
    """
    if family in table()["refused"]:
        read = ", ".join(table()["read"])
        raise UsageError(f"{family} has no adapter: {table()['refused'][family]}; give a model of {read}")
    roles: Mapping[str, str] = table()["roles"]
    return roles


def dense(family: str) -> bool:
    """Has the family no experts?

    Raises:
        UsageError: it is not one that ``build_family`` knows.
    """
    roles_of(family)
    if family not in table()["build"]:
        raise unknown_name("family to check", family, table()["build"])
    return "M" not in table()["build"][family]


def build_family(family: str, sizes: Sizes) -> nn.Module:
    """One model; every head has the same dimension, keys have as many heads as queries, experts run one by one.

    Raises:
        UsageError: an unknown family, one that needs an adapter, or transformers is not installed.
    """
    stacked = not dense(family)
    try:
        from transformers import AutoConfig, AutoModelForCausalLM
    except ModuleNotFoundError:
        raise missing("check-model", "transformers", "models") from None

    entry, every = table()["build"][family], table()["every"]
    options: dict[str, Any] = {
        **every["fixed"],
        **dict.fromkeys(every["none"]),
        **dict.fromkeys(every["wide"], sizes["N"]),
        **dict.fromkeys(every["heads"], sizes["N"] // HEAD),
        "vocab_size": VOCABULARY,
        "intermediate_size": 2 * sizes["N"],
        **entry.get("fixed", {}),
        **dict.fromkeys(entry.get("wide", ()), sizes["N"]),
    }
    if stacked:
        options |= every["experts"] | {entry[axis]: sizes[axis] for axis in ("M", "N_e")}
        options[every["K"]] = sizes["K"]
    model: nn.Module = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **options))
    return model
