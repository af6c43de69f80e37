"""Laws: those that ship, the tables and formulas of the MoE-laws paper from them, fits, and laws of a user."""

import json

import pytest
import sympy
from click.testing import CliRunner

from scaling_algebra.cli import main
from scaling_algebra.documents import FORMATS, render
from scaling_algebra.errors import UsageError
from scaling_algebra.laws.balance import balance
from scaling_algebra.laws.circuits import stationary
from scaling_algebra.laws.expressions import exponent, expression
from scaling_algebra.laws.fits import compared, read_fits
from scaling_algebra.laws.law import answer, inverted, law, laws, read_law
from scaling_algebra.laws.monomials import parameter, simplified

RISK = "(A*k)**-p + A*k/n + B*k*log(exp(1)*M/k)/n"
A, B, M, k, n, p = (parameter(name) for name in ("A", "B", "M", "k", "n", "p"))


def same(e, text):
    return simplified(e - exponent(text)) == 0


def moe(axis=None, values=None, **choices):
    return answer(law("moe-transformer"), axis, choices, values)


@pytest.fixture
def mine(tmp_path):
    def write(text, name="mine.toml"):
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / name

    return write


# what ships ----------------------------------------------------------------------------------------------------


def test_exponents():
    fast, slow, others = moe(), moe(rate="slow"), answer(law("chinchilla"))
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


def test_active_parameters_alone_are_below_the_floor():
    """More experts cost log M in the printed bound: then the error falls as 1/n, faster than any estimator's."""
    cell = moe("charts").axes["charts"].cell
    assert str(cell.minimum) == "1/n" and [str(c) for c in cell.window] == ["M >= n^(d/(2*beta))"]
    repaired = moe("charts", count="total")
    assert repaired.agrees and same(repaired.axes["charts"].cell.minimum["n"], "-2*beta/(2*beta + d)")
    assert str(moe("charts", rate="slow").below["charts"]) == "d > 2*beta"
    assert not moe(count="total").below and set(moe(rate="slow").below) == {"charts"}


def test_what_is_below_the_floor_fails_where_it_is_asked_for(mine):
    """charts gives no exponent: among the others it is reported only. An exponent that is below the floor fails."""
    everything = moe()
    assert everything.below == {"charts": True} and everything.repairs == {"charts": ("count total",)}
    assert everything.agrees and not moe("charts").agrees
    axis = 'sum = "1/n"\ngrows = ["n"]\n'
    axes = f'floor = "n**(-1/2)"\n[axes.a]\n{axis}floored = true\n{{}}[axes.b]\n{axis}'
    for more, agrees in (("", True), ('exponent = "alpha"\n', False)):
        a = answer(read_law(mine(axes.format(more))))
        assert a.agrees is agrees and set(a.below) == {"a"}


# the tables and formulas of the paper --------------------------------------------------------------------------


def test_table_3_lies_outside_of_the_range_of_the_law():
    """Its smallest model, 2 blocks of width 512 with 2 experts of 256, has more parameters than the samples allow."""
    blocks, width, hidden, active, samples = 2, 512, 256, 2, 8e5
    size = 4 * blocks * width**2 + blocks * active * (2 * width * hidden + hidden + width)
    (limit, _) = moe("model", {"beta": 1, "d": 32}).axes["model"].cells[0].where
    assert size == 3_148_800 and str(limit) == "n >= N^(17/16)" and samples < size ** (17 / 16)


@pytest.mark.parametrize(("alpha_d", "agrees"), [(0.3 / 1.3, True), (0.24, False)])
def test_standard_errors_judge(mine, alpha_d, agrees):
    """The error of a difference in which alpha_D is what alpha_N says: (1 + alpha_N)^-2 err_N and err_D."""
    file = mine(f"alpha_N,err_alpha_N,alpha_D,err_alpha_D\n0.3,0.003,{alpha_d},0.002\n")
    comparison = compared(moe(), read_fits(file, list(moe().exponents)))
    first = comparison.residuals[0]
    assert first.error == pytest.approx((0.002**2 + (0.003 / 1.3**2) ** 2) ** 0.5)
    assert comparison.agrees is agrees is (first.verdict == "AGREES")


def test_beta_from_fitted_exponents():
    printed = {(32, "0.060", "0.058"): (0.960, 0.985), (45, "0.045", "0.043"): (1.012, 1.011)}
    for (d, alpha_n, alpha_d), betas in printed.items():
        a = moe("model", {"d": sympy.Integer(d)})
        got = [inverted(a, name, exponent(x))["beta"] for name, x in (("alpha_N", alpha_n), ("alpha_D", alpha_d))]
        assert [float(x) for x in got] == pytest.approx(betas, abs=1.01e-3)
    with pytest.raises(UsageError, match="no positive beta"):
        inverted(a, "alpha_D", exponent("2"))
    with pytest.raises(UsageError, match="2 open parameters"):
        inverted(moe("model"), "alpha_N", exponent("1/2"))


def zero(e):
    return sympy.simplify(sympy.expand_log(e, force=True)) == 0


def test_conditions_of_the_optimal_k():
    """(11), (45), whose right side is A + B log(M/k); a minimum where (p + 1)(A/B + log(M/k)) > 1."""
    risk = expression(RISK).expr
    slope, right = sympy.diff(risk, k) + p * A**-p * k ** (-p - 1), (A + B * sympy.log(sympy.E * M / k) - B) / n
    assert zero(slope - right) and zero(right - (A + B * sympy.log(M / k)) / n)
    assert not zero(slope - right - B / n), "negative control"
    at_zero = p * A**-p * k ** (-p - 1) - (A + B * sympy.log(M / k)) / n
    curvature = ((p + 1) * (A / B + sympy.log(M / k)) - 1) * B / (n * k)
    assert zero(sympy.diff(risk, k, 2) - (p + 1) * at_zero / k - curvature)


def test_what_idle_experts_cost():
    """Prop. G.1 (50), Cor. G.2, and M = rho k."""
    risk, rho = expression(RISK).expr, parameter("rho")
    assert zero(sympy.diff(risk, M) - B * k / (n * M))
    assert zero(risk.subs(M, rho * M) - risk - B * k * sympy.log(rho) / n)
    assert zero(risk.subs(M, rho * k) - (A * k) ** -p - A * k / n - B * k * (1 + sympy.log(rho)) / n)


def test_frontier_of_others():
    """App. B: N = G (F/6)^(nu/(mu + nu)), D = (F/6)^(mu/(mu + nu))/G, G = (nu b/(mu a))^(-1/(mu + nu))."""
    cell = balance("a*N**-mu + b*D**-nu", ["N", "D"], ["F"], ["F = 6*N*D"], fixed=["a", "b"]).cell
    a, b, mu, nu, f = (parameter(name) for name in ("a", "b", "mu", "nu", "F"))
    g = (mu * a / (nu * b)) ** (1 / (mu + nu))
    values = {a: 2, b: 3, mu: sympy.Rational(1, 5), nu: sympy.Rational(1, 3), f: 10**6}
    for name, right in (("N", g * (f / 6) ** (nu / (mu + nu))), ("D", (f / 6) ** (mu / (mu + nu)) / g)):
        assert abs(sympy.N((cell.optimum[name].expr / right - 1).subs(values))) < 1e-12


@pytest.mark.parametrize(
    ("samples", "size", "choices", "experts", "power", "best", "printed"),
    [(1e6, 50, 8, 64, 0.5, 137.438, 903.5), (1e4, 3, 40, 64, 1.0, 5.8017, 9.088)],
)
def test_the_optimal_k(samples, size, choices, experts, power, best, printed):
    """Lambert's W, and (47) with A^(-p) kept, find the minimum; (12), (48), (49), without it, another k."""

    def fixed(factor, more):
        x = 10.0
        for _ in range(200):
            slope = size + choices * float(sympy.log(more * experts / x))
            x = (factor * samples / slope) ** (1 / (1 + power))
        return x

    risk = balance(RISK, ["k"], ["n", "A", "B", "M"]).reduced
    at = dict(zip((n, A, B, M, p), (int(samples), size, choices, experts, sympy.Rational(power)), strict=True))
    exact, value = sympy.N(stationary(risk, "k").minimum.subs(at), 30), risk.expr.subs(at)
    assert float(exact) == pytest.approx(best, rel=1e-4) == fixed(power * size**-power, 1)
    assert abs(sympy.diff(value, k).subs(k, exact)) < 1e-12 < sympy.diff(value, k, 2).subs(k, exact)
    assert fixed(1.0, sympy.E) == pytest.approx(printed, rel=1e-3)
    assert stationary(balance("N**-p + N/n", ["N"], ["n"]).reduced, "N") is None


# laws of a user ------------------------------------------------------------------------------------------------


def test_a_law_has_options_of_its_own(mine):
    text = 'sum = "N**-p + (N/n)**q"\nminimise = ["N"]\ngrows = ["n"]\n[options.noise]\nlow = { q = "1" }\n'
    file = mine(text + 'high = { q = "1/2" }\n')
    for choices, power in (({}, "-p/(p + 1)"), ({"noise": "high"}, "-p/(2*p + 1)")):
        assert same(answer(read_law(file), choices=choices).axes["law"].cell.minimum["n"], power)


def test_five_lines_are_a_law(mine):
    own = 'sum = "N**-alpha + D**-gamma"\nminimise = ["N", "D"]\ngrows = ["C"]\nconstraints = ["C = 6*N*D"]\n'
    file = mine(own + 'at = { alpha = 0.34, gamma = "7/25" }\n')
    assert answer(law(str(file))).axes["law"].cell.minimum["C"] == exponent("-0.34*0.28/(0.34 + 0.28)")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "it says no law"),
        ("x = ", "this is not TOML"),
        ('sum = "N"', "grows is missing"),
        ('sum = "N + N/n"\nminimise = ["N"]\ngrows = ["n"]', "no minimum"),
        ('sum = 3\ngrows = ["n"]', "sum is 3"),
        ('sums = "N"', "no key named 'sums'; did you mean 'sum'"),
        ('sum = "N"\ngrows = "n"', "grows is 'n'; it must be a list"),
        ('sum = "N**-1"\ngrows = [1]', "grows 1 is 1"),
        ('sum = "N**-1"\ngrows = ["N"]\nidentities = ["a"]', "no identity"),
        ('sum = "N**-1"\ngrows = ["N"]\nidentities = ["a = 1"]', "no exponent in"),
        ('sum = "N**-1"\ngrows = ["N"]\nconstraints = ["N"]', "no relation"),
        ('sum = "N**-p"\ngrows = ["N"]\nat = { q = 1 }', "no parameter of this law"),
        ('sum = "N**-p"\ngrows = ["N"]\nat = { p = true }', "text or a number"),
        ('sum = "N**-p"\ngrows = ["N"]\naxes = { a = 1 }', "stands beside axes"),
        ("axes = { a = 1 }", "must be a table"),
        ('sum = "N**-p"\ngrows = ["N"]\noptions = { rate = 1 }', "must be a table"),
        ('sum = "N**-p"\ngrows = ["N"]\noptions = { rate = { } }', "has no choice"),
        ('sum = "N**-p"\ngrows = ["N"]\nfloored = "yes"', "true or false"),
        (f'sum = "N**-p"\ngrows = {["N"] * 101}', "101 entries"),
    ],
)
def test_a_law_that_is_none_is_one_line(mine, text, says):
    with pytest.raises(UsageError, match=says) as error:
        answer(read_law(mine(text)))
    assert "\n" not in str(error.value)


def test_an_axis_in_numbers():
    args = ["law", "moe-transformer", "--axis", "compute", "--at", "beta=1,d=32", "--check", "C=1,R=1/4"]
    result = CliRunner().invoke(main, [*args, "--format", "json"])
    (check,) = json.loads(result.stdout)["axes"]["compute"]["checks"]
    assert result.exit_code == 0 and check["agrees"] and set(laws()) == {"chinchilla", "moe-transformer"}
