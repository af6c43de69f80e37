"""Linear inequalities between exponents: exact windows, what bounds them, and smallest contradictory sets.

Method: the largest value of an objective is that of a point and of weights on the inequalities with the same value
(linear duality), which is one question to z3 over the rationals. What bounds it is a smallest set of inequalities that
contradicts every larger value, without strict ones if there is such a set.
Read next: ``feasible.py`` (what the inequalities are), ``proofs/clauses.py`` (z3).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

from scaling_algebra.proofs.clauses import Atom, Clause, ClauseSolver, Sense

_ABOVE, _DUAL = " above", " dual"
"""Labels of what is no assumption."""


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


def _clause(label: str, coefficients: Mapping[str, Fraction], constant: Fraction, sense: Sense) -> Clause:
    scale = lcm(constant.denominator, *(x.denominator for x in coefficients.values()))
    counts = tuple((name, int(x * scale)) for name, x in coefficients.items() if x)
    return Clause(label, (Atom(constant * scale, counts, sense),), label)


def _all(rows: Iterable[Inequality], strict: bool = False) -> list[Clause]:
    found = []
    for r in rows:
        found.append(_clause(r.label, dict(r.coefficients), r.constant, "<="))
        if strict and r.strict:
            found.append(_clause(r.label, dict(r.coefficients), r.constant, "!="))
    return found


def contradiction(rows: Iterable[Inequality], strict: bool = False) -> tuple[str, ...]:
    """Labels of a smallest contradictory set; empty if there is none.

    Args:
        strict: strict inequalities do not hold where they are equal.

    Examples:
        >>> one, half = Fraction(1), Fraction(1, 2)
        >>> x_above_1, x_below_half = Inequality("a", (("x", -one),), one), Inequality("b", (("x", one),), -half)
        >>> contradiction([x_above_1, x_below_half]), contradiction([x_above_1])
        (('a', 'b'), ())
    """
    return _core(_all(rows, strict))


def _core(clauses: Sequence[Clause], more: Sequence[Clause] = ()) -> tuple[str, ...]:
    solver = ClauseSolver()
    for clause in clauses:
        solver.add(clause)
    labels = list(dict.fromkeys(c.label for c in (*clauses, *more)))
    return () if solver.model(labels, more) is not None else solver.core(more)


def window(rows: Sequence[Inequality], objective: Mapping[str, Fraction], constant: Fraction = Fraction(0)) -> Window:
    """The values of a linear form of the unknowns; there must be some.

    Examples:
        >>> one = Fraction(1)
        >>> rows = [Inequality("a", (("x", 2 * one),), -one), Inequality("b", (("x", -one),), Fraction(0), True)]
        >>> w = window(rows, {"x": one})
        >>> w.low, w.high
        (End(value=Fraction(0, 1), binding=('b',), open=True), End(value=Fraction(1, 2), binding=('a',), open=False))
    """
    ends = []
    for sign in (-1, 1):
        largest = _largest(rows, {name: sign * x for name, x in objective.items()})
        if largest is None:
            ends.append(End(None))
            continue
        above = {name: sign * x for name, x in objective.items()}
        more = [_clause(_ABOVE, above, -largest, sense) for sense in (">=", "!=")]
        plain = _core(_all(r for r in rows if not r.strict), more)
        binding = tuple(label for label in plain or _core(_all(rows), more) if label != _ABOVE)
        ends.append(End(sign * largest + constant, binding, not plain))
    return Window(ends[0], ends[1])


def _largest(rows: Sequence[Inequality], objective: Mapping[str, Fraction]) -> Fraction | None:
    """The largest value of an objective under inequalities that have a solution; None if there is none."""
    clauses, names = _all(rows), {name for r in rows for name, _ in r.coefficients} | set(objective)
    weights = [f"weight {k}" for k in range(len(rows))]
    gap, offset = {name: x for name, x in objective.items() if x}, Fraction(0)
    for name in sorted(names):
        column = {w: x for w, r in zip(weights, rows, strict=True) for n, x in r.coefficients if n == name}
        clauses += [_clause(_DUAL, column, -objective.get(name, Fraction(0)), sense) for sense in ("<=", ">=")]
    for w, r in zip(weights, rows, strict=True):
        clauses.append(_clause(_DUAL, {w: Fraction(1)}, offset, ">="))
        gap[w] = r.constant
    clauses += [_clause(_DUAL, gap, offset, sense) for sense in ("<=", ">=")]
    solver = ClauseSolver()
    for clause in clauses:
        solver.add(clause)
    model = solver.model(dict.fromkeys(c.label for c in clauses), ())
    return None if model is None else sum((x * model[n] for n, x in objective.items() if x), Fraction(0))
