"""Architectures as networks: written once, read as exponents by the engine and as torch by ``verify``.

Adding an architecture: one more ``Network`` in ``ARCHITECTURES``.
Read next: ``trajectory.py`` (runs and differentiates a network), ``quantities.py`` (what can be asked about one).
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Literal

from scaling_algebra.errors import named

from .language import GATES, Adjoint, Aggregate, Gate, Linear, Mode, Network, Noise, Norm, Statement, Sum, Tensor


def _grid(*roles: str) -> dict[str, dict[str, Mode]]:
    """Parts named by the modes of these tensors: ``init-update`` and so on."""
    modes: tuple[Mode, Mode] = ("init", "update")
    return {"-".join(m): dict(zip(roles, m, strict=True)) for m in product(modes, repeat=len(roles))}


def _expert_pieces() -> dict[str, dict[str, Mode]]:
    """The pieces A4.1 to E.2 of the expert pathway (MSSP paper, App. I.3, eq. I.6)."""
    labels = {"init-init": "A4", "init-update": "A5", "update-init": "A6", "update-update": "E"}
    pieces = {}
    for modes, inner in _grid("expert_in", "expert_out").items():
        for k, (_, outer) in enumerate(_grid("readout").items(), 1):
            pieces[f"{labels[modes]}.{k}"] = {**inner, **outer}
    return pieces


def _router_pieces() -> dict[str, dict[str, Mode]]:
    """``Q0``, ``dQ`` and their splits by the modes of expert_out and readout."""
    pieces: dict[str, dict[str, Mode]] = {}
    for label, router in zip(("Q0", "dQ"), _grid("router").values(), strict=True):
        pieces[label] = router
        pieces |= {f"{label}.{m}": {**router, **inner} for m, inner in _grid("expert_out", "readout").items()}
    return pieces


MOE_BLOCK = Network(
    name="moe",
    title="minimal MoE block (MSSP paper, App. J.1)",
    tensors={
        "input": Tensor("W1", "ax", fan_in="x", fan_out="a"),
        "router": Tensor("Q", "ia", fan_in="a", fan_out="i"),
        "expert_in": Tensor("W2", "ika", fan_in="a", fan_out="k", experts="i"),
        "expert_out": Tensor("W3", "ibk", fan_in="k", fan_out="b", experts="i"),
        "readout": Tensor("W4", "b", fan_in="b", fan_out=""),
    },
    axes={"x": "D", "a": "N", "b": "N", "i": "M", "k": "N_e"},
    signals={"data": "x", "h1": "a", "psi": "i", "phi": "i", "h2": "ik", "h3i": "ib", "h3": "b", "f": ""},
    statements=(
        Linear("h1", "input", "data"),
        Linear("psi", "router", "h1"),
        Gate("phi", "psi"),
        Linear("h2", "expert_in", "h1"),
        Linear("h3i", "expert_out", "h2"),
        Aggregate("h3", "phi", "h3i"),
        Linear("f", "readout", "h3"),
    ),
    adjoints=(
        Adjoint("g3", "h3", parts=_grid("readout")),
        Adjoint("g3i", "h3i", parts=_grid("readout")),
        Adjoint("g2", "h2", parts=_grid("expert_out", "readout")),
        Adjoint("gphi", "phi", parts=_grid("expert_out", "readout")),
        Adjoint("g1.expert", "h1", via="h2", parts=_expert_pieces()),
        Adjoint("g1.router", "h1", via="psi", parts=_router_pieces()),
        Adjoint("g1", "h1"),
    ),
    pathways={"expert": ("h1", "h2"), "router": ("h1", "psi")},
)

MLP = Network(
    name="mlp",
    title="dense MLP with one hidden layer (MSSP paper, App. G)",
    tensors={
        "input": Tensor("W1", "ax", fan_in="x", fan_out="a"),
        "hidden": Tensor("W2", "ba", fan_in="a", fan_out="b"),
        "readout": Tensor("W3", "b", fan_in="b", fan_out=""),
    },
    axes={"x": "D", "a": "N", "b": "N"},
    signals={"data": "x", "h1": "a", "h2": "b", "f": ""},
    statements=(Linear("h1", "input", "data"), Linear("h2", "hidden", "h1"), Linear("f", "readout", "h2")),
    adjoints=(Adjoint("g2", "h2", parts=_grid("readout")), Adjoint("g1", "h1", parts=_grid("hidden", "readout"))),
)


def normed(network: Network) -> Network:
    """The block with RMSNorm after the aggregation (MSSP paper, App. I.11.1)."""
    before, last = network.statements[:-1], network.statements[-1]
    assert isinstance(last, Linear)
    return Network(
        name=f"{network.name}-rmsnorm",
        title="minimal MoE block with RMSNorm after the aggregation (MSSP paper, App. I.11.1)",
        tensors=network.tensors,
        axes=network.axes,
        signals={**network.signals, "hn": network.signals[last.source]},
        statements=(*before, Norm("hn", last.source), Linear(last.out, last.tensor, "hn")),
        adjoints=network.adjoints,
        pathways=network.pathways,
    )


def live(network: Network) -> Network:
    """The block with a sigmoid gate that is part of the dynamics, instead of one held at its mean and slope (standing
    assumption B2 of MSSP paper, J.2).

    A gate is a function of Q_0 h1, so that a sum over experts of Q_0 times what the gates weigh has a part along h1. It
    outweighs the random part where M > N.
    """
    return replace(
        network,
        name=f"{network.name}-sigmoid",
        title="minimal MoE block with the gate in the dynamics (MSSP paper, J.1, without assumption B2)",
        statements=tuple(replace(s, kind="sigmoid") if isinstance(s, Gate) else s for s in network.statements),
    )


def stacked(blocks: int) -> Network:
    """``blocks`` MoE blocks in sequence between one input and one readout tensor (MSSP paper, App. I.10).

    Signals and roles of block k end in ``_k``; block k reads ``h3_(k-1)``, the first one ``h1``.
    """
    tensors = {"input": Tensor("W1", "ax", fan_in="x", fan_out="a")}
    signals = {"data": "x", "h1": "a"}
    statements: list[Statement] = [Linear("h1", "input", "data")]
    adjoints = []
    source, below = "h1", "a"
    for k in range(1, blocks + 1):
        above = "b" if below == "a" else "a"
        tensors |= {
            f"router_{k}": Tensor(f"Q_{k}", "i" + below, fan_in=below, fan_out="i"),
            f"expert_in_{k}": Tensor(f"W2_{k}", "ik" + below, fan_in=below, fan_out="k", experts="i"),
            f"expert_out_{k}": Tensor(f"W3_{k}", f"i{above}k", fan_in="k", fan_out=above, experts="i"),
        }
        signals |= {f"psi_{k}": "i", f"phi_{k}": "i", f"h2_{k}": "ik", f"h3i_{k}": "i" + above, f"h3_{k}": above}
        statements += [
            Linear(f"psi_{k}", f"router_{k}", source),
            Gate(f"phi_{k}", f"psi_{k}"),
            Linear(f"h2_{k}", f"expert_in_{k}", source),
            Linear(f"h3i_{k}", f"expert_out_{k}", f"h2_{k}"),
            Aggregate(f"h3_{k}", f"phi_{k}", f"h3i_{k}"),
        ]
        adjoints += [Adjoint(f"{g}_{k}", f"{h}_{k}") for g, h in (("g3", "h3"), ("g2", "h2"), ("gphi", "phi"))]
        source, below = f"h3_{k}", above
    signals["f"] = ""
    tensors["readout"] = Tensor("W4", below, fan_in=below, fan_out="")
    return Network(
        name=f"stack{blocks}",
        title=f"{blocks} MoE blocks in sequence (MSSP paper, App. I.10)",
        tensors=tensors,
        axes=MOE_BLOCK.axes,
        signals=signals,
        statements=(*statements, Linear("f", "readout", source)),
        adjoints=(*adjoints, Adjoint("g1", "h1")),
    )


SHIFTS: tuple[Literal["", "bias", "noise"], ...] = ("", "bias", "noise")
"""What may be added to the logits of the router."""


def fixed_experts(kind: str, shift: Literal["", "bias", "noise"] = "", selects: bool = False) -> Network:
    """A block of linear experts and a router whose gate is part of the dynamics (routers paper, Def. 1).

    Args:
        kind: one of ``GATES``.
        shift: added to the logits: nothing, a trained Theta(1) bias, or Theta(1) noise, drawn anew at every step
            (routers paper, App. F.1, both cases).
        selects: top-K.
    """
    tensors = {
        "input": Tensor("W1", "ax", fan_in="x", fan_out="a"),
        "router": Tensor("Q", "ia", fan_in="a", fan_out="i"),
        "expert": Tensor("W3", "iba", fan_in="a", fan_out="b", experts="i"),
        "readout": Tensor("W4", "b", fan_in="b", fan_out=""),
    }
    signals = {"data": "x", "h1": "a", "psi": "i", "phi": "i", "h3i": "ib", "h3": "b", "f": ""}
    router: tuple[Statement, ...] = (Linear("psi", "router", "h1"),)
    if shift:
        if shift == "bias":
            tensors["bias"] = Tensor("B", "ix", fan_in="x", fan_out="i")
        signals |= {"logits": "i", "shift": "i"}
        added = Linear("shift", "bias", "data") if shift == "bias" else Noise("shift")
        router = (Linear("logits", "router", "h1"), added, Sum("psi", "logits", "shift"))
    suffix = (f"-{shift}" if shift else "") + ("-topk" if selects else "")
    extras = {"": "", "bias": " with a bias", "noise": " with noise"}[shift] + (" with top-K" if selects else "")
    return Network(
        name=f"routers-{kind}{suffix}",
        title=f"fixed number of linear experts, {kind} gate{extras} (routers paper, Def. 1)",
        tensors=tensors,
        axes={"x": "D", "a": "N", "b": "N", "i": "M"},
        signals=signals,
        statements=(
            Linear("h1", "input", "data"),
            *router,
            Gate("phi", "psi", kind, selects),
            Linear("h3i", "expert", "h1"),
            Aggregate("h3", "phi", "h3i"),
            Linear("f", "readout", "h3"),
        ),
        adjoints=(
            Adjoint("g3", "h3", parts=_grid("readout")),
            Adjoint("g3i", "h3i"),
            Adjoint("gphi", "phi"),
            Adjoint("gpsi", "psi"),
            Adjoint("g1.expert", "h1", via="h3i"),
            Adjoint("g1.router", "h1", via="logits" if shift else "psi"),
            Adjoint("g1", "h1"),
        ),
        tracked="i",
    )


ARCHITECTURES: dict[str, Network] = {
    p.name: p
    for p in (
        MOE_BLOCK,
        MLP,
        live(MOE_BLOCK),
        normed(MOE_BLOCK),
        stacked(2),
        *(fixed_experts(k, b, s) for k, b, s in product(GATES, SHIFTS, (False, True))),
    )
}
"""Every architecture, by name."""


def architecture(name: str) -> Network:
    """The architecture called ``name``.

    Raises:
        UsageError: no such architecture.
    """
    return named("architecture", name, ARCHITECTURES)
