"""Published families: the roles of their parameters by name.

Read next: ``families.toml`` (the data), ``planning.py`` (roles).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from scaling_algebra.errors import UsageError


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
