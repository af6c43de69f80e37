"""Derives the signal tables of App. J of the MSSP paper: every size and mechanism.

Only the configuration and the left column are read from the published table.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from functools import cache

from scaling_algebra.counting.signals import Signal
from scaling_algebra.documents.blocks import ZERO, Cell, Grid, Label, Row, Size
from scaling_algebra.dynamics.analysis import Analysis
from scaling_algebra.dynamics.brackets import Bracket
from scaling_algebra.explanations.mechanisms import TITLES, mechanisms
from scaling_algebra.explanations.monomials import monomial
from scaling_algebra.files import load_shipped_toml
from scaling_algebra.solver.derivation import Derivation, derive
from scaling_algebra.spec.axes import REGIMES, Ray
from scaling_algebra.spec.parameterizations import PARAMETERIZATIONS
from scaling_algebra.tables import published

from .texts import read_texts

STEPS = (0, 1, 2)
UNDECIDED = "undecided"
WHOLES = ("g1.expert", "g1.router")
"""Quantities that are not part of the row above although their name has a dot."""

UPDATES = {"dW1": "W^1", "dQ": "Q", "dW2": "W^{2,i}", "dW3": "W^{3,i}", "dW4": "W^4"}
"""Quantities added to the printed ones."""
PARTS = {
    r"(h3|f)(\..*)?": "Forward, aggregation",
    r"g1\.expert.*": "Backward, expert pathway",
    r"g1\.router.*": "Backward, router pathway",
    "g1": "Backward, total",
    "g.*": "Backward",
    "d.*": "Updates",
    ".*": "Forward",
}
"""Maps patterns of quantities to sections of the table; the first match applies."""
NAMES = ("j32", "j34", "j43", "j45")


@cache
def signal_table(name: str) -> Grid:
    """Derives the size of every quantity at t = 0, 1, 2, and its mechanism: App. J.3.2, J.3.4, J.4.3 or J.4.5."""
    printed = load_shipped_toml(published.__name__, f"mssp_{name}.toml")
    regime, parameterization, readout = (printed["table"][k] for k in ("regime", "parameterization", "readout_init"))
    d = derive(regime, "sgd", parameterization, readout_init=readout)
    look = d.analysis()
    symbols = [(row["quantity"], row["notation"].replace(r"\text", r"\mathrm")) for row in printed["row"]]
    symbols += [(name, rf"\Delta_t {tensor}") for name, tensor in UPDATES.items()]
    rows = tuple(_row(what, symbol, _cells(look, what)) for what, symbol in symbols)
    steps = tuple(Label(f"t={t}", f"$t = {t}$") for t in STEPS)
    used = {x for row in rows for shown in row.cells[-1].values if shown for x in str(shown).split("+")}
    return Grid(
        name,
        **read_texts(
            "signals",
            *_starts(d),
            section=printed["table"]["section"],
            goal=PARAMETERIZATIONS[parameterization].title.replace("muP", r"$\mu$P"),
            readout=readout,
            regime=regime,
            growth=growth(REGIMES[regime]),
            last=str(STEPS[-1]),
            letters="; ".join(f"{letter}: {title}" for letter, title in TITLES.items() if letter in used),
        ),
        heads=(Label("part"), Label("quantity", "Quantity")),
        columns=((Label(""), (*steps, Label("mechanism", "Mechanism"))),),
        rows=rows,
        sections=True,
    )


def growth(ray: Ray) -> str:
    """Writes the axes that grow on a ray, each with its power of n, as rich text."""
    rates: dict[Fraction, list[str]] = {}
    for axis in ("N", "N_e", "M", "K"):
        if ray[axis]:
            rates.setdefault(ray[axis], []).append(axis)
    powers = {rate: "n" if rate == 1 else f"n^{{{rate}}}" for rate in rates}
    return ", ".join(rf"${', '.join(axes)} \asymp {powers[rate]}$" for rate, axes in rates.items())


def _row(what: str, symbol: str, cells: tuple[Cell, ...]) -> Row:
    part = next(part for pattern, part in PARTS.items() if re.fullmatch(pattern, what))
    label = Label(what, symbol if "$" in symbol else f"${symbol}$")
    return Row(Label(part), label, cells, "." in what and what not in WHOLES)


def _cells(look: Analysis, what: str) -> tuple[Cell, ...]:
    names = [what.replace("*", mode) for mode in ("init", "update")] if "*" in what else [what]
    answers = [[look(name, t) for name in names] for t in STEPS]
    top = _size(answers[-1])
    leading = [name for name, a in zip(names, answers[-1], strict=True) if _size([a]) == top]
    if top in (ZERO, UNDECIDED):
        leading = []
    reasons = dict.fromkeys(m for name in leading for m in _mechanisms(look, name, STEPS[-1]))
    return (*(Cell((_size(row),)) for row in answers), Cell(tuple(reasons) or (None,)))


def _size(answers: Sequence[Bracket]) -> Size | str:
    """Returns the size of a sum of parts: the largest exponent of the parts, or ``UNDECIDED`` if one of them is
    undecided.
    """
    if not all(a.decided for a in answers):
        return UNDECIDED
    return Size(max((a.exponent for a in answers if a.exponent is not None), default=None))


def _mechanisms(look: Analysis, name: str, t: int) -> list[str]:
    """Names, for each leading monomial, the mechanisms that act in it, such as ``["CLT", "A+rank-1"]``: the monomials
    with the fewest mechanisms come first.

    Returns [] if the quantity is an update, which is not explained by mechanisms.
    """
    run = look.run(name, t)
    read = look.table[name].read(run, t)
    if not isinstance(read, Signal):
        return []
    order = list(TITLES)
    several = (mechanisms(monomial(run.algebra, read, kernel)) for kernel in run.algebra.find_leading(read))
    ranked = {tuple(sorted({order.index(m.letter) for m in one})) for one in several}
    return ["+".join(order[k] for k in ranks) for ranks in sorted(ranked, key=lambda ranks: (len(ranks), ranks))]


def _starts(d: Derivation) -> list[str]:
    """Writes the footnotes of a table which say what tensors start at zero, and what tensors start with the same
    values for all experts.
    """
    symbols = {role: t.symbol.replace("W", "W^") for role, t in d.network.tensors.items()}
    zero = [f"${symbols[role]}_0 = 0$" for role, s in d.scaling.tensors.items() if s.init_std is None]
    tied = [f"${symbols[role]}$" for role in d.scaling.tied]
    notes = [f"Zero init: {', '.join(zero)}."] if zero else []
    return notes + ([f"Tied: all experts start from the same {' and '.join(tied)}."] if tied else [])
