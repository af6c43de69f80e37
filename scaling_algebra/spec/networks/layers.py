"""Attention, and whole layers of language models, as equations."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class NetworkText:
    """A network as written: title, equations, roles."""

    title: str
    equations: str
    roles: Mapping[str, str]


def attention(
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


HEADS = {"Wq": "query", "Wk": "key", "Wv": "value", "Wo": "attention_out"}


def _layer(title: str, attention: str, roles: Mapping[str, str], shared: str = "") -> NetworkText:
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
    h4[t,b] = h1[t,b] + h3[t,b]{" + s3[t,b]" if shared else ""}
    r4[t,b] = rmsnorm(h4[t,b]; b)
    nf[t,b] = F[b] r4[t,b]
    f = U[b] nf[t,b]
    """
    tensors = {"E": "embedding", "G1": "gain", **roles, "G2": "moe_gain", "Q": "router"}
    tensors |= {"W1": "expert_gate", "W2": "expert_in", "W3": "expert_out"}
    shares = {"V1": "shared_gate", "V2": "shared_in", "V3": "shared_out"} if shared else {}
    return NetworkText(title, equations, {**tensors, **shares, "F": "final_gain", "U": "readout"})


def _biased(text: NetworkText, biases: Mapping[str, tuple[str, str]]) -> NetworkText:
    """The equations, in which some signals have a trained bias in all their letters but that of the token: tensor
    and role of each."""
    equations = text.equations
    for signal, (name, _) in biases.items():
        line = rf"^ *{signal}\[([st]),([\w,]+)\] = .*$"
        equations = re.sub(line, rf"\g<0> + {name}[\2,x] data[\1,x]", equations, flags=re.M)
    return NetworkText(text.title, equations, {**text.roles, **dict(biases.values())})


_GROUPED = attention("j,y,e", "j,e", cache="n1[s,a]", source="n1[s,a]")
LAYERS = {
    "mixtral": _layer(
        "one layer of Mixtral: norms, grouped queries, SwiGLU experts (Jiang et al. 2024)", _GROUPED, HEADS
    ),
    "qwen3-moe": _layer(
        "one layer of Qwen3-MoE: grouped queries, norms of queries and keys, SwiGLU experts (Qwen Team 2025)",
        attention("j,y,e", "j,e", cache="n1[s,a]", source="n1[s,a]", norms=True),
        {**HEADS, "Gq": "query_gain", "Gk": "key_gain"},
    ),
    "gpt-oss": _biased(
        _layer("one layer of gpt-oss: biases, grouped queries, SwiGLU experts (OpenAI 2025)", _GROUPED, HEADS),
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
        + attention(cache="nc[s,c]", source="nz[s,d]"),
        {"Wa": "query_latent", "Gq": "query_gain", "Wc": "latent", "Gc": "latent_gain", **HEADS},
        shared="ws[t,k] = V1[k,a] n2[t,a]\ns2[t,k] = silu(ws[t,k]) V2[k,a] n2[t,a]\ns3[t,b] = V3[b,k] s2[t,k]",
    ),
}
"""Whole layers of language models. These are named like the others, but what goes through the whole library leaves
them out: each takes as long as the rest together."""
