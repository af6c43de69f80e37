"""What a check measures of a module: experts that gather tokens, parameters behind norms and sums, starts."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as F
from torch import nn

from scaling_algebra import UsageError, check_model, plan
from scaling_algebra.spec.powers import Power
from scaling_algebra.verify.judging.fit import Verdict
from scaling_algebra.verify.tracing.measuring import TrainingWatch
from scaling_algebra.verify.tracing.readings import trace_equations
from scaling_algebra.verify.tracing.recording import record_forward


class GatheringExperts(nn.Module):
    """K of M experts a token. hit: only experts that a token chose are called."""

    def __init__(self, n, e, m, k, hit):
        super().__init__()
        self.router, self.k, self.hit = nn.Linear(n, m, bias=False), k, hit
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(n, e, bias=False), nn.SiLU(), nn.Linear(e, n, bias=False)) for _ in range(m)
        )

    def forward(self, h):
        top, chosen = F.softmax(self.router(h), -1).topk(self.k, -1)
        weights, out = top / top.sum(-1, keepdim=True), torch.zeros_like(h)
        for e, expert in enumerate(self.experts):
            rows, place = torch.where(chosen == e)
            if self.hit and rows.numel() == 0:
                continue
            out.index_add_(0, rows, expert(h[rows]) * weights[rows, place, None])
        return out


class GatheringModel(nn.Module):
    def __init__(self, n, e, m, k, hit):
        super().__init__()
        self.embed, self.norm, self.layer = nn.Embedding(64, n), nn.RMSNorm(n), GatheringExperts(n, e, m, k, hit)
        self.last, self.head = nn.RMSNorm(n), nn.Linear(n, 16, bias=False)

    def forward(self, ids):
        h = self.embed(ids).flatten(0, 1)
        return self.head(self.last(h + self.layer(self.norm(h)))).unflatten(0, ids.shape)


def gathering(hit):
    return lambda sizes: GatheringModel(*(sizes[axis] for axis in ("N", "N_e", "M", "K")), hit)


@pytest.mark.parametrize(("hit", "rules"), [(False, {}), (True, {"layer.experts.*.2.weight": {"lr": Power()}})])
def test_experts_that_gather_tokens_are_checked_and_a_planted_rate_is_found(hit, rules):
    report = check_model(gathering(hit), "N=16,N_e=16,M=6,K=2", "N=64,N_e=64,M=6,K=2", seeds=4, rules=rules)
    refuted = {row.quantity for row in report.rows if row.verdict is Verdict.REFUTED}
    assert refuted == ({"layer.experts.*.2.weight.update"} if rules else set())
    agree = {row.quantity for row in report.rows if row.verdict is Verdict.AGREES}
    assert {"layer.experts.*.0.weight.update", "layer.router.weight.init", "embed.weight.update"} <= agree


@pytest.mark.parametrize("hit", [False, True])
def test_what_an_expert_does_for_other_tokens_than_before_is_no_change(hit):
    """Updates are those of the tokens that an expert has now, be there more experts with tokens than before; their
    signals are not those of the tokens before."""
    build = gathering(hit)
    torch.manual_seed(0)
    model = build({"N": 8, "N_e": 8, "M": 4, "K": 2}).double()
    watch = TrainingWatch(model, ((torch.randint(0, 64, (1, 3)),), {}), trace_equations(build))
    assert not any(map(math.isnan, watch().values())) and not watch.switched
    calls = len(watch.first.calls)
    with torch.no_grad():
        model.layer.router.weight.neg_()
        for expert in model.layer.experts:
            expert[2].weight.mul_(2)
    now = watch()
    assert watch.switched and now["layer.experts.*.2.weight.update"] > 0 and now["output"] > 0
    assert (len(record_forward(model, *watch.inputs, strict=False).calls) > calls) == hit


class RestlessModel(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.first, self.last, self.turns = nn.Linear(5, n), nn.Linear(n, 3), 0

    def forward(self, x):
        self.turns += 1
        h = self.first(x)
        return self.last(torch.relu(h) if self.turns > 40 else h)


def test_calls_that_change_without_a_choice_are_told():
    model = RestlessModel(8).double()
    watch = TrainingWatch(
        model, ((torch.randn(9, 5, dtype=torch.float64),), {}), trace_equations(lambda sizes: RestlessModel(sizes["N"]))
    )
    model.turns = 40
    with pytest.raises(UsageError, match="makes other calls after training steps, although it selects no experts"):
        watch()


class NormalisedSlots(nn.Module):
    """Weights that are normalised before they act, with a gain that the sum over the width makes N^-1."""

    def __init__(self, n):
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(40, n), nn.LayerNorm(n), nn.Linear(n, 16, bias=False)
        self.slots, self.rms, self.up = nn.Parameter(torch.randn(6, n)), nn.RMSNorm(n), nn.Linear(n, n, bias=False)

    def forward(self, ids):
        x = self.norm(self.embed(ids))
        logits = x @ self.rms(self.slots).T
        return self.head(x + logits.softmax(-1) @ self.up(logits.softmax(-2).transpose(-2, -1) @ x))


def normalised_slots(sizes):
    return NormalisedSlots(sizes["N"]), torch.arange(16).reshape(2, 8)


def test_a_gain_that_starts_alike_goes_by_its_power_and_what_is_normalised_is_no_product():
    p = plan(normalised_slots, "N=32", "N=256", lr=1e-2, eps=1e-12, std=0.02, fold=True)
    p.init_()
    assert p["rms.weight"].fill == 1 / 8 and torch.equal(p.model.rms.weight, torch.full((256,), 1 / 8))
    assert p["norm.weight"].fill == 1 and p["norm.bias"].fill == 0
    planted = {"rms.weight": {"init_std": Power.of({"N": Fraction(1)})}}  # as if the width made no factor
    for rules in ({}, planted):
        report = check_model(normalised_slots, "N=32", "N=128", seeds=4, rules=rules, fold=True)
        assert "slots.init" not in {row.quantity for row in report.rows}
        refuted = {row.quantity for row in report.rows if row.verdict is Verdict.REFUTED}
        assert bool(refuted) == bool(rules)


class OneAndMore(nn.Module):
    """A norm with the gain 1 + g, as Gemma has it."""

    def __init__(self, n):
        super().__init__()
        self.g = nn.Parameter(torch.full((n,), 0.5))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True)) * (1 + self.g).to(x.dtype)


def one_and_more(sizes):
    n = sizes["N"]
    layers = nn.Embedding(64, n), OneAndMore(n), nn.Linear(n, n, bias=False), OneAndMore(n), nn.Linear(n, 8, bias=False)
    return nn.Sequential(*layers)


@pytest.mark.parametrize("rules", [{}, {"1.g": {"lr": Power.of({"N": Fraction(1)})}}])
def test_what_a_parameter_is_added_to_is_no_part_of_its_product(rules):
    report = check_model(one_and_more, "N=16", "N=64", seeds=4, rules=rules)
    found = {row.quantity: row for row in report.rows}
    refuted = {x for x, row in found.items() if row.verdict is Verdict.REFUTED}
    assert abs(found["1.g.init"].fit.slope) < 0.1 and ("1.g.update" in refuted if rules else not refuted)


class Unusual(nn.Module):
    """Something between two layers, with parameters of its own."""

    def __init__(self, n, between, **shapes):
        super().__init__()
        self.i, self.w, self.o = nn.Linear(5, n, bias=False), nn.Linear(n, n, bias=False), nn.Linear(n, 3, bias=False)
        self.keep, self.between = nn.Buffer(torch.ones(n, n).tril().bool()), between
        for name, start in shapes.items():
            self.register_parameter(name, nn.Parameter(start))

    def forward(self, x):
        return self.o(self.between(self, torch.relu(self.w(torch.relu(self.i(x))))))


def masked(m, h):
    return F.linear(h, m.u.masked_fill(~m.keep, 0.0))


def merged(m, h):
    return F.linear(h, m.u + m.b @ m.a)


def written(m, h):
    both = h.new_zeros(2, *h.shape)
    both[0], both[1] = m.c, h
    return both.tanh().mean(0)


class InfiniteScores(nn.Module):
    def forward(self, scores):
        return scores.masked_fill(torch.ones(4, 4).triu(1).bool(), -math.inf)


def unread(m, h):
    """Scores with infinities that a module returns; nothing reads a sort."""
    return m.mask(h @ h.T / h.shape[-1]).softmax(-1) @ h + 0 * h.sort(-1).values


@pytest.mark.parametrize("between", [masked, merged, written, unread], ids=lambda x: x.__name__)
def test_nothing_right_is_refuted_nor_an_error(between):
    def build(sizes):
        n, draw = sizes["N"], torch.Generator().manual_seed(3)
        drawn = {"u": torch.randn(n, n, generator=draw) / n**0.5, "a": torch.randn(4, n, generator=draw) / n**0.5}
        given = {masked: {"u": drawn["u"]}, merged: {**drawn, "b": torch.zeros(n, 4)}, written: {"c": torch.randn(n)}}
        model = Unusual(n, between, **given.get(between, {}))
        model.mask = InfiniteScores()
        return model, torch.randn(4, 5, generator=draw)

    report = check_model(build, "N=16", "N=64", seeds=4)
    assert all(gate.passed for gate in report.gates) and Verdict.REFUTED not in {row.verdict for row in report.rows}
    measured = {row.quantity for row in report.rows}
    assert ("u.update" in measured) == (between in (masked, merged)) and "a.update" not in measured  # it acts before b


class LearnedToken(nn.Module):
    """A vector that only a matrix acts on: zero at first, or a query whose scores the module divides by the width."""

    def __init__(self, n, query):
        super().__init__()
        self.i, self.w, self.o, self.query = nn.Linear(5, n), nn.Linear(n, n), nn.Linear(n, 3), query
        self.t = nn.Parameter(torch.randn(n) if query else torch.zeros(n))

    def forward(self, x):
        h, t = torch.relu(self.i(x)), self.w(self.t)
        return self.o((h @ t / len(t)).softmax(-1) @ h if self.query else h + torch.tanh(t + h))


@pytest.mark.parametrize("query", [False, True], ids=["certified", "by shape"])
@pytest.mark.parametrize("rules", [{}, {"w.weight": {"lr": Power.of({"N": Fraction(1)})}}], ids=["right", "planted"])
def test_a_vector_that_a_matrix_acts_on_is_a_signal(query, rules):
    inputs = torch.randn(4, 5, generator=torch.Generator().manual_seed(1))
    build = lambda sizes: (LearnedToken(sizes["N"], query), inputs)  # noqa: E731
    report = check_model(build, "N=32", "N=128", seeds=4, rules=rules)
    refuted = {row.quantity for row in report.rows if row.verdict is Verdict.REFUTED}
    assert "w.weight.update" in refuted if rules else not refuted


class ScaledByWidth(nn.Module):
    """A gain whose start the module itself makes of the width."""

    def __init__(self, n, trains):
        super().__init__()
        self.first, self.last, self.mid = nn.Linear(5, n), nn.Linear(n, 3, bias=False), nn.Linear(n, n, bias=False)
        self.gain = nn.Parameter(torch.full((n,), n**-0.5), requires_grad=trains)

    def forward(self, x):
        return self.last(torch.relu(self.mid(torch.relu(self.first(x)) * self.gain)))


@pytest.mark.parametrize("base", [32, 256])
def test_a_start_that_a_module_makes_of_its_width_is_that_of_the_base(base):
    """Not of the small sizes at which the module is read; a frozen one is held against what the numbers need."""
    given = {"lr": 1e-2, "eps": 1e-12, "std": 0.02}
    p = plan(lambda sizes: ScaledByWidth(sizes["N"], True), f"N={base}", "N=1024", **given)
    assert p["gain"].fill == pytest.approx(base**-0.5) and p.recipe.level.certified
    held = plan(lambda sizes: ScaledByWidth(sizes["N"], False), f"N={base}", "N=1024", **given)
    (left,) = held.recipe.level.open
    assert left.quantity == "gain" and f"by {(1024 / base) ** 0.5:.3g}" in left.why


def test_a_frozen_factor_that_is_smaller_is_no_bias():
    """Also where equations have it act on a constant; a frozen bias that is smaller does no harm."""

    class FrozenGain(nn.Module):
        def __init__(self, n, adds):
            super().__init__()
            self.i, self.w, self.o = nn.Linear(5, n, bias=False), nn.Linear(n, n, bias=False), nn.Linear(n, 3)
            self.g, self.adds = nn.Parameter(torch.full((n,), n**-0.5), requires_grad=False), adds

        def forward(self, x):
            h = self.w(torch.relu(self.i(x)))
            return self.o(torch.relu(h + self.g if self.adds else h * torch.tanh(self.g)))

    for adds in (True, False):
        p = plan(lambda sizes, adds=adds: FrozenGain(sizes["N"], adds), "N=64", "N=1024", lr=1e-2, eps=1e-12, std=0.02)
        assert [x.quantity for x in p.recipe.level.open] == ([] if adds else ["g"])


def test_what_is_frozen_at_zero_is_zero():
    """The module's own values stay."""

    class FrozenPlaces(Unusual):
        def __init__(self, n):
            super().__init__(n, lambda m, h: h + m.places)
            self.places = nn.Parameter(torch.zeros(4, n), requires_grad=False)

    def build(sizes):
        return FrozenPlaces(sizes["N"]), torch.randn(4, 5, generator=torch.Generator().manual_seed(3))

    report = check_model(build, "N=16", "N=64", seeds=4)
    assert report.counts["REFUTED"] == 0 and "places.init" in {r.quantity for r in report.rows if r.fit.zero}


def test_values_that_are_no_numbers_are_not_those_of_other_tokens():
    """They are infinite, so that the gate on finite values sees them."""
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3, bias=False)).double()
    read = trace_equations(
        lambda sizes: nn.Sequential(nn.Linear(5, sizes["N"]), nn.ReLU(), nn.Linear(sizes["N"], 3, bias=False))
    )
    watch = TrainingWatch(model, ((torch.ones(2, 5, dtype=torch.float64),), {}), read)
    with torch.no_grad():
        model[2].weight.fill_(math.nan)
    now = watch()
    assert now["output"] == now["2.weight.update"] == math.inf and not watch.switched
