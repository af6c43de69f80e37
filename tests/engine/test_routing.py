"""K of M experts active: the reduction to an averaged batch, what it derives, and measurements.

Sizes of shares and of their sums: ``test_rules.py``.
"""

from fractions import Fraction
from itertools import combinations

import pytest

torch = pytest.importorskip("torch")

from scaling_algebra import UsageError, derive, explain, network, signals
from scaling_algebra.dynamics.sparse_routing import find_nonzero_function
from scaling_algebra.spec.powers import Power
from scaling_algebra.verify.judging.verdicts import judge
from scaling_algebra.verify.measuring.runs import measure
from scaling_algebra.verify.networks.replicas import ReplicaDraw
from scaling_algebra.verify.networks.torch_network import TorchNetwork

from .scenarios import LETTERS, shown, sizes
from .test_rules import NETWORKS

SPARSE = ["N=1,N_e=1,M=1,K=1/2", "N=1,N_e=1,M=1,K=0", "N=1,N_e=1/2,M=3/2,K=1"]
"""K/M vanishes; in the second ray the number of active experts is fixed."""


def test_the_batch_average_is_exact():
    """Gradients averaged over every choice of K of M experts: those of the whole block with K/M in its multiplier."""
    dims = {"N": 6, "N_e": 3, "M": 5, "K": 2}
    d = derive(None, "sgd", "mup", ray=SPARSE[0])
    model = TorchNetwork(d.network, ReplicaDraw(dims, [7], [7]), d.scaling)
    model().sum().backward()
    w = model.weights
    h1 = w["input"] @ model.x
    phi = torch.sigmoid((w["router"] @ h1[..., None])[..., 0])
    h3i = torch.einsum("sibk,sika,sa->sib", w["expert_out"], w["expert_in"], h1)
    choices = list(combinations(range(dims["M"]), dims["K"]))
    whole = 0.0
    for chosen in choices:  # every token with its own experts
        mask = torch.zeros(dims["M"], dtype=h3i.dtype)
        mask[list(chosen)] = 1
        h3 = (1 / d.scaling.alpha).at(dims) * torch.einsum("si,i,sib->sb", phi, mask, h3i)
        whole = whole + (w["readout"] * h3).sum() / len(choices)
    grads = torch.autograd.grad(whole, list(w.values()))
    wrong = w["expert_out"].grad * dims["M"] / dims["K"]  # negative control: without the share
    assert not torch.allclose(grads[list(w).index("expert_out")], wrong, rtol=1e-3)
    for symbol, grad in zip(w, grads, strict=True):
        assert torch.allclose(grad, w[symbol].grad, rtol=1e-12, atol=1e-15), symbol


@pytest.mark.parametrize("rule", ["sgd", "adam"])
@pytest.mark.parametrize("ray", SPARSE)
def test_sparsity_enters_mup_through_the_multiplier_alone(ray, rule):
    """The multiplier is 1/K; init std, learning rate and epsilon are those of K = M: the share K/M of the batch that an
    expert sees and the multiplier 1/K make 1/M."""
    sparse = derive(None, rule, "mup", ray=ray)
    dense = derive(None, rule, "mup", ray=ray.rpartition(",")[0])
    assert sparse.scaling.tensors == dense.scaling.tensors
    assert dense.scaling.alpha == Power.of({"M": 1})
    assert sparse.scaling.alpha.on(sparse.ray) == sparse.ray["K"]


def test_the_sum_over_active_experts_is_what_a_token_sees():
    """The random sum A1 is K^(-1/2); each expert's own signals do not know K; the raw gradient is that of K = M."""
    dense, sparse = (derive(None, "sgd", "mup", ray=ray).analysis() for ray in ("N=1,N_e=1,M=1", SPARSE[0]))
    for t in range(3):
        sizes(dense, f"h3.A1@{t} -1/2")
        sizes(sparse, f"h3.A1@{t} -1/4")
        for name in ("h3i.change", "gW2"):
            assert shown(sparse, name, t) == shown(dense, name, t)
        assert sparse("g2", t).exponent - dense("g2", t).exponent == Fraction(1, 2)  # per token M/K larger


def test_mssp_with_few_active_experts():
    """Regime III: tied experts as with K = M, and a zero router."""
    d = derive(None, "adam", "mssp", ray=SPARSE[0])
    assert set(d.scaling.tied) == {"expert_in", "expert_out"} and d.scaling.tensors["router"].init_std is None


def test_measured_with_few_active_experts(ray=SPARSE[0]):
    predicted = signals(None, "adam", "mup", ray=ray)
    d = predicted.derivation
    found = measure(d, sizes=[16, 25, 36, 64, 100], seeds=64)
    counts = judge(found, predicted.prediction()).counts
    assert counts["REFUTED"] == 0
    assert 3 * counts["AGREES"] > 2 * sum(counts.values())
    initial = measure(d, sizes=[16, 25, 36, 64, 100], seeds=400, steps=0)
    assert judge(initial, predicted.prediction()).counts["REFUTED"] == 0
    dense = signals(None, "adam", "mup", ray="N=1,N_e=1,M=1").prediction()
    wrong = [row for row in judge(initial, dense).rows if str(row.verdict) == "REFUTED"]
    assert {row.quantity for row in wrong} >= {"h3.A1", "g1", "g3i.init"}  # K = M is refuted where it differs


def test_explanations_say_over_what_a_sum_runs():
    text = str(explain("h3.A2.2@2", None, "sgd", "mup", ray=SPARSE[0]))
    assert "active experts" in text and "share K/M of the batch" in text
    look = derive(None, "adam", "mssp", ray=SPARSE[1]).analysis()
    sizes = {name: look(name, 2).exponent for name in look.table}
    for name in (name for name, size in sizes.items() if size is not None):
        assert explain(f"{name}@2", None, "adam", "mssp", ray=SPARSE[1]).exponent == sizes[name]


@pytest.mark.parametrize("u", ["tanh(h3[b])", "h3[b] h3[b]"])
def test_a_function_of_a_sum_over_active_experts_is_refused(u):
    """A mean of squares is no square of a mean: where h3 is n^0, the gradient of W4 is, not n^(-1/2)."""
    block = NETWORKS["TOPK_GATED"].replace("f = W4[b] h3[b]", f"u[b] = {u}\nf = W4[b] u[b]")
    with pytest.raises(UsageError, match=r"u is a function of a sum over active experts.*give a ray with K = M"):
        derive(None, "sgd", "mup", ray=SPARSE[0], network=network("behind", block, LETTERS))


@pytest.mark.parametrize(("gate", "holds"), [("exp", False), ("sigmoid", False), ("tanh", True)])
def test_a_gate_that_is_not_zero_at_other_experts_is_refused(gate, holds):
    """There all experts add, not the K of a token; behind a sum over them nothing is zero at any."""
    more = "v[i] = R[i,b] h3[b]\ng[i] = sigmoid(v[i])\no[i,b] = S[i,b,c] h3[c]\nh4[b] = g[i] o[i,b]\nf = W4[b] h4[b]"
    two = NETWORKS["TOPK_GATED"].replace("f = W4[b] h3[b]", more)
    assert find_nonzero_function(network("two", two, LETTERS | {"c": "N"})) is None
    block = NETWORKS["TOPK_GATED"].replace("topk_softmax(psi[i]; i)", f"{gate}(topk_sigmoid(psi[i]))")
    net = network("gated", block, LETTERS)
    if holds:
        assert find_nonzero_function(net) is None
        return
    with pytest.raises(UsageError, match="phi is not zero at experts that a token does not select; give a ray with K"):
        derive(None, "sgd", "mup", ray=SPARSE[0], network=net)
