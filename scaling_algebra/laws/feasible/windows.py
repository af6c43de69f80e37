"""Linear inequalities between exponents: exact windows, what bounds them, and smallest contradictory sets.

Method: z3 maximises a linear form over the rationals, exactly. What bounds it is a smallest set of inequalities that
contradicts every larger value, without strict ones if there is such a set.
Read next: ``feasible.py`` (what the inequalities are).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any


@dataclass(frozen=True)
class Inequality:
    """``constant + sum of coefficients times unknowns <= 0``.

    Attributes:
        label: whose it is; several may share one.
        strict: its ends are open: where it binds, what does not count decides.
    """

    label: str
    coefficients: tuple[tuple[str, Fraction], ...]
    constant: Fraction
    strict: bool = False


@dataclass(frozen=True)
class End:
    """One end of a window.

    Attributes:
        value: None where there is no end.
        binding: labels of inequalities that make it, none of which can be left out. open: it takes a strict one.
    """

    value: Fraction | None
    binding: tuple[str, ...] = ()
    open: bool = False


@dataclass(frozen=True)
class Window:
    """From the least to the largest value of an exponent."""

    low: End
    high: End


class Inequalities:
    """Inequalities, kept for many questions.

    Args:
        strict: strict inequalities do not hold where they are equal.
    """

    def __init__(self, rows: Iterable[Inequality], strict: bool = False) -> None:
        import z3

        self._z3, context = z3, z3.Context()
        self._solver, self._search = z3.Solver(ctx=context), z3.Optimize(ctx=context)
        self._solver.set("core.minimize", True)
        self._labels: dict[str, Any] = {}
        self._loose: list[str] = []
        for r in rows:
            total = self._form(r.coefficients, r.constant)
            holds = total < 0 if strict and r.strict else total <= 0
            if r.label not in self._labels:
                self._labels[r.label] = z3.Bool(f"row {len(self._labels)}", context)
                self._loose += [r.label] * (not r.strict)
            self._search.add(holds)
            self._solver.add(z3.Implies(self._labels[r.label], holds))

    def core(self, labels: Collection[str] | None = None, more: Any = None) -> tuple[str, ...]:
        """Labels of a smallest contradictory set, together with one more condition; empty if there is none.

        Args:
            labels: of inequalities that may be in it.
        """
        asked = [x for label, x in self._labels.items() if labels is None or label in labels]
        self._solver.push()
        if more is not None:
            self._solver.add(more)
        found = {str(x) for x in self._solver.unsat_core()} if self._solver.check(*asked) == self._z3.unsat else set()
        self._solver.pop()
        return tuple(label for k, label in enumerate(self._labels) if f"row {k}" in found)

    def window(self, objective: Mapping[str, Fraction], constant: Fraction = Fraction(0)) -> Window:
        """The values of a linear form of the unknowns; there must be some."""
        ends = [self._end({name: sign * x for name, x in objective.items()}, sign, constant) for sign in (-1, 1)]
        return Window(*ends)

    def _end(self, objective: Mapping[str, Fraction], sign: int, constant: Fraction) -> End:
        form = self._form(objective.items(), Fraction(0))
        self._search.push()
        bound = self._search.maximize(form)
        self._search.check()
        if "oo" in str(self._search.upper(bound)):
            self._search.pop()
            return End(None)
        value = self._search.model().eval(form, model_completion=True)
        self._search.pop()
        largest = Fraction(value.numerator_as_long(), value.denominator_as_long())
        above = form > self._number(largest)
        plain = self.core(self._loose, above)
        return End(sign * largest + constant, plain or self.core(None, above), not plain)

    def _form(self, coefficients: Iterable[tuple[str, Fraction]], constant: Fraction) -> Any:
        context = self._solver.ctx
        parts = [self._number(x) * self._z3.Real(name, context) for name, x in coefficients if x]
        return self._z3.Sum([*parts, self._number(constant)])

    def _number(self, x: Fraction) -> Any:
        return self._z3.Q(x.numerator, x.denominator, self._solver.ctx)


def contradiction(rows: Iterable[Inequality], strict: bool = False) -> tuple[str, ...]:
    """Labels of a smallest contradictory set; empty if there is none.

    Examples:
        >>> one, half = Fraction(1), Fraction(1, 2)
        >>> x_above_1, x_below_half = Inequality("a", (("x", -one),), one), Inequality("b", (("x", one),), -half)
        >>> contradiction([x_above_1, x_below_half]), contradiction([x_above_1])
        (('a', 'b'), ())
    """
    return Inequalities(rows, strict).core()


def window(rows: Iterable[Inequality], objective: Mapping[str, Fraction], constant: Fraction = Fraction(0)) -> Window:
    """The values of a linear form of the unknowns; there must be some.

    Examples:
        >>> one = Fraction(1)
        >>> rows = [Inequality("a", (("x", 2 * one),), -one), Inequality("b", (("x", -one),), Fraction(0), True)]
        >>> w = window(rows, {"x": one})
        >>> w.low, w.high
        (End(value=Fraction(0, 1), binding=('b',), open=True), End(value=Fraction(1, 2), binding=('a',), open=False))
    """
    return Inequalities(rows).window(objective, constant)
