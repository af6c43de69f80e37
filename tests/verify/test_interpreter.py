"""The interpreter that judges the engine: against a module written by hand, and against the product's own reading."""

import pytest

torch = pytest.importorskip("torch")

from scaling_algebra import network
from scaling_algebra.dynamics.quantities import list_quantities
from scaling_algebra.spec.optimizers import OPTIMIZERS
from scaling_algebra.spec.powers import Power
from scaling_algebra.spec.scaling import Scaling, TensorScaling
from scaling_algebra.verify.networks.moment import compute_rms
from scaling_algebra.verify.networks.replicas import ReplicaDraw
from scaling_algebra.verify.networks.run import TorchRun
from scaling_algebra.verify.networks.torch_network import TorchNetwork

from ..measure.interpreter import InterpretedRun, orthogonal
from ..measure.networks import from_text

DEEP = """
    h1[a] = W1[a,x] data[x]
    h2[b] = W[b,a] h1[a]
    u[b] = tanh(h2[b])
    h3[c] = V[c,b] u[b]
    f = W2[c] h3[c]
"""
EXPERTS = """
    h1[a] = W1[a,x] data[x]
    h2[i] = Q[i,a] h1[a]
    h3[i] = topk_softmax(h2[i]; i)
    h4[i,k] = U[i,k,a] h1[a]
    h5[i,k] = silu(h4[i,k])
    h6[i,b] = V[i,b,k] h5[i,k]
    h7[b] = alpha h3[i] h6[i,b]
    h8[b] = S[b,a] h1[a]
    h9[b] = h7[b] + h8[b]
    f = W2[b] h9[b]
"""
TIED = """
    h1[a] = W1[a,x] data[x]
    h2[b] = W[b,a] h1[a]
    h3[b] = layernorm(h2[b]; b)
    h4[a] = W[b,a] h3[b]
    h5[a] = rmsnorm(h4[a]; a)
    h6[a] = B[a,x] data[x]
    h7[a] = h5[a] + h6[a]
    h8 = beta h7[a] h7[a]
    h9 = W2[a] h7[a]
    f = h8 + h9
"""
RULES = ("sgd", "momentum", "adam", "adamw", "signsgd", "lion")


def begun(text, rule, seeds=3, ray="N=1,N_e=1,M=1"):
    case = from_text("fixed", text, rule, ray)
    names = [f"{x}.{name}" for x in "bcd" for name in case.tensors]
    return InterpretedRun(case, dict.fromkeys(names, 0), 1.0, seeds)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("text", (DEEP, EXPERTS, TIED))
def test_equals_the_reading_of_the_product(text, rule):
    run = begun(text, rule)
    net = network("fixed", text, run.case.axes)
    dims = {axis: run.sizes[x] for x, axis in run.case.axes.items()}
    scaling = Scaling({role: TensorScaling(Power(), Power(), Power()) for role in net.tensors})
    model = TorchNetwork(net, ReplicaDraw(dims, range(3), range(3)), scaling)
    model.multipliers = dict(run.multipliers)
    model.sizes.update({x: run.sizes[x] for x in run.case.axes})
    model.x = run.data[0, 0]
    for role, w in run.start.items():
        model.weights[role].data = w.clone()
    theirs = TorchRun(model, OPTIMIZERS[rule])
    for group in theirs.trainer.stepper.param_groups:
        run.steps.lr[group["symbol"]], run.steps.eps[group["symbol"]] = group["lr"], group.get("eps", 0.0)
    table, compared = list_quantities(net), 0
    for t in range(3):
        for name, mine in run.quantities():
            if name in table:
                read = table[name].read(theirs, t)
                read = compute_rms(getattr(read, "entries", read)) if not table[name].tensor else read
                assert torch.allclose(mine.abs(), read, rtol=1e-9, atol=1e-13), (name, t, mine, read)
                compared += 1
        if t < 2:
            run.step()
            theirs.trainer.step()
    assert compared > 100


def test_equals_a_module_by_hand():
    run = begun(DEEP, "adam", seeds=1)
    weights = {k: torch.nn.Parameter(w[0].clone()) for k, w in run.start.items()}
    groups = [{"params": [w], "lr": run.steps.lr[k], "eps": run.steps.eps[k]} for k, w in weights.items()]
    stepper = torch.optim.Adam(groups)
    for _ in range(3):
        f = weights["W2"] @ weights["V"] @ torch.tanh(weights["W"] @ weights["W1"] @ run.data[0, 0])
        assert torch.allclose(f, run.now["f"][0, 0], rtol=1e-10)
        stepper.zero_grad()
        f.backward()
        stepper.step()
        run.step()
        assert all(torch.allclose(w, run.weights[k][0], rtol=1e-9) for k, w in weights.items())


def test_every_token_has_experts_of_its_own():
    """Against a module by hand: shares of a token's experts, their sum, and the loss averaged over tokens."""
    text = EXPERTS.replace("h8[b] = S[b,a] h1[a]\n    h9[b] = h7[b] + h8[b]\n", "").replace("h9[b]", "h7[b]")
    run = begun(text, "sgd", seeds=1, ray="N=1,N_e=1,M=1,K=1/2")
    weights = {k: torch.nn.Parameter(w[0].clone()) for k, w in run.start.items()}
    stepper = torch.optim.SGD([{"params": [w], "lr": run.steps.lr[k]} for k, w in weights.items()])
    chosen = run.chosen[0].bool()
    assert len({tuple(x) for x in chosen.tolist()}) > 10 and set(chosen.sum(1).tolist()) == {4}
    for _ in range(2):
        h = weights["W1"] @ run.data[0, 0]
        shares = torch.where(chosen, weights["Q"] @ h, -torch.inf).softmax(1)
        experts = torch.einsum("ibk,ik->ib", weights["V"], torch.nn.functional.silu(weights["U"] @ h))
        loss = (run.multipliers["alpha"] * shares @ experts @ weights["W2"]).mean()
        assert torch.allclose(loss, run.now["f"][0].mean(), rtol=1e-10)
        stepper.zero_grad()
        loss.backward()
        stepper.step()
        run.step()
        assert all(torch.allclose(w, run.weights[k][0], rtol=1e-9) for k, w in weights.items())


def test_orthogonal_gradients_are_exact():
    """Muon's step has singular values 1; the shortcut for low rank is the decomposition of the whole."""
    low = torch.randn(2, 40, 3, dtype=torch.float64) @ torch.randn(2, 3, 50, dtype=torch.float64)
    u, s, v = torch.linalg.svd(low, full_matrices=False)
    assert torch.allclose(orthogonal(low), (u * (s > 1e-9)[:, None]) @ v, atol=1e-10)
    run = begun(DEEP.replace("V[c,b]", "W[c,b]"), "muon")
    run.steps.lr = dict.fromkeys(run.steps.lr, 1.0)
    run.step()
    values = torch.linalg.svdvals(run.moved["W"])
    assert torch.allclose(values[:, :2], torch.ones(3, 2, dtype=torch.float64)) and values[:, 2:].max() < 1e-9
