"""Steps of sign descent, Adam and Muon if a gradient is one number, or one singular direction, plus smaller parts."""

from fractions import Fraction

import pytest

from scaling_algebra import network
from scaling_algebra.dynamics.analysis import Analysis
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.optimizers import optimizer
from scaling_algebra.spec.scaling import Point

HALF = Fraction(1, 2)
SIGNS = """
h0[a] = W1[a,x] data[x]
k[e] = K[e,a] h0[a]
kn[e] = layernorm(k[e]; e)
m = k[e]
f = m + R[e] kn[e]
"""
DIRECTIONS = """
h0[s,a] = W1[a,x] data[s,x]
k[s,e] = K[e,a] h0[s,a]
z[s,e] = {}
f = {} R[e] z[s,e]
"""


def analysis(text, rule, init):
    net = network("steps", text, {"a": "N", "x": "D", "e": "E", "s": "S"})
    start = {role: Fraction(init.get(tensor.symbol, 0)) for role, tensor in net.tensors.items()}
    none = dict.fromkeys(net.tensors, Fraction(0))
    return Analysis(Ray.parse("N=1"), Point(start, none, none, {}), optimizer(rule), net)


@pytest.mark.parametrize("rule", ["signsgd", "adam"])
def test_a_sign_of_one_number_keeps_nothing_of_the_smaller_parts(rule):
    """The gradient of k is one number for all its entries, plus n^(-1/2) through the layer norm.

    So all signs are equal, and the layer norm removes such an update. With the smaller part kept, gK was certified at
    n^0 after an update; torch measures n^(1/2).
    """
    look = analysis(SIGNS, rule, {"K": 1, "R": HALF})
    assert look("k.propagating", 1).decided
    assert not look("kn.effective", 1).decided and not look("gK", 1).decided


@pytest.mark.parametrize("inner", ["silu(k[s,e])", "silu(k[s,e] + M[e,x] data[s,x])"])
@pytest.mark.parametrize("first", ["W2[a] h0[s,a] +", "W2[a] h0[s,a] + W3[a] h0[s,a] +"])
def test_muon_enlarges_the_second_singular_direction_of_a_gradient(inner, first):
    """The gradient of W1 is one vector for all tokens, plus n^(-1/2) along K. Muon sets both singular values to one.

    With the first direction alone, k.propagating was certified at n^(-1); torch measures n^(-0.51). Negative controls:
    SGD keeps the ratio of both, and without W2 there is one direction only.
    """
    init = {"K": 1, "W2": 1, "W3": 1, "R": HALF}
    assert not analysis(DIRECTIONS.format(inner, first), "muon", init)("k.propagating", 1).decided
    assert analysis(DIRECTIONS.format(inner, first), "sgd", init)("k.propagating", 1).size == -3 * HALF
    assert analysis(DIRECTIONS.format("k[s,e]", ""), "muon", init)("k.propagating", 1).size == -HALF
