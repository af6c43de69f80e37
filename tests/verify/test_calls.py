"""Single calls of torch, functions and norms that are written out: what they are read as."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn import functional as F

from scaling_algebra import derive, plan
from scaling_algebra.spec.networks.functions import FUNCTIONS
from scaling_algebra.verify.tracing import Unreadable, activations, trace_equations
from scaling_algebra.verify.tracing.activations import find_function_of_class
from scaling_algebra.verify.tracing.gradients import UNREACHED

from .. import shared
from .test_tracing import HIDDEN, READOUT, Base, check, chosen, multipliers, of, powers, with_experts, written


def square(n):
    return nn.Linear(n, n, bias=False)


PARTS = {
    **dict.fromkeys(("v", "u", "k", "gk"), square),
    "wide": lambda n: nn.Linear(n // 2, n, bias=False),
    **dict.fromkeys(("c", "t"), lambda n: nn.Parameter(torch.randn(n))),
    "norm": nn.RMSNorm,
    "tau": lambda n: nn.Parameter(torch.ones(1)),
    "e": lambda n: nn.Parameter(torch.randn(4, n, n) * n**-0.5),
    "r": lambda n: nn.Linear(n, 4, bias=False),
    "shares": lambda n: nn.Parameter(torch.zeros(4)),
    "cube": lambda n: nn.Parameter(torch.randn(n, n, n) / n),
}
"""What modules have besides the matrix ``w``."""


def build(between, parts=""):
    return of(between, **{name: PARTS[name] for name in parts.split()})


def residual(m, x):
    return x + torch.relu(m.v(x))


def without_gradients(m, h):
    with torch.no_grad():
        y = torch.tanh(m.w(h))
    return m.w(h) + m.v(y)


def rms(y):
    return F.rms_norm(y, y.shape[-1:])


def clipped(h, **clip):
    return (y := torch.relu(h)) / y.square().mean(-1, keepdim=True).sqrt().clamp(**clip)


def halves(x):
    return x[:, : x.shape[-1] // 2], x[:, x.shape[-1] // 2 :]


def mean(x):
    return x.mean(-1, keepdim=True)


def angles(m, last=1.0):
    return torch.linspace(0, last, m.n // 2).repeat(2)


def turned(y, angles):
    first, second = halves(y)
    return y * angles.cos() + torch.cat([-second, first], -1) * angles.sin()


def parts_turned(y, angles):
    (first, second), (here, there) = halves(y), halves(angles[None])
    cos, sin = here.cos(), there.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


PRODUCT, CANCEL = "answers: w*=HIDDEN", r"refused: may cancel|a sum that cancels"
STOPPED = "refused: the same signal stopped cancel"
PLAIN = "has: w[b] = W[b,a] inp[a] head[e] = Head[e,b] w[b]"
NO_CLASS, BY_SIZE = "no function of the equations has its values", "clamp: its values change with the sizes"
SLICE = "refused: a slice along an axis that grows, of the result of function rmsnorm"
MATRIX = "refused: stops the gradient of a matrix that trains elsewhere"

SPELLINGS = {
    "product": (lambda m, h: m.w(h), "", PRODUCT),
    "product: ellipsis": (lambda m, h: torch.einsum("...i,oi->...o", h, m.w.weight), "", PRODUCT),
    "product: keywords": (lambda m, h: F.linear(input=h, weight=m.w.weight), "", PRODUCT),
    "product: letters alone": (lambda m, h: torch.einsum("bi,oi", h, m.w.weight), "", PRODUCT),
    "product: added into zeros": (lambda m, h: torch.zeros_like(h).add_(m.w(h)), "", PRODUCT),
    "product: in parts": (lambda m, h: torch.relu(written(m.w(h), m.n // 2, m.n)), "", PRODUCT),
    "a vector that a matrix acts on": (
        lambda m, h: m.w(m.t) + torch.relu(h), "t", "answers: t=INPUT w.weight=HIDDEN",
    ),
    "a matrix sums shares of a softmax": (
        lambda m, h: torch.relu(m.w(h.softmax(-1))), "", "answers: w.weight=N^(1/2),1 head.weight=READOUT",
    ),
    # stops of gradients
    "stop": (lambda m, h: h + m.w(h).detach(), "", "has: stopped(", f"lines: w.weight: {UNREACHED}"),
    "stop: no silu": (lambda m, h: h * h.detach().sigmoid(), "", "once: stopped(", "lacks: silu"),
    "stop: data": (lambda m, h: m.w(h) + m.w(h).data.tanh(), "", "has: stopped("),
    "stop: straight through": (lambda m, h: (a := m.w(h)) + (torch.tanh(h) - a).detach(), "", STOPPED),
    "stop: taken off": (lambda m, h: torch.tanh(h) + (a := m.w(h)) - a.detach(), "", STOPPED),
    "stop: no_grad": (without_gradients, "v", "once: stopped(", "frozen: "),
    "stop: no_grad, a function": (
        lambda m, h: m.w(h) + m.v(torch.no_grad()(lambda: torch.tanh(m.w(h)))()), "v", "once: stopped(", "frozen: ",
    ),
    "stop: a vector's data": (
        lambda m, h: m.w(torch.tanh(h + m.c.data)) + m.c, "c", "once: stopped(", "frozen: ",
    ),
    "stop: a vector": (lambda m, h: m.w(torch.tanh(h + m.c.detach())) + m.c, "c", "once: stopped(", "frozen: "),
    **{
        f"stop: a matrix, {how}{'' if again else ' alone'}": (
            lambda m, h, stop=stop, again=again: (m.w if again else lambda y: y)(F.linear(h, stop(m.w.weight))),
            "", *([MATRIX] if again else ["frozen: w.weight", "lacks: stopped("]),
        )
        for how, stop in {
            "data": lambda w: w.data, "detach": lambda w: w.detach(), "no_grad": torch.no_grad()(lambda w: w.T.clone()),
        }.items()
        for again in (True, False)
    },
    "stop: within relu": (
        lambda m, h: torch.relu(y := m.w(h)) + torch.tanh(h) - torch.relu(y.detach()), "", STOPPED,
    ),
    "stop: within a norm": (lambda m, h: rms(y := m.w(h)) + torch.tanh(h) - rms(y.detach()), "", STOPPED),
    "stop: within relu, added": (
        lambda m, h: torch.relu(y := m.w(h)) + torch.tanh(h) + torch.relu(y.detach()), "", "has: stopped(",
    ),
    "stop: within a norm, added": (
        lambda m, h: rms(y := m.w(h)) + torch.tanh(h) + rms(y.detach()), "", "has: stopped(",
    ),
    # what is added and taken off again: through sums the equations had it twice
    "taken off: no signal of one law": (lambda m, h: h - m.w(h) + torch.tanh(h), "", "has: head["),
    "taken off: a bias": (lambda m, h: m.c + m.w(h) - m.c, "c", PLAIN),
    "taken off: before": (lambda m, h: (m.w(h) - m.c) + m.c, "c", PLAIN),
    "taken off: of both": (
        lambda m, h: m.w((h + m.v(h)) - (h - torch.tanh(h))), "v", "has: h[a] = v[a] + h_tanh[a]",
    ),
    "taken off: in part": (
        lambda m, h: m.w(torch.tanh(2 * (h + m.v(h)) - h)), "v", "has: h[a] = inp[a] + v[a]",
    ),
    "taken off: a layer": (lambda m, h: m.w(residual(m, h) - h), "v", "has: w[b] = W[b,a] h_relu[a]"),
    "taken off: in the middle": (
        lambda m, h: m.w(torch.tanh(h - residual(m, h))), "v", "has: h_tanh[a] = tanh(h_relu[a])",
    ),
    "cancels: all": (lambda m, h: h - h, "", CANCEL),
    "cancels: a term": (lambda m, h: (m.w(h) + torch.tanh(h)) - m.w(h), "", CANCEL),
    "cancels: of one law": (lambda m, h: (torch.relu(m.w(h)) + h) - torch.relu(m.v(h)), "v", CANCEL),
    "cancels: but a number": (lambda m, h: (h + 1) - h, "", CANCEL),
    "cancels: a negative": (lambda m, h: torch.relu(m.w(h)) + 0.5 * -torch.relu(m.v(h)), "v", CANCEL),
    # norms and clips
    "norm: of unit length": (lambda m, h: m.v(F.normalize(m.w(h), dim=-1)), "v", "once: rmsnorm("),
    "norm: of another signal": (
        lambda m, h: m.w(h) / h.norm(dim=-1, keepdim=True), "", "refused: norm: no rule for this call",
    ),
    "norm: not Euclidean": (
        lambda m, h: h / h.norm(p=1, dim=-1, keepdim=True), "", "refused: norm: no rule for this call",
    ),
    "norm: clipped below": (lambda m, h: m.w(clipped(h, min=10)), "", "refused: no rule for|no equation can express"),
    "norm: clipped above": (lambda m, h: m.w(clipped(h, max=0.01)), "", "refused: no rule for|no equation can express"),
    "norm: a unit vector nothing takes up": (
        lambda m, h: torch.tanh(F.normalize(m.w(h), dim=-1)), "", "refused: where no single parameter can absorb it",
    ),
    # a mean that is taken off
    "centre": (lambda m, h: m.w(2 * (h - mean(h))), "", "once: centre(", "lines: ", "answers: w.weight=HIDDEN"),
    "centre: of a sum over the size": (
        lambda m, h: m.w((y := torch.relu(h)) - y.sum(-1, keepdim=True) / m.n), "", "once: centre(h_relu[a])",
    ),
    "centre: its mean is zero": (lambda m, h: m.w(h) + mean(h - mean(h)), "", "once: centre("),
    "centre: taken off its signal": (lambda m, h: m.w((u := h + m.v(h)) - (u - mean(u))), "v", CANCEL),
    "centre: not all of the mean": (lambda m, h: m.w(h - 0.999 * mean(h)), "", CANCEL),
    "centre: of a part": (lambda m, h: m.w(h - mean(halves(h)[0])), "", "refused: is used both whole and in parts"),
    "centre: of another signal": (lambda m, h: m.w(h - mean(torch.tanh(h))), "", "lacks: centre("),
    "centre: of a matrix": (
        lambda m, h: F.linear(h, m.w.weight - mean(m.w.weight)), "", "refused: a function of a matrix",
    ),
    "clip: at zero": (lambda m, h: m.w(h.clamp(min=0)), "", "once: relu(", "lines: "),
    "clip: near zero": (lambda m, h: m.w(h.clamp_min(1e-6)), "", "once: relu(", "lines: "),
    "clip: far": (lambda m, h: m.w(h.clamp(min=-50)), "", "lacks: relu("),
    "clip: both sides": (lambda m, h: m.w(h.clamp(-1, 1)), "", "lacks: relu("),
    "clip: behind relu": (lambda m, h: m.w(h.relu().clamp(min=0)), "", "once: relu("),
    "clip: both halves": (lambda m, h: m.w(h.clamp(min=0) + h.clamp(max=0)), "", "has: = W[b,a] inp[a]"),
    "clip: above": (lambda m, h: m.w(h.clamp(max=0)), "", "has: relu("),
    "clip: above, of the negative": (lambda m, h: m.w(-(-h).clamp_max(0)), "", "has: relu("),
    "clip: a tensor": (lambda m, h: m.w(h.clamp(min=torch.zeros(()))), "", "has: relu("),
    "clip: below zero": (lambda m, h: m.w(h.clamp(min=-0.1)), "", "has: silu(", "stands"),
    "clip: steep": (lambda m, h: m.w((9 * h).clamp(-1, 1)), "", "has: tanh(", "stands"),
    "clip: far above": (
        lambda m, h: m.w(h.clamp_max(max=50)), "", "lacks: relu(", "lacks: silu(", "lacks: tanh(", "stands",
    ),
    "clip: above zero": (lambda m, h: m.w(h.clamp(min=0.5)), "", f"refused: clamp: {NO_CLASS}"),
    "clip: positive": (lambda m, h: m.w(h.clamp(0, 0.2)), "", f"refused: clamp: {NO_CLASS}"),
    "clip: by size": (lambda m, h: m.w(h.clamp(max=1 / h.shape[-1])), "", f"refused: {BY_SIZE}"),
    "clip: by size, positive": (lambda m, h: m.w(h.clamp(0, 1 / h.shape[-1])), "", f"refused: {BY_SIZE}"),
    "clip: by a signal": (lambda m, h: m.w(h.clamp_min(h.flip(0) + 0.1)), "", f"refused: {NO_CLASS}"),
    # functions
    "exp": (lambda m, h: m.w(h).exp(), "", "has: exp("),
    "beside those of the tables": (
        lambda m, h: m.w(F.logsigmoid(h)) * F.hardsigmoid(h), "", "has: silu(", "has: sigmoid(",
    ),
    "cos": (lambda m, h: torch.cos(m.w(h)), "", f"refused: cos: {NO_CLASS}"),
    # a signal named k, whose gradient is gk
    "names: gk behind k": (lambda m, h: m.gk(m.k(h)), "k gk", "answers: gk.weight=HIDDEN"),
    "names: k behind gk": (lambda m, h: m.k(m.gk(h)), "k gk", "answers: gk.weight=HIDDEN"),
    # entries in another order alone are of the size of a signal, also where they meet what other matrices make of it
    "order: rotary behind a norm": (
        lambda m, h: m.w(turned(m.norm(m.v(h)), angles(m, 1.5) + 0.1)), "v norm", "once: rmsnorm(",
        "answers: w.weight=HIDDEN",
    ),
    "order: swapped": (lambda m, h: m.w(torch.cat(halves(m.v(h))[::-1], -1)), "v", "has: w["),
    "order: swapped, and a matrix": (
        lambda m, h: torch.cat(halves(y := m.v(h))[::-1], -1) + torch.tanh(m.w(y)), "v", "has: w[",
    ),
    "order: swapped, and two": (
        lambda m, h: m.u(torch.cat(halves(y := m.v(h))[::-1], -1)) * m.w(y) + y, "u v", "has: w[",
    ),
    "order: a half is lost": (
        lambda m, h: m.w((y := m.v(h)) + torch.cat([-halves(y)[0], halves(y)[1]], -1)),
        "v",
        "refused: is not a rotation",
    ),
    "order: halves meet": (
        lambda m, h: m.w((y := m.v(h)) + torch.cat(halves(y)[::-1], -1)), "v", "refused: is not a rotation",
    ),
    "order: signs are summed": (
        lambda m, h: m.w(torch.cat([-halves(y := torch.relu(m.v(h)))[0], halves(y)[1]], -1).sum(-1) * h), "v",
        "refused: a copy whose entries are partly negated",
    ),
    "order: halves of a norm, multiplied": (
        lambda m, h: m.w(m.wide(torch.mul(*halves(m.norm(m.v(h)))))), "v norm wide", SLICE,
    ),
    "order: halves of a norm, added": (
        lambda m, h: m.w(m.wide((p := halves(m.norm(m.v(h))))[0] + torch.tanh(p[1]))), "v norm wide", SLICE,
    ),
    "order: a half of a norm": (lambda m, h: m.w(m.wide(halves(m.norm(m.v(h)))[0])), "v norm wide", SLICE),
}  # fmt: skip
"""Something between two layers, the parts that it needs, and what it is read as."""


@pytest.mark.parametrize("how", SPELLINGS)
def test_spellings_and_readings(how):
    between, parts, *reading = SPELLINGS[how]
    model = check(build(between, parts), *(part for part in reading if part != "stands"))
    assert "stands" not in reading or model.network.stands


def test_functions_are_told_apart_by_their_values(monkeypatch):
    assert find_function_of_class(lambda x: x * torch.sigmoid(1.702 * x)) == "silu"
    assert find_function_of_class(lambda x: F.leaky_relu(x)) == "relu" and find_function_of_class(torch.erf) == "tanh"
    assert [find_function_of_class(f) for f in (torch.cos, F.softplus, F.mish, torch.square)] == [""] * 4
    wide = {**FUNCTIONS, "mine": replace(FUNCTIONS["silu"], powers=frozenset({1, 2, 3}))}
    monkeypatch.setattr(activations, "FUNCTIONS", wide)
    monkeypatch.setattr(activations, "ELEMENTWISE_FUNCTIONS", ("mine",))
    assert (
        find_function_of_class(F.mish) == "mine"
        and find_function_of_class(torch.sinh) == find_function_of_class(lambda x: torch.exp(x) - 1) == ""
    )


def spread(y: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
    return (y - y.mean(-1, keepdim=True)) * of


NORMS = {
    "rms powers": lambda y: y / torch.pow(y, 2).sum(-1, keepdim=True).pow(0.5),
    "rms guarded": lambda y: y * torch.rsqrt(y.square().sum(-1, keepdim=True) + 1e-6),
    "rms clipped": lambda y: y / y.norm(dim=-1, keepdim=True).clamp(min=1e-12),
    "rms linalg": lambda y: y / torch.linalg.vector_norm(y, dim=-1, keepdim=True),
    "rms fro": lambda y: y / (torch.norm(y, dim=-1, keepdim=True) + 1e-6),
    "rms times n": lambda y: y * y.shape[-1] / y.norm(dim=-1, keepdim=True),
    "rms times two": lambda y: 2 * y / (3 * y.norm(dim=-1, keepdim=True)),
    "rms of twice": lambda y: (z := 2 * y) / z.norm(dim=-1, keepdim=True),
    "layer times two": lambda y: 2 * (y - y.mean(-1, keepdim=True)) / y.std(-1, keepdim=True),
    "layer var": lambda y: spread(y, (y.var(-1, unbiased=False, keepdim=True) + 1e-5).rsqrt()),
    "layer std": lambda y: spread(y, 1 / (y.std(-1, keepdim=True) + 1e-5)),
    "layer correction": lambda y: spread(y, 1 / torch.sqrt(torch.var(y, -1, correction=1, keepdim=True))),
}


@pytest.mark.parametrize("how", NORMS)
def test_a_norm_that_is_written_out_is_a_norm(how):
    read = check(build(lambda m, h: m.v(NORMS[how](m.w(h))), "v"), f"once: {how.split()[0]}norm(")
    own = re.search(r'multiplied = \{ V = "(.*)" \}', read.text)  # of a length the module multiplies by a power
    answers = {"N^(-1/2)": ("1", "N^(-1/2)"), "N^(1/2)": ("N^-1", "N^(-3/2)")}
    assert not read.notes and powers(read, "N=1")["v.weight"] == (answers[own[1]] if own else HIDDEN)


def test_a_norm_that_stays_away_from_its_clip_is_one():
    """As with a small number that is added to the mean of squares."""
    assert trace_equations(build(lambda m, h: m.w(clipped(h, min=0.01)))).text.count("rmsnorm(") == 1


@pytest.mark.parametrize("before", [False, True])
def test_a_number_before_gates_that_are_divided_by_their_sum(before):
    """It is in the sum, too, or in what is divided by it alone."""

    def between(m, h):
        w, i = chosen(m, h, torch.sigmoid)
        y = 2.5 * w
        w = y / ((y if before else w).sum(-1, keepdim=True) + 1e-20)
        return sum((w * (i == e)).sum(-1, keepdim=True) * expert(h) for e, expert in enumerate(m.experts))

    model = trace_equations(with_experts(between, sparse=True))
    assert model.error < 1e-12 and [dict(own) for _, own in model.factors.values()] == [{"K": -1}]


@pytest.mark.parametrize("guard", [0, 1e-9])
def test_gates_are_divided_by_the_sum_of_all_before_the_best_are_chosen(guard):
    """Each is 1/M, however many are chosen; divided once more, by the sum of the chosen, each is 1/K."""

    def between(m, h, again=False):
        p = m.router(h).sigmoid()
        top, at = (p / (p.sum(-1, keepdim=True) + guard)).topk(m.k)
        top = top / top.sum(-1, keepdim=True) if again else top
        return sum((top * (at == e)).sum(-1, keepdim=True) * expert(h) for e, expert in enumerate(m.experts))

    once = trace_equations(with_experts(between, sparse=True))
    twice = trace_equations(with_experts(lambda m, h: between(m, h, True), sparse=True))
    assert max(once.error, twice.error) < 1e-8
    assert [[dict(own) for _, own in x.factors.values()] for x in (once, twice)] == [[{"M": -1}], [{"K": -1}]]


def convolved(sizes):
    first, last = nn.Conv1d(2, sizes["N"], 3, padding=1), nn.Conv1d(sizes["N"], 4, 3, padding=1)
    return nn.Sequential(first, nn.ReLU(), last), torch.randn(2, 2, 8)


def shuffled(sizes):
    first, last = nn.Conv2d(3, 4 * sizes["N"], 1), nn.Conv2d(sizes["N"], 3, 1)
    return nn.Sequential(first, nn.PixelShuffle(2), nn.ReLU(), last), torch.randn(2, 3, 3, 3)


class ScoredPlaces(nn.Module):
    """Scores of places that are told apart: both sums take the factor up, where the module divides their sum."""

    def __init__(self, n):
        super().__init__()
        self.e, self.p, self.o, self.n = nn.Embedding(9, n), nn.Parameter(torch.randn(4, n)), nn.Linear(n, 9), n
        self.q, self.k, self.r, self.v = (nn.Linear(n, n, bias=False) for _ in range(4))

    def forward(self, i):
        h = self.e(i)
        places = (self.q(h) @ self.r(torch.tanh(self.p)).T).flip(-1)
        scores = (self.q(h) @ self.k(h).transpose(-1, -2) + places) / self.n**0.5
        return self.o(scores.softmax(-1) @ self.v(h))


class UnitMemory(nn.Module):
    """Keys of unit length write to a matrix, from which queries of unit length read, times a learned temperature."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.e, self.o, self.t = nn.Embedding(9, n), nn.Linear(n, 9), nn.Parameter(torch.ones(()))
        self.q, self.k, self.v = (nn.Linear(n, n, bias=False) for _ in range(3))

    def forward(self, i):
        h = self.e(i)
        q, k, v = F.normalize(self.q(h), dim=-1), F.normalize(self.k(h), dim=-1), self.v(h)
        one, two = (torch.einsum("bk,bv->bkv", k[:, t], v[:, t]) for t in (0, 1))
        return self.o(h[:, 1] + torch.einsum("bk,bkv->bv", self.t.exp() * q[:, 1], one + two))


class ClassedTokens(nn.Module):
    """A class token with a place of its own, beside tokens; its output has no logits."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.token, self.place = nn.Parameter(torch.randn(1, 1, n)), nn.Parameter(torch.randn(1, 1, n))
        self.inp, self.w, self.head = nn.Linear(6, n), nn.Linear(n, n), nn.Linear(n, 3)

    def forward(self, x):
        h = torch.cat([(self.token + self.place).expand(len(x), -1, -1), self.inp(x)], 1)
        return SimpleNamespace(logits=None, last_hidden_state=self.head(torch.relu(self.w(h)).mean(1)))


def tabled(m, h):
    """Rotary positions of neighbours, by a frozen table that has each angle once (RoFormer)."""
    y, angles = m.v(h).view(len(h), -1, 8), m.angles(torch.arange(3))[:, None]
    cos, sin = (torch.stack([t, t], -1).flatten(-2) for t in angles.chunk(2, -1))
    turned = torch.stack([-y[..., 1::2], y[..., ::2]], -1).reshape(y.shape)
    return m.w((y * cos + turned * sin).flatten(1))


def table(sizes):
    model = of(tabled, v=square, angles=lambda n: nn.Embedding(3, 8))(sizes)
    steps = torch.arange(3.0)[:, None] / torch.tensor([1.0, 4.0, 16.0, 64.0])
    model.angles.weight = nn.Parameter(torch.cat([steps.cos(), steps.sin()], -1), requires_grad=False)
    return model, torch.randn(3, 5)


MODULES = {
    "an output with the places of the input": (convolved, "answers: 2.weight=READOUT"),
    "channels become places": (shuffled, "answers: 3.weight=READOUT"),
    "a factor of a sum of products is one of each": (
        lambda z: (ScoredPlaces(z["N"]), torch.arange(8).reshape(2, 4)), "answers: [qkrv].weight=HIDDEN",
    ),
    "a factor is taken up where a later product sums": (
        lambda z: (UnitMemory(z["N"]), torch.arange(8).reshape(4, 2)), "once: = scale ",
    ),
    "a sum of weights beside signals is a signal": (
        lambda z: (ClassedTokens(z["N"]), torch.randn(2, 4, 6)),
        "answers: token=INPUT place=INPUT w.weight=HIDDEN head.weight=READOUT",
    ),
    "rotary positions from a table": (table, "has: w["),
}  # fmt: skip


@pytest.mark.parametrize("how", MODULES)
def test_modules_and_readings(how):
    build, *reading = MODULES[how]
    model = check(build, *reading)
    if "places of the input" in how:  # what is trained takes an input that has an axis more than the output
        assert re.search(r"f += \w+\[\w,x\] data\[\w,x\]", model.text)
    if "sum of products" in how:
        assert {str(p) for p in multipliers(model, "N=1").values()} == {"N^-1"}
    if "later product" in how:
        d = derive(ray="N=1", optimizer="adam", parameterization="mup", network=model.network, epsilon="negligible")
        assert [*model.factors] == ["scale"] and str(1 / d.scaling.multipliers["scale"]) == "N^-1"
        assert [(str(d[x].init_std), str(d[x].lr)) for x in ("q.weight", "k.weight", "v.weight")] == [HIDDEN] * 3


MET = {
    "product": lambda m, y, other: m.v(y * other),
    "sum of products": lambda m, y, other: m.v(torch.tanh((y * other).mean(-1, keepdim=True)) + y),
    "functions": lambda m, y, other: m.v(torch.tanh(y) * torch.tanh(other)),
    "sum": lambda m, y, other: m.v(y + torch.tanh(other)),
    "behind one matrix": lambda m, y, other: m.v(m.w(y) * m.w(other)),
}
ORDERS = {
    "swapped": lambda m, y: torch.cat(halves(y)[::-1], -1),
    "signs": lambda m, y: torch.cat([-halves(y)[0], halves(y)[1]], -1),
    "rotated": lambda m, y: turned(y, angles(m)),
    "in parts": lambda m, y: parts_turned(y, angles(m)),
    "in order": lambda m, y: torch.cat(halves(y), -1),
}


@pytest.mark.parametrize("how", MET)
@pytest.mark.parametrize("kind", ORDERS)
def test_a_signal_that_meets_its_own_entries_in_another_order(kind, how):
    """Swapped halves were read as the signal itself; rotary positions are, on average, and so are halves in order."""
    refused = "refused: permuted copy of itself|a copy whose entries are partly negated"
    reading = "has: v[" if kind in ("rotated", "in parts", "in order") else refused
    check(build(lambda m, h: MET[how](m, y := m.v(h), ORDERS[kind](m, y)), "v"), reading)


def test_a_limit_of_another_function_is_no_limit_of_the_module(tmp_path):
    """Softsign has the powers of tanh, and other values."""
    layers = "nn.Linear(6, s['N'], bias=False), {}, nn.Linear(s['N'], 1, bias=False)"
    defs = [f"def {x.lower()}(s): return nn.Sequential({layers.format(f'nn.{x}()')})" for x in ("Softsign", "Tanh")]
    (tmp_path / "m.py").write_text("\n".join(["from torch import nn", *defs]))
    asked = "study", "limit", "--ray", "N=1", "--optimizer", "sgd", "--parameterization", "mup", "--steps", 1, "--model"
    wrong, right = (shared.scalecalc(*asked, f"{tmp_path / 'm.py'}:{name}") for name in ("softsign", "tanh"))
    assert wrong.exit_code == 2 and "is read as tanh, which scales with the same powers but has other" in wrong.stderr
    assert right.exit_code == 0 and "0.0856" in right.stdout  # 0.1 E[f^2 + f'^2] is 0.0859


def test_a_wrong_table_of_a_function_reads_no_module(monkeypatch):
    """A function goes by the class that its values have, whatever the tables declare of its name."""
    soft = trace_equations(build(lambda m, h: F.softplus(m.w(F.relu6(h)))))
    assert "at the recorded values" in soft.network.stands  # no limit is computed of it, which is of values
    assert "silu(" in soft.text and "tanh(" not in soft.text and any("recorded" in str(x) for x in soft.notes)
    module = build(lambda m, h: torch.atan(m.w(h)))
    assert "tanh(" in trace_equations(module).text
    table = replace(FUNCTIONS["tanh"], name="atan", torch="atan", powers=frozenset({0, 2}), positive=True)
    monkeypatch.setitem(FUNCTIONS, "atan", table)
    assert "tanh(" in trace_equations(module).text
    monkeypatch.setitem(FUNCTIONS, "tanh", replace(table, name="tanh"))
    with pytest.raises(Unreadable, match=r"contradict the class that functions\.toml gives"):
        trace_equations(module)


MIXED = {
    "of a router": lambda m, h: torch.sigmoid(m.r(h)),
    "learned": lambda m, h: m.shares.softmax(0).expand(len(h), -1),
}


@pytest.mark.parametrize("weights", MIXED)
def test_matrices_that_signals_mix_are_those_that_act_one_by_one(weights):
    """The mixture was a signal of size one, with entries of size one and a multiplier N^-1 behind it."""
    ways = (
        lambda m, h: torch.einsum("bi,bio->bo", h, torch.einsum("bk,kio->bio", MIXED[weights](m, h), m.e)),
        lambda m, h: torch.einsum("bk,bko->bo", MIXED[weights](m, h), torch.einsum("bi,kio->bko", h, m.e)),
    )
    mixed, apart = (check(build(way, "e r shares"), "answers: e=HIDDEN") for way in ways)
    assert not multipliers(mixed, "N=1") and powers(mixed, "N=1") == powers(apart, "N=1")


class Merged(Base):
    """Experts whose matrices are mixed before they act, or whose outputs are."""

    def __init__(self, sizes, merged):
        super().__init__(n := sizes["N"])
        self.r, self.merged = nn.Linear(n, sizes["M"], bias=False), merged
        self.e = nn.Parameter(torch.randn(sizes["M"], n, n) * n**-0.5)
        del self.w

    def between(self, h):
        shares = torch.softmax(self.r(h), -1)
        if self.merged:
            return torch.einsum("bi,bio->bo", h, torch.einsum("bk,kio->bio", shares, self.e))
        return torch.einsum("bk,bko->bo", shares, torch.einsum("bi,kio->bko", h, self.e))


def test_matrices_of_experts_that_are_merged_have_the_numbers_of_experts():
    """Where their number stays; where it grows, no output of one expert is a signal that must stay."""
    sizes = "N=16,M=4", "N=64,M=4"
    plans = [plan(lambda z, how=how: Merged(z, how), *sizes, lr=1e-3, eps=1e-8, std=0.02) for how in (True, False)]
    one, other = ({name: x.factor for name, x in p["e"].settings.items()} for p in plans)
    assert one == other and (one["init_std"], one["lr"]) == (1 / 2, 1 / 4)
    mixed, apart = (trace_equations(lambda z, how=how: Merged(z, how)).text for how in (True, False))
    assert "scale" not in mixed and "alpha" not in mixed and "alpha" in apart  # there outputs are signals


def test_a_matrix_that_a_signal_makes_acts_at_once():
    """Whichever two of three factors meet first."""

    def acting(first, second):
        def between(m, h):
            signals = {"bz": torch.tanh(m.v(h)), "bi": h}
            return torch.einsum(second, torch.einsum(first, m.cube, signals[first[4:6]]), signals[second[4:6]])

        return check(build(between, "cube v"), "has: v[")

    one, other = (acting(*way) for way in (("zio,bz->bio", "bio,bi->bo"), ("zio,bi->bzo", "bzo,bz->bo")))
    assert "scale" not in one.text
    assert sorted(one.text.split()) == sorted(other.text.split()) or powers(one, "N=1") == powers(other, "N=1")


@pytest.mark.parametrize("values", [torch.linspace(-1, 1, 4), torch.arange(4.0)], ids=["symmetric", "positive"])
@pytest.mark.parametrize("shares", [lambda z: z.softmax(-1), lambda z: z - z.mean(-1, keepdim=True)])
def test_a_sum_of_shares_times_constants_is_not_that_of_shares(shares, values):
    """Without the constants it is one, or zero, and has no gradient: an expected value, as of a categorical head."""
    of_shares = of(lambda m, h: (shares(m.z(h)) * values).sum(-1, keepdim=True), z=lambda n: nn.Linear(n, 4))

    def headless(sizes):
        model = of_shares(sizes)
        model.forward, model.head = lambda x: model.between(model.inp(x)), nn.Identity()
        return model

    model = check(headless, "has: constants", "answers: inp.weight=INPUT")
    assert READOUT in {*powers(model, "N=1").values()}


def test_a_number_behind_a_learned_factor_is_that_of_the_sum_before_it():
    """The temperature stays what it is: it was to be N times as large, beside a multiplier N^-1."""
    between = lambda m, h: h * torch.sigmoid(m.tau * (m.w(h) * m.v(h)).sum(-1, keepdim=True) / m.n)  # noqa: E731
    lines = [line for line in trace_equations(build(between, "v tau")).lines if "multiplies by N^-1" in line]
    assert lines == ["model: the module multiplies by N^-1 here (scale in the equations)"]
