"""Expressions: what is read, exactly; what is not read, in one line. Tables of TOML, read into dataclasses."""

import pytest
import sympy

from scaling_algebra.errors import UsageError
from scaling_algebra.laws.expressions import expression, monomial, relation
from scaling_algebra.laws.monomials import Posynomial


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("N**(-2*beta/d) + N/n", "N^(-2*beta/d) + N/n"),
        ("(A*k)^-p + A*k/n + b*k*log(exp(1)*M/k)/n", "A^(-p)*k^(-p) + A*k/n + b*k*log(exp(1)*M/k)/n"),
        ("(a+b)**2", "a^2 + 2*a*b + b^2"),
        ("N**0.5 + sqrt(N)", "2*N^(1/2)"),
        ("2**(1/2)*N + sqrt(2)*N", "2*sqrt(2)*N"),
        ("K*log(K)*log(log(d))", "K*log(K)*log(log(d))"),
        ("(2*N)**beta", "2^beta*N^beta"),
    ],
)
def test_what_is_read(text, shown):
    total = expression(text)
    assert str(total) == shown and expression(shown) == total
    values = {x: sympy.Integer(4 + i) for i, x in enumerate(sorted(total.expr.free_symbols, key=str))}
    names = {str(x): v for x, v in values.items()} | {"log": sympy.log, "exp": sympy.exp, "sqrt": sympy.sqrt}
    python = sympy.sympify(eval(text.replace("^", "**"), {}, names))
    assert abs(sympy.N(total.expr.subs(values) - python)) < 1e-12


@pytest.mark.parametrize("text", ["a", "a < b", "a = b = c", "=", "x" * 3000, "C = n + N", "N <= n + 1"])
def test_no_relation(text):
    with pytest.raises(UsageError):
        relation(text)


def test_a_relation_is_solved():
    assert str(relation("C = 6*n*N").solve_for("n")) == "1/6*C/N"
    assert str(relation("r**(-d) = M").solve_for("r")) == "M^(-1/d)"
    for text, name in [("C >= n*N", "n"), ("C = n", "N"), ("C = n*log(n)", "n")]:
        with pytest.raises(UsageError, match="constraint"):
            relation(text).solve_for(name)


def test_substitution_is_exact():
    m = monomial("M**2*K**(1/2)*log(M)")
    assert m.substitute({"M": monomial("K*log(K)")}) == monomial("K**(5/2)*log(K)**2*log(K*log(K))")
    assert Posynomial.of([m, m]).terms == (monomial("2*M**2*K**(1/2)*log(M)"),)
