"""Layers in sequence, each reading the stream that the ones below have changed: what the equations leave out.

The derived powers of ``deep-mlp``, on a plain torch network, with depth and width growing together.
"""

import numpy as np
import pytest
import torch
from torch import nn

from scaling_algebra import Power, derive
from scaling_algebra.verify.judging.fit import fit_exponent

DEPENDS = ("derives", "verify/judging/fit.py")

SIZES = {32: 2, 64: 4, 128: 8, 256: 16}
"""Depth by width: the ray N=1,L=1."""
SEEDS, STEPS = 24, 3
BASE_LR, BASE_EPS = {"adam": 0.3, "sgd": 0.01}, 0.05


class Stream(nn.Module):
    """h = E x; then for every layer h += res V2 (V1 h); f = U h."""

    def __init__(self, scaling, n, layers):
        super().__init__()
        sizes, tensors = {"N": n, "L": layers}, scaling.tensors
        self.res = (1 / scaling.multipliers["res"]).at(sizes)
        shapes = {"embedding": (n, 4), "hidden": (layers, n, n), "hidden_out": (layers, n, n), "readout": (1, n)}
        for role, shape in shapes.items():
            setattr(self, role, nn.Parameter(torch.randn(shape) * tensors[role].init_std.at(sizes)))

    def forward(self, x):
        h = self.embedding @ x
        for inner, outer in zip(self.hidden, self.hidden_out, strict=True):
            m = inner @ h
            h = h + self.res * (outer @ m)
        return {"h": h, "m": m, "f": self.readout @ h}


def changes(optimizer, scaling, n, seed):
    """Root-mean-square change of the stream, of the last layer's hidden units and of the output after the steps."""
    torch.manual_seed(seed)
    torch.set_default_dtype(torch.float64)
    model, x, sizes = Stream(scaling, n, SIZES[n]), torch.randn(4), {"N": n, "L": SIZES[n]}
    groups = []
    for role, parameter in model.named_parameters():
        t = scaling.tensors[role]
        group = {"params": [parameter], "lr": BASE_LR[optimizer] * t.lr.at(sizes)}
        groups.append(group if t.eps is None else {**group, "eps": BASE_EPS * t.eps.at(sizes)})
    step = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[optimizer](groups)
    first = {k: v.detach() for k, v in model(x).items()}
    for _ in range(STEPS):
        step.zero_grad()
        model(x)["f"].sum().backward()
        step.step()
    torch.set_default_dtype(torch.float32)
    return {k: float((v.detach() - first[k]).pow(2).mean().sqrt()) for k, v in model(x).items()}


def slopes(optimizer, given=()):
    scaling = derive(ray="N=1,L=1", optimizer=optimizer, architecture="deep-mlp", parameterization="mup").scaling
    multipliers = {**scaling.multipliers, **{k: 1 / Power.parse(v) for k, v in given}}
    scaling = type(scaling)(scaling.tensors, multipliers)
    found = [[changes(optimizer, scaling, n, seed) for seed in range(SEEDS)] for n in SIZES]
    return {k: fit_exponent(list(SIZES), [np.array([one[k] for one in row]) for row in found]) for k in ("h", "m", "f")}


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_layers_in_sequence_move_as_derived(optimizer):
    """Every change is Theta(1): its exponent is 0 within a tenth, and neither 1/2 nor -1/2."""
    for name, found in slopes(optimizer).items():
        assert found.low - 0.1 < 0 < found.high + 0.1, (name, found)
        assert found.low > -0.5 and found.high < 0.5, (name, found)


@pytest.mark.parametrize("multiplier, least", [("L^-1/2", 0.3), ("1", 0.7)])
def test_larger_multipliers_diverge(multiplier, least):
    """The negative control: what the stream does with 1/sqrt(L), and with none, at the same rates."""
    assert slopes("adam", [("res", multiplier)])["h"].low > least
