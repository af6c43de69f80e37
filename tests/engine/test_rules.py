"""Laws of single rules of training, each at a point where the answer would be another one without it.

``rules.toml`` has networks and rows: a network, optimizers, a point (none: muP; ``scenarios.placed``), the ray,
exponents, and a part of the reason why the first quantity is undecided.
"""

import tomllib
from pathlib import Path

import pytest

from scaling_algebra.explanations.monomials import monomial

from ..measure.networks import KNOWN
from .scenarios import placed, shown, sizes

TABLE = tomllib.loads(Path(__file__).with_name("rules.toml").read_text(encoding="utf-8"))
NETWORKS = TABLE["networks"] | {name: case.text for name, case in KNOWN.items()}
"""With what the engine had wrong once; training shows these sizes (tests/measure/test_faults.py)."""
FEW = "N=1,N_e=1,M=1,K=1/2"
LINES = (line.split(" |") for line in TABLE["rows"].splitlines() if "|" in line and not line.startswith("#"))
ROWS = [(net, rule, *map(str.strip, rest)) for net, rules, *rest in LINES for rule in rules.strip().split(",")]


@pytest.mark.parametrize("net, rule, point, ray, wanted, why", ROWS, ids=[f"{row[1]}: {row[4]}" for row in ROWS])
def test_the_rule_gives_these_exponents(net, rule, point, ray, wanted, why):
    look = placed(NETWORKS[net], rule, ray, point)
    sizes(look, wanted)
    name, t = wanted.split(" ")[0].split("@") if why else ("f", 0)
    assert why in look(name, int(t)).why


def test_a_fluctuation_is_explained_by_two_equal_factors():
    run = placed(NETWORKS["VALUES"], "sgd", "M=1", "c.A=-1").run("gl", 0)
    gradient = run.gradient("l", 0)
    found = monomial(run.algebra, gradient, run.algebra.find_leading(gradient)[0])
    assert found.exponent == -1 and [x.tensor for x in found.factors] == ["A", "A"] and not found.pairs


def test_shares_of_active_experts_are_known_and_assume_random_routing():
    at = "b.Q=1/2,b.W2=1/2,b.W3=1/2,b.W4=1,c.W1=-1,c.W2=-1,c.W3=-1,c.W4=1"
    for gate, alpha in (("TOPK_GATED", "0"), ("SOFTMAX_GATED", "-1/2")):
        look = placed(NETWORKS[gate], "sgd", FEW, f"{at},alpha={alpha}")
        assert look("gpsi", 1).decided == (gate == "TOPK_GATED")
        assert "random-routing" in look("phi.change", 1).assumes


@pytest.mark.parametrize("multipliers", ["", "alpha beta "])
def test_every_sum_over_experts_has_the_share_of_the_batch_once(multipliers):
    """Whatever multipliers it has: gradients of experts are those with one, of the power 0."""
    point = ",".join(f"{x}.{name}=1/2" for x in "bcd" for name in ("Q", "W2", "W3")) + ",b.W4=1/2,c.W4=1/2,d.W4=1/2"
    gated = NETWORKS["TOPK_GATED"]
    looks = [placed(gated.replace("alpha ", text), "sgd", FEW, point) for text in ("alpha ", multipliers)]
    one, other = ([shown(look, name, 0) for name in ("gW2", "gW3", "gW4")] for look in looks)
    assert one == other


@pytest.mark.parametrize(("rule", "second"), [("adam", -1), ("lion", -1), ("signsgd", 0)])
def test_a_normaliser_with_memory_holds_the_largest_past_gradient(rule, second):
    """h2 grows by n in the first step, so that the gradient through its norm shrinks by n: Adam's second step is as
    much smaller than its first, that of a sign is not."""
    text = "h[a] = W1[a,x] data[x]\nh2[b] = W2[b,a] h[a]\nh3[b] = rmsnorm(h2[b])\nf = W3[b] h3[b]"
    run = placed(text, rule, "N=1", "b.W2=1/2,b.W3=1/2,c.W1=3,c.W3=3,d.W1=9,d.W2=9,d.W3=9").run("dW2", 2)
    assert {step.step: run.algebra.exponent(size.packed) for step, size in run.steps.update_sizes("W2", 2)} == {
        0: 0,
        1: second,
    }
