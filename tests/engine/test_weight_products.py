"""A weight that is a product of tensors, entry by entry: demands are on signals that a module computes."""

import pytest

from scaling_algebra import derive, network
from scaling_algebra.spec.desiderata import Structure, mup_demands
from scaling_algebra.spec.networks.library import ARCHITECTURES
from scaling_algebra.spec.networks.terms import find_weight_products

AXES = {"a": "N", "b": "N", "i": "M", "x": "D"}
TEXT = "h[a] = First[a,x] data[x]\nk[a] = tanh(h[a])\nmid[b] = {} k[a]\nq[b] = tanh(mid[b])\nf = Last[b] q[b]"


def read(weight):
    return network("weights", TEXT.format(weight), AXES)


@pytest.mark.parametrize(
    ("optimizer", "rates"), [("sgd", {"W": "N", "S": "1"}), ("adam", {"W": "N^(-1/2)", "S": "N^-1"})]
)
def test_a_product_of_two_tensors_starts_and_learns_as_one_weight(optimizer, rates):
    """Trained at these powers, mid and its change are flat from n = 64 to 1,024 under both (slopes within 0.02); one
    demand on S_0 d(W h) alone gave S the init N^-1, and mid n^(-1/2)."""
    d = derive(ray="N=1", optimizer=optimizer, parameterization="mup", network=read("S[b,a] W[b,a]"))
    assert (str(d["W"].init_std), str(d["S"].init_std)) == ("1", "N^(-1/2)")
    assert {role: str(d[role].lr) for role in rates} == rates
    assert not d.level.failed


@pytest.mark.parametrize(("weight", "factors"), [("S[b,a] W[b,a]", 1), ("S[b,a] T[b,a] W[b,a]", 2)])
def test_nothing_is_demanded_of_a_signal_that_no_module_computes(weight, factors):
    net = read(weight)
    assert len(find_weight_products(net)) == factors
    demands = mup_demands(net, Structure())
    asked = {name for d in demands if d.name == "mu-1" for name in d.quantities}
    assert not asked.intersection(x for name in find_weight_products(net) for x in (name, f"{name}.change"))
    fixed = [d.quantities for d in demands if d.fixes.startswith("c.") and d.fixes[2:] in net.tensors]
    assert len(set(fixed)) == len(net.tensors)


@pytest.mark.parametrize("weight", ["W[b,a]", "G[b] W[b,a]", "W[b,a] G[a]"])
def test_gains_and_matrices_act_on_signals(weight):
    assert not find_weight_products(read(weight))


def test_networks_of_the_library_have_no_products_of_weights():
    assert not any(map(find_weight_products, ARCHITECTURES.values()))
