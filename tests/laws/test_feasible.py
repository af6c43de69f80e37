"""Assumptions: windows, what binds them, contradictions, misprints, onsets; scipy as an independent solver."""

from __future__ import annotations

import json
import random
import time
from fractions import Fraction

import pytest

from scaling_algebra.documents import FORMATS, render
from scaling_algebra.errors import UsageError
from scaling_algebra.laws.expressions import monomial, relation
from scaling_algebra.laws.feasible import assumptions, feasible, read_assumptions
from scaling_algebra.laws.windows import Exponents

CLUSTER = assumptions("switch-cluster")


def law(**laws):
    return {name: monomial(text) for name, text in laws.items()}


@pytest.fixture
def mine(tmp_path):
    def write(text):
        (tmp_path / "mine.toml").write_text(text, encoding="utf-8")
        return read_assumptions(tmp_path / "mine.toml")

    return write


def test_the_window_of_the_theorem():
    """sigma_0 in [d^-1/3, d^-0.01], and n = Omega(d) at its left end (switch-cluster paper, Theorem 4.2)."""
    assert feasible(CLUSTER, law(sigma_0="d**(-1/4)")).windows["n"].low.value == Fraction(3, 4)


def test_an_end_moves_when_what_binds_it_is_left_out():
    """Negative control: without the named assumptions the end is another one, without others it stays."""
    usual = feasible(CLUSTER).windows["sigma_0"]
    for drop, low, high in ((("overlaps",), 1, 0), (("error term", "equal experts"), 0, 1), (("drift",), 0, 0)):
        w = feasible(CLUSTER, drop=drop).windows["sigma_0"]
        assert [w.low.value != usual.low.value, w.high.value != usual.high.value] == [low, high]


def test_contradictions_are_smallest():
    f = feasible(CLUSTER, law(sigma_0="d**(-1/2)"))
    assert f.core == ("overlaps",) and not f.windows
    core = feasible(CLUSTER, law(K="d**(1/100)"), ["Groenwall"]).core
    assert all(name not in feasible(CLUSTER, law(K="d**(1/100)"), ["Groenwall", name]).core for name in core)


@pytest.mark.parametrize(
    ("relations", "core"),
    [
        (["a << b", "b << a", "a <= d"], {"a << b", "b << a"}),
        (["n << n"], {"n << n"}),
        (["a << b", "b <= a"], {"a << b", "b <= a"}),
        (["a*log(d) << b", "b << a"], {"a*log(d) << b", "b << a"}),
        (["a << b*log(d)", "b << a"], set()),
        (["a <= b", "b <= a"], set()),
        (["d <= d**2"], set()),
        (["d**2 << d"], {"d^2 << d"}),
        (["x + y <= d", "d <= y", "d <= x*d**(-1/2)"], {"x + y <= d", "d <= x/d^(1/2)"}),
    ],
)
def test_strict_relations_contradict_where_no_logarithm_can_help(mine, relations, core):
    assert set(feasible(mine(f"assume = {json.dumps(relations)}")).core) == core


def test_a_long_chain_is_answered(mine):
    chain = [f"x{k} <= x{k + 1}" for k in range(30)] + ["x30 <= d"]
    began = time.process_time()
    assert feasible(mine(f"assume = {json.dumps(chain)}")).windows["x0"].high.value == 1
    assert time.process_time() - began < 5


def test_the_misprint_and_no_other():
    f = feasible(CLUSTER)
    assert [(d.name, str(d.printed), str(f.defined[d.name][0])) for d in CLUSTER.misprints()] == [
        ("expert_margin", "1/M^4", "1/M^6")
    ]
    assert str(f.defined["router_margin"][0]) == "eta_r/K/M^11/eta"
    assert set(f.even) == {"drift", "Groenwall", "filters", "clusters"}, "where logarithms decide"
    assert all(a.because and a.source for a in CLUSTER.assume)
    assert all(render(f.document(f.onsets({"M": 3})), form) for form in FORMATS)


def test_onsets():
    """At K = 4, M = 8 the router's margin needs d > 10^8730; constants that do not grow never do."""
    of = {o.name: o for o in feasible(CLUSTER, law(sigma_0="d**(-1/3)")).onsets({"K": 4, "M": 8, "J": 16})}
    assert of["router margin"].log10 == pytest.approx(8729.87, abs=0.01)
    assert of["expert margin"].log10 == pytest.approx(5.4185, abs=1e-3) and str(of["overlaps"]) == "1"
    assert str(of["drift"]) == "never" and str(of["samples"]) == "needs n"
    logs = {o.name: o for o in feasible(CLUSTER).onsets({"M": 3})}
    assert logs["Groenwall"].log10 == pytest.approx(9 / 2.302585, abs=1e-3)


def test_windows_against_scipy():
    """Random systems: ends of scipy's linear programming, and their contradictions."""
    optimize = pytest.importorskip("scipy.optimize")
    draw, names, bad, x = random.Random(5), ["x", "y", "z"], 0, monomial("x")
    for _ in range(20):
        numbers = [[Fraction(draw.randint(-3, 3), draw.choice([1, 2, 3])) for _ in names] for _ in range(6)]
        numbers = [[*row, Fraction(draw.randint(-4, 3))] for row in numbers]
        rows = {str(k): relation("*".join(f"{n}**({e})" for n, e in zip([*names, "d"], row, strict=True)) + " <= 1")
                for k, row in enumerate(numbers)}  # fmt: skip
        a, b = [[float(e) for e in row[:3]] for row in numbers], [-float(row[3]) for row in numbers]
        solved = [optimize.linprog([s, 0, 0], a, b, bounds=[(None, None)] * 3) for s in (1, -1)]
        if solved[0].status == 2 or solved[1].status == 2:
            bad += 1
            core = Exponents(rows, "d").core()
            assert core and all(not Exponents({k: rows[k] for k in core if k != c}, "d").core() for c in core)
            continue
        w = Exponents(rows, "d").window(x)
        for side, s, answer in (("low", 1, solved[0]), ("high", -1, solved[1])):
            end = getattr(w, side)
            assert (end.value is None) == (answer.status == 3)
            if end.value is not None:
                assert float(end.value) == pytest.approx(s * answer.fun, abs=1e-7)
                binding = {k: rows[k] for k in end.binding}
                assert getattr(Exponents(binding, "d").window(x), side).value == end.value
    assert 0 < bad < 20


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("assume = 3", "must be a list"),
        ("assume = []", "assume is missing"),
        ("assume = [3]", "relation is 3"),
        ('assume = ["n"]', "no relation"),
        ('assume = ["n <= a + b"]', "a sum on its larger side"),
        ('assume = ["n**k <= d"]', "only d may have one"),
        ('assume = ["d**(k*k) <= n"]', "not linear"),
        ('assume = ["d**k <= k"]', "k"),
        ('assume = ["n <= d", "n <= d"]', "there twice"),
        ('assume = [{ relation = "n <= d", why = "x" }]', "no key of assume 1 named 'why'"),
        ('grow = "d"\nassume = ["n <= d"]', "no key named 'grow'"),
        ('grows = "d d"\nassume = ["n <= d"]', "name of the quantity"),
        ('assume = ["n <= d"]\ndefine = [{ name = "q", is = "r" }, { name = "r", is = "n" }]', "defined at or after"),
        ("assume = [", "not TOML"),
        ('assume = ["__import__(1) <= d"]', "functions are"),
    ],
)
def test_files_that_cannot_be_read(mine, text, says):
    with pytest.raises(UsageError, match=says) as error:
        feasible(mine(text))
    assert "\n" not in str(error.value)
