"""Signs of rational functions of positive parameters, and conditions where a sign is open.

Read next: ``balance.py`` (which cells they bound).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import sympy

from ..expressions import Expr, Monomial, simplified, written

PATIENCE = 2_000_000
"""Steps (rlimit) that z3 may take for a question: the same on every machine."""


@dataclass(frozen=True)
class Condition:
    """A monomial that is at most 1 where a cell is; or, of parameters alone, a rational function above zero.

    Attributes:
        ratio: the monomial without coefficient; None where only parameters decide.
        positive: what is above zero then.
        isolate: the quantity that is written alone on one side.
    """

    ratio: Monomial | None = None
    positive: Expr = None
    isolate: str = ""

    def __str__(self) -> str:
        if self.ratio is None:
            up, down = _sides(_numerator(self.positive))
            return f"{written(up)} > {written(down)}"
        if (bound := self.bound) is None:
            return f"{self.ratio} <= 1"
        return f"{self.isolate} {bound[0]} {bound[1]}"

    @property
    def bound(self) -> tuple[str, Monomial] | None:
        """``<=`` or ``>=``, and what the quantity that stands alone is compared with; None where none can."""
        if self.ratio is None or (of := sign(self.ratio[self.isolate])) is None:
            return None
        rest = Monomial.of({n: e for n, e in self.ratio.powers if n != self.isolate})
        return "<=" if of > 0 else ">=", rest ** (-1 / self.ratio[self.isolate])

    def holds(self, logs: Mapping[str, float], parameters: Mapping[Expr, Any]) -> bool:
        """At logarithms of the quantities and at values of the parameters."""
        if self.ratio is None:
            return bool(self.positive.xreplace(parameters) > 0)
        return sum(float(e.xreplace(parameters)) * logs[n] for n, e in self.ratio.powers) <= 1e-12


def condition(ratio: Monomial, growing: Iterable[str]) -> Condition | bool:
    """``ratio <= 1`` up to constants: True or False where that is decided, for quantities that grow.

    Where every exponent has the same sign that decides it; a single quantity leaves a condition on parameters.
    """
    growing = list(growing)
    powers = dict(ratio.powers)
    if not powers:
        return True
    if powers.keys() <= set(growing):
        signs = {sign(e) for e in powers.values()}
        if signs in ({-1}, {1}):
            return signs == {-1}
        if len(powers) == 1:
            return Condition(positive=-next(iter(powers.values())))
    free = [n for n in powers if n not in growing]
    decided = [n for n in (*free, *reversed(growing)) if n in powers and sign(powers[n]) is not None]
    return Condition(ratio, isolate=next(iter(decided), next(iter(powers))))


@lru_cache(maxsize=2**14)
def sign(e: Expr) -> int | None:
    """Of a rational function of positive parameters: 1, 0, -1, or None where it depends on them.

    Examples:
        >>> from ..expressions import exponent
        >>> sign(exponent("-2*beta/(2*beta + d)")), sign(exponent("beta - d"))
        (-1, None)
    """
    e = simplified(e)
    if e.is_number:
        return int(sympy.sign(e))
    found = 1
    for factor in sympy.Mul.make_args(sympy.factor(_numerator(e))):
        base = factor.as_base_exp()[0]
        terms = [sympy.sign(t.as_coeff_Mul()[0]) for t in sympy.Add.make_args(sympy.expand(base))]
        if len(set(terms)) != 1:
            return None
        found *= int(terms[0]) if factor.as_base_exp()[1] % 2 else 1
    return found


def possible(
    groups: Sequence[Iterable[Condition]],
    growing: Iterable[str],
    refused: bool = False,
    loose: Iterable[Condition] = (),
) -> bool | None:
    """Can all conditions hold strictly, for positive parameters and quantities that grow? None: not decided in time.

    Args:
        groups: all conditions of the first group; if ``refused``, none of the groups, each as a whole.
        loose: what need not hold strictly.
    """
    import z3

    solver = z3.Solver()
    solver.set("rlimit", PATIENCE)
    names: dict[str, Any] = {}

    def number(e: Expr) -> Any:
        if e.is_Rational:
            return z3.RealVal(str(e))
        if e.is_Symbol:
            if str(e) not in names:
                names[str(e)] = z3.Real(f"parameter {e}")
                solver.add(names[str(e)] > 0)
            return names[str(e)]
        parts = [number(x) for x in e.args]
        if e.is_Pow and e.args[1].is_Integer:
            return (
                z3.Product([number(e.args[0])] * int(e.args[1]))
                if e.args[1] > 0
                else 1 / number(e.args[0] ** -e.args[1])
            )
        return z3.Sum(parts) if e.is_Add else z3.Product(parts)

    def asserted(c: Condition, strict: bool) -> Any:
        if c.ratio is None:
            left = number(sympy.expand(_numerator(c.positive)))
            return left > 0 if strict else left >= 0
        total = z3.Sum([number(e) * z3.Real(f"log {n}") for n, e in c.ratio.powers])
        return total < 0 if strict else total <= 0

    if refused:
        for group in groups:
            solver.add(z3.Not(z3.And([asserted(c, False) for c in group])))
    else:
        solver.add([asserted(c, True) for c in groups[0]] + [asserted(c, False) for c in loose])
    solver.add([z3.Real(f"log {n}") > 0 for n in growing])
    answer = solver.check()
    return None if answer == z3.unknown else bool(answer == z3.sat)


def _numerator(e: Expr) -> Expr:
    """A polynomial of the sign of a rational function."""
    above, below = sympy.fraction(sympy.together(e))
    below = sympy.factor(below)
    return above if sympy.sign(below) == 1 or below.is_positive else sympy.expand(above * below)


def _sides(polynomial: Expr) -> tuple[Expr, Expr]:
    """Its positive and its negative terms, without common factors of numbers."""
    primitive = sympy.expand(polynomial).primitive()[1]
    terms = sympy.Add.make_args(primitive)
    up = sympy.Add(*(t for t in terms if t.as_coeff_Mul()[0] > 0))
    return up, sympy.Add(up, -primitive)
