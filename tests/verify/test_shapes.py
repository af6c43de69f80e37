"""Modules that cannot be read: numbers by the shapes of their parameters, what the answer says of itself, its check."""

import json
import time
from dataclasses import replace
from fractions import Fraction

import pytest

torch = pytest.importorskip("torch")
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

from scaling_algebra import derive, plan
from scaling_algebra.errors import UsageError
from scaling_algebra.solver.presentation import brief
from scaling_algebra.spec.powers import Power
from scaling_algebra.verify.apply import checking
from scaling_algebra.verify.apply.checking import check_model
from scaling_algebra.verify.apply.initial_values import is_drawn
from scaling_algebra.verify.judging.fit import Verdict
from scaling_algebra.verify.tracing import Unreadable, trace_equations
from scaling_algebra.verify.tracing.building import build_module
from scaling_algebra.verify.tracing.measuring import TrainingWatch
from scaling_algebra.verify.tracing.model_loading import ModelOption
from scaling_algebra.verify.tracing.readings import read_module
from scaling_algebra.verify.tracing.shapes import ParameterShape, ShapeNetwork, read_by_shape

from ..shared import scalecalc
from .spellings import HIDDEN, INPUT, READOUT, check, drawn, net

STEPS = {"lr": 1e-3, "eps": 1e-8}


def odd(m, ids):
    """A call that no rule reads, and parameters of every kind."""
    h = m.norm(torch.fft.fft(m.emb(ids) + m.places).real)
    h = h + m.conv(h.transpose(1, 2)).transpose(1, 2)
    for block in m.blocks:
        h = h + block(h).tanh()
    y = torch.einsum("btmk,mkn->btmn", torch.einsum("btn,mnk->btmk", h, m.up).relu(), m.down)
    h = h * m.norm.weight.flip(0)
    return m.head(h + (m.router(h).softmax(-1)[..., None] * y).sum(2) + 0 * torch.kron(m.loose, m.loose).sum())


ODD = net(
    odd, "emb=9|N norm=ln router=N>M head=N>9 up=M,N,N_e down=M,N_e,N loose=N,N_e places=1,5,N blocks=2:N>N+",
    conv=lambda z: nn.Conv1d(z["N"], z["N"], 3, padding=1),
)  # fmt: skip


def derive_adamw(reading, ray="N=1", **more):
    network = getattr(reading, "network", reading)
    return derive(ray=ray, **{"optimizer": "adamw", "parameterization": "mup", "network": network, **more})


def powers(d, name):
    return str(d[name].init_std), str(d[name].lr)


def read_kept(p):
    """The parameters whose start a plan keeps."""
    before = {name: x.clone() for name, x in p.model.named_parameters()}
    p.init_()
    return {name for name, x in p.model.named_parameters() if torch.equal(x, before[name])}


def write_script(folder, *lines):
    (folder / "m.py").write_text("\n".join(["import torch", "from torch import nn", *lines]))
    return f"{folder / 'm.py'}:build"


def magnitudes(sizes):
    """DoRA: rows of W + B A of a norm that is trained; and a time constant between 1/2 and 2."""

    def run(m, x):
        w = m.W + 0.5 * (m.B @ m.A)
        return F.linear(x, w) * m.m / w.norm(dim=1).detach() * m.times

    n, parts = sizes["N"], {}
    parts["W"] = nn.Parameter(torch.randn(n, n) / n**0.5, requires_grad=False)
    parts |= {"A": nn.Parameter(torch.randn(2, n)), "B": nn.Parameter(torch.zeros(n, 2))}
    parts |= {"m": nn.Parameter(parts["W"].norm(dim=1)), "times": nn.Parameter(torch.linspace(0.5, 2, n))}
    layer = net(run, "", **{name: lambda _, part=part: part for name, part in parts.items()})(sizes)
    return nn.Sequential(nn.Linear(6, n, bias=False), layer, nn.Linear(n, 3, bias=False))


def choose_tokens(m, x):
    h = m.inp(x)
    top, at = m.gate(h).softmax(-1).T.topk(2)
    y = top[..., None] * torch.einsum("mnk,mck->mcn", m.W, h[at])
    return m.head(torch.zeros_like(h).index_add(0, at.flatten(), y.flatten(0, 1)))


def met(shape, meets, **more):
    """The build of a hidden layer that is no equation, and a parameter that meets its signal in some way."""

    def run(m, x):
        h = m.a(x)
        y = meets(m, m.w, torch.tanh(m.b(torch.where(h >= 0, h, h.sigmoid()))), x)
        return m.last(y) if y.shape[-1] == m.last.in_features else y

    own = {"ids": lambda z: torch.arange(6), **more}
    return net(run, f"a=5>N+ b=N>N+ last=N>3+ w={shape}", torch.randn(1, 4, 5), **own)


def at_data(x):
    return (x.abs() * 10).long() % 6


def tied(m, ids):
    """Noise in training mode alone, where it is asked for."""
    q, p = m.emb(ids), 0.1 if m.training else 0.0
    return m.head(torch.fft.fft(F.scaled_dot_product_attention(q, q, q, dropout_p=p) if m.noisy else q).real)


def simple(between):
    return net(lambda m, x: m.head(between(m.inp(x))), "inp=6>N+ head=N>3+")


IDS = torch.arange(6).reshape(2, 3)
NO_EXPERTS = "mul: no function of the equations has its values; give them with --network"
BY_SHAPE = {
    **{
        f"tied {noisy}": (net(tied, f"emb=9|N head=N>9 noisy={noisy}", IDS, tie=("head", "emb")),
                          "note: emb.weight: used in two ways", "answers: emb.weight=INPUT")
        for noisy in (False, True)
    },
    "lazy": (lambda z: nn.Sequential(nn.LazyLinear(z["N"])),
        r"refused: 0\.weight has no shape before the first call; call the model once in build"),
    "a lazy buffer": (lambda z: nn.Sequential(nn.Linear(5, z["N"]), nn.LazyBatchNorm1d(affine=False)),
        r"refused: 1\.running_mean has no shape before the first call"),
    "no parameters": (lambda z: nn.ModuleList([nn.Tanh()] * z["N"]), "refused: the model has no parameters"),
    "TorchScript": (lambda z: torch.jit.script(nn.Linear(5, z["N"])),
        "refused: build returns a TorchScript module, whose calls cannot be recorded; return the"),
    "made of weights": (magnitudes, "answers: 1.A=READOUT 1.B=None,1"),  # A in W + B A has the columns of the input
    "tokens of attention": (net(
        lambda m, x: m.c((h := torch.fft.fft(m.a(x)).real) + m.attn(h, h, h, need_weights=False)[0]), "a=4>N+ c=N>3+",
        drawn(2, 3, 4), attn=lambda z: nn.MultiheadAttention(z["N"], 2, batch_first=True, add_bias_kv=True),
    ), "answers: attn.bias_?=INPUT", "quiet: *bias_k*"),
    "mul": (simple(lambda h: h * (h >= 0.1)), f"unread: {NO_EXPERTS}"),
    "where": (simple(lambda h: torch.where(h > 0, h, -1e9).softmax(-1)),
        "unread: where: no function of the equations has its values; give"),
    "ge": (simple(lambda h: h * (h >= h.mean(-1, keepdim=True))),
        "unread: ge: no rule for this call; replace the selection by one"),
    "gt": (simple(lambda h: torch.where(h > h.flip(-1), h, -1e9).softmax(-1)),
        "unread: gt: no rule for this call; replace the selection"),
    "a branch": (simple(lambda h: h if h.sum() > 0 else -h),
        "unread: branches on a computed tensor; equations would hold only for these values"),
    "experts that choose tokens": (net(choose_tokens, "inp=6>N+ gate=N>M W=M,N,N head=N>3+", drawn(7, 6)),
        "unread: an index that depends on computed values"),
    "a list": (net(lambda m, x: m.b(m.a(x)[:, [*range(m.n)][::-1]]), "a=5>N+ b=N>3+ n=N", drawn(2, 5)),
        "unread: __getitem__: takes a list that is longer at other sizes", "answers: b.weight=READOUT a.weight=INPUT"),
}  # fmt: skip
"""Modules that have no equations, or no numbers, and what is said of them."""
MET = {
    "rows with the signal": (
        "6,N",
        lambda m, w, h, x: torch.einsum("btn,in->bti", h, F.embedding(m.ids, w)),
        "READOUT",
    ),
    "rows at data": ("6,N", lambda m, w, h, x: torch.einsum("btn,btkn->btk", h, F.embedding(at_data(x), w)), "READOUT"),
    "rows times it": (
        "6,N",
        lambda m, w, h, x: (h[:, :, None] * F.embedding(at_data(x), w)).sum(-1),
        "READOUT",
    ),
    "rows that are added": ("6,N", lambda m, w, h, x: h + F.embedding(at_data(x)[..., 0], w), "INPUT"),
    "rows that multiply": ("6,N", lambda m, w, h, x: torch.tanh(h * F.embedding(at_data(x)[..., 0], w)), "INPUT"),
    "a vector, summed": ("N,", lambda m, w, h, x: (h * w).sum(-1, keepdim=True), "READOUT"),
    "a gain": ("N,", lambda m, w, h, x: torch.tanh(h * w), "INPUT"),
    "a bias": ("N,", lambda m, w, h, x: h + w, "INPUT"),
    "a tensor of three, read": ("3,N,5", lambda m, w, h, x: torch.tensordot(h, w, ([2], [1])).flatten(2), "READOUT"),
    "a tensor of three, made": ("3,N,5", lambda m, w, h, x: torch.tensordot(x, w, ([2], [2])).sum(2) + h, "INPUT"),
    "a matrix": ("N,N", lambda m, w, h, x: torch.tensordot(h, w, ([2], [1])), "HIDDEN"),
    "turned": ("N,4", lambda m, w, h, x: F.linear(h, w.t()), "READOUT"),
}
"""How a parameter of a shape meets a signal, which says what is summed."""
FORCED = {
    "no names of their own": (lambda z: (nn.Sequential(nn.Embedding(9, z["N"]), nn.LSTM(z["N"], z["N"])), IDS),
        "answers: 0.weight=INPUT 1.weight_hh_l0=HIDDEN"),
    "squares, as of a hypernetwork": (net(lambda m, x: m.b(m.a(x)), "a=5>N**2+ b=N**2>3+", torch.zeros(2, 5)),
        "note: a.weight: its output has N^2 entries"),
    **{
        f"the name of a signal: {name}": (
            net(lambda m, x, name=name: m.b(((h := m.a(x)) - h.mean(-1, keepdim=True)) * getattr(m, name)),
                f"a=5>N+ b=N>3+ {name}=1,"), f"answers: {name}=INPUT b.weight=READOUT",
        )
        for name in ("f", "s1", "o2", "s_1")
    },
    **{f"met: {way}": (met(shape, f), f"answers: w={law}", "quiet: w") for way, (shape, f, law) in MET.items()},
}  # fmt: skip
"""Modules whose calls may be read, and the numbers of the shapes alone."""


@pytest.mark.parametrize("how", [*BY_SHAPE, *FORCED])
def test_modules_by_shape(how):
    build, *reading = (BY_SHAPE | FORCED)[how]
    read = read_module if how in BY_SHAPE else lambda build: read_by_shape(build, {"N": 16}, "a call without a rule")
    model = check(build, *reading, read=read)
    if "unread" in reading[0]:  # a reason is about what the module does, and not about experts that it does not have
        words = ("sizes['K']",) if how == "experts that choose tokens" else ("expert", "part of a loss", "K = M")
        assert not any(word in model.network.unread for word in words)


def test_the_law_of_every_kind_of_parameter():
    check(ODD, "refused: fft_fft: no rule")
    reading = read_module(ODD)
    assert "fft_fft: no rule for this call" in reading.network.unread
    d = derive_adamw(reading, "N=1,N_e=1,M=0")
    assert "the number of these maps" not in str(ModelOption(reading).append_notes(brief([d], ())))  # M is fixed
    laws = dict.fromkeys(("emb.weight", "norm.weight", "places"), INPUT) | {"head.weight": READOUT, "up": HIDDEN}
    laws |= {"conv.weight": HIDDEN, "blocks.*.weight": HIDDEN, "down": ("N_e^(-1/2)", "N_e^-1")}
    assert {name: powers(d, name) for name in laws} == laws and {str(d[name].eps) for name in laws} == {"None"}
    assert d.optimizer.regime == "negligible"  # shapes do not say how large gradients are
    sgd = derive_adamw(reading, "N=1,N_e=0,M=0", optimizer="sgd")
    assert [str(sgd[f"{x}.weight"].lr) for x in ("emb", "head", "conv")] == ["N", "N^-1", "1"]
    notes = dict(reading.notes)
    assert "no call shows which dimension" in notes["loose"] and "are not recognised" in notes[""]
    assert set(notes) == {"loose", "down", ""}


def test_of_a_multilayer_perceptron_it_is_what_is_derived():
    build = net(lambda m, x: m.c(m.b(torch.tanh(m.a(x)))), "a=5>N b=N>N c=N>3")
    readings = trace_equations(build), read_by_shape(build, None, "why")
    for optimizer, epsilon in (("sgd", None), ("adamw", "negligible"), ("muon", None)):
        known, shapes = (derive_adamw(x, optimizer=optimizer, epsilon=epsilon) for x in readings)
        assert known.scaling.tensors == shapes.scaling.tensors


def test_a_dimension_of_zero_is_refused():
    slots = ParameterShape("slots", [(16, 8), (16, 0)], set(), False)
    with pytest.raises(UsageError, match=r"slots: one of its dimensions is 0 at \{'M': 8\}; give larger sizes"):
        ShapeNetwork([slots], [{"M": 4}, {"M": 8}], {})


def test_what_does_not_grow_has_no_numbers(tmp_path):
    of = write_script(
        tmp_path, "build = lambda s: nn.Linear(s['N'] * 0 + 5, 3)", "fixed = lambda s: nn.Linear(5, 3)",
        "named = lambda s: nn.Linear(5, s['width'])",
    )  # fmt: skip
    fixed, sizes = of.replace("build", "fixed"), ["--base", "N=16", "--target", "N=64"]
    asked = [
        ["derive", "--model", of], ["recipe", *sizes, "--lr=1", "--model", of], ["check-model", of, *sizes],
        ["check-model", fixed], ["study", "transfer", "--model", fixed],
    ]  # fmt: skip
    for words in asked:
        answer = scalecalc(*words, "--optimizer", "adam")
        assert answer.exit_code == 2
        assert "no parameter of the model grows, so nothing would change" in answer.stderr
    answer = scalecalc("derive", "--model", of.replace("build", "named"))
    assert answer.exit_code == 2
    assert "it reads width, but axes that can grow are called N, N_e, M, K, L" in answer.stderr


def test_a_module_that_raises_at_small_sizes_is_read_at_the_base(tmp_path):
    layers = "nn.Linear(5, sizes['N']), nn.ReLU(), nn.Linear(sizes['N'], 3)"
    raises = "    assert sizes['N'] % 48 == 0, 'a multiple of 48'"
    of = write_script(tmp_path, "def build(sizes):", raises, f"    return nn.Sequential({layers})")
    small = scalecalc("derive", "--model", of, "--optimizer", "adam")
    assert small.exit_code == 2 and "build({'N': 32}) raises AssertionError: a multiple of 48" in small.stderr
    read = scalecalc("recipe", "--model", of, "--optimizer", "adam", "--base", "N=48", "--target", "N=192")
    assert read.exit_code == 0 and "certified, N=48 to N=192" in read.stdout


def test_what_an_answer_by_shape_does_not_claim(tmp_path):
    sizes, only_mup = "N=32,N_e=24,M=4", "the shapes of its parameters suffice for muP, not for MSSP"
    with pytest.raises(UsageError, match=only_mup):
        derive_adamw(read_module(ODD), "N=1,N_e=1,M=0", parameterization="mssp")
    with pytest.raises(UsageError, match=only_mup):
        plan(ODD, sizes, "N=64,N_e=24,M=4", parameterization="mssp")
    with pytest.raises(UsageError, match="shapes of parameters do not show how numbers depend on depth; keep L fixed"):
        plan(ODD, f"{sizes},L=2", "N=64,N_e=24,M=4,L=4")
    with pytest.raises(Unreadable, match="fft_fft"):
        plan(ODD, sizes, "N=64,N_e=24,M=4", strict=True)
    forward = "    def forward(self, x): return torch.fft.fft(super().forward(x)).real"
    model = write_script(tmp_path, "class M(nn.Linear):", forward, "build = lambda s: M(5, s['N'])")
    answer = scalecalc("derive", "--model", model, "--optimizer", "adamw")
    first, *lines = answer.output.splitlines()
    assert answer.exit_code == 3 and "by shape" in first
    assert any("by shape" in x and "fft_fft: no rule for this call" in x for x in lines)
    for words in (["derive", "--strict"], ["derive", "--prove"], ["signals"], ["list"]):
        answer = scalecalc(words[0], "--model", model, *words[1:])
        assert answer.exit_code == 2 and "fft_fft" in answer.output


def test_by_shape_epsilon_stays_and_gradients_of_any_size_are_met():
    """Behind a normalised output gradients are N^(1/2) larger than those of a readout; no shape says that."""

    def towers(m, x):
        a, b = (F.normalize(f[2](f[1](torch.relu(f[0](x)))), dim=-1) for f in (m.a, m.b))
        return a @ b.T * torch.log(m.t + 2)

    tower = lambda z: nn.ModuleList(nn.Linear(*x) for x in ((6, z["N"]), (z["N"], z["N"]), (z["N"], 8)))  # noqa: E731
    build = net(towers, "", drawn(8, 6), a=tower, b=tower, t=lambda z: nn.Parameter(torch.tensor(1.0)))
    p = plan(build, "N=16", "N=64", **STEPS)
    assert {row["eps"] for row in p.as_rows()} == {1e-8} and any("far below every gradient" in x for x in p.warnings)
    report = check_model(build, "N=64", "N=256")
    assert report.environment["level"] == ["by shape"] and report.exit_code == 0 and report.counts["AGREES"] > 20


def test_a_plan_by_shape_says_so_and_trains():
    p, more = (plan(ODD, "N=16,N_e=8,M=4", f"N=64,N_e=32,M={m}", **STEPS, std=0.1) for m in (4, 8))
    assert "by shape" in str(p).splitlines()[0] and p["blocks.1.weight"].settings["lr"].target == 1e-3 / 4
    torch.optim.AdamW(p.param_groups(p.init_()))
    assert ["the number of these maps grows" in str(x) for x in (p, more)] == [False, True]


def test_a_weight_norm_is_that_of_the_matrix_that_is_drawn():
    def build(sizes):
        n = sizes["N"]
        return nn.Sequential(weight_norm(nn.Linear(5, n)), nn.Tanh(), weight_norm(nn.Linear(n, 3))), torch.ones(2, 5)

    p = plan(build, "N=16", "N=64", **STEPS, std=0.1)
    model = p.init_()
    for layer in (model[0], model[2]):
        norm, matrix = layer.parametrizations.weight.original0, layer.parametrizations.weight.original1
        assert torch.allclose(layer.weight, matrix) and torch.allclose(norm, matrix.norm(dim=1, keepdim=True))
    said = "original0: init_ sets these weight-norm magnitudes to the norms"
    unknown = "2.parametrizations.weight.original0: it is not known what this factor multiplies"
    assert all(any(text in x for x in p.warnings) for text in (said, unknown))
    model, inputs, _ = build_module(build, {"N": 16})
    outputs = [x for x in TrainingWatch(model, inputs, read_module(build)).names if "output" in x]
    assert outputs == ["0: output", "1: output", "2: output", "output"]


def test_a_check_by_shape_agrees_and_finds_a_planted_rate(monkeypatch, tmp_path):
    run = lambda m, x: torch.fft.fft(m.first(x)[..., :1]).real.tanh() + m.first(x)  # noqa: E731
    small = net(lambda m, x: m.last(m.mid(run(m, x)).tanh()), "first=5>N mid=N>N last=N>3", drawn(6, 5))
    with pytest.raises(UsageError, match="one entry of the axis N"):
        check_model(small, "N=16", "N=144", seeds=4, strict=True)
    good = check_model(small, "N=16", "N=144", seeds=4)
    assert good.exit_code == 0 and "by shape" in good.environment["read"][0]
    assert "not the module's own" in good.environment["read"][-1]
    assert {r.quantity for r in good.rows} >= {"mid.weight.update", "mid: output", "output"}
    assert any("standard parameterization refuted" in str(g) for g in good.gates)
    bad = check_model(small, "N=16", "N=144", seeds=4, rules={"mid.weight": {"lr": Power()}})
    refuted = {r.quantity for r in bad.rows if r.verdict is Verdict.REFUTED}
    assert "mid.weight.update" in refuted and bad.exit_code == 1
    assert all(r.predicted == Fraction(0) for r in bad.rows)
    (tmp_path / "m.py").write_text("def build(sizes): ...")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checking, "check_model", lambda *_, **__: bad)
    told = scalecalc("check-model", "m.py:build").output.splitlines()
    assert told[1] == "exponents: by shape"
    kept = scalecalc("check-model", "m.py:build", "-o", "x.csv")
    first = next(x for x in told if x.startswith("the first that does not scale: "))
    assert kept.exit_code == 1 and kept.output == f"{bad.closing}; {first}; rows in x.csv\n"
    named = [f"h{k} at t = 1 is undecided (why)" for k in range(104)]
    many = replace(bad, environment={**bad.environment, "level": ["104 sizes undecided", "on W"], "open": named})
    monkeypatch.setattr(checking, "check_model", lambda *_, **__: many)
    told = scalecalc("check-model", "m.py:build").output.splitlines()
    more = 'and 101 more (--format json names them, in Python .environment["open"])'
    assert told[1:7] == ["exponents: 104 sizes undecided", *named[:3], more, "on W"]
    assert json.loads(scalecalc("check-model", "m.py:build", "--format", "json").stdout)["environment"]["open"] == named


def lora(n, start=torch.zeros):
    """A frozen matrix with a low-rank path, whose second factor starts at zero."""
    run = lambda m, x: m.base(x) + m.A(x) @ m.B.T  # noqa: E731
    build = net(run, "base=N>N~ A=N>2", B=lambda z: nn.Parameter(start(z["N"], 2)))
    return build({"N": n})


def adapted(n, *layers):
    ends = nn.Linear(6, n, bias=False), nn.Linear(n, 3, bias=False)
    with torch.no_grad():
        ends[1].weight.mul_(n**-0.5)
    return nn.Sequential(ends[0].requires_grad_(False), *layers, ends[1].requires_grad_(False))


def test_matrices_that_start_at_zero_are_derived_and_stay_so():
    build = lambda s: adapted(s["N"], lora(s["N"]))  # noqa: E731
    assert read_module(build).network.zero == {"1.B"}
    assert not read_module(lambda s: adapted(s["N"], lora(s["N"], torch.randn))).network.zero
    kept, drawn = (plan(build, "N=16", "N=64", std=std, **STEPS) for std in (0.1, {"": 0.1, "1.B": 0.1}))
    assert not kept.init_().get_parameter("1.B").any() and drawn.init_().get_parameter("1.B").any()
    assert kept.recipe.level.certified and kept.groups["1.A.weight"].value("init_std") == pytest.approx(0.05)
    assert "1.B: the module initialises it to zero" in str(kept)
    report = check_model(build, "N=16", "N=64", seeds=4)
    (start,) = (row for row in report.rows if row.quantity == "1.B.init")
    assert start.fit.zero and start.verdict is Verdict.AGREES
    assert not any(row.verdict is Verdict.REFUTED for row in report.rows)


def add_layers(m, x):
    """Layers beside a residual stream."""
    h = m.first(x)
    for layer in m.layers:
        h = h + layer(h)
    return m.last(h)


def test_a_stream_that_only_layers_move_is_not_read_as_one_layer():
    """A of the second layer reads what the first moves, which one layer on a frozen input leaves out."""
    chain = lambda count: net(  # noqa: E731
        add_layers, "first=6>N~ last=N>3~", layers=lambda z: nn.ModuleList(lora(z["N"]) for _ in range(count(z)))
    )
    assert "which only other layers change" in read_module(chain(lambda z: z["L"])).network.unread
    two = read_module(chain(lambda z: 2)).network
    assert not two.unread and two.zero == {"layers.0.B", "layers.1.B"}


def test_what_starts_away_from_zero_keeps_its_start():
    """Magnitudes of DoRA, time constants: a normal distribution around zero would take them away."""
    p = plan(magnitudes, "N=16", "N=64", **STEPS, std=0.02)
    assert read_kept(p) == {"1.W", "1.m", "1.times", "1.B"}
    assert "1.m, 1.times: init_ keeps the module's own start" in str(p)
    rows = {row["name"]: row for row in p.as_rows()}
    assert rows["1.m"]["init"] == rows["1.W"]["init"] == "kept" and rows["1.A"]["init"] == "normal"
    assert "std" not in rows["1.m"] and any(line.split()[:3] == ["1.m", "1", "kept"] for line in str(p).splitlines())


def test_what_two_seeds_start_alike_is_no_draw():
    """Rates from -2 to 1, of which no mean says that they are meant; they were drawn anew."""
    run = lambda m, x: m.out(m.inp(x) * m.log_a.sigmoid() + m.shift)  # noqa: E731
    build = net(run, "inp=5>N out=N>3 shift=N,", log_a=lambda z: nn.Parameter(torch.linspace(-2, 1, z["N"])))
    assert read_kept(plan(build, "N=16", "N=64", **STEPS, std=0.02)) == {"log_a"}


def routed(run, k="K"):
    """Experts between two matrices, of which ``run`` chooses k."""
    inner = net(run, f"Q=N>M k={k}", W=lambda z: nn.Parameter(torch.randn(z["M"], z["N"], z["N"]) / z["N"] ** 0.5))
    return net(lambda m, x: m.c(m.b(m.a(x))), "a=6>N c=N>3", b=inner)


def test_casts_to_fewer_digits_are_read():
    """A router in float32, and a table of times that is made in it; gates were read as they round."""

    def read(cast):
        def run(m, x):
            p = m.Q(x)
            p = (p.float() if cast else p).softmax(-1)
            top, at = p.topk(m.k, dim=-1)
            gates = torch.zeros_like(p).scatter(-1, at, top / top.sum(-1, keepdim=True)).to(x.dtype)
            times = torch.arange(3, dtype=torch.float32 if cast else torch.float64).sum().half() if cast else 3.0
            return torch.einsum("bm,mnk,bk->bn", gates, m.W, x) + 0 * times

        return read_module(routed(run))

    plain, rounded = read(False), read(True)
    assert plain.network == rounded.network and plain.factors == rounded.factors and not plain.network.unread


def test_sizes_that_have_a_default_stay_where_they_are_not_given():
    def build(sizes):
        rank = sizes.get("rank", 2)
        return net(lambda m, x: m.c(m.up(m.down(m.a(x)))), f"a=6>N down=N>{rank} up={rank}>N c=N>3")(sizes)

    where = {**STEPS, "std": 0.02}
    assert plan(build, "N=16", "N=64", **where).model.down.weight.shape == (2, 64)
    assert plan(build, "N=16,rank=2", "N=64,rank=4", **where).model.down.weight.shape == (4, 64)
    same = plan(build, "N=16", "N=16", **where)  # numbers of the base itself, by the same script
    assert {g["lr"] for g in same.param_groups()} == {1e-3} and same.model.a.weight.shape == (16, 6)


def test_frozen_tensors_are_held_against_what_grows():
    """Where the rank alone grows no frozen matrix changes; along the width the factor is that from the base on."""
    build = net(lambda m, x: m.c(m.up(m.down(m.a(x)))), "a=6>N down=N>rank up=rank>N c=N>512~")
    where = {**STEPS, "std": 0.02}
    assert plan(build, "N=128,rank=2", "N=128,rank=8", **where).recipe.open == ()
    none, told = plan(build, "N=128,rank=2", "N=512,rank=2", epsilon="derived", **where).recipe.open
    assert none.quantity == "the ray" and "found no muP" in none.why  # on which there are no numbers
    (told,) = plan(build, "N=128,rank=2", "N=512,rank=2", **where).recipe.open  # there are with a negligible epsilon
    assert "from N=128,rank=2 on the module's own is 2 times" in told.why.replace("1.99", "2").replace("2.01", "2")


def test_an_epsilon_that_is_far_below_is_in_the_groups():
    build = net(add_layers, "first=6>N~ last=N>3~", layers=lambda z: nn.ModuleList(lora(z["N"]) for _ in range(2)))
    p = plan(build, "N=16", "N=64", lr=1e-3, eps=1e-30, std=0.02)
    assert {g["eps"] for g in p.param_groups()} == {1e-30} and "negligible epsilon" in str(p)
    report = check_model(build, "N=16", "N=64", seeds=4)  # which takes the negligible epsilon, too
    updates = {row.verdict for row in report.rows if row.quantity.endswith(".A.weight.update")}
    assert Verdict.AGREES in updates and Verdict.REFUTED not in updates


@pytest.mark.parametrize(("number", "told"), [("2", True), ("K", False)])
def test_experts_that_a_module_chooses_by_a_number_of_its_own_are_told(number, told):
    """A top-2 that is written in the module leaves experts out; with K from the sizes all are read."""

    def run(m, x):
        p = m.Q(x).softmax(-1)
        top, at = p.topk(m.k, dim=-1)
        return torch.einsum("bm,mnk,bk->bn", torch.zeros_like(p).scatter(-1, at, top), m.W, x)

    build = routed(run, number)
    reading = read_module(build, {"N": 32, "M": 4, "K": 4})
    assert bool(reading.network.unread) == told
    assert any("their number is not an argument of build" in x for x in reading.lines) == told
    if told:
        report = check_model(build, "N=16,M=4", "N=64,M=16", seeds=4)
        assert any("M grows more than K" in line for line in report.environment["read"])


def test_modules_that_are_there_at_some_sizes_alone_are_left_out():
    """Experts in a list: more of them have outputs at more experts, and a check ended in an internal error."""

    def run(m, x):
        p, x = m.Q(x).softmax(-1), torch.fft.fft(x).real
        return sum(p[:, k : k + 1] * expert(x) for k, expert in enumerate(m.experts))

    build = net(lambda m, x: m.last(m.block(m.first(x))), "first=6>N last=N>3", block=net(run, "Q=N>M experts=M:N>N+"))
    report = check_model(build, "N=16,M=2", "N=64,M=8", seeds=4)
    assert "experts.*.weight" in str([row.quantity for row in report.rows])


def one_hot_row(n):
    """A mixing matrix as of hyper-connections: a one-hot row at a random place above the identity."""
    return torch.cat([torch.eye(n)[torch.randint(n, (1,))], torch.eye(n)])


STARTS = {
    "normal": (lambda n: torch.randn(n, 4 * n) * 0.02, True),
    "uniform": (lambda n: nn.init.xavier_uniform_(torch.empty(n, n)), True),
    "truncated": (lambda n: nn.init.trunc_normal_(torch.empty(n, n), std=0.02), True),
    "orthogonal": (lambda n: nn.init.orthogonal_(torch.empty(n, n)), True),
    "in bfloat16": (lambda n: torch.randn(4 * n, n).bfloat16(), True),
    "a few": (lambda n: torch.randn(3), True),
    "zero": (lambda n: torch.zeros(n, n), True),
    "a one-hot at a random place": (one_hot_row, False),
    "one of four places": (lambda n: one_hot_row(4), False),
    "the identity and noise": (lambda n: torch.eye(n) + 0.01 * torch.randn(n, n), False),
    "another mean": (lambda n: torch.rand(n, n), False),
    "time steps": (lambda n: torch.rand(n) * 3 - 5, False),
    "a line": (lambda n: torch.linspace(-1, 1, n), False),
    "sparse": (lambda n: nn.init.sparse_(torch.empty(n, n), 0.1), False),
    "signs": (lambda n: torch.randn(n, n).sign(), False),
    "ones": (lambda n: torch.ones(n, n), False),
    "another size under each seed": (lambda n: torch.randn(n, n) * float(torch.rand(1) < 0.5 or 4), None),
}


@pytest.mark.parametrize("start", STARTS)
def test_a_start_is_drawn_where_two_seeds_draw_from_one_centred_law(start):
    make, drawn = STARTS[start]
    for seed in range(8):
        torch.manual_seed(seed)
        first, second = make(16), make(16)
        expected = drawn if drawn is not None else bool(0.5 < first.std() / second.std() < 2)
        assert is_drawn(first, second) == expected


@pytest.mark.parametrize(("mean", "drawn"), [(0.3, True), (0.5, False)])
def test_one_draw_counts_once_where_the_module_fixes_its_seed(mean, drawn):
    """96 normal entries have a mean of 0.3 under 3 seeds in 1,000, and of 0.5 under none in a million."""
    x = torch.randn(96, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = (x - x.mean()) / x.std() + mean
    assert is_drawn(x, x, seeded=False) == drawn


@pytest.mark.parametrize("seed", [None, 0, 1, 7])
def test_init_never_overwrites_a_start_with_structure(seed):
    """Also where build seeds torch itself; what is kept and grows other than derived is named and not certified."""
    run = lambda m, x: m.b(torch.tanh(torch.einsum("st,btn->bsn", m.alpha, m.a(x))) @ m.mean)  # noqa: E731
    law = torch.rand if seed == 7 else lambda *shape: torch.randn(shape) * shape[0] ** -0.5

    def build(z):
        if seed is not None:
            torch.manual_seed(seed)
        own = {"alpha": lambda z: nn.Parameter(one_hot_row(4)), "mean": lambda z: nn.Parameter(law(z["N"], z["N"]))}
        return net(run, "a=5>N+ b=N>3", torch.randn(1, 4, 5), **own)(z)

    p = plan(build, "N=16", "N=64", lr=1e-2, eps=1e-8, std=0.2)
    kept = read_kept(p)
    assert kept == {"alpha", "mean"} if seed == 7 else kept == {"alpha"}
    assert any(line.startswith(", ".join(sorted(kept)) + ": init_ keeps the module's own start") for line in p.warnings)
    assert [x.quantity for x in p.level.open if "init_ keeps its start" in x.why] == ["mean"] * (seed == 7)


def test_a_module_of_100_layers_is_read_and_one_of_300_is_by_shape_with_the_reason():
    def run(m, x):
        h = m.inner(x)
        for up, down in zip(m.pairs[::2], m.pairs[1::2], strict=True):
            h = h + down(torch.relu(up(h)))
        return m.head(h)

    began = time.process_time()
    hundred, many = (
        read_module(net(run, f"inner=4>N head=N>1 pairs={2 * k}:N>N", torch.ones(1, 4))) for k in (100, 300)
    )
    assert time.process_time() - began < 60, "today it takes four seconds"
    assert not hundred.network.unread and len(hundred.network.statements) > 300
    assert "1203 lines; give at most 1000" in many.network.unread


def test_of_two_parameters_that_are_one_weight_one_starts_at_theta_one():
    """Each as a weight by itself makes updates that fall as n^(-1/2): the product of two small numbers."""
    both = net(lambda m, x: F.linear(x, m.w * m.s), "w=N,N s=N,N")
    p = plan(met("1,", lambda m, w, h, x: m.both(h) * w, both=both), "N=16", "N=64", lr={"": 1e-3}, std=0.02)
    factors = {name: tuple(p[name].settings[x].factor for x in ("init_std", "lr")) for name in ("both.w", "both.s")}
    assert factors == {"both.w": (0.5, 0.25), "both.s": (1.0, 0.5)}
    assert any(line.startswith("both.s: it is multiplied with both.w entry by entry") for line in p.warnings)
