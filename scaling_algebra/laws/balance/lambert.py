"""The exact minimum of ``a x^-p + u x + v x log(w/x)``: the logarithm is kept, the answer is Lambert's W.

With ``S = u/v + log(w) - 1`` the first-order condition ``p a x^(-p-1) = u + v (log(w/x) - 1)`` becomes
``y e^y = z`` for ``y = (p+1)(log(x) - S)`` and ``z = -(p+1) p (a/v) e^(-(p+1) S)``. Branch -1 is the minimum, branch
0 a maximum: the second derivative is positive where ``(p+1)(u/v + log(w/x) - 1) > 1``.
Read next: ``balance.py`` (the same up to logarithms).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mpmath
import sympy

from ..expressions import Expr, Monomial, Sum, parameter


@dataclass(frozen=True)
class Stationary:
    """Where such a sum is stationary in ``name``, for the parameters in ``a``, ``u``, ``v``, ``w``, ``p``."""

    name: str
    p: Expr
    a: Expr
    u: Expr
    v: Expr
    w: Expr

    @property
    def shift(self) -> Expr:
        return self.u / self.v + sympy.expand_log(sympy.log(self.w), force=True) - 1

    @property
    def argument(self) -> Expr:
        """z, of Lambert's W; there is a stationary point where it is at least -1/e."""
        decay = sympy.powsimp(sympy.exp(sympy.expand(-(self.p + 1) * self.shift)))
        return -(self.p + 1) * self.p * self.a / self.v * decay

    @property
    def minimum(self) -> Expr:
        return sympy.exp(self.shift + sympy.LambertW(self.argument, -1) / (self.p + 1))

    def at(self, values: dict[Expr, Any], cap: float) -> float:
        """The best ``x`` up to a cap: the stationary minimum where it lies below, unless the cap is better."""
        p, a, u, v, w = (mpmath.mpf(sympy.N(x.xreplace(values), 50)) for x in (self.p, self.a, self.u, self.v, self.w))
        shift = u / v + mpmath.log(w) - 1
        z = -(p + 1) * p * a / v * mpmath.exp(-(p + 1) * shift)

        def value(x: Any) -> Any:
            return a * x**-p + u * x + v * x * mpmath.log(w / x)

        found = mpmath.exp(shift + mpmath.lambertw(z, -1) / (p + 1)) if z >= -mpmath.exp(-1) else mpmath.mpf(cap)
        return float(min((mpmath.mpf(cap), min(mpmath.re(found), mpmath.mpf(cap))), key=value))


def stationary(total: Sum, name: str) -> Stationary | None:
    """Of a sum that has this form in a quantity; None for others."""
    falling: list[Monomial] = []
    linear: list[Monomial] = []
    slow: list[Monomial] = []
    for t in total.terms:
        inside = [arg for arg, e in t.logs if name in arg.quantities]
        if not inside:
            (linear if t[name] == 1 else falling).append(t)
        elif len(t.logs) == 1 and t.logs[0][1] == 1 and t[name] == 1 and inside[0][name] == -1 and not inside[0].logs:
            slow.append(t)
        else:
            return None
    if [len(x) for x in (falling, linear, slow)] != [1, 1, 1] or not (falling[0][name].could_extract_minus_sign()):
        return None
    x = parameter(name)
    w = slow[0].logs[0][0].expr * x
    v = Monomial(slow[0].coefficient, slow[0].powers).expr / x
    p = -falling[0][name]
    return Stationary(name, p, falling[0].expr * x**p, linear[0].expr / x, v, w)
