"""Patterns that match exactly the parameters of one role: regular expressions, globs, parts of names.

Numbers in names (layers, experts) are made any number where that takes in no parameter of another role.
Read next: ``exports.py`` (who writes them).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase

from scaling_algebra.errors import UsageError

from .numbers import PlannedNumbers


def expression(plan: PlannedNumbers, role: str) -> str:
    """One regular expression for ``re.search``."""
    parts = _general(plan, role, lambda name: _numbered(re.escape(name), r"\d+", r"\."), re.fullmatch, re.escape)
    return f"^({'|'.join(parts)})$" if len(parts) > 1 else f"^{parts[0]}$"


def globs(plan: PlannedNumbers, role: str) -> list[str]:
    """Globs as of ``fnmatch``."""
    return _general(plan, role, lambda name: _numbered(name, "*", "."), lambda g, name: fnmatchcase(name, g), str)


def substrings(plan: PlannedNumbers, role: str) -> list[str]:
    """Parts of names, each in names of this role only: what follows the number of a layer, else the whole name."""
    return _general(plan, role, lambda name: re.split(r"\.\d+\.", name)[-1], lambda part, name: part in name, str)


def _numbered(name: str, number: str, dot: str) -> str:
    return dot.join(number if part.isdigit() else part for part in name.split(dot))


def _general(
    plan: PlannedNumbers,
    role: str,
    general: Callable[[str], str],
    matches: Callable[[str, str], object],
    plain: Callable[[str], str],
) -> list[str]:
    """The general form of every name of a role where it matches no name of others; else the name itself.

    Raises:
        UsageError: not even the name itself tells the role apart.
    """
    own = [e.name for e in plan.trained[role]]
    others = [e.name for e in plan.entries if e.name not in own]
    found: dict[str, None] = {}
    for name in own:
        if _any_of(found, name, matches):
            continue  # a second pattern for it would find nothing left, which some trainers refuse
        pattern = next((x for x in (general(name), plain(name)) if not _any(x, others, matches)), None)
        if pattern is None:
            raise UsageError(f"no pattern tells {name} from parameters of other roles; rename it, or take another form")
        found[pattern] = None
    return list(found)


def _any(pattern: str, names: Iterable[str], matches: Callable[[str, str], object]) -> bool:
    return any(matches(pattern, name) for name in names)


def _any_of(patterns: Iterable[str], name: str, matches: Callable[[str, str], object]) -> bool:
    return any(matches(pattern, name) for pattern in patterns)
