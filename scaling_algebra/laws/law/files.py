"""Laws in TOML: those that ship, in ``given/``, and those of a user.

Adding a law: one more file in ``given/``. Read next: ``library.py`` (what a law says).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from scaling_algebra.errors import UsageError, named
from scaling_algebra.files import read_text, toml

from ..entries import MOST, entry, table
from ..expressions import exponent, expression, monomial, relation
from .library import Axis, Law, sides

AXIS: dict[str, type] = {"sum": str, "minimise": list, "grows": list, "constraints": list, "fixed": list,
                         "exponent": str, "ratios": dict, "floored": bool}  # fmt: skip
KEYS: dict[str, type] = {"title": str, "source": str, "identities": list, "floor": str, "names": dict, "options": dict,
                         "axes": dict, "model": dict, "at": dict}  # fmt: skip


@cache
def laws() -> Mapping[str, Law]:
    """Every law that ships, by name."""
    return {path.stem: read(path) for path in sorted((Path(__file__).parent / "given").glob("*.toml"))}


def law(name: str) -> Law:
    """A law that ships, or one in a TOML file.

    Raises:
        UsageError: neither.
    """
    if name.endswith(".toml"):
        return read(Path(name))
    return named("law", name, laws())


def read(path: Path) -> Law:
    """The law in a TOML file: ``sum``, ``minimise``, ``grows`` and so on, or several axes of those.

    Raises:
        UsageError: one line that begins with the file's name.
    """
    text = read_text(path, "give a TOML file with a law", MOST)
    try:
        return _law(path.stem, toml(text, number=str))
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


# inside --------------------------------------------------------------------------------------------------------


def _law(name: str, data: Mapping[str, Any]) -> Law:
    flat = {key: value for key, value in data.items() if key in AXIS}
    entry(data, KEYS | AXIS)
    if flat and "axes" in data:
        raise UsageError(f"{next(iter(flat))} stands beside axes; put it into one of them")
    entries = {"law": flat} if flat else data.get("axes", {})
    if not entries:
        raise UsageError('it says no law; give sum, minimise and grows, such as sum = "N**-alpha + N/n"')
    axes = {key: _axis(key, e) for key, e in entries.items()}
    options = {
        option: {choice: _texts(f"{option} {choice}", put) for choice, put in table(choices, option).items()}
        for option, choices in data.get("options", {}).items()
    }
    for text in (identities := tuple(_listed("identities", data.get("identities", [])))):
        sides(text)
    return Law(
        name,
        data.get("title", name),
        data.get("source", ""),
        axes,
        identities,
        monomial(data["floor"]) if "floor" in data else None,
        _texts("names", data.get("names", {})),
        options,
        {key: expression(text) for key, text in _texts("model", data.get("model", {})).items()},
        {key: exponent(text) for key, text in _texts("at", data.get("at", {})).items()},
    )


def _axis(name: str, data: Any) -> Axis:
    e = entry(data, AXIS, name, ["sum", "grows"])
    lists = {key: tuple(_listed(key, e.get(key, []))) for key, kind in AXIS.items() if kind is list}
    for text in lists["constraints"]:
        relation(text)
    ratios = _texts("ratios", e.get("ratios", {}))
    return Axis(expression(e["sum"]), exponent=e.get("exponent", ""), ratios=ratios,
                floored=e.get("floored", False), **lists)  # fmt: skip


def _listed(key: str, value: list[Any]) -> list[str]:
    if wrong := [x for x in value if not isinstance(x, str)]:
        raise UsageError(f"{key} holds {wrong[0]!r}; it must be a list of texts")
    return value


def _texts(key: str, value: Any) -> dict[str, str]:
    """A table of texts and numbers, as texts."""
    found = table(value, key)
    if wrong := [x for x in found.values() if isinstance(x, bool) or not isinstance(x, str | int)]:
        raise UsageError(f"{key} holds {wrong[0]!r}; it must be a text or a number")
    return {name: str(x) for name, x in found.items()}
