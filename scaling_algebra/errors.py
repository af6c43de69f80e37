"""The one exception users see: a single line that says what was wrong, where, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

Entry = TypeVar("Entry")


class UsageError(ValueError):
    """Wrong input. The command line prints it as one line and exits with code 2."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """``no optimizer named 'adm'; did you mean 'adam'? known: adam, adamw, sgd, signsgd``."""
    names = list(known)
    lowered = {n.lower(): n for n in names}
    near = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.4)
    hint = f"; did you mean {lowered[near[0]]!r}?" if near else "."
    listed = ", ".join(names) if len(names) <= 40 else "see scalecalc list"
    return UsageError(f"no {kind} named {name!r}{hint} known: {listed}")


def named(kind: str, name: str, registry: Mapping[str, Entry]) -> Entry:
    """The entry of a registry, in any case of letters.

    Raises:
        UsageError: there is none of this name.
    """
    for known, entry in registry.items():
        if isinstance(name, str) and name.lower() == known.lower():
            return entry
    raise unknown_name(kind, str(name), registry)
