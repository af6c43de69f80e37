"""K of M experts active: the reduction to an averaged batch, what it derives, and measurements."""

from fractions import Fraction
from itertools import combinations

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")

from scaling_algebra import UsageError, derive, explain, network, signals
from scaling_algebra.cli import main
from scaling_algebra.dynamics.analysis import Analysis
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.networks.library import MOE_BLOCK
from scaling_algebra.spec.optimizers import optimizer
from scaling_algebra.spec.powers import Power
from scaling_algebra.spec.scaling import Point
from scaling_algebra.verify.judging.report import judge
from scaling_algebra.verify.measuring.runs import measure
from scaling_algebra.verify.networks.moe_block import MoEBlock, Replicas

SPARSE = ["N=1,N_e=1,M=1,K=1/2", "N=1,N_e=1,M=1,K=0", "N=1,N_e=1/2,M=3/2,K=1"]
"""K/M vanishes; in the second ray the number of active experts is fixed."""


def test_the_batch_average_is_exact():
    """Gradients averaged over every choice of K of M experts: those of the whole block with K/M in its multiplier."""
    dims = {"N": 6, "N_e": 3, "M": 5, "K": 2}
    d = derive(None, "sgd", "mup", ray=SPARSE[0])
    model = MoEBlock(Replicas(dims, [7]), d.scaling)
    model().sum().backward()
    w = model.weights
    h1 = w["W1"] @ model.x
    phi = torch.sigmoid((w["Q"] @ h1[..., None])[..., 0])
    h3i = torch.einsum("sikb,sika,sa->sib", w["W3"], w["W2"], h1)
    choices = list(combinations(range(dims["M"]), dims["K"]))
    whole = 0.0
    for chosen in choices:  # every token with its own experts
        mask = torch.zeros(dims["M"], dtype=h3i.dtype)
        mask[list(chosen)] = 1
        h3 = (1 / d.scaling.alpha).at(dims) * torch.einsum("si,i,sib->sb", phi, mask, h3i)
        whole = whole + (w["W4"] * h3).sum() / len(choices)
    grads = torch.autograd.grad(whole, list(w.values()))
    wrong = w["W3"].grad * dims["M"] / dims["K"]  # negative control: without the share
    assert not torch.allclose(grads[list(w).index("W3")], wrong, rtol=1e-3)
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
    dense, sparse = (
        signals(None, "sgd", "mup", ray=ray, quantities=["h3.A1", "h3i.change", "gW2", "g2"]).quantities
        for ray in ("N=1,N_e=1,M=1", SPARSE[0])
    )
    assert [str(a) for a in sparse["h3.A1"]] == ["-1/4"] * 3
    assert [str(a) for a in dense["h3.A1"]] == ["-1/2"] * 3
    for name in ("h3i.change", "gW2"):
        assert [str(a) for a in sparse[name]] == [str(a) for a in dense[name]]
    active = [a.exponent - b.exponent for a, b in zip(sparse["g2"], dense["g2"], strict=True)]
    assert active == [Fraction(1, 2)] * 3  # per token M/K larger than averaged


def test_mssp_with_few_active_experts():
    """Regime III: tied experts as with K = M, and a zero router."""
    d = derive(None, "adam", "mssp", ray=SPARSE[0])
    assert set(d.scaling.tied) == {"expert_in", "expert_out"} and d.scaling.tensors["router"].init_std is None


@pytest.mark.parametrize("ray", SPARSE[:2])
def test_measured_with_few_active_experts(ray):
    predicted = signals(None, "adam", "mup", ray=ray)
    d = predicted.derivation
    found = measure(d, sizes=[25, 36, 49, 64, 81], seeds=32)
    counts = judge(found, predicted.prediction()).counts
    assert counts["REFUTED"] == 0
    assert 3 * counts["AGREES"] > 2 * sum(counts.values())
    dense = signals(None, "adam", "mup", ray="N=1,N_e=1,M=1").prediction()
    wrong = [row for row in judge(found, dense).rows if str(row.verdict) == "REFUTED"]
    assert {row.quantity for row in wrong} >= {"h3.A1", "g3i.init"}  # K = M is refuted where it differs


GATED = """h1[a] = W1[a,x] data[x]
psi[i] = Q[i,a] h1[a]
phi[i] = topk_softmax(psi[i]; i)
h2[i,k] = W2[i,k,a] h1[a]
h3i[i,b] = W3[i,b,k] h2[i,k]
h3[b] = alpha phi[i] h3i[i,b]
f = W4[b] h3[b]"""


@pytest.mark.parametrize(
    "gate, share, above, gphi", [("topk_softmax", "-1/2", True, "0"), ("softmax", "-1", False, "1/2")]
)
def test_shares_of_active_and_of_all_experts(gate, share, above, gphi):
    """Of K active ones 1/K, also in the batch, of all 1/M, whose token's gradient at the logits is not known; the sizes
    are measured (tests/measure/test_sparse_gates.py)."""
    half = Fraction(1, 2)
    b, alpha = {"W1": 0, "Q": half, "W2": half, "W3": half, "W4": 1}, 0 if above else -half
    c = {"W1": -1, "Q": 0, "W2": -1, "W3": -1, "W4": 1}
    net = network(f"gated-{gate}", GATED.replace("topk_softmax", gate), MOE_BLOCK.axes)
    point = Point(
        {x: Fraction(y) for x, y in b.items()},
        {x: Fraction(y) for x, y in c.items()},
        dict.fromkeys(b, Fraction(0)),
        {"alpha": Fraction(alpha)},
    )
    look = Analysis(Ray({"N": 1, "N_e": 1, "M": 1, "K": half}), point, optimizer("sgd"), net)
    assert str(look("phi", 1)) == share and look("gpsi", 1).decided == above
    assert "random-routing" in look("phi.change", 1).assumes
    assert [str(look(name, 1)) for name in ("h2.change", "h3i.change", "gphi")] == ["0", "0", gphi]


@pytest.mark.parametrize("scaled", ["", "alpha beta "])
def test_every_sum_over_experts_has_the_share_of_the_batch_once(scaled):
    """Whatever multipliers it has: gradients of experts are those with one, of the power 0."""
    sizes = []
    for multipliers in ("alpha ", scaled):
        net = network("shared", GATED.replace("alpha ", multipliers), MOE_BLOCK.axes)
        powers = dict(zip(("W1", "Q", "W2", "W3", "W4"), map(Fraction, ("0", "1/2", "1/2", "1/2", "1")), strict=True))
        point = Point(powers, powers, powers, dict.fromkeys(net.free_multipliers, Fraction(0)))
        look = Analysis(Ray.parse(SPARSE[0]), point, optimizer("sgd"), net)
        sizes.append([str(look(name, 0)) for name in ("gW2", "gW3", "gW4")])
    assert sizes[0] == sizes[1]


def test_a_selection_along_another_index_is_no_routing():
    """What it selects before the experts is the same for every token: measured (tests/measure/random_networks.py, case
    407), where the engine had taken it for the routing, and its change for n^(-1/2)."""
    block = """h1[a] = W1[a,x] data[x]
h2[a] = topk_sigmoid(h1[a]; a)
h3[b] = W[b,a] h2[a]
w[i,k] = W2[i,k,b] h3[b]
h4i[i,b] = W3[i,b,k] w[i,k]
h4[b] = alpha h4i[i,b]
f = W4[b] h4[b]"""
    net = network("selected", block, MOE_BLOCK.axes)
    for ray in ("N=1,N_e=1,M=1", SPARSE[0]):
        look = signals(None, "sgd", "mup", ray=ray, network=net).derivation.analysis()
        assert str(look("h2.change", 1)) == "-1/4"


def test_explanations_say_over_what_a_sum_runs():
    text = str(explain("h3.A2.2@2", None, "sgd", "mup", ray=SPARSE[0]))
    assert "active experts" in text and "times K/M, the share of the batch" in text
    every = derive(None, "adam", "mssp", ray=SPARSE[1])
    for quantity in every.analysis().table:
        if every.analysis()(quantity, 2).exponent is not None:
            assert explain(f"{quantity}@2", None, "adam", "mssp", ray=SPARSE[1]).exponent == (
                every.analysis()(quantity, 2).exponent
            )


@pytest.mark.parametrize("u", ["tanh(h3[b])", "h3[b] h3[b]"])
def test_a_function_of_a_sum_over_active_experts_is_refused(u):
    """A mean of squares is no square of a mean: where h3 is n^0, the gradient of W4 is, not n^(-1/2)."""
    block = GATED.replace("f = W4[b] h3[b]", f"u[b] = {u}\nf = W4[b] u[b]")
    with pytest.raises(UsageError, match=r"u is a function of a sum over active experts.*give a ray with K = M"):
        derive(None, "sgd", "mup", ray=SPARSE[0], network=network("behind", block, MOE_BLOCK.axes))


def test_proofs_are_for_all_experts():
    result = CliRunner().invoke(main, ["derive", "--ray", SPARSE[0], "--parameterization", "mup", "--prove"])
    assert result.exit_code == 2 and "proofs are for K = M" in result.stderr
