"""Every network that ships, as equations: what sizes, gradients, explanations and torch are all read from.

Adding one: an entry in ``_SHIPPED``. Read next: ``grammar.py`` (how equations are written),
``scaling_algebra/dynamics/trajectory.py`` (trains a network), ``quantities.py`` (what can be asked about one).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product

from scaling_algebra.errors import named

from .grammar import network
from .language import Network

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


@dataclass(frozen=True)
class _Text:
    """A network as written: title, equations, roles."""

    title: str
    equations: str
    roles: Mapping[str, str]


_SHIPPED: dict[str, _Text] = {
    "moe": _Text("minimal MoE block (MSSP paper, App. J.1)", _MOE, ROLES),
    "mlp": _Text(
        "dense MLP with one hidden layer (MSSP paper, App. G)",
        _MLP,
        {"W1": "input", "W2": "hidden", "W3": "readout"},
    ),
    "moe-sigmoid": _Text(
        # a gate is a function of Q_0 h1, so that a sum over experts of Q_0 times what the gates weigh has a part along
        # h1; it outweighs the random part where M > N
        "minimal MoE block with the gate in the dynamics (MSSP paper, J.1, without assumption B2)",
        _MOE.replace("gate(", "sigmoid("),
        ROLES,
    ),
    "moe-rmsnorm": _Text(
        "minimal MoE block with RMSNorm after the aggregation (MSSP paper, App. I.11.1)",
        _MOE.replace("f        = W4[b] h3[b]", "hn[b]    = rmsnorm(h3[b])\nf        = W4[b] hn[b]"),
        ROLES,
    ),
}

SHIFTS = ("", "bias", "noise")
"""What may be added to the logits of the router of the fixed-experts block."""


def _fixed_experts(kind: str, shift: str) -> _Text:
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
    extras = {"": "", "bias": " with a bias", "noise": " with noise"}[shift] + " with top-K" * (gate != kind)
    title = f"fixed number of linear experts, {gate} gate{extras} (routers paper, Def. 1)"
    return _Text(title, equations, {**roles, "B": "bias"} if shift == "bias" else roles)


def routers_name(gate: str, shift: str = "", selects: bool = False) -> str:
    """The name of the fixed-experts block with this gate: ``routers-softmax-bias-topk``."""
    return f"routers-{gate}" + (f"-{shift}" if shift else "") + "-topk" * selects


GATES = ("softmax", "sigmoid")
"""Gates of the fixed-experts block."""
_SHIPPED |= {
    routers_name(gate, shift, top): _fixed_experts("topk_" * top + gate, shift)
    for gate, shift, top in product(GATES, SHIFTS, (False, True))
}


def _attention(
    queries: str = "j,e",
    keys: str = "j,e",
    scale: str = "",
    cache: str = "h[s,a]",
    layer: str = "",
    source: str = "h[s,a]",
    norms: bool = False,
) -> str:
    """Softmax attention that writes ``u``.

    Args:
        queries: letters of a query: its head, and the dimension.
        keys: letters of a key, fewer where queries share it.
        scale: a multiplier before the logits.
        cache: what keys and values are read from.
        layer: the letter of a layer and a comma.
        source: what queries are read from.
        norms: queries and keys have norms with gains, each along its dimension.
    """
    heads, key = queries.rpartition(",")[0], f"{keys},{cache[-2]}"
    query, against = ("nq", "nk") if norms else ("q", "k")
    between = ""
    if norms:
        between = f"""
        rq[{layer}s,{queries}] = rmsnorm(q[{layer}s,{queries}]; {queries[-1]})
        nq[{layer}s,{queries}] = Gq[{queries[-1]}] rq[{layer}s,{queries}]
        rk[{layer}s,{keys}] = rmsnorm(k[{layer}s,{keys}]; {keys[-1]})
        nk[{layer}s,{keys}] = Gk[{keys[-1]}] rk[{layer}s,{keys}]
        """
    return f"""
    q[{layer}s,{queries}] = Wq[{layer}{queries},{source[-2]}] {source}
    k[{layer}s,{keys}] = Wk[{layer}{key}] {cache}
    v[{layer}s,{keys}] = Wv[{layer}{key}] {cache}
    {between}
    p[{layer}{heads},t,s] = softmax({scale} {query}[{layer}t,{queries}] {against}[{layer}s,{keys}]; s)
    o[{layer}t,{queries}] = p[{layer}{heads},t,s] v[{layer}s,{keys}]
    u[{layer}t,b] = Wo[{layer}b,{queries}] o[{layer}t,{queries}]
    """


_HEADS = {"Wq": "query", "Wk": "key", "Wv": "value", "Wo": "attention_out"}
_EMBEDDED, _READ = "h[s,a] = W1[a,x] data[s,x]", "f = W4[b] u[t,b]"
_SHIPPED |= {
    name: _Text(title, f"{_EMBEDDED}{equations}{_READ}", {"W1": "input", **roles, **_HEADS, "W4": "readout"})
    for name, title, equations, roles in (
        (
            "attention",
            "softmax attention with a growing number of heads of fixed dimension (Vaswani et al. 2017)",
            _attention(),
            {},
        ),
        (
            "attention-wide",
            "softmax attention with a fixed number of heads whose dimension grows (Yang et al. 2022)",
            _attention("g,d", "g,d", scale="att"),
            {},
        ),
        (
            "attention-grouped",
            "softmax attention whose queries share keys and values in groups (Ainslie et al. 2023)",
            _attention("j,y,e", "j,e"),
            {},
        ),
        (
            "attention-latent",
            "softmax attention with keys and values read from a latent vector (DeepSeek-V2, 2024)",
            "\nz[s,c] = Wc[c,a] h[s,a]" + _attention(cache="z[s,c]"),
            {"Wc": "latent"},
        ),
    )
}

_ROUTED = _MOE.rpartition("f  ")[0]
"""The MoE block without its readout."""
_SHIPPED |= {
    "swiglu": _Text(
        "MoE block of gated experts, SwiGLU (Shazeer 2020)",
        _MOE.replace("W2[i,k,a] h1[a]", "silu(G[i,k,b] h1[b]) W2[i,k,a] h1[a]"),
        {"W1": "input", "Q": "router", "G": "expert_gate", "W2": "expert_in", "W3": "expert_out", "W4": "readout"},
    ),
    "shared-expert": _Text(
        "MoE block with one expert that every token takes (DeepSeekMoE, Dai et al. 2024)",
        _ROUTED + "s3[b] = V3[b,k] V2[k,a] h1[a]\nh4[b] = h3[b] + s3[b]\nf = W4[b] h4[b]",
        {**ROLES, "V2": "shared_in", "V3": "shared_out"},
    ),
    "dense-moe": _Text(
        "MoE block beside a dense layer (Arctic, Snowflake 2024)",
        _ROUTED + "h4[b] = h3[b] + V[b,a] h1[a]\nf = W4[b] h4[b]",
        {**ROLES, "V": "dense"},
    ),
    "residual": _Text(
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
    "deep-mlp": _Text(
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
    "deep-moe": _Text(
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
    "deep-transformer": _Text(
        "residual stream of L layers of attention and a MoE block (MSSP paper, Table B.2)",
        f"""
        h[s,a]       = E[a,x] data[s,x]
        {_attention(layer="l,")}
        psi[l,t,i]   = Q[l,i,a] h[t,a]
        phi[l,t,i]   = gate(psi[l,t,i])
        h2[l,t,i,k]  = W2[l,i,k,a] h[t,a]
        h3i[l,t,i,b] = W3[l,i,b,k] h2[l,t,i,k]
        h3[l,t,b]    = alpha phi[l,t,i] h3i[l,t,i,b]
        h4[t,b]      = h[t,b] + att_res u[l,t,b] + res h3[l,t,b]
        f            = U[b] h4[t,b]
        """,
        {"E": "embedding", **_HEADS, "Q": "router", "W2": "expert_in", "W3": "expert_out", "U": "readout"},
    ),
    "bottleneck": _Text(
        "dense MLP that narrows to the expert width and widens again",
        "h1[a] = W1[a,x] data[x]\nh2[k] = W2[k,a] h1[a]\nh3[b] = W3[b,k] h2[k]\nf = W4[b] h3[b]",
        {"W1": "input", "W2": "down", "W3": "up", "W4": "readout"},
    ),
    "lora": _Text(
        "dense MLP with a low-rank path of fixed rank beside its hidden layer (Hu et al. 2021)",
        "h1[a] = W1[a,x] data[x]\nh2[b] = W2[b,a] h1[a] + B[b,r] A[r,a] h1[a]\nf = W3[b] h2[b]",
        {"W1": "input", "W2": "hidden", "A": "lora_down", "B": "lora_up", "W3": "readout"},
    ),
    "loop": _Text(
        "dense MLP that applies one hidden matrix three times (Universal Transformer, Dehghani et al. 2018)",
        "h1[a] = W1[a,x] data[x]\nh2[b] = V[b,a] h1[a]\nh3[a] = V[a,b] h2[b]\nh4[b] = V[b,a] h3[a]\nf = W3[b] h4[b]",
        {"W1": "input", "V": "hidden", "W3": "readout"},
    ),
    "tied-embedding": _Text(
        "dense MLP whose embedding is its readout, too: the logit of its own input (Press and Wolf 2016)",
        "h1[a] = E[a,x] data[x]\nh2[b] = V[b,a] h1[a]\nf = out E[b,x] h2[b] data[x]",
        {"E": "embedding", "V": "hidden"},
    ),
    "linear-attention": _Text(
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


def _stacked(blocks: int) -> _Text:
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
    return _Text(title, f"{equations}f = W4[b] {source}[b]", {**roles, "W4": "readout"})


def _layer(title: str, attention: str, roles: Mapping[str, str], shared: str = "") -> _Text:
    """One pre-norm layer of a language model: attention, gated experts, a residual stream, and gates held (standing
    assumption B2 of MSSP paper, J.2).

    Args:
        attention: reads ``n1`` and writes ``u``.
        roles: of the tensors of attention.
        shared: what is added to the sum over experts: reads ``n2`` and writes ``s3``.
    """
    experts = """
    psi[t,i] = Q[i,a] n2[t,a]
    phi[t,i] = gate(psi[t,i])
    w[t,i,k] = W1[i,k,a] n2[t,a]
    m[t,i,k] = W2[i,k,a] n2[t,a]
    h2[t,i,k] = silu(w[t,i,k]) m[t,i,k]
    h3i[t,i,b] = W3[i,b,k] h2[t,i,k]
    h3[t,b] = alpha phi[t,i] h3i[t,i,b]
    """
    equations = f"""
    h0[s,a] = E[a,x] data[s,x]
    r1[s,a] = rmsnorm(h0[s,a]; a)
    n1[s,a] = G1[a] r1[s,a]
    {attention}
    h1[t,a] = h0[t,a] + u[t,a]
    r2[t,a] = rmsnorm(h1[t,a]; a)
    n2[t,a] = G2[a] r2[t,a]
    {experts}{shared}
    h4[t,b] = h1[t,b] + h3[t,b]{" + s3[t,b]" * bool(shared)}
    r4[t,b] = rmsnorm(h4[t,b]; b)
    nf[t,b] = F[b] r4[t,b]
    f = U[b] nf[t,b]
    """
    tensors = {"E": "embedding", "G1": "gain", **roles, "G2": "moe_gain", "Q": "router"}
    tensors |= {"W1": "expert_gate", "W2": "expert_in", "W3": "expert_out"}
    shares = {"V1": "shared_gate", "V2": "shared_in", "V3": "shared_out"} if shared else {}
    return _Text(title, equations, {**tensors, **shares, "F": "final_gain", "U": "readout"})


def _biased(text: _Text, biases: Mapping[str, tuple[str, str]]) -> _Text:
    """The same equations, in which some signals have a trained bias in all their letters but that of the token: tensor
    and role of each."""
    equations = text.equations
    for signal, (name, _) in biases.items():
        line = rf"^ *{signal}\[([st]),([\w,]+)\] = .*$"
        equations = re.sub(line, rf"\g<0> + {name}[\2,x] data[\1,x]", equations, flags=re.M)
    return _Text(text.title, equations, {**text.roles, **dict(biases.values())})


_GROUPED = _attention("j,y,e", "j,e", cache="n1[s,a]", source="n1[s,a]")
_LAYERS = {
    "mixtral": _layer(
        "one layer of Mixtral: norms, grouped queries, SwiGLU experts (Jiang et al. 2024)", _GROUPED, _HEADS
    ),
    "qwen3-moe": _layer(
        "one layer of Qwen3-MoE: grouped queries, norms of queries and keys, SwiGLU experts (Qwen Team 2025)",
        _attention("j,y,e", "j,e", cache="n1[s,a]", source="n1[s,a]", norms=True),
        {**_HEADS, "Gq": "query_gain", "Gk": "key_gain"},
    ),
    "gpt-oss": _biased(
        _layer("one layer of gpt-oss: biases, grouped queries, SwiGLU experts (OpenAI 2025)", _GROUPED, _HEADS),
        {
            "q": ("Bq", "query_bias"),
            "k": ("Bk", "key_bias"),
            "v": ("Bv", "value_bias"),
            "u": ("Bo", "attention_out_bias"),
            "psi": ("Br", "router_bias"),
            "w": ("B1", "expert_gate_bias"),
            "m": ("B2", "expert_in_bias"),
            "h3i": ("B3", "expert_out_bias"),
        },
    ),
    "deepseek-v3": _layer(
        "one layer of DeepSeek-V3: latent attention with norms, a shared expert (DeepSeek-AI 2024)",
        """
        z[s,d] = Wa[d,a] n1[s,a]
        rz[s,d] = rmsnorm(z[s,d]; d)
        nz[s,d] = Gq[d] rz[s,d]
        c[s,c] = Wc[c,a] n1[s,a]
        rc[s,c] = rmsnorm(c[s,c]; c)
        nc[s,c] = Gc[c] rc[s,c]
        """
        + _attention(cache="nc[s,c]", source="nz[s,d]"),
        {"Wa": "query_latent", "Gq": "query_gain", "Wc": "latent", "Gc": "latent_gain", **_HEADS},
        shared="ws[t,k] = V1[k,a] n2[t,a]\ns2[t,k] = silu(ws[t,k]) V2[k,a] n2[t,a]\ns3[t,b] = V3[b,k] s2[t,k]",
    ),
}
"""Whole layers of language models. These are named like the others, but what goes through the whole library leaves
them out: each takes as long as the rest together."""


class _Library(Mapping[str, Network]):
    """Networks by name, read when first asked for. Whole layers, ``stack3`` and so on are there without being gone
    through."""

    def __getitem__(self, name: str) -> Network:
        stack = re.fullmatch(r"stack([1-9]\d?)", name)
        text = _stacked(int(stack[1])) if stack else (_SHIPPED | _LAYERS)[name]
        return _read(name, text.title, text.equations, tuple(text.roles.items()))

    def __iter__(self) -> Iterator[str]:
        return iter((*_SHIPPED, "stack2"))

    def __len__(self) -> int:
        return len(_SHIPPED) + 1

    def __contains__(self, name: object) -> bool:
        shipped = name in _SHIPPED or name in _LAYERS
        return shipped or (isinstance(name, str) and re.fullmatch(r"stack[1-9]\d?", name) is not None)


@cache
def _read(name: str, title: str, equations: str, roles: tuple[tuple[str, str], ...]) -> Network:
    return network(name, equations, AXES, dict(roles), title)


ARCHITECTURES = _Library()
"""Every network that ships, by name."""
TITLES = {
    **{name: text.title for name, text in _SHIPPED.items()},
    "stack2": _stacked(2).title,
    **{name: text.title for name, text in _LAYERS.items()},
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
