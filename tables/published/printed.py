"""Reads the published tables (``published/*.toml``) into one list of printed cells. The engine never imports this
module.

To add a table, add a TOML file. ``SHAPES`` maps each kind of entry (``row``, ``cell``, ``equation``, ``definition``) to
the function that reads it.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from scaling_algebra.errors import UsageError, quote_value, unknown_name_error
from scaling_algebra.files import parse_toml, read_text
from scaling_algebra.limits import parse_rational
from scaling_algebra.spec.given import SETTINGS
from scaling_algebra.spec.powers import Power

FOLDER = Path(__file__).parent
SOURCES = {
    "mssp": "How to Scale Mixture-of-Experts: From muP to the Maximally Scale-Stable Parameterization",
    "routers": "Why Routers Freeze: Infinite Width Learning Dynamics for Mixture of Experts",
    "transfer": "Hyperparameter Transfer with Mixture-of-Experts Layers",
    "switch-cluster": "the theory paper on what a switch MoE layer learns from clustered data",
    "moe-laws": "Generalization and Scaling Laws for Mixture-of-Experts Transformers",
}
"""Titles of the papers, by the name that ``audit --source`` takes."""
Key = tuple[str, str, str, str, int | None]
"""Identifies a cell: (source, table, label, quantity, step). Errata are listed by it."""


@dataclass(frozen=True)
class Printed:
    """One value printed in a published table, with the configuration that it is about.

    Attributes:
        source: the paper.
        table: the table in the paper.
        label: the row or the equation.
        notation: the formula in the paper for the value or its quantity, in LaTeX, perhaps shortened.
        setting: what the source states of regime, parameterization, optimizer, readout_init, program (the network),
            gate, ...; ``law`` for a cell about a law (``audit/laws.py``).
        quantity: name of the engine's quantity; for a parameter ``ROLE.init_std``, ``ROLE.lr`` or ``ROLE.eps``.
        step: number of updates; None for parameters.
        value: the printed exponent of n (``"-1/2"``, ``"zero"``, ``"vanishes"``, ``">= 1/2"``), or a power of the axes;
            for a law an exponent, powers or numbers.
        times: power of the axes by which the paper multiplies the quantity before it states the size.
        reason: why the cell cannot be compared; "" if it can.
    """

    source: str
    table: str
    label: str
    notation: str
    setting: Mapping[str, Any]
    quantity: str
    step: int | None
    value: str | Power
    times: Power = field(default_factory=Power)
    reason: str = ""

    @property
    def key(self) -> Key:
        return self.source, self.table, self.label, self.quantity, self.step


def load(source: str | None = None) -> list[Printed]:
    """Returns every printed cell of one paper, or of all papers, in the order of the files."""
    cells: list[Printed] = []
    for path in sorted(FOLDER.glob("*.toml")):
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        head = data.get("table", {})
        if head and source in (None, head["source"]):
            for kind, read in SHAPES.items():
                for entry in data.get(kind, []):
                    cells += read(head, entry)
    return cells


SCHEMA = (FOLDER.parent / "audit" / "schema.toml").read_text("utf-8")
"""Example of a table that ``audit`` reads."""
NEEDED = {"cell": ("role", "quantity"), "row": ("quantity", "exponent")}
"""Required keys of each kind of entry in a user's table. Published tables also have other kinds of entries."""
KEYS: Mapping[str, Any] = {
    **dict.fromkeys(("id", "source", "regime", "optimizer", "parameterization", "program", "readout_init"), str),
    **dict.fromkeys(("role", "quantity", "notation", "label", "comment"), str),
    **{"power": dict | str, "exponent": list | str, "printed": list, "tied": bool},
}
"""Keys that an entry may have, and their types."""
WORD = re.compile(r"[A-Za-z]\w*")
MOST = 2**20
"""Maximum number of bytes of a table."""


def read(path: Path) -> list[Printed]:
    """Reads the cells of a user's table, which has the form of the example ``SCHEMA``.

    Raises:
        UsageError: the file cannot be read, or an entry has another form. The message begins with the file name.
    """
    form = "; audit --schema prints the form"
    text = read_text(path, "give a TOML file with a table (audit --schema prints one)", MOST)
    try:
        data = parse_toml(text)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    if unknown := next((k for k in data if k not in ("table", *NEEDED)), ""):
        raise UsageError(f"{path}: {unknown} is not allowed; write [table], [[cell]] or [[row]]{form}")
    head = {"id": path.stem, "source": path.name, **_record(data.get("table", {}), f"{path}: [table]", form)}
    cells = []
    for kind, needed in NEEDED.items():
        for k, entry in enumerate(data.get(kind, []) if isinstance(data.get(kind, []), list) else [None], 1):
            place = f"{path}: [[{kind}]] {k}"
            full = {"notation": "", "label": "", **_record(entry, place, form)}
            if lacks := next((x for x in needed if x not in full), ""):
                raise UsageError(f"{place} has no {lacks}{form}")
            if kind == "row":
                full["printed"] = full.get("printed", full["exponent"])
            elif not {"power", "exponent"} & set(full):
                raise UsageError(f"{place} has neither power nor exponent{form}")
            elif isinstance(power := full.get("power"), str) and power != "zero":
                full["power"] = _parse_power(power, place)
            try:
                listed = isinstance(full.get("exponent"), list)
                found = list(SHAPES[kind](head, full)) if listed is (kind == "row") else []
                readable = all(not isinstance(c.value, str) or _is_readable(c.value) for c in found)
            except (ValueError, TypeError, LookupError, AttributeError):
                found, readable = [], False
            if not (found and readable):
                raise UsageError(f"{place} cannot be read; write exponents as texts such as '-1/2' or 'zero'{form}")
            cells += found
    if not cells:
        raise UsageError(f"{path} has no cells{form}")
    return cells


def _record(entry: object, place: str, form: str) -> dict[str, Any]:
    """Checks that an entry of a user's table is a TOML table with known keys and values of the right types.

    Args:
        entry: the entry as parsed from TOML.
        place: the file and the entry, such as ``mine.toml: [[cell]] 2``, which begins the error message.
        form: end of the error message.

    Returns:
        The entry itself.

    Raises:
        UsageError: it is not a table, or has an unknown key or a value of the wrong type.
    """
    if not isinstance(entry, dict):
        raise UsageError(f"{place} is {quote_value(entry)}; it must be a table{form}")
    for key, value in entry.items():
        if key not in KEYS:
            raise UsageError(f"{place}: {unknown_name_error('key', key, KEYS)}{form}")
        parts = value if isinstance(value, list) else value.values() if isinstance(value, dict) else [value]
        if not isinstance(value, KEYS[key]) or not all(isinstance(x, str | bool) for x in parts):
            raise UsageError(f"{place}: {key} is {quote_value(value)}; write numbers as texts, such as '-1/2'{form}")
    if entry.get("role") and entry.get("quantity", "lr") not in (*SETTINGS, "init_std", "multiplier"):
        raise UsageError(
            f"{place}: {unknown_name_error('quantity', entry['quantity'], ('init_std', 'lr', 'eps'))}{form}"
        )
    return entry


def _parse_power(text: str, place: str) -> dict[str, str]:
    """Parses a power of axes with any names: ``"N^-1 M"`` becomes ``{"N": "-1", "M": "1"}``."""
    try:
        return {axis: str(e) for axis, e in Power.parse(text, tuple(dict.fromkeys(WORD.findall(text)))).terms}
    except UsageError as error:
        raise UsageError(f'{place}: {error}; or write a table such as {{ N = "-1" }}') from None


def _is_readable(value: str) -> bool:
    """Tests whether a text is a printed exponent: a rational number, a bound such as ``>= 1/2``, ``zero`` or
    ``vanishes``."""
    number = value.rpartition(" ")[2]
    return value in ("zero", "vanishes") or bool(re.fullmatch(r"-?\d{1,9}(/[1-9]\d{0,8})?", number))


def _power(text: Mapping[str, str] | str) -> str | Power:
    """Converts exponents by axis to a power. A text is returned unchanged; symbolic exponents are returned as text."""
    if isinstance(text, str):
        return text
    try:
        return Power.of({axis: parse_rational(e) for axis, e in text.items()})
    except ValueError:
        return " ".join(f"{axis}^({e})" for axis, e in text.items())


_NOT_A_SETTING = frozenset(
    ("claim", "notation", "label", "comment", "caption", "section", "id", "source", "power", "exponent", "quantity")
)


def _setting(head: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in {**head, **entry}.items() if k not in _NOT_A_SETTING}


def _rows(head: Mapping[str, Any], row: Mapping[str, Any]) -> Iterator[Printed]:
    """Reads a row of a signal table, which has one exponent for each step; steps with ``none`` are skipped.

    ``head`` has the keys that all rows of the table share, such as the regime.
    """
    for t, value in enumerate(row["exponent"]):
        if value != "none":
            setting = _setting(head, {})
            yield Printed(head["source"], head["id"], "", row["printed"][t], setting, row["quantity"], t, value)


def _cells(head: Mapping[str, Any], cell: Mapping[str, Any]) -> Iterator[Printed]:
    """Reads a cell of a table of parameters. A cell of Table B.1 has two values, one for muP and one for MSSP.

    ``head`` has the keys that all cells of the table share, such as the source.
    """
    table, label = cell.get("table", head["id"]), cell.get("printed_row", cell.get("label", ""))
    names = [n for n in ("mup", "mssp") if n in cell]
    for name in names or [""]:
        value = cell[name] if name else cell.get("power", cell.get("exponent", ""))
        setting = _setting(head, {k: v for k, v in cell.items() if k not in ("mup", "mssp")})
        if name:
            setting["parameterization"] = name
            if name == "mup":
                setting.pop("tied", None)
        quantity = f"{cell['role']}.{cell['quantity']}"
        reason = cell.get("reason", "")
        yield Printed(
            head["source"], table, label, cell["notation"], setting, quantity, None, _power(value), reason=reason
        )


def _equations(head: Mapping[str, Any], equation: Mapping[str, Any]) -> Iterator[Printed]:
    """Reads a numbered equation of a paper, and returns a printed value for each claim that it makes.

    ``head`` has the keys that all equations of the paper share, such as the source.
    """
    for claim in equation.get("claim", [equation]):
        setting = _setting(head, {**equation, "law": claim["law"]} if "law" in claim else equation)
        quantity = claim.get("quantity", claim.get("object", ""))
        times = _power(claim.get("times", {}))
        assert isinstance(times, Power)
        value, step = claim.get("exponent", claim.get("value", claim.get("printed", ""))), claim.get("step")
        stepless = "printed without a step" if step is None and "law" not in claim else ""
        reason = claim.get("reason", "") or stepless
        where = (head["source"], head["id"], equation["label"], equation["notation"])
        yield Printed(*where, setting, quantity, step, value, times, reason)


def _definitions(head: Mapping[str, Any], entry: Mapping[str, Any]) -> Iterator[Printed]:
    """Reads a definition of a parameterization: init variances (converted to stds), learning rates and epsilons.

    ``head`` has the keys that all definitions of the paper share, such as the source.
    """
    for what, optimizer, quantity in (
        ("init_variance", "sgd", "init_std"),
        ("lr_sgd", "sgd", "lr"),
        ("lr_adam", "adam", "lr"),
        ("eps_adam", "adam", "eps"),
    ):
        for role, text in entry[what].items():
            setting = {k: entry[k] for k in ("regime", "parameterization")}
            setting |= {"optimizer": optimizer, "readout_init": "maximal"}
            if what == "init_variance" and role in entry.get("tied", ()):
                setting["tied"] = True
            value = _power(text)
            if what == "init_variance" and isinstance(value, Power):
                value = value ** Fraction(1, 2)
            notation = entry["notation"][what].get(role, "")
            label = f"Definition {entry['id']}"
            yield Printed(head["source"], head["id"], label, notation, setting, f"{role}.{quantity}", None, value)


SHAPES: dict[str, Callable[[Mapping[str, Any], Mapping[str, Any]], Iterator[Printed]]] = {
    "row": _rows,
    "cell": _cells,
    "equation": _equations,
    "definition": _definitions,
}
"""Reader of each kind of entry."""
