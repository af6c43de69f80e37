"""Zeros that are claimed are zeros of the functions themselves: a gradient through a norm, against automatic
differentiation, for functions, constants and pooling of every kind."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch

import scaling_algebra.dynamics.functions as functions
from scaling_algebra import derive, network
from scaling_algebra.dynamics.analysis import Analysis
from scaling_algebra.proofs.prover import Uniqueness, prove_missing
from scaling_algebra.solver.demands import NotFound
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.optimizers import optimizer
from scaling_algebra.spec.scaling import Point

ACTIVATIONS = {
    "r[a] = {0}(n[a])": ("relu", "silu", "gelu", "tanh", "sigmoid", "exp"),
    "r[a] = {0}": ("n[a] C", "n[a] n[a]", "n[a] n[a] n[a]"),
    "k[a] = {0}\nr[a] = relu(k[a])": ("n[a] n[a]",),
}
BEFORE = {"none": "m[a] = h[a] + u[a]", "times": "m[a] = mask[a] h[a]", "plus": "m[a] = h[a] + mask[a]"}
AFTER = {"pooled": "f = rho r[a]", "masked": "f = rho mask[a] r[a]", "squared": "f = rho mask[a] mask[a] r[a]"}
SIZES = (64, 512, 4096)
CASES = [
    (norm, line.format(name), name, before, after)
    for norm, (line, names), before, after in product(("rmsnorm", "layernorm"), ACTIVATIONS.items(), BEFORE, AFTER)
    for name in names
]


def equations(norm, line, before, after):
    lines = ["h[a] = A[a,x] data[x]", "u[a] = B[a,x] data[x]", BEFORE[before], f"n[a] = {norm}(m[a])", line]
    return "\n".join(x for x in (*lines, AFTER[after]) if before == "none" or not x.startswith("u[a]"))


def read(text):
    constants = [x for x in ("mask", "C") if x in text]
    return network("zeros", text, {"a": "N", "x": "D"}, constants=constants)


def analysis(text):
    net = read(text)
    powers = dict.fromkeys(net.tensors, Fraction(0))
    return Analysis(Ray.parse("N=1"), Point(powers, powers, powers, {"rho": Fraction(0)}), optimizer("sgd"), net)


def measured(norm, name, line, before, after):
    """Root-mean-square of df/dh at every size, by torch. The mask has entries of both signs and a mean."""
    sizes, draw = [], torch.Generator().manual_seed(3)
    for n in SIZES:
        h, u, noise = torch.randn(3, n, dtype=torch.float64, generator=draw)
        h.requires_grad_()
        mask = 1.0 + 0.7 * noise
        m = {"none": h + u, "times": mask * h, "plus": h + mask}[before]
        m = m - m.mean() if norm == "layernorm" else m
        y = m / m.square().mean().sqrt()
        squares = {"n[a] C": y, "n[a] n[a]": y * y, "n[a] n[a] n[a]": y**3}
        r = squares[name] if name in squares else getattr(torch, name, getattr(torch.nn.functional, name, None))(y)
        r = torch.relu(r) if line.endswith("relu(k[a])") else r
        weight = {"pooled": 1.0, "masked": mask, "squared": mask * mask}[after]
        (gradient,) = torch.autograd.grad((weight * r).sum(), h)
        sizes.append(float(gradient.square().mean().sqrt()))
    return sizes


@pytest.mark.parametrize(("norm", "line", "name", "before", "after"), CASES)
def test_a_gradient_behind_a_norm_is_zero_where_that_of_the_functions_is(norm, line, name, before, after):
    answer = analysis(equations(norm, line, before, after))("gh", 0)
    sizes = measured(norm, name, line, before, after)
    if max(sizes) < 1e-9:
        assert answer.zero or not answer.decided
        return
    slope = np.polyfit(np.log(SIZES), np.log(sizes), 1)[0]
    assert not answer.decided or (answer.size is not None and abs(slope - float(answer.size)) < 0.15), (answer, sizes)


def test_zeros_and_sizes_are_both_decided():
    """Neither "undecided" nor one answer for all would pass for a whole kind."""
    answers = {case: analysis(equations(*case[:2], *case[3:]))("gh", 0) for case in CASES}
    assert sum(x.zero for x in answers.values()) >= 7
    open_ = {(case[2], case[3]) for case, x in answers.items() if not x.decided}
    assert open_ <= {("exp", "times"), ("n[a] n[a]", "none"), ("n[a] n[a]", "plus"), ("n[a] C", "plus")}


@pytest.mark.parametrize("name", ["relu", "silu", "gelu"])
def test_a_zero_of_polynomials_alone_is_not_certified(name, monkeypatch):
    """Read as x + x^2, a function has the slope 1 + x, of which a layer norm leaves nothing."""
    monkeypatch.setattr(functions, "reads_normed", lambda network, function: False)
    answer = analysis(equations("layernorm", f"r[a] = {name}(n[a])", "times", "pooled"))("gh", 0)
    assert not answer.decided and "degree higher by two" in answer.why


@pytest.mark.parametrize("fewer_degrees", [False, True])
def test_a_zero_of_polynomials_alone_is_no_proof(fewer_degrees, monkeypatch):
    if fewer_degrees:
        monkeypatch.setattr(functions, "reads_normed", lambda network, function: False)
    d = derive(ray="N=1", optimizer="sgd", network=read(equations("layernorm", "r[a] = relu(n[a])", "times", "pooled")))
    assert str(1 / d.scaling.multipliers["rho"]) == "N^-1"
    assert fewer_degrees or str(d["A"].lr) == "N"
    assert d.level.open


def test_a_zero_that_every_function_has_is_a_proof():
    with pytest.raises(NotFound) as missing:
        derive(ray="N=1", optimizer="sgd", network=read(equations("layernorm", "r[a] = n[a] C", "times", "pooled")))
    assert prove_missing(missing.value)[0] is Uniqueness.IMPOSSIBLE


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_constant_weighs_gates_behind_a_multiplier(optimizer):
    text = "lg[i] = Q[i,x] data[x]\np[i] = sigmoid(lg[i])\nf = rho mask[i] p[i]"
    net = network("weighed", text, {"i": "M", "x": "D"}, constants=["mask"])
    d = derive(ray="M=1", optimizer=optimizer, network=net)
    assert str(1 / d.scaling.multipliers["rho"]) == "M^-1" and str(d["Q"].lr) == ("M" if optimizer == "sgd" else "1")
