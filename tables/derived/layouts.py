"""What each table contains: derived cells only. Adding a table: one more entry in ``TABLES``.

Read next: ``signal_tables.py`` (the tables of App. J), ``commands/table.py`` (who asks).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, partial
from itertools import product
from typing import Any

from scaling_algebra.documents import Document, Rendered
from scaling_algebra.documents.blocks import ZERO, Cell, Grid, Label, Marked, Piece, Row, Size
from scaling_algebra.documents.notation import plain, rich
from scaling_algebra.errors import UsageError, named
from scaling_algebra.laws.law import answer, law
from scaling_algebra.solver.demands import Infeasible
from scaling_algebra.solver.derivation import Derivation, derive
from scaling_algebra.spec.axes import REGIMES, Ray
from scaling_algebra.spec.configuration import the_ray
from scaling_algebra.spec.networks.language import Network
from scaling_algebra.spec.networks.library import ARCHITECTURES, MOE_BLOCK
from scaling_algebra.spec.parameterizations import PARAMETERIZATIONS
from scaling_algebra.spec.powers import Power
from scaling_algebra.tables.models.layout import table_models

from .signal_tables import SETTINGS, growth, signal_table, table_rays
from .stable_rates import table_everett

OPTIMIZERS = {"sgd": "SGD", "adam": "Adam"}
QUANTITIES = {
    "init": Label("init std", r"init std $\sigma$"),
    "lr": Label("lr", r"lr $\eta$"),
    "eps": Label("Adam eps", r"Adam $\epsilon$"),
}
KINDS = {"input": "input-like", "hidden": "hidden-like", "readout": "output-like"}
BOTH = ("mup", "mssp")
CERTIFIED = "Derived by exact power counting from the desiderata, every demand checked with a certificate"


def setting(d: Derivation, role: str, what: str) -> Piece | None:
    """Init std, learning rate or epsilon of one tensor."""
    s = d.scaling.tensors[role]
    if what != "init":
        return s.lr if what == "lr" else s.eps
    if s.init_std is None:
        return ZERO
    return Marked(s.init_std, "tied") if role in d.scaling.tied else s.init_std


def exponent(d: Derivation, role: str, letter: str) -> Piece | None:
    """b, c or d of one tensor on the ray."""
    found = d.exponents(role)["bcd".index(letter)]
    return ZERO if letter == "b" and found is None else found


@cache
def table_b1(ray: Ray | None = None) -> Grid:
    """Table B.1 of the MSSP paper: muP | MSSP for SGD and Adam in regimes I to III, or on one other ray.

    Raises:
        Infeasible: neither exists on the ray.
    """
    rays = tuple(REGIMES.values()) if ray is None else (ray,)
    found, missing = {}, {}
    for key in product(rays, OPTIMIZERS, BOTH):
        where, optimizer, name = key
        try:
            found[key] = derive(None, optimizer, name, ray=where)
        except Infeasible as failure:
            if not any(k[:2] == key[:2] for k in found) and name == BOTH[-1]:
                raise
            missing[PARAMETERIZATIONS[name].title] = str(failure)

    tensors = {role: _capital(_tensor(MOE_BLOCK, role)) for role in ("router", "expert_in", "expert_out")}
    rows = _rows(
        tensors, QUANTITIES, lambda role, what: [_both(found, x, role, what) for x in product(rays, OPTIMIZERS)]
    )
    columns = tuple(Label(title) for title in OPTIMIZERS.values())
    titles = {r: f"Regime {r.name}" if r.name else "Ray" for r in rays}
    place = "on the ray of each regime" if ray is None else "on this ray"
    return Grid(
        "b1",
        "Table B.1 of the MSSP paper" + ("" if ray is None else ", on another ray"),
        rf"Init std $\sigma$, learning rate $\eta$ and Adam $\epsilon$ of each MoE tensor under $\mu$P and MSSP. "
        f"{CERTIFIED}, {place}; aggregation multiplier {_multiplier(found.values())}.",
        _heads("tensor", "quantity"),
        tuple((Label(titles[r], f"{titles[r]} ({growth(r)})"), columns) for r in rays),
        rows,
        (
            r"$\mu$P | MSSP where they differ. Axes that do not grow in a regime carry no power.",
            "tied: all experts start from the same values. 0: zero init.",
            r"MSSP has zero init of the readout; every other tensor scales as in $\mu$P.",
        )
        if not missing
        else tuple(f"No {title}: {why}." for title, why in missing.items()),
    )


DEPTH = "1/2"
"""Rate of L in tables with depth: unlike those of the other axes, so that a power of L is told from one of these."""
TRANSFORMER = {
    "embedding": "deep-moe",
    "gain": "deep-moe",
    "hidden": "deep-mlp",
    "bias": "deep-mlp",
    "router": "deep-moe",
    "expert_in": "deep-moe",
    "expert_out": "deep-moe",
    "final_gain": "deep-moe",
    "readout": "deep-moe",
}
"""Rows of Table B.2 of the MSSP paper, and the network each is derived in."""


@cache
def table_b2() -> Grid:
    """Table B.2 of the MSSP paper: MSSP for AdamW on a residual stream whose depth grows, too."""
    rays = [Ray({**r.rates, "L": DEPTH}, r.name) for r in REGIMES.values()]
    asked: Any = {"deep-moe": {"parameterization": "mssp", "readout_init": "maximal"}, "deep-mlp": {}}
    found = {
        name: [derive(None, "adamw", ray=r, architecture=name, **more) for r in rays] for name, more in asked.items()
    }
    tensors = {role: _capital(_tensor(ARCHITECTURES[network], role)) for role, network in TRANSFORMER.items()}
    multipliers = {"aggregation": ("deep-moe", "alpha"), "residual": ("deep-moe", "res")}

    def powers(role: str, what: str) -> list[Cell]:
        return [Cell((setting(d, role, what),)) for d in found[TRANSFORMER[role]]]

    rows = list(_rows(tensors, QUANTITIES, powers))
    for name, (network, symbol) in multipliers.items():
        cells = tuple(Cell((1 / d.scaling.multipliers[symbol],)) for d in found[network])
        rows.append(Row(_capital(Label(name, name)), Label("multiplier"), cells))
    return Grid(
        "b2",
        "Table B.2 of the MSSP paper",
        r"MSSP with AdamW: init std $\sigma$, learning rate $\eta$ and $\epsilon$ of each tensor, and the multipliers, "
        r"on a residual stream of $L$ blocks. "
        rf"{CERTIFIED}, on the ray of each regime with $L \asymp n^{{{DEPTH}}}$.",
        _heads("tensor", "quantity"),
        ((Label(""), tuple(Label(f"Regime {r.name}") for r in rays)),),
        tuple(rows),
        (
            "tied: all experts start from the same values. 0: zero init.",
            r"Hidden and bias are those of a branch of two dense layers; without experts MSSP is $\mu$P.",
            r"On the ray of a regime $K$ grows as $M$ does; where it grows more slowly, the aggregation multiplier is "
            r"$K^{-1}$ and the init std of expert out in regime II is $K^{1/2}$.",
            r"The product of learning rate and weight decay stays the same.",
        ),
    )


@cache
def table_g1() -> Grid:
    """Table G.1 of the MSSP paper, the half without weight multipliers: init std and SGD learning rate by kind."""
    found = {name: derive("I", "sgd", name, architecture="mlp") for name in ("sp", "ntp", "mean-field", "mup")}
    names = {name: _capital(_parameterization(name)) for name in found}
    shown = {what: QUANTITIES[what] for what in ("init", "lr")}
    rows = _rows(names, shown, lambda name, what: [Cell((setting(found[name], role, what),)) for role in KINDS])
    same = [
        _parameterization(name).text for name, d in found.items() if d.scaling.tensors == found["mup"].scaling.tensors
    ]
    return Grid(
        "g1",
        "Table G.1 of the MSSP paper, half without weight multipliers",
        r"Init std $\sigma$ and SGD learning rate $\eta$ in dense MLPs of width $N$. SP, NTP and mean field are "
        r"definitions with weight multipliers; a multiplier $\alpha$ is moved into $\sigma \to \alpha \sigma$ and "
        rf"$\eta \to \alpha^2 \eta$. $\mu$P: {CERTIFIED[0].lower()}{CERTIFIED[1:]}, on the ray $N \asymp n$.",
        _heads("parameterization", "quantity"),
        ((Label(""), tuple(map(Label, KINDS.values()))),),
        rows,
        (
            r"SP has one learning rate $N^{-c}$ for all tensors; $c$ is free and shown as 0.",
            *([f"Equal: {' and '.join(same)}."] if len(same) > 1 else []),
        ),
    )


@cache
def table_g2() -> Grid:
    """Table G.2 of the MSSP paper: b, c, d of muP by kind of tensor."""
    found = {o: derive("I", o, "mup", architecture="mlp") for o in OPTIMIZERS}
    shown = [("b", ("sgd", "adam")), ("c", ("sgd",)), ("c", ("adam",)), ("d", ("adam",))]

    def cell(role: str, letter: str, optimizers: tuple[str, ...]) -> Cell:
        values = tuple(exponent(found[o], role, letter) for o in optimizers)
        return Cell(values, optimizers if len(values) > 1 else ())

    def head(letter: str, optimizers: tuple[str, ...]) -> Label:
        index = OPTIMIZERS[optimizers[0]] if len(optimizers) == 1 else ""
        return Label(f"{letter}_{index}", rf"${letter}_\mathrm{{{index}}}$") if index else Label(letter, f"${letter}$")

    return Grid(
        "g2",
        "Table G.2 of the MSSP paper",
        rf"$\mu$P exponents by kind of tensor in a dense MLP of width $N$: {_convention('bcd')}. {CERTIFIED}, on the "
        r"ray $N \asymp n$.",
        _heads("", "tensor"),
        ((Label(""), tuple(head(*column) for column in shown)),),
        tuple(Row(Label(""), Label(kind), tuple(cell(role, *x) for x in shown)) for role, kind in KINDS.items()),
        ("$b$ holds for SGD and for Adam.",),
        sections=True,
    )


LAYERS = {"input": "1 input", "router": "2 router", "expert": "3 experts", "readout": "4 readout"}
"""Layers as the routers paper numbers them."""
SIGMOID = "routers-sigmoid"
SAME = ("routers-softmax-topk", "routers-softmax-bias")
"""Architectures with the exponents of ``SIGMOID``; the tests derive them, which takes longer than all tables."""


@cache
def table_routers(name: str, optimizer: str) -> Grid:
    """Tables 1 (SGD) and 2 (Adam) of the routers paper: b, c, d of muP by layer."""
    letters = "bcd" if optimizer == "adam" else "bc"

    def cells(architecture: str, role: str) -> tuple[Cell, ...]:
        d = derive("I", optimizer, "mup", architecture=architecture)
        return tuple(Cell((exponent(d, role, x),)) for x in letters)

    return Grid(
        name,
        f"Table {name[-1]} of the routers paper",
        r"$\mu$P exponents of the layers of an MoE block with a fixed number of linear experts and a "
        f"{_gate(SIGMOID)}, {OPTIMIZERS[optimizer]}: {_convention(letters)}. {CERTIFIED}, on the ray "
        rf"$N \asymp n$. The same numbers come out for a {_gate(SAME[0])} and for a {_gate(SAME[1])}.",
        _heads("", "layer"),
        ((Label(""), tuple(Label(x, f"${x}$") for x in letters)),),
        tuple(Row(Label(""), Label(title), cells(SIGMOID, role)) for role, title in LAYERS.items()),
        (
            "With a plain softmax gate the part of the router gradient that all experts share cancels exactly, and no "
            r"$\mu$P was found: with these exponents the router changes by $n^{-1/2}$, and larger ones diverge one "
            "update later.",
        ),
        sections=True,
    )


@cache
def table_transfer1() -> Grid:
    """Table 1 of the HP-transfer paper: init std and Adam learning rate where width, expert width and experts grow."""
    found = {("III", "adam", p): derive("III", "adam", p) for p in BOTH}
    shown = {"init": QUANTITIES["init"], "lr": Label("Adam lr", r"Adam lr $\eta$")}
    tensors = {"router": "router $Q$", "expert_in": "expert up $W^2$", "expert_out": "expert down $W^3$"}
    rows = tuple(
        Row(Label(""), Label(role, title), tuple(_both(found, ("III", "adam"), role, what) for what in shown))
        for role, title in tensors.items()
    )
    return Grid(
        "transfer1",
        "Table 1 of the HP-transfer paper",
        r"Init std $\sigma$ and Adam learning rate $\eta$ of the MoE tensors where width $N$ ($n_\mathrm{embd}$ in the "
        r"paper), expert width $N_e$ ($n_\mathrm{hid}$) and number of experts $M$ ($n_\mathrm{exp}$) grow together, "
        f"{growth(REGIMES['III'])}. {CERTIFIED}; aggregation multiplier {_multiplier(found.values())}.",
        _heads("", "tensor"),
        ((Label(""), tuple(shown.values())),),
        rows,
        (
            r"$\mu$P | MSSP where they differ. tied: all experts start from the same values.",
            "Expert biases are not in the block.",
            r"On this ray all axes grow alike, so that it fixes only the sum of the exponents in a cell.",
        ),
        sections=True,
    )


CONES = {
    "B": ("N=1,N_e=1/2,M=3/2", r"$N_e \leq N \leq M$"),
    "C": ("N=1,N_e=3/4,M=1/2", r"$N_e, M \leq N$"),
    "D": ("N=1,N_e=3/2,M=1/2", r"$M \leq N \leq N_e$"),
    "E": ("N=1,N_e=5/4,M=3/2", r"$N \leq N_e, M$"),
}
"""The cones of M + N_e >= N: a generic ray inside each, and its inequalities."""


@cache
def table_unified() -> Grid:
    """One formula for every way to grow with M + N_e >= N: init std by cone, learning rates and epsilon for all."""
    found = {(c, o): derive(None, o, "mup", ray=ray) for c, (ray, _) in CONES.items() for o in OPTIMIZERS}

    def everywhere(role: str, optimizer: str, what: str) -> Cell:
        return Cell(tuple(setting(found[c, optimizer], role, what) for c in CONES), tuple(CONES))

    def cells(role: str) -> tuple[Cell, ...]:
        stds = tuple(
            Cell(tuple(setting(found[c, o], role, "init") for o in OPTIMIZERS), tuple(OPTIMIZERS)) for c in CONES
        )
        return (*stds, everywhere(role, "sgd", "lr"), everywhere(role, "adam", "lr"), everywhere(role, "adam", "eps"))

    return Grid(
        "unified",
        "The unified table",
        r"$\mu$P of the MoE block on every ray with $M + N_e \geq N$; the four columns of the init std are the cones "
        rf"of the map of rays. {CERTIFIED}, on a generic ray of each cone and on the rays that span it; aggregation "
        f"multiplier {_multiplier(found.values())}.",
        _heads("", "tensor"),
        (
            (Label("init std", r"init std $\sigma$"), tuple(Label(c, text) for c, (_, text) in CONES.items())),
            (Label("SGD"), (QUANTITIES["lr"],)),
            (Label("Adam"), (QUANTITIES["lr"], Label("eps", r"$\epsilon$"))),
        ),
        tuple(Row(Label(""), _tensor(MOE_BLOCK, role), cells(role)) for role in MOE_BLOCK.tensors),
        (
            r"$\sigma$ is the spectral condition min(1, sqrt(rows/columns)) / sqrt(columns), for the router and expert "
            "in of the operator of all experts stacked, for expert out of one expert.",
            r"Regime I lies on the walls $M + N_e = N$ and $N_e = N$, regime II on $M + N_e = N$ and $M = N$, regime "
            r"III on $M = N$ and $N_e = N$: there the columns that meet agree.",
            r"Where $M + N_e < N$ no $\mu$P is found: what meets the demands for two updates diverges at the third "
            "(scalecalc phases; with --prove also a proof at a ray inside).",
        ),
        sections=True,
    )


CORPORA = (("WikiText-103", "1", 32), ("OpenWebText", "1", 45), ("OpenWebText", "3/2", 45), ("TinyStories", "1", 23))
"""Corpora with smoothness beta and intrinsic dimension d, of Table 2 of the paper."""
EXPONENTS = {"alpha_N": r"$\alpha_N$", "alpha_D": r"$\alpha_D$", "alpha_C": r"$\alpha_C$"}


def table_laws2() -> Grid:
    """Exponents of the risk by corpus, exact."""
    rows = []
    for corpus, beta, d in CORPORA:
        found = answer(law("moe-transformer"), values={"beta": beta, "d": d}).exponents
        cells = tuple(Cell((Fraction(str(found[name])),)) for name in EXPONENTS)
        rows.append(Row(Label(corpus), Label(f"beta {beta}, d {d}", rf"$\beta = {beta}$, $d = {d}$"), cells))
    return Grid(
        "laws2",
        "Exponents of the risk of a Mixture-of-Experts Transformer (Table 2 of the MoE-laws paper)",
        r"The risk falls as $N^{-\alpha_N}$ in active parameters, as $n^{-\alpha_D}$ in samples and as $C^{-\alpha_C}$ "
        r"in compute, for targets of smoothness $\beta$ in intrinsic dimension $d$.",
        (Label("corpus", "Corpus"), Label("assumed", "Assumed")),
        ((Label(""), tuple(Label(name, text) for name, text in EXPONENTS.items())),),
        tuple(rows),
        (r"The paper's column $\alpha_N / (1 + \alpha_N)$ is $\alpha_D$ exactly; $\alpha_C$ is not in its table.",),
    )


def _rows(
    groups: Mapping[str, Label], quantities: Mapping[str, Label], cells: Callable[[str, str], Iterable[Cell]]
) -> tuple[Row, ...]:
    """A line for every quantity of every group."""
    return tuple(
        Row(group, label, tuple(cells(name, what)))
        for name, group in groups.items()
        for what, label in quantities.items()
    )


def _both(found: Mapping[tuple[Any, str, str], Derivation], where: tuple[Any, str], role: str, what: str) -> Cell:
    """muP | MSSP, as far as there are both."""
    names = tuple(p for p in BOTH if (*where, p) in found)
    return Cell(tuple(setting(found[*where, p], role, what) for p in names), names)


def _heads(group: str, row: str) -> tuple[Label, Label]:
    return Label(group, group.capitalize()), Label(row, row.capitalize())


def _capital(label: Label) -> Label:
    return Label(label.name, label.text[:1].upper() + label.text[1:])


def _tensor(network: Network, role: str) -> Label:
    symbol = network.tensors[role].symbol
    return Label(f"{role} {symbol}", f"{role.replace('_', ' ')} ${symbol.replace('W', 'W^')}$")


def _parameterization(name: str) -> Label:
    title = PARAMETERIZATIONS[name].title
    return Label(title, title.replace("muP", r"$\mu$P"))


def _convention(letters: str) -> str:
    """``init std sigma ~ n^-b, learning rate ...`` as rich text."""
    sizes = {"b": r"init std $\sigma", "c": r"learning rate $\eta", "d": r"Adam $\epsilon"}
    return ", ".join(rf"{sizes[x]} \asymp n^{{-{x}}}$" for x in letters)


def _multiplier(found: Iterable[Derivation]) -> str:
    """The aggregation multiplier of all these derivations, where the experts grow."""
    powers = dict.fromkeys(1 / d.scaling.alpha for d in found if d.ray["M"])
    return ", ".join(map(rich, powers))


def _gate(architecture: str) -> str:
    """``softmax gate with top-K``."""
    return re.sub(r"^.*experts, | \(.*$", "", ARCHITECTURES[architecture].title)


TABLES: Mapping[str, Callable[[], Grid]] = {
    "b1": table_b1,
    "b2": table_b2,
    "g1": table_g1,
    "g2": table_g2,
    **{name: partial(signal_table, name) for name in SETTINGS},
    "rays": table_rays,
    "routers1": partial(table_routers, "routers1", "sgd"),
    "routers2": partial(table_routers, "routers2", "adam"),
    "transfer1": table_transfer1,
    "unified": table_unified,
    "everett": table_everett,
    "laws2": table_laws2,
    "models": table_models,
}
"""Every table, by name."""


@dataclass(frozen=True, repr=False)
class DerivedTable(Rendered):
    """A published table with every cell derived; ``grid`` holds its rows and columns."""

    grid: Grid

    @property
    def about(self) -> str:
        return f"{self.grid.title}, derived"

    def document(self) -> Document:
        """The table; in JSON exponents are strings, ``"zero"`` is exactly zero, null is nothing."""
        g = self.grid
        group, label = (head.name for head in g.heads)
        rows = [
            {
                **({group: row.group.name} if group else {}),
                label: row.label.name,
                "cells": {name: _record(c) for name, c in zip(g.column_names, row.cells, strict=True)},
            }
            for row in g.rows
        ]
        head = {"table": g.name, "title": g.title, "caption": g.caption, "columns": g.column_names}
        record = {**head, "rows": rows, "footnotes": list(g.footnotes)}
        return Document((replace(g, title=self.about),), record, f"scalecalc table {g.name}")


def table(name: str, *, ray: Ray | Mapping[str, Any] | str | None = None) -> DerivedTable:
    """A published table, derived.

    Args:
        name: b1, g1, g2, j32, ...: one of ``TABLES``.
        ray: of the table b1, instead of regimes I to III.

    Raises:
        UsageError: no such table, or a ray with another table than b1.
        Infeasible: nothing exists on the ray.
    """
    layout = named("table", name, TABLES)
    if ray is None:
        return DerivedTable(layout())
    if layout is not table_b1:
        raise UsageError("--ray goes with the table b1, printed")
    return DerivedTable(table_b1(the_ray(None, ray)))


def _record(cell: Cell) -> object:
    """Named values by name, text as a list of what ties, any other value by itself."""
    shown = [_value(piece) for piece in cell.values]
    if cell.names:
        return dict(zip(cell.names, shown, strict=True))
    return shown if isinstance(cell.values[0], str) else shown[0]


def _value(piece: Piece | None) -> object:
    if isinstance(piece, Power):
        return {"power": piece, "tied": False}
    if isinstance(piece, Marked):
        return {"power": piece.power, "tied": True}
    if isinstance(piece, Size):
        return "zero" if piece.exponent is None else {"exponent": piece.exponent}
    return None if piece is None else plain(piece)
