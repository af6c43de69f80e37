"""Derives the tables of parameterizations: init std, learning rate and epsilon, or the exponents b, c and d."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import product
from typing import Any

from scaling_algebra.documents.blocks import ZERO, Cell, Grid, Label, Piece, Row
from scaling_algebra.documents.notation import rich
from scaling_algebra.solver.derivation import Derivation, derive
from scaling_algebra.solver.presentation import powers
from scaling_algebra.spec.axes import REGIMES, Ray
from scaling_algebra.spec.networks.language import Network
from scaling_algebra.spec.networks.library import ARCHITECTURES, MOE_BLOCK
from scaling_algebra.spec.parameterizations import PARAMETERIZATIONS

from .signal_tables import growth
from .texts import read_texts

OPTIMIZERS = {"sgd": "SGD", "adam": "Adam"}
QUANTITIES = {
    "init": Label("init std", r"init std $\sigma$"),
    "lr": Label("lr", r"lr $\eta$"),
    "eps": Label("Adam eps", r"Adam $\epsilon$"),
}
KINDS = {"input": "input-like", "hidden": "hidden-like", "readout": "output-like"}
BOTH = ("mup", "mssp")


def setting(d: Derivation, role: str, what: str) -> Piece | None:
    """Returns a setting of one tensor (``what`` of ``QUANTITIES``: init std, learning rate or epsilon); None if it has
    none.
    """
    tensors = {name: dict(zip(QUANTITIES, row, strict=True)) for name, *row in powers(d.scaling)}
    return tensors[role][what]


def exponent(d: Derivation, role: str, letter: str) -> Piece | None:
    """Returns the exponent of one tensor on the ray: b (init std; ``ZERO`` for zero init), c (learning rate) or d
    (epsilon). None if it has no such setting.
    """
    value = d.exponents(role)["bcd".index(letter)]
    return ZERO if letter == "b" and value is None else value


@cache
def table_b1() -> Grid:
    """Derives Table B.1 of the MSSP paper: muP and MSSP for SGD and Adam in regimes I to III."""
    columns = tuple(product(REGIMES, OPTIMIZERS))
    derivations = {(*where, name): derive(*where, name) for where in columns for name in BOTH}
    tensors = {role: _capital(_tensor(MOE_BLOCK, role)) for role in ("router", "expert_in", "expert_out")}
    titles = tuple(Label(title) for title in OPTIMIZERS.values())
    return Grid(
        "b1",
        **read_texts("b1", multiplier=_multiplier(derivations.values())),
        heads=heads("tensor", "quantity"),
        columns=tuple((Label(f"Regime {r}", f"Regime {r} ({growth(ray)})"), titles) for r, ray in REGIMES.items()),
        rows=_rows(tensors, QUANTITIES, lambda role, what: [_both(derivations, x, role, what) for x in columns]),
    )


DEPTH = "1/2"
"""Rate of L in tables with depth. It differs from the other rates, so that a power of L cannot be mistaken for one
of theirs."""
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
"""Rows of Table B.2 of the MSSP paper, and the network in which each is derived."""


@cache
def table_b2() -> Grid:
    """Derives Table B.2 of the MSSP paper: MSSP for AdamW on a residual stream whose depth grows, too."""
    rays = [Ray({**r.rates, "L": DEPTH}, r.name) for r in REGIMES.values()]
    options: Any = {"deep-moe": {"parameterization": "mssp", "readout_init": "maximal"}, "deep-mlp": {}}
    derivations = {
        name: [derive(None, "adamw", ray=r, architecture=name, **more) for r in rays] for name, more in options.items()
    }
    tensors = {role: _capital(_tensor(ARCHITECTURES[network], role)) for role, network in TRANSFORMER.items()}
    multipliers = {"aggregation": ("deep-moe", "alpha"), "residual": ("deep-moe", "res")}

    def powers(role: str, what: str) -> list[Cell]:
        return [Cell((setting(d, role, what),)) for d in derivations[TRANSFORMER[role]]]

    rows = list(_rows(tensors, QUANTITIES, powers))
    for name, (network, symbol) in multipliers.items():
        cells = tuple(Cell((1 / d.scaling.multipliers[symbol],)) for d in derivations[network])
        rows.append(Row(_capital(Label(name, name)), Label("multiplier"), cells))
    return Grid(
        "b2",
        **read_texts("b2", depth=DEPTH),
        heads=heads("tensor", "quantity"),
        columns=((Label(""), tuple(Label(f"Regime {r.name}") for r in rays)),),
        rows=tuple(rows),
    )


@cache
def table_g1() -> Grid:
    """Derives the half of Table G.1 of the MSSP paper without weight multipliers: init std and SGD rate by kind of
    tensor."""
    derivations = {name: derive("I", "sgd", name, architecture="mlp") for name in ("sp", "ntp", "mean-field", "mup")}
    names = {name: _capital(_parameterization(name)) for name in derivations}
    shown = {what: QUANTITIES[what] for what in ("init", "lr")}
    rows = _rows(names, shown, lambda name, what: [Cell((setting(derivations[name], role, what),)) for role in KINDS])
    same = [
        _parameterization(name).text
        for name, d in derivations.items()
        if d.scaling.tensors == derivations["mup"].scaling.tensors
    ]
    return Grid(
        "g1",
        **read_texts("g1", *([f"Equal: {' and '.join(same)}."] if len(same) > 1 else [])),
        heads=heads("parameterization", "quantity"),
        columns=((Label(""), tuple(map(Label, KINDS.values()))),),
        rows=rows,
    )


@cache
def table_g2() -> Grid:
    """Derives Table G.2 of the MSSP paper: exponents b, c, d (init std, learning rate, epsilon) of muP by kind of
    tensor.
    """
    derivations = {o: derive("I", o, "mup", architecture="mlp") for o in OPTIMIZERS}
    shown = [("b", ("sgd", "adam")), ("c", ("sgd",)), ("c", ("adam",)), ("d", ("adam",))]

    def cell(role: str, letter: str, optimizers: tuple[str, ...]) -> Cell:
        values = tuple(exponent(derivations[o], role, letter) for o in optimizers)
        return Cell(values, optimizers if len(values) > 1 else ())

    def head(letter: str, optimizers: tuple[str, ...]) -> Label:
        index = OPTIMIZERS[optimizers[0]] if len(optimizers) == 1 else ""
        return Label(f"{letter}_{index}", rf"${letter}_\mathrm{{{index}}}$") if index else Label(letter, f"${letter}$")

    return Grid(
        "g2",
        **read_texts("g2", convention=_convention("bcd")),
        heads=heads("", "tensor"),
        columns=((Label(""), tuple(head(*column) for column in shown)),),
        rows=tuple(Row(Label(""), Label(kind), tuple(cell(role, *x) for x in shown)) for role, kind in KINDS.items()),
        sections=True,
    )


LAYERS = {"input": "1 input", "router": "2 router", "expert": "3 experts", "readout": "4 readout"}
"""Layers, with the numbers of the routers paper."""
SIGMOID = "routers-sigmoid"
SAME = ("routers-softmax-topk", "routers-softmax-bias")
"""Networks with the exponents of ``SIGMOID``. The tests derive them, which takes longer than all tables."""


@cache
def table_routers(name: str, optimizer: str) -> Grid:
    """Derives Table 1 (SGD) or 2 (Adam) of the routers paper: exponents b, c, d (init std, learning rate, epsilon) of
    muP by layer.
    """
    letters = "bcd" if optimizer == "adam" else "bc"

    def cells(architecture: str, role: str) -> tuple[Cell, ...]:
        d = derive("I", optimizer, "mup", architecture=architecture)
        return tuple(Cell((exponent(d, role, x),)) for x in letters)

    return Grid(
        name,
        **read_texts(
            "routers",
            number=name[-1],
            gate=_gate(SIGMOID),
            optimizer=OPTIMIZERS[optimizer],
            convention=_convention(letters),
            same=_gate(SAME[0]),
            other=_gate(SAME[1]),
        ),
        heads=heads("", "layer"),
        columns=((Label(""), tuple(Label(x, f"${x}$") for x in letters)),),
        rows=tuple(Row(Label(""), Label(title), cells(SIGMOID, role)) for role, title in LAYERS.items()),
        sections=True,
    )


@cache
def table_transfer1() -> Grid:
    """Derives Table 1 of the HP-transfer paper: init std and Adam rate where width, expert width and experts grow."""
    derivations = {("III", "adam", p): derive("III", "adam", p) for p in BOTH}
    shown = {"init": QUANTITIES["init"], "lr": Label("Adam lr", r"Adam lr $\eta$")}
    tensors = {"router": "router $Q$", "expert_in": "expert up $W^2$", "expert_out": "expert down $W^3$"}
    rows = tuple(
        Row(Label(""), Label(role, title), tuple(_both(derivations, ("III", "adam"), role, what) for what in shown))
        for role, title in tensors.items()
    )
    return Grid(
        "transfer1",
        **read_texts("transfer1", growth=growth(REGIMES["III"]), multiplier=_multiplier(derivations.values())),
        heads=heads("", "tensor"),
        columns=((Label(""), tuple(shown.values())),),
        rows=rows,
        sections=True,
    )


def _rows(
    groups: Mapping[str, Label], quantities: Mapping[str, Label], cells: Callable[[str, str], Iterable[Cell]]
) -> tuple[Row, ...]:
    """Returns one row for every quantity of every group.

    Args:
        groups: label of each group of rows, by name.
        quantities: label of each row of a group, by name.
        cells: returns the cells of a row from the names of its group and its quantity.
    """
    return tuple(
        Row(group, label, tuple(cells(name, what)))
        for name, group in groups.items()
        for what, label in quantities.items()
    )


def _both(derivations: Mapping[tuple[str, str, str], Derivation], where: tuple[str, str], role: str, what: str) -> Cell:
    """Returns a table cell with the values of a tensor's setting for muP and for MSSP.

    Args:
        derivations: the derived parameterizations, by (regime, optimizer, ``mup`` or ``mssp``).
        where: (regime, optimizer).
        role: the tensor.
        what: the setting, one of ``QUANTITIES``.
    """
    return Cell(tuple(setting(derivations[*where, p], role, what) for p in BOTH), BOTH)


def heads(group: str, row: str) -> tuple[Label, Label]:
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
    """Writes what the exponents mean, as rich text: ``init std sigma ~ n^-b, learning rate eta ~ n^-c``."""
    sizes = {"b": r"init std $\sigma", "c": r"learning rate $\eta", "d": r"Adam $\epsilon"}
    return ", ".join(rf"{sizes[x]} \asymp n^{{-{x}}}$" for x in letters)


def _multiplier(derivations: Iterable[Derivation]) -> str:
    """Writes the distinct multipliers of the sum over experts, of those derivations in which the number of experts
    grows.
    """
    powers = dict.fromkeys(1 / d.scaling.alpha for d in derivations if d.ray["M"])
    return ", ".join(map(rich, powers))


def _gate(architecture: str) -> str:
    """Describes the gate of a network: ``softmax gate with top-K``."""
    return re.sub(r"^.*experts, | \(.*$", "", ARCHITECTURES[architecture].title)
