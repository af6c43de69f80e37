"""Checks by training, without a role: a module is read, its parameters are trained and measured by name."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn import functional as F

from scaling_algebra import plan
from scaling_algebra.errors import UsageError
from scaling_algebra.solver import search
from scaling_algebra.solver.derivation import search_cached
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.powers import Power
from scaling_algebra.verify.apply import checking
from scaling_algebra.verify.apply.blame import find_first_to_blame
from scaling_algebra.verify.apply.checking import check_model
from scaling_algebra.verify.apply.crossovers import suspend_converging_rows, suspend_crossovers
from scaling_algebra.verify.apply.interpolation import interpolate_sizes
from scaling_algebra.verify.apply.loading import load_build
from scaling_algebra.verify.apply.model_training import measure_gradients, rescale_steps
from scaling_algebra.verify.apply.suspensions import drop_rerouted_replicas, suspend_rerouted_steps
from scaling_algebra.verify.judging.fit import Verdict
from scaling_algebra.verify.judging.measurement import Measurement
from scaling_algebra.verify.judging.verdicts import judge
from scaling_algebra.verify.tracing.building import build_module
from scaling_algebra.verify.tracing.measuring import TrainingWatch
from scaling_algebra.verify.tracing.readings import read_module, trace_equations

from ..docs.pages import ROOT, write_files
from .spellings import Stop, attend, sum_experts

pytest_plugins = ("pytester",)


class Language(nn.Module):
    """One layer: packed attention, a norm, biases, a feed-forward part twice as wide; a learned temperature."""

    def __init__(self, n):
        super().__init__()
        self.tok, self.norm = nn.Embedding(32, n), nn.LayerNorm(n)
        self.qkv, self.o = nn.Linear(n, 3 * n, bias=False), nn.Linear(n, n, bias=False)
        self.up, self.down, self.head = nn.Linear(n, 2 * n), nn.Linear(2 * n, n), nn.Linear(n, 32, bias=False)
        self.heads, self.temperature = n // 8, nn.Parameter(torch.ones(()))

    def forward(self, ids):
        h = self.tok(ids)
        b, t, n = h.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(self.norm(h)).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + self.o(a.transpose(1, 2).reshape(b, t, n))
        return self.head(h + self.down(F.relu(self.up(h)))) * self.temperature


def language(sizes):
    return Language(sizes["N"])


class Few(nn.Module):
    """K of M experts without a residual branch: every step rests on how many tokens an expert sees."""

    def __init__(self, n, e, m, k):
        super().__init__()
        self.tok, self.gate, self.k = nn.Embedding(64, n), nn.Linear(n, m, bias=False), k
        self.up, self.down = (nn.Parameter(torch.randn(m, *x) * x[1] ** -0.5) for x in ((e, n), (n, e)))
        self.head = nn.Linear(n, 8, bias=False)

    def forward(self, ids):
        h = self.tok(ids)
        top, chosen = self.gate(h).topk(self.k)
        gates = torch.zeros(*h.shape[:2], self.gate.out_features).scatter(-1, chosen, top.softmax(-1))
        active = F.relu(torch.einsum("eki,bti->btek", self.up, h))
        return self.head(torch.einsum("bte,enk,btek->btn", gates, self.down, active))


def test_replicas_that_are_alike_are_no_replicas():
    def build(sizes):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, sizes["N"]), nn.Linear(sizes["N"], 3, bias=False))
        return model, torch.optim.AdamW(model.parameters())

    with pytest.raises(UsageError, match="build draws the same values for every seed; remove torch"):
        check_model(build, "N=16", "N=64", seeds=4)


def test_a_bias_may_start_at_zero_whether_or_not_it_trains():
    def build(sizes):
        n = sizes["N"]
        model = nn.Sequential(nn.Linear(5, n), nn.ReLU(), nn.Linear(n, n, bias=False), nn.Linear(n, 3, bias=False))
        nn.init.normal_(model[0].requires_grad_(False).weight)
        nn.init.zeros_(model[0].bias)
        nn.init.normal_(model[3].weight, std=1 / n)
        return model, torch.optim.AdamW([{"params": [*model[2:].parameters()], "lr": 0.3 / n}])

    report = check_model(build, "N=16", "N=64", seeds=4)
    (bias,) = (row for row in report.rows if row.quantity == "0.bias.init")
    assert not refuted(report) and bias.fit.zero and bias.predicted is None


def refuted_with(slopes, predicted=0, quantity="w.update", step=1, level="", noise=0.01):
    """A refuted row whose root-mean-squares go by these slopes from size to size."""
    sizes = [2.0**k for k in range(len(slopes) + 1)]
    noise = 1 + noise * torch.randn(8, generator=torch.Generator().manual_seed(3)).numpy()
    values = [2.0 ** sum(slopes[:k]) * noise for k in range(len(sizes))]
    m = Measurement(
        Ray({"N": Fraction(1)}),
        step,
        sizes=sizes,
        values={(quantity, step): values},
        dims=[{"N": int(n)} for n in sizes],
    )
    report = judge(m, {quantity: [..., *[Fraction(predicted)] * step]})
    rows = (replace(row, verdict=Verdict.REFUTED, note="", level=level) for row in report.rows)
    return replace(report, rows=tuple(rows))


def crossover(gap, odds, pairs=3):
    """The slopes of a term that fades as n^-gap beside one that stays; ``odds`` of their squares at first."""
    every = [odds * 2 ** (-2 * gap * k) for k in range(pairs)]
    return [gap * x / (1 + x) for x in every]


@pytest.mark.parametrize(
    ("slopes", "level", "verdict"),
    [
        (crossover(0.5, 8), "demand", Verdict.INCONCLUSIVE),  # 0.44, 0.4, 0.33
        (crossover(1.0, 6), "demand", Verdict.INCONCLUSIVE),  # 0.86, 0.6, 0.27
        (crossover(1.0, 12), "demand", Verdict.REFUTED),  # 0.92, 0.75, 0.43: as near to 1/2
        (crossover(0.5, 8), "certified", Verdict.REFUTED),  # still nearer to 1/2
        (crossover(0.5, 3), "certified", Verdict.INCONCLUSIVE),  # 0.38, 0.3, 0.21
        ((0.5, 0.5, 0.5), "demand", Verdict.REFUTED),
        ((1.0, 0.97, 0.98), "demand", Verdict.REFUTED),
        ((0.45, 0.46, 0.45), "demand", Verdict.REFUTED),
        ((0.3, 0.4, 0.45), "demand", Verdict.REFUTED),  # goes away
    ],
)
def test_a_term_that_gives_way_to_another_is_not_refuted_and_a_slope_that_stays_is(slopes, level, verdict):
    for noise in (0.002, 0.02):
        for sign in (1, -1):
            row = suspend_converging_rows(refuted_with([sign * x for x in slopes], level=level, noise=noise)).rows[0]
            assert row.verdict is verdict
            assert verdict is Verdict.REFUTED or row.note.startswith(
                "comes nearer to n^(0) from size to size; N=8 to N="
            )


def test_a_message_asks_for_sizes_that_are_decided_there():
    """Between the last two of them the slope is near the prediction."""
    row = suspend_converging_rows(refuted_with(crossover(0.5, 8), level="demand", noise=0.001)).rows[0]
    first, last = map(int, re.findall(r"N=(\d+)", row.note))
    assert first == 8 and crossover(0.5, 8, int(np.log2(last)))[-1] < 0.15


def test_initial_values_that_still_count_beside_an_update_refute_no_undecided_size():
    """Keys that start at n^(-1/2) and move at n^0; and, as a control, at one power, and a slope as large as a power."""
    sizes, draw = [1.0, 2.0, 4.0], torch.Generator().manual_seed(0)

    def series(slope, at):
        return [at * n**slope * (1 + 0.01 * torch.randn(8, generator=draw).numpy()) for n in sizes]

    def verdict(update, slope, level="demand"):
        m = Measurement(
            Ray({"N": Fraction(1)}),
            1,
            sizes=sizes,
            values={
                ("k.init", 0): series(-0.5, 1.0),
                ("k.init", 1): series(-0.5, 1.0),
                ("k.update", 1): series(update, 0.9),
                ("out", 1): series(slope, 1.0),
            },
            dims=[{"N": int(16 * n)} for n in sizes],
        )
        asked = {"k.init": [Fraction(-1, 2)], "k.update": [..., Fraction(0)], "out": [..., Fraction(0)]}
        report = judge(m, asked)
        rows = [replace(r, verdict=Verdict.REFUTED, level=level, note="") for r in report.rows if r.quantity == "out"]
        (row,) = suspend_crossovers(replace(report, rows=tuple(rows)), m, asked).rows
        return row

    row = verdict(0.0, 0.33)
    assert row.verdict is Verdict.INCONCLUSIVE
    assert "the initial values of k still count beside its update, which outgrows them as n^(1/2); sizes" in row.note
    controls = (verdict(-0.5, 0.33), verdict(0.0, 0.5), verdict(0.0, 1.0), verdict(0.0, 0.33, "certified"))
    assert {x.verdict for x in controls} == {Verdict.REFUTED}


def test_what_a_tensors_own_numbers_decide_is_blamed_although_it_alone_is_not_refuted():
    """Later failures follow from it; without one that is refuted nothing is blamed."""
    later = refuted_with((-0.5, -0.5), quantity="head.update", step=2)
    own = replace(refuted_with((-0.42, -0.4), quantity="w.init").rows[0], verdict=Verdict.INCONCLUSIVE)
    own = replace(own, fit=replace(own.fit, low=-0.6, high=-0.15))
    means = {**later.means, ("w.init", 1): refuted_with((-0.42, -0.4), quantity="w.init").means["w.init", 1]}
    report = replace(later, rows=(later.rows[-1], own), means=means)
    assert find_first_to_blame(report).quantity == "w.init"
    assert find_first_to_blame(replace(report, rows=(own,))) is None
    both = refuted_with((-0.5, -0.5), quantity="v.update")
    report = replace(report, rows=(own, both.rows[-1]), means={**means, **both.means})
    assert find_first_to_blame(report).quantity == "v.update"  # at one step, what is refuted
    report = replace(later, rows=(later.rows[-1], own), means=means)
    near = replace(own, fit=replace(own.fit, slope=-0.1, low=-0.3, high=0.05))
    assert find_first_to_blame(replace(report, rows=(later.rows[-1], near))).quantity == "head.update"


@pytest.mark.parametrize(
    ("slopes", "verdict"),
    [
        ((-0.5, -0.15), Verdict.INCONCLUSIVE),  # comes to 0
        ((-0.35, -0.35), Verdict.REFUTED),  # nearer to 0 than to -1/2, and stays there
        ((-0.5, -0.5), Verdict.REFUTED),
        ((-1.0, -0.55), Verdict.REFUTED),
        ((-0.15, -0.5), Verdict.REFUTED),
        ((0.6, 0.9), Verdict.REFUTED),
    ],
)
def test_what_comes_to_its_prediction_is_not_refuted_and_what_stays_beside_it_is(slopes, verdict):
    assert suspend_converging_rows(refuted_with(slopes)).rows[0].verdict is verdict


@pytest.mark.parametrize(
    ("slopes", "verdict"),
    [
        ((-0.9, -0.37), Verdict.INCONCLUSIVE),  # two standard errors from 1/4, and certainly coming nearer
        ((-0.55, -0.37), Verdict.REFUTED),  # as near, and perhaps the same slope
        ((-0.9, -0.5), Verdict.REFUTED),
        ((-0.37, -0.37), Verdict.REFUTED),
    ],
)
def test_two_standard_errors_count_where_slopes_certainly_move(slopes, verdict):
    assert suspend_converging_rows(refuted_with(slopes, level="certified", noise=0.15)).rows[0].verdict is verdict


def test_a_token_that_chooses_other_experts_refutes_no_power():
    report = refuted_with((1.0, 1.0), quantity="w.propagating", step=2)
    assert [suspend_rerouted_steps(report, steps).rows[-1].verdict for steps in ({2}, {1})] == [
        Verdict.INCONCLUSIVE,
        Verdict.REFUTED,
    ]
    m = Measurement(
        Ray({"N": Fraction(1)}),
        2,
        sizes=[1.0, 2.0],
        values={("w", 2): [np.arange(5.0)] * 2, ("w", 1): [np.arange(5.0)] * 2},
    )
    assert drop_rerouted_replicas(m, {1: [[False] * 5] * 2, 2: [[True, *[False] * 4]] * 2}) == set()
    assert [len(v) for v in m.values["w", 2]] == [4, 4] and [len(v) for v in m.values["w", 1]] == [5, 5]
    assert drop_rerouted_replicas(m, {2: [[True] * 3 + [False] * 2] * 2}) == {2}


def few(sizes):
    return Few(sizes["N"], sizes["N_e"], sizes["M"], sizes["K"])


@pytest.mark.parametrize("rules", [{}, {"up": {"lr": Power()}}])
def test_few_tokens_of_an_expert_refute_nothing_but_a_planted_rate(rules):
    """A step here has five tokens, whose noise leads where M grows beside K."""
    report = check_model(few, "N=16,N_e=16,M=4,K=2", "N=64,N_e=64,M=16,K=2", seeds=4, rules=rules)
    assert any(line.startswith("M grows more than K") for line in report.environment["read"])
    assert ("up.update" in refuted(report), report.exit_code) == ((True, 1) if rules else (False, 3))
    assert rules or not refuted(report)
    assert any("few tokens" in row.note for row in report.rows)


def refuted(report):
    return [row.quantity for row in report.rows if row.verdict is Verdict.REFUTED]


def test_a_plan_holds_and_one_rate_for_all_does_not():
    report = check_model(language, seeds=4)
    assert not refuted(report) and report.exit_code == 0  # at a zero readout the temperature acts on nothing
    parts = {f"{name}.weight.update" for name in ("tok", "norm", "qkv", "o", "up", "down", "head")}
    assert parts < {row.quantity for row in report.rows if row.verdict is Verdict.AGREES}
    assert {"up.bias.init", "model: matmul 2", "output"} <= {row.quantity for row in report.rows}
    assert all(gate.passed for gate in report.gates)


class OneHead(nn.Module):
    """Attention of one head, which grows; its scores times a number."""

    def __init__(self, n, scale):
        super().__init__()
        self.tok, self.head, self.scale = nn.Embedding(32, n), nn.Linear(n, 32, bias=False), scale
        self.q, self.k, self.v = (nn.Linear(n, n, bias=False) for _ in range(3))

    def forward(self, ids):
        h = self.tok(ids)
        return self.head(F.scaled_dot_product_attention(self.q(h), self.k(h), self.v(h), scale=self.scale))


class FusedHead(OneHead):
    """The same with one matrix for queries, keys and values."""

    def __init__(self, n):
        super().__init__(n, n**-0.5)
        del self.q, self.k, self.v
        self.qkv = nn.Linear(n, 3 * n, bias=False)

    def forward(self, ids):
        return self.head(F.scaled_dot_product_attention(*self.qkv(self.tok(ids)).chunk(3, -1), scale=self.scale))


def test_what_a_plan_leaves_open_is_asked_first(monkeypatch):
    """With little work for certificates; what is decided follows."""

    class GatedRows(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.tok, self.up, self.head = nn.Embedding(8, n), nn.Linear(n, n, bias=False), nn.Linear(n, 4, bias=False)
            self.norm = nn.RMSNorm(n)

        def forward(self, ids):
            return self.head(torch.tanh(self.up(self.norm(self.tok(ids)))))

    monkeypatch.setattr(search, "PROPOSAL_WORK", 1_000)  # enough for the embedding and the norm alone
    search_cached.cache_clear()
    report = check_model(lambda z: GatedRows(z["N"]), "N=16", "N=64", seeds=4)
    order = list(dict.fromkeys(row.quantity for row in report.rows))
    assert order[0] == "up.weight.init" and order[-6:-4] == ["tok.weight.init", "tok.weight.update"]
    assert all(name.startswith("norm") for name in order[-4:])
    assert re.fullmatch(r"stability shown for .* demands, learning for \d+ of 18", report.environment["level"][0])
    assert report.exit_code == 0


def test_a_factor_in_the_model_and_one_that_is_folded():
    """1 / d in the code; and 1 / sqrt(d), of which the rest goes to the queries: every row but theirs is the same."""
    inside = check_model(lambda z: OneHead(z["N"], 1 / z["N"]), seeds=4)
    folded = check_model(lambda z: OneHead(z["N"], (32 * z["N"]) ** -0.5), seeds=4, fold=True)
    for a, b in zip(inside.rows, folded.rows, strict=True):
        assert (a.quantity, a.step, a.fit.zero) == (b.quantity, b.step, b.fit.zero)
        if a.predicted is not None:
            less = Fraction(1, 2) if a.quantity.startswith("q.") else 0
            assert b.predicted == a.predicted - less and b.fit.slope == pytest.approx(a.fit.slope - less, abs=1e-6)


@pytest.mark.parametrize(
    ("fused", "fold", "said"),
    [(False, False, ", or fold=True$"), (True, False, "as fold=True ends in"), (True, True, "as fold=True ends in")],
)
def test_a_factor_is_folded_into_whole_parameters_alone(fused, fold, said):
    build = (lambda z: FusedHead(z["N"])) if fused else (lambda z: OneHead(z["N"], (32 * z["N"]) ** -0.5))
    with pytest.raises(UsageError, match=rf"model must .*, as N\^\(-1/2\); do it in its forward pass.*{said}"):
        check_model(build, "N=16", "N=64", seeds=4, fold=fold)


@pytest.mark.parametrize(
    ("build", "where", "what"),
    [
        (attend("chunk", "8"), "qkv.weight", "lr"),
        (sum_experts("einsum"), "down", "init_std"),
        (sum_experts(), "experts.*.1.weight", "lr"),
    ],
)
def test_a_planted_power_is_refuted_first_where_it_is_planted(build, where, what):
    report = check_model(build, seeds=4, rules={where: {what: Power()}})
    assert report.exit_code == 1
    assert find_first_to_blame(report).quantity == f"{where}.{'init' if what == 'init_std' else 'update'}"


class Packed(nn.Module):
    """One matrix makes a hidden signal and a part of the output, which SGD trains at rates of different powers."""

    def __init__(self, n):
        super().__init__()
        self.first, self.head = nn.Linear(5, n, bias=False), nn.Linear(n, 3, bias=False)
        self.both = nn.Linear(n, n + 3, bias=False)

    def forward(self, x):
        h = F.relu(self.first(x))
        hidden, out = self.both(h).split([h.shape[-1], 3], -1)
        return self.head(F.relu(h + hidden)) + out


def test_parts_of_a_parameter_train_at_their_own_rates():
    def build(sizes):
        return Packed(sizes["N"])

    text = str(plan(build, {"N": 32}, {"N": 128}, optimizer="sgd", lr=0.1))
    assert "for lr make both.weight[0] and both.weight[1] parameters of their own" in text
    right, wrong = (
        check_model(build, "N=64", "N=256", seeds=6, optimizer="sgd", rules=rules)
        for rules in ({}, {"both.weight[1]": {"lr": Power()}})
    )
    assert right.exit_code == 0 and not refuted(right), str(right)
    assert wrong.exit_code == 1 and find_first_to_blame(wrong).step == 1, str(wrong)


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW])
def test_a_rescaled_part_moves_as_a_parameter_with_that_rate(make):
    whole, parts = nn.Parameter(torch.ones(4, 3)), [nn.Parameter(torch.ones(n, 3)) for n in (1, 3)]
    one = make([whole], lr=0.1, weight_decay=0.0)
    rescale_steps(one, whole.detach().narrow(0, 1, 3), 0.25)
    two = make([{"params": [p], "lr": lr} for p, lr in zip(parts, (0.1, 0.025), strict=True)], weight_decay=0.0)
    for step in range(3):
        whole.grad = torch.sin(torch.arange(12.0) + step).reshape(4, 3)
        for p, grad in zip(parts, whole.grad.split([1, 3]), strict=True):
            p.grad = grad.clone()
        one.step(), two.step()
        assert torch.allclose(whole, torch.cat(parts), atol=1e-7)
    assert not torch.allclose(whole[1:], whole[:1])  # the rates differ


class SquaredBias(nn.Module):
    """A matrix after relu squared of a signal, which falls with the width, and a bias, which does not."""

    def __init__(self, n, factor):
        super().__init__()
        self.first, self.narrow = nn.Linear(5, n, bias=False), nn.Linear(n, 64)
        self.wide, self.head = nn.Linear(64, n, bias=False), nn.Linear(n, 3, bias=False)
        self.factor = factor

    def forward(self, x):
        h = self.factor * self.first(x)
        return self.head(h + self.wide(F.relu(self.narrow(F.relu(h))) ** 2))


@pytest.mark.parametrize(
    ("factor", "what", "found"),
    [(20, None, None), (1, "lr", "wide.weight.update"), (1, "init_std", "wide.weight.init")],
)
def test_a_bias_that_a_larger_signal_hides_refutes_nothing_but_a_planted_power(factor, what, found):
    """With the factor of 20 the signal leads at all sizes here, and wide.weight.init falls as n^-0.9, not n^0."""
    rules = {"wide.weight": {what: Power.parse("N^(1/2)")}} if what else {}
    report = check_model(lambda sizes: SquaredBias(sizes["N"], factor), "N=32", "N=512", rules=rules)
    assert (found in refuted(report)) if found else not refuted(report), str(report)


def test_rules_name_parameters_and_settings():
    def build(sizes):
        return Packed(sizes["N"])

    for rules, said in (
        ({"neither": {"lr": Power()}}, "no tensor named 'neither'"),
        ({"both.weight": {"rate": Power()}}, "no setting named 'rate'. known: init_std, lr"),
        ({"both.weight[1]": {"lr": "N^-1"}}, "rules of 'both.weight.1.' are {'lr': 'N.-1'}; give powers by setting"),
        ({"both.weight": 3}, "rules of 'both.weight' are 3; give powers by setting"),
    ):
        with pytest.raises(UsageError, match=said):
            check_model(build, "N=32", "N=128", seeds=4, rules=rules)


class Branches(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        n, self.depth = sizes["N"], sizes["L"]
        self.first, self.head = nn.Linear(5, n, bias=False), nn.Linear(n, 3, bias=False)
        self.branches = nn.ModuleList(
            nn.Sequential(nn.RMSNorm(n), nn.Linear(n, n, bias=False)) for _ in range(sizes["L"])
        )

    def forward(self, x):
        h = self.first(x)
        for branch in self.branches:
            h = h + branch(h) / self.depth
        return self.head(h)


@pytest.mark.parametrize(
    ("rules", "found"),
    [
        ({}, None),
        ({"init_std": {"N": "-1/2", "L": 1}}, "branches.*.1.weight.init"),
        ({"lr": {"N": -1, "L": 1}}, "branches.*.1.weight.update"),
    ],
)
def test_depth_may_grow(rules, found):
    powers = {what: Power.of(power) for what, power in rules.items()}
    report = check_model(Branches, "N=16,L=2", "N=16,L=32", seeds=4, rules={"branches.*.1.weight": powers})
    assert report.tally.refuted if found else not report.tally.refuted


def test_parts_are_those_of_the_product_that_a_parameter_is_in():
    """Of three factors in one einsum each is measured in its own product; what is measured is W_0 x_0 and so on."""
    build = sum_experts("einsum")
    reading = trace_equations(build)
    model, inputs, _ = build_module(build, {"N": 16, "N_e": 8, "M": 4})
    watch, x = TrainingWatch(model, inputs, reading), inputs[0][0]
    h, up = model.inp(x).detach(), model.up.detach().clone()
    with torch.no_grad():
        model.up += 0.5
        model.inp.weight += 1.0
    now, moved = watch(), model.inp(x).detach()

    def rms(y):
        return y.square().mean().sqrt().item()

    assert now["up.init"] == pytest.approx(rms(torch.einsum("eki,bi->ekb", up, h)))
    assert now["up.update"] == pytest.approx(rms(torch.einsum("eki,bi->ekb", 0.5 + 0 * up, moved)))
    assert now["up.propagating"] == pytest.approx(rms(torch.einsum("eki,bi->ekb", up, moved - h)))


def own(rate, *beside):
    """A model with its own initial values and a rate of the hidden matrix."""

    def build(sizes):
        n = sizes["N"]
        model = nn.Sequential(
            nn.Linear(5, n), nn.Tanh(), nn.Linear(n, n, bias=False), nn.Identity(), nn.Linear(n, 3, bias=False)
        )
        nn.init.zeros_(model[4].weight)
        rates = {2: rate(n), 4: 0.1 / n}
        groups = [{"params": [*m.parameters()], "lr": rates.get(k, 0.01)} for k, m in enumerate(model) if k % 2 == 0]
        return model, *beside, torch.optim.AdamW(groups)

    return build


def test_the_rates_of_an_optimizer_of_ones_own():
    assert check_model(own(lambda n: 0.3 / n), seeds=4).exit_code == 0
    tokens = torch.randn(4, 5, generator=torch.Generator().manual_seed(2))
    for rate in (lambda n: 0.01, lambda n: 9.6 / n**2):  # one at every size, and one that falls too fast
        wrong = check_model(own(rate, tokens), seeds=4)
        assert wrong.exit_code == 1 and find_first_to_blame(wrong).quantity == "2.weight.update"


def with_muon(rate):
    def build(sizes):
        n = sizes["N"]
        model = nn.Sequential(nn.Linear(5, n, bias=False), nn.Linear(n, n, bias=False), nn.Linear(n, 3, bias=False))
        inner, hidden, outer = (layer.weight for layer in model)
        nn.init.normal_(inner, 0, 0.5)
        nn.init.normal_(outer, 0, 1 / n)
        adamw = torch.optim.AdamW([{"params": [inner]}, {"params": [outer], "lr": 0.1 / n}], lr=0.01)
        return model, [torch.optim.Muon([hidden], lr=rate(n)), adamw]

    return build


def test_the_rates_of_several_optimizers():
    sizes = {"base": "N=8", "target": "N=128", "seeds": 4}
    good, bad = check_model(with_muon(lambda n: 0.1), **sizes), check_model(with_muon(lambda n: 3.2 / n), **sizes)
    assert (good.exit_code, good.environment["optimizer"]) == (0, "adamw,1.weight=muon")
    assert bad.exit_code == 1 and find_first_to_blame(bad).quantity == "1.weight.update"


def test_the_numbers_of_a_plan_of_two_optimizers_are_trained():
    build = with_muon(lambda n: 0.1)
    report = check_model(lambda sizes: build(sizes)[0], "N=8", "N=128", seeds=4, optimizer="muon+adamw")
    assert (report.exit_code, report.environment["optimizer"]) == (0, "muon+adamw")
    with pytest.raises(UsageError, match="trains matrices only"):
        check_model(language, "N=16", "N=64", seeds=4, optimizer="muon")


@pytest.mark.parametrize(("direct", "verdict"), [((), Verdict.INCONCLUSIVE), (("h",), Verdict.REFUTED)])
def test_a_small_leading_power_may_lie_under_a_larger_one_but_where_one_tensor_decides(direct, verdict):
    """0.05 + n^(-1/2) beside a prediction of 0 and a next power of -1/2."""
    noise = 1 + 0.01 * torch.randn(3, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64).numpy()
    m = Measurement(Ray.parse("N=1"), 0)
    m.sizes, m.dims = [1, 2, 4], [{"N": 32 * n} for n in (1, 2, 4)]
    m.values = {("h", 0): [(0.05 + n**-0.5) * noise[i] for i, n in enumerate(m.sizes)]}
    report = judge(m, {"h": [Fraction(0)]}, powers=lambda *_: [(Fraction(-1, 2), True)], direct=direct)
    assert [row.verdict for row in report.rows] == [verdict]


def ends(sizes):
    """A model whose forward pass ends the program, as if all were well."""
    model = nn.Linear(5, sizes["N"])
    model.forward = lambda x: sys.exit(0)
    return model


def plain(sizes):
    return nn.Sequential(nn.Linear(5, sizes["N"]), nn.Linear(sizes["N"], 3, bias=False))


class Around(nn.Module):
    """A model whose forward pass is another one's, changed."""

    def __init__(self, sizes, forward):
        super().__init__()
        self.inner, self.changed = plain(sizes), forward

    def forward(self, x):
        return self.changed(self.inner, x)


def around(forward):
    return lambda sizes: (Around(sizes, forward), torch.ones(1, 5))


class Raises(torch.optim.AdamW):
    def step(self, closure=None):
        raise ValueError("no step")


class Mute(Exception):
    def __str__(self):
        raise RuntimeError


def trained(optimizer, of=plain):
    def build(sizes):
        model = plain(sizes)
        return model, optimizer((model if of is None else of(sizes)).parameters())

    return build


async def later(sizes):
    return plain(sizes)


def mute(sizes):
    raise Mute


class Grown(nn.Module):
    def __init__(self, n, wide):
        super().__init__()
        self.w = nn.Linear(n if wide else 5, 3 if wide else n)

    def forward(self, x):
        return self.w(x)


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda s: {}, r"build returns {}; return a torch.nn.Module"),
        (lambda s: s["heads"] / 0, "raises ZeroDivisionError"),
        (lambda s: exit(0), r"build\(.*\) ends the program"),
        (lambda s: ends(s), "the model ends the program"),
        (lambda s: os._exit(0), r"build\(.*\) ends the program"),
        (around(lambda model, x: os._exit(0)), "the model ends the program"),
        (around(lambda model, x: model(x) * float("nan")), "the output of the model is not a number"),
        (around(lambda model, x: model(x) * float("inf")), "the output of the model is infinite"),
        (lambda s: (plain(s), torch.ones(1, 5).to_sparse()), "layout torch.sparse_coo; return a dense tensor"),
        (
            lambda s: (plain(s), torch.optim.SGD),
            r"the class SGD .*return an instance, SGD\(model.parameters\(\), ...\)",
        ),
        (lambda s: (plain(s), plain(s)), "a second module with the model"),
        (lambda s: (plain(s), []), r"returns \[\] with the model"),
        (around(lambda model, x: torch.ones(1, 3)), "the output has no gradient"),
        (around(lambda model, x: model(x).detach()), "the output has no gradient"),
        (lambda s: plain(s).requires_grad_(False), "no parameter of the model trains"),
        (trained(torch.optim.AdamW), "has parameters of another model"),
        (trained(Raises, None), "training the model raises ValueError: no step"),
        (later, "build returns <coroutine"),
        (mute, r"build\(.*\) raises Mute$"),
        (lambda s: [s[f"x{k}"] for k in range(3000)], "more than 32 sizes, the last one 'x32'"),
        (trained(torch.optim.RMSprop, None), "build brings RMSprop; a check knows Adam, AdamW, Muon, SGD, or say"),
        (lambda s: Grown(s["N"], True), "the input grows"),
        (lambda s: plain(s).append(nn.Bilinear(3, 3, 3)), r"guessed \(shape \(1, 5\)\): let build return \("),
        (lambda s: (plain(s), torch.ones(1, 5), torch.ones(1, 5)), "build returns two inputs"),
        (lambda s: Grown(s["N"], False), "the output grows"),
        (sum_experts(gate=lambda m, s: s.sigmoid()), r"must multiply by 0.5 \(alpha of scalecalc list"),
        (
            few,
            "gate.weight has no gradient at K=1, where the gate of the one active expert is constant; give K=2",
        ),
        (language, "seeds is 3, which is too few for a verdict; give 4 or more"),
    ],
)
def test_what_cannot_be_checked_is_one_line_before_training(build, said):
    sizes = ("N=32,N_e=32,M=4", "N=128,N_e=128,M=16") if "alpha" in said else ()
    sizes = ("N=16,N_e=16,M=2,K=1", "N=64,N_e=64,M=8,K=4") if "K=2" in said else sizes
    with pytest.raises(UsageError, match=said) as error:
        check_model(build, *sizes, seeds=3 if "seeds" in said else 6)
    assert "\n" not in str(error.value)


def test_functions_of_torch_that_were_replaced_are_named(monkeypatch):
    assert trace_equations(plain).text
    monkeypatch.setattr(torch.Tensor, "__mul__", lambda a, b: a)
    with pytest.raises(UsageError, match=r"test_check_model.py replaces torch.Tensor.__mul__"):
        trace_equations(plain)


def test_an_infinite_output_is_no_answer_by_shape_but_a_mask_is_read():
    """Some entries may be minus infinity, as those of tokens that do not exist."""
    hidden = torch.tensor([True, False, False])
    assert not read_module(around(lambda model, x: model(x).masked_fill(hidden, float("-inf")))).network.unread
    with pytest.raises(UsageError, match="is infinite"):
        read_module(around(lambda model, x: model(x) * float("inf")))


def test_a_compiled_module_is_read_as_it_was():
    """And code that was called ends no program afterwards: ``os._exit`` is what it was."""
    wraps = (lambda model: model, lambda model: SimpleNamespace(_orig_mod=model))  # torch.compile, without its import
    texts = {trace_equations(lambda s, wrap=wrap: wrap(plain(s))).text for wrap in wraps}
    assert len(texts) == 1 and os._exit.__name__ == "_exit"


def test_sizes_lie_on_a_ray_and_are_whole():
    middle = interpolate_sizes({"N": 32, "N_e": 8, "M": 4, "K": 2}, {"N": 128, "N_e": 8, "M": 16, "K": 2}, 3)[1]
    assert middle == {"N": 64, "N_e": 8, "M": 8, "K": 2}
    for base, target, points, said in (
        ({"N": 32}, {"N": 32}, 3, "base and target are the same, N=32"),
        ({"N": 32}, {"N": 128}, 1, "points is 1"),
        (
            {"N": 32, "N_e": 8, "M": 4, "K": 2},
            {"N": 128, "N_e": 8, "M": 12, "K": 2},
            3,
            "no ray leads from base to target",
        ),
        ({"N": 2}, {"N": 6}, 3, "no 3 evenly spaced whole sizes"),
        ({"N": 32, "M": 4}, {"N": 128, "M": 8}, 3, "M is to grow 2 times by one factor, as to M=16, or"),
    ):
        with pytest.raises(UsageError, match=said):
            interpolate_sizes(base, target, points)


def test_a_model_that_cannot_be_loaded_is_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = {"a": "import nowhere", "b": "build = 3", "c": "def build(s): ...\nSCALING = {'bas': 1}"}
    texts |= {"e": "print('agrees'); raise SystemExit", "f": "class Stop(BaseException): ...\nraise Stop('here')"}
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    for text, said in (
        ("build", "write FILE.py:NAME"),
        ("d.py:build", "no file d.py"),
        ("nowhere.at.all:build", "nowhere.at.all raises ModuleNotFoundError"),
        ("a.py:build", "a.py raises ModuleNotFoundError: No module named 'nowhere'"),
        ("b.py:build", "build of b.py is 3, not a function; its functions: none"),
        ("e.py:build", "e.py ends the program; the file must run without errors when it is imported"),
        ("f.py:build", "f.py raises Stop: here"),
        ("c.py:build", "no keyword in SCALING of c.py named 'bas'; did you mean 'base'"),
    ):
        with pytest.raises(UsageError, match=re.escape(said)):
            load_build(text, {})


def test_a_configuration_has_layers_where_depth_grows(tmp_path):
    pytest.importorskip("transformers").LlamaConfig(num_hidden_layers=8).save_pretrained(tmp_path)
    for target, layers in (("N=32,L=4", 3), ("N=64", 1)):
        build, options = load_build(f"hf:{tmp_path / 'config.json'}", {"target": target})
        assert len(build({"N": 32, "L": 3})[0].model.layers) == layers and options["fold"] is (layers == 3)


def test_the_plugin_passes_what_scales_and_fails_a_planted_rate(pytester):
    """The model of the guide: alone, and with one rate that does not scale."""
    write_files(ROOT / "docs" / "guide" / "check.md", pytester.path)
    names = {"own": "mymodel", "wrong": "wrong", "none": "none"}
    tests = [f"def test_{x}(coordinate_check):\n    coordinate_check('{file}.py:build')" for x, file in names.items()]
    pytester.makepyfile(test_own="\n".join(tests))
    told = pytester.runpytest_inprocess()
    told.assert_outcomes(passed=1, failed=2)
    told.stdout.re_match_lines(
        [
            r".*layer\.down\.update .*REFUTED",
            r".*no file none\.py",
            r"FAILED test_own\.py::test_wrong - Failed: REFUTED: ",
        ]
    )


def test_the_plugin_costs_nothing_where_it_is_not_used():
    heavy = {"torch", "sympy", "numpy", "z3", "click"}
    code = f"import sys, scaling_algebra.pytest_plugin; assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


class Asleep(nn.Module):
    """A branch behind a gate that starts at zero; ``asleep``: its last matrix does so, too."""

    def __init__(self, n, asleep=False):
        super().__init__()
        self.inp, self.a = nn.Linear(5, n, bias=False), nn.Linear(n, n, bias=False)
        self.b, self.head = nn.Linear(n, n, bias=False), nn.Linear(n, 3, bias=False)
        self.gate = nn.Parameter(torch.zeros(n))
        if asleep:
            nn.init.zeros_(self.b.weight)

    def forward(self, x):
        h = self.inp(x)
        return self.head(h + self.gate * self.b(torch.relu(self.a(h))))


def test_rates_behind_zeros_are_judged():
    """Two steps were too few for what lies behind a zero gate, and a wrong rate there agreed."""
    planted = {"a.weight": {"lr": Power()}}
    report = check_model(lambda s: Asleep(s["N"]), "N=16", "N=64", seeds=4, rules=planted)
    assert find_first_to_blame(report).quantity == "a.weight.update" and max(r.step for r in report.rows) == 3
    short = check_model(lambda s: Asleep(s["N"], asleep=True), "N=16", "N=64", seeds=4, steps=2, rules=planted)
    assert not short.tally.refuted
    assert (
        short.environment["read"][0].startswith("a.weight") and "not updated in 2 steps" in short.environment["read"][0]
    )


class DrawnFactor(nn.Module):
    """Attention over the input's rows, whose scores have a drawn factor, which is nearly zero under the first seed."""

    def __init__(self, n):
        super().__init__()
        self.n, self.first, self.head = n, nn.Linear(5, n, bias=False), nn.Linear(n, 3, bias=False)
        self.q, self.k = nn.Linear(n, n, bias=False), nn.Linear(n, n, bias=False)
        self.register_buffer("factor", torch.tensor(1.0 if torch.initial_seed() else 1e-3))

    def forward(self, x):
        h = self.first(x)
        return self.head(((self.q(h) @ self.k(h).T) / self.n * self.factor).softmax(-1) @ h)


@pytest.mark.parametrize("share", [1, 1e-3])
def test_a_gradient_that_is_nearly_zero_at_the_base_refutes_nothing_but_a_wrong_epsilon(share, monkeypatch):
    """With an epsilon far below all gradients, the first steps of keys and queries do not fall as they should."""
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(3))

    def measure_and_shrink(*arguments):
        return {
            role: size * (share if role == "k.weight" else 1) for role, size in measure_gradients(*arguments).items()
        }

    monkeypatch.setattr(checking, "measure_gradients", measure_and_shrink)
    report = check_model(lambda s: (DrawnFactor(s["N"]), x), "N=16", "N=256", seeds=5)
    assert ("k.weight.update" in refuted(report)) if share < 1 else not refuted(report), str(report)


class Behind(Asleep):
    def forward(self, x):
        return self.head(torch.relu(self.b(Stop.apply(self.a(self.inp(x))))))


@pytest.mark.parametrize(("rates", "refuted"), [({}, set()), ({"b": 0.0}, {"b.weight.update"})])
def test_what_no_gradient_can_move_refutes_nothing(rates, refuted):
    """Updates that are exactly zero: of the custom backward they say nothing, of a rate of zero everything."""

    def build(sizes):
        n, model = sizes["N"], Behind(sizes["N"])
        model.gate.requires_grad_(False)
        for name, std in (("inp", 1), ("a", n**-0.5), ("b", n**-0.5), ("head", 1 / n)):
            nn.init.normal_(getattr(model, name).weight, std=std)
        lr = {"inp": 0.01, "a": 0.3 / n, "b": 0.3 / n, "head": 0.3 / n} | rates
        return model, torch.optim.AdamW([{"params": [getattr(model, x).weight], "lr": lr[x]} for x in lr])

    report = check_model(build, "N=32", "N=128")
    zero = {r.quantity for r in report.rows if r.fit.zero and r.predicted is not None}
    assert zero >= {"inp.weight.update", "a.weight.update"}
    assert {r.quantity for r in report.rows if r.verdict is Verdict.REFUTED and r.quantity in zero} == refuted


def _perceptron(n):
    sizes = (5, n), (n, n), (n, 3)
    first, mid, last = (nn.Linear(a, b, bias=False) for a, b in sizes)
    return nn.Sequential(first, nn.Tanh(), mid, nn.Tanh(), last)


@pytest.mark.parametrize(("tokens", "power", "refuted"), [(4, "-3/2", True), (256, "-3/2", False), (256, "-2", True)])
def test_tokens_that_outnumber_the_width_may_let_updates_fall(tokens, power, refuted):
    """By less than a whole power: with few tokens, and by a whole one, a rate that is too small is refuted."""
    x = torch.randn(tokens, 5, generator=torch.Generator().manual_seed(0))
    rules = {"2.weight": {"lr": Power.of({"N": power})}}
    report = check_model(lambda s: (_perceptron(s["N"]), x), "N=16", "N=128", rules=rules)
    (row,) = (r for r in report.rows if (r.quantity, r.step) == ("2.weight.update", 1))
    assert (row.verdict is Verdict.REFUTED) is refuted and ("256 tokens outnumber" in row.because) is not refuted


def test_the_readout_starts_as_the_plan_has_it():
    """Checks drew it at zero, so that its own init was never judged; a scalar behind all was taken for one."""

    report = check_model(
        lambda s: _perceptron(s["N"]), "N=16", "N=64", seeds=4, rules={"4.weight": {"init_std": Power()}}
    )
    assert find_first_to_blame(report).quantity == "4.weight.init" and report.exit_code == 1


def test_plans_and_checks_leave_the_generator_alone():
    drawn = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        plan(lambda s: Asleep(s["N"]), "N=16", "N=32", lr=1e-2, eps=1e-8, std=0.1)
        drawn.append(torch.rand(1).item())
        torch.manual_seed(seed)
        assert drawn[-1] == torch.rand(1).item()
    assert drawn[0] != drawn[1]
