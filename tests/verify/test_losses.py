"""Losses beside the output: what their weights are, and sizes of their gradients in training."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from scaling_algebra import derive, signals
from scaling_algebra.errors import UsageError
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.networks.files import as_toml, from_toml
from scaling_algebra.verify.apply.extra_losses import compare_extra_losses, describe_loss_weight
from scaling_algebra.verify.judging.measurement import Measurement
from scaling_algebra.verify.measuring.sizes import compute_dims
from scaling_algebra.verify.networks.moment import compute_rms
from scaling_algebra.verify.networks.replicas import ReplicaDraw
from scaling_algebra.verify.networks.run import TorchRun
from scaling_algebra.verify.networks.torch_network import TorchNetwork
from scaling_algebra.verify.tracing.readings import trace_equations

TEXT = """
axes = { a = "N", b = "N", i = "M", k = "N_e", x = "D" }
roles = { W1 = "input", Q = "router", W2 = "expert_in", W3 = "expert_out", W4 = "readout" }
constants = ["load", "c"]
losses = ["balance", "z"]
equations = '''
h1[a]    = W1[a,x] data[x]
psi[i]   = Q[i,a] h1[a]
phi[i]   = bounded_softmax(psi[i])
h2[i,k]  = W2[i,k,a] h1[a]
h3i[i,b] = W3[i,b,k] h2[i,k]
h3[b]    = phi[i] h3i[i,b]
balance  = w load[i] phi[i]
lse      = c + phi[i] psi[i]
z        = v lse lse
f        = W4[b] h3[b]
'''
"""
"""Load balancing, and a z-loss: log sum exp psi is log M + phi psi but for the entropy, which has no other powers."""
SOFTMAX = from_toml(TEXT)
BALANCE = from_toml(
    TEXT.replace("lse      =", "#").replace("z        =", "#").replace(', "c"', "").replace(', "z"', "")
)
GATE = from_toml(as_toml(BALANCE).replace("bounded_softmax", "gate").replace("h3[b]    =", "h3[b]    = alpha"))
MUP = {"regime": "II", "optimizer": "sgd", "parameterization": "mup"}


def test_weights_keep_gradients_at_one_scale():
    """MSSP paper, Table B.2: both weights are 1, of a softmax, and no other exponent changes. Of gates
    that are not normalised the mean is taken (control)."""
    d = derive(**MUP, network=SOFTMAX)
    assert {m: str(1 / x) for m, x in d.scaling.multipliers.items()} == {"w": "1", "v": "1"}
    assert d.level.certified and d.scaling.tensors == derive(**MUP, architecture="moe-softmax").scaling.tensors
    assert str(1 / derive(**MUP, network=GATE).scaling.multipliers["w"]) == "M^-1"


@pytest.mark.parametrize(("given", "size"), [("w=1", "n^(1)"), ("w=M^-2", "n^(-1)")])
def test_a_weight_that_does_not_is_told(given, size):
    (unmet,) = derive(**MUP, network=GATE, given=given).unmet
    assert "the gradient of balance at psi is as large as that of f" in unmet and size in unmet


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("w load[i] phi[i]", "load[i] phi[i]"), "balance has no weight"),
        (('"balance", "z"', '"balance", "lse"'), "lse is read"),
        (('"balance", "z"', '"balance", "q"'), "q is not computed"),
        (('losses = ["balance", "z"]', 'losses = ["z"]'), "balance is never read"),
    ],
)
def test_what_is_no_loss_is_refused(change, said):
    with pytest.raises(UsageError, match=said):
        from_toml(TEXT.replace(*change))


def test_a_text_with_losses_is_read_again():
    assert from_toml(as_toml(SOFTMAX)) == SOFTMAX


def test_sizes_of_gradients_are_measured():
    """Slopes at the router's logits beside those of the engine, before or after an update; the gradient of the z-loss
    that people add, by torch, is as large as that of the equations."""
    steps, found = {"gpsi.by-f": 0, "gpsi.by-balance": 1, "gpsi.by-z": 1}, {}
    d, sizes = derive(**MUP, network=SOFTMAX), (32, 64, 128)
    look = signals(**MUP, network=SOFTMAX, steps=1, quantities=[*steps]).quantities
    predicted = {name: look[name][t].exponent for name, t in steps.items()}
    for n in sizes:
        model = TorchNetwork(SOFTMAX, ReplicaDraw(compute_dims(d.ray, n), range(48), range(48)), d.scaling)
        run = TorchRun(model, d.optimizer, keep=True)
        for group in run.trainer.stepper.param_groups:
            group["lr"] *= 0.03
        run.trainer.step()
        for name, t in steps.items():
            g = run.for_loss(name.removeprefix("gpsi.by-")).gradient("psi", t)
            found.setdefault(name, []).append(float(g.rms().median()))
        view, whole = run.for_loss("f"), [run.for_loss("f").gradient("psi", t).entries for t in (0, 1)]
        assert all(torch.equal(view.gradient("psi", t).entries, whole[t]) for t in (0, 1))  # one view at several times
        assert not torch.equal(*whole)
        psi = run.value("psi", 1).entries.requires_grad_()
        (g,) = torch.autograd.grad((psi.logsumexp(1) ** 2).sum(), psi)
        found.setdefault("torch's", []).append(float(compute_rms(g).median()) / np.log(n))
    slope = {name: np.polyfit(np.log(sizes), np.log(row), 1)[0] for name, row in found.items()}
    assert list(map(str, predicted.values())) == ["-3/2", "-1", "-1"]
    for name, exponent in {**predicted, "torch's": -1}.items():
        assert slope[name] == pytest.approx(float(exponent), abs=0.15)


class Balanced(torch.nn.Module):
    """Returns its output, and a load-balancing loss that no rule of the table reads."""

    def __init__(self, n, m):
        super().__init__()
        self.up, self.router = torch.nn.Linear(5, n, bias=False), torch.nn.Linear(n, m, bias=False)
        self.down = torch.nn.Parameter(torch.randn(m, n, 3) / n)

    def forward(self, x):
        h = self.up(x)
        shares = self.router(h).softmax(-1)
        load = torch.nn.functional.one_hot(shares.argmax(-1), shares.shape[-1]).double().mean(0)
        return torch.einsum("tm,mno,tn->to", shares, self.down, h), len(load) * (load * shares.mean(0)).sum()


def test_a_module_may_return_losses():
    """They are left out of its equations, and their gradients are measured beside that of the output."""
    read = trace_equations(lambda s: (Balanced(s["N"], s["M"]), torch.randn(4, 5)), {"N": 16, "M": 4})
    assert not read.network.unread and "one_hot" not in read.text
    ratios = compare_extra_losses(Balanced(16, 4).double(), ((torch.randn(4, 5).double(),), {}))
    assert {name for _, name in ratios} == {"up.weight", "router.weight"}


@pytest.mark.parametrize(("power", "said"), [(0, "one weight does"), (1, "WARNING, its weight is to go as n^(-1.00)")])
def test_gradients_that_come_apart_are_told(power, said):
    m = Measurement(Ray({"N": 1}), 2)
    m.sizes = [1, 2, 4]
    found = {"router": [n**power * np.array([2.0, 2.1, 1.9, 2.0]) for n in m.sizes]}
    assert said in describe_loss_weight("aux", found, m)
    found["router"][0] = np.zeros(0)
    assert "is zero at some of these sizes" in describe_loss_weight("aux", found, m)
