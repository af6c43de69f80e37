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
from scaling_algebra.verify.tracing import Unreadable, entries, traced
from scaling_algebra.verify.tracing.entries import classified
from scaling_algebra.verify.tracing.gradients import UNREACHED

from .. import shared
from .test_tracing import HIDDEN, INPUT, READOUT, Base, chosen, multipliers, of, powers, with_experts, written

ALIKE = {
    "out = m.w(h)": lambda m, h: m.w(h),
    "ellipsis": lambda m, h: torch.einsum("...i,oi->...o", h, m.w.weight),
    "keywords": lambda m, h: F.linear(input=h, weight=m.w.weight),
    "letters alone": lambda m, h: torch.einsum("bi,oi", h, m.w.weight),
    "added into zeros": lambda m, h: torch.zeros_like(h).add_(m.w(h)),
    "written in parts": lambda m, h: torch.relu(written(m.w(h), m.n // 2, m.n)),
}


@pytest.mark.parametrize("how", ALIKE)
def test_ways_to_write_a_product(how):
    model = traced(of(ALIKE[how]))
    assert model.error < 1e-12
    assert {HIDDEN} == {v for k, v in powers(model, "N=1").items() if k[0] == "w"}


def test_a_stop_of_the_gradient_is_read():
    """No gradient passes it; a function of a signal and of the same signal stopped is none of the signal alone."""
    model = traced(of(lambda m, h: h + m.w(h).detach()))
    assert model.lines == [f"w.weight: {UNREACHED}"] and "stopped(" in model.text
    half = traced(of(lambda m, h: h * h.detach().sigmoid()))  # with its gradient it is silu
    assert half.text.count("stopped(") == 1 and "silu" not in half.text and half.error < 1e-12


def test_differences_that_cancel_are_refused():
    """Through a stop of the gradient, as straight-through estimators have them, and through sums."""
    for way in (lambda one, two: one + (two - one).detach(), lambda one, two: two + one - one.detach()):
        with pytest.raises(Unreadable, match="the same signal stopped cancel"):
            traced(of(lambda m, h, way=way: way(m.w(h), torch.tanh(h))))
    assert "stopped(" in traced(of(lambda m, h: m.w(h) + m.w(h).data.tanh())).text
    assert traced(of(lambda m, h: h - m.w(h) + torch.tanh(h))).error < 1e-12


def residual(m, x):
    return x + torch.relu(m.v(x))


def without_gradients(m, h):
    with torch.no_grad():
        y = torch.tanh(m.w(h))
    return m.w(h) + m.v(y)


@pytest.mark.parametrize(
    "between",
    [
        without_gradients,
        lambda m, h: m.w(h) + m.v(torch.no_grad()(lambda: torch.tanh(m.w(h)))()),
        lambda m, h: m.w(torch.tanh(h + m.c.data)) + m.c,
        lambda m, h: m.w(torch.tanh(h + m.c.detach())) + m.c,
    ],
)
def test_what_trains_elsewhere_is_stopped_here(between):
    """It counted as trained here, too."""
    more = {"c": lambda n: nn.Parameter(torch.randn(n)), "v": lambda n: nn.Linear(n, n, bias=False)}
    model = traced(of(between, **more))
    assert model.error < 1e-12 and model.text.count("stopped(") == 1 and not model.network.frozen


def test_a_matrix_that_is_stopped_here_and_trains_elsewhere_is_refused():
    for stop in (lambda w: w.data, lambda w: w.detach(), torch.no_grad()(lambda w: w.T.clone())):
        with pytest.raises(Unreadable, match="stops the gradient of a matrix that trains elsewhere"):
            traced(of(lambda m, h, stop=stop: m.w(F.linear(h, stop(m.w.weight)))))
        alone = traced(of(lambda m, h, stop=stop: F.linear(h, stop(m.w.weight))))
        assert alone.network.frozen == {"w.weight"} and "stopped(" not in alone.text


TAKEN_OFF = {
    "a bias": (lambda m, h: m.c + m.w(h) - m.c, "w[b] = W[b,a] inp[a] head[e] = Head[e,b] w[b]"),
    "before": (lambda m, h: (m.w(h) - m.c) + m.c, "w[b] = W[b,a] inp[a] head[e] = Head[e,b] w[b]"),
    "of both": (lambda m, h: m.w((h + m.v(h)) - (h - torch.tanh(h))), "h[a] = v[a] + h_tanh[a]"),
    "in part": (lambda m, h: m.w(torch.tanh(2 * (h + m.v(h)) - h)), "h[a] = inp[a] + v[a]"),
    "a layer": (lambda m, h: m.w(residual(m, h) - h), "w[b] = W[b,a] h_relu[a]"),
    "in the middle": (lambda m, h: m.w(torch.tanh(h - residual(m, h))), "h_tanh[a] = tanh(h_relu[a])"),
}


@pytest.mark.parametrize("how", TAKEN_OFF)
def test_what_is_added_and_taken_off_again_is_in_no_equation(how):
    """Through sums the equations had it twice."""
    between, equation = TAKEN_OFF[how]
    more = {"c": lambda n: nn.Parameter(torch.randn(n)), "v": lambda n: nn.Linear(n, n, bias=False)}
    model = traced(of(between, **more))
    assert model.error < 1e-12 and equation in " ".join(model.text.split())


@pytest.mark.parametrize(
    "between",
    [
        lambda m, h: h - h,
        lambda m, h: (m.w(h) + torch.tanh(h)) - m.w(h),
        lambda m, h: (torch.relu(m.w(h)) + h) - torch.relu(m.v(h)),
        lambda m, h: (h + 1) - h,
        lambda m, h: torch.relu(m.w(h)) + 0.5 * -torch.relu(m.v(h)),
    ],
)
def test_a_difference_within_a_sum_is_refused_as_one_alone(between):
    with pytest.raises(Unreadable, match=r"may cancel|a sum that cancels"):
        traced(of(between, v=lambda n: nn.Linear(n, n, bias=False)))


def test_a_stop_within_a_function_cancels_too():
    for f in (torch.relu, lambda y: F.rms_norm(y, y.shape[-1:])):
        with pytest.raises(Unreadable, match="the same signal stopped cancel"):
            traced(of(lambda m, h, f=f: f(y := m.w(h)) + torch.tanh(h) - f(y.detach())))
        assert "stopped(" in traced(of(lambda m, h, f=f: f(y := m.w(h)) + torch.tanh(h) + f(y.detach()))).text


def test_exp_is_read():
    assert "exp(" in traced(of(lambda m, h: m.w(h).exp())).text


def test_a_vector_that_a_matrix_acts_on_is_no_readout_of_it():
    t = {"t": lambda n: nn.Parameter(torch.randn(n)), "w": lambda n: nn.Linear(n, n, bias=False)}
    answer = powers(traced(of(lambda m, h: m.w(m.t) + torch.relu(h), **t)), "N=1")
    assert answer["t"] == INPUT and answer["w.weight"] == HIDDEN


def test_a_matrix_that_sums_shares_of_a_softmax_is_larger_by_their_number():
    model = traced(of(lambda m, h: torch.relu(m.w(h.softmax(-1)))))
    answer = powers(model, "N=1")
    assert answer["w.weight"] == ("N^(1/2)", "1") and answer["head.weight"] == READOUT


def test_functions_are_told_apart_by_their_values(monkeypatch):
    assert classified(lambda x: x * torch.sigmoid(1.702 * x)) == "silu"
    assert classified(lambda x: F.leaky_relu(x)) == "relu" and classified(torch.erf) == "tanh"
    assert [classified(f) for f in (torch.cos, F.softplus, F.mish, torch.square)] == [""] * 4
    wide = {**FUNCTIONS, "mine": replace(FUNCTIONS["silu"], powers=frozenset({1, 2, 3}))}
    monkeypatch.setattr(entries, "FUNCTIONS", wide)
    monkeypatch.setattr(entries, "NAMES", ("mine",))
    assert classified(F.mish) == "mine" and classified(torch.sinh) == classified(lambda x: torch.exp(x) - 1) == ""


def test_a_vector_of_unit_length_is_a_norm():
    read = traced(of(lambda m, h: m.v(F.normalize(m.w(h), dim=-1)), v=lambda n: nn.Linear(n, n)))
    assert read.text.count("rmsnorm(") == 1 and read.error < 1e-12


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
    read = traced(of(lambda m, h: m.v(NORMS[how](m.w(h))), v=lambda n: nn.Linear(n, n)))
    assert read.text.count(f"{how.split()[0]}norm(") == 1 and read.error < 1e-12 and not read.notes
    own = re.search(r'multiplied = \{ V = "(.*)" \}', read.text)  # of a length the module multiplies by a power
    answers = {"N^(-1/2)": ("1", "N^(-1/2)"), "N^(1/2)": ("N^-1", "N^(-3/2)")}
    assert powers(read, "N=1")["v.weight"] == (answers[own[1]] if own else HIDDEN)


@pytest.mark.parametrize("before", [False, True])
def test_a_number_before_gates_that_are_divided_by_their_sum(before):
    """It is in the sum, too, or in what is divided by it alone."""

    def between(m, h):
        w, i = chosen(m, h, torch.sigmoid)
        y = 2.5 * w
        w = y / ((y if before else w).sum(-1, keepdim=True) + 1e-20)
        return sum((w * (i == e)).sum(-1, keepdim=True) * expert(h) for e, expert in enumerate(m.experts))

    model = traced(with_experts(between, sparse=True))
    assert model.error < 1e-12 and [dict(own) for _, own in model.factors.values()] == [{"K": -1}]


@pytest.mark.parametrize("guard", [0, 1e-9])
def test_gates_are_divided_by_the_sum_of_all_before_the_best_are_chosen(guard):
    """Each is 1/M, however many are chosen; divided once more, by the sum of the chosen, each is 1/K."""

    def between(m, h, again=False):
        p = m.router(h).sigmoid()
        top, at = (p / (p.sum(-1, keepdim=True) + guard)).topk(m.k)
        top = top / top.sum(-1, keepdim=True) if again else top
        return sum((top * (at == e)).sum(-1, keepdim=True) * expert(h) for e, expert in enumerate(m.experts))

    once = traced(with_experts(between, sparse=True))
    twice = traced(with_experts(lambda m, h: between(m, h, True), sparse=True))
    assert max(once.error, twice.error) < 1e-8
    assert [[dict(own) for _, own in x.factors.values()] for x in (once, twice)] == [[{"M": -1}], [{"K": -1}]]


def test_a_norm_of_other_signals_is_none():
    """A planted fault: what is divided is not what the norm is of; and a norm that is not Euclidean."""
    with pytest.raises(Unreadable, match="norm: no rule for this call"):
        traced(of(lambda m, h: m.w(h) / h.norm(dim=-1, keepdim=True)))
    with pytest.raises(Unreadable, match="norm: no rule for this call"):
        traced(of(lambda m, h: h / h.norm(p=1, dim=-1, keepdim=True)))


def test_a_norm_that_is_clipped_is_none():
    """But of a length that stays away from the clip, as all recorded ones do."""
    between = lambda m, h, **clip: m.w((y := torch.relu(h)) / y.square().mean(-1, keepdim=True).sqrt().clamp(**clip))  # noqa: E731
    for clip in ({"min": 10}, {"max": 0.01}):
        with pytest.raises(Unreadable, match=r"no rule for this call|no equation says this"):
            traced(of(lambda m, h, clip=clip: between(m, h, **clip)))
    read = traced(of(lambda m, h: between(m, h, min=0.01)))  # as a small number that is added to the mean of squares
    assert read.text.count("rmsnorm(") == 1


def test_an_output_with_the_places_of_the_input():
    """What is trained takes an input that has an axis more than the output, such as its channels."""

    def build(sizes):
        first, last = nn.Conv1d(2, sizes["N"], 3, padding=1), nn.Conv1d(sizes["N"], 4, 3, padding=1)
        return nn.Sequential(first, nn.ReLU(), last), torch.randn(2, 2, 8)

    net = traced(build)
    assert re.search(r"f += \w+\[\w,x\] data\[\w,x\]", net.text) and powers(net, "N=1")["2.weight"] == READOUT


def test_a_factor_of_a_sum_of_products_is_one_of_each():
    """Scores of places that are told apart: both sums take the factor up, where the module divides their sum."""

    class ScoredPlaces(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.e, self.p, self.o, self.n = nn.Embedding(9, n), nn.Parameter(torch.randn(4, n)), nn.Linear(n, 9), n
            self.q, self.k, self.r, self.v = (nn.Linear(n, n, bias=False) for _ in range(4))

        def forward(self, i):
            h = self.e(i)
            places = (self.q(h) @ self.r(torch.tanh(self.p)).T).flip(-1)
            scores = (self.q(h) @ self.k(h).transpose(-1, -2) + places) / self.n**0.5
            return self.o(scores.softmax(-1) @ self.v(h))

    net = traced(lambda sizes: (ScoredPlaces(sizes["N"]), torch.arange(8).reshape(2, 4)))
    assert net.error < 1e-12 and {str(p) for p in multipliers(net, "N=1").values()} == {"N^-1"}
    assert [powers(net, "N=1")[f"{x}.weight"] for x in "qkrv"] == [HIDDEN] * 4


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


def test_a_factor_is_taken_up_where_a_later_product_sums():
    net = traced(lambda sizes: (UnitMemory(sizes["N"]), torch.arange(8).reshape(4, 2)))
    assert net.error < 1e-12 and net.text.count("= scale ") == 1 and [*net.factors] == ["scale"]
    d = derive(ray="N=1", optimizer="adam", parameterization="mup", network=net.network, epsilon="negligible")
    assert str(1 / d.scaling.multipliers["scale"]) == "N^-1"
    assert [(str(d[x].init_std), str(d[x].lr)) for x in ("q.weight", "k.weight", "v.weight")] == [HIDDEN] * 3
    with pytest.raises(Unreadable, match="beside no one tensor in all of its uses"):  # nothing takes it up
        traced(of(lambda m, h: torch.tanh(F.normalize(m.w(h), dim=-1))))


class ClassedTokens(nn.Module):
    """A class token with a place of its own, beside tokens; its output has no logits."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.token, self.place = nn.Parameter(torch.randn(1, 1, n)), nn.Parameter(torch.randn(1, 1, n))
        self.inp, self.w, self.head = nn.Linear(6, n), nn.Linear(n, n), nn.Linear(n, 3)

    def forward(self, x):
        h = torch.cat([(self.token + self.place).expand(len(x), -1, -1), self.inp(x)], 1)
        return SimpleNamespace(logits=None, last_hidden_state=self.head(torch.relu(self.w(h)).mean(1)))


def test_a_sum_of_weights_beside_signals_is_a_signal():
    net = traced(lambda sizes: (ClassedTokens(sizes["N"]), torch.randn(2, 4, 6)))
    answer = powers(net, "N=1")
    assert net.error < 1e-12 and answer["token"] == answer["place"] == INPUT
    assert answer["w.weight"] == HIDDEN and answer["head.weight"] == READOUT


def halves(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x[:, : x.shape[-1] // 2], x[:, x.shape[-1] // 2 :]


def test_halves_of_a_norm_that_are_put_together_again():
    """Rotary positions behind a norm of queries; halves that meet each other are refused."""
    more = {"v": lambda n: nn.Linear(n, n), "norm": nn.RMSNorm, "u": lambda n: nn.Linear(n // 2, n, bias=False)}

    def rotated(m, h):
        y, angles = m.norm(m.v(h)), torch.linspace(0.1, 1.5, m.n // 2).repeat(2)
        first, second = halves(y)
        return m.w(y * angles.cos() + torch.cat([-second, first], -1) * angles.sin())

    net = traced(of(rotated, **more))
    assert net.text.count("rmsnorm(") == 1 and net.error < 1e-12 and powers(net, "N=1")["w.weight"] == HIDDEN
    for apart in (lambda a, b: a * b, lambda a, b: a + torch.tanh(b), lambda a, b: a):
        with pytest.raises(Unreadable, match="a slice along an axis that grows, of a func rmsnorm"):
            traced(of(lambda m, h, apart=apart: m.w(m.u(apart(*halves(m.norm(m.v(h)))))), **more))


def turned(y, angles):
    first, second = halves(y)
    return y * angles.cos() + torch.cat([-second, first], -1) * angles.sin()


def parts_turned(y, angles):
    (first, second), (here, there) = halves(y), halves(angles[None])
    cos, sin = here.cos(), there.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def test_rotary_positions_from_a_table():
    """Of neighbours, by a frozen table that has each angle once (RoFormer)."""

    def run(m, h):
        y, angles = m.v(h).view(len(h), -1, 8), m.angles(torch.arange(3))[:, None]
        cos, sin = (torch.stack([t, t], -1).flatten(-2) for t in angles.chunk(2, -1))
        turned = torch.stack([-y[..., 1::2], y[..., ::2]], -1).reshape(y.shape)
        return m.w((y * cos + turned * sin).flatten(1))

    def build(sizes):
        more = {"v": lambda n: nn.Linear(n, n, bias=False), "angles": lambda n: nn.Embedding(3, 8)}
        model = of(run, **more)(sizes)
        steps = torch.arange(3.0)[:, None] / torch.tensor([1.0, 4.0, 16.0, 64.0])
        model.angles.weight = nn.Parameter(torch.cat([steps.cos(), steps.sin()], -1), requires_grad=False)
        return model, torch.randn(3, 5)

    assert traced(build).error < 1e-12


MET = {
    "product": lambda m, y, other: m.v(y * other),
    "sum of products": lambda m, y, other: m.v(torch.tanh((y * other).mean(-1, keepdim=True)) + y),
    "functions": lambda m, y, other: m.v(torch.tanh(y) * torch.tanh(other)),
    "sum": lambda m, y, other: m.v(y + torch.tanh(other)),
    "behind one matrix": lambda m, y, other: m.v(m.w(y) * m.w(other)),
}


@pytest.mark.parametrize("how", MET)
@pytest.mark.parametrize("kind", ["swapped", "signs", "rotated", "in parts", "in order"])
def test_a_signal_that_meets_its_own_entries_in_another_order(kind, how):
    """Swapped halves were read as the signal itself; rotary positions are, on average, and so are halves in order."""
    other = {
        "swapped": lambda m, y: torch.cat(halves(y)[::-1], -1),
        "signs": lambda m, y: torch.cat([-halves(y)[0], halves(y)[1]], -1),
        "rotated": lambda m, y: turned(y, torch.linspace(0, 1, m.n // 2).repeat(2)),
        "in parts": lambda m, y: parts_turned(y, torch.linspace(0, 1, m.n // 2).repeat(2)),
        "in order": lambda m, y: torch.cat(halves(y), -1),
    }[kind]
    build = of(lambda m, h: MET[how](m, y := m.v(h), other(m, y)), v=lambda n: nn.Linear(n, n, bias=False))
    if kind in ("rotated", "in parts", "in order"):
        assert traced(build).error < 1e-12
        return
    with pytest.raises(Unreadable, match=r"its own entries in another order|a part of a signal with another sign"):
        traced(build)


def test_entries_in_another_order_alone_are_of_the_size_of_a_signal():
    """Also where they meet what is made of the signal by other matrices; a half that a sum loses is refused."""
    more = {x: lambda n: nn.Linear(n, n, bias=False) for x in "uv"}
    for between in (
        lambda m, y, other: m.w(other),
        lambda m, y, other: other + torch.tanh(m.w(y)),
        lambda m, y, other: m.u(other) * m.w(y) + y,
    ):
        swap = lambda m, h, between=between: between(m, y := m.v(h), torch.cat(halves(y)[::-1], -1))  # noqa: E731
        assert traced(of(swap, **more)).error < 1e-12
    for lost in (lambda a, b: (-a, b), lambda a, b: (b, a)):
        with pytest.raises(Unreadable, match="which is no rotation"):
            traced(of(lambda m, h, lost=lost: m.w((y := m.v(h)) + torch.cat(lost(*halves(y)), -1)), **more))
    with pytest.raises(Unreadable, match="a part of a signal with another sign"):
        signs = lambda m, h: m.w(torch.cat([-halves(y := torch.relu(m.v(h)))[0], halves(y)[1]], -1).sum(-1) * h)  # noqa: E731
        traced(of(signs, **more))


def test_channels_become_places():
    def build(sizes):
        n = sizes["N"]
        return nn.Sequential(nn.Conv2d(3, 4 * n, 1), nn.PixelShuffle(2), nn.ReLU(), nn.Conv2d(n, 3, 1)), torch.randn(
            2, 3, 3, 3
        )

    net = traced(build)
    assert net.error < 1e-12 and powers(net, "N=1")["3.weight"] == READOUT


def test_a_limit_of_another_function_is_no_limit_of_the_module(tmp_path):
    """Softsign has the powers of tanh, and other values."""
    layers = "nn.Linear(6, s['N'], bias=False), {}, nn.Linear(s['N'], 1, bias=False)"
    defs = [f"def {x.lower()}(s): return nn.Sequential({layers.format(f'nn.{x}()')})" for x in ("Softsign", "Tanh")]
    (tmp_path / "m.py").write_text("\n".join(["from torch import nn", *defs]))
    asked = "study", "limit", "--ray", "N=1", "--optimizer", "sgd", "--parameterization", "mup", "--steps", 1, "--model"
    wrong, right = (shared.scalecalc(*asked, f"{tmp_path / 'm.py'}:{name}") for name in ("softsign", "tanh"))
    assert wrong.exit_code == 2 and "is read as tanh: its powers are the same, its values are not" in wrong.stderr
    assert right.exit_code == 0 and "0.0856" in right.stdout  # 0.1 E[f^2 + f'^2] is 0.0859


def test_a_clip_at_zero_is_relu():
    low = traced(of(lambda m, h: m.w(h.clamp(min=0)))), traced(of(lambda m, h: m.w(h.clamp_min(1e-6))))
    assert all(x.text.count("relu(") == 1 and x.error < 1e-12 for x in low)
    assert not low[0].notes and not low[1].notes
    for clip in ({"min": -50}, {"min": -1, "max": 1}):
        assert "relu(" not in traced(of(lambda m, h, clip=clip: m.w(h.clamp(**clip)))).text
    assert traced(of(lambda m, h: m.w(h.relu().clamp(min=0)))).text.count("relu(") == 1
    assert "= W[b,a] inp[a]" in traced(of(lambda m, h: m.w(h.clamp(min=0) + h.clamp(max=0)))).text


@pytest.mark.parametrize(
    ("clip", "read"),
    [
        (lambda h: h.clamp(max=0), "relu("),
        (lambda h: -(-h).clamp_max(0), "relu("),
        (lambda h: h.clamp(min=torch.zeros(())), "relu("),
        (lambda h: h.clamp(min=-0.1), "silu("),
        (lambda h: (9 * h).clamp(-1, 1), "tanh("),
        (lambda h: h.clamp_max(max=50), ""),
        (lambda h: h.clamp(min=0.5), "clamp: no function of the equations has its values"),
        (lambda h: h.clamp(0, 0.2), "clamp: no function of the equations has its values"),
        (lambda h: h.clamp(max=1 / h.shape[-1]), "clamp: its values change with the sizes"),
        (lambda h: h.clamp(0, 1 / h.shape[-1]), "clamp: its values change with the sizes"),
        (lambda h: h.clamp_min(h.flip(0) + 0.1), "no function of the equations has its values"),
    ],
)
def test_a_clip_is_the_function_that_its_values_are(clip, read):
    """It was left out wherever it was not at zero from below; a bound that was no number was an internal error."""
    build = of(lambda m, h: m.w(clip(h)))
    if " " in read:
        with pytest.raises(Unreadable, match=read):
            traced(build)
        return
    model = traced(build)
    assert model.error < 1e-12 and bool(read) == any(x in model.text for x in ("relu(", "silu(", "tanh("))
    assert read in model.text and (bool(model.network.stands) or read == "relu(")


def test_functions_beside_those_of_the_tables():
    read = traced(of(lambda m, h: m.w(F.logsigmoid(h)) * F.hardsigmoid(h)))
    assert "silu(" in read.text and "sigmoid(" in read.text and read.error < 1e-12


def test_a_signal_with_the_name_of_a_gradient_has_another():
    """The gradient of ``k`` is ``gk``."""
    more = {"k": lambda n: nn.Linear(n, n, bias=False), "gk": lambda n: nn.Linear(n, n, bias=False)}
    for between in (lambda m, h: m.gk(m.k(h)), lambda m, h: m.k(m.gk(h))):
        assert powers(traced(of(between, **more)), "N=1")["gk.weight"] == HIDDEN


def test_a_wrong_table_of_a_function_reads_no_module(monkeypatch):
    """A function goes by the class that its values have, whatever the tables declare of its name."""
    soft = traced(of(lambda m, h: F.softplus(m.w(F.relu6(h)))))
    assert "values that were recorded" in soft.network.stands  # no limit is computed of it, which is of values
    assert "silu(" in soft.text and "tanh(" not in soft.text and any("recorded" in str(x) for x in soft.notes)
    with pytest.raises(Unreadable, match="cos: no function of the equations has its values"):
        traced(of(lambda m, h: torch.cos(m.w(h))))
    module = of(lambda m, h: torch.atan(m.w(h)))
    assert "tanh(" in traced(module).text
    table = replace(FUNCTIONS["tanh"], name="atan", torch="atan", powers=frozenset({0, 2}), positive=True)
    monkeypatch.setitem(FUNCTIONS, "atan", table)
    assert "tanh(" in traced(module).text
    monkeypatch.setitem(FUNCTIONS, "tanh", replace(table, name="tanh"))
    with pytest.raises(Unreadable, match=r"not of the class that functions\.toml"):
        traced(module)


def experts(n):
    return nn.Parameter(torch.randn(4, n, n) * n**-0.5)


@pytest.mark.parametrize(
    "weights",
    [lambda m, h: torch.sigmoid(m.r(h)), lambda m, h: m.shares.softmax(0).expand(len(h), -1)],
    ids=["of a router", "learned"],
)
def test_matrices_that_signals_mix_are_those_that_act_one_by_one(weights):
    """The mixture was a signal of size one, with entries of size one and a multiplier N^-1 behind it."""
    more = {
        "e": experts,
        "r": lambda n: nn.Linear(n, 4, bias=False),
        "shares": lambda n: nn.Parameter(torch.zeros(4)),
    }
    ways = (
        lambda m, h: torch.einsum("bi,bio->bo", h, torch.einsum("bk,kio->bio", weights(m, h), m.e)),
        lambda m, h: torch.einsum("bk,bko->bo", weights(m, h), torch.einsum("bi,kio->bko", h, m.e)),
    )
    mixed, apart = (traced(of(way, **more)) for way in ways)
    assert mixed.error < 1e-12 and not multipliers(mixed, "N=1")
    assert powers(mixed, "N=1") == powers(apart, "N=1") and powers(mixed, "N=1")["e"] == HIDDEN


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
    mixed, apart = (traced(lambda z, how=how: Merged(z, how)).text for how in (True, False))
    assert "scale" not in mixed and "alpha" not in mixed and "alpha" in apart  # there outputs are signals


def test_a_matrix_that_a_signal_makes_acts_at_once():
    """Whichever two of three factors meet first."""
    more = {"t": lambda n: nn.Parameter(torch.randn(n, n, n) / n), "v": lambda n: nn.Linear(n, n, bias=False)}
    ways = ("zio,bz->bio", "bio,bi->bo"), ("zio,bi->bzo", "bzo,bz->bo")

    def acting(first, second):
        def between(m, h):
            signals = {"bz": torch.tanh(m.v(h)), "bi": h}
            return torch.einsum(second, torch.einsum(first, m.t, signals[first[4:6]]), signals[second[4:6]])

        return traced(of(between, **more))

    one, other = (acting(*way) for way in ways)
    assert one.error < 1e-12 and "scale" not in one.text
    assert sorted(one.text.split()) == sorted(other.text.split()) or powers(one, "N=1") == powers(other, "N=1")


@pytest.mark.parametrize("values", [torch.linspace(-1, 1, 4), torch.arange(4.0)], ids=["symmetric", "positive"])
@pytest.mark.parametrize("shares", [lambda z: z.softmax(-1), lambda z: z - z.mean(-1, keepdim=True)])
def test_a_sum_of_shares_times_constants_is_not_that_of_shares(shares, values):
    """Without the constants it is one, or zero, and has no gradient: an expected value, as of a categorical head."""
    build = of(lambda m, h: (shares(m.z(h)) * values).sum(-1, keepdim=True), z=lambda n: nn.Linear(n, 4))
    model = traced(lambda sizes: bare(build(sizes)))
    assert model.error < 1e-12 and "constants" in model.text
    assert INPUT in {*powers(model, "N=1").values()} and READOUT in {*powers(model, "N=1").values()}


def test_a_number_behind_a_learned_factor_is_that_of_the_sum_before_it():
    """The temperature stays what it is: it was to be N times as large, beside a multiplier N^-1."""
    more = {"v": lambda n: nn.Linear(n, n, bias=False), "tau": lambda n: nn.Parameter(torch.ones(1))}
    build = of(lambda m, h: h * torch.sigmoid(m.tau * (m.w(h) * m.v(h)).sum(-1, keepdim=True) / m.n), **more)
    lines = [line for line in traced(build).lines if "multiplies by N^-1" in line]
    assert lines == ["model: the module multiplies by N^-1 here (scale in the equations)"]


def bare(model):
    """Without its head: what stands between is the output."""
    model.forward, model.head = lambda x: model.between(model.inp(x)), nn.Identity()
    return model
