"""Windows of exponents: what relations between quantities that are powers of one that grows leave of each.

Law: a monomial that is at most 1 is one inequality between exponents; constants do not count. They are solved by
``linear/clauses.py``. Who asks: ``feasible.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

from sympy.solvers.solveset import NonlinearError, linear_coeffs

from scaling_algebra.errors import UsageError, check_names
from scaling_algebra.linear.clauses import Clause, ClauseSolver, Undecided
from scaling_algebra.linear.linear import Linear, Sense

from .monomials import Monomial, Relation

_GIVEN, _SIZE = "given", "size"
"""The label of what is no relation, and the unknown that is minimised."""


@dataclass(frozen=True)
class End:
    """One end of a window.

    Attributes:
        value: None where there is no end.
        binding: labels of relations that make it, none of which can be left out. open: it takes a strict one.
    """

    value: Fraction | None
    binding: tuple[str, ...] = ()
    open: bool = False


@dataclass(frozen=True)
class Window:
    """From the least to the largest value of an exponent."""

    low: End
    high: End


class Exponents:
    """Exponents of quantities, and of parameters, under relations.

    Attributes:
        unknowns: what the relations are about, by name.

    Raises:
        UsageError: a relation is not linear in the exponents.

    Examples:
        >>> from .expressions import monomial, relation
        >>> w = Exponents({"a": relation("x**2 <= d"), "b": relation("1 << x")}, "d").window(monomial("x"))
        >>> w.low, w.high
        (End(value=Fraction(0, 1), binding=('b',), open=True), End(value=Fraction(1, 2), binding=('a',), open=False))
    """

    def __init__(self, relations: Mapping[str, Relation], grows: str) -> None:
        self._grows = grows
        self._rows = [(label, r.strict, m, *self.of(m, label)) for label, r in relations.items() for m in r.ratios()]
        self.unknowns = tuple(dict.fromkeys(name for *_, counts, _ in self._rows for name in counts))

    def of(self, m: Monomial, where: str) -> tuple[dict[str, Fraction], Fraction]:
        """The exponent of a monomial: coefficients by unknown, and a constant.

        Raises:
            UsageError: it is not linear.
        """
        grows, counts = self._grows, dict[str, Fraction]()
        for name, e in m.powers:
            if name != grows and not e.is_Rational:
                raise UsageError(f"{where}: {name} has the exponent {e}; only {grows} may have one with a name in it")
            counts |= {} if name == grows else {name: Fraction(e)}
        e = m[grows]
        symbols = sorted(e.free_symbols, key=str)
        names = [str(s) for s in symbols]
        try:
            *factors, constant = map(Fraction, linear_coeffs(e, *symbols))
        except NonlinearError:
            raise UsageError(f"{where}: the exponent {e} of {grows} is not linear in {', '.join(names)}") from None
        if both := counts.keys() & {*names}:
            raise UsageError(f"{where}: {min(both)} is a quantity and stands in an exponent; give one another name")
        return counts | dict(zip(names, factors, strict=True)), constant

    def core(
        self, strict: bool = False, logs: bool = False, loose: bool = False, more: Sequence[Clause] = ()
    ) -> tuple[str, ...]:
        """Labels of a smallest contradictory set, with more conditions; empty if there is none.

        Args:
            strict: strict relations do not hold where both sides are equal. loose: such relations are left out.
            logs: logarithms count, each as an unknown that is not negative.
        """
        solver, given = ClauseSolver(), list(more)
        for label, apart, m, counts, constant in self._rows:
            if not (apart and loose):
                sizes = {f"log log {a}": Fraction(e) for a, e in m.logs if e.is_Rational} if logs else {}
                given += [_clause(_GIVEN, {size: Fraction(1)}, Fraction(0), ">=") for size in sizes]
                solver.add(_clause(label, {**counts, **sizes}, constant, "<" if strict and apart else "<="))
        if solver.model(given) is not None:
            return ()
        return tuple(label for label in solver.conflict(given)[0] if label != _GIVEN)

    def windows(self) -> dict[str, Window]:
        """The values that each unknown may have; there must be some."""
        return {name: self._window({name: Fraction(1)}, Fraction(0)) for name in self.unknowns}

    def window(self, m: Monomial) -> Window:
        """The exponents that a monomial may have; there must be some.

        Raises:
            UsageError: a quantity that stands in no relation.
        """
        counts, constant = self.of(m, str(m))
        check_names("quantity", sorted(counts), sorted(self.unknowns))
        return self._window(counts, constant)

    def _window(self, counts: Mapping[str, Fraction], constant: Fraction) -> Window:
        turned = {name: -x for name, x in counts.items()}
        return Window(self._end(counts, constant, 1), self._end(turned, -constant, -1))

    def _end(self, counts: Mapping[str, Fraction], constant: Fraction, side: int) -> End:
        """The least value of a side times an exponent."""
        rows = [_clause(label, row, x, "<=") for label, _, _, row, x in self._rows]
        try:
            rows.append(_clause(_GIVEN, {**counts, _SIZE: Fraction(-1)}, constant, "="))
            least = ClauseSolver().least(_SIZE, rows)
        except Undecided:
            return End(None)
        assert least is not None
        beyond = [_clause(_GIVEN, counts, constant - least, "<")]
        plain = self.core(loose=True, more=beyond)
        return End(side * least, plain or self.core(more=beyond), not plain)


def _clause(label: str, counts: Mapping[str, Fraction], constant: Fraction, sense: Sense) -> Clause:
    scale = lcm(*(x.denominator for x in counts.values()))
    whole = tuple((name, int(x * scale)) for name, x in counts.items() if x)
    return Clause(label, (Linear(whole, sense, constant * scale),), "")
