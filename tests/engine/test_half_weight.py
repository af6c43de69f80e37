"""The half-weight rule, its reductions and the certificate, against the full Wick sum over two copies."""

import random
from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scaling_algebra.counting import brute_force, kernels
from scaling_algebra.counting.brute_force import TensorNetwork, half_weight, pairing_count, wick_two_copies
from scaling_algebra.counting.kernels import Contraction, Kernel, canonical
from scaling_algebra.counting.signals import Algebra, Signal
from scaling_algebra.spec.axes import Ray

AXES = ("N", "N_e", "M")


@st.composite
def networks(draw, leaves=10, pairings=4000):
    """A random ray and monomial: up to 10 leaves of up to 4 tensors, repeated, open and tied indices included."""
    rate = st.fractions(min_value=0, max_value=3, max_denominator=3)
    ray = draw(st.fixed_dictionaries({axis: rate for axis in AXES}).filter(lambda r: any(r.values())))
    axis = draw(st.lists(st.sampled_from(AXES), min_size=2, max_size=7))
    letters = dict(zip("abcdefg", axis, strict=False))
    shapes = draw(
        st.lists(st.lists(st.sampled_from(sorted(set(axis))), min_size=1, max_size=3), min_size=1, max_size=4)
    )
    names = draw(
        st.lists(st.sampled_from("UVWX"[: len(shapes)]), min_size=2, max_size=leaves).filter(
            lambda n: pairing_count(n) <= pairings
        )
    )
    net = []
    for name in names:
        shape = shapes["UVWX".index(name)]
        net.append((name, "".join(draw(st.sampled_from([x for x in letters if letters[x] == a])) for a in shape)))
    used = sorted({x for _, xs in net for x in xs})
    opens = "".join(draw(st.lists(st.sampled_from(used), unique=True, max_size=3)))
    order = draw(st.randoms(use_true_random=False))
    return ray, letters, TensorNetwork(tuple(net), opens, {x: ray[letters[x]] for x in used}), order


def by_engine(ray, letters, net, order, gap):
    """The same monomial as products of one-leaf signals, in random order."""
    algebra = Algebra(Ray(ray), {x: letters[x] for x in net.dims}, [], gap)
    algebra.work = 10**9
    leaves = list(net.leaves)
    order.shuffle(leaves)
    total = algebra.constant("")
    for k, (name, xs) in enumerate(leaves):
        live = [x for x in xs if x in algebra.letters]
        opens = "".join(dict.fromkeys(live))
        kernel = Kernel(
            tuple(algebra.letters[x] for x in opens), tuple(range(len(opens))), ((name, tuple(map(opens.index, live))),)
        )
        leaf = Signal(opens, {algebra.intern(kernel): 0})
        later = {x for _, ys in leaves[k + 1 :] for x in ys} | set(net.opens)
        total = algebra.contract(total, leaf, "".join(x for x in dict.fromkeys(total.letters + opens) if x in later))
    return algebra, total


SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


@pytest.mark.slow
@settings(max_examples=1500, deadline=None, suppress_health_check=SLOW)
@given(networks())
def test_one_copy_equals_two_copies_and_the_engine(case):
    ray, letters, net, order = case
    exact = wick_two_copies(net)
    assert half_weight(net) == exact
    algebra, signal = by_engine(ray, letters, net, order, Fraction(100))
    assert signal.tail is None
    assert algebra.value(algebra.rms(signal)) == exact


@pytest.mark.slow
@settings(max_examples=1500, deadline=None, suppress_health_check=SLOW)
@given(networks(), st.sampled_from([Fraction(0), Fraction(1, 2), Fraction(1)]))
def test_a_certified_answer_is_exact_and_a_bound_is_a_bound(case, gap):
    ray, letters, net, order = case
    exact = wick_two_copies(net)
    algebra, signal = by_engine(ray, letters, net, order, gap)
    lead = algebra.value(algebra.rms(signal))
    assert lead <= exact
    if algebra.certified(signal):
        assert lead == exact
    else:
        assert algebra.value(signal.tail) >= exact


def test_known_values():
    """W x is CLT; W W^T x is coherent exactly where the inner width is at least the outer one."""
    one, half = Fraction(1), Fraction(1, 2)
    chain = TensorNetwork((("W", "ab"), ("x", "b")), "a", {"a": one, "b": one})
    assert half_weight(chain) == wick_two_copies(chain) == half
    for inner in (Fraction(0), half, one, 2 * one):
        gram = TensorNetwork((("W", "ab"), ("W", "cb"), ("x", "c")), "a", {"a": one, "b": inner, "c": one})
        assert half_weight(gram) == wick_two_copies(gram) == max(inner, (inner + 1) / 2)


def _mismatches(rule):
    """How often a rule for one copy disagrees with two copies on a fixed set of networks."""
    rng, wrong = random.Random(0), 0
    for _ in range(200):
        letters = "abcd"
        dims = {x: Fraction(rng.randint(0, 2)) for x in letters}
        net = TensorNetwork(tuple(("W", rng.choice(letters) + rng.choice(letters)) for _ in range(4)), "", dims)
        used = {x for _, xs in net.leaves for x in xs}
        net = TensorNetwork(net.leaves, "", {x: dims[x] for x in used})
        joins_ok = all(
            dims[x[0]] == dims[y[0]] and dims[x[1]] == dims[y[1]] for _, x in net.leaves for _, y in net.leaves
        )
        wrong += joins_ok and rule(net) != wick_two_copies(net)
    return wrong


def test_a_planted_wrong_rule_is_caught(monkeypatch):
    """Negative control: matched classes weigh 1/2 instead of 1 (CLT where LLN holds)."""
    assert _mismatches(half_weight) == 0
    monkeypatch.setattr(brute_force, "partial_matchings", lambda rest, names: iter([[]]))  # never match
    assert _mismatches(brute_force.half_weight) > 0


def test_a_planted_wrong_weight_in_the_engine_is_caught(monkeypatch):
    """Negative control: the engine forgets to merge the second index of matched leaves."""
    union = kernels.union
    calls = []

    def forgetful(forest, c, d):
        calls.append(1)
        return forest if len(calls) % 2 == 0 else union(forest, c, d)

    monkeypatch.setattr(kernels, "union", forgetful)
    one = Fraction(1)
    wrong = 0
    for opens in ("a", "", "b"):
        net = TensorNetwork((("W", "ab"), ("W", "cb"), ("x", "c"), ("x", "a")), opens, {"a": one, "b": one, "c": one})
        algebra, signal = by_engine(
            {"N": one, "N_e": one, "M": one}, {"a": "N", "b": "N", "c": "N"}, net, random.Random(0), Fraction(9)
        )
        wrong += algebra.value(algebra.rms(signal)) != wick_two_copies(net)
    assert wrong


@given(
    st.permutations(range(5)),
    st.lists(st.tuples(st.sampled_from("UV"), st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=6),
)
def test_canonical_form_does_not_depend_on_labels(labels, edges):
    types = ["N"] * 5
    leaves = [(name, (x, y)) for name, x, y in edges]
    renamed = [(name, (labels[x], labels[y])) for name, x, y in edges]
    opens = [leaves[0][1][0]]
    assert canonical(types, opens, leaves) == canonical(types, [labels[opens[0]]], list(reversed(renamed)))


def test_contraction_knows_its_summed_labels():
    assert Contraction((0, 1), (1, 2), (0, 2)).summed == (1,)
