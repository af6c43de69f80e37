"""Normalised steps of gradients that are one number, or one direction, beside smaller parts."""

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
    """Keys whose mean is added to the output: their gradient is one number, plus n^(-1/2) through the norm.

    All its signs along the keys are one sign, which the norm takes away. With what is smaller kept, the gradient of K
    was certified at n^0 after an update; torch measures n^(1/2).
    """
    look = analysis(SIGNS, rule, {"K": 1, "R": HALF})
    assert look("k.propagating", 1).decided
    assert not look("kn.effective", 1).decided and not look("gK", 1).decided


@pytest.mark.parametrize("inner", ["silu(k[s,e])", "silu(k[s,e] + M[e,x] data[s,x])"])
def test_a_second_singular_direction_is_brought_to_the_size_of_the_first(inner):
    """Tokens differ in a smaller part of the gradient alone; Muon brings it to one, and its entries are those of K.

    The first direction alone leaves k.propagating at n^(-1), as was certified; torch measures n^(-0.51).
    """
    init, both = {"K": 1, "W2": 1, "R": HALF}, "W2[a] h0[s,a] +"
    assert not analysis(DIRECTIONS.format(inner, both), "muon", init)("k.propagating", 1).decided
    assert analysis(DIRECTIONS.format(inner, both), "sgd", init)("k.propagating", 1).size == -3 * HALF
    assert analysis(DIRECTIONS.format("k[s,e]", ""), "muon", init)("k.propagating", 1).size == -HALF
