"""Assumptions: windows, what binds them, contradictions, misprints, onsets; scipy as an independent solver."""

from __future__ import annotations

import json
import random
import time
from fractions import Fraction
from pathlib import Path

import pytest
from click.testing import CliRunner

from scaling_algebra.cli import main
from scaling_algebra.documents import FORMATS, render
from scaling_algebra.errors import UsageError
from scaling_algebra.laws.expressions import monomial
from scaling_algebra.laws.feasible.feasible import feasible
from scaling_algebra.laws.feasible.files import SHIPPED, read_assumptions, shipped
from scaling_algebra.laws.feasible.onset import onsets
from scaling_algebra.laws.feasible.windows import Inequality, contradiction, window

CLUSTER = shipped("switch-cluster")
MINE = 'grows = "d"\nassume = ["n**(-1/2) <= sigma", "sigma << d**(-1/2)", "n <= d**3"]\n'


def law(**laws):
    return {name: monomial(text) for name, text in laws.items()}


def run(*arguments):
    result = CliRunner().invoke(main, ["feasible", *arguments])
    return result.exit_code, result.output


@pytest.fixture
def mine(tmp_path):
    def write(text=MINE):
        path = tmp_path / "mine.toml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def test_the_window_of_the_theorem():
    """sigma_0 in [d^-1/3, d^-0.01], and n = Omega(d) exactly at its left end (switch-cluster paper, Theorem 4.2)."""
    w = feasible(CLUSTER).windows["sigma_0"]
    assert (w.low.value, w.high.value) == (Fraction(-1, 3), Fraction(-1, 100))
    assert w.low.binding == ("overlaps",) and w.high.binding in {("error term",), ("equal experts",)}
    assert feasible(CLUSTER, law(sigma_0="d**(-1/3)")).windows["n"].low.value == 1
    assert feasible(CLUSTER, law(sigma_0="d**(-1/4)")).windows["n"].low.value == Fraction(3, 4)


def test_an_end_moves_when_what_binds_it_is_left_out():
    """Negative control: without the named assumptions the end is another one, without others it stays."""
    for side in ("low", "high"):
        for drop in (("overlaps",), ("error term", "equal experts"), ("drift",)):
            found = getattr(feasible(CLUSTER, drop=drop).windows["sigma_0"], side).value
            usual = getattr(feasible(CLUSTER).windows["sigma_0"], side).value
            assert (found != usual) == (drop == {"low": ("overlaps",), "high": ("error term", "equal experts")}[side])


def test_how_many_clusters():
    """Without Groenwall's factor K may be at most d^(1/10000); with it no power of d, below sqrt(log d)."""
    kappa = feasible(CLUSTER, law(K="d**kappa"), ["Groenwall"]).windows["kappa"]
    assert (kappa.low.value, kappa.high.value, kappa.high.open) == (0, Fraction(1, 10000), True)
    assert feasible(CLUSTER).windows["K"].high.value == 0
    assert set(feasible(CLUSTER, law(K="d**(1/20000)")).core) == {"Groenwall", "experts"}
    assert not feasible(CLUSTER, law(K="d**(1/20000)"), ["Groenwall"]).core


def test_contradictions_are_smallest():
    found = feasible(CLUSTER, law(sigma_0="d**(-1/2)"))
    assert found.core == ("overlaps",) and not found.windows
    found = feasible(CLUSTER, law(K="d**(1/100)"), ["Groenwall"])
    for name in found.core:
        assert name not in feasible(CLUSTER, law(K="d**(1/100)"), ["Groenwall", name]).core


@pytest.mark.parametrize(
    ("relations", "core"),
    [
        (["a << b", "b << a", "a <= d"], {"a << b", "b << a"}),
        (["n << n"], {"n << n"}),
        (["a << b", "b <= a"], {"a << b", "b <= a"}),
        (["a*log(d) << b", "b << a"], {"a*log(d) << b", "b << a"}),
        (["a << b*log(d)", "b << a"], set()),
        (["a <= b", "b <= a"], set()),
    ],
)
def test_strict_relations_contradict_where_no_logarithm_can_help(mine, relations, core):
    found = feasible(read_assumptions(mine(f"assume = {json.dumps(relations)}")))
    assert set(found.core) == core and run(mine(f"assume = {json.dumps(relations)}"))[0] == bool(core)


def test_a_long_chain_is_answered(mine):
    chain = [f"x{k} <= x{k + 1}" for k in range(30)] + ["x30 <= d"]
    began = time.process_time()
    assert feasible(read_assumptions(mine(f"assume = {json.dumps(chain)}"))).windows["x0"].high.value == 1
    assert time.process_time() - began < 5


def test_the_misprint_and_no_other():
    found = feasible(CLUSTER)
    assert [(d.name, str(d.printed), str(found.defined[d.name][0])) for d in found.misprints()] == [
        ("expert_margin", "1/M^4", "1/M^6")
    ]
    assert str(found.defined["router_margin"][0]) == "eta_r/K/M^11/eta"


def test_where_logarithms_decide():
    assert set(feasible(CLUSTER).even) == {"drift", "Groenwall", "filters", "clusters"}


def test_onsets():
    """At K = 4, M = 8 the router's margin needs d > 10^8730; constants that do not grow never do."""
    found = {o.name: o for o in onsets(feasible(CLUSTER, law(sigma_0="d**(-1/3)")), {"K": 4, "M": 8, "J": 16})}
    assert found["router margin"].log10 == pytest.approx(8729.87, abs=0.01)
    assert found["expert margin"].log10 == pytest.approx(5.4185, abs=1e-3) and str(found["overlaps"]) == "1"
    assert str(found["drift"]) == "never" and str(found["samples"]) == "needs n"
    logs = {o.name: o for o in onsets(feasible(CLUSTER), {"M": 3})}
    assert logs["Groenwall"].log10 == pytest.approx(9 / 2.302585, abs=1e-3)
    with pytest.raises(UsageError, match="no quantity with a value"):
        onsets(feasible(CLUSTER), {"Q": 1})


def test_windows_against_scipy():
    """Random systems: ends of scipy's linear programming, and their contradictions."""
    optimize = pytest.importorskip("scipy.optimize")
    draw, names, bad = random.Random(5), ["x", "y", "z"], 0
    for _ in range(25):
        rows = []
        for k in range(6):
            numbers = [Fraction(draw.randint(-3, 3), draw.choice([1, 2, 3])) for _ in names]
            rows.append(Inequality(str(k), tuple(zip(names, numbers, strict=True)), Fraction(draw.randint(-4, 3))))
        a = [[float(dict(r.coefficients)[n]) for n in names] for r in rows]
        b = [-float(r.constant) for r in rows]
        solved = [optimize.linprog([s, 0, 0], a, b, bounds=[(None, None)] * 3) for s in (1, -1)]
        if solved[0].status == 2 or solved[1].status == 2:
            bad += 1
            core = contradiction(rows)
            assert core and all(not contradiction([r for r in rows if r.label in core and r.label != c]) for c in core)
            continue
        found = window(rows, {"x": Fraction(1)})
        for end, s, answer in ((found.low, 1, solved[0]), (found.high, -1, solved[1])):
            assert (end.value is None) == (answer.status == 3)
            if end.value is not None:
                assert float(end.value) == pytest.approx(s * answer.fun, abs=1e-7)
                wide = window([r for r in rows if r.label in end.binding], {"x": Fraction(1)})
                assert (wide.low if s == 1 else wide.high).value == end.value
    assert 0 < bad < 25


def test_ones_own_assumptions(mine):
    found = feasible(read_assumptions(mine()))
    assert (found.windows["sigma"].low.value, found.windows["sigma"].high.value) == (Fraction(-3, 2), Fraction(-1, 2))
    assert found.windows["sigma"].high.open and not found.windows["sigma"].low.open
    code, out = run(mine(MINE.replace("d**3", "d**(1/2)")), "--format", "json")
    record = json.loads(out)
    assert code == 1 and not record["feasible"] and len(record["contradiction"]) == 3
    assert run(mine('assume = ["d <= d**2"]'))[0] == 0 and run(mine('assume = ["d**2 << d"]'))[0] == 1
    code, out = run(mine('grows = "L"\nassume = ["M**2 << L", "M = K*log(K)*log(L)", "1 <= K"]'))
    assert code == 0 and "L^(1/2), open" in out
    code, out = run(mine('assume = ["x + y <= d"]'), "--format", "json")
    assert code == 0 and json.loads(out)["windows"]["x"]["high"]["exponent"] == "1"


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("form", FORMATS)
def test_what_ships_in_every_format(name, form):
    assert render(feasible(shipped(name)).document(), form)
    assert all(a.because and a.source for a in shipped(name).assumptions)


def test_command():
    code, out = run(
        "switch-cluster", "--set", "K=d**kappa", "--drop", "Groenwall", "--onset", "M=8,J=2", "--format", "json"
    )
    record = json.loads(out)
    assert code == 0 and record["windows"]["kappa"]["high"] == {
        "exponent": "1/10000",
        "binding": ["router margin", "experts", "router step"],
        "open": True,
    }
    assert record["defined"]["expert_margin"]["agrees"] is False and record["defined"]["T_2"]["agrees"] is True
    assert run("switch-cluster", "--set", "sigma_0=d**(-1/2)")[0] == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("assume = 3", "must be a list"),
        ("assume = []", "assume is missing"),
        ("assume = [3]", "relation is 3"),
        ('assume = ["n"]', "no relation"),
        ('assume = ["n <= a + b"]', "a sum where it is larger"),
        ('assume = ["n**k <= d"]', "only d may have one"),
        ('assume = ["d**(k*k) <= n"]', "not linear"),
        ('assume = ["d**k <= k"]', "k"),
        ('assume = ["n <= d", "n <= d"]', "there twice"),
        ('assume = [{ relation = "n <= d", why = "x" }]', "no key of assumption 1 named 'why'"),
        ('grow = "d"\nassume = ["n <= d"]', "no key named 'grow'"),
        ('grows = "d d"\nassume = ["n <= d"]', "name of the quantity"),
        (
            'assume = ["n <= d"]\n[[define]]\nname = "q"\nis = "r"\n[[define]]\nname = "r"\nis = "n"',
            "defined at or after",
        ),
        ("assume = [", "not TOML"),
        ('assume = ["__import__(1) <= d"]', "functions are"),
    ],
)
def test_files_that_cannot_be_read(mine, text, said):
    code, out = run(mine(text))
    assert code == 2 and said in out and out.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nope"], "no set of assumptions named 'nope'"),
        (["switch-cluster", "--set", "K"], "one law for each"),
        (["switch-cluster", "--set", "K=d", "--set", "K=d"], "one law for each"),
        (["switch-cluster", "--set", "Q=d"], "no quantity to set named 'Q'"),
        (["switch-cluster", "--set", "d=K"], "no quantity to set named 'd'"),
        (["switch-cluster", "--set", "K=Q"], "no quantity named 'Q'"),
        (["switch-cluster", "--set", "K=M", "--set", "M=d"], "in what is given itself"),
        (["switch-cluster", "--set", "K=d**(k*k)"], "not linear"),
        (["switch-cluster", "--drop", "nope"], "no assumption named 'nope'"),
        (["switch-cluster", "--onset", "K"], "no number"),
        (["switch-cluster", "--onset", "K=0"], "not positive"),
        (["switch-cluster", "--onset", "K=1,K=2"], "once"),
        (["switch-cluster", "--onset", "Q=2"], "no quantity with a value named 'Q'"),
    ],
)
def test_bad_arguments_are_one_line(arguments, said):
    code, out = run(*arguments)
    assert code == 2 and said in out and out.count("\n") == 1


def test_every_file_that_ships_is_packaged():
    assert set(SHIPPED) == {
        p.stem for p in (Path(__file__).parents[2] / "scaling_algebra/laws/feasible/assumptions").iterdir()
    }
