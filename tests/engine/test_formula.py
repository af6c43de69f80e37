"""Formulas against the engine on rays and parameters drawn at random, and the proof that nothing is missing."""

import json
import random
from dataclasses import replace
from fractions import Fraction
from functools import cache
from itertools import product

import pytest
from sympy import Max, Rational, Symbol, latex, sympify

from scaling_algebra import UsageError, derive, formula, network
from scaling_algebra.dynamics.analysis import Analysis
from scaling_algebra.formulas.formula import FormulaTerm
from scaling_algebra.formulas.search import winning
from scaling_algebra.linear.cone import corners
from scaling_algebra.spec.axes import REGIMES, Ray
from scaling_algebra.spec.networks.library import MOE_BLOCK
from scaling_algebra.spec.optimizers import optimizer
from scaling_algebra.spec.powers import Form, Power
from scaling_algebra.spec.scaling import Point

from ..shared import scalecalc

QUICK = ["h3.A2.2@1", "h3.A2.1@1", "psi@1", "h2@1", "g2@1", "dW2@1", "dQ@2", "gW4@0", "h3.A2.2@2"]
TOTALS = ["h3@1", "h3.D@1", "g1.expert@1", "gphi@1", "psi.propagating@1", "h3i@1", "gW2@1", "gW3@1"]


def draw(rng):
    """A ray and a point; epsilons are small on one half of them, so that gradients lead the normalisers."""
    rates = {a: Fraction(rng.randint(1, 12), rng.choice((6, 8, 12))) for a in ("N", "N_e", "M")}

    def some(low, high):
        return {role: Fraction(rng.randint(4 * low, 4 * high), 4) for role in MOE_BLOCK.tensors}

    b, c, alpha = some(0, 1), some(0, 2), Fraction(rng.randint(0, 4), 4)
    b["router"], c["router"] = b["router"] + 1, c["router"] + 1  # mostly O(1) logits
    return Ray(rates), Point(b, c, some(0, rng.choice((1, 6))), {"alpha": alpha})


def value(found, ray, point):
    """The formula's exponent; "beyond" where it says that it does not hold."""
    try:
        return found.on(ray, point)
    except UsageError as reason:
        assert "is valid only while it is O(1)" in str(reason), reason
        return "beyond"


@cache
def answers(name, rule, draws):
    """What the engine says at rays and points drawn at random."""
    rng = random.Random(7)
    quantity, _, t = name.partition("@")
    drawn = [draw(rng) for _ in range(draws)]
    return [(*x, Analysis(*x, optimizer(rule), MOE_BLOCK)(quantity, int(t))) for x in drawn]


def disagreements(found, name, rule, draws):
    """How often a formula and the engine differ, and how often they could be compared."""
    different, compared = 0, 0
    for ray, point, answer in answers(name, rule, draws):
        size = value(found, ray, point)
        if answer.decided and size != "beyond":
            compared += 1
            different += size != answer.size
    return different, compared


@pytest.mark.parametrize(
    ("name", "rule", "draws"),
    [
        *product(QUICK, ("sgd", "adam"), [12]),
        *product(("h3.A2.2@1", "dW2@1"), ("signsgd", "muon"), [12]),
        *product(TOTALS, ["sgd"], [24]),
        *product(TOTALS[:2], ["adam"], [24]),
    ],
)
def test_a_formula_is_the_engine_on_every_ray(name, rule, draws):
    found = formula(name, rule)
    different, compared = disagreements(found, name, rule, draws)
    assert found.complete and not different and compared >= draws // 3


@pytest.mark.parametrize("name", ["h3.A2.2@1", "g2.init-update@1"])
def test_each_monomial_is_needed(name):
    """Negative control: without any one of its monomials, or with one changed, a formula differs from the engine."""
    found = formula(name, "sgd")
    assert len(found.terms) == 2
    for term in found.terms:
        rest = tuple(t for t in found.terms if t is not term)
        planted = FormulaTerm(Form(term.form.power * Power.of({"M": Fraction(1, 2)}), term.form.unknowns))
        assert disagreements(replace(found, terms=rest), name, "sgd", 60)[0]
        assert disagreements(replace(found, terms=(*rest, planted)), name, "sgd", 60)[0]


def test_the_gram_operator_ties_on_the_wall():
    """MSSP paper, App. I.7: mechanism B leads where M + N_e > N, the cross-expert CLT (A) where it is less."""
    found = formula("h3.A2.2@1", "sgd")
    shared = {"input": 2, "expert_out": 2, "readout": 1}
    unknowns = {**{f"b.{k}": -n for k, n in shared.items()}, "c.expert_in": -1, "alpha": -2}
    assert all(dict(t.form.unknowns) == unknowns for t in found.terms)
    places = {str(t.form.power): (found.leads(t), t.mechanisms[0].letter) for t in found.terms}
    assert places == {
        "N N_e M": (("N_e M >= N",), "B"),
        "N^(3/2) N_e^(1/2) M^(1/2)": (("N >= N_e M",), "A"),
    }


def test_zero_and_tied_tensors():
    assert formula("f@0", "sgd", readout_init="zero").terms == ()
    assert str(formula("f@0", "sgd", readout_init="zero").expr) == "0"
    tied = formula("h3.A1@0", "sgd", structure="tied expert_out")
    free = formula("h3.A1@0", "sgd")
    assert [t.form for t in tied.terms] == [t.form for t in free.terms]
    both = formula("h3.A1@0", "sgd", structure="tied expert_out, tied expert_in")
    assert both.terms[0].form.power == Power.of({"M": 1, "N": Fraction(1, 2), "N_e": Fraction(1, 2)})


def test_what_a_convex_combination_exceeds_is_dropped():
    """sqrt(xy) never leads beside x and y; 2 x y would."""
    x, y = Form(Power.of({"N": 2}), (("c.input", -2),)), Form(Power(), (("c.router", -2),))
    mean = Form(Power.of({"N": 1}), (("c.input", -1), ("c.router", -1)))
    more = Form(Power.of({"N": 2}), (("c.input", -1), ("c.router", -1)))
    assert winning((x, y, mean), ("N",)) == (x, y)
    assert winning((x, y, more), ("N",)) == (x, y, more)


def test_corners_of_cones():
    unit = [(1, 0, 0), (0, 1, 0), (0, 0, 1)]
    assert set(corners(unit, [])) == set(unit)
    assert set(corners(unit, [(-1, 1, 1)])) == {(0, 1, 0), (0, 0, 1), (1, 1, 0), (1, 0, 1)}
    assert corners(unit, [(-1, -1, -1)]) == []


def test_sympy_reads_what_is_written():
    found = formula("h2@1", "sgd", network="mlp")
    again = sympify(str(found.expr), locals={str(s): s for s in found.expr.free_symbols})
    assert isinstance(found.expr, Max) and again == found.expr
    n, std = Symbol("N", positive=True), Symbol("sigma_input", positive=True)
    assert {n, std} <= found.expr.free_symbols and latex(found.expr)
    assert Power.parse("M N^-1/2").expr == Symbol("M", positive=True) * n ** Rational(-1, 2)


def test_the_command():
    def run(*arguments):
        return scalecalc("explain", "--formula", *arguments)

    text = run("h3.A2.2@1", "--optimizer", "sgd").output
    assert "Theta(" in text and "N_e M >= N" in text and "complete" in text
    data = json.loads(run("psi.effective@1", "--format", "json").output)
    assert data["complete"] and data["divisors"] == {"v_router_0": ["gQ@0"]}
    assert data["terms"][0]["axes"] == {"N": "2", "N_e": "1/2"}
    assert data["terms"][0]["parameters"]["v_router_0"] == -1
    assert "Max(" in run("h2@1", "--architecture", "mlp", "--format", "sympy").output
    printed = run("h2@1", "--architecture", "mlp", "--format", "latex").output
    assert r"\Theta(" in printed and r"\sigma_{\mathrm{input}}" in printed and r"\max(" in printed


@pytest.mark.parametrize("name", ["h3.change@1", "h3.effective@1", "h2@1", "gW3@0"])
def test_a_fixed_number_of_experts(name):
    """Sums over few experts do not average the gates: a formula of its own, refused where experts grow."""
    quantity, _, t = name.partition("@")
    found, rng, compared = formula(name, "sgd", fixed=["M"]), random.Random(2), 0
    for _ in range(15):
        ray, point = draw(rng)
        few = Ray({"N": ray["N"], "N_e": ray["N_e"], "M": 0})
        answer = Analysis(few, point, optimizer("sgd"), MOE_BLOCK)(quantity, int(t))
        size = value(found, few, point)
        if answer.decided and size != "beyond":
            compared += 1
            assert size == answer.size
    assert compared >= 3
    with pytest.raises(UsageError, match="for fixed M, but M grows"):
        found.on(ray, point)
    with pytest.raises(UsageError, match="assumes that M grows, which it does not on N=1"):
        formula(name, "sgd").on(Ray({"N": 1, "N_e": 1, "M": 0}), point)


def test_a_softmax_over_a_growing_index():
    """It shares 1 among its entries; at the corners where that axis alone stands still, too."""
    text = "h1[k] = W1[k,x] data[x]\nh2[k] = softmax(h1[k]; k)\nh4[a] = W2[a,k] h2[k]\nf = W3[a] h4[a]"
    share = network("share", text, {"k": "N_e", "a": "N", "x": "D"})
    found, rng = formula("h4@1", "sgd", network=share), random.Random(4)
    assert found.complete
    for _ in range(15):
        ray, _ = draw(rng)
        point = Point(
            *({role: Fraction(rng.randint(0, 6), 4) for role in share.tensors} for _ in range(3)), multipliers={}
        )
        look = Analysis(ray, point, optimizer("sgd"), share)
        if look("h4", 1).decided and value(found, ray, point) != "beyond":
            assert found.on(ray, point) == look("h4", 1).size


def test_k_below_m_is_refused():
    with pytest.raises(UsageError, match="K = M"):
        ray = Ray({"N": 1, "N_e": 1, "M": 1, "K": "1/2"})
        formula("h1@0", "sgd").on(ray, derive("III", "sgd").scaling.point(REGIMES["III"]))


def test_no_number_where_the_formula_is_not_that_of_the_point():
    found, d = formula("h3.A2.2@1", "sgd"), derive("III", "sgd", "mup")
    zero = derive("III", "sgd", "mup", readout_init="zero").scaling.point(REGIMES["III"])
    with pytest.raises(UsageError, match="zero or tied"):
        found.on(REGIMES["III"], zero)
    with pytest.raises(UsageError, match="only known to be at least"):
        replace(found, slack=Fraction(1, 2)).on(REGIMES["III"], d.scaling.point(REGIMES["III"]))


def test_the_number_of_layers_is_fixed_in_a_formula():
    """Sums over layers are not counted; that is said, and a ray on which the depth grows is refused."""
    f = formula("h1@1", "sgd", network="deep-mlp")
    assert f.of.fixed == {"L"} and "L fixed" in str(f)
    with pytest.raises(UsageError, match="fixed L, but"):
        f.on(
            Ray({"N": Fraction(1), "L": Fraction(1)}),
            derive(None, "sgd", ray="N=1,L=1", architecture="deep-mlp").analysis().point,
        )
