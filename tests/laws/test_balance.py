"""Balances: every problem of the MoE-laws paper, cells, prefactors, numbers, and what has no answer."""

import random
from dataclasses import replace
from fractions import Fraction

import pytest
import sympy
from scipy.optimize import linprog

from scaling_algebra import law
from scaling_algebra.errors import UsageError
from scaling_algebra.laws.balance import balance
from scaling_algebra.laws.expressions import exponent, expression
from scaling_algebra.laws.monomials import Monomial, Relation, parameter, simplify_exponent
from scaling_algebra.laws.systems import GrowthSystem
from scaling_algebra.solver.demands import Infeasible

from .numeric import agrees, holds, size, slopes

P = "N**(-2*beta/d)"


def same(e, text):
    return simplify_exponent(e - exponent(text)) == 0


def where(cell):
    return [str(c) for c in cell.where]


@pytest.mark.parametrize(
    ("total", "minimise", "grows", "constraints", "powers"),
    [
        # (4); (16), (17); (21); the slow rate twice; experts that are all counted; the general problem twice; B1
        (f"{P} + N/n", "N", "n", [], {"N": "d/(2*beta + d)", "": "-2*beta/(2*beta + d)"}),
        (f"{P} + N/n", "N", "C", ["C = n*N"],
         {"N": "d/(2*beta + 2*d)", "n": "(2*beta + d)/(2*beta + 2*d)", "": "-beta/(beta + d)"}),
        ("N**-mu + D**-nu", "N D", "F", ["F = 6*N*D"],
         {"N": "nu/(mu + nu)", "D": "mu/(mu + nu)", "": "-mu*nu/(mu + nu)"}),
        (f"{P} + (N/n)**(1/2)", "N", "n", [], {"N": "d/(4*beta + d)", "": "-2*beta/(4*beta + d)"}),
        (f"{P} + (N/n)**(1/2)", "N", "C", ["C = n*N"], {"N": "d/(2*(2*beta + d))", "": "-beta/(2*beta + d)"}),
        ("M**(-2*beta/d) + M/n", "M", "n", [], {"M": "d/(2*beta + d)", "": "-2*beta/(2*beta + d)"}),
        ("N**-p + (N**u/n)**q", "N", "n", [], {"N": "q/(p + u*q)", "": "-p*q/(p + u*q)"}),
        ("N**-p + (N**u/n)**q", "N", "C", ["C = n*N**w"],
         {"N": "q/(p + q*(u + w))", "n": "1 - w*q/(p + q*(u + w))", "": "-p*q/(p + q*(u + w))"}),
        ("r**(2*beta)", "", "M", ["M = r**(-d)"], {"": "-2*beta/d"}),
    ],
)  # fmt: skip
def test_problems_of_the_paper(total, minimise, grows, constraints, powers):
    cell = balance(total, minimise.split(), [grows], constraints).cell
    for name, text in powers.items():
        e = cell.optimum[name][grows] if name else cell.minimum[grows]
        assert same(e, text), (name, e)
        assert not same(e, f"({text})*2"), "negative control: a planted wrong exponent is not the same"


def test_prefactors_are_exact():
    data = balance("a*N**-p + b*N/n", ["N"], ["n"], fixed=["a", "b"]).cell
    compute = balance("a*N**-p + b*N/n", ["N"], ["C"], ["C = c*n*N"], fixed=["a", "b", "c"]).cell
    p, a, b, c, n, x = sympy.symbols("p a b c n N", positive=True)
    assert sympy.simplify(data.optimum["N"].coefficient - (p * a / b) ** (1 / (1 + p))) == 0
    assert sympy.simplify(compute.optimum["N"].coefficient - (p * a / (2 * b * c)) ** (1 / (2 + p))) == 0
    assert data.exact and compute.exact
    total, best = a * x**-p + b * x / n, data.optimum["N"].expr
    at = {a: 2, b: 3, p: sympy.Rational(1, 2), n: 10**6}
    assert abs(sympy.N(sympy.diff(total, x).subs(x, best).subs(at))) < 1e-12
    assert abs(sympy.N((total.subs(x, best) - data.minimum.expr).subs(at))) < 1e-12
    (tied,) = balance("N**-1 + N/n + n**(-1/2)", ["N"], ["n"]).cells
    assert tied.minimum["n"] == sympy.Rational(-1, 2) and not tied.exact
    assert tied.record()["minimum"]["prefactor"] is None is not data.record()["minimum"]["prefactor"]


def test_cells_of_routing():
    """Thresholds of (5) to (7), Sec. 4.4, and of compute with routing kept."""
    model = balance("N**-p + N/n + R/n", [], ["N", "n", "R"]).cells
    assert where(model[0]) == ["n >= N^(p + 1)", "R <= N^(-p)*n"]
    data = balance("N**-p + N/n + R/n", ["N"], ["R", "n"]).cells
    assert [where(c) for c in data] == [["n >= R^(p + 1)"], ["n <= R^(p + 1)"]]
    assert str(data[1].minimum) == "R/n" and [str(c) for c in data[1].window] == ["N >= R^(-1/p)*n^(1/p)", "N <= R"]
    compute = balance("N**-p + N/n + R/n", ["N"], ["R", "C"], ["C = n*N"]).cells
    assert [where(c) for c in compute] == [["C >= R^(p + 2)"], ["C <= R^(p + 2)"]]
    assert same(compute[1].minimum["C"], "-p/(1 + p)") and same(compute[1].optimum["N"]["R"], "-1/(1 + p)")


def test_cells_of_parameters():
    """A cell for each side of p q = (p + q) r, and none where the sum has no minimum."""
    cells = balance("N**-p + (N/n)**q + n**-r", ["N"], ["n"]).cells
    assert [where(c) for c in cells] == [["p*r + q*r > p*q"], ["p*q > p*r + q*r"]]
    assert "no minimum" in balance("N**(a - b) + N/n", ["N"], ["n"]).notes[0]
    with pytest.raises(UsageError, match="no minimum"):
        law("N**(a - b) + N/n", ["N"], ["n"], at={"a": 2, "b": 1})


def test_a_sign_that_parameters_decide_makes_two_cells():
    """With p > q both terms in x vanish at x = 0, so that n^-p is the minimum; with p < q only where they are below."""
    b = balance("n**(-p) + x**(p - q)*n + x/n", ["x"], ["n"])
    for at, power in (((3, 1), -3), ((1, 3), Fraction(-1, 3)), ((1, 9), Fraction(-7, 9)), (("1/4", "1/2"), None)):
        put = dict(zip("pq", map(exponent, map(str, at)), strict=True))
        inside = [
            c for c in b.cells if all(holds(replace(w, ratio=w.ratio.substitute(put)), {"n": 1}) for w in c.where)
        ]
        found = {Fraction(str(c.minimum.substitute(put)["n"])) for c in inside}
        assert found == ({power} if power is not None else found) and len(found) == 1


def test_what_is_minimised_over_may_vanish():
    """A bound that makes a learning rate fall is no contradiction; one that nothing can meet is."""
    free, capped = balance("1/(lr*S) + lr", ["lr"], ["S", "N"], ["lr*N <= 1"]).cells
    assert (where(free), where(capped)) == (["N <= S^(1/2)"], ["N >= S^(1/2)"])
    assert (str(capped.optimum["lr"]), str(capped.minimum)) == ("1/N", "N/S")
    with pytest.raises(Infeasible):
        balance("1/(lr*S) + lr", ["lr"], ["S", "N"], ["lr*N <= 1", "lr >= N"])


def test_a_bound_caps_the_optimum():
    free, capped = balance("k**-p + k/n", ["k"], ["n", "M"], ["k <= M"]).cells
    assert where(free) == ["M >= n^(1/(p + 1))"] and free.binding == ()
    assert where(capped) == ["M <= n^(1/(p + 1))"] and capped.binding == ("k <= M",)
    assert str(capped.optimum["k"]) == "M"


def test_the_size_that_reaches_an_error():
    """(13) needs eps to be the L2 error, (14) its square: no one meaning gives both."""
    b = balance(f"{P} + N/n + R/n", ["N"], ["n", "R"])
    for eps, n in (("eps", "R/eps"), ("eps**2", "R/eps^2")):
        assert str(replace(b, reach=eps).find_reach(b.cells[1])["n"]) == n


def test_constants_count_where_numbers_are_asked():
    """The derivative is zero at N = n^(2/3), where the sum is 6 n^(-1/3)."""
    b = replace(balance("4*N**-0.5 + 2*N/n", ["N"], ["n"]), reach="0.01")
    assert {name: m.expr for name, m in b.find_reach(b.cell).items()} == {"n": 600**3, "N": 360_000}
    assert "216000000" in str(b) and b.document().record["reached"][0]["n"]["prefactor"] == "216000000"


def test_a_constraint_with_a_sum_is_shared():
    """By Lagrange: 6 N D under 1/N + 1/D <= 1/G is least at N = D = 2 G; w of 1/D weighs as much."""
    b = balance("6*N*D", ["N", "D"], ["G"], ["1/N + 1/D <= 1/G"])
    assert (str(b.cell.minimum), str(b.cell.optimum["N"]), str(b.cell.optimum["D"])) == ("24*G^2", "2*G", "2*G")
    assert agrees(b, {"G": 1})
    half = replace(b, cells=(replace(b.cell, minimum=b.cell.minimum * Monomial(sympy.Rational(1, 4))),))
    assert not agrees(half, {"G": 1}), "negative control: 6 G^2, each term at most 1/G"
    cell = balance("N**2*D", ["N", "D"], ["G"], ["3/N + 5/D <= 1/G"]).cell
    assert (str(cell.minimum), str(cell.optimum["N"]), str(cell.optimum["D"])) == ("1215/4*G^3", "9/2*G", "15*G")


def test_an_additive_constant_is_irreducible():
    """Chinchilla: exponents are of the loss above 1.69; the size that reaches a loss counts all of it."""
    text, more = "406.4*N**-0.34 + 410.7*D**-0.28", (["N", "D"], ["F"], ["F = 6*N*D"])
    plain, whole = balance(text, *more), balance(f"{text} + 1.69", *more)
    assert whole.cell == plain.cell and whole.irreducible == sympy.Rational(169, 100)
    assert any("above the irreducible" in line for line in whole.notes)
    (size, above) = (replace(b, reach=x) for b, x in ((whole, "2"), (plain, "0.31")))
    assert size.find_reach(size.cell)["F"].at({}) == pytest.approx(above.find_reach(above.cell)["F"].at({}))
    assert agrees(whole, {"F": 1})
    with pytest.raises(UsageError, match="not above the constant term"):
        replace(whole, reach="1.5").document()
    assert balance("E + a*N**-p + b*N/n", ["N"], ["n"], fixed=["E", "a", "b"]).irreducible == sympy.Symbol(
        "E", positive=True
    )


def test_values_go_into_constraints_and_constants():
    cell = law("a*r**(2*b)", [], ["M"], ["M = r**(-d)"], ["a"], {"b": 1, "d": 32, "a": 3}).cell
    assert (str(cell.minimum), str(cell.optimum["r"])) == ("3/M^(1/16)", "1/M^(1/32)")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("N + N/n", ["N"], ["n"]), "no minimum"),
        (("N**-1 + N/n + Q", ["N"], ["n"]), "Q in Q is not declared"),
        (("N**-1 + N/n", ["N", "D"], ["n"]), "D is minimised over but occurs in no term"),
        (("(N*k)**-1 + N*k/n", ["N", "k"], ["n"]), "only on products"),
        (("N**-1 + N/n", ["N"], []), "no growing quantity"),
        (("N**-1 + N/n", ["N"], ["N"]), "named twice"),
        (("N**-1 + N/n", ["N"], ["n"], ["n = n"]), "no quantity that can be eliminated"),
        (("N**-1 + N/n", [], ["n", "N"], ["n = N"]), "no quantity that can be eliminated"),
        (("N**-1 + N/n", ["N"], ["n"], ["N <= n + 1"]), "sum on its larger side"),
        ((" + ".join(f"N**{k}/n**{k * k}" for k in range(1, 15)), ["N"], ["n"]), "at most"),
        ((" + ".join(f"N**p/n**{k * k}" for k in range(1, 10)), ["N"], ["n"]), "without a value are too many"),
    ],
)
def test_what_has_no_answer(args, says):
    with pytest.raises(UsageError, match=says):
        balance(*args)


@pytest.mark.parametrize(
    ("constraints", "core"),
    [
        (["N <= n", "N >= n**2"], 2),
        (["1 << 1"], 1),
        (["N << n", "N >= n", "N <= n**2"], 2),
        (["N = n", "N << n"], 1),
        (["n <= 1"], 1),
    ],
)
def test_constraints_contradict(constraints, core):
    with pytest.raises(Infeasible, match="contradict each other") as error:
        balance("N**-1 + N/n", ["N"], ["n"], constraints)
    assert str(error.value).count("'") == 2 * core, "a smallest set"
    assert balance("N**-1 + N/n", ["N"], ["n"], ["N << n"]).cell.minimum["n"] == sympy.Rational(-1, 2)


def test_many_open_parameters_are_answered():
    """Asked with assumptions, z3 heeds no budget here."""
    texts = ("p0*p1*q1*q2 + p0*p2*q1*q2 + p1**2*q2**2 + p1*p2*q0*q1 + p1*p2*q0*q2 + p2**2*q1**2 - p0*p1*q2**2"
             " - p0*p2*q1**2 - p1**2*q0*q2 - 2*p1*p2*q1*q2 - p2**2*q0*q1",
             "p0**2*q2**2 + p0*p1*q0*q2 + p0*p2*q0*q1 + p0*p2*q1*q2 + p1*p2*q0*q2 + p2**2*q0**2 - p0**2*q1*q2"
             " - p0*p1*q2**2 - 2*p0*p2*q0*q2 - p1*p2*q0**2 - p2**2*q0*q1",
             "p0**2*q1**2 + p0*p1*q0*q2 + p0*p1*q1*q2 + p0*p2*q0*q1 + p1**2*q0**2 + p1*p2*q0*q1 - p0**2*q1*q2"
             " - 2*p0*p1*q0*q1 - p0*p2*q1**2 - p1**2*q0*q2 - p1*p2*q0**2")  # fmt: skip
    rows = [Relation((Monomial.of({"n": -exponent(text)}),), text, True) for text in texts]
    assert set(GrowthSystem(rows, "n", ()).core(strict=True)) == set(texts)
    assert not GrowthSystem(rows[1:], "n", ()).core(strict=True), "negative control"


NUMBERS = ["-2", "-1", "-1", "-1/2", "1/2", "1", "1", "2"]
PARAMETERS = ["p", "-p", "q", "-q", "p*q", "-2*p/q", "p - q", "p/(p + q)"]


@pytest.mark.parametrize(("powers", "free", "grows"), [(NUMBERS, "xy", "nm"), (NUMBERS + PARAMETERS, "x", "n")])
def test_cells_against_linear_programming(powers, free, grows):
    """Random sums, bounds and parameters: in random directions of growth the cell that holds has the least exponent of
    the linear program in logarithms, and there is none where the program has no solution."""
    draw, decided = random.Random(1), 0

    def monomials(most):
        return [{q: draw.choice(["0", *powers]) for q in free + grows} for _ in range(draw.randint(1, most))]

    def text(terms):
        return " + ".join("*".join(f"{q}**({e})" for q, e in t.items()) for t in terms)

    for _ in range(40 if len(grows) > 1 else 12):
        total, bounds = monomials(3), [monomials(2) for _ in range(draw.choice([0, 0, 0, 1, 2]))]
        try:
            cells = balance(text(total), list(free), list(grows), [f"{text(x)} <= 1" for x in bounds]).cells
        except (UsageError, Infeasible) as error:
            if "no minimum" not in str(error) and "contradict" not in str(error):
                continue  # a quantity that stands nowhere, or only in products
            cells = ()
        for _ in range(4):
            at = {parameter(x): sympy.Rational(draw.randint(1, 300), k) for x, k in (("p", 101), ("q", 103))}
            logs = {q: draw.uniform(1, 9) for q in grows}
            rows = [(t, on) for part, on in [(total, -1), *((x, 0) for x in bounds)] for t in part]
            e = [[float(exponent(t[q]).xreplace(at)) for q in free + grows] + [on] for t, on in rows]
            k = len(free)
            found = linprog(
                [0] * k + [1],
                [row[:k] + row[-1:] for row in e],
                [-sum(x * y for x, y in zip(row[k:-1], logs.values(), strict=True)) for row in e],
                bounds=[(None, None)] * (k + 1),
            )
            put = {str(x): value for x, value in at.items()}
            here = [c for c in cells if all(size(w.ratio.substitute(put), logs) <= 0 for w in c.where)]
            least = {round(size(c.minimum.power.substitute(put), logs), 6) for c in here}
            assert least == ({round(found.fun, 6)} if found.status == 0 else set()), (text(total), bounds, put, logs)
            decided += found.status == 0
    assert decided > 12


@pytest.mark.parametrize(
    ("total", "minimise", "grows", "constraints", "rates"),
    [
        ("N**(-1/16) + N/n", "N", "C", ["C = n*N"], {"C": 1}),
        ("N**(-1/2) + N/n + R/n", "N", "n R", [], {"n": 1, "R": Fraction(1, 4)}),
        ("N**(-1/2) + N/n + R/n", "N", "C R", ["C = n*N"], {"C": 1, "R": Fraction(3, 4)}),
        ("k**(-1/2) + k/n", "k", "n M", ["k <= M"], {"n": 1, "M": Fraction(1, 4)}),
        ("N**(-1/3) + D**(-1/4)", "N D", "F", ["F = 6*N*D"], {"F": 1}),
    ],
)
def test_numbers_agree(total, minimise, grows, constraints, rates):
    b = balance(total, minimise.split(), grows.split(), constraints)
    assert agrees(b, rates)
    steeper = replace(b, reduced=expression(f"({b.reduced.terms[0]})**(3/2)"))
    wrong = replace(steeper, reduced=replace(b.reduced, terms=(*steeper.reduced.terms, *b.reduced.terms[1:])))
    assert not agrees(wrong, rates), "negative control: the numbers of another sum"


def test_the_optimal_number_of_experts_in_numbers():
    """The slopes beside (12) and (49) in ``scalecalc audit --errata``, at beta = 1 and d = 4."""
    for rest, others, slope in (("G*k/n", "nG", -1 / 3), ("A*k/n + k*log(exp(1)*M/k)/n", "nM", -1)):
        b = balance(f"(A*k)**(-1/2) + {rest}", ["k"], ["A"], fixed=list(others))
        found, _ = slopes(b, {"A": 1})
        assert found["k"] == pytest.approx(slope, abs=1e-3)


def test_decimal_exponents_have_prefactors_in_decimals():
    """A root of many digits is a number like others: the least of N^-a + D^-b on a fine grid."""
    import numpy as np

    (cell,) = law("N**-0.3392 + D**-0.2849", ["N", "D"], ["F"], ["F = 6*N*D"]).cells
    n, f = np.logspace(2, 14, 200_001), 1e20
    least = float(np.min(n**-0.3392 + (f / (6 * n)) ** -0.2849))
    assert cell.minimum["F"] == sympy.Rational(-603988, 3900625) and len(str(cell.minimum)) < 60
    assert cell.minimum.at({"F": f}) == pytest.approx(least, rel=1e-6)
