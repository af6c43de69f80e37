"""Torch modules read as networks: the answers of known muP, and what must be refused."""

import functools
import itertools
import json
import re
from fnmatch import fnmatch
from fractions import Fraction
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn import functional as F

from scaling_algebra import Infeasible, derive
from scaling_algebra.cli import main
from scaling_algebra.documents import Document
from scaling_algebra.documents.frames import rows
from scaling_algebra.errors import UsageError
from scaling_algebra.recipes.recipe import recipe
from scaling_algebra.solver.presentation import brief
from scaling_algebra.spec.networks.files import from_toml
from scaling_algebra.spec.networks.library import ARCHITECTURES
from scaling_algebra.spec.powers import Power
from scaling_algebra.verify.apply import plan
from scaling_algebra.verify.apply.checking import check_model
from scaling_algebra.verify.tracing import TracedModel, Unreadable, trace_equations
from scaling_algebra.verify.tracing.gradients import (
    FROZEN,
    MIXED,
    NO_GRADIENT,
    TRAINING,
    UNREACHED,
    ZERO,
    find_frozen_roles,
)
from scaling_algebra.verify.tracing.model_loading import ModelOption
from scaling_algebra.verify.tracing.models import TOLERANCE
from scaling_algebra.verify.tracing.readings import read_module
from scaling_algebra.verify.tracing.rule_table import RULES, normalise_call_name
from scaling_algebra.verify.tracing.shapes import read_by_shape

from .. import shared


def powers(model: TracedModel, ray: str, **where: str) -> dict[str, tuple[str, str]]:
    d = derive(ray=ray, optimizer="adam", parameterization="mup", network=model.network, **where)
    return {name: (str(d[name].init_std), str(d[name].lr)) for name in d}


def multipliers(model: TracedModel, ray: str) -> dict[str, str]:
    d = derive(ray=ray, optimizer="adam", parameterization="mup", network=model.network)
    return {name: str(1 / power) for name, power in d.scaling.multipliers.items()}


HIDDEN, READOUT, INPUT = ("N^(-1/2)", "N^-1"), ("N^-1", "N^-1"), ("1", "1")


class Base(nn.Module):
    """An input of five numbers, something between, three outputs."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.inp, self.head, self.n = nn.Linear(5, n, bias=False), nn.Linear(n, 3, bias=False), n
        self.w = nn.Linear(n, n, bias=False)

    def forward(self, x):
        return self.head(self.between(self.inp(x)))

    def between(self, h):
        return self.w(h)


def of(between, **more):
    """A build of ``Base`` with this in the middle."""

    def build(sizes):
        model = Base(sizes["N"])
        for name, make in more.items():
            setattr(model, name, make(sizes["N"]))
        model.between = lambda h: between(model, h)
        return model

    return build


LAWS = {"HIDDEN": HIDDEN, "READOUT": READOUT, "INPUT": INPUT}
COUNTS = {"has": range(1, 99), "lacks": range(1), "once": range(1, 2), "twice": range(2, 3)}


def check(build, *reading):
    """Hold what a module is read as against a row of a table, and return it.

    Args:
        reading: ``refused: REGEX`` alone; or what the equations have (``has``, ``once``, ``twice``, ``lacks``: TEXT),
            the init std and rate of roles (``answers: PATTERN=HIDDEN ...``), all ``lines``, or the ``frozen`` roles.
    """
    if reading[0].startswith("refused: "):
        with pytest.raises(Unreadable, match=reading[0].removeprefix("refused: ")):
            trace_equations(build)
        return None
    model = trace_equations(build)
    assert model.error < 1e-12
    for what, _, said in (part.partition(": ") for part in reading):
        if what == "answers":
            found = powers(model, "N=1")
            for role, _, name in (pair.partition("=") for pair in said.split()):
                law = LAWS.get(name) or tuple(name.split(","))
                assert {x for r, x in found.items() if fnmatch(r, role)} == {law}, role
        elif what in ("lines", "frozen"):
            assert {"lines": model.lines, "frozen": sorted(model.network.frozen)}[what] == ([said] if said else [])
        else:
            assert " ".join(model.text.split()).count(said) in COUNTS[what], (what, said, model.text)
    return model


def test_a_perceptron_with_biases():
    def build(sizes):
        n = sizes["N"]
        return nn.Sequential(nn.Linear(5, n), nn.Tanh(), nn.Linear(n, n), nn.ReLU(), nn.Linear(n, 3))

    model = trace_equations(build)
    assert model.error < 1e-12 and not model.lines
    expected = {"0.weight": INPUT, "2.weight": HIDDEN, "4.weight": READOUT}
    assert powers(model, "N=1") == expected | dict.fromkeys(("0.bias", "2.bias", "4.bias"), INPUT)


class FourWays(nn.Module):
    """The same sum over experts, written in four ways."""

    def __init__(self, n: int, ne: int, m: int, how: str) -> None:
        super().__init__()
        self.inp, self.router, self.head = (nn.Linear(*size, bias=False) for size in ((5, n), (n, m), (n, 3)))
        self.how = how
        if how == "list":
            self.experts = nn.ModuleList(
                nn.Sequential(nn.Linear(n, ne, bias=False), nn.Linear(ne, n, bias=False)) for _ in range(m)
            )
        else:
            self.up, self.down = nn.Parameter(torch.randn(m, ne, n)), nn.Parameter(torch.randn(m, n, ne))

    def gate(self, x):
        return x.softmax(-1)

    def forward(self, x):
        h = self.inp(x)
        phi = self.gate(self.router(h))
        if self.how == "list":
            return self.head(sum(phi[:, i : i + 1] * e(h) for i, e in enumerate(self.experts)))
        if self.how == "einsum":
            return self.head(torch.einsum("be,enk,eki,bi->bn", phi, self.down, self.up, h))
        if self.how == "bmm":
            each = torch.bmm(self.down, torch.bmm(self.up, h.T.expand(len(self.up), *h.T.shape)))
            return self.head((phi.T[:, None] * each).sum(0).T)
        u = torch.einsum("bn,ekn->bek", h, self.up)
        return self.head((phi[..., None] * torch.einsum("bek,enk->ben", u, self.down)).sum(1))


@pytest.mark.parametrize("how", ["list", "einsum", "bmm", "stacked"])
def test_experts_in_four_ways_have_one_answer(how):
    model = trace_equations(lambda z: FourWays(z["N"], z["N_e"], z["M"], how))
    named = (
        {"up": "experts.*.0.weight", "down": "experts.*.1.weight"} if how == "list" else {"up": "up", "down": "down"}
    )
    ray = "N=1,N_e=1,M=1"
    assert powers(model, ray) == {
        "inp.weight": INPUT,
        "router.weight": HIDDEN,
        named["up"]: HIDDEN,
        named["down"]: ("N_e^(-1/2)", "N_e^-1"),
        "head.weight": READOUT,
    }
    assert multipliers(model, ray) == {"alpha": "M^-1"}
    assert "the module multiplies by M^-1 here (alpha in the equations)" in " ".join(model.lines)
    assert any("held at its mean and slope (assumption B2)" in line for line in model.lines)
    assert "add" not in {name for _, name, _, _ in model.calls.values()}  # with more experts it is a part of the sum


def chosen(m, h, scores):
    """The values of the largest scores, and which they are."""
    return scores(m.router(h)).topk(m.k, -1)


def loop(m, h, weights):
    out = torch.zeros_like(h)
    for e, expert in enumerate(m.experts):
        out = out + weights[:, e : e + 1] * expert(h)
    return out


def dispatched(m, h, norm):
    w, i = chosen(m, h, lambda s: s.softmax(-1))
    w = w / w.sum(-1, keepdim=True) if norm else w
    out = torch.zeros_like(h)
    for e, expert in enumerate(m.experts):
        token, place = torch.where(i == e)
        out[token] += expert(h[token]) * w[token, place, None]
    return out


def scattered(m, h, value):
    w, i = chosen(m, h, lambda s: s)
    return loop(m, h, torch.full((len(h), m.m), value).scatter(-1, i, w).softmax(-1))


def masked(m, h):
    w, i = chosen(m, h, torch.sigmoid)
    w = w / (w.sum(-1, keepdim=True) + 1e-20)
    return sum((w * (i == e)).sum(-1, keepdim=True) * expert(h) for e, expert in enumerate(m.experts))


WAYS = {
    "largest of all": (lambda m, h: dispatched(m, h, False), {"M": -1}),
    "largest, normalised": (lambda m, h: dispatched(m, h, True), {"K": -1}),
    "into zeros, then softmax": (lambda m, h: scattered(m, h, 0.0), {"M": -1}),
    "into -inf, then softmax": (lambda m, h: scattered(m, h, -torch.inf), {"K": -1}),
    "sigmoids, normalised": (masked, {"K": -1}),
    "sigmoids": (lambda m, h: loop(m, h, m.router(h).sigmoid()), {}),
    "mean of sigmoids": (lambda m, h: loop(m, h, m.router(h).sigmoid()) / m.m, {"M": -1}),
    "stacked": (
        lambda m, h: (m.router(h).softmax(-1)[..., None] * torch.stack([e(h) for e in m.experts], 1)).sum(1),
        {"M": -1},
    ),
}


def with_experts(between, sparse):
    def build(sizes):
        model = of(between)(sizes)
        n, n_e = sizes["N"], sizes["N_e"]
        model.m, model.k = sizes["M"], sizes["K"] if sparse else sizes["M"]
        model.router = nn.Linear(n, model.m, bias=False)
        model.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(n, n_e), nn.ReLU(), nn.Linear(n_e, n)) for _ in range(model.m)
        )
        return model

    return build


@pytest.mark.parametrize("way", WAYS)
def test_what_a_loop_over_experts_itself_multiplies_by(way):
    """All experts run where a model is read: what K and M each do is read off builds that change one of them."""
    between, own = WAYS[way]
    model = trace_equations(with_experts(between, sparse="K" in own or way[:7] == "largest"))
    assert model.error < 1e-12 and model.network.axes["i"] == "M"
    assert {axis: power for _, powers in model.factors.values() for axis, power in powers.items()} == own


def gated_by(gates):
    """A sum over experts whose gates are ``gates(scores, M, K)``."""

    class Sparse(FourWays):
        def gate(self, x):
            return gates(x, x.shape[-1], self.k)

    def build(z):
        model = Sparse(z["N"], z["N_e"], z["M"], "stacked")
        model.k = z["K"]
        return model

    return build


SHARES = {
    "largest of softmax": (lambda s: s.softmax(-1), False, {"M": -1}),
    "largest of sigmoids": (torch.sigmoid, False, {}),
    "sigmoids, normalised": (torch.sigmoid, True, {"K": -1}),
}
FACTORS = {
    "1": (lambda m, k: 1.0, {}),
    "sqrt(K)": (lambda m, k: k**0.5, {"K": "1/2"}),
    "K": (lambda m, k: k, {"K": 1}),
    "1/sqrt(M)": (lambda m, k: m**-0.5, {"M": "-1/2"}),
    "sqrt(K/M)": (lambda m, k: (k / m) ** 0.5, {"K": "1/2", "M": "-1/2"}),
    "M/K": (lambda m, k: m / k, {"K": -1, "M": 1}),
}


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("share", SHARES)
def test_a_factor_belongs_to_the_size_that_makes_it(share, factor):
    (score, norm, own), (of_sizes, more) = SHARES[share], FACTORS[factor]

    def gates(s, m, k):
        w, i = score(s).topk(k, -1)
        w = (w / w.sum(-1, keepdim=True) if norm else w) * of_sizes(m, k)
        return torch.zeros_like(s).scatter(-1, i, w)

    model = trace_equations(gated_by(gates))
    expected = {axis: Fraction(own.get(axis, 0)) + Fraction(more.get(axis, 0)) for axis in "MK"}
    assert [dict(x) for _, x in model.factors.values()] == [{axis: x for axis, x in expected.items() if x}]
    assert not model.joint and not model.find_open_shares({"M": 8, "K": 2}, {"M": 32, "K": 4})


JOINTLY = {
    "a mean over the chosen": lambda s, w, i, k: torch.zeros_like(s).scatter(-1, i, w / w.shape[-1]),
    "its own number in a shape": lambda s, w, i, k: torch.zeros_like(s).scatter(-1, i, w.reshape(-1, k)),
    "a mask of the chosen": lambda s, w, i, k: s * torch.zeros_like(s).scatter(-1, i, 1.0),
}


@pytest.mark.parametrize("way", JOINTLY)
def test_what_is_read_with_all_experts_alone_is_open_where_their_share_changes(way):
    """What runs with all experts active is another function there, or no function: the executed equations tell."""

    model = trace_equations(gated_by(lambda s, m, k: JOINTLY[way](s.softmax(-1), *s.softmax(-1).topk(k, -1), k)))
    (found,) = model.find_open_shares({"M": 8, "K": 2}, {"M": 32, "K": 4})
    assert model.joint and found.quantity == "alpha" and "powers of K count as powers of M" in str(found)
    assert not model.find_open_shares({"M": 8, "K": 2}, {"M": 32, "K": 8})
    assert any("powers of K count as powers of M" in line for line in model.lines)


def test_layers_with_experts_are_two_letters():
    """Both loops are folded, with biases in every turn and a factor that changes with their lengths."""

    class Layer(nn.Module):
        def __init__(self, n, m):
            super().__init__()
            self.experts, self.router = nn.ModuleList(nn.Linear(n, n) for _ in range(m)), nn.Linear(n, m)

        def forward(self, h):
            return loop(self, h, self.router(h).softmax(-1))

    def build(sizes):
        model = of(lambda m, h: functools.reduce(lambda x, layer: x + layer(x) / len(m.layers), m.layers, h))(sizes)
        model.layers = nn.ModuleList(Layer(sizes["N"], sizes["M"]) for _ in range(sizes["L"]))
        return model

    model = trace_equations(build)
    assert "layers.*.experts.*.bias" in model.network.tensors and set("LM") < set(model.network.axes.values())
    assert sorted(map(dict, (own for _, own in model.factors.values())), key=str) == [{"L": -1}, {"M": -1}]


class Attention(nn.Module):
    def __init__(self, n: int, head: int, how: str) -> None:
        super().__init__()
        self.tok, self.o, self.unembed = nn.Embedding(11, n), nn.Linear(n, n, bias=False), nn.Linear(n, 11, bias=False)
        self.heads, self.how = n // head, how
        if how == "mha":
            self.mha = nn.MultiheadAttention(n, self.heads, bias=False, batch_first=True)
        elif how == "separate":
            self.q, self.k, self.v = (nn.Linear(n, n, bias=False) for _ in range(3))
        else:
            self.qkv = nn.Linear(n, 3 * n, bias=False)

    def forward(self, ids):
        h = self.tok(ids)
        if self.how == "mha":
            return self.unembed(h + self.mha(h, h, h, need_weights=False)[0])
        b, t, n = h.shape
        if self.how == "packed":  # [3, heads, dim], then an index
            q, k, v = self.qkv(h).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        else:
            parts = self.qkv(h).chunk(3, -1) if self.how == "chunk" else (self.q(h), self.k(h), self.v(h))
            q, k, v = (x.view(b, t, self.heads, -1).transpose(1, 2) for x in parts)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.unembed(h + self.o(o.transpose(1, 2).reshape(b, t, n)))


@pytest.mark.parametrize("how", ["separate", "chunk", "packed", "mha"])
def test_packed_queries_keys_and_values_are_three_tensors(how):
    """Packed weights were once read as q = k = v."""
    model = trace_equations(lambda z: Attention(z["N"], 4, how))
    answer = powers(model, "N=1")
    assert len(answer) == 6
    assert sorted(answer.values()) == sorted([INPUT, READOUT, *[HIDDEN] * 4])
    assert model.error < 1e-6


def test_a_head_that_grows_has_a_factor_of_its_own():
    model = trace_equations(lambda z: Attention(z["N"], z["N"] // 4, "separate"))
    assert multipliers(model, "N=1") == {"scale": "N^-1"}
    assert "the module multiplies by N^(-1/2) here (scale in the equations)" in " ".join(model.lines)


def test_low_rank_and_merged_low_rank_are_one():
    more = {"a": lambda n: nn.Parameter(torch.randn(2, n)), "b": lambda n: nn.Parameter(torch.randn(n, 2))}
    apart = trace_equations(of(lambda m, h: m.w(h) + 2.0 * (h @ m.a.T @ m.b.T), **more))
    merged = trace_equations(of(lambda m, h: F.linear(h, m.w.weight + m.b @ m.a), **more))
    held = {"given": ["a.init=N^-1/2", "b.init=1"]}
    assert powers(apart, "N=1", **held) == powers(merged, "N=1", **held)


class ResidualBlock(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(n), nn.Linear(n, 2 * n), nn.Linear(2 * n, n, bias=False)

    def forward(self, h):
        return h + self.down(torch.relu(self.up(self.norm(h))))


def test_layers_become_a_letter_and_have_complete_p():
    class Deep(nn.Module):
        def __init__(self, n, depth):
            super().__init__()
            self.inp, self.layers = nn.Linear(5, n, bias=False), nn.ModuleList(ResidualBlock(n) for _ in range(depth))
            self.head = nn.Linear(n, 3, bias=False)

        def forward(self, x):
            h = self.inp(x)
            for layer in self.layers:
                h = layer(h)
            return self.head(h)

    model = trace_equations(lambda z: Deep(z["N"], z["L"]))
    assert multipliers(model, "N=1,L=1") == {"scale": "L^-1"}
    assert powers(model, "N=1,L=0")["layers.*.up.weight"] == HIDDEN
    assert "layers.*.down.weight" in powers(model, "N=1,L=0")


def written(h, *stops):
    """What is written part by part into a new tensor."""
    out = torch.zeros_like(h)
    for start, stop in itertools.pairwise((0, *stops)):
        out[:, start:stop] = h[:, start:stop]
    return out


class Low(nn.Module):
    """LoRA of rank 8 beside a frozen layer."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.tokens, self.base = nn.Embedding(64, n), nn.Linear(n, n, bias=False)
        self.A, self.B = nn.Linear(n, 8, bias=False), nn.Linear(8, n, bias=False)
        self.head = nn.Linear(n, 64, bias=False)
        for module in (self.tokens, self.base, self.head):
            module.weight.requires_grad_(False)

    def forward(self, ids):
        h = self.tokens(ids)
        return self.head(h + self.base(h) + self.B(self.A(h)))


def test_frozen_parameters_are_frozen_tensors():
    """As the same network by hand: A has std N^-1/2 and rate N^-1, B rate 1; trained whole there is another answer."""
    model = trace_equations(lambda sizes: Low(sizes["N"]))
    assert model.lines == [f"tokens.weight, base.weight, head.weight: {FROZEN}"]
    assert from_toml(model.text).frozen == model.network.frozen == {"tokens.weight", "base.weight", "head.weight"}
    found = powers(model, "N=1")
    assert found["A.weight"] == HIDDEN and found["B.weight"] == INPUT
    p = plan(lambda sizes: Low(sizes["N"]), "N=32", "N=128", lr=1e-2, eps=1e-8, std=0.1)
    assert [g["name"] for g in p.param_groups()] == ["A.weight", "B.weight"]


def test_a_plan_without_a_derived_epsilon_has_a_negligible_one():
    """Low rank beside a layer that trains, too: with a derived epsilon the low-rank part diverges."""

    def build(sizes):
        return Low(sizes["N"]).requires_grad_(True)

    p = plan(build, "N=32", "N=128", lr=1e-2, eps=1e-8, std=0.1)
    assert any("negligible epsilon" in x for x in p.warnings) and p["A.weight"].settings["init_std"].factor == 1 / 4
    with pytest.raises(Infeasible, match="stays O"):
        plan(build, "N=32", "N=128", lr=1e-2, eps=1e-8, std=0.1, epsilon="derived")


class Stop(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g * 0


@pytest.mark.parametrize(
    ("between", "told"),
    [
        (lambda m, h: h + F.linear(h, m.w.weight.data), [f"w.weight: {UNREACHED}"]),
        (lambda m, h: Stop.apply(m.w(h)), [f"inp.weight, w.weight: {ZERO}"]),
        (lambda m, h: m.w(h) if m.training else h, [f"w.weight: {TRAINING}"]),
        (lambda m, h: m.w(h), []),
    ],
    ids=["data", "backward", "training", "control"],
)
def test_what_no_gradient_reaches_is_named(between, told):
    assert [x for x in trace_equations(of(between)).lines if "left out" not in x] == told


def test_without_gradients_nothing_trains():
    with pytest.raises(UsageError, match="no parameter receives a gradient from the output, so nothing trains"):
        trace_equations(
            of(lambda m, h: m.w(h).detach(), head=lambda n: nn.Linear(n, 3, bias=False).requires_grad_(False))
        )


def test_what_is_frozen_in_some_layers_alone_is_told():
    names = {"layers.0.w": FROZEN, "layers.1.w": "", "head": UNREACHED, "spare": FROZEN}
    roles, said = find_frozen_roles(names, ["layers.*.w", "head"])
    assert roles == ["head"] and dict(said) == {"layers.*.w": MIXED, "head": UNREACHED}


@pytest.mark.parametrize(("rule", "times"), [("sgd", 2), ("momentum", 2), ("adam", 1), ("muon", 1)])
def test_a_factor_beside_a_tensor_moves_its_rate_by_its_rule(rule, times):
    """Behind the head the module divides by N: m^2 of the rate along a gradient, m of a normalised one."""

    def build(sizes):
        model = of(lambda m, h: m.w(h))(sizes)
        model.forward = lambda x: model.head(model.between(model.inp(x))) / sizes["N"]
        return model

    option = ModelOption(trace_equations(build))
    d = derive(ray="N=1", optimizer=rule, parameterization="mup", network=option.network)
    assert d["head.weight"].lr == d.scaling.tensors["head.weight"].lr * Power.of({"N": times})
    record = option.append_notes(Document((), d.as_json())).record
    head = next(row for row in rows(record) if row["name"] == "head.weight")
    assert head["lr.N_value"] == d["head.weight"].lr.on(d.ray) and head["multiplier.N"] == "0"


def test_a_gain_that_is_a_number():
    model = trace_equations(
        of(lambda m, h: h + m.gain * torch.tanh(m.w(h)), gain=lambda n: nn.Parameter(torch.ones(())))
    )
    answer = powers(model, "N=1")
    assert answer["gain"] == INPUT and answer["w.weight"] == HIDDEN


REFUSED = {
    "cumsum: no rule": lambda m, h: m.w(h).cumsum(-1),
    "sort: no rule": lambda m, h: m.w(h).sort(-1).values,
    "gt: no rule for this call; replace the selection": lambda m, h: m.w(h) + (h > 0).double().mean(),
    "randn_like: noise in evaluation mode": lambda m, h: m.w(F.normalize(h) + torch.randn_like(h)),
    "branches on a computed tensor": lambda m, h: m.w(h) if h.sum() > 0 else h,
    "branches on a computed tensor ": lambda m, h: m.w(h) if bool((h > 0).any()) else h,
    "a difference of two signals of one law may": lambda m, h: m.w(h) - m.w(h),
    "a difference of two signals of one law": lambda m, h: torch.relu(m.w(h)) - torch.relu(m.w.weight @ h.T).T * 1,
    "a sum that cancels": lambda m, h: h + m.minus * h,
    "large entries become rarer": lambda m, h: m.w(h) * F.one_hot(torch.tensor(0), m.n),
    "a function of weights alone cannot be written": lambda m, h: m.w(h) * m.w.weight[0],
    "only partly assigned": lambda m, h: h * written(m.w(h), m.n // 2),
    "entries differ along an axis that grows": lambda m, h: F.linear(h, torch.ones(m.n, m.n).triu()),
    "mv: a constant whose entries differ along": lambda m, h: m.unit(h),
    "no function of the equations has its values": lambda m, h: torch.log(m.w(h) ** 2 + 1),
    "sizes .* no multiple of one axis": lambda m, h: m.v(h),
    "output changes with the order": lambda m, h: m.w(h).topk(m.n, -1).values,
    "where no single parameter can absorb it in all of its uses": lambda m, h: h + m.w(h / m.n),
    "used both whole and in parts": lambda m, h: torch.cat([m.w(h)[:, : m.n // 2], h[:, m.n // 2 :]], -1),
}


@pytest.mark.parametrize("why", REFUSED)
def test_refused_in_one_line(why):
    with pytest.raises(Unreadable, match=why.strip()) as refusal:
        more = {"unit": lambda n: nn.utils.parametrizations.spectral_norm(nn.Linear(n, n))}
        more |= {"v": lambda n: nn.Sequential(nn.Linear(n, n + 7), nn.Linear(n + 7, n))}
        trace_equations(of(REFUSED[why], minus=lambda n: nn.Buffer(-torch.ones(n)), **more))
    assert "\n" not in str(refusal.value) and "its rule does not cover" not in str(refusal.value)


def test_writes_through_views_are_refused():
    def between(m, h):
        y = m.w(h).clone()
        y.view(-1).mul_(2.0)
        return y * 1.0

    with pytest.raises(Unreadable, match="in place through a view"):
        trace_equations(of(between))


def test_constants_stay_in_the_graph():
    """1 + tanh was once read as tanh; x (1 + tanh x) is a function, and (u + 1) s is u s + s."""
    gelu = trace_equations(of(lambda m, h: 0.5 * m.w(h) * (1 + torch.tanh(m.w(h)))))
    assert "silu(" not in gelu.text  # two calls of w are two signals
    new = trace_equations(of(lambda m, h: (lambda x: 0.5 * x * (1 + torch.tanh(0.8 * (x + 0.045 * x**3))))(m.w(h))))
    assert new.text.count("gelu(") == 1 and new.error < 1e-12
    glu = trace_equations(of(lambda m, h: (m.w(h) + 1) * F.silu(h)))
    assert glu.text.count(" + ") == 1 and glu.error < 1e-12


def test_the_guard_refuses_a_wrong_rule(monkeypatch):
    """A planted fault: a matrix is read as its transpose, which no shape shows."""
    linear = RULES["linear"]

    def wrong(reader, x, weight, *more):
        weight.dims.reverse()
        return linear(reader, x, weight, *more)

    class Square(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.tok, self.w = nn.Embedding(7, n), nn.Linear(n, n, bias=False)

        def forward(self, ids):
            return self.w(self.tok(ids))

    assert trace_equations(lambda z: Square(z["N"])).error < TOLERANCE
    monkeypatch.setitem(RULES, "linear", wrong)
    with pytest.raises(Unreadable, match="w: linear: the equations give other values"):
        trace_equations(lambda z: Square(z["N"]))


@pytest.mark.parametrize("name", ["__radd__", "add_", "add", "__iadd__"])
def test_names_of_functions_methods_and_aten_are_one(name):
    assert normalise_call_name(name) == "add"


def test_a_text_comes_out_that_is_read_again(tmp_path, capsys, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "from torch import nn\ndef build(sizes):\n    n = sizes['N']\n"
        "    return nn.Sequential(nn.Linear(5, n), nn.ReLU(), nn.Linear(n, 3))\n"
    )

    def scalecalc(*words):
        with pytest.raises(SystemExit) as left:
            main(list(words))
        assert not left.value.code
        return capsys.readouterr().out

    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(scalecalc("list", "--model", "mine.py:build"))
    options = ("--ray", "N=1", "--format", "json")
    read = json.loads(scalecalc("derive", "--model", "mine.py:build", "--format", "json"))
    again = json.loads(scalecalc("derive", "--network", "mine.toml", *options))
    assert read["tensors"] == again["tensors"]
    assert {x: read["tensors"]["2.weight"][x] for x in ("init_std", "lr")} == {
        "init_std": {"N": "-1"},
        "lr": {"N": "-1"},
    }


def test_a_plan_takes_out_what_the_module_multiplies_by():
    """Behind the head the module divides by N: of muP's N^-1 and N^-1 nothing is left to the head itself."""

    def between(m, h):
        a, b = m.two(m.norm(h)).chunk(2, -1)
        return torch.tanh(a) + F.silu(b) * 8 / m.n

    more = {"norm": nn.RMSNorm, "two": lambda n: nn.Linear(n, 2 * n, bias=False)}
    with pytest.raises(Unreadable, match="the module multiplies by N"):
        plan(of(between, **more), "N=16", "N=64", lr=1e-2, strict=True)

    def build(sizes):
        model = of(lambda m, h: torch.tanh(m.w(m.norm(h))), norm=nn.RMSNorm)(sizes)
        model.forward = lambda x: model.head(model.between(model.inp(x))) * 8 / sizes["N"]
        return model

    p = plan(build, "N=16", "N=64", lr=1e-2, eps=1e-8, std=0.1)
    assert p["head.weight"].settings["init_std"].factor == p["head.weight"].settings["lr"].factor == 1
    assert p["w.weight"].settings["lr"].factor == 1 / 4 and torch.equal(p.init_().norm.weight, torch.ones(64))


SPARE = """
from torch import nn
from torch.nn import functional as F
class M(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.a, self.b, self.head = nn.Linear(5, n, bias=False), nn.Linear(n, n), nn.Linear(n, 3, bias=False)
    def forward(self, x):
        return self.head(F.linear(self.a(x), self.b.weight.data))
def build(sizes):
    return M(sizes["N"])
"""


def test_what_the_output_does_not_depend_on_has_no_numbers(tmp_path):
    """Every verb names it: a plan with what no gradient reaches."""
    build = of(lambda m, h: F.linear(h, m.w.weight.data), spare=lambda n: nn.Linear(n, n))
    told = r"does not depend on spare.weight, spare.bias, and no gradient of the output reaches w.weight; freeze"
    with pytest.raises(UsageError, match=told):
        plan(build, "N=16", "N=64")
    (tmp_path / "mine.py").write_text(SPARE)
    model = ("--model", f"{tmp_path / 'mine.py'}:build")
    listed = shared.scalecalc("list", *model).stdout
    assert f"# b.bias: {NO_GRADIENT}\n# b.weight: {UNREACHED}" in listed and from_toml(listed).tensors.keys() == {
        "a.weight", "b.weight", "head.weight"
    }  # fmt: skip
    for words in (("explain", "b.bias.lr"), ("derive", "--given", "b.bias.lr=N^-1")):
        refused = shared.scalecalc(*words, *model)
        assert (refused.exit_code, refused.stderr) == (2, f"scalecalc: b.bias: {NO_GRADIENT}\n")


def test_what_acts_in_training_mode_alone_has_the_numbers_of_its_shape():
    """A noise whose size is learned; the tensor beside it is in the output, and certified."""

    def noisy(m, h):
        return m.w(h) + (torch.randn(1) * (h @ m.noise).mean() if m.training else 0)

    build = of(noisy, noise=lambda n: nn.Parameter(torch.zeros(n, 3)))
    reading = read_module(build)
    assert reading.notes == [("noise", TRAINING)] and [*reading.beside.tensors] == ["noise"]
    p = plan(build, "N=16", "N=64", lr=1e-2, eps=1e-8, std=0.1)
    assert str(p.level).endswith(", 1 size undecided") and p.level.concerned == "undecided: noise"
    assert (
        p["noise"].settings["init_std"].factor
        == p["noise"].settings["lr"].factor
        == p["w.weight"].settings["lr"].factor
    )
    assert "noise" in p.groups and any(TRAINING in line for line in p.warnings)
    d = derive(ray="N=1", optimizer="adam", parameterization="mup", network=reading.network)
    told = str(ModelOption(reading).append_notes(brief([d], ())))
    assert "certified" in told and "noise: not certified, by shape: init std N^-1, lr N^-1" in told
    report = check_model(build, "N=16", "N=64", seeds=4)
    assert report.exit_code == 0 and report.environment["level"] == [str(p.level), p.level.concerned]
    with pytest.raises(Infeasible, match="by shape"):
        plan(build, "N=16", "N=64", strict=True)


def test_what_is_by_shape_beside_experts_that_are_tied_has_the_numbers_of_mup():
    gate, experts = (
        read_by_shape(lambda z: nn.Linear(z["N"], z["M"], bias=False), None, "why").network,
        ARCHITECTURES["moe"],
    )
    sizes = "N=16,N_e=16,M=4,K=4", "N=64,N_e=64,M=16,K=16"
    assert recipe(*sizes, parameterization="mssp", network=(gate, experts))["weight"]["lr"].factor == 1 / 4
    with pytest.raises(UsageError, match="the shapes of its parameters suffice for muP, not for MSSP"):
        recipe(*sizes, parameterization="mssp", network=(experts, gate))


def test_the_table_of_families_is_what_was_read():
    """`benchmarks/families.py run` writes the evidence."""
    root = Path(__file__).parents[2]
    known = json.loads((root / "verify/evidence/families.json").read_text())
    table = re.findall(
        r"^\| (read|by shape|refused)\b.* \| (\d+) \| (.*) \|$", (root / "docs/guide/check.md").read_text(), re.M
    )
    shown = {family: how for how, _, names in table for family in names.split(", ")}
    assert shown == {family: next(iter(row)) for family, row in known.items()}
    assert all(len(names.split(", ")) == int(count) for _, count, names in table)


class LowRank(nn.Module):
    """A frozen matrix beside a path of the rank that ``build`` is asked for, over the rank."""

    def __init__(self, sizes):
        super().__init__()
        n, rank = sizes["N"], sizes["rank"]
        self.tok, self.base, self.head = nn.Embedding(50, n), nn.Linear(n, n, bias=False), nn.Linear(n, 50, bias=False)
        self.a, self.b = nn.Parameter(torch.randn(rank, n)), nn.Parameter(torch.randn(n, rank))
        for layer in (self.tok, self.base, self.head):
            layer.requires_grad_(False)

    def forward(self, ids):
        x = self.tok(ids)
        return self.head(torch.relu(self.base(x) + x @ self.a.T @ self.b.T / self.a.shape[0]))


@pytest.mark.parametrize("groups, growing", [(1, False), (4, False), (4, True)])
def test_a_group_norm_is_a_layer_norm_along_what_grows_of_a_group(groups, growing):
    """Groups of a fixed size are normalised along what does not grow, however many there are."""

    def build(sizes):
        n = sizes["N"]
        norm = nn.GroupNorm(n // groups if growing else groups, n)
        return nn.Sequential(nn.Linear(5, n), norm, nn.Linear(n, 3)), torch.zeros(2, 5)

    read_model = trace_equations(build)
    (norm,) = read_model.network.norms
    assert {read_model.network.axes[x] for x in norm.over} == ({"E"} if growing else {"N"})
    assert powers(read_model, "N=1")["0.weight"] == INPUT and powers(read_model, "N=1")["2.weight"] == READOUT


def test_a_size_with_a_name_of_its_own_is_an_axis():
    """At 1/rank the rate of the second factor is the same at every rank (LoRA)."""
    found = derive(None, "adam", "mup", ray="N=1,rank=1/2", network=trace_equations(LowRank).network)
    assert {role: str(found[role].lr) for role in ("a", "b")} == {"a": "N^-1", "b": "1"}
    assert "rank" not in str(derive(None, "adam", "mup", ray="N=1", network=trace_equations(LowRank).network)["b"].lr)
