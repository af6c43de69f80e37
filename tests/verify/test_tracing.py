"""Torch modules read as networks: the answers of known muP, and what must be refused."""

import functools
import json
import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn import functional as F

from scaling_algebra import Infeasible, derive
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
from scaling_algebra.verify.tracing import Unreadable, gradients, trace_equations
from scaling_algebra.verify.tracing.gradients import FROZEN, MIXED, NO_GRADIENT, TRAINING, UNREACHED, ZERO
from scaling_algebra.verify.tracing.model_loading import ModelOption
from scaling_algebra.verify.tracing.models import TOLERANCE
from scaling_algebra.verify.tracing.readings import read_module
from scaling_algebra.verify.tracing.rule_table import RULES, normalise_call_name
from scaling_algebra.verify.tracing.shapes import read_by_shape

from .. import shared
from .spellings import Stop, attend, check, choose, derive_powers, make_part, net, of, sum_experts, with_experts


def loop(m, h, weights):
    out = torch.zeros_like(h)
    for e, expert in enumerate(m.experts):
        out = out + weights[:, e : e + 1] * expert(h)
    return out


def dispatched(m, h, norm):
    w, i = choose(m, h, lambda s: s.softmax(-1))
    w = w / w.sum(-1, keepdim=True) if norm else w
    out = torch.zeros_like(h)
    for e, expert in enumerate(m.experts):
        token, place = torch.where(i == e)
        out[token] += expert(h[token]) * w[token, place, None]
    return out


def scattered(m, h, value):
    w, i = choose(m, h, lambda s: s)
    return loop(m, h, torch.full((len(h), m.m), value).scatter(-1, i, w).softmax(-1))


def masked(m, h, before=1.0, after=1.0):
    """A number before gates that are divided by their sum is in the sum, too, or in what is divided by it alone."""
    w, i = choose(m, h, torch.sigmoid)
    w = after * before * w / ((before * w).sum(-1, keepdim=True) + 1e-20)
    return sum((w * (i == e)).sum(-1, keepdim=True) * expert(h) for e, expert in enumerate(m.experts))


def divided(m, h, guard, again):
    """Divided by the sum of all each is 1/M, however many are chosen; once more, by that of the chosen, 1/K."""
    top, at = choose(m, h, lambda s: (p := s.sigmoid()) / (p.sum(-1, keepdim=True) + guard))
    top = top / top.sum(-1, keepdim=True) if again else top
    return sum((top * (at == e)).sum(-1, keepdim=True) * expert(h) for e, expert in enumerate(m.experts))


def reduced(m, h):
    return (m.router(h).softmax(-1)[..., None] * torch.stack([e(h) for e in m.experts], 1)).sum(1)


def deep(m, h):
    """Layers with experts: both loops are folded, with a factor that changes with their lengths."""
    for layer in m.layers:
        h = h + loop(layer, h, layer.router(h).softmax(-1)) / len(m.layers)
    return h


WAYS = {
    "largest of all": (lambda m, h: dispatched(m, h, False), "M=-1"),
    "largest, normalised": (lambda m, h: dispatched(m, h, True), "K=-1"),
    "into zeros, then softmax": (lambda m, h: scattered(m, h, 0.0), "M=-1", False),
    "into -inf, then softmax": (lambda m, h: scattered(m, h, -torch.inf), "K=-1"),
    "sigmoids, normalised": (masked, "K=-1"),
    "sigmoids, a number before": (lambda m, h: masked(m, h, before=2.5), "K=-1"),
    "sigmoids, a number behind": (lambda m, h: masked(m, h, after=2.5), "K=-1"),
    "sigmoids": (lambda m, h: loop(m, h, m.router(h).sigmoid()), "", False),
    "mean of sigmoids": (lambda m, h: loop(m, h, m.router(h).sigmoid()) / m.m, "M=-1", False),
    "divided before the best are chosen": (lambda m, h: divided(m, h, 0, False), "M=-1"),
    "divided before, guarded": (lambda m, h: divided(m, h, 1e-9, False), "M=-1"),
    "divided before and after": (lambda m, h: divided(m, h, 0, True), "K=-1"),
    "divided before and after, guarded": (lambda m, h: divided(m, h, 1e-9, True), "K=-1"),
    "stacked": (reduced, "M=-1", False),
}
"""Sums over experts, the powers that the module itself multiplies by, and whether K of them are active."""


@pytest.mark.parametrize("way", WAYS)
def test_what_a_loop_over_experts_itself_multiplies_by(way):
    """All experts run where a model is read: what K and M each do is read off builds that change one of them."""
    between, own, *sparse = WAYS[way]
    model = check(with_experts(between, *sparse), f"factors: {own}", "error: 1e-8")
    assert model.network.axes["i"] == "M"


def gated(score, times, norm=False):
    """The gates of the K largest scores, times a number of M and K."""

    def gate(m, s):
        w, i = score(s).topk(m.k, -1)
        w = (w / w.sum(-1, keepdim=True) if norm else w) * times(s.shape[-1], m.k)
        return torch.zeros_like(s).scatter(-1, i, w)

    return gate


softmax, one = functools.partial(torch.softmax, dim=-1), lambda m, k: 1.0
FACTORS = {
    "largest of softmax": (gated(softmax, one), "M=-1"),
    "largest of sigmoids": (gated(torch.sigmoid, one), ""),
    "sigmoids, normalised": (gated(torch.sigmoid, one, norm=True), "K=-1"),
    "softmax times sqrt(K)": (gated(softmax, lambda m, k: k**0.5), "K=1/2 M=-1"),
    "sigmoids times K": (gated(torch.sigmoid, lambda m, k: k), "K=1"),
    "normalised times K": (gated(torch.sigmoid, lambda m, k: k, norm=True), ""),
    "softmax over sqrt(M)": (gated(softmax, lambda m, k: m**-0.5), "M=-3/2"),
    "softmax times sqrt(K/M)": (gated(softmax, lambda m, k: (k / m) ** 0.5), "K=1/2 M=-3/2"),
    "normalised times sqrt(K/M)": (gated(torch.sigmoid, lambda m, k: (k / m) ** 0.5, norm=True), "K=-1/2 M=-1/2"),
    "softmax times M/K": (gated(softmax, lambda m, k: m / k), "K=-1"),
    "sigmoids times M/K": (gated(torch.sigmoid, lambda m, k: m / k), "K=-1 M=1"),
}


@pytest.mark.parametrize("how", FACTORS)
def test_a_factor_belongs_to_the_size_that_makes_it(how):
    gate, powers = FACTORS[how]
    model = check(sum_experts("stacked", gate, "k=K"), f"factors: {powers}")
    assert not model.joint and not model.find_open_shares({"M": 8, "K": 2}, {"M": 32, "K": 4})


JOINTLY = {
    "a mean over the chosen": lambda s, w, i, k: torch.zeros_like(s).scatter(-1, i, w / w.shape[-1]),
    "its own number in a shape": lambda s, w, i, k: torch.zeros_like(s).scatter(-1, i, w.reshape(-1, k)),
    "a mask of the chosen": lambda s, w, i, k: s * torch.zeros_like(s).scatter(-1, i, 1.0),
}


@pytest.mark.parametrize("way", JOINTLY)
def test_what_is_read_with_all_experts_alone_is_open_where_their_share_changes(way):
    """What runs with all experts active is another function there, or no function: the executed equations tell."""
    gate = lambda m, s: JOINTLY[way](p := s.softmax(-1), *p.topk(m.k, -1), m.k)  # noqa: E731
    model = check(sum_experts("stacked", gate, "k=K"), "said: powers of K count as powers of M")
    (found,) = model.find_open_shares({"M": 8, "K": 2}, {"M": 32, "K": 4})
    assert model.joint and found.quantity == "alpha" and "powers of K count as powers of M" in str(found)
    assert not model.find_open_shares({"M": 8, "K": 2}, {"M": 32, "K": 8})


def layered(m, x):
    """Layers that are as many as L."""
    h = m.inp(x)
    for norm, up, down in zip(m.norms, m.ups, m.downs, strict=True):
        h = h + down(torch.relu(up(norm(h))))
    return m.head(h)


def low(m, ids):
    """Low rank beside a layer (LoRA)."""
    h = m.tok(ids)
    return m.head(h + m.base(h) + m.B(m.A(h)))


def list_layers(z):
    parts = lambda: {"experts": make_part("M:N>N+", z), "router": make_part("N>M+", z)}  # noqa: E731
    return nn.ModuleList(nn.ModuleDict(parts()) for _ in range(z["L"]))


FREEZE, WHOLE = "tok=64|N~ base=N>N~ A=N>8 B=8>N head=N>64~", "tok=64|N base=N>N A=N>8 B=8>N head=N>64"
LAYERS = net(
    layered,
    "inp ups=L:N>2*N+ downs=L:2*N>N head",
    norms=lambda z: nn.ModuleList(nn.LayerNorm(z["N"]) for _ in range(z["L"])),
)
MODULES = {
    "a perceptron with biases": (net(lambda m, x: m.c(torch.relu(m.b(torch.tanh(m.a(x))))), "a=5>N+ b=N>N+ c=N>3+"),
        "lines: ", "answers: a.*=INPUT b.weight=HIDDEN b.bias=INPUT c.weight=READOUT c.bias=INPUT"),
    **{
        f"experts: {how}": (
            sum_experts(how), "ray: N=1,N_e=1,M=1", "multipliers: alpha=M^-1",
            "said: the module multiplies by M^-1 here (alpha in the equations)",
            "said: held at its mean and slope (assumption B2)",
            f"all: inp=INPUT router=HIDDEN {up}=HIDDEN {down}=N_e^(-1/2),N_e^-1 head=READOUT",
        )
        for how in ("list", "einsum", "bmm", "stacked")
        for up, down in (["experts.*.0", "experts.*.1"] if how == "list" else ["up", "down"],)
    },
    "experts: in layers": (of(deep, layers=list_layers), "has: layers.*.experts.*.bias", "factors: L=-1; M=-1"),
    **{
        f"attention: {how}": (
            attend(how), "answers: tok.*=INPUT unembed.*=READOUT [!tu]*=HIDDEN", "parameters: 6", "error: 1e-6"
        )
        for how in ("separate", "chunk", "packed", "mha")
    },
    "attention: a head that grows": (attend("separate", "N//4"), "multipliers: scale=N^-1",
        "said: the module multiplies by N^(-1/2) here (scale in the equations)"),
    "layers": (LAYERS, "ray: N=1,L=1", "multipliers: scale=L^-1"),
    "layers: their number stays": (LAYERS, "ray: N=1,L=0", "answers: ups.*.weight=HIDDEN downs.*=HIDDEN"),
    "frozen": (net(low, FREEZE), f"lines: tok.weight, base.weight, head.weight: {FROZEN}",
        "frozen: base.weight head.weight tok.weight", "answers: A.weight=HIDDEN B.weight=INPUT"),
    "a gain that is a number": (of(lambda m, h: h + m.gain * torch.tanh(m.w(h)), "gain=,"),
        "answers: gain=INPUT w.weight=HIDDEN"),
    "no gradient: data": (of(lambda m, h: h + F.linear(h, m.w.weight.data)), f"told: w.weight: {UNREACHED}"),
    "no gradient: backward": (of(lambda m, h: Stop.apply(m.w(h))), f"told: inp.weight, w.weight: {ZERO}"),
    "no gradient: training": (of(lambda m, h: m.w(h) if m.training else h), f"told: w.weight: {TRAINING}"),
    "no gradient: a control": (of(lambda m, h: m.w(h)), "told: "),
}  # fmt: skip
"""Modules, and what they are read as."""


@pytest.mark.parametrize("how", MODULES)
def test_modules_and_readings(how):
    build, *reading = MODULES[how]
    model = check(build, *reading)
    if how.startswith("experts"):  # with more experts it is a part of the sum
        assert "add" not in {name for _, name, _, _ in model.calls.values()}
    assert from_toml(model.text).frozen == model.network.frozen


def test_low_rank_and_merged_low_rank_are_one():
    parts, held = "a=2,N b=N,2", {"given": ["a.init=N^-1/2", "b.init=1"]}
    apart = of(lambda m, h: m.w(h) + 2.0 * (h @ m.a.T @ m.b.T), parts)
    merged = of(lambda m, h: F.linear(h, m.w.weight + m.b @ m.a), parts)
    assert derive_powers(trace_equations(apart), **held) == derive_powers(trace_equations(merged), **held)


def test_a_plan_without_a_derived_epsilon_has_a_negligible_one():
    """Low rank beside a layer that trains, too: with a derived epsilon the low-rank part diverges."""
    where = {"base": "N=32", "target": "N=128", "lr": 1e-2, "eps": 1e-8, "std": 0.1}
    assert [g["name"] for g in plan(net(low, FREEZE), **where).param_groups()] == ["A.weight", "B.weight"]
    p = plan(net(low, WHOLE), **where)
    assert any("negligible epsilon" in x for x in p.warnings) and p["A.weight"].settings["init_std"].factor == 1 / 4
    with pytest.raises(Infeasible, match="stays O"):
        plan(net(low, WHOLE), **where, epsilon="derived")


def test_without_gradients_nothing_trains():
    with pytest.raises(UsageError, match="no parameter receives a gradient from the output, so nothing trains"):
        trace_equations(net(lambda m, x: m.head(m.inp(x).detach()), "inp head=N>3~"))


def test_what_is_frozen_in_some_layers_alone_is_told():
    names = {"layers.0.w": FROZEN, "layers.1.w": "", "head": UNREACHED, "spare": FROZEN}
    roles, said = gradients.find_frozen_roles(names, ["layers.*.w", "head"])
    assert roles == ["head"] and dict(said) == {"layers.*.w": MIXED, "head": UNREACHED}


@pytest.mark.parametrize(("rule", "times"), [("sgd", 2), ("momentum", 2), ("adam", 1), ("muon", 1)])
def test_a_factor_beside_a_tensor_moves_its_rate_by_its_rule(rule, times):
    """Behind the head the module divides by N: m^2 of the rate along a gradient, m of a normalised one."""
    option = ModelOption(trace_equations(net(lambda m, x: m.head(m.w(m.inp(x))) / m.n, "inp w head n=N")))
    d = derive(ray="N=1", optimizer=rule, parameterization="mup", network=option.network)
    assert d["head.weight"].lr == d.scaling.tensors["head.weight"].lr * Power.of({"N": times})
    head = next(x for x in rows(option.append_notes(Document((), d.as_json())).record) if x["name"] == "head.weight")
    assert head["lr.N_value"] == d["head.weight"].lr.on(d.ray) and head["multiplier.N"] == "0"


def test_the_guard_refuses_a_wrong_rule(monkeypatch):
    """A planted fault: a matrix is read as its transpose, which no shape shows."""
    rule, square = RULES["linear"], net(lambda m, ids: m.w(m.tok(ids)), "tok=7|N w")

    def wrong(reader, x, weight, *more):
        weight.dims.reverse()
        return rule(reader, x, weight, *more)

    assert trace_equations(square).error < TOLERANCE
    monkeypatch.setitem(RULES, "linear", wrong)
    with pytest.raises(Unreadable, match="w: linear: the equations give other values"):
        trace_equations(square)


@pytest.mark.parametrize("name", ["__radd__", "add_", "add", "__iadd__"])
def test_names_of_functions_methods_and_aten_are_one(name):
    assert normalise_call_name(name) == "add"


def test_a_text_comes_out_that_is_read_again(tmp_path):
    layers = "nn.Linear(5, s['N']), nn.ReLU(), nn.Linear(s['N'], 3)"
    (tmp_path / "mine.py").write_text(f"from torch import nn\ndef build(s): return nn.Sequential({layers})\n")
    model = ("--model", f"{tmp_path / 'mine.py'}:build")
    (tmp_path / "mine.toml").write_text(shared.scalecalc("list", *model).stdout)
    ways = model, ("--network", tmp_path / "mine.toml", "--ray", "N=1")
    read, again = (json.loads(shared.scalecalc("derive", *way, "--format", "json").stdout)["tensors"] for way in ways)
    assert read == again and read["2.weight"]["init_std"] == read["2.weight"]["lr"] == {"N": "-1"}


def test_a_plan_takes_out_what_the_module_multiplies_by():
    """Behind the head the module divides by N: of muP's N^-1 and N^-1 nothing is left to the head itself."""
    parts = lambda m, h: m.two(m.norm(h)).chunk(2, -1)  # noqa: E731
    inside = of(lambda m, h: torch.tanh((y := parts(m, h))[0]) + F.silu(y[1]) * 8 / m.n, "norm=rms two=N>2*N")
    with pytest.raises(Unreadable, match="the module multiplies by N"):
        plan(inside, "N=16", "N=64", lr=1e-2, strict=True)
    behind = net(lambda m, x: m.head(torch.tanh(m.w(m.norm(m.inp(x))))) * 8 / m.n, "inp head n=N w norm=rms")
    p = plan(behind, "N=16", "N=64", lr=1e-2, eps=1e-8, std=0.1)
    assert p["head.weight"].settings["init_std"].factor == p["head.weight"].settings["lr"].factor == 1
    assert p["w.weight"].settings["lr"].factor == 1 / 4 and torch.equal(p.init_().norm.weight, torch.ones(64))


SPARE = """
from torch import nn
class M(nn.Linear):
    def forward(self, x): return self.head(nn.functional.linear(super().forward(x), self.b.weight.data))
def build(sizes):
    m = M(5, sizes["N"], bias=False)
    m.b, m.head = nn.Linear(sizes["N"], sizes["N"]), nn.Linear(sizes["N"], 3, bias=False)
    return m
"""


def test_what_the_output_does_not_depend_on_has_no_numbers(tmp_path):
    """Every verb names it: a plan with what no gradient reaches."""
    told = r"does not depend on spare.weight, spare.bias, and no gradient of the output reaches w.weight; freeze"
    with pytest.raises(UsageError, match=told):
        plan(of(lambda m, h: F.linear(h, m.w.weight.data), "spare=N>N+"), "N=16", "N=64")
    (tmp_path / "mine.py").write_text(SPARE)
    model = ("--model", f"{tmp_path / 'mine.py'}:build")
    listed = shared.scalecalc("list", *model).stdout
    assert f"# b.bias: {NO_GRADIENT}\n# b.weight: {UNREACHED}" in listed
    assert from_toml(listed).tensors.keys() == {"weight", "b.weight", "head.weight"}
    for words in (("explain", "b.bias.lr"), ("derive", "--given", "b.bias.lr=N^-1")):
        refused = shared.scalecalc(*words, *model)
        assert (refused.exit_code, refused.stderr) == (2, f"scalecalc: b.bias: {NO_GRADIENT}\n")


def test_what_acts_in_training_mode_alone_has_the_numbers_of_its_shape():
    """A noise whose size is learned; the tensor beside it is in the output, and certified."""
    noisy = lambda m, h: m.w(h) + (torch.randn(1) * (h @ m.noise).mean() if m.training else 0)  # noqa: E731
    build = of(noisy, noise=lambda z: nn.Parameter(torch.zeros(z["N"], 3)))
    reading = read_module(build)
    assert reading.notes == [("noise", TRAINING)] and [*reading.beside.tensors] == ["noise"]
    p = plan(build, "N=16", "N=64", lr=1e-2, eps=1e-8, std=0.1)
    assert str(p.level).endswith(", 1 size undecided") and p.level.concerned == "undecided: noise"
    noise, w = (p[name].settings for name in ("noise", "w.weight"))
    assert noise["init_std"].factor == noise["lr"].factor == w["lr"].factor
    assert "noise" in p.groups and any(TRAINING in line for line in p.warnings)
    d = derive(ray="N=1", optimizer="adam", parameterization="mup", network=reading.network)
    told = str(ModelOption(reading).append_notes(brief([d], ())))
    assert "certified" in told and "noise: not certified, by shape: init std N^-1, lr N^-1" in told
    report = check_model(build, "N=16", "N=64", seeds=4)
    assert report.exit_code == 0 and report.environment["level"] == [str(p.level), p.level.concerned]
    with pytest.raises(Infeasible, match="by shape"):
        plan(build, "N=16", "N=64", strict=True)


def test_what_is_by_shape_beside_experts_that_are_tied_has_the_numbers_of_mup():
    gate, experts = read_by_shape(net(None, "router=N>M"), None, "why").network, ARCHITECTURES["moe"]
    sizes = "N=16,N_e=16,M=4,K=4", "N=64,N_e=64,M=16,K=16"
    found = recipe(*sizes, parameterization="mssp", network=(gate, experts))
    assert found["router.weight"]["lr"].factor == 1 / 4
    with pytest.raises(UsageError, match="the shapes of its parameters suffice for muP, not for MSSP"):
        recipe(*sizes, parameterization="mssp", network=(experts, gate))


def test_the_table_of_families_is_what_was_read():
    """`benchmarks/families.py run` writes the evidence."""
    root = Path(__file__).parents[2]
    known = json.loads((root / "verify/evidence/families.json").read_text())
    page = (root / "docs/guide/check.md").read_text()
    table = re.findall(r"^\| (read|by shape|refused)\b.* \| (\d+) \| (.*) \|$", page, re.M)
    shown = {family: how for how, _, names in table for family in names.split(", ")}
    assert shown == {family: next(iter(row)) for family, row in known.items()}
    assert all(len(names.split(", ")) == int(count) for _, count, names in table)


@pytest.mark.parametrize("groups, growing", [(1, False), (4, False), (4, True)])
def test_a_group_norm_is_a_layer_norm_along_what_grows_of_a_group(groups, growing):
    """Groups of a fixed size are normalised along what does not grow, however many there are."""
    norm = lambda z: nn.GroupNorm(z["N"] // groups if growing else groups, z["N"])  # noqa: E731
    build = net(lambda m, x: m.c(m.norm(m.a(x))), "a=5>N+ c=N>3+", torch.zeros(2, 5), norm=norm)
    model = check(build, "answers: a.weight=INPUT c.weight=READOUT")
    (found,) = model.network.norms
    assert {model.network.axes[x] for x in found.over} == ({"E"} if growing else {"N"})


def test_a_size_with_a_name_of_its_own_is_an_axis():
    """At 1/rank the rate of the second factor is the same at every rank (LoRA)."""

    def divided_by_rank(m, ids):
        x = m.tok(ids)
        return m.head(torch.relu(m.base(x) + x @ m.a.T @ m.b.T / m.a.shape[0]))

    model = trace_equations(net(divided_by_rank, "tok=50|N~ base=N>N~ head=N>50~ a=rank,N b=N,rank"))
    found = derive_powers(model, "N=1,rank=1/2")
    assert found["a"][1] == "N^-1" and found["b"][1] == "1" and "rank" not in derive_powers(model)["b"][1]
