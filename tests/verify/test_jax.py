"""Models of JAX: their equations are those of a twin in torch, and a plan of them is one of pytrees."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax", reason="needs jax, flax and optax")
nn = pytest.importorskip("flax.linen", reason="needs jax, flax and optax")
optax = pytest.importorskip("optax", reason="needs jax, flax and optax")

import jax.numpy as jnp
from torch.nn import functional as F

from scaling_algebra.errors import UsageError
from scaling_algebra.jax import plan, torch_build
from scaling_algebra.verify.apply import plan as torch_plan
from scaling_algebra.verify.tracing import trace_equations

TOKENS, WORDS, HEADS = 6, 11, 2
IDS = jax.random.randint(jax.random.key(1), (2, TOKENS), 0, WORDS)


def flax_build(make, x):
    """A build of a module of flax."""

    def build(sizes):
        model = make(sizes)
        return lambda key: model.init(key, x)["params"], lambda params, x: model.apply({"params": params}, x), x

    return build


class Twin(torch.nn.Module):
    """A function of torch of parameters that have the names and shapes of another module's."""

    def __init__(self, other, function):
        super().__init__()
        self.function = function
        for name, p in other.named_parameters():
            *path, last = name.split(".")
            module = self
            for key in path:
                if not hasattr(module, key):
                    module.add_module(key, torch.nn.Module())
                module = getattr(module, key)
            module.register_parameter(last, torch.nn.Parameter(p.detach().clone()))

    def forward(self, x):
        return self.function(dict(self.named_parameters()), x)


def twin(build, function):
    """A build of the twin of a model of JAX."""

    def made(sizes):
        module, (x,) = torch_build(build)(sizes)
        sizes = dict(sizes)
        return Twin(module, lambda p, x: function(p, x, sizes)), x

    return made


def same_equations(build, function):
    """The reading of a model, when it is that of its twin."""
    mine, other = trace_equations(torch_build(build)), trace_equations(twin(build, function))
    assert mine.text == other.text
    assert {k: p for k, (_, p) in mine.factors.items()} == {k: p for k, (_, p) in other.factors.items()}
    return mine


# a perceptron ---------------------------------------------------------------------------------------------------


class Perceptron(nn.Module):
    width: int

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Dense(self.width)(x))
        x = nn.gelu(nn.Dense(self.width)(x))
        return nn.Dense(3, use_bias=False)(nn.silu(nn.LayerNorm()(x)))


perceptron = flax_build(lambda sizes: Perceptron(sizes["N"]), jax.random.normal(jax.random.key(1), (2, 5)))


def torch_perceptron(p, x, sizes):
    x = torch.relu(x @ p["Dense.0.kernel"] + p["Dense.0.bias"])
    x = F.gelu(x @ p["Dense.1.kernel"] + p["Dense.1.bias"], approximate="tanh")
    x = F.layer_norm(x, x.shape[-1:], eps=1e-6) * p["LayerNorm.0.scale"] + p["LayerNorm.0.bias"]
    return F.silu(x) @ p["Dense.2.kernel"]


def test_a_perceptron_has_the_equations_of_its_twin():
    assert "layernorm" in same_equations(perceptron, torch_perceptron).text


def test_a_plan_is_that_of_the_twin_as_pytrees():
    given = {"lr": 3e-3, "eps": 1e-8, "std": 0.1, "decay": 0.1}
    p, other = (
        plan(perceptron, "N=16", "N=64", **given),
        torch_plan(twin(perceptron, torch_perceptron), "N=16", "N=64", **given),
    )
    for tree, what in ((p.lr, "lr"), (p.eps, "eps"), (p.decay, "weight_decay")):
        for group in other.param_groups():
            for name in group["param_names"]:
                _, module, number, last = ["", *name.split(".")]
                assert tree[f"{module}_{number}"][last] == group[what]
    assert p.std["Dense_2"]["kernel"] == pytest.approx(0.025) and p.std["LayerNorm_0"]["scale"] == 0
    params, again = p.init(jax.random.key(3)), p.init(jax.random.key(3))
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), params, again))
    assert float(params["Dense_1"]["kernel"].std()) == pytest.approx(0.05, rel=0.1)
    assert (params["LayerNorm_0"]["scale"] == 1).all() and (params["Dense_0"]["bias"] == 0).all()


def test_an_optimizer_of_optax_moves_each_leaf_by_its_rate():
    p = plan(perceptron, "N=16", "N=64", lr=3e-3, eps=1e-8, std=0.1)
    params = p.init(jax.random.key(0))
    optimizer = p.optax_transformation(optax.adam)
    ones = jax.tree.map(jnp.ones_like, params)
    moved, _ = optimizer.update(ones, optimizer.init(params), params)
    for a, b in zip(jax.tree.leaves(moved), jax.tree.leaves(p.lr), strict=True):
        assert float(abs(a).max()) == pytest.approx(b, rel=1e-4)
    with pytest.raises(UsageError, match="sgd has no argument eps"):
        p.optax_transformation(optax.sgd)


# a block of a transformer ---------------------------------------------------------------------------------------


def rotary(xp, x, cat):
    """Rotary positions, with the functions of jax.numpy or of torch."""
    half = x.shape[-1] // 2
    angles = xp.arange(TOKENS)[:, None] / 10000 ** (xp.arange(half) / half)
    angles = angles[:, None]
    a, b = x[..., :half], x[..., half:]
    return cat([a * xp.cos(angles) - b * xp.sin(angles), a * xp.sin(angles) + b * xp.cos(angles)], -1)


class FlaxBlock(nn.Module):
    width: int

    @nn.compact
    def __call__(self, ids):
        n, d = self.width, self.width // HEADS
        x = nn.Embed(WORDS, n, name="tokens")(ids)
        y = nn.RMSNorm(name="before")(x)
        q, k, v = (nn.DenseGeneral((HEADS, d), use_bias=False, name=name)(y) for name in "qkv")
        q, k = rotary(jnp, q, jnp.concatenate), rotary(jnp, k, jnp.concatenate)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / jnp.sqrt(d)
        scores = jnp.where(jnp.tril(jnp.ones((TOKENS, TOKENS), bool)), scores, -jnp.inf)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", nn.softmax(scores), v)
        x = x + nn.DenseGeneral(n, axis=(-2, -1), use_bias=False, name="out")(mixed)
        y = nn.RMSNorm(name="between")(x)
        gate = nn.silu(nn.Dense(4 * n, use_bias=False, name="gate")(y))
        x = x + nn.Dense(n, use_bias=False, name="down")(gate * nn.Dense(4 * n, use_bias=False, name="up")(y))
        return nn.Dense(WORDS, use_bias=False, name="head")(nn.RMSNorm(name="after")(x))


block = flax_build(lambda sizes: FlaxBlock(sizes["N"]), IDS)


def torch_block(p, ids, sizes):
    n = sizes["N"]

    def normed(x, name):
        return F.rms_norm(x, (n,), p[f"{name}.scale"], 1e-6)

    x = F.embedding(ids, p["tokens.embedding"])
    y = normed(x, "before")
    q, k, v = (torch.einsum("btn,nhd->bthd", y, p[f"{name}.kernel"]) for name in "qkv")
    q, k = rotary(torch, q, torch.cat), rotary(torch, k, torch.cat)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / (n // HEADS) ** 0.5
    scores = torch.where(torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril(), scores, -torch.inf)
    mixed = torch.einsum("bkhd,bhqk->bhdq", v, scores.softmax(-1)).permute(0, 3, 1, 2)
    x = x + torch.einsum("bthd,hdn->btn", mixed, p["out.kernel"])
    y = normed(x, "between")
    x = x + (F.silu(y @ p["gate.kernel"]) * (y @ p["up.kernel"])) @ p["down.kernel"]
    return normed(x, "after") @ p["head.kernel"]


def test_a_block_of_a_transformer_has_the_equations_of_its_twin():
    text = same_equations(block, torch_block).text
    assert "softmax" in text and text.count("= rmsnorm") == 3


# experts --------------------------------------------------------------------------------------------------------


def experts(sizes):
    n, wide, m, k = (sizes[x] for x in ("N", "N_e", "M", "K"))
    shapes = {"inp": (5, n), "router": (n, m), "up": (m, n, wide), "down": (m, wide, n), "head": (n, 3)}

    def init(key):
        keys = jax.random.split(key, len(shapes))
        return {name: jax.random.normal(x, shapes[name]) * 0.3 for name, x in zip(shapes, keys, strict=True)}

    def apply(p, x):
        h = x @ p["inp"]
        chosen, which = jax.lax.top_k(jax.nn.softmax(h @ p["router"]), k)
        gates = jnp.einsum("tk,tkm->tm", chosen, jax.nn.one_hot(which, m))
        y = jax.nn.relu(jnp.einsum("tn,mne->tme", h, p["up"])) * gates[..., None]
        return jnp.einsum("tme,men->tn", y, p["down"]) @ p["head"]

    return init, apply, jax.random.normal(jax.random.key(2), (4, 5))


def torch_experts(p, x, sizes):
    h = x @ p["inp"]
    chosen, which = torch.topk((h @ p["router"]).softmax(-1), sizes["K"])
    gates = torch.zeros(len(x), sizes["M"], dtype=h.dtype).scatter(-1, which, chosen)
    y = torch.relu(torch.einsum("tn,mne->tme", h, p["up"])) * gates[..., None]
    return torch.einsum("tme,men->tn", y, p["down"]) @ p["head"]


def test_the_largest_experts_have_the_equations_of_their_twin():
    assert "topk" in same_equations(experts, torch_experts).text


# layers ---------------------------------------------------------------------------------------------------------


def layers(sizes):
    n, depth = sizes["N"], sizes["L"]

    def init(key):
        a, b, c = jax.random.split(key, 3)
        hidden = jax.random.normal(b, (depth, n, n)) * 0.1
        return {"inp": jax.random.normal(a, (5, n)), "hidden": hidden, "head": jax.random.normal(c, (n, 3)) * 0.1}

    @jax.jit
    def apply(p, x):
        def layer(h, w):
            return h + jax.nn.relu(h) @ w / depth**0.5, None

        def one(x):
            h, _ = jax.lax.scan(jax.checkpoint(layer), x @ p["inp"], p["hidden"])
            return h @ p["head"]

        return jax.vmap(one)(x)

    return init, apply, jax.random.normal(jax.random.key(2), (4, 5))


def torch_layers(p, x, sizes):
    h = x @ p["inp"]
    for k in range(sizes["L"]):
        h = h + torch.relu(h) @ p[f"hidden.{k}"] / sizes["L"] ** 0.5
    return h @ p["head"]


def test_a_scan_over_layers_has_the_equations_of_its_twin():
    assert '"L"' in same_equations(layers, torch_layers).text


def test_a_stack_of_layers_is_one_leaf_of_the_plan():
    p = plan(layers, "N=16,L=2", "N=64,L=4", lr=3e-3, eps=1e-8, std=0.1)
    params = p.init(jax.random.key(0))
    assert params["hidden"].shape == (4, 64, 64)
    assert all(float(x.std()) == pytest.approx(p.std["hidden"], rel=0.1) for x in params["hidden"])
    assert p.lr["hidden"] == p.plan["hidden.0"].settings["lr"].target


class DeepTwin(nn.Module):
    width: int
    depth: int

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(self.width, use_bias=False, name="inp")(x)
        for k in range(self.depth):
            x = x + nn.Dense(self.width, use_bias=False, name=f"layer_{k}")(nn.relu(x)) / self.depth**0.5
        return nn.Dense(3, use_bias=False, name="head")(x)


def test_modules_with_numbers_are_layers():
    text = trace_equations(torch_build(flax_build(lambda s: DeepTwin(s["N"], s["L"]), jnp.ones((2, 5))))).text
    assert '"L"' in text and '"layer.*.kernel"' in text


def test_the_package_does_not_import_jax():
    code = "import sys, scaling_algebra as s; s.derive, s.plan; assert not {'jax', 'flax', 'optax'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], check=True)


# what is refused ------------------------------------------------------------------------------------------------


def calls(apply):
    """A build with this after a matrix."""

    def build(sizes):
        return (
            lambda key: {"w": jax.random.normal(key, (5, sizes["N"]))},
            lambda p, x: apply(x @ p["w"]),
            jnp.ones((2, 5)),
        )

    return build


@pytest.mark.parametrize(
    ("apply", "said"),
    [
        (
            lambda h: jax.lax.cond(h.sum() > 0, lambda x: x, lambda x: -x, h),
            "cond is control flow that",
        ),
        (
            lambda h: jax.lax.while_loop(lambda x: x.sum() < 9, lambda x: x + 1, h),
            "while is control flow that",
        ),
        (lambda h: jax.lax.lgamma(h), "the JAX primitive lgamma is not supported"),
        (lambda h: (h, h), "apply returns 2 arrays"),
    ],
)
def test_what_no_equation_says_is_refused_by_name(apply, said):
    with pytest.raises(UsageError, match=said):
        torch_build(calls(apply))({"N": 4})


def lacks_width(sizes):
    return sizes["n"]


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (3, "build is 3; give a function of sizes"),
        (lambda sizes: None, r"build returns None; return \(init, apply, x\)"),
        (lambda sizes: ({"w": jnp.ones((4, 4))}, len, 1), r"build returns \({'w': Array"),
        (lacks_width, r"build\({'N': 4}\) raises KeyError: 'n'"),
        (lambda sizes: (lambda key: {"w": "a"}, lambda p, x: x, 1), r"init\(key\) raises TypeError"),
        (calls(lambda h: h @ h), r"apply\(parameters, x\), in float64, raises TypeError: dot_general requires"),
        (calls(lambda h: h if h.sum() > 0 else -h), r"apply\(parameters, x\), in float64, raises TracerBool"),
        (calls(lambda h: h.argmax(-1)), r"apply returns int64\[2\]; return floats"),
        (calls(lambda h: jnp.log(h - h)), "the output of apply is infinite or not a number"),
    ],
)
def test_a_wrong_build_is_one_line(build, said):
    with pytest.raises(UsageError, match=said) as told:
        torch_build(build)({"N": 4})
    assert "\n" not in str(told.value)


def test_other_numbers_than_those_of_jax_are_refused(monkeypatch):
    from scaling_algebra.jax.primitives import RULES

    monkeypatch.setitem(RULES, "sin", lambda params, x: x.sin() * (1 + 1e-4))
    with pytest.raises(UsageError, match="from the output of JAX"):
        torch_build(calls(jnp.sin))({"N": 4})
