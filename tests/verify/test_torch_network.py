"""Any network in torch: its gradients against autograd, and its parts against their wholes. An independent reading:
``test_interpreter.py``."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from scaling_algebra import derive
from scaling_algebra.dynamics.quantities import list_quantities
from scaling_algebra.errors import UsageError
from scaling_algebra.spec.networks.grammar import network
from scaling_algebra.spec.networks.language import Product
from scaling_algebra.spec.networks.library import ARCHITECTURES, AXES, MOE_BLOCK
from scaling_algebra.spec.networks.multipliers import find_free_multipliers
from scaling_algebra.spec.networks.sums import experts
from scaling_algebra.spec.networks.terms import expand_product
from scaling_algebra.spec.optimizers import OPTIMIZERS, optimizer
from scaling_algebra.spec.powers import Power
from scaling_algebra.spec.scaling import Scaling, TensorScaling
from scaling_algebra.verify.measuring.cells import Setup
from scaling_algebra.verify.measuring.training import differentiate_with_autograd, train_network
from scaling_algebra.verify.networks.contraction import contract
from scaling_algebra.verify.networks.replicas import ReplicaDraw
from scaling_algebra.verify.networks.run import NotMeasured, TorchRun
from scaling_algebra.verify.networks.torch_network import TorchNetwork

MORE = {
    "thrice": """
        h1[a] = W1[a,x] data[x]
        h2[b] = W[b,a] h1[a]
        h3[a] = W[a,b] h2[b]
        h4[b] = W[b,a] h3[a]
        f = W4[b] h4[b]
    """,
    "tied": "h[a] = E[a,x] data[x]\no[x] = E[b,x] W[b,a] h[a]\nf = u[x] o[x]",
    "swiglu": """
        h1[a] = W1[a,x] data[x]
        phi[i] = gate(Q[i,a] h1[a])
        h2[i,k] = silu(U[i,k,b] h1[b]) V[i,k,a] h1[a]
        h3[b] = h1[b] + alpha phi[i] W3[i,b,k] h2[i,k]
        f = W4[b] layernorm(h3[b])
    """,
    "small-attention": """
        h[a,t] = W1[a,x] data[x,t]
        q[j,e,t] = Wq[j,e,a] h[a,t]
        k[j,e,s] = Wk[j,e,a] h[a,s]
        v[j,e,s] = Wv[j,e,a] h[a,s]
        p[j,t,s] = softmax(att q[j,e,t] k[j,e,s]; s)
        o[j,e,t] = p[j,t,s] v[j,e,s]
        z[a,t] = h[a,t] + Wo[a,j,e] o[j,e,t]
        n[a,t] = rmsnorm(z[a,t]; a)
        y[a] = Wm[a,b,t] relu(n[b,t])
        f = W4[a] y[a]
    """,
    "stopped": """
        h1[a] = W1[a,x] data[x]
        z[a] = stopped(h1[a] h1[a])
        h2[b] = W2[b,a] exp(h1[a]) + U[b,a] z[a]
        f = W4[b] tanh(h2[b])
    """,
    "constants": """
        h1[p,a] = W1[a,x] data[p,x]
        h2[p,a] = tanh(C[p,q] h1[q,a])
        h3[p,b] = W2[b,a] h2[p,a] + T[b,x] time[p,x]
        f = W4[b] relu(h3[p,b])
    """,
}
NETWORKS = {
    **ARCHITECTURES,
    **{
        name: network(
            name,
            text,
            {**AXES, "p": "S", "q": "S"} if name == "constants" else AXES,
            constants=("C", "time") * (name == "constants"),
        )
        for name, text in MORE.items()
    },
}
DIMS = {"N": 7, "N_e": 5, "M": 4, "L": 3}
DRAW = ReplicaDraw(DIMS, [1, 2, 3], [11, 12, 13])
TRAINABLE = [name for name, o in OPTIMIZERS.items() if o.torch]
MODES = ("init", "update")
EXACT = {"rtol": 1e-8, "atol": 1e-12}


def scaled(net, zero=(), tied=()):
    """Every tensor of std and learning rate about 1 / sqrt(5)."""
    third = Power()
    tensors = {r: TensorScaling(None if r in zero else third, third, third) for r in net.tensors}
    return Scaling(tensors, {m: Power.of({"N": 1}) for m in find_free_multipliers(net)}, tied)


def trained(name, rule="sgd", steps=2, draw=DRAW, **scaling):
    net = NETWORKS[name]
    model = TorchNetwork(net, draw, scaled(net, **scaling))
    with torch.no_grad():
        for w in model.weights.values():
            w *= 0.4
    run = TorchRun(model, optimizer(rule), keep=True)
    for _ in range(steps):
        run.trainer.step()
    return run


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_by_the_chain_rule_equal_autograds(name):
    run = trained(name)
    with torch.no_grad():
        for t in (0, 2):
            signals, raw = differentiate_with_autograd(run.states[t][1], 3)
            found = {name: run.gradient(name, t).entries for name in signals}
            found |= {role: run.states[t][1].of_weight(role) for role in raw}
            for name, theirs in (signals | raw).items():
                close = {"rtol": 1e-8, "atol": 1e-10 * theirs.abs().max().item()}
                torch.testing.assert_close(found[name], theirs, msg=f"{name}@{t}", **close)


PAIRS = [(name, "sgd") for name in NETWORKS]
PAIRS += [
    (name, rule) for name in ("moe", "swiglu", "small-attention", "routers-softmax-topk") for rule in ("adam", "adamw")
]


@pytest.mark.parametrize(("name", "rule"), PAIRS)
def test_parts_sum_to_their_whole(name, rule):
    run = trained(name, rule)
    net, t = run.network, 2
    with torch.no_grad():
        for s in net.statements:
            change = run.change(s.out, t).entries
            torch.testing.assert_close(run.initial(s.out).entries + change, run.value(s.out, t).entries, **EXACT)
            if isinstance(s, Product):
                parts = [("init", "change"), ("update", "initial"), ("update", "change")]
                terms = expand_product(net, s)
                if len(s.factors) > 1 or len(terms) > 1 or any(len(x.tensors) > 1 for x in terms):
                    parts = [("init", "change"), ("update", "value")]
                total = sum(run.part(s, *which, t).entries for which in parts) + run.gate_change(s, t).entries
                torch.testing.assert_close(total, change, msg=s.out, rtol=1e-7, atol=1e-9 * (1 + change.abs().max()))
        table = (
            list_quantities(net) if name not in ("thrice", "tied") else {}
        )  # one tensor used twice has mixed parts, too
        for whole in (q.removesuffix(".init-init") for q in table if q.endswith(".init-init")):
            if whole in table:
                found = [table[f"{whole}.{a}-{b}"].read(run, t).entries for a in MODES for b in MODES]
                expected = table[whole].read(run, t).entries
                scale = 1 + expected.abs().max()
                torch.testing.assert_close(sum(found), expected, msg=whole, rtol=1e-7, atol=1e-9 * scale)


@pytest.mark.parametrize("rule", ["sgd", "adam"])
def test_pieces_of_experts_are_sums_of_which_one_tensor_changed(rule):
    run, t = trained("swiglu", rule), 2
    (e,), table, (first, last) = (
        experts(run.network),
        list_quantities(run.network),
        (run.states[k][0].moment for k in (0, t)),
    )
    with torch.no_grad():
        pieces = {f"{e.out}.{piece}": role for piece, role in e.pieces.items() if role in e.tensors}
        assert list(pieces.values()) == ["U", "V", "W3"]
        for piece, role in pieces.items():
            weights = {name: (last if name == role else first).now[name] for name in first.now}
            expected = run.model.signals(weights, last.noise)[e.out] - run.initial(e.out).entries
            torch.testing.assert_close(table[piece].read(run, t).entries, expected, msg=piece, **EXACT)
        run = trained("moe", rule)
        inner, sums = (run.network.producer(x) for x in ("h2", "h3"))
        expected = run.part(sums, "init", "change", t, run.part(inner, "init", "change", t)).entries
        torch.testing.assert_close(list_quantities(run.network)["h3.A2.1"].read(run, t).entries, expected, **EXACT)


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        *(("routers-softmax-noise-topk", rule) for rule in TRAINABLE),
        ("routers-sigmoid-bias", "adam"),
        ("small-attention", "sgd"),
    ],
)
def test_replicas_trained_together_equal_replicas_trained_alone(name, rule):
    net = NETWORKS[name]
    d = replace(derive("III", rule, "sp"), scaling=scaled(net))
    setup = Setup(replace(d, configuration=d.configuration.but(network=net)), 2)
    together, alone = train_network(setup, DRAW), train_network(setup, ReplicaDraw(DIMS, [2], [12]))
    for key, values in alone.items():
        assert values[0] == pytest.approx(together[key][1], rel=1e-7, abs=1e-12, nan_ok=True), key


def test_decoupled_decay_is_not_an_update():
    """A zero readout passes no gradient: the other weights only decay, so their updates stay exactly zero."""
    run = trained("mlp", "adamw", steps=1, zero=("readout",))
    assert not run.update_size("hidden", 1).any() and not run.change("h2", 1).entries.any()
    assert run.update_size("readout", 1).all()
    starts = [batch.moment.start["hidden"] for _, batch in run.states]
    assert not torch.equal(*starts)


@pytest.mark.parametrize("name", ["moe", "routers-sigmoid", "swiglu"])
def test_paths_of_the_first_layers_change_sum_to_it(name):
    run = trained(name, steps=0)
    paths = list(dict.fromkeys(s.out for s, _ in run.network.consumers("h1")))
    for via in paths:
        run.trainer.follow("h1", via)
    run = TorchRun(run.model, optimizer("sgd"), keep=True)
    for via in paths:
        run.trainer.follow("h1", via)
    run.trainer.step(), run.trainer.step()
    with torch.no_grad():
        torch.testing.assert_close(
            sum(run.change_via("h1", 2, via).entries for via in paths), run.change("h1", 2).entries
        )
    with pytest.raises(NotMeasured):
        trained(name, "adam").change_via("h1", 2, paths[0])


def test_what_does_not_grow_is_the_same_at_every_size():
    net = NETWORKS["routers-softmax-bias"]
    small, large = (
        TorchNetwork(net, ReplicaDraw(DIMS | {"N": n}, [seed], [7], growing=["N", "N_e"]), scaled(net))
        for n, seed in ((8, 1), (16, 2))
    )
    assert torch.equal(small.weights["bias"], large.weights["bias"]) and torch.equal(small.x, large.x)
    assert not torch.equal(small.weights["input"], large.weights["input"][:, :8])


def test_tied_experts_start_equal():
    model = TorchNetwork(MOE_BLOCK, DRAW, scaled(MOE_BLOCK, tied=("expert_in",)))
    w2, w3 = model.weights["expert_in"][0], model.weights["expert_out"][0]
    assert torch.equal(w2[0], w2[3]) and not torch.equal(w3[0], w3[3])


def test_one_active_softmax_expert_gets_no_router_gradient():
    """Renormalised after the mask, its gate is 1 whatever its logit."""
    run = trained("routers-softmax-topk", draw=ReplicaDraw(DIMS | {"M": 2}, [1], [1]))
    assert not run.gradient("psi", 1).entries.any() and not run.gradient("psi", 2).entries.any()


def test_selections_take_half_and_noise_is_drawn_anew():
    run = trained("routers-softmax-noise-topk")
    assert ((run.value("phi", 2).entries > 0).sum(1) == 2).all()
    assert not torch.equal(run.value("shift", 1).entries, run.value("shift", 2).entries)
    assert torch.equal(run.initial("shift").entries, run.value("shift", 0).entries)


def test_entropy_of_the_gates():
    for name, active in (("routers-softmax", 4), ("routers-softmax-topk", 2)):
        d = derive("I", "sgd", "mup-sigmoid", architecture=name)
        found = train_network(Setup(d, 0), DRAW)
        run = TorchRun(TorchNetwork(d.network, DRAW, d.scaling), d.optimizer)
        by_hand = -torch.special.xlogy(run.value("phi", 0).entries, run.value("phi", 0).entries).sum(1)
        by_hand = by_hand / math.log(active)
        assert found["phi.entropy", 0] == pytest.approx(by_hand.detach().numpy(), abs=1e-9) and by_hand.max() <= 1
        assert found["phi.deficit", 0] == pytest.approx(1 - by_hand.detach().numpy(), abs=1e-9)


def test_data_that_grows_is_one_clear_line():
    net = network("wide", "h[b] = W[b,a] data[a]\nf = U[b] h[b]", AXES)
    with pytest.raises(UsageError, match="data has the index 'a' of a growing axis") as error:
        TorchNetwork(net, DRAW, scaled(net))
    assert "\n" not in str(error.value)


def test_a_tensor_that_stands_twice_in_a_product_is_contracted_twice():
    """sum_axy W_axk V_ayk d_x d_y: what is left of d after the first contraction is another factor."""
    sizes = {"a": 50, "k": 2, "x": 3, "y": 3}
    w, v, d = torch.randn(1, 50, 2, 3), torch.randn(1, 50, 2, 3), torch.randn(1, 3)
    found = contract([("akx", w), ("ayk", v.transpose(2, 3)), ("x", d), ("y", d)], "k", sizes)
    torch.testing.assert_close(found, torch.einsum("Zakx,Zaky,Zx,Zy->Zk", w, v, d, d), rtol=1e-4, atol=1e-4)


def test_an_output_that_is_a_sum_over_experts_is_measured():
    """f = sum_i p_i v_i: what a tensor makes of each expert is one number."""
    text = "h[a] = E[a,x] data[x]\ns[i] = Q[i,a] h[a]\np[i] = gate(s[i])\nv[i] = V[i,a] h[a]\nf = alpha p[i] v[i]"
    net = network("values", text, {"a": "N", "i": "M", "x": "D"})
    run = Setup(derive(ray="N=1,M=1", optimizer="sgd", parameterization="mup", network=net), steps=2)
    seen = train_network(run, ReplicaDraw({"N": 8, "M": 6}, [1, 2], [1, 2]), 2)
    assert all(seen[name, 1].shape == (2,) and seen[name, 1].all() for name in ("v.init", "v.effective", "f.change"))
