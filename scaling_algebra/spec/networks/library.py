"""Every network that ships, as equations: what sizes, gradients, explanations and torch are all read from.

Adding one: an entry in ``_SHIPPED``. Read next: ``layers.py`` (attention, and whole layers of language models),
``grammar.py`` (how equations are written),
``scaling_algebra/dynamics/trajectory.py`` (trains a network), ``quantities.py`` (what can be asked about one).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import product

from scaling_algebra.errors import named

from .grammar import network
from .language import Network
from .layers import HEADS, LAYERS, NetworkText, attention

AXES = {
    **{"a": "N", "b": "N", "i": "M", "k": "N_e", "l": "L"},
    **{"j": "N", "e": "E", "g": "C", "y": "C", "d": "N", "c": "N"},
    **{"x": "D", "s": "S", "t": "S", "r": "R"},
}
"""Axes of the letters of every shipped network: a, b width; i experts; k expert width; l layers; j heads, as many as
the width, of a fixed dimension e, or a fixed number g of heads of a dimension d that grows; c latent width; x input, s
and t tokens, r rank, y queries of a group, all fixed."""
ROLES = {"W1": "input", "Q": "router", "W2": "expert_in", "W3": "expert_out", "W4": "readout"}
"""Roles of the tensors of the MoE block (MSSP paper, App. J.1)."""

_MOE = """
h1[a]    = W1[a,x] data[x]
psi[i]   = Q[i,a] h1[a]
phi[i]   = gate(psi[i])
h2[i,k]  = W2[i,k,a] h1[a]
h3i[i,b] = W3[i,b,k] h2[i,k]
h3[b]    = alpha phi[i] h3i[i,b]
f        = W4[b] h3[b]
"""
_MLP = """
h1[a] = W1[a,x] data[x]
h2[b] = W2[b,a] h1[a]
f     = W3[b] h2[b]
"""


_SHIPPED: dict[str, NetworkText] = {
    "moe": NetworkText("minimal MoE block (MSSP paper, App. J.1)", _MOE, ROLES),
    "mlp": NetworkText(
        "dense MLP with one hidden layer (MSSP paper, App. G)",
        _MLP,
        {"W1": "input", "W2": "hidden", "W3": "readout"},
    ),
    "moe-sigmoid": NetworkText(
        # a gate is a function of Q_0 h1, so that a sum over experts of Q_0 times what the gates weigh has a part along
        # h1; it outweighs the random part where M > N
        "minimal MoE block with the gate in the dynamics (MSSP paper, J.1, without assumption B2)",
        _MOE.replace("gate(", "sigmoid("),
        ROLES,
    ),
    "moe-rmsnorm": NetworkText(
        "minimal MoE block with RMSNorm after the aggregation (MSSP paper, App. I.11.1)",
        _MOE.replace("f        = W4[b] h3[b]", "hn[b]    = rmsnorm(h3[b])\nf        = W4[b] hn[b]"),
        ROLES,
    ),
}

SHIFTS = ("", "bias", "noise")
"""Terms that may be added to the logits of the router of the fixed-experts block."""


def _fixed_experts(kind: str, shift: str) -> NetworkText:
    """A block of linear experts and a router whose gate is part of the dynamics (routers paper, Def. 1).

    Args:
        kind: a function of the language.
        shift: added to the logits: nothing, a trained Theta(1) bias, or Theta(1) noise, drawn anew at every step
            (routers paper, App. F.1, both cases).
    """
    added = {"bias": "B[i,x] data[x]", "noise": "noise()"}.get(shift)
    logits = f"logits[i] = Q[i,a] h1[a]\nshift[i] = {added}\npsi[i] = logits[i] + shift[i]"
    equations = f"""
    h1[a] = W1[a,x] data[x]
    {logits if added else "psi[i] = Q[i,a] h1[a]"}
    phi[i] = {kind}(psi[i])
    h3i[i,b] = W3[i,b,a] h1[a]
    h3[b] = alpha phi[i] h3i[i,b]
    f = W4[b] h3[b]
    """
    roles = {"W1": "input", "Q": "router", "W3": "expert", "W4": "readout"}
    gate = kind.removeprefix("topk_")
    extras = {"": "", "bias": " with a bias", "noise": " with noise"}[shift] + (" with top-K" if gate != kind else "")
    title = f"fixed number of linear experts, {gate} gate{extras} (routers paper, Def. 1)"
    return NetworkText(title, equations, {**roles, "B": "bias"} if shift == "bias" else roles)


def routers_name(gate: str, shift: str = "", selects: bool = False) -> str:
    """The name of the fixed-experts block with this gate: ``routers-softmax-bias-topk``."""
    return f"routers-{gate}" + (f"-{shift}" if shift else "") + ("-topk" if selects else "")


GATES = ("softmax", "sigmoid")
"""Gates of the fixed-experts block."""
_SHIPPED |= {
    routers_name(gate, shift, top): _fixed_experts(f"topk_{gate}" if top else gate, shift)
    for gate, shift, top in product(GATES, SHIFTS, (False, True))
}


_EMBEDDED, _READ = "h[s,a] = W1[a,x] data[s,x]", "f = W4[b] u[t,b]"
_SHIPPED |= {
    name: NetworkText(title, f"{_EMBEDDED}{equations}{_READ}", {"W1": "input", **roles, **HEADS, "W4": "readout"})
    for name, title, equations, roles in (
        (
            "attention",
            "softmax attention with a growing number of heads of fixed dimension (Vaswani et al. 2017)",
            attention(),
            {},
        ),
        (
            "attention-wide",
            "softmax attention with a fixed number of heads whose dimension grows (Yang et al. 2022)",
            attention("g,d", "g,d", scale="att"),
            {},
        ),
        (
            "attention-grouped",
            "softmax attention whose queries share keys and values in groups (Ainslie et al. 2023)",
            attention("j,y,e", "j,e"),
            {},
        ),
        (
            "attention-latent",
            "softmax attention with keys and values read from a latent vector (DeepSeek-V2, 2024)",
            "\nz[s,c] = Wc[c,a] h[s,a]" + attention(cache="z[s,c]"),
            {"Wc": "latent"},
        ),
    )
}

_ROUTED = _MOE.rpartition("f  ")[0]
"""The MoE block without its readout."""
_SHIPPED |= {
    "swiglu": NetworkText(
        "MoE block of gated experts, SwiGLU (Shazeer 2020)",
        _MOE.replace("W2[i,k,a] h1[a]", "silu(G[i,k,b] h1[b]) W2[i,k,a] h1[a]"),
        {"W1": "input", "Q": "router", "G": "expert_gate", "W2": "expert_in", "W3": "expert_out", "W4": "readout"},
    ),
    "shared-expert": NetworkText(
        "MoE block with one expert that every token takes (DeepSeekMoE, Dai et al. 2024)",
        _ROUTED + "s3[b] = V3[b,k] V2[k,a] h1[a]\nh4[b] = h3[b] + s3[b]\nf = W4[b] h4[b]",
        {**ROLES, "V2": "shared_in", "V3": "shared_out"},
    ),
    "dense-moe": NetworkText(
        "MoE block beside a dense layer (Arctic, Snowflake 2024)",
        _ROUTED + "h4[b] = h3[b] + V[b,a] h1[a]\nf = W4[b] h4[b]",
        {**ROLES, "V": "dense"},
    ),
    "residual": NetworkText(
        "residual stream around a hidden layer and around the MoE block (He et al. 2015)",
        """
        h0[a]    = W1[a,x] data[x]
        h1[a]    = h0[a] + V[a,b] h0[b]
        psi[i]   = Q[i,a] h1[a]
        phi[i]   = gate(psi[i])
        h2[i,k]  = W2[i,k,a] h1[a]
        h3i[i,b] = W3[i,b,k] h2[i,k]
        h3[b]    = alpha phi[i] h3i[i,b]
        h4[b]    = h1[b] + h3[b]
        f        = W4[b] h4[b]
        """,
        {"W1": "input", "V": "hidden", **{x: role for x, role in ROLES.items() if x != "W1"}},
    ),
    # Depth is an index like any other: a pass through L layers deviates from the stream once to leading order, so every
    # branch reads the stream as it came in, and their sum is added to it. Norms divide by Theta(1) and are left out.
    "deep-mlp": NetworkText(
        "residual stream of L dense blocks with norm gains and biases (CompleteP, Dey et al. 2025)",
        """
        h0[a]  = E[a,x] data[x]
        n[l,a] = G[l,a] h0[a]
        m[l,b] = V1[l,b,a] n[l,a] + B[l,b,x] data[x]
        u[l,a] = V2[l,a,b] m[l,b]
        h1[a]  = h0[a] + res u[l,a]
        nf[a]  = F[a] h1[a]
        f      = U[a] nf[a]
        """,
        {
            "E": "embedding",
            "G": "gain",
            "V1": "hidden",
            "B": "bias",
            "V2": "hidden_out",
            "F": "final_gain",
            "U": "readout",
        },
    ),
    "deep-moe": NetworkText(
        "residual stream of L MoE blocks with norm gains (MSSP paper, Table B.2)",
        """
        h1[a]      = E[a,x] data[x]
        n[l,a]     = G[l,a] h1[a]
        psi[l,i]   = Q[l,i,a] n[l,a]
        phi[l,i]   = gate(psi[l,i])
        h2[l,i,k]  = W2[l,i,k,a] n[l,a]
        h3i[l,i,b] = W3[l,i,b,k] h2[l,i,k]
        h3[l,b]    = alpha phi[l,i] h3i[l,i,b]
        h4[b]      = h1[b] + res h3[l,b]
        nf[b]      = F[b] h4[b]
        f          = U[b] nf[b]
        """,
        {
            "E": "embedding",
            "G": "gain",
            "Q": "router",
            "W2": "expert_in",
            "W3": "expert_out",
            "F": "final_gain",
            "U": "readout",
        },
    ),
    # Both branches read the stream as it came in, as the layers do.
    "deep-transformer": NetworkText(
        "residual stream of L layers of attention and a MoE block (MSSP paper, Table B.2)",
        f"""
        h[s,a]       = E[a,x] data[s,x]
        {attention(layer="l,")}
        psi[l,t,i]   = Q[l,i,a] h[t,a]
        phi[l,t,i]   = gate(psi[l,t,i])
        h2[l,t,i,k]  = W2[l,i,k,a] h[t,a]
        h3i[l,t,i,b] = W3[l,i,b,k] h2[l,t,i,k]
        h3[l,t,b]    = alpha phi[l,t,i] h3i[l,t,i,b]
        h4[t,b]      = h[t,b] + att_res u[l,t,b] + res h3[l,t,b]
        f            = U[b] h4[t,b]
        """,
        {"E": "embedding", **HEADS, "Q": "router", "W2": "expert_in", "W3": "expert_out", "U": "readout"},
    ),
    "bottleneck": NetworkText(
        "dense MLP that narrows to the expert width and widens again",
        "h1[a] = W1[a,x] data[x]\nh2[k] = W2[k,a] h1[a]\nh3[b] = W3[b,k] h2[k]\nf = W4[b] h3[b]",
        {"W1": "input", "W2": "down", "W3": "up", "W4": "readout"},
    ),
    "lora": NetworkText(
        "dense MLP with a low-rank path of fixed rank beside its hidden layer (Hu et al. 2021)",
        "h1[a] = W1[a,x] data[x]\nh2[b] = W2[b,a] h1[a] + B[b,r] A[r,a] h1[a]\nf = W3[b] h2[b]",
        {"W1": "input", "W2": "hidden", "A": "lora_down", "B": "lora_up", "W3": "readout"},
    ),
    "loop": NetworkText(
        "dense MLP that applies one hidden matrix three times (Universal Transformer, Dehghani et al. 2018)",
        "h1[a] = W1[a,x] data[x]\nh2[b] = V[b,a] h1[a]\nh3[a] = V[a,b] h2[b]\nh4[b] = V[b,a] h3[a]\nf = W3[b] h4[b]",
        {"W1": "input", "V": "hidden", "W3": "readout"},
    ),
    "tied-embedding": NetworkText(
        "dense MLP whose embedding is its readout, too: the logit of its own input (Press and Wolf 2016)",
        "h1[a] = E[a,x] data[x]\nh2[b] = V[b,a] h1[a]\nf = out E[b,x] h2[b] data[x]",
        {"E": "embedding", "V": "hidden"},
    ),
    "linear-attention": NetworkText(
        "attention without a softmax, one head as wide as the network (Katharopoulos et al. 2020)",
        """
        h[s,a] = W1[a,x] data[s,x]
        q[s,b] = Wq[b,a] h[s,a]
        k[s,b] = Wk[b,a] h[s,a]
        v[s,b] = Wv[b,a] h[s,a]
        p[t,s] = att q[t,b] k[s,b]
        o[t,b] = p[t,s] v[s,b]
        f      = W4[b] o[t,b]
        """,
        {"W1": "input", "Wq": "query", "Wk": "key", "Wv": "value", "W4": "readout"},
    ),
}


def _stacked(blocks: int) -> NetworkText:
    """MoE blocks in sequence between one input and one readout tensor (MSSP paper, App. I.10).

    Signals and roles of block k end in ``_k``; block k reads ``h3_(k-1)``, the first one ``h1``.
    """
    equations, roles, source = "h1[a] = W1[a,x] data[x]", {"W1": "input"}, "h1"
    for k in range(1, blocks + 1):
        equations += f"""
        psi_{k}[i]   = Q_{k}[i,a] {source}[a]
        phi_{k}[i]   = gate(psi_{k}[i])
        h2_{k}[i,k]  = W2_{k}[i,k,a] {source}[a]
        h3i_{k}[i,b] = W3_{k}[i,b,k] h2_{k}[i,k]
        h3_{k}[b]    = alpha phi_{k}[i] h3i_{k}[i,b]
        """
        roles |= {f"Q_{k}": f"router_{k}", f"W2_{k}": f"expert_in_{k}", f"W3_{k}": f"expert_out_{k}"}
        source = f"h3_{k}"
    title = f"{blocks} MoE blocks in sequence (MSSP paper, App. I.10)"
    return NetworkText(title, f"{equations}f = W4[b] {source}[b]", {**roles, "W4": "readout"})


_APART = LAYERS | {
    "moe-softmax": NetworkText(
        "minimal MoE block whose gate is a softmax of bounded logits (MSSP paper, App. A and J.1)",
        _MOE.replace("gate(", "bounded_softmax(").replace("alpha phi", "phi"),
        ROLES,
    )
}
"""Whole layers, and what rests on an assumption of its own."""


class _Library(Mapping[str, Network]):
    """Networks by name, read when first asked for. Those of ``_APART``, ``stack3`` and so on are there without being
    gone through."""

    def __getitem__(self, name: str) -> Network:
        stack = re.fullmatch(r"stack([1-9]\d?)", name)
        text = _stacked(int(stack[1])) if stack else (_SHIPPED | _APART)[name]
        return _read(name, text.title, text.equations, tuple(text.roles.items()))

    def __iter__(self) -> Iterator[str]:
        return iter((*_SHIPPED, "stack2"))

    def __len__(self) -> int:
        return len(_SHIPPED) + 1

    def __contains__(self, name: object) -> bool:
        shipped = name in _SHIPPED or name in _APART
        return shipped or (isinstance(name, str) and re.fullmatch(r"stack[1-9]\d?", name) is not None)


@cache
def _read(name: str, title: str, equations: str, roles: tuple[tuple[str, str], ...]) -> Network:
    return network(name, equations, AXES, dict(roles), title)


ARCHITECTURES = _Library()
"""Every network that ships, by name."""
TITLES = {
    **{name: text.title for name, text in _SHIPPED.items()},
    "stack2": _stacked(2).title,
    **{name: text.title for name, text in _APART.items()},
}
"""Titles of the networks that are listed."""
MOE_BLOCK = ARCHITECTURES["moe"]


def architecture(name: str) -> Network:
    """The network called ``name``.

    Raises:
        UsageError: no such network.
    """
    if not isinstance(name, str) or name not in ARCHITECTURES:
        named("architecture", name, TITLES)
    return ARCHITECTURES[name]
