"""The exact minimum of ``a x^-p + u x + v x log(w/x)``: the logarithm is kept, the answer is Lambert's W.

With ``S = u/v + log(w) - 1`` the first-order condition ``p a x^(-p-1) = u + v (log(w/x) - 1)`` becomes
``y e^y = z`` for ``y = (p+1)(log(x) - S)`` and ``z = -(p+1) p (a/v) e^(-(p+1) S)``. Branch -1 is the minimum, branch
0 a maximum: the second derivative is positive where ``(p+1)(u/v + log(w/x) - 1) > 1``.
Read next: ``balance.py`` (the same up to logarithms).
"""

from __future__ import annotations

from dataclasses import dataclass

import sympy

from .monomials import Expr, Monomial, Posynomial, parameter, written


@dataclass(frozen=True)
class Stationary:
    """``exp(S + W_-1(z)/(p + 1))``; there is such a point where z is at least -1/e."""

    p: Expr
    shift: Expr
    argument: Expr

    @property
    def minimum(self) -> Expr:
        return sympy.exp(self.shift + sympy.LambertW(self.argument, -1) / (self.p + 1))

    def __str__(self) -> str:
        inside = f"S = {written(self.shift)}, z = {written(self.argument)}"
        return f"exp(S + W_-1(z)/({written(self.p)} + 1)) for {inside}"


def stationary(total: Posynomial, name: str) -> Stationary | None:
    """Of a sum that has this form in a quantity; None for others."""
    x = parameter(name)
    slow = [t for t in total.terms if any(name in a.quantities for a, _ in t.logs)]
    rest = [t for t in total.terms if t not in slow]
    linear, falling = [t for t in rest if t[name] == 1], [t for t in rest if t[name] != 1]
    if not len(slow) == len(linear) == len(falling) == 1 or not falling[0][name].could_extract_minus_sign():
        return None
    ((argument, e), *more), p = slow[0].logs, -falling[0][name]
    if more or e != 1 or slow[0][name] != 1 or argument[name] != -1 or argument.logs:
        return None
    a, u = falling[0].expr * x**p, linear[0].expr / x
    v, w = Monomial(slow[0].coefficient, slow[0].powers).expr / x, argument.expr * x
    shift = u / v + sympy.expand_log(sympy.log(w), force=True) - 1
    decay = sympy.powsimp(sympy.exp(sympy.expand(-(p + 1) * shift)))
    return Stationary(p, shift, -(p + 1) * p * a / v * decay)
