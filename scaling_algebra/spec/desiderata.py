"""Desiderata as data: what each parameterization demands of which quantities, and which unknown a demand fixes.

Adding a desideratum: one more ``Demand`` in ``mup_demands`` or ``mssp_demands``.
Read next: ``newton.py`` (solves them), ``quantities.py`` (what the quantities are).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from scaling_algebra.spec.networks.language import Gate, Linear, Network

Kind = Literal["theta", "bounded", "balanced", "scale"]


@dataclass(frozen=True)
class Demand:
    """One demand on quantities over t = 0 .. T.

    Attributes:
        name: the desideratum, e.g. ``"mu-2"``.
        kind: ``theta``: the largest of ``quantities`` is O(1) at every t and Theta(1) at some t.
            ``bounded``: O(1) at every t. ``balanced``: at the last t all have one exponent, exact zeros aside.
            ``scale``: n^d times the quantity is Theta(1) at some t > 0 (it fixes d and demands nothing else).
        quantities: names from ``quantities.py``.
        fixes: the unknown this demand determines, e.g. ``"b.router"``; empty for a pure check.
        because: one line for reports.
    """

    name: str
    kind: Kind
    quantities: tuple[str, ...]
    fixes: str = ""
    because: str = ""


@dataclass(frozen=True)
class Structure:
    """Discrete choices of a parameterization: what is zero, what experts share, which exception is allowed.

    Attributes:
        zero: roles initialised to zero.
        tied: roles whose initial values all experts share.
        exempt: signals before the aggregation whose own size is left free (only their aggregate must be Theta(1)).
    """

    zero: frozenset[str] = frozenset()
    tied: frozenset[str] = frozenset()
    exempt: frozenset[str] = frozenset()

    def __str__(self) -> str:
        parts = [f"zero {r}" for r in sorted(self.zero - {"readout"})] + [f"tied {r}" for r in sorted(self.tied)]
        parts += [f"{s} free before aggregation" for s in sorted(self.exempt)]
        return ", ".join(parts) or "no intervention"


ABOUT: dict[str, str] = {
    "mu-1": "every signal is O(1) at every step, and its change is Theta(1) by t = 2: stable, and it learns features",
    "mu-2": "of every linear map, the update's own contribution (effective) and the change it passes on (propagating) "
    "are both Theta(1)",
    "mu-3": "faithfulness: epsilon has the size of the gradient it is compared with",
    "aggregation": "of a signal that is free before aggregation, the aggregate of what it passes on is Theta(1)",
    "MSSP-2 backward": "the parts of a gradient by initial and updated tensors above it share one scale",
    "MSSP-3 forward": "every piece of the aggregate (A1, A2.1, A2.2, A3) is Theta(1)",
    "MSSP-3 backward": "the pieces A4 to E of the experts' gradient share one scale",
    "MSSP pathways": "what reaches the router through the experts and through the router itself is of one scale, or "
    "neither does",
}
"""Every desideratum in a sentence (MSSP paper, Sec. 3 and 4, App. C and I)."""


def mup_demands(network: Network, structure: Structure) -> list[Demand]:
    """Desiderata mu-1, mu-2, mu-3. Source: MSSP paper, section 3 and App. I.1."""
    demands: list[Demand] = []
    exempt = structure.exempt
    above = {a.source: a.out for a in network.aggregates}
    for statement in network.statements:
        out = statement.out
        if out not in exempt and not isinstance(statement, Gate):
            demands.append(Demand("mu-1", "bounded", (out,), because=f"{out} stays O(1)"))
            demands.append(Demand("mu-1", "theta", (f"{out}.change",), because=f"the change of {out} is Theta(1)"))
        if not isinstance(statement, Linear):
            continue
        role, w = statement.tensor, network.tensors[statement.tensor].symbol
        if statement.source == "data":
            why = f"{w}_0 x = Theta(1): the data is this layer's incoming signal"
            demands.append(Demand("mu-2", "theta", (f"{out}.init",), f"b.{role}", why))
        elif role not in structure.zero:
            if out in exempt:
                why = f"the aggregate of {w}_0 d{statement.source} is Theta(1)"
                demands.append(Demand("aggregation", "theta", (f"{above[out]}.propagating",), f"b.{role}", why))
            else:
                why = f"propagating update {w}_0 d{statement.source} = Theta(1)"
                demands.append(Demand("mu-2", "theta", (f"{out}.propagating",), f"b.{role}", why))
        parts = (f"{out}.effective",) if statement.source == "data" else (f"{out}.effective", f"{out}.cross")
        demands.append(
            Demand("mu-2", "theta", parts, f"c.{role}", f"effective update d{w} {statement.source} = Theta(1)")
        )
    for aggregate in network.aggregates[:1]:  # one multiplier for all
        parts = (f"{aggregate.out}.effective", f"{aggregate.out}.cross")
        demands.append(Demand("mu-2", "theta", parts, "alpha", "the aggregated effective update is Theta(1)"))
    for role, tensor in network.tensors.items():
        why = f"faithfulness: epsilon has the size of the gradient of {tensor.symbol}"
        demands.append(Demand("mu-3", "scale", (f"g{tensor.symbol}",), f"d.{role}", why))
    return demands


def mssp_demands(network: Network, structure: Structure) -> list[Demand]:
    """Maximal scale stability: the forward desiderata, and balance backward and across experts.

    Source: MSSP paper, section 4 and App. I.3; the router's pathways: App. C.
    """
    demands = mup_demands(network, structure)
    for piece in ("h3.A1", "h3.A2.1", "h3.A2.2", "h3.A3"):
        demands.append(Demand("MSSP-3 forward", "theta", (piece,), because=f"{piece} of the aggregate is Theta(1)"))
    modes = [f"{x}-{y}" for x in ("init", "update") for y in ("init", "update")]
    backward = {
        "g3": ("g3.init", "g3.update"),
        "g2": tuple(f"g2.{m}" for m in modes),
        "gphi": tuple(f"gphi.{m}" for m in modes),
        "g1.router": tuple(f"g1.router.{q}.{m}" for q in ("Q0", "dQ") for m in modes),
    }
    for name, parts in backward.items():
        demands.append(Demand("MSSP-2 backward", "balanced", parts, because=f"the parts of {name} share one scale"))
    pieces = tuple(f"g1.expert.{a}.{k}" for a in ("A4", "A5", "A6", "E") for k in (1, 2))
    demands.append(
        Demand("MSSP-3 backward", "balanced", pieces, because="the pieces A4 to E of g1.expert share one scale")
    )
    pathways = ("psi.propagating.expert", "psi.propagating.router")
    why = "the expert and the router pathway contribute to Q_0 dh1 at one scale, or not at all"
    demands.append(Demand("MSSP pathways", "balanced", pathways, because=why))
    return demands


def interventions(network: Network, base: Structure) -> list[Structure]:
    """Structures MSSP may choose from, fewest interventions first: zero router init, the exception that a
    signal before the aggregation may grow, and initial values shared by the experts in some tensors."""
    choices = [
        choice
        for a in network.aggregates
        for choice in (("zero", network.linear_into(a.gate).tensor), ("exempt", a.source))
    ]
    choices += [("tied", role) for role, tensor in network.tensors.items() if tensor.experts]
    structures = []
    for size in range(len(choices) + 1):
        for chosen in combinations(choices, size):
            picked = {field: frozenset(x for f, x in chosen if f == field) for field in ("zero", "tied", "exempt")}
            structures.append(
                Structure(base.zero | picked["zero"], base.tied | picked["tied"], base.exempt | picked["exempt"])
            )
    return structures
