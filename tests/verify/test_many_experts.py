"""Routers whose experts grow in number: a softmax collapses onto one expert, and the rate of an expert bias stays."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from scaling_algebra.solver.derivation import derive, signals
from scaling_algebra.spec.networks.grammar import network
from scaling_algebra.spec.networks.library import AXES, MOE_BLOCK
from scaling_algebra.spec.networks.printing import as_text
from scaling_algebra.verify.measuring.sizes import compute_dims
from scaling_algebra.verify.measuring.training import differentiate_with_autograd
from scaling_algebra.verify.networks.replicas import ReplicaDraw
from scaling_algebra.verify.networks.run import TorchRun
from scaling_algebra.verify.networks.torch_network import TorchNetwork
from scaling_algebra.verify.tracing.readings import trace_equations


def spread(gate, lr, n, z=0.0, seeds=32, regime="II"):
    """Median over seeds of the rms of M phi, and the share of seeds where one expert has more than half, after two
    updates of SGD with muP's powers; chi = 1, base constants 1, z-loss of weight z."""
    d, seeds = derive(regime, "sgd", "mup"), list(range(seeds))
    equations = as_text(MOE_BLOCK).replace("gate(", f"{gate}(")
    if gate == "softmax":  # it brings the mean itself
        equations = equations.replace("alpha phi", "phi")
    net = network(f"moe-{gate}", equations, AXES, {t.symbol: role for role, t in MOE_BLOCK.tensors.items()})
    dims = compute_dims(d.ray, n)
    model = TorchNetwork(net, ReplicaDraw(dims, seeds, seeds), d.scaling)
    with torch.no_grad():
        for role, weight in model.weights.items():
            weight.div_(model.constants.init_of(role))
    optimizer = model.optimizer(d.optimizer)
    for group in optimizer.param_groups:
        group["lr"] = lr * d.scaling.tensors[group["symbol"]].lr.at(dims)
    for _ in range(2):
        optimizer.zero_grad()
        (model() + z * model.signals(model.weights, {})["psi"].logsumexp(1) ** 2).sum().backward()
        optimizer.step()
    phi = model.signals(model.weights, {})["phi"].detach()
    phi = phi / phi.sum(1, keepdim=True)
    rms = (dims["M"] * phi).pow(2).mean(1).sqrt()
    return float(rms.median()), float((phi.max(1).values > 0.5).double().mean())


@pytest.mark.parametrize("n", [64, 128])
def test_the_rate_decides_whether_a_softmax_collapses(n):
    """MSSP paper, App. A and J.1 (the same exponents under a softmax), and what that assumes: bounded logits.

    At a small rate the median stays near its start and few seeds collapse; at ten times that rate all do, and the rms
    of M phi is sqrt(M), its largest value, so that no exponent of muP is left. A sigmoid is flat at both (control). In
    between a z-loss keeps the logits bounded if its weight is large enough.
    """
    small, large = spread("softmax", 0.03, n), spread("softmax", 0.3, n)
    assert small[0] < 2 and small[1] < 0.2
    assert large[0] == pytest.approx(n**0.5, rel=1e-3) and large[1] > 0.9
    assert spread("softmax", 0.1, n, 0.001)[1] > 0.5 > 0.2 > spread("softmax", 0.1, n, 0.1)[1]
    for lr in (0.03, 0.3):
        assert spread("sigmoid", lr, n)[0] < 1.2 and spread("sigmoid", lr, n)[1] == 0


@pytest.mark.parametrize("rate", ["constant", "1/M"])
def test_a_constant_rate_of_the_expert_bias_shifts_a_constant_share(rate):
    """HP-transfer paper, Rule 2 and App. B, its printed code: at fixed sparsity 1/8 a constant rate changes a share of
    the active experts that does not depend on their number M; a rate ~ 1/M changes ever fewer (control)."""
    random, changed = np.random.default_rng(0), {}
    for m in (64, 256, 1024):
        active, shares = m // 8, []
        for _ in range(4096 // m * 8):
            scores = 1 / (1 + np.exp(-0.02 * random.standard_normal(m))) + 0.05 * random.uniform(size=m)
            moved = scores + (0.01 if rate == "constant" else 0.64 / m) * random.uniform(size=m)
            kept = np.intersect1d(np.argsort(scores)[-active:], np.argsort(moved)[-active:])
            shares.append(1 - len(kept) / active)
        changed[m] = float(np.mean(shares))
    if rate == "constant":
        assert changed[64] > 0.05 and changed[1024] == pytest.approx(changed[64], rel=0.2)
    else:
        assert changed[1024] < changed[64] / 4


@pytest.mark.parametrize(("regime", "optimizer"), [("I", "adamw"), ("II", "sgd")])
def test_the_bias_of_a_selection_starts_at_zero_with_rate_one(regime, optimizer):
    """HP-transfer paper, Rule 2, derived: a tensor that only shifts a selection has no gradient; its step, the sign of
    a count of tokens, is Theta(1) as the scores are."""
    d = derive(regime, optimizer, "mup", architecture="moe-load")
    assert d.optimizer.of("expert_bias").name == "load" and d.optimizer.name == optimizer
    assert d["expert_bias"].init_std is None and str(d["expert_bias"].lr) == "1" and d["expert_bias"].eps is None
    assert all("scores" in d.reasons["expert_bias", x] for x in ("init", "lr"))
    unknown = signals(regime, optimizer, "mup", architecture="moe-load", quantities=["chosen.change"], steps=1)
    assert not d.level.certified and [x.decided for x in unknown.quantities["chosen.change"]] == [True, False]


def test_a_selection_by_scores_below_its_bias_is_that_of_the_count():
    """With experts fixed in number scores start at n^(-1/2), and the first step of the bias swaps exactly what was
    chosen: nothing is drawn at random, so the second selection is undecided. With scores of Theta(1) (II) it is not the
    complement of the first."""
    for regime, swapped in (("I", True), ("II", False)):
        d = derive(regime, "sgd", "mup", architecture="moe-load")
        model = TorchNetwork(d.network, ReplicaDraw(compute_dims(d.ray, 256), range(8), range(8)), d.scaling)
        run = TorchRun(model, d.optimizer, keep=True)
        first = run.value("chosen", 0).entries
        run.trainer.step()
        both = ((run.value("chosen", 1).entries > 0) & (first > 0)).double().mean()
        assert (both == 0) == swapped, (regime, both)


@pytest.mark.parametrize("rate", ["derived", "1/M"])
def test_a_step_of_the_bias_swaps_a_constant_share_of_the_selection(rate):
    """In training: its steps are those of the count alone, and the share of the selection that the first one swaps does
    not depend on the number of experts; with a rate ~ 1/M it falls (control)."""
    d, shares = derive("II", "sgd", "mup", architecture="moe-load"), []
    for n in (32, 128):
        model = TorchNetwork(d.network, ReplicaDraw(compute_dims(d.ray, n), range(16), range(16)), d.scaling)
        run = TorchRun(model, d.optimizer, keep=True)
        for group in run.trainer.stepper.param_groups:
            own = 0.5 if rate == "derived" else 16 / n
            group["lr"] *= own if group["symbol"] == "expert_bias" else 1e-3
        chosen = run.value("chosen", 0).entries
        run.trainer.step()
        moved = run.change("shift", 1).entries
        assert ((moved < 0) == (chosen > 0)).all() and moved.abs().std() < 1e-6
        assert not differentiate_with_autograd(run.states[0][1], 4)[1]["expert_bias"].any()
        shares.append(float((run.change("chosen", 1).entries.abs()).mean()))
    assert (shares[1] == pytest.approx(shares[0], rel=0.25)) == (rate == "derived") and shares[0] > 0.1


class Gate(torch.nn.Module):
    def __init__(self, n, m, added):
        super().__init__()
        self.up, self.router = torch.nn.Linear(5, n, bias=False), torch.nn.Linear(n, m, bias=False)
        self.down = torch.nn.Parameter(torch.randn(m, n, 3) / n)
        self.added = added
        self.register_buffer("load", torch.zeros(m))

    def forward(self, x):
        h = self.up(x)
        scores = self.router(h).sigmoid()
        index = (scores + self.load).topk(scores.shape[-1], -1)[1]
        taken = scores + self.load if self.added else scores
        weights = torch.zeros_like(scores).scatter(-1, index, taken.gather(-1, index))
        return torch.einsum("tm,mno,tn->to", weights, self.down, h)


@pytest.mark.parametrize("added", [0, 1])
def test_a_buffer_that_only_selects_is_named(added):
    """One that is part of the output, too, is not (control)."""
    read = trace_equations(lambda s: (Gate(s["N"], s["M"], added), torch.randn(4, 5)), {"N": 16, "M": 4})
    assert any(x.startswith("load: a buffer that only affects") for x in read.lines) == (not added)
