"""Functions that stand in the way of an answer: what is derived without them."""

from dataclasses import replace

import pytest

from scaling_algebra import UsageError, derive, network
from scaling_algebra.explanations.obstacles import functions, obstacles, without
from scaling_algebra.spec.configuration import Configuration
from scaling_algebra.spec.level import Level, OpenDemand
from scaling_algebra.spec.networks.library import ARCHITECTURES

EQUATIONS = "h[a] = W1[a,x] data[x]\nu[a] = {}\nv[b] = W2[b,a] u[a]\nf = W3[b] v[b]"
AXES = {"x": "D", "a": "N", "b": "N"}


@pytest.mark.parametrize("function", ["tanh(h[a])", "rmsnorm(h[a])", "softmax(h[a]; a)"])
def test_what_is_left_out_has_the_value_of_its_argument(function):
    """The exponents are those of the network in which the next equation reads the argument."""
    net = network("bent", EQUATIONS.format(function), AXES)
    direct = network("straight", EQUATIONS.format("h").replace("u[a] = h\n", "").replace("u[a]", "h[a]"), AXES)
    left = derive("I", "adam", "mup", network=without(net, ["u"]))
    assert left.scaling.tensors == derive("I", "adam", "mup", network=direct).scaling.tensors
    assert without(net, []) == net and not functions(without(net, ["u"]))


def test_every_function_is_left_out_by_itself():
    """Of two norms either may be what is in the way; a gate that is held is none."""
    text = "h[a] = W1[a,x] data[x]\nr[a] = rmsnorm(h[a])\nu[a] = tanh(r[a])\nf = W3[a] u[a]"
    found = obstacles(Configuration.of("I", "sgd", "mup", network=network("both", text, AXES)))
    assert [(function.out, str(level)) for function, level in found.tried] == [("r", "certified"), ("u", "certified")]
    left = Level((OpenDemand("", "h", 1, "a norm may cancel it"),)), "mu-1: h stays O(1), but h ~ n^(1)"
    said = str(replace(found, tried=tuple((f, x) for (f, _), x in zip(found.tried, left, strict=True))))
    assert "r = rmsnorm  certified but for 1 size: h at t = 1 is undecided (a norm may cancel it)" in said
    assert "u = tanh     not found: mu-1: h stays O(1), but h ~ n^(1)" in said
    assert "phi" not in [s.out for s in functions(ARCHITECTURES["moe"])]


def test_what_a_gate_becomes_without_its_function_may_weigh_experts():
    """A sum of signals has no learned part of its own; before, that ended in an error where the gate was one."""
    held = {"router.init": "0"}
    net = without(ARCHITECTURES["routers-softmax"], ["phi"])
    assert derive("I", "sgd", "mup", network=net, given=held).scaling.tensors["router"].init_std is None


def test_a_network_without_functions_has_nothing_in_the_way():
    with pytest.raises(UsageError, match="mlp has no functions"):
        obstacles(Configuration.of("I", "sgd", "mup", network=ARCHITECTURES["mlp"]))
