"""Functions as polynomials of their parity class, signs and singular directions, held against bounds by norms.

The expected sizes of T1 to T5 are those that training shows (tests/measure/test_faults.py).
"""

import json
import re
from fractions import Fraction
from math import factorial
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from scaling_algebra import derive, network
from scaling_algebra.cli import main
from scaling_algebra.dynamics.analysis import Analysis
from scaling_algebra.spec.assumptions import ASSUMPTIONS
from scaling_algebra.spec.axes import Ray
from scaling_algebra.spec.networks.language import FUNCTIONS
from scaling_algebra.spec.optimizers import optimizer
from scaling_algebra.spec.scaling import Point

AXES = {"a": "N", "b": "N", "c": "N", "x": "D"}
WIDTH = {"N": 1}
TANH_MLP = "h1[a] = W1[a,x] data[x]\nz[b] = W[b,a] h1[a]\nu[b] = tanh(z[b])\nh3[a] = V[a,b] u[b]\nf = W2[a] h3[a]"
EVEN = "h[a] = W[a,x] data[x]\nu[a] = tanh(h[a])\np = rho h[a] u[a]\ns = beta h[a]\nq = s s\nf = p + q"
SILU = "h[a] = W1[a,x] data[x]\nu[a] = silu(h[a])\nf = W2[a] u[a]"
TWICE = (
    "h1[a] = W1[a,x] data[x]\nh2[b] = W[b,a] h1[a]\nh3[c] = alpha W[c,b] h2[b]\nh4[c] = h2[c] + h3[c]\nf = W2[c] h4[c]"
)
TOP = "h1[a] = W1[a,x] data[x]\nh2[a] = topk_sigmoid(h1[a]; a)\nf = W2[a] h2[a]"


def look(text, rule, point=None, ray=WIDTH):
    """The engine on a network at muP, or at a point: ``b.W=1/2,c.W=0,alpha=1``."""
    net = network("own", text, AXES)
    if point is None:
        return derive(ray=ray, optimizer=rule, parameterization="mup", network=net).analysis()
    given = {k: None if v == "zero" else Fraction(v) for k, v in (x.split("=") for x in point.split(","))}
    parts = {x: {r: given.get(f"{x}.{r}", Fraction(0)) for r in net.tensors} for x in "bcd"}
    scale = {m: given.get(m, Fraction(0)) for m in net.free_multipliers}
    return Analysis(Ray(ray), Point(parts["b"], parts["c"], parts["d"], scale), optimizer(rule), net)


def sizes(analysis, *names, t=1):
    return [analysis(name, t).size if analysis(name, t).decided else "undecided" for name in names]


# the classes ----------------------------------------------------------------------------------------------------


SCALAR = {
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0),
    "softmax": np.exp,
}


@pytest.mark.parametrize("name", [f.name for f in FUNCTIONS.values() if f.kind in ("entrywise", "softmax")])
def test_hermite_coefficients_are_those_of_the_class(name):
    """By quadrature: a coefficient vanishes where no power of the class has its parity, up to the linear part."""
    kind = FUNCTIONS[name]
    x, weight = np.polynomial.hermite_e.hermegauss(160)
    value, weight = SCALAR[name.removeprefix("topk_")](x), weight / weight.sum()
    found = {p: weight @ (value * np.polynomial.hermite_e.HermiteE.basis(p)(x)) / factorial(p) for p in range(8)}
    seen = {p for p, c in found.items() if abs(c) > 1e-3 / factorial(p)}
    above = {p % 2 for p in kind.powers if p > 1}
    wanted = {p for p in range(8) if p in kind.powers or (p > 1 and p % 2 in above) or (p == 0 and 0 in above)}
    assert seen <= wanted, (name, found)
    assert {p for p in wanted if p < 4} <= seen, (name, found)


# what was wrong -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["sgd", "adam", "muon"])
def test_the_second_order_of_an_odd_function_is_odd(rule):
    """T1: tanh''(z) dz^2 / 2 is coherent with tanh(z); mean and slope alone gave n^(-1/2)."""
    assert sizes(look(TANH_MLP, rule), "h3.cross", "f.cross") == [0, 0]


def test_a_slope_of_an_odd_function_is_even():
    """T2: replacing W by -W is a symmetry."""
    run = look(EVEN, "sgd", "b.W=0,c.W=-1,rho=1,beta=1")
    half = Fraction(-1, 2)
    for t in (1, 2):
        assert sizes(run, "s", "s.change", "gs", "q", t=t) == [half, half, half, -1]


def test_a_positive_factor_does_not_change_a_sign():
    """T3: the sign of silu(h) is that of h; where squares of signs meet a function, nothing is claimed."""
    assert sizes(look(SILU, "signsgd"), "u.change", "f.cross") == [0, "undecided"]
    assert sizes(look(SILU, "sgd"), "f.cross") == [0]
    softmax = "h[a] = W1[a,x] data[x]\nu[a] = softmax(h[a]; a)\nf = W2[a] u[a]"
    run = look(softmax, "signsgd", "b.W2=1/2,c.W1=1/2,c.W2=3/2")
    assert run("f.cross", 1).zero  # the sign of a share is 1, and changes of shares sum to zero
    normed = SHARES.replace("softmax(h[a]; a)", "rmsnorm(h[a]; a)\nv[a] = softmax(u[a]; a)").replace(
        "W2[a] u", "W2[a] v"
    )
    assert look(normed, "signsgd", "b.W2=zero,c.W2=1")("gu", 1).zero  # a norm makes no other sign of what is positive
    layers = SHARES.replace("f = W2[a] u[a]", "h3[b] = W2[b,a] u[a]\nf = W3[b] h3[b]")
    run = look(layers, "lion", "b.W2=-1/2,b.W3=1,c.W3=1")  # the sign of a sum over steps depends on the shares
    assert run("h3.cross", 1).zero and not run("h3.cross", 2).decided


@pytest.mark.parametrize("rule", ["muon", "shampoo"])
def test_each_orthogonal_part_of_a_gradient_is_normalised_by_itself(rule):
    """T4: of two uses; where their directions overlap, or are not known to be apart, nothing is claimed."""
    point = "b.W=1/2,b.W2=1,c.W1=-1/2,c.W2=1/2,alpha=1/2"
    run = look(TWICE, rule, point)
    assert not run("h3.effective", 1).decided and "directions of its gradient" in run("h3.effective", 1).why
    chain = "h1[a] = W1[a,x] data[x]\nh2[b] = W[b,a] h1[a]\nh3[c] = W[c,b] h2[b]\nf = W2[c] h3[c]"
    run = look(chain, "muon", "b.W=1/2,b.W2=1/2,c.W2=1/2")
    assert sizes(run, "h2.effective", "h3.effective", "dW") == [0, 0, -1]


def test_a_tensor_given_in_full_with_a_scalar_product(tmp_path):
    """T5: nothing is asked of parts that a product of what is read directly does not have."""
    own = tmp_path / "own.toml"
    own.write_text(f'axes = {{ a = "N", x = "D" }}\nequations = """\n{EVEN}\n"""\n')
    given = [x for held in ("W.init=1", "W.lr=N", "rho=N^-1", "beta=N^-1") for x in ("--given", held)]
    shown = CliRunner().invoke(main, ["signals", "--network", str(own), "--ray", "N=1", "--optimizer", "sgd", *given])
    assert shown.exit_code == 0 and "no quantity" not in shown.output


def test_a_selection_whose_argument_moves_little_swaps_a_share():
    run = look(TOP, "sgd", "b.W2=1/2,c.W2=1/2")
    assert sizes(run, "h1.change", "h2.change", "f.cross") == [Fraction(-1, 2), Fraction(-1, 4), "undecided"]
    run = look(TOP, "sgd", "b.W1=zero,b.W2=zero,c.W1=1/2")  # entries move where they were selected, all alike: up
    assert sizes(run, "h1.change", "h2.change", t=2) == [Fraction(-1, 2), "undecided"]


def test_what_a_norm_takes_away_is_not_claimed():
    """The gradient behind a norm is orthogonal to what it divides: this inner product is exactly zero."""
    text = (
        "h1[a] = W1[a,x] data[x]\nh2[c] = W2[c,a] h1[a]\nh4 = W3[c] h2[c]\nh3[a] = rmsnorm(h1[a]; a)\nh5 = W4[a] h3[a]"
    )
    run = look(f"{text}\nf = h4 + h5", "sgd", "b.W2=zero,b.W3=1/2,b.W4=1,c.W1=-1,c.W2=0")
    assert not run("h2.cross", 1).decided


def test_a_number_has_a_sign_that_nothing_averages():
    run = look("h[a] = W1[a,x] data[x]\np = alpha h[a]\nr = relu(p)\nf = r r", "sgd", "alpha=1,c.W1=1/2")
    assert "no index that grows" in run("r", 2).why


SHARES = "h[a] = W1[a,x] data[x]\nu[a] = softmax(h[a]; a)\nf = W2[a] u[a]"


def test_shares_of_what_a_step_moved_have_no_second_moment():
    """e^x of a Gaussian x has all moments; a step of descent moves x by e^x, and e to the power of that has none.
    Small logits move by a Gaussian first, and Theta(1) ones at whatever step they move by Theta(1); a step that Adam
    bounds, or a sign, has no tails."""
    run = look(SHARES, "sgd", "b.W2=0,c.W1=-1,c.W2=-1")
    assert sizes(run, "u", "f", t=0) == [-1, Fraction(-1, 2)]
    assert sizes(run, "u", "f") == ["undecided", "undecided"] and "no second moment" in run("u", 1).why
    small = look(SHARES, "sgd", "b.W1=1/2,b.W2=0,c.W1=-1,c.W2=-1")
    assert [sizes(small, "h", "u", t=t) for t in (1, 2)] == [[0, -1], [0, "undecided"]]
    late = look(SHARES, "sgd", "b.W2=1/2,c.W1=-1,c.W2=-1")
    assert [sizes(late, "h.change", "u", t=t) for t in (1, 2)] == [[Fraction(-1, 2), -1], [0, "undecided"]]
    product = "v[a] = W3[a,x] data[x]\nr[a] = u[a] v[a]\nf = W2[a] r[a]"  # of two Gaussians: that is where u moves to
    heavy = look(SHARES.replace("f = W2[a] u[a]", product), "sgd", "b.W1=1/2,c.W1=-1,c.W2=-1,c.W3=-1")
    assert sizes(heavy, "h.change", "u") == [0, "undecided"]
    for rule in ("adam", "signsgd"):
        assert sizes(look(SHARES, rule, "b.W2=0,d.W1=1,d.W2=1"), "u", "f", t=2) == [-1, 0]


# what an answer assumes ----------------------------------------------------------------------------------------


def test_every_answer_names_what_it_assumes():
    linear = look("h[a] = W1[a,x] data[x]\nf = W2[a] h[a]", "sgd")
    assert linear("h", 1).assumes == set() and linear("h", 1).strict().decided
    assert linear("h.change", 2).assumes == {"generic-constants"}
    for rule, text, name in (
        ("sgd", TANH_MLP, "polynomials"),
        ("adam", TANH_MLP, "first-hermite"),
        ("signsgd", SILU, "rank-one-sign"),
        ("muon", TANH_MLP, "singular-directions"),
        ("sgd", SILU.replace("silu(h[a])", "gate(h[a])"), "held-gates"),
        ("sgd", TOP, "random-selection"),
    ):
        answer = look(text, rule, None if text == TANH_MLP else "b.W2=1")("f.change", 1)
        assert name in answer.assumes and not answer.strict().decided, (rule, text)


def test_strict_answers_are_undecided_where_they_assume():
    asked = ["--architecture", "mlp", "--ray", "N=1", "--strict"]
    shown = CliRunner().invoke(main, ["signals", *asked, "--steps", "2", "--format", "json"])
    found = json.loads(shown.output)
    assert found["assumes"] == [] and found["quantities"]["h1"] == ["0", "undecided", "undecided"]
    shown = CliRunner().invoke(main, ["derive", *asked])
    assert shown.exit_code == 3 and "it assumes generic-constants, first-hermite" in shown.output
    named = re.findall(
        r"^\| `([a-z-]+)` \| (.*) \|$", (Path(__file__).parents[2] / "docs/promises.md").read_text(), re.M
    )
    assert dict(named) == ASSUMPTIONS


# two sides ------------------------------------------------------------------------------------------------------


BOTH = [(TANH_MLP, "sgd"), (TANH_MLP, "adam"), (SILU, "sgd"), (SILU.replace("silu", "relu"), "sgd")]


@pytest.mark.parametrize("text, rule", BOTH)
def test_two_degrees_more_change_no_answer(text, rule):
    run = look(text, rule)
    higher = Analysis(run.ray, run.point, run.optimizer, run.network, raised=True)
    for name in run.table:
        for t in (0, 1):
            one, two = run(name, t), higher(name, t)
            assert not (one.decided and two.decided) or one.size == two.size, (name, t)


@pytest.mark.parametrize("text, rule", [*BOTH, (TANH_MLP, "muon"), (SILU, "signsgd")])
def test_no_certified_size_is_above_its_bound(text, rule):
    run = look(text, rule)
    assert not run.bounds.why
    compared = 0
    for name in run.table:
        answer, high = run(name, 2), run.upper(name)
        if answer.decided and answer.size is not None and high is not None:
            assert answer.size <= high, name
            compared += 1
    assert compared > 12


def test_without_the_cubic_part_the_answer_is_wrong_and_two_degrees_more_say_so(monkeypatch):
    """The negative control of both tests above: tanh read as x and its mean square."""
    from dataclasses import replace

    monkeypatch.setitem(FUNCTIONS, "tanh", replace(FUNCTIONS["tanh"], powers=frozenset({1, 2})))
    run = look(EVEN, "sgd", "b.W=0,c.W=-1,rho=1,beta=1")
    assert sizes(run, "s") == [0]  # the parity is lost
    monkeypatch.setitem(FUNCTIONS, "tanh", replace(FUNCTIONS["tanh"], powers=frozenset({1})))
    assert sizes(look(TANH_MLP, "sgd"), "h3.cross") == [Fraction(-1, 2)]
