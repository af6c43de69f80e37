"""Formulas of the MoE-laws paper with their constants: what the audit, which compares exponents, does not see."""

import pytest
import sympy

from scaling_algebra.laws.balance.balance import balance
from scaling_algebra.laws.balance.lambert import stationary
from scaling_algebra.laws.expressions import expression, parameter
from scaling_algebra.laws.law.files import law
from scaling_algebra.laws.law.library import answer

A, B, M, k, n, p = (parameter(name) for name in ("A", "B", "M", "k", "n", "p"))
RISK = "(A*k)**-p + A*k/n + B*k*log(exp(1)*M/k)/n"


def zero(e):
    return sympy.simplify(sympy.expand_log(e, force=True)) == 0


def test_first_order_condition_of_the_optimal_k():
    """(11), (45); its right side A + B log(eM/k) - B is A + B log(M/k)."""
    slope = sympy.diff(expression(RISK).expr, k)
    right = (A + B * sympy.log(sympy.E * M / k) - B) / n
    assert zero(slope + p * A**-p * k ** (-p - 1) - right) and zero(right - (A + B * sympy.log(M / k)) / n)
    assert not zero(slope + p * A**-p * k ** (-p - 1) - right - B / n), "negative control"


def test_second_order_condition_of_the_optimal_k():
    """At a stationary point the curvature is positive where (p + 1)(A/B + log(M/k)) > 1."""
    curvature = sympy.diff(expression(RISK).expr, k, 2)
    at = curvature.subs(A**-p * k ** (-p - 2), 1)
    stationary_ = p * A**-p * k ** (-p - 1) - (A + B * sympy.log(M / k)) / n
    said = ((p + 1) * (A / B + sympy.log(M / k)) - 1) * B / (n * k)
    assert at != 0 and zero(curvature - (p + 1) * stationary_ / k - said)


def test_what_idle_experts_cost():
    """Prop. G.1 (50), Cor. G.2, and M = rho k."""
    risk, rho = expression(RISK).expr, parameter("rho")
    assert zero(sympy.diff(risk, M) - B * k / (n * M))
    assert zero(risk.subs(M, rho * M) - risk - B * k * sympy.log(rho) / n)
    assert zero(risk.subs(M, rho * k) - (A * k) ** -p - A * k / n - B * k * (1 + sympy.log(rho)) / n)


def test_where_routing_is_negligible():
    """(51): the condition of the axis with R = B k log(eM/k) is log(eM/k) <= N/(B k)."""
    conditions = [str(c) for c in answer(law("moe-transformer"), "model").axes["model"].cells[1].where]
    assert "R <= N" in conditions


def test_frontier_of_others():
    """App. B: N = G (F/6)^(nu/(mu + nu)), D = (F/6)^(mu/(mu + nu))/G, G = (nu b/(mu a))^(-1/(mu + nu))."""
    cell = balance("a*N**-mu + b*D**-nu", ["N", "D"], ["F"], ["F = 6*N*D"], fixed=["a", "b"]).cell
    a, b, mu, nu, f = (parameter(name) for name in ("a", "b", "mu", "nu", "F"))
    g = (mu * a / (nu * b)) ** (1 / (mu + nu))
    values = {a: 2, b: 3, mu: sympy.Rational(1, 5), nu: sympy.Rational(1, 3), f: 10**6}
    for name, right in (("N", g * (f / 6) ** (nu / (mu + nu))), ("D", (f / 6) ** (mu / (mu + nu)) / g)):
        assert abs(sympy.N((cell.optimum[name].expr / right - 1).subs(values))) < 1e-12
    assert abs(sympy.N((cell.optimum["N"].expr * g).subs(values)) / 10**6 - 1) > 0.1, "negative control"


@pytest.mark.parametrize(
    ("samples", "size", "choices", "experts", "power", "best", "printed"),
    [(1e6, 50, 8, 64, 0.5, 137.438, 903.5), (1e4, 3, 40, 64, 1.0, 5.8017, 9.088)],
)
def test_fixed_point_of_the_optimal_k(samples, size, choices, experts, power, best, printed):
    """(47) with A^(-p) kept finds the stationary k; (12), without it, another one."""

    def fixed(factor):
        found = 10.0
        for _ in range(200):
            slope = size + choices * float(sympy.log(experts / found))
            found = (factor * samples / slope) ** (1 / (1 + power))
        return found

    assert fixed(power * size**-power) == pytest.approx(best, rel=1e-4)
    exact = stationary(balance(RISK, ["k"], ["n", "A", "B", "M"]).reduced, "k")
    values = dict(zip((n, A, B, M, p), (int(samples), size, choices, experts, sympy.Rational(power)), strict=True))
    assert float(sympy.N(exact.minimum.subs(values))) == pytest.approx(best, rel=1e-4)
    wrong = 10.0
    for _ in range(200):
        slope = size + choices * float(sympy.log(sympy.E * experts / wrong))
        wrong = (samples / slope) ** (1 / (1 + power))
    assert wrong == pytest.approx(printed, rel=1e-3)
