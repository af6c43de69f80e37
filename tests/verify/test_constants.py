"""Modules whose equations have constants: right answers, what stays refused, and a planted fault of each mechanism."""

from fractions import Fraction

import pytest

torch = pytest.importorskip("torch")
from torch import nn
from torch.nn import functional as F

from scaling_algebra import plan
from scaling_algebra.errors import UsageError
from scaling_algebra.spec.powers import Power
from scaling_algebra.verify import tracing
from scaling_algebra.verify.apply.checking import check_model
from scaling_algebra.verify.tracing.readings import read_module
from scaling_algebra.verify.tracing.shapes import read_by_shape

from .spellings import HIDDEN, INPUT, READOUT, check, derive_powers, drawn, mean, net, strip

CHAIN = {"a": "4>N", "b": "N>N", "c": "N>3"}


def of(run, parts="", inputs=None, **more):
    """The build of a module that computes ``run``: an input layer a, a matrix b, a readout c, and more, by width."""
    named = CHAIN | dict(part.split("=") for part in parts.split())
    made = {name: make and (lambda z, make=make: make(z["N"])) for name, make in more.items()}
    named = {name: part for name, part in (named | made).items() if part}
    return net(run, "", drawn(2, 4) if inputs is None else inputs, **named)


def between(f, parts="", inputs=None, **more):
    """Something between two layers, and before the last."""
    return of(lambda m, x: m.c(f(m, m.b(torch.tanh(m.a(x))))), parts, inputs, **more)


def before(f, parts="", inputs=None, **more):
    """Something between the input layer and a matrix."""
    return of(lambda m, x: m.c(m.b(f(m, m.a(x)))), parts, drawn(3, 4) if inputs is None else inputs, **more)


def _places(h):
    return torch.arange(h.shape[-1])


def _signs(h):
    return (-1.0) ** _places(h)


def places(m, ids):
    """Positions scaled by the module, rolled, summed up, one more behind."""
    h = m.a(ids) + m.p(torch.arange(ids.shape[1])) * m.p.weight.shape[1] ** -0.5
    h = torch.tanh(m.w(F.pad(h.roll(1, 1).cumsum(1), (0, 0, 1, 0))))
    return m.c(torch.cat([h, h.mean(1, keepdim=True)], 1))


def soft_experts(m, x):
    """Soft MoE: every slot of an expert is a mean of tokens, every token one of slots."""
    h = m.a(x)
    logits = torch.einsum("td,dms->tms", h, m.phi)
    y = torch.einsum("tms,td->msd", logits.softmax(0), h)
    y = torch.einsum("msk,mkd->msd", torch.relu(torch.einsum("msd,mdk->msk", y, m.up)), m.down)
    return m.c(h + torch.einsum("tms,msd->td", logits.flatten(1).softmax(-1).unflatten(1, (-1, 2)), y))


def turned(m, h):
    """Rotary positions by complex numbers."""
    z = torch.view_as_complex(h.unflatten(-1, (-1, 4, 2)))
    return torch.view_as_real(z * torch.polar(torch.ones(2, 1, 4), torch.arange(8.0).view(2, 1, 4))).flatten(1)


def cell(m, x):
    r, z = torch.sigmoid(m.r(h := m.a(x))), torch.sigmoid(m.z(h))
    return m.c(torch.lerp(torch.tanh(m.w(r * h)), h, z))


def bottlenecks(m, x):
    """Means over places as a module of its own, clipped above, and a matrix for each entry of the input."""
    h = F.adaptive_avg_pool2d(F.hardtanh(m.a(x), 0.0, 6.0), (2, 1)).flatten(2).mean(2)
    return m.c(F.bilinear(h, x.mean((2, 3)), m.w))


def queried(m, x):
    """A token behind a norm and a matrix, which no input reaches."""
    return m.c(m.a(x) * torch.tanh(m.b(F.layer_norm(m.p, m.p.shape) + m.v)))


def quarter(m, h):
    """A quarter of a turn of pairs of samples: a choice of places, some with another sign."""
    z = torch.view_as_complex(h.unflatten(0, (-1, 2)).movedim(1, -1).contiguous())
    return torch.tanh(torch.view_as_real(z * 1j).movedim(-1, 1).flatten(0, 1))


def biased(m, x):
    """One bias of three parts, of which that in the middle is zero (BEiT); heads grow in number and side by side."""
    h = F.rms_norm(y := m.a(x), y.shape[-1:])
    bias = torch.cat([m.qb, torch.zeros_like(m.qb), m.vb])
    q, k, v = F.linear(h, weight=m.qkv, bias=bias).unflatten(-1, (3, -1, 4)).permute(1, 2, 0, 3)
    return m.c(h + m.o(((q @ k.transpose(1, 2) / 2).softmax(-1) @ v).permute(1, 0, 2).flatten(1)))


def skipped(m, x):
    """The input as waves, beside what was made of it, and heads beside a perceptron (NeRF, Flux)."""
    x = torch.cat([x, (x[..., None] * torch.tensor([1.0, 2.0])).sin().flatten(-2)], -1)
    h = torch.relu(m.a(x))
    return m.c(torch.relu(m.b(torch.cat([h.unflatten(-1, (-1, 4)).tanh().flatten(-2), x, h], -1))))


def attended(m, h):
    q, k, v = m.qkv(h).unflatten(-1, (3, -1, 4)).permute(2, 0, 3, 1, 4)
    return h + m.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def vision(m, x):
    """DeiT: class tokens before the patches, one distilled from another model: a mean of two heads."""
    h = m.p(x).flatten(2).transpose(1, 2)
    y = m.n(attended(m, torch.cat([*(t.expand(len(h), -1, -1) for t in m.cls), h], 1) + m.pos))
    return (m.c(y[:, 0]) + m.d(y[:, 1])) / 2


def mixer(m, x):
    h = m.p(x).flatten(2).transpose(1, 2)
    h = h + m.t2(F.gelu(m.t1(m.n(h).transpose(1, 2)))).transpose(1, 2)
    return m.c((h + m.b(F.gelu(m.a(m.n(h))))).mean(1))


def convolutions(m, x):
    for layer, normed in zip(m.layers, m.norms, strict=True):
        x = torch.relu(normed(layer(x)))
    return m.c(x.mean((2, 3)))


def relative(m, x):
    """Attention of heads that mix, along places of two axes, with a table of relative places along one of both."""
    h = m.n(m.p(x).flatten(2).transpose(1, 2))
    q, k = (f(h).unflatten(-1, (-1, 4)).transpose(1, 2) for f in (m.q, m.k))
    at = torch.arange(4)
    bias = m.table[(at[:, None] - at + 3).flatten()].view(4, 4, -1).permute(2, 0, 1)
    scores = F.scaled_dot_product_attention(query=q, key=k, value=k, attn_mask=bias)
    return m.c((h + m.o(m.mix(scores.movedim(1, -1)).transpose(2, 3).flatten(2))).mean(1))


def tiedmean(order):
    """The mean of h W^T roll(W h) falls as N^(-1/2) at the start; without the roll it does not."""
    return before(lambda m, h: h * mean(h * F.linear(order(m.w(h)), m.w.weight.T)), "w=N>N")


def conv(i, o, k=3, pad=1, **more):
    return nn.Conv1d(i, o, k, padding=pad, bias=False, **more)


def image(run, parts="", **more):
    own = {"p": lambda n: nn.Conv2d(3, n, 2, 2), "n": nn.LayerNorm}
    return of(run, f"a= b= {parts}", drawn(2, 3, 4, 4), **own | more)


def neighbours(m, layer, x):
    """Sums over neighbours, and oneself a little more (GIN)."""
    return torch.relu(layer(m.adjacency @ x + 1.1 * x))


def waves(t, rates=1.0):
    return torch.cat([(t * rates).cos(), (t * rates).sin()], -1)


def conditioned(m, x, t):
    """DiT: shift, scale and gate of a block from the time step; zero at the start."""
    (scale, shift, gate), h = m.ada(F.silu(m.time(waves(t))))[:, None].chunk(3, -1), m.a(x)
    return m.c(h + gate * m.w(torch.tanh(F.layer_norm(h, h.shape[-1:]) * (1 + scale) + shift)))


def timed(m, x, t):
    """The time step as waves, as many as the model is wide."""
    steps = waves(t[:, None], torch.logspace(0, -3, m.b.weight.shape[0] // 2))
    return m.c(torch.tanh(m.b(torch.tanh(m.a(x) + m.t(steps)))))


PLACES = of(places, "b= a=9|N p=6|N w=N>N c=N>9", torch.tensor([[3, 1, 4, 1]]))
CONV = of(
    lambda m, x: m.c(F.avg_pool2d(torch.relu(m.b(torch.relu(m.a(x)))), 2).mean((2, 3))), "", drawn(1, 3, 6, 6),
    a=lambda n: nn.Conv2d(3, n, 3, padding=1, bias=False), b=lambda n: nn.Conv2d(n, n, 3, stride=2, bias=False),
)  # fmt: skip
LARGEST = of(lambda m, x: m.c(F.max_pool1d(m.a(x).transpose(1, 2), 2).mean(2)), "b=", drawn(1, 4, 4))
NORMED = of(
    lambda m, x: m.c(torch.relu(m.n(m.a(x))).mean(2)), "b=", drawn(2, 3, 4),
    a=lambda n: conv(3, n), n=lambda n: nn.BatchNorm1d(n, affine=False),
)  # fmt: skip
QUARTER = between(quarter)
BIASED = of(biased, "b= qkv=3*N,N o=N>N qb=N, vb=N,", drawn(3, 4))
MERGED = of(  # neighbours beside each other along the width, with one norm (Swin)
    lambda m, x: m.c(m.b(F.layer_norm(torch.cat([(h := m.a(x))[0::2], h[1::2]], -1), (2 * h.shape[-1],)))),
    "b=2*N>N", drawn(4, 4),
)  # fmt: skip
PLACED = of(lambda m, x: m.c(torch.tanh((h := m.b(torch.tanh(m.a(x)))) + torch.linspace(0, 9, h.shape[-1]).sin())))
TIMED = of(timed, "t=N>N", (drawn(2, 4), torch.tensor([3.0, 7.0])))
MIXER = "t1=4>8 t2=8>4 a=N>2*N b=2*N>N"
LEAN = image(
    mixer, MIXER, p=lambda n: nn.Conv2d(3, n, 2, 2, bias=False), n=lambda n: nn.LayerNorm(n, elementwise_affine=False)
)
CONVOLUTIONS = image(
    convolutions, "", p=None, n=None, norms=lambda n: nn.ModuleList(nn.BatchNorm2d(n) for _ in range(3)),
    layers=lambda n: nn.ModuleList(nn.Conv2d(i, n, 3, padding=1, bias=False) for i in (3, n, n)),
)  # fmt: skip
CONVOLVED = {"layers.1": HIDDEN, "layers.2": HIDDEN, "c": READOUT}
RELATIVE = image(
    relative, "q=N>N k=N>N o=N>N mix=N//4>N//4 table=7,N//4", n=lambda n: nn.LayerNorm(n, elementwise_affine=False)
)
PATCHED = lambda m, x: m.c(F.max_pool1d(m.b(torch.relu(m.a(x))), 2, padding=1).mean(2))  # noqa: E731
AMONG = lambda m, x, h=None: m.c(m.b(m.a(x) if h is None else h).tanh().mean(2))  # noqa: E731
SAME, DEPTHWISE, BESIDE, POINTWISE, (GRU, LSTM, RNN) = (
    lambda n: conv(3, n),
    lambda n: conv(n, n, 2, 0, groups=n),
    lambda n: conv(2 * n, 2 * n, 2, 0, groups=2 * n),
    lambda n: nn.Conv2d(3, n, 1, bias=False),
    (lambda n, kind=kind: kind(4, n, batch_first=True, bias=False) for kind in (nn.GRU, nn.LSTM, nn.RNN)),
)
RIGHT = {
    "pooled": (of(PATCHED, "", drawn(1, 3, 4), a=SAME, b=lambda n: conv(n, n)), "a", "b"),
    "complex": (between(turned), "a", "b"),
    "quarter turn": (QUARTER, "a", "b"),
    "softplus": (between(lambda m, h: F.softplus(h)), "a", "b"),
    "elu": (between(lambda m, h: F.elu(h)), "a", "b"),
    "leaky relu": (between(lambda m, h: F.prelu(F.leaky_relu(h, 0.2, inplace=False), torch.full((1,), 0.3))), "a", "b"),
    "a tap along the width": (between(lambda m, h: F.conv1d(h[:, None], torch.ones(1, 1, 1))[:, 0]), "a", "b"),
    "gin": (of(lambda m, x: m.c(neighbours(m, m.b, neighbours(m, m.a, x)).sum(0)), "", drawn(5, 4),
        adjacency=lambda n: torch.eye(5).roll(1, 0)), "a", "b", "has: C["),
    "dit": (of(conditioned, "b= time=2>N ada=N>3*N w=N>N", (drawn(2, 3, 4), torch.tensor([[0.3], [0.7]]))), "a time",
        "ada w"),
    "places": (PLACES, "a p", "w", 'has: constants = ["C"', "has: N^(-1/2)"),
    "conv": (CONV, "a", "b"),
    "depthwise": (of(AMONG, "", drawn(2, 3, 5), a=lambda n: conv(3, n, pad=0), b=DEPTHWISE), "a b", ""),
    "side by side": (
        of(lambda m, x: AMONG(m, x, torch.cat([m.a(x), m.d(x)], 1)), "c=2*N>3", drawn(2, 3, 5), a=SAME, d=SAME,
           b=BESIDE), "a b d", "",
    ),
    "gru": (of(cell, "b= r=N>N z=N>N w=N>N"), "a", "r z w"),
    "bottlenecks": (of(bottlenecks, "b= w=N,N,3", drawn(2, 3, 4, 4), a=POINTWISE), "a", "w"),
    "queries": (of(queried, "p=N, v=N,", drawn(3, 4)), "a p v", "b"),
    "a difference that cannot cancel": (of(lambda m, x: m.c(m.a(x) - m.b(m.a(x)))), "a", "b"),
    "a number is added": (before(lambda m, h: h + 3.0), "a", "b"),
    "signs": (before(lambda m, h: h * _signs(h)), "a", "b"),
    "signs of relu": (before(lambda m, h: torch.relu(h) * _signs(h)), "a", "b"),
    "mask of all": (before(lambda m, h: h * (_places(h) < h.shape[-1])), "a", "b"),
    "mask of half": (before(lambda m, h: torch.where(_places(h) < h.shape[-1] // 2, h, torch.zeros(()))), "a", "b"),
    "far bounds of entries": (before(lambda m, h: h.clamp(-1e4, 1e4)), "a", "b"),
    "halves": (before(lambda m, h: torch.cat([h[:, : h.shape[-1] // 2], h[:, h.shape[-1] // 2 :]], -1)), "a", "b"),
    "a bias of zeros is in no equation": (BIASED, "a qb vb", "qkv o"),
    "beside each other": (of(skipped, "a=12>N b=2*N+12>N", drawn(3, 4)), "a b", "b",
        "answers: b.weight?1?=INPUT b.weight?[02]?=HIDDEN"),
    "neighbours": (MERGED, "a", "b"),
    **{
        kind: (of(lambda m, x: m.c(m.b(x)[0]), "a=", drawn(1, 2, 4), b=layer), "b_ih_l0", "b_hh_l0")
        for kind, layer in {"GRU": GRU, "LSTM": LSTM, "RNN": RNN}.items()
    },
    "places meet as one axis and as two": (RELATIVE, "p table", "q k o mix", "has: Table["),
    "mixer": (LEAN, "p t1 t2", "a b", "level: certified"),
    "convolutions": (CONVOLUTIONS, "layers.0 norms.0 norms.1 norms.2", "layers.1 layers.2", "level: certified"),
    "tied in order": (tiedmean(lambda z: z), "a", "b w"),
    "one is added": (of(lambda m, x: m.c(1 + torch.tanh(m.a(x))), "b="), "a", "", "once:  + C["),
}  # fmt: skip
"""Modules, parameters that are as those of an input layer and as hidden matrices, and more that they are read as."""


@pytest.mark.parametrize("how", RIGHT)
def test_right_answers(how):
    build, inputs, hidden, *more = RIGHT[how]
    laws = [f"{name}=INPUT" for name in inputs.split()] + [f"{name}=HIDDEN" for name in hidden.split()]
    model = check(build, f"all: {' '.join(laws)} c=READOUT", *more)
    if build is BIASED:  # queries and keys have no bias in common, or their product would be larger
        equations = model.text.partition('equations = """')[2]
        assert equations.count("Qb") == equations.count("Vb") == 1
    if build is PLACES:
        assert model.network.multiplied == {"p.weight": Power.of({"N": Fraction(-1, 2)})}


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


def routed(run):
    return of(lambda m, x: m.c(run(m, m.a(x))), "b= r=4,N up=4,N,N down=4,N,N", drawn(6, 4))


@pytest.mark.parametrize("run", [choosing_tokens, choosing_experts])
def test_a_choice_among_a_fixed_number_is_read_as_all(run):
    chosen = routed(lambda m, h: h + run(m, F.rms_norm(h, h.shape[-1:])))
    model = check(chosen, f"stands: {tracing.models.TOP_K_READ_AS_ALL}")
    assert model.lines[-1] == f"model: {tracing.models.TOP_K_READ_AS_ALL}"
    widths = {strip(role): count for role, count in count_widths(model)}
    assert widths == {"a": 1, "up": 2, "down": 2, "r": 1, "c": 1}
    answers = {"a.weight": INPUT, "up": HIDDEN, "down": HIDDEN, "r": READOUT, "c.weight": READOUT}
    assert run is choosing_experts or derive_powers(model, scaled=True) == answers


def count_widths(model):
    """Pairs each parameter with how many of its dimensions are the width."""
    axes = model.network.axes
    return [(role, [axes[x] for x in x.indices].count("N")) for role, x in model.network.tensors.items()]


def test_what_does_not_train_and_may_grow():
    """What differs along the width, or stands in no_grad, is a frozen tensor; a rank is fixed."""
    check(TIMED, "said: constants_1: frozen: no rate", "all: a=INPUT t=HIDDEN b=HIDDEN c=READOUT constants_1=1,None")
    with pytest.raises(UsageError, match="constants_1 is a tensor with a growing axis but not a parameter"):
        check_model(TIMED)
    check(PLACED, "said: constant: frozen", "answers: constant=1,None")
    held = of(lambda m, x: m.c(torch.tanh(m.b(torch.no_grad()(m.a)(x)))))
    check(held, "all: a=1,None b=HIDDEN c=READOUT")
    low = check(of(lambda m, x: m.c(m.a(x) + m.up(m.down(m.a(x)))), "b= down=N>rank up=rank>N"), "parameters: 4")
    assert "N_e" not in low.network.axes.values()


def test_a_model_of_images_by_shape():
    """DeiT: the equations give the output, and what is summed is the width where it should be: the law of shapes."""
    cls = lambda n: nn.ParameterList([torch.randn(1, 1, n)] * 2)  # noqa: E731
    build = image(vision, "qkv=N>3*N o=N>N d=N>3 pos=1,6,N", cls=cls)
    widths = count_widths(check(build))
    assert {strip(role) for role, count in widths if count == 2} == {"qkv", "o"}
    assert {"c", "d"} <= {strip(role) for role, count in widths if count == 1}
    for module, laws in ((build, {"qkv": HIDDEN, "o": HIDDEN, "c": READOUT, "d": READOUT}), (CONVOLUTIONS, CONVOLVED)):
        shapes = derive_powers(read_by_shape(module, None, "why"), scaled=True, optimizer="adamw")
        assert {name: shapes[f"{name}.weight"] for name in laws} == laws


def test_soft_experts():
    build = net(soft_experts, "a c phi=N,M,2 up=M,N,N_e down=M,N_e,N", drawn(6, 4))
    laws = "answers: up=HIDDEN down=N_e^(-1/2),N_e^-1 c.weight=READOUT"
    assert "alpha" in check(build, "ray: N=1,N_e=1,M=1", laws, "factors: M=-1").factors


def tied(behind, before):
    """The build of a tied embedding with powers of the width as factors behind it and before the output."""
    run = lambda m, x: m.c(torch.tanh(m.b(m.a(x) * m.n**behind))) * m.n**before  # noqa: E731
    return net(run, "a=9|N b=N>N c=N>9 n=N", torch.tensor([[3, 1, 4]]), tie="ca")


def test_a_tied_embedding_with_a_factor_behind_it():
    """Gemma's: the factor belongs to the embedding, whose rate is then N^-1/2, and is no longer the readout's."""
    model = check(tied(0.5, 0), "factors: N=-1/2")
    assert model.network.multiplied == {"a.weight": Power.of({"N": Fraction(1, 2)})}
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
    monkeypatch.setattr(tracing.equation_writer, "_absorb_factor", lambda *_: None)
    assert float((trained_tied(0.5, 0) - truth).abs().max()) > 0.1 * float(truth.abs().max())


def test_a_factor_beside_no_tensor_is_answered_by_shape():
    scaled = lambda m, x: m.c(m.b(torch.tanh(m.a(x)))) + m.b(m.a(x) / m.n).sum(-1, keepdim=True)  # noqa: E731
    answer = read_module(of(scaled, "n=N"))
    assert "no single parameter can absorb it" in answer.network.unread
    assert any("ignore the factor" in note for _, note in answer.notes)


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
    return of(grouped, f"a= b= e=9|N qkv=N>N+2*({keys}) o=N>N c=N>9", torch.tensor([[3, 1, 4]]))


GLU = of(lambda m, x: m.c(F.silu((y := m.both(m.a(x)).chunk(2, -1))[0]) * y[1]), "b= both=N>4*N c=2*N>3")
WIDER = of(lambda m, x: m.c(torch.tanh(m.both(torch.cat([m.a(x), x], -1)))), "b= both=N+4>N")
PARTED = {
    "grouped queries": (fused("N//2"), {}),
    "gate and up": (GLU, {}),
    "one key": (fused("4"), {"qkv.weight[0]": (0.5, 0.25), "qkv.weight[1]": (0.25, 0.25)}),
    "wide beside fixed": (WIDER, {"both.weight[0]": (0.5, 0.25), "both.weight[1]": (1, 1)}),
}


@pytest.mark.parametrize("how", PARTED)
def test_parts_of_one_parameter(how):
    """Parts with numbers of their own have rows of their own; what torch cannot fix apart is said."""
    build, parts = PARTED[how]
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


def doubled(f):
    """A constant of the equations twice as large."""
    return lambda reader, x, *rest: f(reader, [2 * v for v in x] if isinstance(x, list) else x, *rest)


def twice(f):
    return lambda *x, **more: 2 * f(*x, **more)


def turned_over(f):
    """Places in another order."""
    return lambda reader, x: f(reader, reader.make_constant([v.roll(1, 0) for v in x.values]))


def rolled(f):
    """A matrix of places with its rows in another order."""
    return lambda reader, values, *rest: f(reader, [v.roll(1, 0) for v in values], *rest)


FAULTS = {
    "linear": (tracing.linear_probe, "make_fixed_constant", doubled, PLACES, "(roll|pad|cumsum|cat)"),
    "complex": (tracing.linear_probe, "as_real_pairs", lambda f: lambda x: f(x.conj().resolve_conj()), QUARTER, "mul"),
    "patches": (tracing.rules, "convert_constant", turned_over, CONV, "conv2d"),
    "batch norm": (tracing.recognised_functions, "convert_constant", turned_over, NORMED, "with --network"),
    "pooling": (tracing.rules, "convert_constant", turned_over, LARGEST, "max_pool1d"),
    "places": (tracing.equation_constants, "make_fixed_constant", rolled, RELATIVE, "add"),
    "parts": (tracing.elementwise, "make_fixed_constant", rolled, MERGED, "linear"),
    "written out": (tracing.recording, "decompose_attention", twice, RELATIVE, "attention"),
}


@pytest.mark.parametrize("how", FAULTS)
def test_the_guard_finds_a_planted_fault(monkeypatch, how):
    module, name, fault, build, said = FAULTS[how]
    monkeypatch.setattr(module, name, fault(getattr(module, name)))
    check(build, f"refused: {said}: (the equations give|torch returns) other (numbers|values)|than the model .*{said}")


def before_readout(f):
    return of(lambda m, x: m.c(f(m, m.a(x))), "b2=N>N", drawn(2, 3, 4))


REFUSED = {
    "norm: no rule": before_readout(lambda m, h: torch.dist(h, m.b(h)) * h),
    "a division by a signal": before_readout(lambda m, h: torch.addcdiv(h, m.b(h), 2 + m.b2(h).sigmoid())),
    "of one law may cancel": before_readout(lambda m, h: h - h.mean(0)),
    "of one law may cancel ": before_readout(lambda m, h: h - h.mean()),
    "of one law may cancel  ": before_readout(lambda m, h: h - h.mean(1, keepdim=True) - mean(h)),
    "differ along an axis that grows": before_readout(lambda m, h: h + torch.arange(1.0, 1 + h.shape[-1])),
    # at widths 64, 256, 1024 the input of the next matrix measured as N^(1/2), or fell by a third to a half
    "a constant whose entries change with the sizes": before(lambda m, h: h + h.shape[-1] ** 0.5),
    "a constant whose entries change with the sizes ": before(lambda m, h: torch.relu(h - h.shape[-1] ** 0.25)),
    "a copy whose entries are partly negated": before(lambda m, h: h * mean(h * h * _signs(h))),
    "a copy whose entries are partly negated ": before(lambda m, h: h * mean(torch.relu(h) * _signs(h))),
    "a permuted copy of itself": before(lambda m, h: h * mean((h * _signs(h)) * h)),
    "no rule for this": before(lambda m, h: torch.zeros_like(h).scatter(-1, *h.topk(4, -1)[::-1])),
    "before and after a permutation of entries": tiedmean(lambda z: z.roll(1, -1)),
    "before and after a permutation of entries ": tiedmean(lambda z: z * _signs(z)),
    "permuted parameter that is also used elsewhere": before(
        lambda m, h: h * mean(F.linear(h, m.w.weight) * F.linear(h, m.w.weight.roll(1, -1))), "w=N>N"
    ),
    "a top-K that leaves experts out": routed(lambda m, h: F.linear(h, m.r).topk(2, -1).values[:, :1] * h),
    "a top-K that leaves experts out ": routed(lambda m, h: h.topk(3, -1).values.sum(-1, keepdim=True) * h),
    "a top-K that leaves experts out  ": routed(
        lambda m, h: F.linear(F.linear(h, m.r).topk(2, -1).values, torch.ones(1, 2)) * h
    ),
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_stays_refused(said):
    check(REFUSED[said], f"refused: {said.strip()}")


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
    "norm clipped in one call": (lambda m, h: F.normalize(h, dim=-1, eps=1e5), "normalize: no rule"),
    "norm clipped above": (lambda m, h: h / h.norm(dim=-1, keepdim=True).clamp(max=1e5), "no rule"),
    "sum": (lambda m, h: h * (h.sum(-1, keepdim=True).abs() < 1e5), "no rule"),
}


@pytest.mark.parametrize("how", BY_SIZE)
def test_what_two_small_sizes_do_not_show_is_seen_at_a_larger_one(how, monkeypatch):
    """Each was read as the signal itself, or as its norm, from widths 32 and 64."""
    between, said = BY_SIZE[how]
    build = before(between, near=lambda n: (torch.arange(n) < 64).float())
    check(build, f"refused: {said}")
    monkeypatch.setattr(tracing.models, "find_wide_builds", lambda *_: {})  # a planted fault
    monkeypatch.setattr(tracing.function_recognition, "_clamps_length", lambda *_: False)
    monkeypatch.setitem(tracing.function_recognition.PROBE_SCALES, "rmsnorm", (1, 30, 1e3))
    monkeypatch.setattr(tracing.linear_probe, "CHECKED_SCALES", (1,))
    check(build, "has: b[")
