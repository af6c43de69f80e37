"""What each table contains: derived cells only. Adding a table: one more entry in ``TABLES``.

Read next: ``render.py`` (formats), ``command.py`` (the command line).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from scaling_algebra.api import Derivation, derive
from scaling_algebra.axes import REGIMES
from scaling_algebra.exponents import Power
from scaling_algebra.programs import MOE_BLOCK

ROLES = ("router", "expert_in", "expert_out")
OPTIMIZERS = ("sgd", "adam")
QUANTITIES = {"init": "init std", "lr": "lr", "eps": "Adam eps"}


@dataclass(frozen=True)
class Entry:
    """One scaling: a power, zero, or no such setting; possibly shared by the experts at initialisation."""

    power: Power | None
    zero: bool = False
    tied: bool = False


@dataclass(frozen=True)
class Cell:
    """What muP and MSSP say; printed once where they agree."""

    mup: Entry
    mssp: Entry

    @property
    def entries(self) -> tuple[Entry, ...]:
        return (self.mup,) if self.mup == self.mssp else (self.mup, self.mssp)


@dataclass(frozen=True)
class Table:
    """Grouped columns over labelled rows.

    Attributes:
        groups: (title, columns) of the column groups.
        rows: (group label, row label, cells).
        footnotes: printed below.
    """

    name: str
    caption: str
    groups: tuple[tuple[str, tuple[str, ...]], ...]
    rows: tuple[tuple[str, str, tuple[Cell, ...]], ...]
    footnotes: tuple[str, ...]


def entry(d: Derivation, role: str, what: str) -> Entry:
    """One setting of one tensor as a table entry."""
    s = d.scaling.tensors[role]
    if what == "init":
        return Entry(s.init_std, zero=s.init_std is None, tied=role in d.scaling.tied)
    return Entry(s.lr if what == "lr" else s.eps)


def table_b1() -> Table:
    """Table B.1 of the MSSP paper: muP | MSSP for SGD and Adam in regimes I to III, every cell derived."""
    found = {(r, o, p): derive(r, o, p) for r in REGIMES for o in OPTIMIZERS for p in ("mup", "mssp")}
    rows = []
    for role in ROLES:
        for what, label in QUANTITIES.items():
            cells = tuple(
                Cell(entry(found[r, o, "mup"], role, what), entry(found[r, o, "mssp"], role, what))
                for r in REGIMES
                for o in OPTIMIZERS
            )
            rows.append((f"{role} {MOE_BLOCK.tensors[role].symbol}", label, cells))
    groups = tuple((_regime_title(name), ("SGD", "Adam")) for name in REGIMES)
    return Table(
        "b1",
        "Init std, learning rate and Adam epsilon of each MoE tensor, derived by exact power counting from the muP and "
        "MSSP desiderata; aggregation multiplier 1/M.",
        groups,
        tuple(rows),
        (
            "muP | MSSP where they differ. Axes that do not grow in a regime carry no power.",
            "tied: all experts start from the same values. 0: zero init.",
            "Init std of MSSP readout is zero; every other tensor scales as in muP.",
        ),
    )


def _regime_title(name: str) -> str:
    ray = REGIMES[name]
    return f"Regime {name} ({', '.join(a for a in ('N', 'N_e', 'M', 'K') if ray[a])} ~ n)"


TABLES: Mapping[str, Callable[[], Table]] = {"b1": table_b1}
"""Every table, by name."""
