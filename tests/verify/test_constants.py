"""Modules whose equations have constants: right answers, what stays refused, and a planted fault of each mechanism."""

import re
from fractions import Fraction

import pytest

torch = pytest.importorskip("torch")
from torch import nn
from torch.nn import functional as F

from scaling_algebra import derive, plan
from scaling_algebra.errors import UsageError
from scaling_algebra.spec.powers import Power
from scaling_algebra.verify.apply.checking import check_model
from scaling_algebra.verify.tracing import (
    Unreadable,
    elementwise,
    equation_constants,
    equation_writer,
    function_recognition,
    linear_probe,
    models,
    recognised_functions,
    recording,
    rules,
    trace_equations,
)
from scaling_algebra.verify.tracing.readings import read_module
from scaling_algebra.verify.tracing.shapes import read_by_shape

INPUT, HIDDEN, READOUT = ("1", "1"), ("N^(-1/2)", "N^-1"), ("N^-1", "N^-1")


def powers(model):
    """Init std and rate of every parameter, together with the factor that the module multiplies it by."""
    d = derive(ray="N=1", optimizer="adamw", parameterization="mup", network=model.network)
    return {role: (str(t.init_std), str(t.lr)) for role, t in d.scaling.tensors.items()}


def linear(i, o):
    return nn.Linear(i, o, bias=False)


class Module(nn.Module):
    """Modules by name, a function of them and the inputs, and the inputs."""

    def __init__(self, run, **parts):
        super().__init__()
        self.run = run
        for name, part in parts.items():
            constant = isinstance(part, torch.Tensor) and not isinstance(part, nn.Parameter)
            self.register_buffer(name, part) if constant else setattr(self, name, part)

    def forward(self, *inputs):
        return self.run(self, *inputs)


def drawn(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


CHAIN = {"a": lambda n: linear(4, n), "b": lambda n: linear(n, n), "c": lambda n: linear(n, 3)}


def of(run, inputs=None, **parts):
    """The build of a module that computes ``run``: an input layer a, a matrix b, a readout c, and more, by width."""
    given = drawn(2, 4) if inputs is None else inputs
    made = {name: part for name, part in {**CHAIN, **parts}.items() if part}
    return lambda sizes: (Module(run, **{x: part(sizes["N"]) for x, part in made.items()}), given)


def between(f, inputs=None, **parts):
    """Something between two layers, and before the last."""
    return of(lambda m, x: m.c(f(m, m.b(torch.tanh(m.a(x))))), inputs, **parts)


def before(f, inputs=None, **parts):
    """Something between the input layer and a matrix."""
    return of(lambda m, x: m.c(m.b(f(m, m.a(x)))), inputs, **parts)


def _mean(x):
    return x.mean(-1, keepdim=True)


def _places(h):
    return torch.arange(h.shape[-1])


def _signs(h):
    return (-1.0) ** _places(h)


def graph(m, x):
    """GIN: sums over neighbours, and oneself a little more."""
    h = torch.relu(m.a(m.adjacency @ x + 1.1 * x))
    return m.c(torch.relu(m.b(m.adjacency @ h + 1.1 * h)).sum(0))


GIN = of(graph, drawn(5, 4), adjacency=lambda n: torch.eye(5).roll(1, 0))


def conditioned(m, x, t):
    """DiT: shift, scale and gate of a block from the time step; zero at the start."""
    scale, shift, gate = m.ada(F.silu(m.time(torch.cat([t.cos(), t.sin()], -1))))[:, None].chunk(3, -1)
    h = m.a(x)
    h = h + gate * m.w(torch.tanh(F.layer_norm(h, h.shape[-1:]) * (1 + scale) + shift))
    return m.c(h)


DIT = of(
    conditioned, (drawn(2, 3, 4), torch.tensor([[0.3], [0.7]])), b=None,
    time=lambda n: linear(2, n), ada=lambda n: linear(n, 3 * n), w=lambda n: linear(n, n),
)  # fmt: skip


def places(m, ids):
    """Positions scaled by the module, rolled, summed up, one more behind."""
    h = m.a(ids) + m.p(torch.arange(ids.shape[1])) * m.p.weight.shape[1] ** -0.5
    h = torch.tanh(m.w(F.pad(h.roll(1, 1).cumsum(1), (0, 0, 1, 0))))
    return m.c(torch.cat([h, h.mean(1, keepdim=True)], 1))


PLACES = of(
    places, torch.tensor([[3, 1, 4, 1]]), b=None, a=lambda n: nn.Embedding(9, n), p=lambda n: nn.Embedding(6, n),
    w=lambda n: linear(n, n), c=lambda n: linear(n, 9),
)  # fmt: skip


def convolved(m, x):
    x = torch.relu(m.b(torch.relu(m.a(x))))
    return m.c(F.avg_pool2d(x, 2).mean((2, 3)))


def conv(i, o, k=3, pad=1, **more):
    return nn.Conv1d(i, o, k, padding=pad, bias=False, **more)


CONV = of(
    convolved, drawn(1, 3, 6, 6), a=lambda n: nn.Conv2d(3, n, 3, padding=1, bias=False),
    b=lambda n: nn.Conv2d(n, n, 3, stride=2, bias=False),
)  # fmt: skip
DEPTHWISE = of(
    lambda m, x: m.c(m.b(m.a(x)).tanh().mean(2)), drawn(2, 3, 5),
    a=lambda n: conv(3, n, pad=0), b=lambda n: conv(n, n, 2, 0, groups=n),
)  # fmt: skip
SIDE_BY_SIDE = of(
    lambda m, x: m.c(m.b(torch.cat([m.a(x), m.d(x)], 1)).tanh().mean(2)), drawn(2, 3, 5),
    **dict.fromkeys("ad", lambda n: conv(3, n)), b=lambda n: conv(2 * n, 2 * n, 2, 0, groups=2 * n),
    c=lambda n: linear(2 * n, 3),
)  # fmt: skip


def cell(m, x):
    h = m.a(x)
    r, z = torch.sigmoid(m.r(h)), torch.sigmoid(m.z(h))
    new = torch.tanh(m.w(r * h))
    return m.c(torch.lerp(new, h, z))


CELL = of(cell, b=None, **dict.fromkeys("rzw", lambda n: linear(n, n)))
POOLED = of(
    lambda m, x: m.c(F.max_pool1d(m.b(torch.relu(m.a(x))), 2, padding=1).mean(2)), drawn(1, 3, 4),
    a=lambda n: conv(3, n), b=lambda n: conv(n, n),
)  # fmt: skip
LARGEST = of(lambda m, x: m.c(F.max_pool1d(m.a(x).transpose(1, 2), 2).mean(2)), drawn(1, 4, 4), b=None)
RECURRENT = {
    kind: of(
        lambda m, x: m.c(m.b(x)[0]), drawn(1, 2, 4), a=None,
        b=lambda n, kind=kind: getattr(nn, kind)(4, n, batch_first=True, bias=False),
    )
    for kind in ("GRU", "LSTM", "RNN")
}  # fmt: skip
NORMED = of(
    lambda m, x: m.c(torch.relu(m.n(m.a(x))).mean(2)), drawn(2, 3, 4), b=None,
    a=lambda n: conv(3, n), n=lambda n: nn.BatchNorm1d(n, affine=False),
)  # fmt: skip


def soft_experts(m, x):
    """Soft MoE: every slot of an expert is a mean of tokens, every token one of slots."""
    h = m.a(x)
    logits = torch.einsum("td,dms->tms", h, m.phi)
    y = torch.einsum("tms,td->msd", logits.softmax(0), h)
    y = torch.einsum("msk,mkd->msd", torch.relu(torch.einsum("msd,mdk->msk", y, m.up)), m.down)
    return m.c(h + torch.einsum("tms,msd->td", logits.flatten(1).softmax(-1).unflatten(1, (-1, 2)), y))


def soft_moe(sizes):
    n, k, m = (sizes[x] for x in ("N", "N_e", "M"))
    shapes = {"phi": (n, m, 2), "up": (m, n, k), "down": (m, k, n)}
    own = {name: nn.Parameter(torch.randn(*shape)) for name, shape in shapes.items()}
    return Module(soft_experts, a=linear(4, n), c=linear(n, 3), **own), drawn(6, 4)


def centred(m, h):
    """A norm by hand."""
    h = h - h.mean(-1, keepdim=True)
    return h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-5)


def turned(m, h):
    """Rotary positions by complex numbers."""
    z = torch.view_as_complex(h.unflatten(-1, (-1, 4, 2)))
    return torch.view_as_real(z * torch.polar(torch.ones(2, 1, 4), torch.arange(8.0).view(2, 1, 4))).flatten(1)


def quarter(m, h):
    """A quarter of a turn of pairs of samples: a choice of places, some with another sign."""
    z = torch.view_as_complex(h.unflatten(0, (-1, 2)).movedim(1, -1).contiguous())
    return torch.tanh(torch.view_as_real(z * 1j).movedim(-1, 1).flatten(0, 1))


def interleaved(m, h):
    """Rotary positions of neighbours, the first half of a head."""
    h, rest = h.unflatten(-1, (-1, 16)).split(8, -1)
    a, b = h.unflatten(-1, (-1, 2)).unbind(-1)
    angle = torch.arange(4.0).repeat_interleave(2)
    h = h * angle.cos() + torch.stack((-b, a), -1).flatten(-2) * angle.sin()
    return torch.cat((h, rest), -1).flatten(-2)


def biased(m, x):
    """One bias of three parts, of which that in the middle is zero (BEiT); heads grow in number and side by side."""
    h = F.rms_norm(y := m.a(x), y.shape[-1:])
    bias = torch.cat([m.qb, torch.zeros_like(m.qb), m.vb])
    q, k, v = F.linear(h, weight=m.qkv, bias=bias).unflatten(-1, (3, -1, 4)).permute(1, 2, 0, 3)
    attended = ((q @ k.transpose(1, 2) / 2).softmax(-1) @ v).permute(1, 0, 2).flatten(1)
    return m.c(h + m.o(attended))


BIASED = of(
    biased, drawn(3, 4), b=None, qkv=lambda n: nn.Parameter(torch.randn(3 * n, n)), o=lambda n: linear(n, n),
    **dict.fromkeys(("qb", "vb"), lambda n: nn.Parameter(torch.randn(n))),
)  # fmt: skip


def skipped(m, x):
    """The input as waves, beside what was made of it, and heads beside a perceptron (NeRF, Flux)."""
    x = torch.cat([x, (x[..., None] * torch.tensor([1.0, 2.0])).sin().flatten(-2)], -1)
    h = torch.relu(m.a(x))
    return m.c(torch.relu(m.b(torch.cat([h.unflatten(-1, (-1, 4)).tanh().flatten(-2), x, h], -1))))


SKIPPED = of(skipped, drawn(3, 4), a=lambda n: linear(12, n), b=lambda n: linear(2 * n + 12, n))


def merged(m, x):
    """Neighbours beside each other along the width, with one norm (Swin)."""
    h = m.a(x)
    return m.c(m.b(F.layer_norm(torch.cat([h[0::2], h[1::2]], -1), (2 * h.shape[-1],))))


MERGED = of(merged, drawn(4, 4), b=lambda n: linear(2 * n, n))
BESIDE_EACH_OTHER = {
    "bias": (BIASED, {"a": INPUT, "qb": INPUT, "vb": INPUT, "qkv": HIDDEN, "o": HIDDEN}),
    "skip": (SKIPPED, {"a": INPUT, "b": HIDDEN, "b[1]": INPUT}),
    "merge": (MERGED, {"a": INPUT, "b": HIDDEN}),
}


@pytest.mark.parametrize("how", BESIDE_EACH_OTHER)
def test_concatenations_along_the_width(how):
    build, answers = BESIDE_EACH_OTHER[how]
    model = trace_equations(build)
    assert model.error < 1e-12
    for role, answer in powers(model).items():
        name = role.replace(".weight", "")
        assert answer == (answers | {"c": READOUT}).get(name, answers.get(name.partition("[")[0], READOUT)), role


def test_a_bias_of_zeros_is_in_no_equation():
    """Queries and keys have no bias in common, or their product would be larger."""
    equations = trace_equations(BIASED).text.partition('equations = """')[2]
    assert equations.count("Qb") == equations.count("Vb") == 1


def bottlenecks(m, x):
    """Means over places as a module of its own, clipped above, and a matrix for each entry of the input."""
    h = F.adaptive_avg_pool2d(F.hardtanh(m.a(x), 0.0, 6.0), (2, 1)).flatten(2).mean(2)
    return m.c(F.bilinear(h, x.mean((2, 3)), m.w))


BOTTLENECKS = of(
    bottlenecks, drawn(2, 3, 4, 4), b=None, a=lambda n: nn.Conv2d(3, n, 1, bias=False),
    w=lambda n: nn.Parameter(torch.randn(n, n, 3)),
)  # fmt: skip


def queried(m, x):
    """A token behind a norm and a matrix, which no input reaches."""
    return m.c(m.a(x) * torch.tanh(m.b(F.layer_norm(m.p, m.p.shape) + m.v)))


QUERIED = of(queried, drawn(3, 4), **dict.fromkeys("pv", lambda n: nn.Parameter(torch.randn(n))))


def leaky(m, h):
    """Functions with a slope of their own below zero."""
    return F.prelu(F.leaky_relu(h, 0.2, inplace=False), torch.full((1,), 0.3))


def single_tap(m, h):
    """A convolution whose places are the width."""
    return F.conv1d(h[:, None], torch.ones(1, 1, 1))[:, 0]


def placed(m, x):
    """Places of a growing length, which no parameter says."""
    h = m.b(torch.tanh(m.a(x)))
    return m.c(torch.tanh(h + torch.linspace(0, 9, h.shape[-1]).sin()))


PLACED = of(placed)


def choosing_tokens(m, h):
    """Experts of a fixed number, each of which takes some of the tokens."""
    g, at = F.linear(h, m.r).softmax(-1).t().topk(3, -1)
    y = torch.bmm(torch.relu(torch.bmm(h[at], m.up)), m.down) * g[..., None]
    return torch.zeros_like(h).index_add(0, at.flatten(), y.flatten(0, 1))


def choosing_experts(m, h):
    """Tokens that take some of a fixed number of experts."""
    w, chosen = F.linear(h, m.r).softmax(-1).topk(2, -1)
    out = torch.zeros_like(h)
    for e, mask in enumerate(F.one_hot(chosen, 4).permute(2, 1, 0)):
        place, token = torch.where(mask)
        out.index_add_(0, token, torch.relu(h[None, token].squeeze(0) @ m.up[e]) @ m.down[e] * w[token, place, None])
    return out


EXPERTS = {
    "b": None, "r": lambda n: nn.Parameter(torch.randn(4, n)),
    **dict.fromkeys(("up", "down"), lambda n: nn.Parameter(torch.randn(4, n, n))),
}  # fmt: skip


@pytest.mark.parametrize("run", [choosing_tokens, choosing_experts])
def test_a_choice_among_a_fixed_number_is_read_as_all(run):
    model = trace_equations(
        of(lambda m, x: m.c((h := m.a(x)) + run(m, F.rms_norm(h, h.shape[-1:]))), drawn(6, 4), **EXPERTS)
    )
    assert model.lines[-1] == f"model: {models.TOP_K_READ_AS_ALL}" and model.network.stands == models.TOP_K_READ_AS_ALL
    widths = {
        re.sub(r"\[.\]", "", role): [model.network.axes[x] for x in tensor.indices].count("N")
        for role, tensor in model.network.tensors.items()
    }
    assert widths == {"a.weight": 1, "up": 2, "down": 2, "r": 1, "c.weight": 1}
    answers = {"a.weight": INPUT, "up": HIDDEN, "down": HIDDEN, "r": READOUT, "c.weight": READOUT}
    assert run is choosing_experts or powers(model) == answers


@pytest.mark.parametrize(
    "run",
    [
        lambda m, h: F.linear(h, m.r).topk(2, -1).values[:, :1] * h,  # of all, the first is not the largest
        lambda m, h: h.topk(3, -1).values.sum(-1, keepdim=True) * h,  # of the width
        lambda m, h: F.linear(F.linear(h, m.r).topk(2, -1).values, torch.ones(1, 2)) * h,  # a shape of its own
    ],
)
def test_a_choice_of_another_kind_is_not_read(run):
    with pytest.raises(
        Unreadable, match=r"topk: the output changes with the order|a top-K (that leaves|along several)|no function"
    ):
        trace_equations(of(lambda m, x: m.c(run(m, m.a(x))), drawn(6, 4), **EXPERTS))


def timed(m, x, t):
    """The time step as waves, as many as the model is wide."""
    waves = t[:, None] * torch.logspace(0, -3, m.b.weight.shape[0] // 2)
    return m.c(torch.tanh(m.b(torch.tanh(m.a(x) + m.t(torch.cat([waves.cos(), waves.sin()], -1))))))


TIMED = of(timed, (drawn(2, 4), torch.tensor([3.0, 7.0])), t=lambda n: linear(n, n))


def test_a_constant_that_grows_and_meets_a_matrix_is_a_frozen_tensor():
    model = trace_equations(TIMED)
    assert model.error < 1e-12 and "constants_1: frozen: no rate" in model.lines
    answers = {"a": INPUT, "t": HIDDEN, "b": HIDDEN, "c": READOUT, "constants_1": ("1", "None")}
    assert {role.partition(".")[0]: answer for role, answer in powers(model).items()} == answers
    with pytest.raises(UsageError, match="constants_1 is a tensor with a growing axis but not a parameter"):
        check_model(TIMED)


def held(m, x):
    with torch.no_grad():
        h = m.a(x)
    return m.c(torch.tanh(m.b(h)))


HELD = of(held)
RIGHT = {
    "pooled": (POOLED, "a", "b"),
    "norm by hand": (between(centred), "a", "b"),
    "complex": (between(turned), "a", "b"),
    "interleaved": (between(interleaved), "a", "b"),
    "quarter turn": (between(quarter), "a", "b"),
    "softplus": (between(lambda m, h: F.softplus(h)), "a", "b"),
    "elu": (between(lambda m, h: F.elu(h)), "a", "b"),
    "leaky relu": (between(leaky), "a", "b"),
    "one tap": (between(single_tap), "a", "b"),
    "gin": (GIN, "a", "b"),
    "dit": (DIT, "a time", "ada w"),
    "places": (PLACES, "a p", "w"),
    "conv": (CONV, "a", "b"),
    "depthwise": (DEPTHWISE, "a b", ""),
    "side by side": (SIDE_BY_SIDE, "a b d", ""),
    "gru": (CELL, "a", "r z w"),
    "bottlenecks": (BOTTLENECKS, "a", "w"),
    "queries": (QUERIED, "a p v", "b"),
    "a difference that cannot cancel": (of(lambda m, x: m.c(m.a(x) - m.b(m.a(x)))), "a", "b"),
    "a number is added": (before(lambda m, h: h + 3.0, drawn(3, 4)), "a", "b"),
    "signs": (before(lambda m, h: h * _signs(h), drawn(3, 4)), "a", "b"),
    "signs of relu": (before(lambda m, h: torch.relu(h) * _signs(h), drawn(3, 4)), "a", "b"),
    "mask of all": (before(lambda m, h: h * (_places(h) < h.shape[-1])), "a", "b"),
    "mask of half": (
        before(lambda m, h: torch.where(_places(h) < h.shape[-1] // 2, h, torch.zeros(()))), "a", "b",
    ),
    "far bounds of entries": (before(lambda m, h: h.clamp(-1e4, 1e4)), "a", "b"),
    "halves": (
        before(lambda m, h: torch.cat([h[:, : h.shape[-1] // 2], h[:, h.shape[-1] // 2 :]], -1)), "a", "b",
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", RIGHT)
def test_right_answers(how):
    build, inputs, hidden = RIGHT[how]
    model = trace_equations(build)
    assert model.error < 1e-12
    found = {(role.partition(".")[0], answer) for role, answer in powers(model).items()}
    wanted = {(x, INPUT) for x in inputs.split()} | {(x, HIDDEN) for x in hidden.split()}
    assert found == wanted | {("c", READOUT)}


def attended(m, h):
    q, k, v = m.qkv(h).unflatten(-1, (3, -1, 4)).permute(2, 0, 3, 1, 4)
    return h + m.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def patches(m, x):
    return m.p(x).flatten(2).transpose(1, 2)


def tokens(m, h):
    """Class tokens before the patches."""
    return torch.cat([*(x.expand(len(h), -1, -1) for x in m.cls), h], 1)


def vision(m, x):
    """DeiT with a token that is distilled from another model: a mean of two heads."""
    y = m.n(attended(m, tokens(m, patches(m, x)) + m.pos))
    return (m.c(y[:, 0]) + m.d(y[:, 1])) / 2


def mixer(m, x):
    h = patches(m, x)
    h = h + m.t2(F.gelu(m.t1(m.n(h).transpose(1, 2)))).transpose(1, 2)
    return m.c((h + m.b(F.gelu(m.a(m.n(h))))).mean(1))


def convolutions(m, x):
    for layer, normed in zip(m.layers, m.norms, strict=True):
        x = torch.relu(normed(layer(x)))
    return m.c(x.mean((2, 3)))


def image(run, **parts):
    own = {"a": None, "b": None, "p": lambda n: nn.Conv2d(3, n, 2, 2), "n": nn.LayerNorm}
    return of(run, drawn(2, 3, 4, 4), **{**own, **parts})


MIXER = {"t1": lambda n: linear(4, 8), "t2": lambda n: linear(8, 4), "a": lambda n: linear(n, 2 * n)}
MIXER["b"] = lambda n: linear(2 * n, n)
IMAGES = {
    "deit": image(
        vision, cls=lambda n: nn.ParameterList([torch.randn(1, 1, n)] * 2), qkv=lambda n: linear(n, 3 * n),
        pos=lambda n: nn.Parameter(torch.randn(1, 6, n)), o=lambda n: linear(n, n), d=lambda n: linear(n, 3),
    ),
    "mixer": image(mixer, **MIXER),
    "convolutions": image(
        convolutions,
        layers=lambda n: nn.ModuleList(nn.Conv2d(i, n, 3, padding=1, bias=False) for i in (3, n, n)),
        norms=lambda n: nn.ModuleList(nn.BatchNorm2d(n) for _ in range(3)),
    ),
}  # fmt: skip
HIDDEN_OF = {"deit": "qkv o", "mixer": "a b", "convolutions": "layers.1 layers.2"}
READOUT_OF = {"deit": "c d", "mixer": "c", "convolutions": "c"}


@pytest.mark.parametrize("kind", IMAGES)
def test_models_of_images(kind):
    """The equations give the output, and what is summed is the width where it should be: the law of shapes follows."""
    model = trace_equations(IMAGES[kind])
    assert model.error < 1e-12
    widths: dict[int, set[str]] = {}
    for role, tensor in model.network.tensors.items():
        count = [model.network.axes[x] for x in tensor.indices].count("N")
        widths.setdefault(count, set()).add(re.sub(r"\.weight|\[\d+\]", "", role))
    assert widths[2] == set(HIDDEN_OF[kind].split()) and set(READOUT_OF[kind].split()) <= widths[1]
    shapes = powers(read_by_shape(IMAGES[kind], None, "why"))
    assert {shapes[f"{x}.weight"] for x in HIDDEN_OF[kind].split()} == {HIDDEN}
    assert {shapes[f"{x}.weight"] for x in READOUT_OF[kind].split()} == {READOUT}


def relative(m, x):
    """Attention of heads that mix, along places of two axes, with a table of relative places along one of both."""
    h = m.n(patches(m, x))
    q, k = (f(h).unflatten(-1, (-1, 4)).transpose(1, 2) for f in (m.q, m.k))
    at = torch.arange(4)
    bias = m.table[(at[:, None] - at + 3).flatten()].view(4, 4, -1).permute(2, 0, 1)
    scores = F.scaled_dot_product_attention(query=q, key=k, value=k, attn_mask=bias)
    return m.c((h + m.o(m.mix(scores.movedim(1, -1)).transpose(2, 3).flatten(2))).mean(1))


RELATIVE = image(
    relative, **dict.fromkeys("qko", lambda n: linear(n, n)), mix=lambda n: linear(n // 4, n // 4),
    n=lambda n: nn.LayerNorm(n, elementwise_affine=False), table=lambda n: nn.Parameter(torch.randn(7, n // 4)),
)  # fmt: skip


def test_places_meet_as_one_axis_and_as_two():
    """A table of relative places has one index for both axes of an image; it is taken apart where it meets them."""
    model = trace_equations(RELATIVE)
    assert model.error < 1e-12 and "Table[" in model.text
    assert powers(model) == {
        **dict.fromkeys(("p.weight", "p.bias", "table"), INPUT), "c.weight": READOUT,
        **dict.fromkeys(("q.weight", "k.weight", "o.weight", "mix.weight"), HIDDEN),
    }  # fmt: skip


LEAN = image(
    mixer, p=lambda n: nn.Conv2d(3, n, 2, 2, bias=False), n=lambda n: nn.LayerNorm(n, elementwise_affine=False), **MIXER
)


@pytest.mark.parametrize(
    ("build", "inputs", "hidden"),
    [
        (LEAN, "p t1 t2", "a b"),
        (IMAGES["convolutions"], "layers.0 norms.0 norms.1 norms.2", HIDDEN_OF["convolutions"]),
    ],
    ids=["mixer", "convolutions"],
)
def test_models_of_images_are_certified(build, inputs, hidden):
    d = derive(ray="N=1", optimizer="adamw", parameterization="mup", network=trace_equations(build).network)
    found = {(re.sub(r"\.(weight|bias)$", "", role), str(t.init_std), str(t.lr)) for role, t in d.tensors.items()}
    wanted = {*((x, *INPUT) for x in inputs.split()), *((x, *HIDDEN) for x in hidden.split()), ("c", *READOUT)}
    assert d.level.certified and found == wanted


@pytest.mark.parametrize("kind", RECURRENT)
def test_recurrent_layers(kind):
    model = trace_equations(RECURRENT[kind])
    assert model.error < 1e-12
    found = {(role.partition("[")[0], answer) for role, answer in powers(model).items()}
    assert found == {("b.weight_ih_l0", INPUT), ("b.weight_hh_l0", HIDDEN), ("c.weight", READOUT)}


def test_soft_experts():
    model = trace_equations(soft_moe)
    d = derive(ray="N=1,N_e=1,M=1", optimizer="adamw", parameterization="mup", network=model.network)
    found = {role: (str(t.init_std), str(t.lr)) for role, t in d.tensors.items()}
    assert found["up"] == HIDDEN and found["down"] == ("N_e^(-1/2)", "N_e^-1") and found["c.weight"] == READOUT
    assert model.error < 1e-12 and dict(model.factors["alpha"][1]) == {"M": -1}


def tied(behind, before):
    """The build of a tied embedding with powers of the width as factors behind it and before the output."""

    def build(sizes):
        n = sizes["N"]
        m = Module(
            lambda m, x: m.c(torch.tanh(m.b(m.a(x) * n**behind))) * n**before,
            a=nn.Embedding(9, n),
            b=linear(n, n),
            c=linear(n, 9),
        )
        m.c.weight = m.a.weight
        return m, torch.tensor([[3, 1, 4]])

    return build


def test_a_tied_embedding_with_a_factor_behind_it():
    """Gemma's: the factor belongs to the embedding, whose rate is then N^-1/2, and is no longer the readout's."""
    model = trace_equations(tied(0.5, 0))
    assert model.network.multiplied == {"a.weight": Power.of({"N": Fraction(1, 2)})}
    assert dict(model.factors["scale"][1]) == {"N": Fraction(-1, 2)}
    p = plan(tied(0.5, 0), "N=32", "N=128", lr=1.0, std=1.0, epsilon="negligible")
    assert p["a.weight"].settings["lr"].factor == 1 / 2 and p["b.weight"].settings["lr"].factor == 1 / 4
    assert p.multipliers == {"scale": 1 / 2}


def trained_tied(behind, before):
    """The output after three steps with the numbers of a plan. The factor behind the embedding times it starts alike,
    and moves alike at the base, whatever the factor."""
    build, base, n = tied(behind, before), 32, 128
    p = plan(build, f"N={base}", f"N={n}", lr=1.0, std=1.0, epsilon="negligible")
    (m, x), draw = build({"N": n}), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight, unit in ((m.a.weight, n**behind), (m.b.weight, n**0.5)):
            weight.copy_(torch.randn(weight.shape, generator=draw) / unit)
    rates = {"a.weight": base**-behind, "b.weight": 1 / base}
    groups = [{"params": m.get_parameter(k), "lr": 0.1 * v * p[k].settings["lr"].factor} for k, v in rates.items()]
    optimizer = torch.optim.Adam(groups, eps=1e-30)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(m(x)[0], x[0].flip(0)).backward()
        optimizer.step()
    return m(x).detach()


def test_a_factor_behind_a_tied_embedding_changes_nothing(monkeypatch):
    """Trained with their own numbers the module with the factor and the one without compute the same. A planted fault:
    the numbers are those of the embedding without its factor."""
    truth = trained_tied(0, -0.5)
    torch.testing.assert_close(trained_tied(0.5, 0), truth, rtol=1e-3, atol=1e-4)
    monkeypatch.setattr(equation_writer, "_absorb_factor", lambda *_: None)
    assert float((trained_tied(0.5, 0) - truth).abs().max()) > 0.1 * float(truth.abs().max())


def test_what_does_not_train_and_may_grow():
    """A constant that differs along the width is a frozen tensor, as what stands in no_grad is; a rank is fixed."""
    assert (
        powers(trace_equations(PLACED))["constant"] == ("1", "None")
        and "constant: frozen" in trace_equations(PLACED).lines[0]
    )
    assert powers(trace_equations(HELD)) == {"a.weight": ("1", "None"), "b.weight": HIDDEN, "c.weight": READOUT}
    low = trace_equations(
        lambda sizes: (
            Module(
                lambda m, x: m.c(m.a(x) + m.up(m.down(m.a(x)))),
                a=linear(4, sizes["N"]),
                c=linear(sizes["N"], 3),
                down=linear(sizes["N"], sizes["rank"]),
                up=linear(sizes["rank"], sizes["N"]),
            ),
            drawn(2, 4),
        )
    )
    assert "N_e" not in low.network.axes.values() and low.network.tensors.keys() == {
        f"{x}.weight" for x in ("a", "c", "down", "up")
    }


def test_a_factor_beside_no_tensor_is_answered_by_shape():
    build = between(lambda m, h: h)

    def scaled(sizes):
        model, x = build(sizes)
        run = model.run
        model.run = lambda m, x: run(m, x) + m.b(m.a(x) / sizes["N"]).sum(-1, keepdim=True)
        return model, x

    answer = read_module(scaled)
    assert "no single parameter can absorb it" in answer.network.unread and any(
        "ignore the factor" in n for _, n in answer.notes
    )


def grouped(m, ids):
    """Queries, keys and values in one matrix, so many queries to a key; ``m.heads`` of them share a key at least."""
    h = m.e(ids)
    k = m.qkv.weight.shape[0] - h.shape[-1]
    q, k, v = (x.unflatten(-1, (-1, 4)).transpose(1, 2) for x in m.qkv(h).split([h.shape[-1], k // 2, k // 2], -1))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
    return m.c(h + m.o(y))


def fused(keys):
    """The build of grouped queries with so many entries of keys."""
    return of(
        grouped, torch.tensor([[3, 1, 4]]), a=None, b=None, e=lambda n: nn.Embedding(9, n),
        qkv=lambda n: linear(n, n + 2 * keys(n)), o=lambda n: linear(n, n), c=lambda n: linear(n, 9),
    )  # fmt: skip


GLU = of(
    lambda m, x: m.c((lambda g, u: F.silu(g) * u)(*m.both(m.a(x)).chunk(2, -1))), b=None,
    both=lambda n: linear(n, 4 * n), c=lambda n: linear(2 * n, 3),
)  # fmt: skip
BESIDE = of(lambda m, x: m.c(torch.tanh(m.both(torch.cat([m.a(x), x], -1)))), b=None, both=lambda n: linear(n + 4, n))


@pytest.mark.parametrize(
    ("build", "parts"),
    [
        (fused(lambda n: n // 2), {}),
        (GLU, {}),
        (fused(lambda n: 4), {"qkv.weight[0]": (0.5, 0.25), "qkv.weight[1]": (0.25, 0.25)}),
        (BESIDE, {"both.weight[0]": (0.5, 0.25), "both.weight[1]": (1, 1)}),
    ],
    ids=["grouped queries", "gate and up", "one key", "wide beside fixed"],
)
def test_parts_of_one_parameter(build, parts):
    """Parts with numbers of their own have rows of their own; what torch cannot fix apart is said."""
    given = {"epsilon": "negligible"} if build is not GLU else {"eps": 1e-8}  # of these each is the quicker search
    p = plan(build, "N=32", "N=128", lr=1.0, std=1.0, **given)
    whole = next(e for e in p.entries if "both" in e.name or "qkv" in e.name)
    factors = {x: tuple(s[what].factor for what in ("init_std", "lr")) for x, s in whole.parts.items()}
    assert {x: factors[x] for x in parts} == parts and bool(parts) == bool(factors)
    assert all(x in str(p) for x in parts)
    if not parts:
        assert (whole.settings["init_std"].factor, whole.settings["lr"].factor) == (0.5, 0.25)
        return
    drawn = dict(p.init_(generator=torch.Generator().manual_seed(0)).named_parameters())[whole.name]
    for part, (dim, start, count) in whole.spans.items():
        std = float(drawn.detach().narrow(dim, start, count).std())
        assert std == pytest.approx(whole.parts[part]["init_std"].target, rel=0.1)
    assert whole.spans.keys() == whole.parts.keys() and sum(n for *_, n in whole.spans.values()) in drawn.shape
    if len({lr for _, lr in parts.values()}) > 1:
        with pytest.raises(UsageError, match="its parts differ in lr; make"):
            p.param_groups()
    else:
        assert {g["name"]: g["lr"] for g in p.param_groups()}["qkv.weight"] == 0.25


def test_constants_stand_in_the_equations():
    assert "C[" in trace_equations(GIN).text and 'constants = ["C"' in trace_equations(PLACES).text
    assert trace_equations(PLACES).network.multiplied == {"p.weight": Power.of({"N": Fraction(-1, 2)})}
    added = trace_equations(of(lambda m, x: m.c(1 + torch.tanh(m.a(x))), b=None))
    assert added.text.count(" + C[") == 1 and powers(added) == {"a.weight": INPUT, "c.weight": READOUT}


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (lambda m, x: torch.dist(m.a(x), m.b(m.a(x))) * m.a(x), "norm: no rule"),
        (lambda m, x: torch.addcdiv(m.a(x), m.b(m.a(x)), 2 + m.b2(m.a(x)).sigmoid()), "a division by a signal"),
        (lambda m, x: m.a(x) - m.a(x).mean(0), "of one law may cancel"),
        (lambda m, x: (h := m.a(x)) - h.mean(), "of one law may cancel"),
        (lambda m, x: (h := m.a(x)) - h.mean(1, keepdim=True) - h.mean(-1, keepdim=True), "of one law may cancel"),
        (lambda m, x: m.a(x) + torch.arange(1.0, 1 + m.a.weight.shape[0]), "differ along an axis that grows"),
    ],
)
def test_what_stays_refused(run, said):
    with pytest.raises(Unreadable, match=said):
        trace_equations(of(lambda m, x: m.c(run(m, x)), drawn(2, 3, 4), b2=lambda n: linear(n, n)))


def test_what_is_written_out_must_be_what_torch_gives(monkeypatch):
    """A planted fault: attention that is twice as large."""
    attention = recording.decompose_attention
    monkeypatch.setattr(recording, "decompose_attention", lambda *args, **words: 2 * attention(*args, **words))
    with pytest.raises(Unreadable, match="attention: torch returns other values than"):
        trace_equations(RELATIVE)


def doubled(f):
    """A constant of the equations twice as large."""
    return lambda reader, x, *rest: f(reader, [2 * v for v in x] if isinstance(x, list) else x, *rest)


def turned_over(f):
    """Places in another order."""
    return lambda reader, x: f(reader, reader.make_constant([v.roll(1, 0) for v in x.values]))


def rolled(f):
    """A matrix of places with its rows in another order."""
    return lambda reader, values, *rest: f(reader, [v.roll(1, 0) for v in values], *rest)


@pytest.mark.parametrize(
    ("module", "name", "fault", "build", "said"),
    [
        (linear_probe, "make_fixed_constant", doubled, PLACES, r"(roll|pad|cumsum|cat)"),
        (linear_probe, "as_real_pairs", lambda f: lambda x: f(x.conj().resolve_conj()), between(quarter), "mul"),
        (rules, "convert_constant", turned_over, CONV, "conv2d"),
        (recognised_functions, "convert_constant", turned_over, NORMED, "with --network"),
        (rules, "convert_constant", turned_over, LARGEST, "max_pool1d"),
        (equation_constants, "make_fixed_constant", rolled, RELATIVE, "add"),
        (elementwise, "make_fixed_constant", rolled, MERGED, "linear"),
    ],
    ids=["linear", "complex", "patches", "batch norm", "pooling", "places", "parts"],
)
def test_the_guard_finds_a_planted_fault(monkeypatch, module, name, fault, build, said):
    monkeypatch.setattr(module, name, fault(getattr(module, name)))
    with pytest.raises(
        Unreadable,
        match=f"{said}: the equations give other (numbers|values)|than the model .*{said}",
    ):
        trace_equations(build)


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (lambda h: h + h.shape[-1] ** 0.5, "a constant whose entries change with the sizes"),
        (lambda h: torch.relu(h - h.shape[-1] ** 0.25), "a constant whose entries change with the sizes"),
        (lambda h: h * _mean(h * h * _signs(h)), "a copy whose entries are partly negated"),
        (lambda h: h * _mean(torch.relu(h) * _signs(h)), "a copy whose entries are partly negated"),
        (lambda h: h * _mean((h * _signs(h)) * h), "a permuted copy of itself"),
        (lambda h: torch.zeros_like(h).scatter(-1, h.topk(4, -1).indices, h.topk(4, -1).values), "no rule for this"),
    ],
)
def test_what_constants_and_choices_change_the_size_of_is_refused(run, said):
    """At widths 64, 256, 1024 the input of the next matrix measured as N^(1/2), or fell by a third to a half."""
    with pytest.raises(Unreadable, match=said):
        trace_equations(before(lambda m, h: run(h), drawn(3, 4)))


def test_a_tensor_before_and_after_entries_change_their_order_is_refused():
    """The mean of h W^T roll(W h) falls as N^(-1/2) at the start; without the roll it does not."""

    def model(run):
        return before(lambda m, h: run(m.w.weight, h), drawn(3, 4), w=lambda n: linear(n, n))

    def tied(order):
        return lambda w, h: h * _mean(h * F.linear(order(F.linear(h, w)), w.T))

    assert trace_equations(model(tied(lambda z: z))).error < 1e-12
    for order in (lambda z: z.roll(1, -1), lambda z: z * _signs(z)):
        with pytest.raises(Unreadable, match="before and after a permutation of entries"):
            trace_equations(model(tied(order)))
    with pytest.raises(Unreadable, match="permuted parameter that is also used elsewhere"):
        trace_equations(model(lambda w, h: h * _mean(F.linear(h, w) * F.linear(h, w.roll(1, -1)))))


BY_SIZE = {
    "mask": (lambda m, h: h * (_places(h) < 64), "large entries become rarer"),
    "mask within a function": (lambda m, h: torch.relu(h * (_places(h) < 64) + 0.0), "large entries become rarer"),
    "where": (lambda m, h: torch.where(_places(h) < 64, h, torch.zeros(())), "a mask that keeps 0.12 to 1"),
    "masked_fill": (lambda m, h: h.masked_fill(_places(h) >= 64, 0.0), "a mask that keeps 0 to 0.88"),
    "added": (lambda m, h: h + (_places(h) >= 64), "differ along an axis that grows"),
    "slice": (lambda m, h: F.pad(h[:, :64], (0, max(0, h.shape[-1] - 64))), "pad: no rule"),
    "parts": (lambda m, h: torch.cat([h[:, :64], 0 * h[:, 64:]], -1), "a slice that is empty at some sizes"),
    "far": (lambda m, h: h * (_places(h) < 5000), "lt: compares positions along an axis that grows with 5000"),
    "buffer": (lambda m, h: h * m.near, "large entries become rarer"),
    "norm": (lambda m, h: torch.where(h.norm(dim=-1, keepdim=True) < 1e4, h, torch.zeros_like(h)), "no rule"),
    "norm clipped": (lambda m, h: h / h.norm(dim=-1, keepdim=True).clamp(min=1e5), "no rule"),
    "norm clipped above": (lambda m, h: h / h.norm(dim=-1, keepdim=True).clamp(max=1e5), "no rule"),
    "sum": (lambda m, h: h * (h.sum(-1, keepdim=True).abs() < 1e5), "no rule"),
}


@pytest.mark.parametrize("how", BY_SIZE)
def test_what_two_small_sizes_do_not_show_is_seen_at_a_larger_one(how, monkeypatch):
    """Each was read as the signal itself, or as its norm, from widths 32 and 64."""
    between, said = BY_SIZE[how]
    near = lambda n: (torch.arange(n) < 64).float()  # noqa: E731
    with pytest.raises(Unreadable, match=said):
        trace_equations(before(between, drawn(3, 4), near=near))
    monkeypatch.setattr(models, "find_wide_builds", lambda *_: {})  # a planted fault
    monkeypatch.setattr(function_recognition, "_clamps_length", lambda *_: False)
    monkeypatch.setitem(function_recognition.PROBE_SCALES, "rmsnorm", (1, 30, 1e3))
    assert trace_equations(before(between, drawn(3, 4), near=near)).error < 1e-12
