"""Single calls of torch, functions and norms that are written out: what they are read as."""

import itertools
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn import functional as F

from scaling_algebra import derive, plan
from scaling_algebra.spec.networks.functions import FUNCTIONS
from scaling_algebra.verify.tracing import activations
from scaling_algebra.verify.tracing.activations import find_function_of_class
from scaling_algebra.verify.tracing.gradients import UNREACHED

from .. import shared
from .spellings import HIDDEN, READOUT, check, derive_powers, mean, multipliers, net, of


def written(h, *stops):
    """What is written part by part into a new tensor."""
    out = torch.zeros_like(h)
    for start, stop in itertools.pairwise((0, *stops)):
        out[:, start:stop] = h[:, start:stop]
    return out


def clipped(h, **clip):
    return (y := torch.relu(h)) / y.square().mean(-1, keepdim=True).sqrt().clamp(**clip)


def halves(x):
    return x[:, : x.shape[-1] // 2], x[:, x.shape[-1] // 2 :]


def angles(m, last=1.0):
    return torch.linspace(0, last, m.n // 2).repeat(2)


def turned(y, angles):
    first, second = halves(y)
    return y * angles.cos() + torch.cat([-second, first], -1) * angles.sin()


def mix_matrices(m, h, shares):
    return torch.einsum("bi,bio->bo", h, torch.einsum("bk,kio->bio", shares, m.e))


def mix_outputs(m, h, shares):
    return torch.einsum("bk,bko->bo", shares, torch.einsum("bi,kio->bko", h, m.e))


PRODUCT, CANCEL = "answers: w*=HIDDEN", r"refused: may cancel|a sum that cancels"
STOPPED = "refused: the same signal stopped cancel"
PLAIN = "has: w[b] = W[b,a] inp[a] head[e] = Head[e,b] w[b]"
NO_CLASS, BY_SIZE = "no function of the equations has its values", "clamp: its values change with the sizes"
SLICE = "refused: a slice along an axis that grows, of the result of function rmsnorm"
CUBE = "answers: cube=N^(-3/2),N^-2 v.weight=HIDDEN"
MATRIX = "refused: stops the gradient of a matrix that trains elsewhere"

SPELLINGS = {
    "product": (lambda m, h: m.w(h), "", PRODUCT),
    "product: ellipsis": (lambda m, h: torch.einsum("...i,oi->...o", h, m.w.weight), "", PRODUCT),
    "product: keywords": (lambda m, h: F.linear(input=h, weight=m.w.weight), "", PRODUCT),
    "product: letters alone": (lambda m, h: torch.einsum("bi,oi", h, m.w.weight), "", PRODUCT),
    "product: added into zeros": (lambda m, h: torch.zeros_like(h).add_(m.w(h)), "", PRODUCT),
    "product: in parts": (lambda m, h: torch.relu(written(m.w(h), m.n // 2, m.n)), "", PRODUCT),
    "a vector that a matrix acts on": (lambda m, h: m.w(m.t) + torch.relu(h), "t", "answers: t=INPUT w.weight=HIDDEN"),
    "a matrix sums shares of a softmax": (lambda m, h: torch.relu(m.w(h.softmax(-1))), "",
        "answers: w.weight=N^(1/2),1 head.weight=READOUT"),
    # stops of gradients
    "stop": (lambda m, h: h + m.w(h).detach(), "", "has: stopped(", f"lines: w.weight: {UNREACHED}"),
    "stop: no silu": (lambda m, h: h * h.detach().sigmoid(), "", "once: stopped(", "lacks: silu"),
    "stop: data": (lambda m, h: m.w(h) + m.w(h).data.tanh(), "", "has: stopped("),
    "stop: straight through": (lambda m, h: (a := m.w(h)) + (torch.tanh(h) - a).detach(), "", STOPPED),
    "stop: taken off": (lambda m, h: torch.tanh(h) + (a := m.w(h)) - a.detach(), "", STOPPED),
    "stop: no_grad": (lambda m, h: m.w(h) + m.v(torch.no_grad()(lambda: torch.tanh(m.w(h)))()), "v",
        "once: stopped(", "frozen: "),
    "stop: a vector": (lambda m, h: m.w(torch.tanh(h + m.g.detach())) + m.g, "g", "once: stopped(", "frozen: "),
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
    "stop: within relu": (lambda m, h: torch.relu(y := m.w(h)) + torch.tanh(h) - torch.relu(y.detach()), "", STOPPED),
    "stop: within relu, added": (lambda m, h: torch.relu(y := m.w(h)) + torch.tanh(h) + torch.relu(y.detach()), "",
        "has: stopped("),
    # what is added and taken off again: through sums the equations had it twice
    "taken off: no signal of one law": (lambda m, h: h - m.w(h) + torch.tanh(h), "", "has: head["),
    "taken off: a bias": (lambda m, h: m.g + m.w(h) - m.g, "g", PLAIN),
    "taken off: before": (lambda m, h: (m.w(h) - m.g) + m.g, "g", PLAIN),
    "taken off: of both": (lambda m, h: m.w((h + m.v(h)) - (h - torch.tanh(h))), "v", "has: h[a] = v[a] + h_tanh[a]"),
    "taken off: in part": (lambda m, h: m.w(torch.tanh(2 * (h + m.v(h)) - h)), "v", "has: h[a] = inp[a] + v[a]"),
    "taken off: a layer": (lambda m, h: m.w(h + torch.relu(m.v(h)) - h), "v", "has: w[b] = W[b,a] h_relu[a]"),
    "taken off: in the middle": (lambda m, h: m.w(torch.tanh(h - (h + torch.relu(m.v(h))))), "v",
        "has: h_tanh[a] = tanh(h_relu[a])"),
    "cancels: all": (lambda m, h: h - h, "", CANCEL),
    "cancels: a term": (lambda m, h: (m.w(h) + torch.tanh(h)) - m.w(h), "", CANCEL),
    "cancels: of one law": (lambda m, h: (torch.relu(m.w(h)) + h) - torch.relu(m.v(h)), "v", CANCEL),
    "cancels: but a number": (lambda m, h: (h + 1) - h, "", CANCEL),
    "cancels: a negative": (lambda m, h: torch.relu(m.w(h)) + 0.5 * -torch.relu(m.v(h)), "v", CANCEL),
    # norms and clips
    "norm: of unit length": (lambda m, h: m.v(F.normalize(m.w(h), dim=-1)), "v", "once: rmsnorm("),
    "norm: of another signal": (lambda m, h: m.w(h) / h.norm(dim=-1, keepdim=True), "",
        "refused: norm: no rule for this call"),
    "norm: not Euclidean": (lambda m, h: h / h.norm(p=1, dim=-1, keepdim=True), "",
        "refused: norm: no rule for this call"),
    "norm: clipped below": (lambda m, h: m.w(clipped(h, min=10)), "", "refused: no rule for|no equation can express"),
    "norm: clipped above": (lambda m, h: m.w(clipped(h, max=0.01)), "", "refused: no rule for|no equation can express"),
    "norm: a unit vector nothing takes up": (lambda m, h: torch.tanh(F.normalize(m.w(h), dim=-1)), "",
        "refused: where no single parameter can absorb it"),
    # a mean that is taken off
    "centre": (lambda m, h: m.w(2 * (h - mean(h))), "", "once: centre(", "lines: ", "answers: w.weight=HIDDEN"),
    "centre: of a sum over the size": (lambda m, h: m.w((y := torch.relu(h)) - y.sum(-1, keepdim=True) / m.n), "",
        "once: centre(h_relu[a])"),
    "centre: its mean is zero": (lambda m, h: m.w(h) + mean(h - mean(h)), "", "once: centre("),
    "centre: taken off its signal": (lambda m, h: m.w((u := h + m.v(h)) - (u - mean(u))), "v", CANCEL),
    "centre: not all of the mean": (lambda m, h: m.w(h - 0.999 * mean(h)), "", CANCEL),
    "centre: of a part": (lambda m, h: m.w(h - mean(halves(h)[0])), "", "refused: is used both whole and in parts"),
    "centre: of another signal": (lambda m, h: m.w(h - mean(torch.tanh(h))), "", "lacks: centre("),
    "centre: of a matrix": (lambda m, h: F.linear(h, m.w.weight - mean(m.w.weight)), "",
        "refused: a function of a matrix"),
    "clip: at zero": (lambda m, h: m.w(h.clamp(min=0)), "", "once: relu(", "lines: "),
    "clip: far": (lambda m, h: m.w(h.clamp(-50, 50)), "", "lacks: relu(", "lacks: silu(", "lacks: tanh(", "stands: "),
    "clip: both sides": (lambda m, h: m.w(h.clamp(-1, 1)), "", "lacks: relu("),
    "clip: both halves": (lambda m, h: m.w(h.clamp(min=0) + h.clamp(max=0)), "", "has: = W[b,a] inp[a]"),
    "clip: above": (lambda m, h: m.w(h.clamp(max=0)), "", "has: relu("),
    "clip: above, of the negative": (lambda m, h: m.w(-(-h).clamp_max(0)), "", "has: relu("),
    "clip: a tensor": (lambda m, h: m.w(h.clamp(min=torch.zeros(()))), "", "has: relu("),
    "clip: below zero": (lambda m, h: m.w(h.clamp(min=-0.1)), "", "has: silu(", "stands: "),
    "clip: steep": (lambda m, h: m.w((9 * h).clamp(-1, 1)), "", "has: tanh(", "stands: "),
    "clip: above zero": (lambda m, h: m.w(h.clamp(min=0.5)), "", f"refused: clamp: {NO_CLASS}"),
    "clip: positive": (lambda m, h: m.w(h.clamp(0, 0.2)), "", f"refused: clamp: {NO_CLASS}"),
    "clip: by size": (lambda m, h: m.w(h.clamp(max=1 / h.shape[-1])), "", f"refused: {BY_SIZE}"),
    "clip: by size, positive": (lambda m, h: m.w(h.clamp(0, 1 / h.shape[-1])), "", f"refused: {BY_SIZE}"),
    "clip: by a signal": (lambda m, h: m.w(h.clamp_min(h.flip(0) + 0.1)), "", f"refused: {NO_CLASS}"),
    # functions
    "exp": (lambda m, h: m.w(h).exp(), "", "has: exp("),
    "beside those of the tables": (lambda m, h: m.w(F.logsigmoid(h)) * F.hardsigmoid(h), "", "has: silu(",
        "has: sigmoid("),
    "cos": (lambda m, h: torch.cos(m.w(h)), "", f"refused: cos: {NO_CLASS}"),
    # a signal named k, whose gradient is gk
    "names: gk behind k": (lambda m, h: m.gk(m.k(h)), "k gk", "answers: gk.weight=HIDDEN"),
    "names: k behind gk": (lambda m, h: m.k(m.gk(h)), "k gk", "answers: gk.weight=HIDDEN"),
    # entries in another order alone are of the size of a signal, also where they meet what other matrices make of it
    "order: rotary behind a norm": (lambda m, h: m.w(turned(m.norm(m.v(h)), angles(m, 1.5) + 0.1)), "v norm=rms",
        "once: rmsnorm(", "answers: w.weight=HIDDEN"),
    "order: swapped": (lambda m, h: m.w(torch.cat(halves(m.v(h))[::-1], -1)), "v", "has: w["),
    "order: swapped, and two": (lambda m, h: m.u(torch.cat(halves(y := m.v(h))[::-1], -1)) * m.w(y) + y, "u v",
        "has: w["),
    "order: a half is lost": (lambda m, h: m.w((y := m.v(h)) + torch.cat([-halves(y)[0], halves(y)[1]], -1)), "v",
        "refused: is not a rotation"),
    "order: halves meet": (lambda m, h: m.w((y := m.v(h)) + torch.cat(halves(y)[::-1], -1)), "v",
        "refused: is not a rotation"),
    "order: signs are summed": (
        lambda m, h: m.w(torch.cat([-halves(y := torch.relu(m.v(h)))[0], halves(y)[1]], -1).sum(-1) * h), "v",
        "refused: a copy whose entries are partly negated"),
    "order: halves of a norm, multiplied": (lambda m, h: m.w(m.wide(torch.mul(*halves(m.norm(m.v(h)))))),
        "v norm=rms wide=N//2>N", SLICE),
    "order: a half of a norm": (lambda m, h: m.w(m.wide(halves(m.norm(m.v(h)))[0])), "v norm=rms wide=N//2>N", SLICE),
    # whichever two of three factors meet first
    "signals and a cube: a matrix": (lambda m, h: torch.einsum("bio,bi->bo",
        torch.einsum("zio,bz->bio", m.cube, torch.tanh(m.v(h))), h), "cube=N,N,N v", "has: v[", "lacks: scale", CUBE),
    "signals and a cube: another": (lambda m, h: torch.einsum("bzo,bz->bo",
        torch.einsum("zio,bi->bzo", m.cube, h), torch.tanh(m.v(h))), "cube=N,N,N v", "has: v[", "lacks: scale", CUBE),
    # a mixture of matrices was a signal of size one, with a multiplier N^-1 behind it
    **{
        f"mixed by {what}: {way.__name__}": (lambda m, h, way=way, f=f: way(m, h, f(m, h)), parts, law, "multipliers: ")
        for way in (mix_matrices, mix_outputs)
        for what, f, parts, law in (
            ("a router", lambda m, h: torch.sigmoid(m.r(h)), "e=4,N,N r=N>4", "answers: e=HIDDEN r.weight=READOUT"),
            ("shares", lambda m, h: m.s.softmax(0).expand(len(h), -1), "e=4,N,N s=4,", "answers: e=HIDDEN s=INPUT"),
        )
    },
    "constants: of two calls": (lambda m, h: 0.5 * m.w(h) * (1 + torch.tanh(m.w(h))), "", "lacks: silu("),
    "constants: gelu": (lambda m, h: 0.5 * (x := m.w(h)) * (1 + torch.tanh(0.8 * (x + 0.045 * x**3))), "",
        "once: gelu("),
    "constants: one more": (lambda m, h: (m.w(h) + 1) * F.silu(h), "", "once:  + "),
    "a number behind a learned factor is that of the sum before it": (
        lambda m, h: h * torch.sigmoid(m.tau * (m.w(h) * m.v(h)).sum(-1, keepdim=True) / m.n), "v tau=1,",
        "lines: model: the module multiplies by N^-1 here (scale in the equations)"),
}  # fmt: skip
REFUSED = {
    "cumsum: no rule": lambda m, h: m.w(h).cumsum(-1),
    "sort: no rule": lambda m, h: m.w(h).sort(-1).values,
    "gt: no rule for this call; replace the selection": lambda m, h: m.w(h) + (h > 0).double().mean(),
    "randn_like: noise in evaluation mode": lambda m, h: m.w(F.normalize(h) + torch.randn_like(h)),
    "branches on a computed tensor": lambda m, h: m.w(h) if h.sum() > 0 else h,
    "branches on a computed tensor ": lambda m, h: m.w(h) if bool((h > 0).any()) else h,
    "a difference of two signals of one law may": lambda m, h: m.w(h) - m.w(h),
    "a difference of two signals of one law": lambda m, h: torch.relu(m.w(h)) - torch.relu(m.w.weight @ h.T).T * 1,
    "a sum that cancels": lambda m, h: h + -torch.ones(m.n) * h,
    "large entries become rarer": lambda m, h: m.w(h) * F.one_hot(torch.tensor(0), m.n),
    "a function of weights alone cannot be written": lambda m, h: m.w(h) * m.w.weight[0],
    "only partly assigned": lambda m, h: h * written(m.w(h), m.n // 2),
    "entries differ along an axis that grows": lambda m, h: F.linear(h, torch.ones(m.n, m.n).triu()),
    "mv: a constant whose entries differ along": lambda m, h: m.unit(h),
    "no function of the equations has its values": lambda m, h: torch.log(m.w(h) ** 2 + 1),
    "sizes .* no multiple of one axis": lambda m, h: m.q(m.p(h)),
    "output changes with the order": lambda m, h: m.w(h).topk(m.n, -1).values,
    "where no single parameter can absorb it in all of its uses": lambda m, h: h + m.w(h / m.n),
    "used both whole and in parts": lambda m, h: torch.cat([m.w(h)[:, : m.n // 2], h[:, m.n // 2 :]], -1),
    "in place through a view": lambda m, h: [y := m.w(h).clone(), y.view(-1).mul_(2.0), y * 1.0][-1],
}
SPELLINGS |= {why: (f, "p=N>N+7 q=N+7>N unit=unit", f"refused: {why.strip()}") for why, f in REFUSED.items()}
"""Something between two layers, the parts that it needs, and what it is read as."""


@pytest.mark.parametrize("how", SPELLINGS)
def test_spellings_and_readings(how):
    between, parts, *reading = SPELLINGS[how]
    check(of(between, parts), *reading)


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


UNIT = "1,N^(-1/2)"
"""The law of a matrix behind a signal of unit length."""
NORMS = {
    "rms: powers": (lambda y: y / torch.pow(y, 2).sum(-1, keepdim=True).pow(0.5), UNIT),
    "rms: guarded": (lambda y: y * torch.rsqrt(y.square().sum(-1, keepdim=True) + 1e-6), UNIT),
    "rms: clipped": (lambda y: y / y.norm(dim=-1, keepdim=True).clamp(min=1e-12), UNIT),
    "rms: linalg": (lambda y: y / torch.linalg.vector_norm(y, dim=-1, keepdim=True), UNIT),
    "rms: times n": (lambda y: y * y.shape[-1] / y.norm(dim=-1, keepdim=True), "N^-1,N^(-3/2)"),
    "rms: times two": (lambda y: 2 * y / (3 * y.norm(dim=-1, keepdim=True)), UNIT),
    "rms: away from its clip": (lambda y: clipped(y, min=0.01), "HIDDEN"),
    "layer: times two": (lambda y: 2 * (y - mean(y)) / y.std(-1, keepdim=True), "HIDDEN"),
    "layer: var": (lambda y: (y - mean(y)) * (y.var(-1, unbiased=False, keepdim=True) + 1e-5).rsqrt(), "HIDDEN"),
    "layer: std": (lambda y: (y - mean(y)) * (1 / (y.std(-1, keepdim=True) + 1e-5)), "HIDDEN"),
    "layer: correction": (lambda y: (y - mean(y)) / torch.var(y, -1, correction=1, keepdim=True).sqrt(), "HIDDEN"),
}


@pytest.mark.parametrize("how", NORMS)
def test_a_norm_that_is_written_out_is_a_norm(how):
    norm, law = NORMS[how]
    build = of(lambda m, h: m.v(norm(m.w(h))), "v")
    check(build, f"once: {how.partition(':')[0]}norm(", "notes: ", f"answers: v.weight={law}")


def scored(m, i):
    """Scores of places that are told apart: both sums take the factor up, where the module divides their sum."""
    h = m.e(i)
    places = (m.q(h) @ m.r(torch.tanh(m.p)).T).flip(-1)
    return m.o(((m.q(h) @ m.k(h).transpose(-1, -2) + places) / h.shape[-1] ** 0.5).softmax(-1) @ m.v(h))


def remembered(m, i):
    """Keys of unit length write to a matrix, from which queries of unit length read, times a learned temperature."""
    h = m.e(i)
    q, k, v = F.normalize(m.q(h), dim=-1), F.normalize(m.k(h), dim=-1), m.v(h)
    one, two = (torch.einsum("bk,bv->bkv", k[:, t], v[:, t]) for t in (0, 1))
    return m.o(h[:, 1] + torch.einsum("bk,bkv->bv", m.t.exp() * q[:, 1], one + two))


def classed(m, x):
    """A class token with a place of its own, beside tokens; the output has no logits."""
    h = torch.cat([(m.token + m.place).expand(len(x), -1, -1), m.inp(x)], 1)
    return SimpleNamespace(logits=None, last_hidden_state=m.head(torch.relu(m.w(h)).mean(1)))


def tabled(m, x):
    """Rotary positions of neighbours, by a frozen table that has each angle once (RoFormer)."""
    y, angles = m.v(m.inp(x)).view(len(x), -1, 8), m.angles(torch.arange(3))[:, None]
    cos, sin = (torch.stack([t, t], -1).flatten(-2) for t in angles.chunk(2, -1))
    turned = torch.stack([-y[..., 1::2], y[..., ::2]], -1).reshape(y.shape)
    return m.head(m.w((y * cos + turned * sin).flatten(1)))


def table(z):
    steps = torch.arange(3.0)[:, None] / torch.tensor([1.0, 4.0, 16.0, 64.0])
    return nn.Embedding.from_pretrained(torch.cat([steps.cos(), steps.sin()], -1))


PLACED = {"first": lambda z: nn.Conv1d(2, z["N"], 3, padding=1), "last": lambda z: nn.Conv1d(z["N"], 4, 3, padding=1)}
SHUFFLED = {"first": lambda z: nn.Conv2d(3, 4 * z["N"], 1), "last": lambda z: nn.Conv2d(z["N"], 3, 1)}
MODULES = {
    "an output with the places of the input": (
        net(lambda m, x: m.last(torch.relu(m.first(x))), "", torch.randn(2, 2, 8), **PLACED),
        "answers: last.weight=READOUT"),
    "channels become places": (
        net(lambda m, x: m.last(torch.relu(F.pixel_shuffle(m.first(x), 2))), "", torch.randn(2, 3, 3, 3), **SHUFFLED),
        "answers: last.weight=READOUT"),
    "a factor of a sum of products is one of each": (
        net(scored, "e=9|N p=4,N o=N>9+ q=N>N k r=N>N v", torch.arange(8).reshape(2, 4)),
        "answers: [qkrv].weight=HIDDEN"),
    "a factor is taken up where a later product sums": (
        net(remembered, "e=9|N o=N>9+ t=, q=N>N k v", torch.arange(8).reshape(4, 2)), "once: = scale "),
    "a sum of weights beside signals is a signal": (
        net(classed, "token=1,1,N place=1,1,N inp=6>N+ w=N>N+ head=N>3+", torch.randn(2, 4, 6)),
        "answers: token=INPUT place=INPUT w.weight=HIDDEN head.weight=READOUT"),
    "rotary positions from a table": (net(tabled, "inp head w v", torch.randn(3, 5), angles=table), "has: w["),
}  # fmt: skip


@pytest.mark.parametrize("how", MODULES)
def test_modules_and_readings(how):
    build, *reading = MODULES[how]
    model = check(build, *reading)
    if "places of the input" in how:  # what is trained takes an input that has an axis more than the output
        assert re.search(r"f += \w+\[\w,x\] data\[\w,x\]", model.text)
    if "sum of products" in how:
        assert {*multipliers(model).values()} == {"N^-1"}
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
    "in order": lambda m, y: torch.cat(halves(y), -1),
}


@pytest.mark.parametrize("how", MET)
@pytest.mark.parametrize("kind", ORDERS)
def test_a_signal_that_meets_its_own_entries_in_another_order(kind, how):
    """Swapped halves were read as the signal itself; rotary positions are, on average, and so are halves in order."""
    refused = "refused: permuted copy of itself|a copy whose entries are partly negated"
    reading = "has: v[" if kind in ("rotated", "in order") else refused
    check(of(lambda m, h: MET[how](m, y := m.v(h), ORDERS[kind](m, y)), "v"), reading)


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
    soft = of(lambda m, h: F.softplus(m.w(F.relu6(h))))
    soft = check(soft, "has: silu(", "lacks: tanh(", "stands: at the recorded values")
    assert any("recorded" in str(x) for x in soft.notes)  # no limit is computed of it, which is of values
    module = of(lambda m, h: torch.atan(m.w(h)))
    check(module, "has: tanh(")
    table = replace(FUNCTIONS["tanh"], name="atan", torch="atan", powers=frozenset({0, 2}), positive=True)
    monkeypatch.setitem(FUNCTIONS, "atan", table)
    check(module, "has: tanh(")
    monkeypatch.setitem(FUNCTIONS, "tanh", replace(table, name="tanh"))
    check(module, r"refused: contradict the class that functions\.toml gives")


def test_matrices_of_experts_that_are_merged_have_the_numbers_of_experts():
    """Where their number stays; where it grows, no output of one expert is a signal that must stay."""
    run = lambda way: lambda m, x: m.head(way(m, h := m.inp(x), torch.softmax(m.r(h), -1)))  # noqa: E731
    builds = [net(run(way), "inp head r=N>M e=M,N,N") for way in (mix_matrices, mix_outputs)]
    plans = [plan(build, "N=16,M=4", "N=64,M=4", lr=1e-3, eps=1e-8, std=0.02) for build in builds]
    one, other = ({name: x.factor for name, x in p["e"].settings.items()} for p in plans)
    assert one == other and (one["init_std"], one["lr"]) == (1 / 2, 1 / 4)
    check(builds[0], "lacks: scale", "lacks: alpha")
    check(builds[1], "has: alpha")  # there outputs are signals


@pytest.mark.parametrize("values", [torch.linspace(-1, 1, 4), torch.arange(4.0)], ids=["symmetric", "positive"])
@pytest.mark.parametrize("shares", [lambda z: z.softmax(-1), lambda z: z - z.mean(-1, keepdim=True)])
def test_a_sum_of_shares_times_constants_is_not_that_of_shares(shares, values):
    """Without the constants it is one, or zero, and has no gradient: an expected value, as of a categorical head."""
    headless = net(lambda m, x: (shares(m.z(m.inp(x))) * values).sum(-1, keepdim=True), "inp z=N>4+")
    assert READOUT in {*derive_powers(check(headless, "has: constants", "answers: inp.weight=INPUT")).values()}
