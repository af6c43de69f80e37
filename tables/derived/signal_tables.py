"""The signal tables of App. J of the MSSP paper: its quantities in its order, and the paper's symbol of each.

Sizes and mechanisms come from the engine; of what is printed only the configuration and the order are read.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cache
from itertools import product

from scaling_algebra.counting.signals import Signal
from scaling_algebra.documents.blocks import ZERO, Cell, Grid, Label, Row, Size
from scaling_algebra.dynamics.analysis import Analysis
from scaling_algebra.dynamics.answers import Answer
from scaling_algebra.explanations.mechanisms import TITLES, mechanisms
from scaling_algebra.explanations.monomials import monomial
from scaling_algebra.solver.derivation import Derivation, derive
from scaling_algebra.spec.axes import REGIMES, Ray
from scaling_algebra.spec.parameterizations import PARAMETERIZATIONS
from scaling_algebra.tables.published.reading import FOLDER

STEPS = (0, 1, 2)
UNDECIDED = "undecided"
GRID = tuple(product(("init", "update"), repeat=2))
PATHWAY = dict(zip(("A4", "A5", "A6", "E"), GRID, strict=True))
"""Modes of W2 and W3 in the pieces of the expert pathway (App. I.3, eq. I.6); 1 and 2 are the modes of W4."""


def _w(mode: str, index: str) -> str:
    return (r"\Delta_t W" if mode == "update" else "W_0") + f"^{{{index}}}"


def _back(mode: str, index: str) -> str:
    return rf"({_w(mode, index)})^\top"


def _piece(letter: str, k: int, second: str, third: str, fourth: str) -> str:
    symbol = f"{letter}_{{{k}}}" if letter == "E" else f"A_{{{letter[1]}.{k}}}"
    factors = f"{_back(second, '2,i')} {_back(third, '3,i')} {_back(fourth, '4')}"
    return rf"${symbol} = (1/M) \sum_i \phi_{{i,t}} {factors}$"


def _overlap(third: str, fourth: str) -> str:
    return rf"\langle {_w(third, '3,i')} h_t^{{2,i}}, {_w(fourth, '4')} \rangle"


SYMBOLS: Mapping[str, str] = {
    "h1": r"$h_t^1 = h_0^1 + \Delta_t h^1$",
    "h1.change": r"change: $\Delta_t h^1$",
    "h1.init": r"init: $h_0^1 = W_0^1 x$",
    "h1.effective": r"effective: $\Delta_t W^1 x$",
    "psi": r"$\psi_t$",
    "psi.change": r"change: $\Delta_t \psi$",
    "psi.effective": r"effective: $\Delta_t Q h_0^1$",
    "psi.propagating": r"propagating: $Q_0 \Delta_t h^1$",
    "phi": r"$\phi_t$",
    "phi.change": r"change: $\Delta_t \phi$",
    "h2": r"$h_t^{2,i}$",
    "h2.change": r"change: $\Delta_t h^{2,i}$",
    "h2.init": r"init: $h_0^{2,i} = W_0^{2,i} h_0^1$",
    "h2.propagating": r"propagating: $W_0^{2,i} \Delta_t h^1$",
    "h2.effective": r"effective: $\Delta_t W^{2,i} h_0^1$",
    "h2.cross": r"cross: $\Delta_t W^{2,i} \Delta_t h^1$",
    "h3i": r"$h_t^{3,i}$",
    "h3i.change": r"change: $\Delta_t h^{3,i}$",
    "h3i.init": r"init: $h_0^{3,i} = W_0^{3,i} h_0^{2,i}$",
    "h3i.propagating": r"propagating: $W_0^{3,i} \Delta_t h^{2,i}$",
    "h3i.effective": r"effective: $\Delta_t W^{3,i} h_0^{2,i}$",
    "h3i.cross": r"cross: $\Delta_t W^{3,i} \Delta_t h^{2,i}$",
    "h3": r"$h_t^3 = (1/M) \sum_i \phi_{i,t} h_t^{3,i}$",
    "h3.A1": r"$A_1 = (1/M) \sum_i \phi_{i,t} W_0^{3,i} h_0^{2,i}$",
    "h3.A2.1": r"$A_{2,1} = (1/M) \sum_i \phi_{i,t} W_0^{3,i} W_0^{2,i} \Delta_t h^1$",
    "h3.A2.2": r"$A_{2,2} = (1/M) \sum_i \phi_{i,t} W_0^{3,i} \Delta_t W^{2,i} h_0^1$",
    "h3.A3": r"$A_3 = (1/M) \sum_i \phi_{i,t} \Delta_t W^{3,i} h_0^{2,i}$",
    "h3.D": r"$D = (1/M) \sum_i \phi_{i,t} \Delta_t W^{3,i} \Delta_t h^{2,i}$",
    "h3.propagating": r"$A_2 = (1/M) \sum_i \phi_{i,t} W_0^{3,i} \Delta_t h^{2,i}$",
    "f": r"$f_t = W_t^4 h_t^3$",
    "f.init": r"init: $W_0^4 h_0^3$",
    "f.propagating": r"propagating: $W_0^4 \Delta_t h^3$",
    "f.effective": r"effective: $\Delta_t W^4 h_0^3$",
    "f.cross": r"cross: $\Delta_t W^4 \Delta_t h^3$",
    "g3": r"$\partial f_t / \partial h_t^3 = (W_t^4)^\top$",
    "g3.init": r"init: $(W_0^4)^\top$",
    "g3.update": r"update: $(\Delta_t W^4)^\top$",
    "g3i": r"$\partial f_t / \partial h_t^{3,i} = (\phi_{i,t}/M) (W_t^4)^\top$",
    "g3i.init": r"init: $(\phi_{i,t}/M) (W_0^4)^\top$",
    "g3i.update": r"update: $(\phi_{i,t}/M) (\Delta_t W^4)^\top$",
    "g2": r"$\partial f_t / \partial h_t^{2,i} = (\phi_{i,t}/M) (W_t^{3,i})^\top (W_t^4)^\top$",
    **{f"g2.{a}-{b}": rf"{a}-{b}: $(\phi_{{i,t}}/M) {_back(a, '3,i')} {_back(b, '4')}$" for a, b in GRID},
    "gphi": r"$\partial f_t / \partial \phi_{i,t} = (1/M) \langle h_t^{3,i}, W_t^4 \rangle$",
    "gphi.*-init": r"init: $(1/M) \langle h_t^{3,i}, W_0^4 \rangle$",
    "gphi.*-update": r"update: $(1/M) \langle h_t^{3,i}, \Delta_t W^4 \rangle$",
    **{f"gphi.{a}-{b}": f"{a}-{b}: $(1/M) {_overlap(a, b)}$" for a, b in GRID},
    "g1.expert": r"$(\partial f_t / \partial h_t^1)_{\mathrm{exp}}$",
    **{
        f"g1.expert.{letter}.{k}": _piece(letter, k, second, third, fourth)
        for letter, (second, third) in PATHWAY.items()
        for k, fourth in enumerate(("init", "update"), 1)
    },
    "g1.router": r"$(\partial f_t / \partial h_t^1)_{\mathrm{router}} = (1/M) Q_t^\top v_t$",
    "g1.router.Q0": r"init: $(1/M) Q_0^\top v_t$",
    "g1.router.dQ": r"update: $(1/M) (\Delta_t Q)^\top v_t$",
    **{
        f"g1.router.{name}.{a}-{b}": rf"$(1/M) {q} [\dot\phi_{{i,t}} {_overlap(a, b)}]_i$"
        for name, q in (("Q0", r"Q_0^\top"), ("dQ", r"(\Delta_t Q)^\top"))
        for a, b in GRID
    },
    "g1": (
        r"$\partial f_t / \partial h_t^1 = (\partial f_t / \partial h_t^1)_{\mathrm{exp}}"
        r" + (\partial f_t / \partial h_t^1)_{\mathrm{router}}$"
    ),
    "dW1": r"$\Delta_t W^1$",
    "dQ": r"$\Delta_t Q$",
    "dW2": r"$\Delta_t W^{2,i}$",
    "dW3": r"$\Delta_t W^{3,i}$",
    "dW4": r"$\Delta_t W^4$",
}
"""Symbol of each row, as in App. J; ``*`` in a name stands for both ``init`` and ``update``."""
WHOLES = ("g1.expert", "g1.router")
"""Quantities that are no part of the row above although their name has a dot."""

UPDATES = ("dW1", "dQ", "dW2", "dW3", "dW4")
"""Added to the printed quantities."""
PARTS = {
    r"(h3|f)(\..*)?": "Forward, aggregation",
    r"g1\.expert.*": "Backward, expert pathway",
    r"g1\.router.*": "Backward, router pathway",
    "g1": "Backward, total",
    "g.*": "Backward",
    "d.*": "Updates",
    ".*": "Forward",
}
"""Section of a quantity: that of the first pattern that fits."""
NAMES = ("j32", "j34", "j43", "j45")
WHERE = r"$v_t = [\dot\phi_{i,t} \langle h_t^{3,i}, W_t^4 \rangle]_i$; $\Delta_t$ is the change since $t = 0$."
NOTES = {"j45": ("The paper calls $A_3$ of this table $A_2$ and $A_2$ of this table $A_3$.",)}


@cache
def signal_table(name: str) -> Grid:
    """Size of every quantity at t = 0, 1, 2 and the mechanism behind it: App. J.3.2, J.3.4, J.4.3 or J.4.5."""
    printed = tomllib.loads((FOLDER / f"mssp_{name}.toml").read_text("utf-8"))
    regime, parameterization, readout = (printed["table"][k] for k in ("regime", "parameterization", "readout_init"))
    d = derive(regime, "sgd", parameterization, readout_init=readout)
    look = d.analysis()
    rows = tuple(_row(what, _cells(look, what)) for what in (*(row["quantity"] for row in printed["row"]), *UPDATES))
    steps = tuple(Label(f"t={t}", f"$t = {t}$") for t in STEPS)
    goal = PARAMETERIZATIONS[parameterization].title.replace("muP", r"$\mu$P")
    return Grid(
        name,
        f"Signal table of {printed['table']['section']} of the MSSP paper",
        f"Entry sizes after $t$ updates of SGD under {goal}, readout init {readout}, on the ray of regime {regime} "
        f"({growth(REGIMES[regime])}), in the minimal MoE block. Derived by exact power counting from the "
        f"parameterization that the desiderata of {goal} give; every exponent is certified.",
        (Label("part"), Label("quantity", "Quantity")),
        ((Label(""), (*steps, Label("mechanism", "Mechanism"))),),
        rows,
        (*_legend(rows), *_starts(d), *NOTES.get(name, ())),
        sections=True,
    )


def growth(ray: Ray) -> str:
    """The axes that grow on a ray, each with its power of n, as rich text."""
    rates: dict[Fraction, list[str]] = {}
    for axis in ("N", "N_e", "M", "K"):
        if ray[axis]:
            rates.setdefault(ray[axis], []).append(axis)
    powers = {rate: "n" if rate == 1 else f"n^{{{rate}}}" for rate in rates}
    return ", ".join(rf"${', '.join(axes)} \asymp {powers[rate]}$" for rate, axes in rates.items())


def _row(what: str, cells: tuple[Cell, ...]) -> Row:
    part = next(part for pattern, part in PARTS.items() if re.fullmatch(pattern, what))
    return Row(Label(part), Label(what, SYMBOLS[what]), cells, "." in what and what not in WHOLES)


def _cells(look: Analysis, what: str) -> tuple[Cell, ...]:
    names = [what.replace("*", mode) for mode in ("init", "update")] if "*" in what else [what]
    answers = [[look(name, t) for name in names] for t in STEPS]
    top = _size(answers[-1])
    leading = [name for name, a in zip(names, answers[-1], strict=True) if _size([a]) == top]
    if top in (ZERO, UNDECIDED):
        leading = []
    reasons = dict.fromkeys(m for name in leading for m in _mechanisms(look, name, STEPS[-1]))
    return (*(Cell((_size(row),)) for row in answers), Cell(tuple(reasons) or (None,)))


def _size(answers: Sequence[Answer]) -> Size | str:
    """A sum is as large as its largest part."""
    if not all(a.decided for a in answers):
        return UNDECIDED
    return Size(max((a.exponent for a in answers if a.exponent is not None), default=None))


def _mechanisms(look: Analysis, name: str, t: int) -> list[str]:
    """Mechanisms of every leading monomial, those of one monomial joined, the fewest first: ``["CLT", "A+rank-1"]``.

    None for an update, which is an outer product.
    """
    run = look.run(name, t)
    read = look.table[name].read(run, t)
    if not isinstance(read, Signal):
        return []
    order = list(TITLES)
    several = (mechanisms(monomial(run.algebra, read, kernel)) for kernel in run.algebra.leading(read))
    ranked = {tuple(sorted({order.index(m.letter) for m in one})) for one in several}
    return ["+".join(order[k] for k in ranks) for ranks in sorted(ranked, key=lambda ranks: (len(ranks), ranks))]


def _legend(rows: tuple[Row, ...]) -> tuple[str, ...]:
    used = {x for row in rows for shown in row.cells[-1].values if shown for x in str(shown).split("+")}
    letters = "; ".join(f"{letter}: {title}" for letter, title in TITLES.items() if letter in used)
    return (
        WHERE,
        "0: exactly zero.",
        f"Mechanism: what the leading monomials at $t = {STEPS[-1]}$ do (MSSP paper, App. I.7). {letters}. "
        "Plus signs join what one monomial does; monomials that tie are separated by or, and of those with the same "
        "unmatched tensors one is named.",
        "The updates are added to what the paper prints; their mechanisms are those of their gradient and their input.",
    )


def _starts(d: Derivation) -> list[str]:
    """Tensors that start at zero or tied, from the derivation."""
    symbols = {role: t.symbol.replace("W", "W^") for role, t in d.network.tensors.items()}
    zero = [f"${symbols[role]}_0 = 0$" for role, s in d.scaling.tensors.items() if s.init_std is None]
    tied = [f"${symbols[role]}$" for role in d.scaling.tied]
    notes = [f"Zero init: {', '.join(zero)}."] if zero else []
    return notes + ([f"Tied: all experts start from the same {' and '.join(tied)}."] if tied else [])
