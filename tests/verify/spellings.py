"""Modules in one line, what a row of a table says of them, and ``check``, which holds a reading against a row."""

import itertools
import re
from collections.abc import Callable
from fnmatch import fnmatch
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from scaling_algebra import derive
from scaling_algebra.verify.tracing import Unreadable, trace_equations

HIDDEN, READOUT, INPUT = ("N^(-1/2)", "N^-1"), ("N^-1", "N^-1"), ("1", "1")
LAWS = {"HIDDEN": HIDDEN, "READOUT": READOUT, "INPUT": INPUT}
"""Init std and learning rate of muP with Adam, by the name that rows give them."""
COUNTS = {"has": range(1, 99), "lacks": range(1), "once": range(1, 2), "twice": range(2, 3)}
PARTS: dict[str, Any] = {
    "a": "4>N", "b": "N>N", "c": "N>3", "inp": "5>N", "head": "N>3", **dict.fromkeys(("w", "v", "u", "k", "gk"), "N>N"),
    **dict.fromkeys(("g", "t"), "N,"), "rms": lambda z: nn.RMSNorm(z["N"]), "ln": lambda z: nn.LayerNorm(z["N"]),
    "unit": lambda z: nn.utils.parametrizations.spectral_norm(nn.Linear(z["N"], z["N"])),
}  # fmt: skip
"""Parts that rows name without saying what they are."""


def drawn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def mean(x):
    return x.mean(-1, keepdim=True)


class Module(nn.Module):
    """Computes ``run(self, *inputs)``; tensors among its parts are buffers."""

    def __init__(self, run, **parts):
        super().__init__()
        self.run = run
        for name, part in parts.items():
            constant = isinstance(part, torch.Tensor) and not isinstance(part, nn.Parameter)
            self.register_buffer(name, part) if constant else setattr(self, name, part)

    def forward(self, *inputs):
        return self.run(self, *inputs)


class Stop(torch.autograd.Function):
    forward = staticmethod(lambda ctx, x: x.clone())
    backward = staticmethod(lambda ctx, g: g * 0)


def make_part(text, sizes):
    """Makes a part: ``4>N`` a linear layer (``+`` at the end: with a bias), ``9|N`` an embedding, ``M,N,N`` a normal
    parameter (``,`` one number), ``M:N>N`` a list of M parts, ``K`` a number, or a name of ``PARTS``; with ``~`` at the
    end it is frozen."""
    if callable(text := PARTS.get(text, text)):
        return text(sizes)
    count, _, text = text.rpartition(":")
    if count:
        return nn.ModuleList(make_part(text, sizes) for _ in range(eval(count, {}, sizes)))
    bare = text.rstrip("~+")
    sides = [eval(side, {}, sizes) for side in re.split("[>|,]", bare) if side]
    if ">" in bare:
        layers = [nn.Linear(i, o, bias="+" in text[len(bare) :]) for i, o in itertools.pairwise(sides)]
        part = layers[0] if len(layers) == 1 else nn.Sequential(*layers)
    elif "|" in bare:
        part = nn.Embedding(*sides)
    elif "," in bare:
        part = nn.Parameter(torch.randn(sides))
    else:
        return sides[0]
    return part.requires_grad_("~" not in text)


def net(run: Callable[..., Any], parts: str = "", inputs: Any = None, tie: Any = (), **more: Any) -> Callable[..., Any]:
    """Returns the ``build`` of a module that computes ``run``.

    Args:
        run: function of the module and its inputs.
        parts: ``name=text`` as in ``make_part``, or a name of ``PARTS``, one behind the other.
        inputs: the input; None lets it be guessed.
        tie: two parts of which the first has the weight of the second.
        more: parts by name, as text or as functions of the sizes.
    """

    def build(sizes):
        named = {name: text or name for name, _, text in (part.partition("=") for part in parts.split())}
        model = Module(run, **{name: make_part(text, sizes) for name, text in (named | more).items()})
        if tie:
            getattr(model, tie[0]).weight = getattr(model, tie[1]).weight
        return model if inputs is None else (model, inputs)

    return build


def of(between, parts="", **more):
    """Something between an input layer of five numbers and three outputs, beside a square matrix ``w``."""
    return net(lambda m, x: m.head(between(m, m.inp(x))), f"inp head n=N w {parts}", **more)


def _derive(model, ray, **where):
    return derive(ray=ray, **{"optimizer": "adam", "parameterization": "mup", "network": model.network, **where})


def derive_powers(model, ray="N=1", scaled=False, **where):
    """Returns the init std and rate of each parameter; ``scaled``: with the factor that the module multiplies it by."""
    d = _derive(model, ray, **where)
    return {name: (str(x.init_std), str(x.lr)) for name, x in (d.scaling.tensors if scaled else d.tensors).items()}


def multipliers(model, ray="N=1"):
    return {name: str(1 / power) for name, power in _derive(model, ray).scaling.multipliers.items()}


def _list_factors(model, ray):
    own = (sorted(own.items()) for _, own in model.factors.values())
    return "; ".join(sorted(" ".join(f"{axis}={power}" for axis, power in powers) for powers in own if powers))


OPTIONS = {"ray": "N=1", "error": "1e-12"}
WHOLE = {
    "lines": lambda model, ray: "; ".join(model.lines),
    "told": lambda model, ray: "; ".join(x for x in model.lines if "left out" not in x),
    "notes": lambda model, ray: "; ".join(map(str, model.notes)),
    "frozen": lambda model, ray: " ".join(sorted(model.network.frozen)),
    "parameters": lambda model, ray: str(len(model.network.tensors)),
    "multipliers": lambda model, ray: " ".join("=".join(x) for x in sorted(multipliers(model, ray).items())),
    "factors": _list_factors,
    "level": lambda model, ray: "certified" * _derive(model, ray, optimizer="adamw").level.certified,
}


def strip(role):
    """Removes what the layer calls its parameter, and the number of a part."""
    return re.sub(r"\.(weight|bias)|\[\d+\]", "", role)


def check(build, *reading, read=trace_equations):
    """Holds what a module is read as against a row of a table, and returns it.

    Args:
        build: function of the sizes that returns the module.
        reading: ``refused: REGEX`` alone; or texts that the equations have (``has``, ``once``, ``twice``, ``lacks``:
            TEXT), the lines (``said``), the reason why there are none (``unread``), why a limit ``stands`` for other
            values, or the note on a parameter (``note: NAME: TEXT``; ``quiet: PATTERN`` for none); the laws of some
            (``answers: PATTERN=HIDDEN ...``) or, with the factors before them, of all layers (``all: NAME=HIDDEN
            ...``); one of ``WHOLE``, whole; on a ``ray``, with an ``error``.
        read: the function that reads it.
    """
    if reading and reading[0].startswith("refused: "):
        with pytest.raises(Unreadable, match=reading[0].removeprefix("refused: ")) as refusal:
            read(build)
        assert "\n" not in str(refusal.value) and "its rule does not cover" not in str(refusal.value)
        return None
    parts = [part.split(": ", 1) for part in reading]
    model, options = read(build), OPTIONS | {what: said for what, said in parts if what in OPTIONS}
    ray, notes = options["ray"], dict(model.notes)
    assert model.error < float(options["error"]) or model.network.unread
    holders = {"said": " ".join(model.lines), "unread": model.network.unread, "stands": model.network.stands}
    for what, said in parts:
        if what in ("answers", "all"):
            laws = [(x, LAWS.get(y) or tuple(y.split(","))) for x, y in (pair.split("=") for pair in said.split())]
            found = derive_powers(model, ray, scaled=what == "all")
            if what == "all":
                assert {(strip(role), law) for role, law in found.items()} == {*laws}
            for pattern, law in laws * (what == "answers"):
                assert {x for role, x in found.items() if fnmatch(role, pattern)} == {law}, (pattern, found)
        elif what in WHOLE:
            assert WHOLE[what](model, ray) == said
        elif what in holders:
            assert holders[what] and said in holders[what]
        elif what == "note":
            assert said.partition(": ")[2] in notes[said.partition(": ")[0]]
        elif what == "quiet":
            assert not [name for name in notes if fnmatch(name, said)]
        elif what not in OPTIONS:
            assert " ".join(model.text.split()).count(said) in COUNTS[what], (what, said, model.text)
    return model


def choose(m, h, scores):
    """Returns the values of the largest scores, and which they are."""
    return scores(m.router(h)).topk(m.k, -1)


def with_experts(between, sparse=True):
    """Something between two layers, with experts of which K (else all) are active."""
    listed = lambda z: nn.ModuleList(  # noqa: E731
        nn.Sequential(nn.Linear(z["N"], z["N_e"]), nn.ReLU(), nn.Linear(z["N_e"], z["N"])) for _ in range(z["M"])
    )
    return of(between, f"m=M k={'K' if sparse else 'M'} router=N>M", experts=listed)


def sum_experts(how="list", gate=lambda m, s: s.softmax(-1), parts=""):
    """The build of one sum over experts, written in one of four ways."""

    def run(m, x):
        h = m.inp(x)
        phi = gate(m, m.router(h))
        if how == "list":
            y = sum(phi[:, i : i + 1] * expert(h) for i, expert in enumerate(m.experts))
        elif how == "einsum":
            y = torch.einsum("be,enk,eki,bi->bn", phi, m.down, m.up, h)
        elif how == "bmm":
            each = torch.bmm(m.down, torch.bmm(m.up, h.T.expand(len(m.up), *h.T.shape)))
            y = (phi.T[:, None] * each).sum(0).T
        else:
            u = torch.einsum("bn,ekn->bek", h, m.up)
            y = (phi[..., None] * torch.einsum("bek,enk->ben", u, m.down)).sum(1)
        return m.head(y)

    own = "experts=M:N>N_e>N" if how == "list" else "up=M,N_e,N down=M,N,N_e"
    return net(run, f"inp router=N>M head {own} {parts}")


def attend(how, head="4"):
    """The build of attention with heads of a dimension, whose queries, keys and values are made in one of four ways."""

    def run(m, ids):
        h = m.tok(ids)
        if how == "mha":
            return m.unembed(h + m.mha(h, h, h, need_weights=False)[0])
        b, t, n = h.shape
        if how == "packed":  # [3, heads, dim], then an index
            q, k, v = m.qkv(h).view(b, t, 3, m.heads, -1).permute(2, 0, 3, 1, 4)
        else:
            parts = m.qkv(h).chunk(3, -1) if how == "chunk" else (m.q(h), m.k(h), m.v(h))
            q, k, v = (x.view(b, t, m.heads, -1).transpose(1, 2) for x in parts)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return m.unembed(h + m.o(o.transpose(1, 2).reshape(b, t, n)))

    own = {"separate": "o=N>N q=N>N k=N>N v=N>N", "mha": ""}.get(how, "o=N>N qkv=N>3*N")
    mha = {"mha": lambda z: nn.MultiheadAttention(z["N"], z["N"] // 4, bias=False, batch_first=True)}
    return net(run, f"tok=11|N unembed=N>11 heads=N//({head}) {own}", **mha if how == "mha" else {})
