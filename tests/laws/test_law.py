"""Laws: those that ship, the tables of the MoE-laws paper from them, models, fits, and laws of a user."""

import json
from pathlib import Path

import pytest
import sympy
from click.testing import CliRunner

from scaling_algebra.cli import main
from scaling_algebra.documents import FORMATS, render
from scaling_algebra.errors import UsageError
from scaling_algebra.laws.balance.balance import balance
from scaling_algebra.laws.balance.lambert import stationary
from scaling_algebra.laws.expressions import exponent, simplified
from scaling_algebra.laws.law.files import law, laws, read
from scaling_algebra.laws.law.fits import compared, power_law, read_fits
from scaling_algebra.laws.law.library import answer, inverted
from scaling_algebra.laws.law.models import placed

OWN = """sum = "N**-alpha + D**-gamma"
minimise = ["N", "D"]
grows = ["C"]
constraints = ["C = 6*N*D"]
at = { alpha = 0.34, gamma = "7/25" }
"""
TABLE_2 = [  # d, beta, alpha_N, alpha_D, alpha_N/(1 + alpha_N) as printed, then alpha_C exact
    (32, "1", 0.063, 0.059, 0.059, "1/33"),
    (45, "1", 0.044, 0.043, 0.042, "1/46"),
    (45, "3/2", 0.067, 0.062, 0.063, "1/31"),
    (23, "1", 0.087, 0.080, 0.080, "1/24"),
]
TABLE_3 = {  # (L_T, d_ff): active parameters, with d_model = 512, M = 8, k = 2
    (2, 256): 3148800, (2, 384): 3673600, (2, 512): 4198400, (2, 768): 5248000, (2, 1024): 6297600,
    (4, 256): 6297600, (4, 384): 7347200, (4, 512): 8396800, (4, 768): 10496000, (4, 1024): 12595200,
    (4, 1536): 16793600, (6, 768): 15744000, (6, 1024): 18892800, (8, 1024): 25190400,
}  # fmt: skip
TABLE_4 = {  # E: alpha_N, alpha_D, alpha_C, predicted alpha_D and alpha_C, r_D, r_C, relative errors
    1: (0.1817, 0.1965, 0.0944, 0.1537, 0.0832, 0.0427, 0.0111, 0.2779, 0.1335),
    2: (0.1780, 0.2065, 0.0955, 0.1511, 0.0817, 0.0553, 0.0138, 0.3666, 0.1697),
    4: (0.1731, 0.2192, 0.0967, 0.1475, 0.0796, 0.0716, 0.0170, 0.4855, 0.2142),
    8: (0.1676, 0.2338, 0.0976, 0.1435, 0.0773, 0.0902, 0.0203, 0.6287, 0.2625),
    16: (0.1617, 0.2494, 0.0980, 0.1391, 0.0748, 0.1102, 0.0232, 0.7917, 0.3114),
    32: (0.1557, 0.2652, 0.0981, 0.1347, 0.0722, 0.1304, 0.0258, 0.9684, 0.3582),
}


def same(found, text):
    return simplified(found - exponent(text)) == 0


def moe(axis=None, **choices):
    return answer(law("moe-transformer"), axis, choices)


# what ships ----------------------------------------------------------------------------------------------------


def test_exponents_of_the_moe_transformer():
    found = moe()
    expected = {"alpha_N": "2*beta/d", "alpha_D": "2*beta/(2*beta + d)", "alpha_C": "beta/(beta + d)"}
    assert all(same(found.exponents[name], text) for name, text in expected.items())
    assert same(found.exponents["drift"], "beta/(beta + d)")
    assert found.identities and all(found.identities.values())


def test_the_slow_rate_has_other_exponents():
    found = moe(rate="slow")
    assert same(found.exponents["alpha_D"], "2*beta/(4*beta + d)") and same(
        found.exponents["alpha_C"], "beta/(2*beta + d)"
    )
    assert not found.identities["alpha_D = alpha_N/(1 + alpha_N)"]
    assert found.identities["alpha_C = alpha_N*alpha_D/(alpha_N + alpha_D)"]


def test_active_parameters_alone_are_below_the_floor():
    """More experts cost log M in the printed bound: then the error falls as 1/n, faster than any estimator's."""
    found = moe("charts")
    assert found.below == {"charts": True} and not found.agrees
    cell = found.axes["charts"].cell
    assert str(cell.minimum) == "1/n" and [str(c) for c in cell.window] == ["M >= n^(d/(2*beta))"]
    repaired = moe("charts", count="total")
    assert repaired.agrees and same(repaired.axes["charts"].cell.minimum["n"], "-2*beta/(2*beta + d)")
    assert str(moe("charts", rate="slow").below["charts"]) == "d > 2*beta"


def test_what_is_below_the_floor_fails_where_it_is_asked_for(tmp_path):
    """charts gives no exponent: among the others it is reported only. An exponent that is below the floor fails."""
    everything = moe()
    assert everything.below == {"charts": True} and everything.repairs == {"charts": ("count total",)}
    assert everything.agrees and not moe("charts").agrees
    file = tmp_path / "mine.toml"
    axis = 'sum = "1/n"\ngrows = ["n"]\n'
    axes = f'floor = "n**(-1/2)"\n[axes.a]\n{axis}floored = true\n{{}}[axes.b]\n{axis}'
    for more, agrees in (("", True), ('exponent = "alpha"\n', False)):
        file.write_text(axes.format(more), encoding="utf-8")
        assert answer(read(file)).agrees is agrees and set(answer(read(file)).below) == {"a"}


def test_an_axis_in_numbers_and_drawn(tmp_path):
    pytest.importorskip("scipy")
    pytest.importorskip("matplotlib")
    args = ["law", "moe-transformer", "--axis", "compute", "--at", "beta=1,d=32"]
    file = tmp_path / "x.svg"
    result = CliRunner().invoke(main, [*args, "--check", "C=1,R=1/4", "--plot", str(file), "--format", "json"])
    (check,) = json.loads(result.stdout)["axes"]["compute"]["checks"]
    assert result.exit_code == 0 and check["agrees"] and file.stat().st_size
    assert CliRunner().invoke(main, [*args, "--plot", str(file)]).exit_code == 0, "R constant"


def test_no_other_axis_is_below_the_floor():
    for choices in ({}, {"count": "total"}, {"rate": "slow"}):
        assert set(moe(**choices).below) <= {"charts"}


def test_chinchilla():
    found = answer(law("chinchilla"))
    assert same(found.exponents["alpha_C"], "alpha*beta/(alpha + beta)") and all(found.identities.values())
    cell = found.axes["compute"].cell
    assert same(cell.optimum["N"]["F"], "beta/(alpha + beta)") and same(cell.optimum["D"]["F"], "alpha/(alpha + beta)")


@pytest.mark.parametrize("name", laws())
def test_every_law_that_ships_is_answered_in_every_format(name):
    found = answer(law(name))
    assert all(found.axes[axis].cells for axis in law(name).axes)
    for form in FORMATS:
        assert render(found.document(), form)


# the tables of the paper ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("d", "beta", "alpha_n", "alpha_d", "identity", "alpha_c"), TABLE_2)
def test_table_2(d, beta, alpha_n, alpha_d, identity, alpha_c):
    found = answer(law("moe-transformer"), values={"beta": exponent(beta), "d": sympy.Integer(d)}).exponents
    assert abs(float(found["alpha_N"]) - alpha_n) <= 5.01e-4 and abs(float(found["alpha_D"]) - alpha_d) <= 5.01e-4
    assert found["alpha_C"] == exponent(alpha_c)
    assert abs(float(found["alpha_D"]) - identity) < 1e-3, "the column is computed from a rounded alpha_N"
    assert not abs(float(found["alpha_N"]) - (alpha_n + 0.002)) <= 5.01e-4, "negative control"


def shapes(blocks, d_ff):
    given = {"L_T": blocks, "d_model": 512, "d_ff": d_ff, "M": 8, "k": 2, "l": 256, "n": 8e5}
    return [("row", {key: float(x) for key, x in given.items()})]


def at(beta=1, d=32, axis="model"):
    return answer(law("moe-transformer"), axis, values={"beta": sympy.Integer(beta), "d": sympy.Integer(d)})


@pytest.mark.parametrize("row", TABLE_3)
def test_table_3(row):
    (model,) = placed(at(), shapes(*row))
    assert round(model.sizes["N"]) == TABLE_3[row]
    assert round(placed(at(), shapes(row[0], row[1] + 1))[0].sizes["N"]) != TABLE_3[row], "negative control"
    assert 0.0002 < model.sizes["R"] / model.sizes["N"] < 0.0009, "routing never dominates in these models"
    assert model.largest == "N/n" and not model.limits[0][2], "outside of the range of the law"


@pytest.fixture
def table_4(tmp_path):
    file = tmp_path / "fits.csv"
    rows = [f"{e},{row[0]},{row[1]}" for e, row in TABLE_4.items()]
    file.write_text("E,alpha_N,alpha_D\n" + "\n".join(rows), encoding="utf-8")
    return file


def test_table_4(table_4):
    found = moe()
    comparison = compared(found, read_fits(table_4, list(found.exponents)))
    by = {(r.label, r.identity): r for r in comparison.residuals}
    for (e, row), fit in zip(TABLE_4.items(), comparison.fits, strict=True):
        d, c = by[f"E {e}", "alpha_D = alpha_N/(1 + alpha_N)"], by[f"E {e}", "alpha_C = alpha_N/(2 + alpha_N)"]
        got = (row[0], row[1], fit.exponents["alpha_C"][0], d.predicted, c.predicted, d.difference, c.difference)
        assert got == pytest.approx(row[:7], abs=1.02e-4)
        assert (d.relative, c.relative) == pytest.approx(row[7:], abs=1e-3)
        assert got != pytest.approx([x + 0.0003 for x in row[:7]], abs=0.000102), "negative control"
    means = comparison.errors()
    assert means["alpha_D = alpha_N/(1 + alpha_N)"] == pytest.approx((0.083, 0.587), abs=1e-3)
    assert means["alpha_C = alpha_N/(2 + alpha_N)"] == pytest.approx((0.0186, 0.242), abs=1e-3)


def test_tokens_per_parameter_fall_in_the_fits_and_grow_in_the_law(table_4):
    found = moe()
    comparison = compared(found, read_fits(table_4, list(found.exponents)))
    drift = [fit.exponents["drift"][0] for fit in comparison.fits]
    assert drift == pytest.approx([-0.039, -0.074, -0.118, -0.165, -0.213, -0.260], abs=6e-4)
    assert all(r.predicted > 0 for r in comparison.residuals if r.identity == "drift = alpha_C")
    assert "opposite signs in every row" in str(comparison)


# the optimal number of active experts --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "size", "choices", "experts", "p", "best"),
    [(1e6, 50, 8, 1e9, "1/2", None), (1e6, 50, 8, 64, "1/2", 64), (1e4, 3, 40, 64, "1", 5.8017)],
)
def test_lambert(n, size, choices, experts, p, best):
    total = balance("(A*k)**-p + A*k/n + B*k*log(exp(1)*M/k)/n", ["k"], ["n", "A", "B", "M"], ["k <= M"])
    exact = stationary(total.reduced, "k")
    found = {s: v for s, v in zip(sympy.symbols("n A B M", positive=True), (n, size, choices, experts), strict=True)}
    found[sympy.Symbol("p", positive=True)] = sympy.Rational(p)
    k = exact.at(found, experts)
    if best is not None:
        assert k == pytest.approx(best, rel=1e-4)
    if k < experts:
        x = sympy.Symbol("k", positive=True)
        value = total.reduced.expr.subs(found)
        assert abs(sympy.N(sympy.diff(value, x).subs(x, k), 30)) < 1e-12
        assert sympy.N(sympy.diff(value, x, 2).subs(x, k)) > 0


def test_lambert_has_its_form():
    total = balance("(A*k)**-p + A*k/n + B*k*log(exp(1)*M/k)/n", ["k"], ["n", "A", "B"])
    exact = stationary(total.reduced, "k")
    a, b, m, n, p = sympy.symbols("A B M n p", positive=True)
    assert sympy.simplify(exact.shift - (a / b + sympy.log(m))) == 0
    z = -(p + 1) * n * p * a**-p / b * sympy.exp(-(p + 1) * (a / b + sympy.log(m)))
    values = {a: 3, b: 40, m: 64, n: 10**4, p: 1}
    assert abs(sympy.N((exact.argument / z - 1).subs(values))) < 1e-12
    assert abs(sympy.N(exact.minimum.subs(values)) - 5.8017) < 1e-4
    assert stationary(balance("N**-p + N/n", ["N"], ["n"]).reduced, "N") is None


def test_the_printed_optimal_k_is_wrong_by_a_power_of_the_size_of_an_expert():
    """(12), (48), (49) print (n/(A + L_T l log(eM/k)))^(d/(2 beta + d)): 9.088 where the optimum is 5.8017."""
    p, size, choices, experts, n, k = 1.0, 3.0, 40.0, 64.0, 1e4, 5.8017
    slope = size + choices * (float(sympy.log(experts / k)))
    assert p ** (1 / (1 + p)) * size ** (-p / (1 + p)) * (n / slope) ** (1 / (1 + p)) == pytest.approx(k, rel=1e-4)
    printed = 9.0
    for _ in range(60):
        printed = (n / (size + choices * float(sympy.log(sympy.E * experts / printed)))) ** (1 / (1 + p))
    assert printed == pytest.approx(9.088, abs=1e-3)


def test_models_have_their_best_k():
    models = [("a", {"n": 1e6, "A": 50, "B": 8, "M": 64, "k": 2, "N": 1, "R": 1})]
    found = at(1, 4, "experts")
    assert placed(found, models)[0].best["k"] == 64
    models[0][1]["M"] = 1e4
    assert placed(found, models)[0].best["k"] < 1e4


# inversion, fits -----------------------------------------------------------------------------------------------


def test_beta_from_fitted_exponents():
    printed = {(32, "0.060", "0.058"): (0.960, 0.985), (45, "0.045", "0.043"): (1.012, 1.011)}
    for (d, alpha_n, alpha_d), betas in printed.items():
        found = answer(law("moe-transformer"), values={"d": sympy.Integer(d)})
        got = [inverted(found, name, exponent(x))[1] for name, x in (("alpha_N", alpha_n), ("alpha_D", alpha_d))]
        assert [float(x) for x in got] == pytest.approx(betas, abs=1.01e-3)
    with pytest.raises(UsageError, match="2 open parameters"):
        inverted(moe(), "alpha_N", exponent("1/2"))
    with pytest.raises(UsageError, match="no positive beta"):
        inverted(answer(law("moe-transformer"), values={"d": sympy.Integer(3)}), "alpha_D", exponent("2"))


def losses(alpha, floor=0.0, noise=0.0):
    import numpy as np

    draw = np.random.default_rng(1)
    sizes = 10.0 ** np.linspace(5, 9, 12)
    return [(x, (floor + 3 * x**-alpha) * float(np.exp(noise * draw.normal()))) for x in sizes]


def test_a_power_law_is_fitted_with_its_error():
    pytest.importorskip("scipy")
    alpha, error = power_law(losses(0.3, 0.02, 0.01))
    assert abs(alpha - 0.3) < 3 * error < 0.1
    assert not abs(power_law(losses(0.2, 0.02, 0.01))[0] - 0.3) < 0.05, "negative control"


@pytest.mark.parametrize(("alpha_d", "code"), [(0.3 / 1.3, 0), (0.4, 1)])
def test_losses_are_fitted_and_judged(tmp_path, alpha_d, code):
    pytest.importorskip("scipy")
    rows = [f"{name},{x},{y}" for name, a in (("alpha_N", 0.3), ("alpha_D", alpha_d)) for x, y in losses(a, 0.02, 0.01)]
    file = tmp_path / "losses.csv"
    file.write_text("exponent,size,loss\n" + "\n".join(rows), encoding="utf-8")
    result = CliRunner().invoke(main, ["law", "fit", str(file), "--format", "json"])
    data = json.loads(result.stdout)
    verdicts = {r["identity"]: r["verdict"] for r in data["residuals"]}
    assert verdicts["alpha_D = alpha_N/(1 + alpha_N)"] == ("REFUTED" if code else "AGREES") and result.exit_code == code


# laws of a user ------------------------------------------------------------------------------------------------


def test_a_law_has_options_of_its_own(tmp_path):
    file = tmp_path / "mine.toml"
    text = 'sum = "N**-p + (N/n)**q"\nminimise = ["N"]\ngrows = ["n"]\n[options.noise]\nlow = { q = "1" }\n'
    file.write_text(text + 'high = { q = "1/2" }\n', encoding="utf-8")
    shown = [CliRunner().invoke(main, ["law", str(file), *more]).output for more in ([], ["--choose", "noise=high"])]
    assert "n^(-p/(p + 1))" in shown[0] and "n^(-p/(2*p + 1))" in shown[1]


def test_five_lines_are_a_law(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(OWN, encoding="utf-8")
    found = answer(read(file)).axes["law"].cell
    assert found.minimum["C"] == exponent("-0.34*0.28/(0.34 + 0.28)")
    assert len(OWN.splitlines()) == 5
    assert CliRunner().invoke(main, ["law", str(file)]).exit_code == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "it says no law"),
        ("x = ", "this is not TOML"),
        ('sum = "N"', "grows is missing"),
        ('sum = "N + N/n"\nminimise = ["N"]\ngrows = ["n"]', "no minimum"),
        ('sum = "N**-1 + N/n + Q"\nminimise = ["N"]\ngrows = ["n"]', "Q in Q is neither"),
        ('sum = 3\ngrows = ["n"]', "sum is 3"),
        ('sums = "N"', "no key named 'sums'; did you mean 'sum'"),
        ('sum = "N"\ngrows = "n"', "grows is 'n'; it must be a list"),
        ('sum = "N**-1"\ngrows = [1]', "holds 1"),
        ('sum = "N**-1"\ngrows = ["N"]\nidentities = ["a"]', "no identity"),
        ('sum = "N**-1"\ngrows = ["N"]\nidentities = ["a = 1"]', "no exponent in"),
        ('sum = "N**-1"\ngrows = ["N"]\nconstraints = ["N"]', "no relation"),
        ('sum = "N**-p"\ngrows = ["N"]\nat = { q = 1 }', "no parameter of this law"),
        ('sum = "N**-p"\ngrows = ["N"]\nat = { p = true }', "text or a number"),
        ('sum = "N**-p"\ngrows = ["N"]\naxes = { a = 1 }', "stands beside axes"),
        ("axes = { a = 1 }", "must be a table"),
        ('sum = "N**-p"\ngrows = ["N"]\noptions = { rate = 1 }', "must be a table"),
        ('sum = "N**-p"\ngrows = ["N"]\noptions = { rate = { } }', "has no choice"),
    ],
)
def test_a_law_that_is_none_is_one_line(tmp_path, text, says):
    file = tmp_path / "mine.toml"
    file.write_text(text, encoding="utf-8")
    result = CliRunner().invoke(main, ["law", str(file)])
    assert result.exit_code == 2 and says in result.output and len(result.output.splitlines()) == 1


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["moe"], "no law named 'moe'"),
        (["moe-transformer", "--axis", "x"], "no axis named"),
        (["moe-transformer", "--rate", "x"], "no rate named"),
        (["chinchilla", "--rate", "fast"], "chinchilla has no option rate"),
        (["moe-transformer", "--choose", "rate"], "cannot read 'rate'"),
        (["moe-transformer", "--rate", "fast", "--choose", "rate=slow"], "cannot read 'rate=slow'"),
        (["moe-transformer", "--at", "x=1"], "no parameter of this law"),
        (["moe-transformer", "--invert", "x"], "cannot read"),
        (["moe-transformer", "--invert", "x=1"], "no exponent named"),
        (["moe-transformer", "x.csv"], "goes with fit"),
        (["moe-transformer", "--at", "beta=1,d=2", "--plot", "x.svg"], "about one axis"),
        (["moe-transformer", "--axis", "data", "--check", "n=1"], "rates of n were given; give those of n, R"),
        (["moe-transformer", "--axis", "data", "--plot", "x.svg"], "give values of all parameters"),
        (["moe-transformer", "--axis", "model", "--plot", "x.svg"], "one quantity to minimise over, not 0"),
        (["moe-transformer", "--axis", "data", "--plot", "x.docx"], "format"),
        (["fit"], "goes with fit"),
        (["fit", "/none.csv"], "cannot read"),
        (["fit", __file__], "no column named"),
        (["none.toml"], "cannot read none.toml"),
        (["moe-transformer", "--model", "none.toml"], "cannot read none.toml"),
    ],
)
def test_wrong_usage_is_one_line(args, says):
    result = CliRunner().invoke(main, ["law", *args])
    assert result.exit_code == 2 and says in result.output and len(result.output.splitlines()) == 1, result.output


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "give shapes"),
        ("L_T = 0", "positive number"),
        ("L_T = 'a'", "positive number"),
        ("model = 1", "give shapes"),
        ("[[model]]\nL_T = 2", "no number for"),
        ("model = [1]", "must be a table"),
        ("x = [", "not TOML"),
    ],
)
def test_shapes_that_are_none_are_one_line(tmp_path, text, says):
    file = tmp_path / "shapes.toml"
    file.write_text(text, encoding="utf-8")
    args = ["law", "moe-transformer", "--axis", "model", "--at", "beta=1,d=32", "--model", str(file)]
    result = CliRunner().invoke(main, args)
    assert result.exit_code == 2 and says in result.output and len(result.output.splitlines()) == 1, result.output


def test_laws_that_ship_are_installed():
    folder = Path(law.__code__.co_filename).parent / "given"
    assert {p.stem for p in folder.glob("*.toml")} == set(laws()) >= {"moe-transformer", "chinchilla"}
