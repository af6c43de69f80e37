"""Laws: those that ship, the tables and formulas of the MoE-laws paper from them, fits, and laws of a user."""

import json
import random
from fractions import Fraction
from itertools import pairwise

import pytest
import sympy

from scaling_algebra import law
from scaling_algebra.documents import FORMATS, render
from scaling_algebra.errors import UsageError
from scaling_algebra.laws.balance import balance
from scaling_algebra.laws.expressions import exponent, monomial
from scaling_algebra.laws.law import invert_exponent, load_laws
from scaling_algebra.laws.monomials import parameter, simplify_exponent
from scaling_algebra.laws.systems import find_sign

from ..shared import scalecalc


def same(e, text):
    return simplify_exponent(e - exponent(text)) == 0


def moe(axis=None, **values):
    return law("moe-transformer", at=values, axis=axis)


@pytest.fixture
def mine(tmp_path):
    def write(text, name="mine.toml"):
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / name

    return write


# what ships ----------------------------------------------------------------------------------------------------


def test_exponents():
    fast, slow, others = moe(), moe(q="1/2"), law("chinchilla")
    assert same(slow.exponents["alpha_D"], "2*beta/(4*beta + d)")
    assert same(slow.exponents["alpha_C"], "beta/(2*beta + d)")
    assert fast.identities and all(fast.identities.values()) and all(others.identities.values())
    assert not slow.identities["alpha_D = alpha_N/(1 + alpha_N)"]
    assert slow.identities["alpha_C = alpha_N*alpha_D/(alpha_N + alpha_D)"]
    cell = others.axes["compute"].cell
    assert same(others.exponents["alpha_C"], "alpha*beta/(alpha + beta)")
    assert same(cell.optimum["N"]["F"], "beta/(alpha + beta)") and same(cell.optimum["D"]["F"], "alpha/(alpha + beta)")
    assert all(render(a.document(), form) for a in (moe("data"), slow, others) for form in FORMATS)
    assert "R <= N" in [str(c) for c in fast.axes["model"].cells[1].where], "(51): where routing is negligible"


def test_values_go_into_constraints():
    axis = moe("cover", beta=1, d=32).axes["cover"]
    assert (str(axis.cell.minimum), str(axis.cell.optimum["r"])) == ("1/M^(1/16)", "1/M^(1/32)")
    loss = law(
        "chinchilla", axis="compute", at={"a": "406.4", "b": "410.7", "alpha": "0.34", "beta": "0.28"}, reach="1"
    )
    (size,) = (b.find_reach(b.cell)["F"].at({}) for b in loss.axes.values())
    assert size == pytest.approx(5.45e19, rel=0.01) and all(b.cell.exact for b in loss.axes.values())


def test_active_parameters_alone_are_below_what_an_estimator_can_reach():
    """More experts cost log M in the printed bound: then the error falls as 1/n; counted in full, as for dense ones."""
    cell = moe("charts").axes["charts"].cell
    assert str(cell.minimum) == "1/n" and [str(c) for c in cell.window] == ["M >= n^(d/(2*beta))"]
    assert same(moe("charts", S="M").axes["charts"].cell.minimum["n"], "-2*beta/(2*beta + d)")


# the tables and formulas of the paper --------------------------------------------------------------------------


def test_table_3_lies_outside_of_the_range_of_the_law():
    """Its smallest model, 2 blocks of width 512 with 2 experts of 256, has more parameters than the samples allow."""
    blocks, width, hidden, active, samples = 2, 512, 256, 2, 8e5
    size = 4 * blocks * width**2 + blocks * active * (2 * width * hidden + hidden + width)
    (limit, _) = moe("model", beta=1, d=32).axes["model"].cells[0].where
    assert size == 3_148_800 and str(limit) == "n >= N^(17/16)" and samples < size ** (17 / 16)


def test_beta_from_fitted_exponents():
    printed = {(32, "0.060", "0.058"): (0.960, 0.985), (45, "0.045", "0.043"): (1.012, 1.011)}
    for (d, alpha_n, alpha_d), betas in printed.items():
        a = moe("model", d=d)
        got = [
            invert_exponent(a, name, exponent(x))["beta"] for name, x in (("alpha_N", alpha_n), ("alpha_D", alpha_d))
        ]
        assert [float(x) for x in got] == pytest.approx(betas, abs=1.01e-3)
    for fitted in ("0.1817", "0.1557"):  # Table 4: an identity has no d; what is fitted beside it is 0.1965 and 0.2652
        there = moe(d=32, **invert_exponent(moe(d=32), "alpha_N", exponent(fitted)))
        assert float(there.exponents["alpha_D"]) == pytest.approx(float(fitted) / (1 + float(fitted)))
    with pytest.raises(UsageError, match="no positive beta"):
        invert_exponent(a, "alpha_D", exponent("2"))
    with pytest.raises(UsageError, match="2 parameters without a value"):
        invert_exponent(moe("model"), "alpha_N", exponent("1/2"))


def test_frontier_of_others():
    """App. B: N = G (F/6)^(nu/(mu + nu)), D = (F/6)^(mu/(mu + nu))/G, G = (nu b/(mu a))^(-1/(mu + nu))."""
    cell = balance("a*N**-mu + b*D**-nu", ["N", "D"], ["F"], ["F = 6*N*D"], fixed=["a", "b"]).cell
    a, b, mu, nu, f = (parameter(name) for name in ("a", "b", "mu", "nu", "F"))
    g = (mu * a / (nu * b)) ** (1 / (mu + nu))
    values = {a: 2, b: 3, mu: sympy.Rational(1, 5), nu: sympy.Rational(1, 3), f: 10**6}
    for name, right in (("N", g * (f / 6) ** (nu / (mu + nu))), ("D", (f / 6) ** (mu / (mu + nu)) / g)):
        assert abs(sympy.N((cell.optimum[name].expr / right - 1).subs(values))) < 1e-12


def test_of_the_sandwich_only_the_lower_bound_fails():
    """(49), k between (n/(A + B log M))^q and (n/A)^q for q = 1/(p + 1), against the optimum of cells without a cap."""
    q = exponent("d/(2*beta + d)")
    below, above = (c.optimum["k"] for c in moe("experts").axes["experts"].cells[:2])
    upper, lower = monomial("n/A") ** q, {"A": monomial("n/A") ** q, "B": monomial("n/B") ** q}
    assert find_sign((below / upper)["A"]) == -1 and not (below / upper)["n"], "1/A is below A^-q"
    assert find_sign((below / lower["A"])["A"]) == -1, "and so below the lower bound, by any factor"
    beyond = (above / upper).substitute({"B": monomial("A*s")})  # routing is large: B = A s, s >= 1
    assert {name: find_sign(e) for name, e in beyond.powers} == {"A": -1, "s": -1}
    assert find_sign((above / lower["B"])["A"]) == -1


def probability(h, m):
    """Of h_m + r_m being the largest, r uniform on [0, 1], as an exact integral of a piecewise polynomial."""
    u = sympy.Symbol("u")
    ends = sorted(
        {Fraction(0), Fraction(1)} | {min(max(x - h[m] + k, Fraction(0)), Fraction(1)) for x in h for k in (0, 1)}
    )
    total = Fraction(0)
    for low, high in pairwise(ends):
        middle, product = (low + high) / 2, sympy.Poly(1, u)
        for shift in (h[m] - x for j, x in enumerate(h) if j != m):
            below = u + sympy.Rational(shift) if 0 < middle + shift < 1 else int(middle + shift >= 1)
            product *= sympy.Poly(below, u)
        whole = product.integrate(u)
        total += Fraction(str(whole.eval(sympy.Rational(high)) - whole.eval(sympy.Rational(low))))
    return total


def test_routing_probabilities_move_by_twice_the_density():
    """Lemma 5.1 with 2 kappa in place of kappa M^2, and its factor 2 is reached (density 1)."""
    draw, delta = random.Random(3), Fraction(1, 50)
    for experts in (2, 3, 4, 4):
        h = [Fraction(draw.randint(-20, 20), 40) for _ in range(experts)]
        moved = [x + draw.choice((-1, 0, 1)) * delta for x in h]
        apart = [abs(probability(h, m) - probability(moved, m)) for m in range(experts)]
        assert sum(probability(h, m) for m in range(experts)) == 1 and max(apart) <= 2 * delta
    half = Fraction(1, 2)
    assert probability([half + delta, half - delta], 0) - half == 2 * delta - 2 * delta**2 > delta, (
        "kappa is not enough"
    )


# laws of a user ------------------------------------------------------------------------------------------------


def test_quantities_of_a_law_are_replaced(mine):
    """What a value leaves out does not grow, what it brings in does; values of the file are defaults."""
    file = str(mine('sum = "N**-p + (P/n)**q"\nminimise = ["N"]\ngrows = ["n"]\nat = { q = 1, P = "N" }\n'))
    for at, powers in (({}, {"n": "-p/(p + 1)"}), ({"q": "1/2"}, {"n": "-p/(2*p + 1)"}),
                       ({"P": "N*E"}, {"n": "-p/(p + 1)", "E": "p/(p + 1)"})):  # fmt: skip
        minimum = law(file, at=at).axes["law"].cell.minimum
        assert all(same(minimum[q], power) for q, power in powers.items()) and len(minimum.powers) == len(powers)
    for wrong in ({"p": "N"}, {"p": "2**(1/2)"}, {"p": 0}, {"p": -1}):
        with pytest.raises(UsageError, match="give a positive number"):
            law(file, at=wrong)


def test_what_is_printed():
    result = scalecalc("law", "moe-transformer", "--at", "d=32", "--invert", "alpha_N=0.06", "--format", "json")
    record = json.loads(result.stdout)
    assert result.exit_code == 0 and record["at"]["beta"]["prefactor"] == "24/25"
    assert record["axes"]["compute"]["cells"][0]["minimum"]["powers"]["C"] == "-" + record["exponents"]["alpha_C"]
    assert set(load_laws()) == {"chinchilla", "moe-transformer", "switch-cluster"}
