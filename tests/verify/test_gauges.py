"""Gauges in torch: two networks written by hand give the same outputs in all of them, and others in a mixture."""

from itertools import product

import pytest
import torch

from scaling_algebra import derive
from scaling_algebra.spec.gauges import GAUGES, OWN
from scaling_algebra.spec.scaling import TensorScaling

SHIFTED = sorted(set(GAUGES) - {OWN})
SIZES = {"N": 24, "N_e": 12, "M": 6, "K": 6}
SHAPES = {
    "moe": {"input": (24, 5), "router": (6, 24), "expert_in": (6, 12, 24), "expert_out": (6, 24, 12), "readout": (24,)},
    "mlp": {"input": (24, 5), "hidden": (24, 24), "readout": (24,)},
}


def moe(W, x, alpha):
    """Written by hand: no reading of the language stands between the test and torch."""
    h = torch.tanh(x @ W["input"].T)
    gates = torch.sigmoid(h @ W["router"].T)
    inner = torch.tanh(torch.einsum("ika,ta->tik", W["expert_in"], h))
    return alpha * torch.einsum("ti,ibk,tik->tb", gates, W["expert_out"], inner) @ W["readout"]


def mlp(W, x, alpha):
    return torch.tanh(torch.tanh(x @ W["input"].T) @ W["hidden"].T) @ W["readout"]


def trained(network, tensors, rule, alpha, steps=5):
    """Outputs after every step of real optimizer steps on w, where W = multiplier * w starts from the same W."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(8, 5, generator=draw, dtype=torch.float64)
    y = torch.randn(8, generator=draw, dtype=torch.float64)
    w, m, groups = {}, {}, []
    for role, shape in SHAPES[network].items():
        t = tensors[role]
        normal = torch.randn(shape, generator=draw, dtype=torch.float64)
        w[role] = torch.nn.Parameter(normal * t.init_std.at(SIZES))
        m[role] = t.multiplier.at(SIZES)
        groups.append({"params": [w[role]], "lr": 0.3 * t.lr.at(SIZES)})
        if t.eps is not None:
            groups[-1] |= {"lr": 0.02 * t.lr.at(SIZES), "eps": 0.1 * t.eps.at(SIZES)}
            groups[-1] |= {"weight_decay": 0.5 / t.lr.at(SIZES)} if rule is torch.optim.AdamW else {}
    optimizer = rule(groups)
    outputs = []
    for _ in range(steps + 1):
        f = {"moe": moe, "mlp": mlp}[network]({r: m[r] * w[r] for r in w}, x, alpha)
        outputs.append(f.detach())
        optimizer.zero_grad()
        ((f - y) ** 2).mean().backward()
        optimizer.step()
    return torch.stack(outputs)


RULES = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
WHERE = {"moe": {"regime": "I"}, "mlp": {"ray": "N=1"}}  # regime I: the router has a multiplier, too


@pytest.mark.parametrize(("network", "name"), list(product(WHERE, RULES)))
def test_training_is_the_same_in_every_gauge(network, name):
    own = derive(optimizer=name, parameterization="mup", architecture=network, **WHERE[network])
    alpha = 1 / SIZES["M"]
    reference = trained(network, own.tensors, RULES[name], alpha)
    assert (reference[-1] - reference[0]).abs().max() > 1e-2  # it learns
    for gauge in SHIFTED:
        other = trained(network, own.in_gauge(gauge).tensors, RULES[name], alpha)
        assert (other - reference).abs().max() < 1e-10, gauge


@pytest.mark.parametrize(
    ("name", "kept"), [(x, kept) for x in RULES for kept in ("init_std", "lr", "eps") if kept != "eps" or "adam" in x]
)
def test_a_mixture_of_two_gauges_trains_another_function(name, kept):
    """Negative control: one number of the readout from the other table."""
    own = derive(optimizer=name, parameterization="mup", architecture="mlp", ray="N=1")
    right, t = own["readout"], own.in_gauge("table8")["readout"]
    if kept == "eps" and t.eps is None:
        pytest.skip("no epsilon")
    mixed = TensorScaling(**{**vars(t), kept: getattr(right, kept)})
    reference = trained("mlp", own.tensors, RULES[name], 1.0)
    other = trained("mlp", {**own.in_gauge("table8").tensors, "readout": mixed}, RULES[name], 1.0)
    assert (other - reference).abs().max() > 1e-3
