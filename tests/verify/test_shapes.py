"""Modules that cannot be read: numbers by the shapes of their parameters, what the answer says of itself, its check."""

import json
import time
from collections import OrderedDict
from dataclasses import replace
from fractions import Fraction

import pytest

torch = pytest.importorskip("torch")
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

from scaling_algebra import derive, plan
from scaling_algebra.cli import main
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
from .test_constants import Module, drawn, linear


class Odd(nn.Module):
    """A module with a call that no rule reads, whose parameters are of every kind."""

    def __init__(self, sizes):
        super().__init__()
        n, k, m = sizes["N"], sizes["N_e"], sizes["M"]
        self.emb, self.conv, self.norm = nn.Embedding(9, n), nn.Conv1d(n, n, 3, padding=1), nn.LayerNorm(n)
        self.router, self.head = nn.Linear(n, m, bias=False), nn.Linear(n, 9, bias=False)
        self.up, self.down = (nn.Parameter(torch.randn(m, *side) / 6) for side in ((n, k), (k, n)))
        self.loose, self.places = nn.Parameter(torch.randn(n, k)), nn.Parameter(torch.randn(1, 5, n))
        self.blocks = nn.ModuleList(nn.Linear(n, n) for _ in range(2))

    def forward(self, ids):
        h = self.norm(torch.fft.fft(self.emb(ids) + self.places).real)
        h = h + self.conv(h.transpose(1, 2)).transpose(1, 2)
        for block in self.blocks:
            h = h + block(h).tanh()
        y = torch.einsum("btmk,mkn->btmn", torch.einsum("btn,mnk->btmk", h, self.up).relu(), self.down)
        h = h * self.norm.weight.flip(0)
        h = h + (self.router(h).softmax(-1)[..., None] * y).sum(2) + 0 * torch.kron(self.loose, self.loose).sum()
        return self.head(h)


def odd(sizes):
    return Odd(sizes)


def powers(d, name):
    return tuple(map(str, (d[name].init_std, d[name].lr, d[name].eps)))


def test_the_law_of_every_kind_of_parameter():
    with pytest.raises(Unreadable, match="fft_fft: no rule"):
        trace_equations(odd)
    reading = read_module(odd)
    assert "fft_fft: no rule for this call" in reading.network.unread
    d = derive(ray="N=1,N_e=1,M=0", optimizer="adamw", parameterization="mup", network=reading.network)
    assert "the number of these maps" not in str(ModelOption(reading).append_notes(brief([d], ())))  # M is fixed
    assert powers(d, "emb.weight") == powers(d, "norm.weight") == powers(d, "places") == ("1", "1", "None")
    assert powers(d, "conv.weight") == powers(d, "blocks.*.weight") == ("N^(-1/2)", "N^-1", "None")
    assert powers(d, "head.weight") == ("N^-1", "N^-1", "None")
    assert powers(d, "up") == ("N^(-1/2)", "N^-1", "None") and powers(d, "down") == ("N_e^(-1/2)", "N_e^-1", "None")
    assert d.optimizer.regime == "negligible"  # shapes do not say how large gradients are
    sgd = derive(ray="N=1,N_e=0,M=0", optimizer="sgd", parameterization="mup", network=reading.network)
    assert (
        str(sgd["emb.weight"].lr) == "N" and str(sgd["head.weight"].lr) == "N^-1" and str(sgd["conv.weight"].lr) == "1"
    )
    notes = dict(reading.notes)
    assert (
        "no call shows which dimension" in notes["loose"]
        and set(notes) == {"loose", "down", ""}
        and "are not recognised" in notes[""]
    )


def test_of_a_multilayer_perceptron_it_is_what_is_derived():
    def build(sizes):
        n = sizes["N"]
        return nn.Sequential(
            nn.Linear(5, n, bias=False), nn.Tanh(), nn.Linear(n, n, bias=False), nn.Linear(n, 3, bias=False)
        )

    for optimizer, epsilon in (("sgd", None), ("adamw", "negligible"), ("muon", None)):
        known, shapes = (
            derive(ray="N=1", optimizer=optimizer, parameterization="mup", network=t.network, epsilon=epsilon)
            for t in (trace_equations(build), read_by_shape(build, None, "why"))
        )
        assert known.scaling.tensors == shapes.scaling.tensors


def test_a_tied_tensor_is_named():
    def noisy(m, q):
        return nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=0.1 if m.training else 0.0)

    def build(sizes, between):
        n = sizes["N"]
        m = Module(lambda m, ids: m.head(torch.fft.fft(between(m, m.emb(ids))).real), emb=nn.Embedding(9, n))
        m.head = nn.Linear(n, 9, bias=False)
        m.head.weight = m.emb.weight
        return m, torch.arange(6).reshape(2, 3)

    for between in (lambda m, h: h, noisy):
        tied = read_module(lambda sizes, between=between: build(sizes, between))
        assert "used in two ways" in dict(tied.notes)["emb.weight"]
        d = derive(ray="N=1", optimizer="adam", parameterization="mup", network=tied.network, epsilon="negligible")
        assert powers(d, "emb.weight")[:2] == ("1", "1")


def test_what_has_no_shape_or_no_parameters_is_refused():
    with pytest.raises(UsageError, match=r"0\.weight has no shape before the first call; call the model once in build"):
        read_module(lambda s: (nn.Sequential(nn.LazyLinear(s["N"])), torch.zeros(2, 5)))
    with pytest.raises(UsageError, match=r"1\.running_mean has no shape before the first call"):
        read_module(
            lambda s: (nn.Sequential(nn.Linear(5, s["N"]), nn.LazyBatchNorm1d(affine=False)), torch.zeros(2, 5))
        )
    with pytest.raises(UsageError, match="the model has no parameters"):
        read_module(lambda s: (nn.Tanh(), torch.zeros(2, s["N"])))
    slots = ParameterShape("slots", [(16, 8), (16, 0)], set(), False)
    with pytest.raises(UsageError, match=r"slots: one of its dimensions is 0 at \{'M': 8\}; give larger sizes"):
        ShapeNetwork([slots], [{"M": 4}, {"M": 8}], {})
    with pytest.raises(
        UsageError, match="build returns a TorchScript module, whose calls cannot be recorded; return the"
    ):
        read_module(lambda s: torch.jit.script(nn.Linear(5, s["N"])))


def test_what_does_not_grow_has_no_numbers(tmp_path, capsys):
    (tmp_path / "m.py").write_text(
        "from torch import nn\ndef build(sizes):\n    return nn.Linear(sizes['N'] * 0 + 5, 3)\n"
        "def fixed(sizes):\n    return nn.Linear(5, 3)\n"
        "def named(sizes):\n    return nn.Linear(5, sizes['width'])\n"
    )
    fixed = f"{tmp_path / 'm.py'}:fixed"
    of, sizes = f"{tmp_path / 'm.py'}:build", ["--base", "N=16", "--target", "N=64"]
    for asked in (
        ["derive", "--model", of],
        ["recipe", *sizes, "--lr=1", "--model", of],
        ["check-model", of, *sizes],
        ["check-model", fixed],
        ["study", "transfer", "--model", fixed],
    ):
        with pytest.raises(SystemExit, match="2"):
            main([*asked, "--optimizer", "adam"])
        assert "no parameter of the model grows, so nothing would change" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["derive", "--model", of.replace("build", "named")])
    assert "it reads width, but axes that can grow are called N, N_e, M, K, L" in capsys.readouterr().err


def test_a_module_that_raises_at_small_sizes_is_read_at_the_base(tmp_path, capsys):
    (tmp_path / "m.py").write_text(
        "from torch import nn\ndef build(sizes):\n    assert sizes['N'] % 48 == 0, 'a multiple of 48'\n"
        "    return nn.Sequential(nn.Linear(5, sizes['N']), nn.ReLU(), nn.Linear(sizes['N'], 3))\n"
    )
    of = f"{tmp_path / 'm.py'}:build"
    with pytest.raises(SystemExit, match="2"):
        main(["derive", "--model", of, "--optimizer", "adam"])
    assert "build({'N': 32}) raises AssertionError: a multiple of 48" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="0"):
        main(["recipe", "--model", of, "--optimizer", "adam", "--base", "N=48", "--target", "N=192"])
    assert "certified, N=48 to N=192" in capsys.readouterr().out


def test_a_side_of_squares_is_said():
    """The numbers that a hypernetwork makes are a matrix."""

    def build(sizes):
        return nn.Sequential(nn.Linear(5, sizes["N"] ** 2), nn.Linear(sizes["N"] ** 2, 3)), torch.zeros(2, 5)

    notes = [note for name, note in read_by_shape(build, None, "why").notes if name == "0.weight"]
    assert len(notes) == 1 and notes[0].startswith("its output has N^2 entries")


def test_parameters_without_a_name_of_their_own():
    def build(sizes):
        n = sizes["N"]
        return nn.Sequential(nn.Embedding(9, n), nn.LSTM(n, n, batch_first=True)), torch.arange(5)[None]

    d = derive(ray="N=1", optimizer="adamw", parameterization="mup", network=read_by_shape(build, None, "why").network)
    assert powers(d, "0.weight")[:2] == ("1", "1") and powers(d, "1.weight_hh_l0")[:2] == ("N^(-1/2)", "N^-1")


@pytest.mark.parametrize("name", ["f", "s1", "o2", "s_1"])
def test_a_parameter_may_have_the_name_of_a_signal(name):
    def run(m, x):
        h = m.inp(x)
        return m.out((h - h.mean(-1, keepdim=True)) * getattr(m, name))

    def build(sizes):
        number = {name: nn.Parameter(4.0 * torch.ones(1))}
        return Module(run, inp=nn.Linear(5, sizes["N"]), out=nn.Linear(sizes["N"], 3), **number)

    read = read_by_shape(build, None, "why").network
    d = derive(ray="N=1", optimizer="adamw", parameterization="mup", network=read)
    assert powers(d, name)[:2] == ("1", "1") and powers(d, "out.weight")[:2] == ("N^-1", "N^-1")


def test_what_an_answer_by_shape_does_not_claim(tmp_path):
    network = read_module(odd).network
    with pytest.raises(UsageError, match="the shapes of its parameters suffice for muP, not for MSSP"):
        derive(ray="N=1,N_e=1,M=0", optimizer="adamw", parameterization="mssp", network=network)
    with pytest.raises(UsageError, match="the shapes of its parameters suffice for muP, not for MSSP"):
        plan(odd, "N=32,N_e=24,M=4", "N=64,N_e=24,M=4", parameterization="mssp")
    with pytest.raises(
        UsageError, match="the shapes of parameters do not show how numbers depend on depth; keep L fixed"
    ):
        plan(odd, "N=32,N_e=24,M=4,L=2", "N=64,N_e=24,M=4,L=4")
    with pytest.raises(Unreadable, match="fft_fft"):
        plan(odd, "N=32,N_e=24,M=4", "N=64,N_e=24,M=4", strict=True)
    (tmp_path / "mine.py").write_text(
        "import torch\nfrom torch import nn\nclass M(nn.Linear):\n    def forward(self, x):\n"
        "        return torch.fft.fft(super().forward(x)).real\ndef build(s):\n    return M(5, s['N'])\n"
    )
    model = f"{tmp_path}/mine.py:build"
    answer = scalecalc("derive", "--model", model, "--optimizer", "adamw")
    assert answer.exit_code == 3
    first, *lines = answer.output.splitlines()
    assert "by shape" in first and any("by shape" in x and "fft_fft: no rule for this call" in x for x in lines)
    for words in (["derive", "--strict"], ["derive", "--prove"], ["signals"], ["list"]):
        answer = scalecalc(words[0], "--model", model, *words[1:])
        assert answer.exit_code == 2 and "fft_fft" in answer.output


def test_by_shape_epsilon_stays_and_gradients_of_any_size_are_met():
    """Behind a normalised output gradients are N^(1/2) larger than those of a readout; no shape says that."""

    class Towers(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.a, self.b = (
                nn.Sequential(nn.Linear(6, n), nn.ReLU(), nn.Linear(n, n), nn.Linear(n, 8)) for _ in range(2)
            )
            self.t = nn.Parameter(torch.tensor(1.0))

        def forward(self, x):
            a, b = (nn.functional.normalize(f(x), dim=-1) for f in (self.a, self.b))
            return a @ b.T * torch.log(self.t + 2)

    def build(sizes):
        return Towers(sizes["N"]), torch.randn(8, 6, generator=torch.Generator().manual_seed(0))

    p = plan(build, "N=16", "N=64", lr=1e-3, eps=1e-8)
    assert {row["eps"] for row in p.as_rows()} == {1e-8} and any("far below every gradient" in x for x in p.warnings)
    report = check_model(build, "N=64", "N=256")
    assert report.environment["level"] == ["by shape"] and report.exit_code == 0 and report.counts["AGREES"] > 20


def test_a_plan_by_shape_says_so_and_trains():
    p = plan(odd, "N=16,N_e=8,M=4", "N=64,N_e=32,M=4", lr=1e-3, eps=1e-8, std=0.1)
    assert "by shape" in str(p).splitlines()[0] and p["blocks.1.weight"].settings["lr"].target == 1e-3 / 4
    torch.optim.AdamW(p.param_groups(p.init_()))
    more = plan(odd, "N=16,N_e=8,M=4", "N=64,N_e=32,M=8", lr=1e-3, eps=1e-8, std=0.1)
    assert ["the number of these maps grows" in str(x) for x in (p, more)] == [False, True]


def test_a_weight_norm_is_that_of_the_matrix_that_is_drawn():
    def build(sizes):
        n = sizes["N"]
        return nn.Sequential(weight_norm(nn.Linear(5, n)), nn.Tanh(), weight_norm(nn.Linear(n, 3))), torch.ones(2, 5)

    p = plan(build, "N=16", "N=64", lr=1e-3, eps=1e-8, std=0.1)
    model = p.init_()
    for layer in (model[0], model[2]):
        norm, drawn = layer.parametrizations.weight.original0, layer.parametrizations.weight.original1
        assert torch.allclose(layer.weight, drawn) and torch.allclose(norm, drawn.norm(dim=1, keepdim=True))
    assert any("original0: init_ sets these weight-norm magnitudes to the norms" in x for x in p.warnings)
    assert any(
        "2.parametrizations.weight.original0: it is not known what this factor multiplies" in x for x in p.warnings
    )
    model, inputs, _ = build_module(build, {"N": 16})
    assert [x for x in TrainingWatch(model, inputs, read_module(build)).names if "output" in x] == [
        "0: output", "1: output", "2: output", "output"
    ]  # fmt: skip


def small(sizes):
    n = sizes["N"]

    def run(m, x):
        h = torch.fft.fft(m.first(x)[..., :1]).real.tanh() + m.first(x)
        return m.last(m.mid(h).tanh())

    return Module(run, first=linear(5, n), mid=linear(n, n), last=linear(n, 3)), drawn(6, 5)


def test_a_check_by_shape_agrees_and_finds_a_planted_rate(monkeypatch, tmp_path):
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


class Lora(nn.Module):
    """A frozen matrix with a low-rank path; ``empty``: its second factor is not set."""

    def __init__(self, n, empty=False):
        super().__init__()
        self.base, self.A = nn.Linear(n, n, bias=False), nn.Linear(n, 2, bias=False)
        self.B = nn.Parameter(torch.randn(n, 2) if empty else torch.zeros(n, 2))
        self.base.weight.requires_grad_(False)

    def forward(self, x):
        return self.base(x) + self.A(x) @ self.B.T


def adapted(n, count=1, empty=False):
    ends = nn.Linear(6, n, bias=False), nn.Linear(n, 3, bias=False)
    for end in ends:
        end.weight.requires_grad_(False)
    ends[1].weight.mul_(n**-0.5)
    return nn.Sequential(ends[0], *(Lora(n, empty) for _ in range(count)), ends[1])


def test_matrices_that_start_at_zero_are_derived_and_stay_so():
    def build(sizes):
        return adapted(sizes["N"])

    where = {"lr": 1e-3, "eps": 1e-8}
    assert (
        read_module(build).network.zero == {"1.B"}
        and not read_module(lambda s: adapted(s["N"], empty=True)).network.zero
    )
    kept, drawn = (plan(build, "N=16", "N=64", std=std, **where) for std in (0.1, {"": 0.1, "1.B": 0.1}))
    assert not kept.init_().get_parameter("1.B").any() and drawn.init_().get_parameter("1.B").any()
    assert kept.recipe.level.certified and kept.groups["1.A.weight"].value("init_std") == pytest.approx(0.05)
    assert "1.B: the module initialises it to zero" in str(kept)
    report = check_model(build, "N=16", "N=64", seeds=4)
    (start,) = (row for row in report.rows if row.quantity == "1.B.init")
    assert start.fit.zero and start.verdict is Verdict.AGREES
    assert not any(row.verdict is Verdict.REFUTED for row in report.rows)


def test_a_stream_that_only_layers_move_is_not_read_as_one_layer():
    """A of the second layer reads what the first moves, which one layer on a frozen input leaves out."""

    class Chain(nn.Module):
        def __init__(self, n, count):
            super().__init__()
            self.first, *layers, self.last = adapted(n, count)
            self.layers = nn.ModuleList(layers)

        def forward(self, x):
            h = self.first(x)
            for layer in self.layers:
                h = h + layer(h)
            return self.last(h)

    assert "which only other layers change" in read_module(lambda s: Chain(s["N"], s["L"])).network.unread
    two = read_module(lambda s: Chain(s["N"], 2)).network
    assert not two.unread and two.zero == {"layers.0.B", "layers.1.B"}


class Magnitude(nn.Module):
    """DoRA: rows of W + B A of a norm that is trained; and a time constant between 1/2 and 2."""

    def __init__(self, n):
        super().__init__()
        self.W = nn.Parameter(torch.randn(n, n) / n**0.5, requires_grad=False)
        self.A, self.B = nn.Parameter(torch.randn(2, n)), nn.Parameter(torch.zeros(n, 2))
        self.m, self.times = nn.Parameter(self.W.norm(dim=1)), nn.Parameter(torch.linspace(0.5, 2, n))

    def forward(self, x):
        w = self.W + 0.5 * (self.B @ self.A)
        return nn.functional.linear(x, w) * self.m / w.norm(dim=1).detach() * self.times


def magnitudes(sizes):
    n = sizes["N"]
    return nn.Sequential(nn.Linear(6, n, bias=False), Magnitude(n), nn.Linear(n, 3, bias=False))


def test_weights_that_are_made_of_weights_have_their_sides():
    """The columns of A in W + B A are those that the input is summed over."""
    d = derive(ray="N=1", optimizer="adamw", parameterization="mup", network=read_module(magnitudes).network)
    assert powers(d, "1.A")[:2] == ("N^-1", "N^-1") and powers(d, "1.B")[:2] == ("None", "1")


def test_what_starts_away_from_zero_keeps_its_start():
    """Magnitudes of DoRA, time constants: a normal distribution around zero would take them away."""
    p = plan(magnitudes, "N=16", "N=64", lr=1e-3, eps=1e-8, std=0.02)
    before = {name: x.clone() for name, x in p.model.named_parameters()}
    p.init_()
    same = {name for name, x in p.model.named_parameters() if torch.equal(x, before[name])}
    assert same == {"1.W", "1.m", "1.times", "1.B"} and "1.m, 1.times: init_ keeps the module's own start" in str(p)
    rows = {row["name"]: row for row in p.as_rows()}
    assert rows["1.m"]["init"] == rows["1.W"]["init"] == "kept" and rows["1.A"]["init"] == "normal"
    assert "std" not in rows["1.m"] and any(line.split()[:3] == ["1.m", "1", "kept"] for line in str(p).splitlines())


def test_what_two_seeds_start_alike_is_no_draw():
    """Rates from -2 to 1, of which no mean says that they are meant; they were drawn anew."""

    def build(sizes):
        n = sizes["N"]
        own = {"log_a": nn.Parameter(torch.linspace(-2, 1, n)), "shift": nn.Parameter(torch.randn(n))}
        run = lambda m, x: m.out(m.inp(x) * m.log_a.sigmoid() + m.shift)  # noqa: E731
        return Module(run, inp=linear(5, n), out=linear(n, 3), **own)

    p = plan(build, "N=16", "N=64", lr=1e-3, eps=1e-8, std=0.02)
    before = {name: x.clone() for name, x in p.model.named_parameters()}
    p.init_()
    assert {name for name, x in p.model.named_parameters() if torch.equal(x, before[name])} == {"log_a"}


def routed(sizes, run, k):
    """Experts between two matrices, of which ``run`` chooses k."""
    n, m = sizes["N"], sizes["M"]
    experts = Module(run, Q=linear(n, m), W=nn.Parameter(torch.randn(m, n, n) / n**0.5))
    experts.k = k
    return nn.Sequential(linear(6, n), experts, linear(n, 3))


def test_casts_to_fewer_digits_are_read():
    """A router in float32, and a table of times that is made in it; gates were read as they round."""

    def build(cast):
        def run(m, x):
            p = m.Q(x)
            p = (p.float() if cast else p).softmax(-1)
            top, at = p.topk(m.k, dim=-1)
            gates = torch.zeros_like(p).scatter(-1, at, top / top.sum(-1, keepdim=True)).to(x.dtype)
            times = torch.arange(3, dtype=torch.float32 if cast else torch.float64).sum().half() if cast else 3.0
            return torch.einsum("bm,mnk,bk->bn", gates, m.W, x) + 0 * times

        return read_module(lambda sizes: routed(sizes, run, sizes["K"]))

    plain, rounded = build(False), build(True)
    assert plain.network == rounded.network and plain.factors == rounded.factors and not plain.network.unread


def test_sizes_that_have_a_default_stay_where_they_are_not_given():
    def build(sizes):
        n, r = sizes["N"], sizes.get("rank", 2)
        low = nn.Sequential(nn.Linear(n, r, bias=False), nn.Linear(r, n, bias=False))
        return nn.Sequential(nn.Linear(6, n, bias=False), low, nn.Linear(n, 3, bias=False))

    where = {"lr": 1e-3, "eps": 1e-8, "std": 0.02}
    assert plan(build, "N=16", "N=64", **where).model[1][0].weight.shape == (2, 64)
    assert plan(build, "N=16,rank=2", "N=64,rank=4", **where).model[1][0].weight.shape == (4, 64)
    same = plan(build, "N=16", "N=16", **where)  # numbers of the base itself, by the same script
    assert {g["lr"] for g in same.param_groups()} == {1e-3} and same.model[0].weight.shape == (16, 6)


def test_frozen_tensors_are_held_against_what_grows():
    """Where the rank alone grows no frozen matrix changes; along the width the factor is that from the base on."""

    def build(sizes):
        n, r = sizes["N"], sizes["rank"]
        low = nn.Sequential(nn.Linear(n, r, bias=False), nn.Linear(r, n, bias=False))
        made = nn.Sequential(nn.Linear(6, n, bias=False), low, nn.Linear(n, 512, bias=False))
        made[2].weight.requires_grad_(False)
        return made

    where = {"lr": 1e-3, "eps": 1e-8, "std": 0.02}
    assert plan(build, "N=128,rank=2", "N=128,rank=8", **where).recipe.open == ()
    none, told = plan(build, "N=128,rank=2", "N=512,rank=2", epsilon="derived", **where).recipe.open
    assert none.quantity == "the ray" and "found no muP" in none.why  # on which there are no numbers
    (told,) = plan(build, "N=128,rank=2", "N=512,rank=2", **where).recipe.open  # there are with a negligible epsilon
    assert "from N=128,rank=2 on the module's own is 2 times" in told.why.replace("1.99", "2").replace("2.01", "2")


def test_an_epsilon_that_is_far_below_is_in_the_groups():
    def build(sizes):
        n = sizes["N"]
        ends = nn.Linear(6, n, bias=False), nn.Linear(n, 3, bias=False)
        for end in ends:
            end.weight.requires_grad_(False)
        return nn.Sequential(ends[0], Residual(Lora(n)), Residual(Lora(n)), ends[1])

    class Residual(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return x + self.inner(x)

    p = plan(build, "N=16", "N=64", lr=1e-3, eps=1e-30, std=0.02)
    assert {g["eps"] for g in p.param_groups()} == {1e-30} and "negligible epsilon" in str(p)
    report = check_model(build, "N=16", "N=64", seeds=4)  # which takes the negligible epsilon, too
    updates = {row.verdict for row in report.rows if row.quantity.endswith(".A.weight.update")}
    assert Verdict.AGREES in updates and Verdict.REFUTED not in updates


@pytest.mark.parametrize(("number", "told"), [(2, True), (None, False)])
def test_experts_that_a_module_chooses_by_a_number_of_its_own_are_told(number, told):
    """A top-2 that is written in the module leaves experts out; with K from the sizes all are read."""

    def run(m, x):
        p = m.Q(x).softmax(-1)
        top, at = p.topk(m.k, dim=-1)
        return torch.einsum("bm,mnk,bk->bn", torch.zeros_like(p).scatter(-1, at, top), m.W, x)

    def build(sizes):
        return routed(sizes, run, number or sizes["K"])

    reading = read_module(build, {"N": 32, "M": 4, "K": 4})
    assert (
        bool(reading.network.unread)
        == told
        == any("their number is not an argument of build" in x for x in reading.lines)
    )
    if told:
        report = check_model(build, "N=16,M=4", "N=64,M=16", seeds=4)
        assert any("M grows more than K" in line for line in report.environment["read"])


def test_experts_that_choose_tokens_are_not_told_to_take_a_number_of_experts():
    def run(m, x):
        h = m.inp(x)
        top, at = m.gate(h).softmax(-1).T.topk(2)
        y = top[..., None] * torch.einsum("mnk,mck->mcn", m.W, h[at])
        return m.head(torch.zeros_like(h).index_add(0, at.flatten(), y.flatten(0, 1)))

    def build(sizes):
        n, m = sizes["N"], sizes["M"]
        own = {"gate": linear(n, m), "W": nn.Parameter(torch.randn(m, n, n) / n**0.5)}
        return Module(run, inp=nn.Linear(6, n), head=nn.Linear(n, 3), **own), drawn(7, 6)

    reading = read_module(build)
    assert (
        "an index that depends on computed values" in reading.network.unread
        and "sizes['K']" not in reading.network.unread
    )


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (lambda h: h * (h >= 0.1), "mul: no function of the equations has its values; give them with --network"),
        (lambda h: torch.where(h > 0, h, -1e9).softmax(-1), "where: no function of the equations has its values; give"),
        (lambda h: h * (h >= h.mean(-1, keepdim=True)), "ge: no rule for this call; replace the selection by one"),
        (
            lambda h: torch.where(h > h.flip(-1), h, -1e9).softmax(-1),
            "gt: no rule for this call; replace the selection",
        ),
        (
            lambda h: h if h.sum() > 0 else -h,
            "branches on a computed tensor; equations would hold only for these values",
        ),
    ],
)
def test_reasons_are_about_what_a_module_without_experts_does(run, said):
    def build(sizes):
        return Module(lambda m, x: m.head(run(m.inp(x))), inp=nn.Linear(6, sizes["N"]), head=nn.Linear(sizes["N"], 3))

    reading = read_module(build)
    assert said in reading.network.unread
    assert not any(word in reading.network.unread for word in ("expert", "part of a loss", "K = M"))


def test_modules_that_are_there_at_some_sizes_alone_are_left_out():
    """Experts in a list: more of them have outputs at more experts, and a check ended in an internal error."""

    def run(m, x):
        p, x = m.Q(x).softmax(-1), torch.fft.fft(x).real
        return sum(p[:, k : k + 1] * expert(x) for k, expert in enumerate(m.experts))

    def build(sizes):
        n, m = sizes["N"], sizes["M"]
        listed = Module(run, Q=linear(n, m), experts=nn.ModuleList(nn.Linear(n, n) for _ in range(m)))
        return nn.Sequential(OrderedDict(first=linear(6, n), block=listed, last=linear(n, 3)))

    report = check_model(build, "N=16,M=2", "N=64,M=8", seeds=4)
    assert "experts.*.weight" in str([row.quantity for row in report.rows])


def test_a_list_that_is_longer_at_larger_sizes_is_no_internal_error():
    def build(sizes):
        n = sizes["N"]
        return Module(lambda m, x: m.b(m.a(x)[:, [*range(n)][::-1]]), a=nn.Linear(5, n), b=nn.Linear(n, 3)), drawn(2, 5)

    with pytest.raises(Unreadable, match="__getitem__: takes a list that is longer at other sizes"):
        trace_equations(build)
    d = derive(ray="N=1", optimizer="adamw", parameterization="mup", network=read_module(build).network)
    assert powers(d, "b.weight")[:2] == ("N^-1", "N^-1") and powers(d, "a.weight")[:2] == ("1", "1")


def test_tokens_of_attention_are_vectors():
    def run(m, x):
        h = torch.fft.fft(m.a(x)).real
        return m.c(h + m.attn(h, h, h, need_weights=False)[0])

    def build(sizes):
        n = sizes["N"]
        attention = nn.MultiheadAttention(n, 2, batch_first=True, add_bias_kv=True)
        return Module(run, attn=attention, a=nn.Linear(4, n), c=nn.Linear(n, 3)), drawn(2, 3, 4)

    reading = read_module(build)
    d = derive(ray="N=1", optimizer="adamw", parameterization="mup", network=reading.network)
    assert {powers(d, f"attn.bias_{x}")[:2] for x in "kv"} == {("1", "1")}
    assert not [name for name, _ in reading.notes if "bias_k" in name]


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
    found = set()
    for seed in range(8):
        torch.manual_seed(seed)
        first, second = make(16), make(16)
        expected = drawn if drawn is not None else bool(0.5 < first.std() / second.std() < 2)
        found.add(is_drawn(first, second) == expected)
    assert found == {True}


class Mixing(nn.Module):
    def __init__(self, n, seed):
        super().__init__()
        if seed is not None:
            torch.manual_seed(seed)
        self.a, self.b, self.alpha = nn.Linear(5, n), nn.Linear(n, 3, bias=False), nn.Parameter(one_hot_row(4))
        self.mean = nn.Parameter(torch.rand(n, n) if seed == 7 else torch.randn(n, n) * n**-0.5)

    def forward(self, x):
        return self.b(torch.tanh(torch.einsum("st,btn->bsn", self.alpha, self.a(x))) @ self.mean)


@pytest.mark.parametrize("seed", [None, 0, 1, 7])
def test_init_never_overwrites_a_start_with_structure(seed):
    """Also where build seeds torch itself; what is kept and grows other than derived is named and not certified."""
    p = plan(lambda s: (Mixing(s["N"], seed), torch.randn(1, 4, 5)), "N=16", "N=64", lr=1e-2, eps=1e-8, std=0.2)
    before = {name: x.clone() for name, x in p.model.named_parameters()}
    p.init_()
    kept = {name for name, x in p.model.named_parameters() if torch.equal(x, before[name])}
    assert kept == {"alpha", "mean"} if seed == 7 else kept == {"alpha"}
    assert any(line.startswith(", ".join(sorted(kept)) + ": init_ keeps the module's own start") for line in p.warnings)
    assert [x.quantity for x in p.level.open if "init_ keeps its start" in x.why] == ["mean"] * (seed == 7)


class Residual(nn.Module):
    """Layers of two matrices beside a residual stream."""

    def __init__(self, n, layers):
        super().__init__()
        self.inner, self.head = nn.Linear(4, n, bias=False), nn.Linear(n, 1, bias=False)
        self.pairs = nn.ModuleList(nn.Linear(n, n, bias=False) for _ in range(2 * layers))

    def forward(self, x):
        h = self.inner(x)
        for up, down in zip(self.pairs[::2], self.pairs[1::2], strict=True):
            h = h + down(torch.relu(up(h)))
        return self.head(h)


def test_a_module_of_100_layers_is_read_and_one_of_300_is_by_shape_with_the_reason():
    began = time.process_time()
    hundred, many = (read_module(lambda s, k=k: (Residual(s["N"], k), torch.ones(1, 4))) for k in (100, 300))
    assert time.process_time() - began < 60, "today it takes four seconds"
    assert not hundred.network.unread and len(hundred.network.statements) > 300
    assert "1203 lines; give at most 1000" in many.network.unread


class Met(nn.Module):
    """A hidden layer that is no equation, and a parameter that meets its signal in some way."""

    def __init__(self, n, shape, meets):
        super().__init__()
        self.a, self.b, self.last = nn.Linear(5, n), nn.Linear(n, n), nn.Linear(n, 3)
        self.w, self.meets = nn.Parameter(torch.randn([n if d == "N" else d for d in shape])), meets
        self.register_buffer("ids", torch.arange(6))

    def forward(self, x):
        h = self.a(x)
        y = self.meets(self, self.w, torch.tanh(self.b(torch.where(h >= 0, h, h.sigmoid()))), x)
        return self.last(y) if y.shape[-1] == self.last.in_features else y


def at_data(x):
    return (x.abs() * 10).long() % 6


IN, OUT, ADDED = ("N^(-1/2)", "N^-1"), ("N^-1", "N^-1"), ("1", "1")
MEETS = {
    "rows with the signal": ((6, "N"), lambda m, w, h, x: torch.einsum("btn,in->bti", h, F.embedding(m.ids, w)), OUT),
    "rows at data": ((6, "N"), lambda m, w, h, x: torch.einsum("btn,btkn->btk", h, F.embedding(at_data(x), w)), OUT),
    "rows times it, summed": ((6, "N"), lambda m, w, h, x: (h[:, :, None] * F.embedding(at_data(x), w)).sum(-1), OUT),
    "rows that are added": ((6, "N"), lambda m, w, h, x: h + F.embedding(at_data(x)[..., 0], w), ADDED),
    "rows that multiply": ((6, "N"), lambda m, w, h, x: torch.tanh(h * F.embedding(at_data(x)[..., 0], w)), ADDED),
    "a vector, summed": (("N",), lambda m, w, h, x: (h * w).sum(-1, keepdim=True), OUT),
    "a gain": (("N",), lambda m, w, h, x: torch.tanh(h * w), ADDED),
    "a bias": (("N",), lambda m, w, h, x: h + w, ADDED),
    "a tensor of three, read": ((3, "N", 5), lambda m, w, h, x: torch.tensordot(h, w, ([2], [1])).flatten(2), OUT),
    "a tensor of three, made": ((3, "N", 5), lambda m, w, h, x: torch.tensordot(x, w, ([2], [2])).sum(2) + h, ADDED),
    "a matrix": (("N", "N"), lambda m, w, h, x: torch.tensordot(h, w, ([2], [1])), IN),
    "turned": (("N", 4), lambda m, w, h, x: F.linear(h, w.t()), OUT),
}


@pytest.mark.parametrize("way", MEETS)
def test_the_call_that_meets_a_parameter_says_what_is_summed(way):
    shape, meets, expected = MEETS[way]
    reading = read_by_shape(
        lambda s: (Met(s["N"], shape, meets), torch.randn(1, 4, 5)), {"N": 16}, "a call without a rule"
    )
    d = derive(ray="N=1", optimizer="adam", parameterization="mup", network=reading.network)
    assert powers(d, "w")[:2] == expected and not [note for name, note in reading.notes if name == "w"]


def test_of_two_parameters_that_are_one_weight_one_starts_at_theta_one():
    """Each as a weight by itself makes updates that fall as n^(-1/2): the product of two small numbers."""

    class Both(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.w, self.s = nn.Parameter(torch.randn(n, n) / n**0.5), nn.Parameter(torch.randn(n, n))

        def forward(self, x):
            return F.linear(x, self.w * self.s)

    def build(sizes):
        return Met(sizes["N"], (1,), lambda m, w, h, x: m.both(h) * w), torch.randn(1, 4, 5)

    def with_both(sizes):
        model, x = build(sizes)
        model.both = Both(sizes["N"])
        return model, x

    p = plan(with_both, "N=16", "N=64", lr={"": 1e-3}, std=0.02)
    factors = {name: tuple(p[name].settings[x].factor for x in ("init_std", "lr")) for name in ("both.w", "both.s")}
    assert factors == {"both.w": (0.5, 0.25), "both.s": (1.0, 0.5)}
    assert any(line.startswith("both.s: it is multiplied with both.w entry by entry") for line in p.warnings)
