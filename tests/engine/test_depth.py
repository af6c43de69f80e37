"""Networks whose number of layers grows: what is derived with depth, and that a second pass changes nothing."""

from fractions import Fraction

import pytest

from scaling_algebra import derive
from scaling_algebra.spec.networks.ancestors import count_depth
from scaling_algebra.spec.networks.grammar import network
from scaling_algebra.spec.networks.library import AXES
from scaling_algebra.spec.powers import Power

ROLES = {"E": "embedding", "V1": "hidden", "V2": "hidden_out", "U": "readout"}
ONE = """
h0[a]  = E[a,x] data[x]
m[l,b] = V1[l,b,a] h0[a]
u[l,a] = V2[l,a,b] m[l,b]
h1[a]  = h0[a] + res u[l,a]
"""
AGAIN = """
n[l,b] = V1[l,b,a] h1[a]
v[l,a] = V2[l,a,b] n[l,b]
h2[a]  = h0[a] + res v[l,a]
"""
SHALLOW = """
h0[a]  = E[a,x] data[x]
u[l,a] = V1[l,a,b] h0[b]
h1[a]  = h0[a] + res u[l,a]
f      = U[a] h1[a]
"""
DEPTH_MUP = {"res": "L^-1/2", "hidden.lr": "N^-1 L^-1/2", "hidden_out.lr": "N^-1 L^-1/2"}


def found(text, **asked):
    roles = {symbol: role for symbol, role in ROLES.items() if symbol + "[" in text}
    return derive(None, network=network("tried", text, AXES, roles), **{"ray": "N=1,L=1", "optimizer": "adam", **asked})


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("depth", ["1/2", "1"])
def test_a_second_pass_through_the_same_layers_changes_no_exponent(optimizer, depth):
    """Layers that read the stream as the first pass left it, in place of the stream as it came in."""
    where = {"ray": f"N=1,L={depth}", "optimizer": optimizer}
    once, twice = found(f"{ONE}f = U[a] h1[a]", **where), found(f"{ONE}{AGAIN}f = U[a] h2[a]", **where)
    assert once.scaling == twice.scaling
    assert 1 / once.scaling.multipliers["res"] == Power.of({"L": -1})


def test_complete_p():
    """No learning rate of Adam depends on depth; epsilon does, in every tensor of a layer."""
    d = derive(None, "adamw", "mup", architecture="deep-mlp", ray="N=1,L=1/2")
    assert 1 / d.scaling.multipliers["res"] == Power.of({"L": -1})
    assert all("L" not in str(t.lr) and "L" not in str(t.init_std) for t in d.scaling.tensors.values())
    assert {role for role, t in d.scaling.tensors.items() if "L^-1" in str(t.eps)} == {
        "gain",
        "hidden",
        "bias",
        "hidden_out",
    }


@pytest.mark.parametrize("text", [SHALLOW, f"{ONE}f = U[a] h1[a]"], ids=["one matrix", "two matrices"])
def test_depth_mup_trades_the_update_of_a_layer_for_the_initial_sum(text):
    """1/L: a layer's own update is Theta(1), and the sum of initial layers vanishes; 1/sqrt(L): the other way round."""
    given = {k: v for k, v in DEPTH_MUP.items() if k.partition(".")[0] != "hidden_out" or "V2" in text}
    for choice, layer, total in ((None, 0, Fraction(-1, 2)), (given, Fraction(-1, 2), 0)):
        look = found(text, given=choice).analysis()
        assert look("u.effective", 2).exponent == layer
        assert max(look("h1_1.effective", 2).exponent, look("h1_1.cross", 2).exponent) == 0
        assert look("h1_1.init", 2).exponent == total


def chain(layers, function=""):
    """A feed-forward network with a tensor in every layer."""
    lines = ["h1[a] = W1[a,x] data[x]"]
    for k in range(2, layers + 2):
        out, into = ("b", "a") if k % 2 == 0 else ("a", "b")
        read = f"{function}(h{k - 1}[{into}])" if function else f"h{k - 1}[{into}]"
        lines.append(f"h{k}[{out}] = W{k}[{out},{into}] {read}" if k <= layers else f"f = V[{into}] {read}")
    return network("chain", "\n".join(lines), AXES)


@pytest.mark.parametrize(("layers", "function"), [(9, ""), (16, ""), (20, ""), (40, ""), (12, "tanh")])
def test_kernels_keep_what_a_long_way_passes_through(layers, function):
    """The leaves that a kernel may have follow the depth: every layer between the ends has the powers of a dense one,
    and the changes of the last layer are certified."""
    net = chain(layers, function)
    assert count_depth(net) == layers + 1
    d = derive(ray="N=1", optimizer="sgd", architecture=net)
    for role, tensor in d.scaling.tensors.items():
        if role not in (net.statements[0].tensor.name, net.statements[-1].tensor.name):
            assert (str(tensor.init_std), str(tensor.lr)) == ("N^(-1/2)", "1"), role
    look = d.analysis()
    assert all(look(f"h{layers}.{part}", 1).size == 0 for part in ("propagating", "effective", "change"))
