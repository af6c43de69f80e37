"""Assumptions: windows, what binds them, contradictions; scipy as an independent solver."""

from __future__ import annotations

import json
import random
from fractions import Fraction

import pytest

from scaling_algebra import law
from scaling_algebra.documents import FORMATS, render
from scaling_algebra.laws.expressions import monomial
from scaling_algebra.laws.law import read_law
from scaling_algebra.laws.monomials import Relation
from scaling_algebra.laws.systems import GrowthSystem


def cluster(drop=(), **given):
    return law("switch-cluster", at=given, drop=drop)


@pytest.fixture
def mine(tmp_path):
    def write(text):
        (tmp_path / "mine.toml").write_text(text, encoding="utf-8")
        return law(str(tmp_path / "mine.toml"))

    return write


def test_the_window_of_the_theorem():
    """sigma_0 in [d^-1/3, d^-0.01], and n = Omega(d) at its left end (switch-cluster paper, Theorem 4.2)."""
    assert cluster(sigma_0="d**(-1/4)").windows["n"].low.value == Fraction(3, 4)
    w = cluster().windows["sigma_0"]
    assert (w.low.value, w.high.value) == (Fraction(-1, 3), Fraction(-1, 100))
    assert cluster(sigma_0="d**(-1/3)").windows["n"].low.value == 1


def test_an_end_moves_when_what_binds_it_is_left_out():
    """Negative control: without the named assumptions the end is another one, without others it stays."""
    usual = cluster().windows["sigma_0"]
    for drop, low, high in ((("overlaps",), 1, 0), (("error term", "equal experts"), 0, 1), (("drift",), 0, 0)):
        w = cluster(drop).windows["sigma_0"]
        assert [w.low.value != usual.low.value, w.high.value != usual.high.value] == [low, high]


def test_contradictions_are_smallest():
    f = cluster(sigma_0="d**(-1/2)")
    assert f.core == ("overlaps",) and not f.windows
    core = cluster(["Groenwall"], K="d**(1/100)").core
    names = [a.name for a in read_law("switch-cluster").assume]
    alone = {one: [x for x in names if x not in core or x == one] for one in ("none", *core)}
    assert [bool(cluster(drop, K="d**(1/100)").core) for drop in alone.values()] == [True] + [False] * len(core)
    kappa = cluster(["Groenwall"], K="d**kappa").windows["kappa"]
    assert (kappa.low.value, kappa.high.value, kappa.high.open) == (0, Fraction(1, 10**4), True)


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
        (["d**2 << d"], {"d**2 << d"}),
        (["x + y <= d", "d <= y", "d <= x*d**(-1/2)"], {"x + y <= d", "d <= x*d**(-1/2)"}),
    ],
)
def test_strict_relations_contradict_where_no_logarithm_can_help(mine, relations, core):
    assert set(mine(f"assume = {json.dumps(relations)}").core) == core


def test_a_long_chain_is_answered(mine):
    """What takes every subset of the relations does not end here before the suite's time is over."""
    chain = [f"x{k} <= x{k + 1}" for k in range(30)] + ["x30 <= d"]
    assert mine(f"assume = {json.dumps(chain)}").windows["x0"].high.value == 1


def test_defined_quantities():
    """The margin of an expert is printed as M^-4 (an erratum)."""
    f = cluster()
    assert [str(f.defined[x][0]) for x in ("expert_margin", "router_margin")] == ["1/M^6", "eta_r/K/M^11/eta"]
    assert all(a.because and a.source for a in read_law("switch-cluster").assume)
    assert all(render(x.document(), form) for x in (f, cluster(sigma_0="d**(-1/2)")) for form in FORMATS)


def test_the_window_of_a_product_counts_what_is_given_once(tmp_path):
    """w = x y^2 with x = d^(1/2) and 1 <= y <= d: from d^(1/2) to d^(5/2)."""
    text = 'assume = ["1 <= y", "y <= d", "x <= d"]\ndefine = [{ name = "w", is = "x*y**2" }]\n'
    (tmp_path / "own.toml").write_text(text)
    found = law(str(tmp_path / "own.toml"), at={"x": "d**(1/2)"}).defined["w"][1]
    assert (found.low.value, found.high.value) == (Fraction(1, 2), Fraction(5, 2))


def test_windows_against_scipy():
    """Random systems: ends of scipy's linear programming, and their contradictions."""
    optimize = pytest.importorskip("scipy.optimize")
    draw, names, bad, x = random.Random(5), ["x", "y", "z"], 0, monomial("x")
    for _ in range(20):
        numbers = [[Fraction(draw.randint(-3, 3), draw.choice([1, 2, 3])) for _ in names] for _ in range(6)]
        numbers = [[*row, Fraction(draw.randint(-4, 3))] for row in numbers]
        texts = ["*".join(f"{n}**({e})" for n, e in zip([*names, "d"], row, strict=True)) for row in numbers]
        rows = {str(k): Relation((monomial(text),), str(k)) for k, text in enumerate(texts)}
        a, b = [[float(e) for e in row[:3]] for row in numbers], [-float(row[3]) for row in numbers]
        solved = [optimize.linprog([s, 0, 0], a, b, bounds=[(None, None)] * 3) for s in (1, -1)]
        if solved[0].status == 2 or solved[1].status == 2:
            bad += 1
            core = GrowthSystem(rows.values(), "d").core()
            assert core and all(not GrowthSystem([rows[k] for k in core if k != c], "d").core() for c in core)
            continue
        w = GrowthSystem(rows.values(), "d").window(x)
        for side, s, answer in (("low", 1, solved[0]), ("high", -1, solved[1])):
            end = getattr(w, side)
            assert (end.value is None) == (answer.status == 3)
            if end.value is not None:
                assert float(end.value) == pytest.approx(s * answer.fun, abs=1e-7)
                binding = [rows[k] for k in end.binding]
                assert getattr(GrowthSystem(binding, "d").window(x), side).value == end.value
    assert 0 < bad < 20
