"""Operations on signals: bounds that hold, pruning that changes no certified answer, products in any order."""

import random
from fractions import Fraction
from itertools import permutations

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from scaling_algebra.counting import contracting
from scaling_algebra.counting.algebra import Algebra
from scaling_algebra.counting.graded import FormAlgebra
from scaling_algebra.counting.kernels import Contraction, Exhausted, Kernel, leaf_kernel, multiply
from scaling_algebra.counting.projections import mark_doubtful, remove_leading
from scaling_algebra.counting.signals import Budget, Scalar, Signal
from scaling_algebra.spec.axes import Ray

from .brute_force import TensorNetwork, pairing_count, wick_two_copies

SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
HALF = Fraction(1, 2)
AXES = ("N", "N_e", "M")
ONE = Ray({"N": 1, "N_e": 0, "M": 0})
LETTERS = {x: "N" for x in "abcdef"}


def plain(gap=100, ray=ONE, indices=LETTERS, means="", **limits):
    return Algebra(ray, indices, [], Fraction(0), centred_axes=frozenset(indices[x] for x in means)).with_budget(
        Budget(Fraction(gap), **limits)
    )


def size(algebra, s):
    found = algebra.rms(s)
    return None if found is None else algebra.exponent(found)


def bound(algebra, s):
    return algebra.exponent(algebra.upper_bound(s))


def gram(algebra, left, right, out):
    """W times W, in these letters."""
    return algebra.contract(algebra.tensor("W", left, 0), algebra.tensor("W", right, 0), out)


# bounds ---------------------------------------------------------------------------------------------------------


def test_a_square_with_a_large_diagonal_is_not_certified_too_small():
    """A_bc = sum_k W_bk W_ck; the entrywise square is dominated by its diagonal, n^2 on one entry in n."""
    inner = Fraction(3, 4)
    dims = {"b": Fraction(1), "c": Fraction(1), "k": inner, "l": inner}
    wick = wick_two_copies(TensorNetwork((("W", "bk"), ("W", "ck"), ("W", "bl"), ("W", "cl")), "bc", dims))
    assert wick == 1  # off the diagonal it is 3/4
    for gap in (Fraction(0), Fraction(1, 8), Fraction(1, 2), Fraction(2)):
        for most in (1, 2, None):
            ray = Ray({"N": 1, "N_e": inner, "M": 0})
            algebra = plain(gap, ray, {"b": "N", "c": "N", "k": "N_e"}, max_kernels=most)
            a = gram(algebra, "bk", "ck", "bc")
            square = algebra.contract(a, a, "bc")
            assert bound(algebra, square) >= wick
            assert not algebra.is_certified(square) or size(algebra, square) == wick


def test_two_open_letters_that_are_one_cost_half_their_dimension():
    """W W^T with a wide inner side: its diagonal, n^2 on one entry in n, leads, and is n^(3/2) altogether."""
    algebra = plain(ray=Ray({"N": 1, "N_e": 2, "M": 0}), indices={"a": "N", "c": "N", "b": "N_e"})
    assert size(algebra, gram(algebra, "ab", "cb", "ac")) == Fraction(3, 2)
    w = leaf_kernel("W", ["N", "N_e"], [0, 1])
    for slack, kept, cut in ((0, 0, -1), (1, 1, -2), (2, 2, None)):
        found = multiply(w, w, Contraction((0, 1), (2, 1), (0, 2)), {"N": 1, "N_e": 2}, slack)
        assert (len(found.terms), found.omitted_bound) == (kept, cut)
        assert not kept or found.terms[0][0].repeated_axes() == ("N",)


def test_what_is_known_by_its_size_only_may_have_a_large_diagonal():
    """The entrywise square of W W^T, of which the product is told nothing but the size."""
    algebra = plain(ray=Ray({"N": 1, "N_e": Fraction(3, 4), "M": 0}), indices={"b": "N", "c": "N", "k": "N_e"})
    square = gram(algebra, "bk", "ck", "bc")
    lost = Signal("bc", {}, tail_bound=algebra.rms(square))
    assert bound(algebra, algebra.contract(lost, lost, "bc")) >= size(algebra, algebra.contract(square, square, "bc"))


@pytest.mark.parametrize(("rows", "columns"), [(1, 2), (2, 1), (1, 1)])
def test_the_operator_norm_of_a_tensor_is_reached(rows, columns):
    """W x with x = W^T u: the bound for all x of this size is what this one reaches."""
    algebra = plain(0, Ray({"N": rows, "N_e": columns, "M": 0}), {"a": "N", "c": "N", "b": "N_e"})
    w = algebra.tensor("W", "ab", 0)
    x = algebra.contract(algebra.tensor("W", "cb", 0), algebra.tensor("u", "c", 0), "b")
    lost = Signal("b", {}, tail_bound=algebra.rms(x))
    assert bound(algebra, algebra.contract(w, lost, "a")) == size(algebra, algebra.contract(w, x, "a"))


def test_a_broadcast_letter_that_is_summed_counts_in_full():
    """sum_i W_b x_b of a tensor that all experts share is M times one expert's."""
    algebra = plain(0, Ray({"N": 1, "N_e": 0, "M": 1}), {"i": "M", "b": "N", "c": "N"})
    shared = algebra.tensor("W", "icb", 0, "cb")
    for x in (algebra.tensor("x", "b", 0), Signal("b", {}, tail_bound=0)):
        whole = algebra.contract(shared, x, "c")
        assert bound(algebra, whole) >= Fraction(3, 2)


@st.composite
def trees(draw, leaves=7, pairings=4000):
    """A ray, a network whose axes coincide often, and the order in which its factors meet."""
    rate = st.fractions(min_value=0, max_value=2, max_denominator=2)
    ray = draw(st.fixed_dictionaries({axis: rate for axis in AXES}).filter(lambda r: any(r.values())))
    axis = draw(st.lists(st.sampled_from(("N", "N", "M", "N_e")), min_size=3, max_size=6))
    indices = dict(zip("abcdef", axis, strict=False))
    shapes = draw(
        st.lists(st.lists(st.sampled_from(sorted(set(axis))), min_size=1, max_size=3), min_size=1, max_size=3)
    )
    names = draw(
        st.lists(st.sampled_from("UVW"[: len(shapes)]), min_size=2, max_size=leaves).filter(
            lambda n: pairing_count(n) <= pairings
        )
    )
    net = []
    for name in names:
        shape = shapes["UVW".index(name)]
        net.append((name, "".join(draw(st.sampled_from([x for x in indices if indices[x] == a])) for a in shape)))
    used = sorted({x for _, xs in net for x in xs})
    opens = "".join(draw(st.lists(st.sampled_from(used), unique=True, max_size=3)))
    return ray, indices, TensorNetwork(tuple(net), opens, {x: ray[indices[x]] for x in used})


def factors(algebra, net, order=None):
    """One signal for each leaf; initial tensors where no letter repeats, some of them constant along more letters."""
    found = []
    for name, xs in net.leaves:
        live = [x for x in xs if x in algebra.indices]
        if len(set(live)) == len(live):
            more = [] if order is None else [x for x in sorted(net.dims) if x not in live and order.random() < 0.3]
            found.append(algebra.tensor(name, "".join([*live, *more]), 0, "".join(live)))
            continue
        opens = "".join(dict.fromkeys(live))
        kernel = Kernel(
            tuple(algebra.indices[x] for x in opens), tuple(range(len(opens))), ((name, tuple(map(opens.index, live))),)
        )
        found.append(Signal(opens, {algebra.intern(kernel): 0}))
    return found


def by_tree(algebra, net, order):
    """The product of all factors, two by two in any order, so that signals of several kernels meet."""
    pool = factors(algebra, net, order)
    if order.random() < 0.5:
        pool.append(algebra.constant("".join(x for x in sorted(net.dims) if order.random() < 0.5)))
    while len(pool) > 1:
        i, j = order.sample(range(len(pool)), 2)
        rest = set(net.opens).union(*(s.indices for k, s in enumerate(pool) if k not in (i, j)))
        both = dict.fromkeys(pool[i].indices + pool[j].indices)
        made = algebra.contract(pool[i], pool[j], "".join(x for x in both if x in rest))
        pool = [s for k, s in enumerate(pool) if k not in (i, j)] + [made]
    return algebra.contract(pool[0], algebra.constant(""), net.opens)


def pruned_products(examples):
    """Certified products of pruned signals are exact and bounds are bounds, of products drawn at random."""

    @settings(max_examples=examples, deadline=None, suppress_health_check=SLOW)
    @given(
        trees(),
        st.sampled_from([Fraction(0), Fraction(0), Fraction(1, 4), Fraction(1, 2), Fraction(1)]),
        st.sampled_from([None, None, None, 1, 2, 3]),
        st.sampled_from([None, None, None, 0, 1, 2, 4]),
        st.randoms(use_true_random=False),
    )
    def check(case, gap, most, leaves, order):
        ray, indices, net = case
        exact = wick_two_copies(net)
        algebra = plain(gap, Ray(ray), {x: indices[x] for x in net.dims}, max_kernels=most, max_leaves=leaves)
        s = by_tree(algebra, net, order)
        found = size(algebra, s)
        assert found is None or found <= exact
        assert bound(algebra, s) >= exact
        if algebra.is_certified(s):
            assert found == exact

    check()


@pytest.mark.parametrize("examples", [40, 400])
def test_certified_products_of_pruned_signals_are_exact_and_bounds_are_bounds(examples):
    pruned_products(examples)


def test_what_is_constant_along_a_letter_is_no_larger_for_it():
    """W_ib g_b with g the same for all i: the operator norm of one W_i, not of all of them apart."""
    algebra = plain(0, Ray({"N": 1, "N_e": 0, "M": 1}), {"i": "M", "b": "N"})
    w, hidden = algebra.tensor("W", "ib", 0), Signal("b", {}, tail_bound=0)
    spread = algebra.contract(algebra.constant("i"), hidden, "ib")
    assert spread.constant_along == {"i"}
    assert bound(algebra, algebra.contract(w, spread, "i")) == Fraction(1, 2)
    assert bound(algebra, algebra.contract(w, Signal("ib", {}, tail_bound=0), "i")) == 1


def test_pairs_that_a_product_skips_are_bounded():
    """(U + V/n) V: the second product, of exponent 0, lies below the first, 1/2, by more than the gap."""
    algebra = plain(0)
    u, v = algebra.tensor("U", "a", 0), algebra.tensor("V", "a", 0)
    small = algebra.scale_by(v, Scalar("1/n", algebra.pack(Fraction(-1), {}, {})))
    for left, right in permutations((algebra.with_budget(Budget(Fraction(5))).add([u, small]), v)):
        whole = algebra.contract(left, right, "")
        assert size(algebra, whole) == HALF and algebra.is_certified(whole)
        assert len(whole.terms) == 1 and whole.tail_bound is not None and algebra.exponent(whole.tail_bound) >= 0


def test_what_either_factor_dropped_is_bounded_in_their_product():
    """V may have dropped something as large as n^(1/2), all of it along U: then U V is n^(3/2), not n^(1/2). Where all
    that was dropped is known to be independent of U, it is n."""
    algebra = plain(0)
    u, v = algebra.tensor("U", "a", 0), algebra.tensor("V", "a", 0)
    of_u, of_v = u.depends_on, v.depends_on
    for depends, exponent in ((None, 3 * HALF), (of_v, 2 * HALF), (of_u | of_v, 3 * HALF)):
        loose = v.replace(tail_bound=algebra.pack(HALF, {}, {}), depends_on=depends)
        for left, right in permutations((u, loose)):
            whole = algebra.contract(left, right, "")
            assert not algebra.is_certified(whole) and bound(algebra, whole) == exponent


def some_product(algebra, rng):
    """A product of one to three random tensors along few indices, some of them summed."""
    indices = ["".join(rng.sample("abcd", rng.randint(1, 2))) for _ in range(rng.randint(1, 3))]
    parts = [algebra.tensor(f"{rng.choice('UVW')}{len(x)}", x, 0) for x in indices]
    return algebra.contract_all(parts, "".join(x for x in dict.fromkeys("".join(indices)) if rng.random() < 0.7))


def bounds_too_low(examples):
    """Products of which one factor was dropped whole, and that are larger than their bound; the number of those for
    which the bound was below that of Cauchy and Schwarz."""
    algebra, rng, wrong, saved = plain(50), random.Random(1), 0, 0
    for _ in range(examples):
        x, y = some_product(algebra, rng), some_product(algebra, rng)
        out = "".join(c for c in dict.fromkeys(x.indices + y.indices) if rng.random() < 0.4)
        loose = Signal(y.indices, {}, algebra.rms(y), depends_on=y.depends_on)
        least, most = size(algebra, algebra.contract(x, y, out)), bound(algebra, algebra.contract(x, loose, out))
        wrong += most < least
        saved += most < algebra.exponent(
            algebra.rms(x) + loose.tail_bound + contracting.bound_sum(algebra, x, loose, out)
        )
    return wrong, saved


def test_a_sum_over_an_index_of_further_tensors_is_random_whatever_was_dropped(monkeypatch):
    """Sum_ab T_a O_ab y_b, where all of y is a function of T and V: O is another tensor, so that along a and b the
    terms are uncorrelated, though the factors have T in common. Negative controls: where O is among what y is made of,
    and tensors that are not compared."""
    wrong, saved = bounds_too_low(1_500)
    assert not wrong and saved > 500
    algebra = plain()
    t, o, v = algebra.tensor("T", "a", 0), algebra.tensor("O", "ab", 0), algebra.tensor("V", "b", 0)
    both = algebra.contract(t, o, "ab").replace(leaf_indices=None)
    for depends, exponent in (
        (t.depends_on | v.depends_on, 1),
        (o.depends_on | v.depends_on, 3 * HALF),
        (t.depends_on | o.depends_on, 2),
    ):
        assert bound(algebra, algebra.contract(both, Signal("b", {}, 0, depends_on=depends), "")) == exponent
    usual = contracting.find_saving
    monkeypatch.setattr(
        contracting, "find_saving", lambda x, s, k, y, out: usual(x, s, k, y.replace(depends_on=0), out)
    )
    assert bounds_too_low(1_500)[0]


def test_indices_that_are_always_equal_save_once(monkeypatch):
    """Sum_ab T_a delta_ab y_ab is a sum of n terms, not of n^2, of whatever stands on the diagonal of y. Negative
    control: each index counted by itself."""
    algebra = plain()
    unit = Signal("ab", {algebra.intern(Kernel(("N",), (0, 0), ())): 0}, depends_on=0)
    x, y = (
        algebra.contract(algebra.tensor("T", "a", 0), unit, "ab"),
        unit.replace(terms={}, tail_bound=algebra.rms(unit)),
    )

    def sizes():
        return size(algebra, algebra.contract(x, unit, "")), bound(algebra, algebra.contract(x, y, ""))

    assert sizes() == (HALF, HALF)
    usual = contracting.find_saving
    monkeypatch.setattr(contracting, "find_saving", lambda *args: 2 * usual(*args))
    assert sizes() == (HALF, 0)


def test_nothing_above_the_leading_exponent_is_certified():
    """A bound that lies above it by any amount, however small."""
    algebra = plain(0)
    u = algebra.tensor("U", "a", 0)
    for above in (Fraction(-1, 8), Fraction(0), Fraction(1, 8), HALF):
        assert algebra.is_certified(u.replace(tail_bound=algebra.pack(above, {}, {}))) == (above <= 0)


# products -------------------------------------------------------------------------------------------------------


def many_factors(examples):
    """A product of many factors is the Wick sum."""

    @settings(max_examples=examples, deadline=None, suppress_health_check=SLOW)
    @given(trees())
    def check(case):
        ray, indices, net = case
        algebra = plain(100, Ray(ray), {x: indices[x] for x in net.dims})
        s = algebra.contract_all(factors(algebra, net), net.opens)
        assert s.tail_bound is None
        assert size(algebra, s) == wick_two_copies(net)

    check()


def test_a_product_of_many_factors_is_the_wick_sum():
    many_factors(50)


def test_products_of_one_and_two_factors():
    algebra = plain()
    w, x = algebra.tensor("W", "ab", 0), algebra.tensor("x", "b", 0)
    one, other = algebra.contract_all([w, x], "a", "forward w"), algebra.contract(w, x, "a", "forward w")
    assert (one.indices, one.terms, one.tail_bound, one.origin.operands, one.origin.tag) == (
        "a",
        other.terms,
        None,
        (w, x),
        "forward w",
    )
    assert size(algebra, algebra.contract_all([w], "a")) == Fraction(1, 2)
    with pytest.raises(ValueError, match="factors"):
        algebra.contract_all([], "")
    with pytest.raises(ValueError, match=r"'c'"):
        algebra.contract_all([w, x, x], "c")
    with pytest.raises(ValueError, match=r"'c'"):
        algebra.contract(w, x, "c")


def test_tensors_meet_vectors_first():
    """(W x) o y with an uncertain y: the operator norm of W bounds what is dropped."""
    algebra = plain(0)
    w, x = algebra.tensor("W", "ab", 0), Signal("b", {}, tail_bound=0)
    y = algebra.tensor("y", "a", 0)
    for pool in ([w, y, x], [y, x, w], [x, y, w], [algebra.constant(""), w, y, x]):
        assert bound(algebra, algebra.contract_all(pool, "a")) == Fraction(1, 2)


# sums, differences and names ------------------------------------------------------------------------------------


def test_a_sum_is_of_signals_with_the_same_letters():
    algebra = plain()
    ab, ba, a = algebra.tensor("W", "ab", 0), algebra.tensor("W", "ba", 0), algebra.tensor("x", "a", 0)
    with pytest.raises(ValueError, match=r"'ab'.*'a'"):
        algebra.add([ab, a])
    with pytest.raises(ValueError, match=r"'a'.*'b'"):
        algebra.add([a, algebra.zeros("b")])
    whole = algebra.add([ab, ba])
    assert whole.indices == "ab" and len(whole.terms) == 2  # W and its transpose are two kernels
    transposed = algebra.rename_indices(ba, "ba", "ab")
    assert len(algebra.add([ab, transposed]).terms) == 1


def test_relabelled():
    algebra = plain(indices={**LETTERS, "i": "M", "x": "D", "y": "D", "z": "tokens"})
    w = algebra.tensor("W", "abx", 0)
    found = algebra.rename_indices(w, "abxi", "cayi")
    assert found.indices == found.leaf_indices == "ca" and found.terms == w.terms
    again = algebra.contract(found, algebra.tensor("W", "ca", 0), "")
    assert size(algebra, again) == 2
    for old, new in (("ab", "a"), ("ab", "cc"), ("ab", "ai"), ("abx", "abz"), ("a", "c"), ("ab", "aq")):
        with pytest.raises(ValueError):
            algebra.rename_indices(w, old, new)


def test_a_common_direction_is_removed_exactly():
    """P (3 x + z) with P x + P y = 0: the x of it is -3 y."""
    algebra = plain()
    x, y, z = (algebra.tensor(name, "a", 0) for name in "xyz")
    by = algebra.add([x, algebra.scale_by(y, Scalar("", algebra.pack(Fraction(-1), {}, {})))])
    left = remove_leading(algebra, algebra.add([x, z]), by)
    assert set(left.terms) == set(y.terms) | set(z.terms)
    assert algebra.exponent(left.terms[next(iter(y.terms))]) == -1 and size(algebra, left) == 0
    assert remove_leading(algebra, x, x).is_zero
    assert remove_leading(algebra, z, by) is z


def test_what_may_cancel_later_is_a_bound_only():
    """x and y with everything along x taken out: as large as before, but what meets x later may be gone."""
    algebra = plain()
    x, y = algebra.tensor("x", "a", 0), algebra.tensor("y", "a", 0)
    both = mark_doubtful(algebra, algebra.add([x, y]), x)
    assert size(algebra, both) == 0 and algebra.is_certified(both)
    with_x, with_y = algebra.contract(both, x, ""), algebra.contract(both, y, "")
    assert not algebra.is_certified(with_x) and bound(algebra, with_x) == 1
    assert algebra.is_certified(with_y) and size(algebra, with_y) == 1


def test_what_sums_to_zero_does_not_see_a_constant():
    with pytest.raises(ValueError, match="axis N in `centred_axes`"):
        plain().subtract_mean(plain().tensor("W", "ab", 0), "a")
    algebra = plain(means="a")
    w, flat = algebra.tensor("W", "ab", 0), algebra.tensor("x", "ab", 0, "b")
    centred = algebra.subtract_mean(w, "a")
    assert algebra.contract(centred, algebra.constant("a"), "b").is_zero and algebra.contract(centred, flat, "").is_zero
    assert size(algebra, algebra.contract(centred, w, "")) == size(algebra, algebra.contract(w, w, ""))


# graded signals -------------------------------------------------------------------------------------------------


def graded():
    algebra = FormAlgebra(ONE, LETTERS, ("b.W", "b.x", "b.y"))
    tensors = {
        name: algebra.tensor(name, indices, algebra.pack(Fraction(0), {}, {f"b.{name}": -1}))
        for name, indices in (("W", "ab"), ("x", "b"), ("y", "a"))
    }
    return algebra, tensors


def test_graded_signals_have_the_same_operations():
    algebra, s = graded()
    whole = algebra.contract_all([s["y"], s["x"], s["W"]], "a")
    (form,) = algebra.bound_size(whole).lower
    assert str(form.power) == "N^(1/2)" and dict(form.unknowns) == {"b.W": -1, "b.x": -1, "b.y": -1}
    moved = algebra.rename_indices(s["x"], "b", "c")
    assert {x.indices for x in moved.by_grade.values()} == {"c"}
    with pytest.raises(ValueError, match=r"'a'.*'b'"):
        algebra.add([s["y"], s["x"]])
    assert len(algebra.add([s["W"], algebra.tensor("W", "ba", 0)]).by_grade) == 2
    with pytest.raises(Exhausted):
        algebra.scale_by(s["x"], Scalar("1/a size that is a bound", 0, certain=False))


# pure functions -------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None, suppress_health_check=SLOW)
@given(trees(leaves=6), st.sampled_from([3, 10, 40, None]), st.integers(0, 99))
def test_a_product_does_not_depend_on_what_was_asked_before(case, work, seed):
    """Terms, tail and exhaustion are those of a fresh algebra."""
    ray, indices, net = case
    assume(any(ray.values()))
    rung = Budget(Fraction(1, 2), 2, 4, work)

    def outcome(algebra, what):
        try:
            s = by_tree(algebra, what, random.Random(seed))
        except Exhausted:
            return "exhausted"
        return s.indices, {algebra.kernel(k): e for k, e in s.terms.items()}, s.tail_bound

    fresh = Algebra(Ray(ray), {x: indices[x] for x in net.dims}, [], Fraction(0)).with_budget(rung)
    used = Algebra(Ray(ray), {x: indices[x] for x in net.dims}, [], Fraction(0))
    for first in (Budget(Fraction(3)), Budget(Fraction(0), 1, None, 2), rung):
        outcome(used.with_budget(first), net)
    assert outcome(used.with_budget(rung), net) == outcome(fresh, net)
