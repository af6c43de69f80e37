"""Reads the published tables (``published/*.toml``) into one list of printed cells; the engine never imports this.

Adding a table: one more TOML file; ``SHAPES`` says how each kind of entry is read.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from scaling_algebra.spec.powers import Power

FOLDER = Path(__file__).parent
SOURCES = {
    "mssp": "How to Scale Mixture-of-Experts: From muP to the Maximally Scale-Stable Parameterization",
    "routers": "Why Routers Freeze: Infinite Width Learning Dynamics for Mixture of Experts",
    "transfer": "Hyperparameter Transfer with Mixture-of-Experts Layers",
    "switch-cluster": "the theory paper on what a switch MoE layer learns from clustered data",
    "moe-laws": "Generalization and Scaling Laws for Mixture-of-Experts Transformers",
}
"""Every paper, by the name ``audit --source`` takes."""
Key = tuple[str, str, str, str, int | None]
"""(source, table, label, quantity, step) of a cell: what errata are listed by."""


@dataclass(frozen=True)
class Printed:
    """One printed cell.

    Attributes:
        source, table, label, notation: where it stands and how it is written there.
        setting: regime, parameterization, optimizer, readout_init, program, gate, ... as far as the source says;
            ``law`` for a cell about a law (``audit/laws.py``).
        quantity: name of the engine's quantity, or ``ROLE.init_std`` and so on for a parameter.
        step: number of updates; None for parameters.
        value: the printed exponent of n (``"-1/2"``, ``"zero"``, ``"vanishes"``, ``">= 1/2"``), or a power of the axes;
            of a law an exponent, powers or numbers.
        times: the printed object is the quantity times this.
        reason: why it cannot be compared; empty if it can.
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
    """Every printed cell, of one source or of all, in file order."""
    cells: list[Printed] = []
    for path in sorted(FOLDER.glob("*.toml")):
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        head = data.get("table", {})
        if head and source in (None, head["source"]):
            for kind, read in SHAPES.items():
                for entry in data.get(kind, []):
                    cells += read(head, entry)
    return cells


def _power(text: Mapping[str, str] | str) -> str | Power:
    """A power of the axes, ``"zero"``, or the printed text where an exponent is a symbol."""
    if isinstance(text, str):
        return text
    try:
        return Power.of({axis: Fraction(e) for axis, e in text.items()})
    except (ValueError, ZeroDivisionError):
        return " ".join(f"{axis}^({e})" for axis, e in text.items())


_NOT_A_SETTING = frozenset(
    ("claim", "notation", "label", "comment", "caption", "section", "id", "source", "power", "exponent", "quantity")
)


def _setting(head: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in {**head, **entry}.items() if k not in _NOT_A_SETTING}


def _rows(head: Mapping[str, Any], row: Mapping[str, Any]) -> Iterator[Printed]:
    """A row of a signal table: one exponent per step; ``none`` where nothing is printed."""
    for t, value in enumerate(row["exponent"]):
        if value != "none":
            setting = _setting(head, {})
            yield Printed(head["source"], head["id"], "", row["printed"][t], setting, row["quantity"], t, value)


def _cells(head: Mapping[str, Any], cell: Mapping[str, Any]) -> Iterator[Printed]:
    """A cell of a table of scalings; Table B.1 holds muP and MSSP in one cell."""
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
    """A labelled equation with one or more claims."""
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
    """A definition of a parameterization: init variances (halved to stds), learning rates and epsilons."""
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
"""Kinds of entries in the files, and how each is read."""
