"""Attention whose keys and values keep their number: what norms take away as numbers, first steps."""

from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

import numpy as np
import pytest
import torch

from scaling_algebra import network
from scaling_algebra.counting import contracting
from scaling_algebra.counting.projections import mark_doubtful, replace_by_bound
from scaling_algebra.counting.signals import Budget
from scaling_algebra.counting.sizes import SignalSizes
from scaling_algebra.dynamics import analysis
from scaling_algebra.dynamics.analysis import RESTRICTED, RestrictedRuns, explain_open
from scaling_algebra.dynamics.budgets import BUDGETS, INITIAL_BUDGET, RESTRICTED_BUDGETS, WORK_LIMIT_REASON
from scaling_algebra.dynamics.parts import SLOW
from scaling_algebra.dynamics.sparse_routing import make_algebra
from scaling_algebra.solver import demands
from scaling_algebra.solver.demands import Failure
from scaling_algebra.solver.newton import find_aligned_start
from scaling_algebra.solver.points import Places
from scaling_algebra.spec.configuration import Configuration
from scaling_algebra.spec.desiderata import Structure
from scaling_algebra.spec.level import OpenDemand
from scaling_algebra.spec.parameterizations import parameterization

from .scenarios import placed

HALF = Fraction(1, 2)
ROLES = {"E": "embedding", "Q": "query", "K": "key", "V": "value", "O": "attention_out", "U": "readout"}
AXES = {"a": "N", "b": "N", "e": "E", "x": "D", "s": "S", "t": "S"}
EQUATIONS = """
h0[s,a] = E[a,x] data[s,x]
r1[s,a] = rmsnorm(h0[s,a]; a)
q[s,b,e] = Q[b,e,a] r1[s,a]
k[s,e] = K[e,a] r1[s,a]
{norm}
v[s,e] = V[e,a] r1[s,a]
p[b,s,t] = softmax(q[s,b,e] {key}[t,e]; t)
o[s,b,e] = p[b,s,t] v[t,e]
h1[s,a] = h0[s,a] + O[a,b,e] o[s,b,e]
r2[s,a] = rmsnorm(h1[s,a]; a)
f = U[a] r2[s,a]
"""


def attention(norm="", key="k"):
    return network("keys", EQUATIONS.format(norm=norm, key=key), AXES, ROLES, "attention with few keys")


PLAIN, NORMED = attention(), attention("rk[s,e] = rmsnorm(k[s,e]; e)", "rk")


@lru_cache
def looked(net, epsilon="negligible"):
    asked = Configuration.of(ray="N=1", optimizer="adam", parameterization="mup", network=net, epsilon=epsilon)
    at = Places(net, asked.ray, asked.optimizer)
    return at.analyse_at(Structure().point(net, find_aligned_start(at)))


def read(look, name, t, rung):
    return look.with_settings().runs.read(name, t, rung)


def test_gradients_at_few_keys_and_values_are_certified():
    """They are sums over many heads, of which the terms that norms take away are bounded by n, and the rest by
    n^(1/2). Measured below. Negative control: what is left out of few kernels may be as large."""
    look = looked(PLAIN)
    for name, size in (("gv", -HALF), ("gk", Fraction(-1))):
        assert read(look, name, 0, INITIAL_BUDGET).size == size
        assert not read(look, name, 0, replace(INITIAL_BUDGET, max_doubts=0)).decided


def gradients(n, seed):
    """Root-mean-square gradients at values and keys before training, by hand: backward through both norms."""
    rng = np.random.default_rng(seed)
    draw = lambda std, *shape: std * rng.standard_normal(shape)  # noqa: E731
    tokens, few = 3, 2
    e, q, k, v = draw(1, tokens, n), draw(n**-0.5, n, few, n), draw(1 / n, few, n), draw(1 / n, few, n)
    o, u = draw(n**-0.5, n, n, few), draw(1 / n, n)
    r1 = e / np.sqrt((e**2).mean(1, keepdims=True))
    queries, keys, values = np.einsum("bea,sa->sbe", q, r1), r1 @ k.T, r1 @ v.T
    logits = np.einsum("sbe,te->bst", queries, keys)
    p = np.exp(logits) / np.exp(logits).sum(2, keepdims=True)
    h1 = e + np.einsum("abe,sbe->sa", o, np.einsum("bst,te->sbe", p, values))
    size = np.sqrt((h1**2).mean(1, keepdims=True))
    above = (u - h1 / size * (h1 / size @ u)[:, None] / n) / size
    back = np.einsum("abe,sa->sbe", o, above)
    shares = np.einsum("sbe,te->bst", back, values)
    bent = p * (shares - (p * shares).sum(2, keepdims=True))
    at_values, at_keys = np.einsum("bst,sbe->te", p, back), np.einsum("bst,sbe->te", bent, queries)
    return np.sqrt((at_values**2).mean()), np.sqrt((at_keys**2).mean())


def test_measured_gradients_have_the_certified_sizes():
    sizes = (64, 128, 256, 512)
    measured = np.array([np.mean([np.log(gradients(n, seed)) for seed in range(24)], axis=0) for n in sizes])
    slopes = np.polyfit(np.log(sizes), measured, 1)[0]
    assert slopes == pytest.approx([-0.5, -1.0], abs=0.2)


def numbers(exponent):
    """An algebra, a vector w, and what a random number of some size makes of it."""
    algebra = make_algebra(PLAIN, looked(PLAIN).ray, HALF)
    w, z = algebra.tensor("w", "a", 0), algebra.tensor("z", "b", algebra.pack(exponent - HALF, {}, {}))
    number = algebra.contract(z, algebra.constant("b"), "")
    along = algebra.contract(w, replace_by_bound(algebra, number), "a")
    return algebra, w, mark_doubtful(algebra, along, along)


def test_what_an_unknown_number_multiplies_may_cancel_all_that_is_no_larger(monkeypatch):
    """A smaller one takes no lower bound away. Negative control: an algebra that takes it for another kernel."""
    for exponent, stands in ((-HALF, True), (Fraction(0), False)):
        algebra, w, along = numbers(exponent)
        assert algebra.exponent(algebra.upper_bound(along)) == exponent and algebra.rms(along) is None
        whole = algebra.add([w, along])
        assert algebra.is_lower_bound(whole) is stands
        summed = algebra.contract(whole, algebra.tensor("o", "ab", 0), "b")
        assert algebra.is_lower_bound(summed) is stands and any(algebra.has_unknown_numbers[k] for k in summed.terms)
    monkeypatch.setattr(algebra, "has_unknown_numbers", [False] * len(algebra.has_unknown_numbers))
    assert SignalSizes.is_lower_bound(algebra, whole)


def test_a_number_times_a_polynomial_is_as_large_as_their_sizes_say():
    """rms(c Y) <= C rms(c) rms(Y), also where both are of the same Gaussians: c = <y, v> / n and Y = O^T y."""
    ratios = []
    for n in (32, 128, 512):
        rng, values = np.random.default_rng(n), []
        for _ in range(200):
            y, v = rng.standard_normal(n), rng.standard_normal(n)
            o = rng.standard_normal((8, n)) / n**0.5
            made = o @ (y * (1 + v))
            values.append((y @ v / n, (made**2).mean()))
        c, y2 = np.array(values).T
        ratios.append(np.sqrt((c**2 * y2).mean() / ((c**2).mean() * y2.mean())))
    assert max(ratios) < 3 and max(ratios) / min(ratios) < 1.5


def test_a_first_step_that_is_normalised_is_that_of_a_part():
    """Sizes from runs in which one tensor learns are those of the run in which all do; measured below. Negative
    controls: later steps, and a part whose gradient has another size."""
    look = looked(PLAIN)
    for name in ("q.change", "k.change", "v.change", "p_1.change", "o.change", "h1.change", "r2.change", "f.change"):
        part, whole = look(name, 1, RESTRICTED), read(look, name, 1, INITIAL_BUDGET)
        assert part.size == 0, name
        assert not whole.decided or whole.size == part.size, name
    one = look.restricted.make_restricted(replace(look.point, frozen=frozenset(PLAIN.tensors) - {"value"}))
    assert look.restricted.divisors_agree(one, 0) and look.restricted.divisors_agree(one, 1)
    assert not look.restricted.divisors_agree(one, 2)
    asleep = replace(one.point, b={**one.point.b, "readout": None}, frozen=one.point.frozen | {"readout"})
    assert not look.restricted.divisors_agree(look.restricted.make_restricted(asleep), 1)


def test_a_budget_that_keeps_numbers_is_for_first_steps_alone(monkeypatch):
    """The first step at values is decided by it, as nothing that may cancel is as large. Negative controls: the other
    budgets of a part do not suffice, and at the second update it shows nothing."""
    (numbers_,) = (x for x in RESTRICTED_BUDGETS if x.bounds_inner_products)
    look = looked(PLAIN)
    one = look.restricted.make_restricted(replace(look.point, frozen=frozenset(PLAIN.tensors) - {"value"}))
    assert read(one, "v.change", 1, numbers_).low == -SLOW and one.meets_bound("v.change", -SLOW)
    assert read(one, "gv", 1, numbers_).unknown and read(one, "v.change", 2, numbers_).unknown
    monkeypatch.setattr(analysis, "RESTRICTED_BUDGETS", tuple(x for x in RESTRICTED_BUDGETS if x != numbers_))
    assert not look.with_settings()("v.change", 1, RESTRICTED).decided


def first_step(n, seed):
    """Root-mean-square changes of values, keys, shares and their means in one step of signs, by hand."""
    random = torch.Generator().manual_seed(seed)
    tokens, few = 3, 2
    shapes = {"e": (tokens, n), "q": (n, few, n), "k": (few, n), "v": (few, n), "o": (n, n, few), "u": (1, n)}
    stds = {"e": 1.0, "q": n**-0.5, "k": 1 / n, "v": 1 / n, "o": n**-0.5, "u": 1 / n}
    w = {x: stds[x] * torch.randn(shape, generator=random, dtype=torch.float64) for x, shape in shapes.items()}

    def run(e, q, k, v, o, u):
        r1 = e / (e**2).mean(1, keepdim=True).sqrt()
        keys, values = r1 @ k.T, r1 @ v.T
        p = torch.softmax(torch.einsum("bea,sa,te->bst", q, r1, keys), 2)
        means = torch.einsum("bst,te->sbe", p, values)
        h1 = e + torch.einsum("abe,sbe->sa", o, means)
        return ((h1 / (h1**2).mean(1, keepdim=True).sqrt()) @ u.T).sum(), (values, keys, p, means)

    slopes, before = torch.func.grad(lambda w: run(**w), has_aux=True)(w)
    after = run(**{x: w[x] - 0.05 * (1 if x == "e" else 1 / n) * slopes[x].sign() for x in w})[1]
    return [float((y - x).square().mean().sqrt()) for x, y in zip(before, after, strict=True)]


def test_measured_first_steps_have_the_certified_sizes():
    sizes = (64, 128, 256)
    measured = np.array([np.mean([np.log(first_step(n, seed)) for seed in range(8)], axis=0) for n in sizes])
    assert np.polyfit(np.log(sizes), measured, 1)[0] == pytest.approx(4 * [0.0], abs=0.2)


def test_gradients_at_values_are_certified_where_shares_have_dropped_as_much_as_they_keep(monkeypatch):
    """Behind a norm of keys logits are Theta(1), so that shares are long polynomials. What was dropped of them meets
    gradients of heads that have a tensor of their own, and the sum over heads is random. Negative control: without
    that, it counts as coherent."""
    assert read(looked(NORMED), "gv", 0, BUDGETS[2]).high == -HALF
    monkeypatch.setattr(contracting, "find_saving", lambda *asked: 0)
    assert not read(looked(NORMED), "gv", 0, BUDGETS[2]).decided


def test_the_gradient_of_a_norm_that_is_outgrown_is_not_that_of_a_part_in_which_it_is_not(monkeypatch):
    """h2 grows by n in the first step, so the gradient through its norm shrinks by n. Where W2 stays it does not and is
    as large as its upper bound. Negative control: parts that are not asked what they divide by."""
    net = "h[a] = W1[a,x] data[x]\nh2[b] = W2[b,a] h[a]\nh3[b] = rmsnorm(h2[b])\nf = W3[b] h3[b]"
    point = "signsgd", "N=1", "b.W2=1/2,b.W3=1/2,c.W1=3,c.W3=3,d.W1=9,d.W2=9,d.W3=9"
    look = placed(net, *point)
    assert look.bounds.outgrown == {"h3": "h2"}
    assert look("gW2", 1).size == Fraction(-3, 2) and look.upper("gW2") == -HALF
    monkeypatch.setattr(RestrictedRuns, "_outgrown_norms_agree", lambda *_: True)
    assert placed(net, *point)("gW2", 1).size == -HALF


def test_what_a_norm_makes_is_bounded_whatever_leads():
    """Keys start at n^(-1/2) and their first update is Theta(1): every signal stays O(1), and what does not pass the
    norm of keys is decided as without it. The gradient at keys is O(1), as the norm divides by what the first update
    makes. Negative control: where that is not known it has no upper bound, for it may be divided by n^(-1/2)."""
    look = looked(NORMED)
    assert not look.bounds.why and look.bounds.outgrown == {"rk": "k"}
    assert look("k", 0).size == -HALF
    assert {look.upper(f"{s.out}.change") for s in NORMED.statements} == {0}
    assert look("k.change", 1, RESTRICTED).size == look.upper("gk") == 0
    assert look.with_settings(without_divisors=True).upper("gk") is None
    for name in ("h0.change", "r1.change", "q.change", "h1.change", "r2.change", "f.change"):
        assert look(name, 1, RESTRICTED).size == 0, name


def test_a_step_is_no_larger_than_its_normaliser_makes_it():
    """Adam divides by epsilon and by the gradient: also where the gradient has no upper bound, its step has one."""
    net = "h[a] = W1[a,x] data[x]\nk[e] = W2[e,a] h[a]\nz[e] = rmsnorm(k[e]; e)\nf = W3[e] z[e]"
    for rule, shown in (("adam", True), ("sgd", False)):
        look = placed(net, rule, "N=1", "b.W2=1,c.W2=1")
        assert bool(look.bounds.why) is not shown and look.bounds.outgrown == {"z": "k"}
        assert look.upper("k") == (0 if shown else None)


def test_rungs_agree_where_both_certify():
    look, decided = looked(NORMED), 0
    for name in (x for x, q in look.table.items() if x.startswith("g") and not q.tensor):
        one, other = (
            read(look, name, 0, INITIAL_BUDGET),
            read(look, name, 0, Budget(HALF, max_kernels=40, max_nodes=25_000, max_total_nodes=75_000)),
        )
        if one.decided and other.decided:
            decided += 1
            assert one.size == other.size, name
    assert decided > 2


@pytest.mark.parametrize("effort", [False, True])
def test_a_reason_offers_more_work_only_where_there_is_more(effort, monkeypatch):
    """Every budget is used with effort; where nothing was found the reason then sends nobody to --effort."""
    look = looked(PLAIN)
    at = Places(PLAIN, look.ray, look.optimizer, effort=effort)
    (demand,) = (
        d
        for d in parameterization("mup").list_demands(PLAIN, Structure())
        if d.label.endswith("the change of k is Theta(1)")
    )
    open_ = Failure("undecided", undecided=True, open=OpenDemand(demand.label, "k.change", 1, WORK_LIMIT_REASON))
    monkeypatch.setattr(demands, "check", lambda *asked: None)
    monkeypatch.setattr(demands, "is_met", lambda demand, look: False)
    monkeypatch.setattr(demands, "look_ahead", lambda *asked: None)
    monkeypatch.setattr(demands, "violation", lambda *asked, **more: open_)
    monkeypatch.setattr(demands, "explain_open", lambda lead, high: explain_open(None, high))
    (left,) = demands.left_open(at, [demand], look)
    assert ("derive --effort goes on" in left.why) is not effort and "takes more work" in left.why


def test_a_reason_says_what_was_found_and_what_is_not_excluded():
    low = Fraction(-1, 2)
    assert explain_open(None, Fraction(0)) == WORK_LIMIT_REASON
    assert explain_open(low, Fraction(0)).endswith(
        "n^(-1/2) were found, but other terms are only known to be at most n^(0)"
    )
    assert explain_open(low, low).endswith("were found, which other terms may cancel")
    assert explain_open(low, None).endswith("other terms have no upper bound")
