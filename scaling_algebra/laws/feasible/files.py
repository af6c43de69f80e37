"""Assumptions in TOML: those that ship, in ``assumptions/``, and those of a user.

Adding a set: one more file in ``assumptions/``. Read next: ``feasible.py`` (what they allow).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scaling_algebra.errors import UsageError, unknown_name
from scaling_algebra.files import read_text, toml

from ..entries import MOST, entry
from ..expressions import monomial, relation
from .feasible import Assumption, Definition, System

SHIPPED = {path.stem: path for path in sorted((Path(__file__).parent / "assumptions").glob("*.toml"))}
"""Sets of assumptions that ship: one file each."""
KEYS: dict[str, type] = {"name": str, "title": str, "grows": str, "assume": list, "define": list}
ASSUME = dict[str, type].fromkeys(("name", "relation", "because", "source"), str)
DEFINE = dict[str, type].fromkeys(("name", "is", "about", "printed", "source"), str)


def shipped(name: str) -> System:
    """A set of assumptions that ships.

    Raises:
        UsageError: there is none of this name.
    """
    if name not in SHIPPED:
        raise unknown_name("set of assumptions", name, (*SHIPPED, "FILE.toml"))
    return read_assumptions(SHIPPED[name])


def read_assumptions(path: Path | str) -> System:
    """The assumptions in a TOML file: ``grows = "d"`` and ``assume = ["n**(-1/2) << sigma", ...]``; an entry may also
    be a table with name, relation, because and source, and ``[[define]]`` names monomials.

    Raises:
        UsageError: one line that begins with the file's name.
    """
    file = Path(path)
    text = read_text(file, "give a TOML file with assumptions", MOST)
    try:
        return _system(toml(text), file.stem)
    except UsageError as error:
        raise UsageError(f"{file}: {error}") from None


def _system(data: Mapping[str, Any], name: str) -> System:
    entry(data, KEYS)
    grows = data.get("grows", "d")
    if not grows.isidentifier() or not grows.isascii():
        raise UsageError(f"grows is {grows!r}; write the name of the quantity that grows, as d")
    if not data.get("assume"):
        raise UsageError('assume is missing; write assume = ["n**(-1/2) << sigma", ...]')
    assumptions = []
    for number, x in enumerate(data["assume"], 1):
        e = entry(x if isinstance(x, Mapping) else {"relation": x}, ASSUME, f"assumption {number}", ["relation"])
        found = relation(e["relation"])
        assumptions.append(Assumption(e.get("name", str(found)), found, e.get("because", ""), e.get("source", "")))
    defined = data.get("define", [])
    entries = [entry(x, DEFINE, f"definition {k}", ["name", "is"]) for k, x in enumerate(defined, 1)]
    definitions = []
    for k, e in enumerate(entries):
        value, printed = monomial(e["is"]), monomial(e["printed"]) if "printed" in e else None
        if e["name"] == grows or value.quantities & {later["name"] for later in entries[k:]}:
            said = "needs what is defined at or after it, or is what grows"
            raise UsageError(f"definition {k + 1}: {e['name']} {said}")
        definitions.append(Definition(e["name"], value, e.get("about", ""), printed, e.get("source", "")))
    for kind, names in (("assumption", [a.name for a in assumptions]), ("definition", [d.name for d in definitions])):
        if twice := {n for n in names if names.count(n) > 1}:
            raise UsageError(f"the {kind} {min(twice)!r} is there twice; give each a name of its own")
    called = data.get("name", name)
    return System(called, data.get("title", called), grows, tuple(assumptions), tuple(definitions))
