"""The minimum of a sum of monomials, exactly: which terms balance, where, at which optimum.

With logarithms of the quantities this is a linear program: minimise over x the largest of ``a_i x + b_i``. By duality
the minimum is the maximum over the corners of ``{l >= 0, sum l = 1, sum l_i a_i = 0}``, and a corner is a circuit. A
circuit is a nullspace, so parameters may stay symbols; at the optimum every term is its share of the minimum (the
inequality of the means), hence the prefactors.
Read next: ``circuits.py`` (how), ``law.py`` (laws that are built of balances), ``numeric.py`` (the same in numbers).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy

from scaling_algebra.documents import Document, Rendered
from scaling_algebra.documents.blocks import Block, Grid, Heading, Lines, Piece, Text, literal
from scaling_algebra.errors import UsageError, check_names
from scaling_algebra.solver.demands import Infeasible

from .circuits import Minimum, minima, stationary
from .expressions import expression, relation
from .inequalities import Inequality, contradiction, leave_gaps
from .monomials import Expr, Monomial, Posynomial, Relation, exact, parameter, written

MOST_TERMS, MOST_OPEN, MOST_FREE = 12, 8, 4
"""Terms with constraints, those with open parameters, and quantities to minimise over."""
LONG = 12
"""Characters of a number that is printed as it is."""


@dataclass(frozen=True)
class NumericCheck:
    """Slopes of the numeric minimum and optimum beside their exponents on a ray.

    Attributes:
        rates: of the growing quantities. slopes: by name, ``minimum`` first: (predicted, found).
        ratio: numeric over predicted minimum at the largest size; None where the prefactor is not exact.
        near: how far a slope may lie from the exponent, and the ratio from 1.
    """

    rates: Mapping[str, Expr]
    slopes: Mapping[str, tuple[Expr, float]]
    ratio: float | None
    near: float = 0.01

    @property
    def agrees(self) -> bool:
        gaps = [float(e) - x for e, x in self.slopes.values()] + ([] if self.ratio is None else [self.ratio - 1])
        return all(abs(gap) <= self.near for gap in gaps)

    def lines(self) -> list[str]:
        lines = [f"numerically, {name}: slope {x:.4f}, predicted {e} = {float(e):.4f}"
                 for name, (e, x) in self.slopes.items()]  # fmt: skip
        if self.ratio is not None:
            lines.append(f"numerically, prefactor of the minimum over the predicted one: {self.ratio:.4f}")
        return [*lines, "AGREES" if self.agrees else "REFUTED"]

    def record(self) -> dict[str, Any]:
        slopes = {name: {"predicted": written(e), "found": round(x, 6)} for name, (e, x) in self.slopes.items()}
        rates = {name: written(x) for name, x in self.rates.items()}
        ratio = None if self.ratio is None else round(self.ratio, 6)
        return {"rates": rates, "slopes": slopes, "ratio": ratio, "agrees": self.agrees}


@dataclass(frozen=True, repr=False)
class Balance(Rendered):
    """A minimum in cells.

    Attributes:
        total, constraints: as they are written. reduced: the sum with the equations put in; bounds: what is at most 1.
        minimised, growing, fixed: quantities by what becomes of them.
        cells: of terms that balance; one, unless parameters or several growing quantities decide.
        notes: what else is known.
        reach: a monomial; the size at which the minimum equals it is shown, too.
        checks: the same in numbers.
    """

    total: Posynomial
    reduced: Posynomial
    bounds: tuple[Monomial, ...]
    constraints: tuple[Relation, ...]
    minimised: tuple[str, ...]
    growing: tuple[str, ...]
    fixed: tuple[str, ...]
    cells: tuple[Minimum, ...]
    notes: tuple[str, ...] = ()
    reach: str | None = None
    checks: tuple[NumericCheck, ...] = ()

    @property
    def cell(self) -> Minimum:
        """The only cell."""
        if len(self.cells) > 1:
            raise UsageError(f"{self.about} has {len(self.cells)} cells; give values of parameters, or read all cells")
        return self.cells[0]

    @property
    def about(self) -> str:
        over = f"minimum over {', '.join(self.minimised)}" if self.minimised else "largest term"
        return f"{over} of {self.total}, {', '.join(self.growing)} growing"

    @property
    def names(self) -> frozenset[str]:
        """Quantities and parameters that stand in it."""
        sums = (self.total, *(s for c in self.constraints for s in (c.left, c.right)))
        return frozenset[str]().union(*(x.quantities | x.parameters for x in sums))

    def sizes(self, cell: Minimum) -> dict[str, Monomial]:
        return {"minimum" if self.minimised else "largest": cell.minimum, **cell.optimum}

    @property
    def agrees(self) -> bool:
        """Numbers do not contradict it."""
        return all(c.agrees for c in self.checks)

    def document(self) -> Document:
        """Cell by cell the minimum, the optimum, shares, bounds; conditions; numbers."""
        blocks: list[Block] = [Heading(Text(self.about, literal(self.about)), 2)]
        if self.constraints:
            blocks.append(Lines.of(("with ", literal(", ".join(c.text for c in self.constraints)))))
        for cell in self.cells:
            if cell.where:
                blocks.append(Heading(literal("where " + ", ".join(map(str, cell.where))), 3))
            blocks += self._cell(cell)
        notes = list(self.notes)
        for name in self.minimised:
            if (best := stationary(self.reduced, name)) is not None:
                notes.append(f"with the logarithm, {name} = {best}")
        if notes := [*notes, *(line for c in self.checks for line in c.lines())]:
            blocks.append(Lines.of(*map(literal, notes), listed=True))
        return Document(tuple(blocks), self.record())

    def _cell(self, cell: Minimum) -> list[Block]:
        header = ("", "grows as", "times")[: 2 + cell.exact]
        rows = [(n, power(m), _factor(m.coefficient))[: len(header)] for n, m in self.sizes(cell).items()]
        shares = [(_sized(t), ", share ", term(x)) for t, x in zip(cell.active, cell.shares, strict=True)]
        lines: list[list[Piece]] = [["terms that balance: ", *_joined(shares)]]
        if cell.binding:
            lines.append(["held with equality: ", literal(", ".join(cell.binding))])
        if cell.window:
            lines.append(["left open: ", literal(", ".join(map(str, cell.window)))])
        if self.reach is not None:
            sizes = [(f"{name} = ", power(m)) for name, m in cell.reach(self.reach, self.growing[0]).items()]
            lines.append([f"minimum {literal(self.reach)} at ", *_joined(sizes)])
        return [Grid.of(header, rows), Lines.of(*lines, listed=True)]

    def record(self) -> dict[str, Any]:
        """The JSON contract."""

        def cell(c: Minimum) -> dict[str, Any]:
            def shown(m: Monomial) -> dict[str, Any]:
                return {"powers": strings(m), "prefactor": written(m.coefficient) if c.exact else None}

            reached = {} if self.reach is None else {"reached": c.reach(self.reach, self.growing[0])}
            return {
                "where": [*map(str, c.where)],
                "minimum": shown(c.minimum),
                "optimum": {name: shown(m) for name, m in c.optimum.items()},
                "active": [{"term": str(t), "share": written(x)} for t, x in zip(c.active, c.shares, strict=True)],
                "binding": list(c.binding),
                "open": [*map(str, c.window)],
            } | {key: {name: strings(m) for name, m in sizes.items()} for key, sizes in reached.items()}

        return {
            "sum": str(self.total),
            "constraints": [c.text for c in self.constraints],
            "minimise": list(self.minimised),
            "grow": list(self.growing),
            "fixed": list(self.fixed),
            "cells": [cell(c) for c in self.cells],
            "notes": list(self.notes),
            "reach": self.reach,
            "checks": [c.record() for c in self.checks],
        }


def balance(
    total: str | Posynomial,
    minimise: Sequence[str] = (),
    growing: Sequence[str] = (),
    constraints: Iterable[str | Relation] = (),
    fixed: Sequence[str] = (),
    values: Mapping[str, Expr] | None = None,
) -> Balance:
    """Minimises a sum of monomials.

    Args:
        total: the sum, such as ``"N**(-2*beta/d) + N/n"``.
        minimise: quantities to choose; with none, the largest term is looked for.
        growing: quantities that grow; the answer is in their powers.
        constraints: equations of monomials, which eliminate a quantity each (one that is not named elsewhere, else the
            last to be minimised over), or bounds: ``sum <= monomial``, ``monomial >= sum``, ``<<`` and ``>>`` as well.
        fixed: positive constants, kept in prefactors.
        values: of parameters in exponents, exact.

    Raises:
        UsageError: unknown quantities; no minimum, or none that determines its quantities.
        Infeasible: constraints that contradict each other.

    Examples:
        >>> cell = balance("N**(-2*beta/d) + N/n", ["N"], ["n"]).cell
        >>> str(cell.optimum["N"]), cell.minimum["n"]
        ('(2*beta/d)^(d/(2*beta + d))*n^(d/(2*beta + d))', -2*beta/(2*beta + d))
    """
    whole = expression(total) if isinstance(total, str) else total
    given = [relation(c) if isinstance(c, str) else c for c in constraints]
    named = [*minimise, *growing, *fixed]
    if twice := [name for name in named if named.count(name) > 1]:
        raise UsageError(f"{twice[0]} is named twice; a quantity is minimised over, grows, or is fixed")
    if not growing:
        raise UsageError("nothing grows; name the quantity that the minimum is a power of, such as n")
    sums = (whole, *(s for c in given for s in (c.left, c.right)))
    quantities, parameters = {q for x in sums for q in x.quantities}, {p for x in sums for p in x.parameters}
    check_names("quantity", (*growing, *fixed), sorted(quantities))
    at = {name: exact(value) for name, value in (values or {}).items()}
    check_names("parameter in an exponent", sorted(at), sorted(parameters))
    problem, relations = whole.substituted(at), [c.substituted(at) for c in given]
    dependent = _dependent([c for c in relations if c.sign == "="], minimise, named)
    reduced, free = problem.substituted(dependent), [name for name in minimise if name not in dependent]
    terms = [_constants(t, fixed) for t in reduced.terms]
    at_most = ((_constants(m, fixed), c) for c in relations if c.sign != "=" for m in c.substituted(dependent).ratios())
    bounds = list(dict.fromkeys(Inequality(m, c.strict, c.text, growing[0]) for m, c in at_most))
    rows = [*zip(map(str, reduced.terms), terms, strict=True), *((bound.label, bound.ratio) for bound in bounds)]
    _check(rows, free, growing, problem)
    if core := contradiction(bounds, growing):
        listed = ", ".join(map(repr, core))
        raise Infeasible(f"the constraints contradict each other for large {', '.join(growing)}: {listed}")
    cells = tuple(minima(terms, bounds, free, growing, dependent))
    if not cells:
        raise UsageError(f"no minimum over {', '.join(free)}: {problem} can be made as small as one likes; "
                         "add a term that grows where the others fall, or a constraint")  # fmt: skip
    notes = []
    if any(t.logs for t in reduced.terms):
        cells = tuple(replace(c, exact=False) for c in cells)
        notes.append("up to logarithms, which count as constants")
    if all(c.where for c in cells) and leave_gaps((c.where for c in cells), growing):
        notes.append(
            "elsewhere there is no minimum: nothing holds the sum up, or the constraints contradict each other"
        )
    limits, roles = tuple(bound.ratio for bound in bounds), (tuple(minimise), tuple(growing), tuple(fixed))
    return Balance(problem, reduced, limits, tuple(relations), *roles, cells, tuple(notes))


def power(m: Monomial) -> Text:
    """Without its coefficient."""
    return _sized(Monomial(powers=m.powers, logs=m.logs))


def term(e: Expr) -> Text:
    return Text(written(e), f"${sympy.latex(e)}$")


def strings(m: Monomial) -> dict[str, str]:
    """The powers, for JSON: exact, as text."""
    return {name: written(e) for name, e in m.powers}


# inside --------------------------------------------------------------------------------------------------------


def _dependent(equations: Iterable[Relation], minimise: Sequence[str], named: Sequence[str]) -> dict[str, Monomial]:
    """The quantities that equations eliminate, as monomials in the others."""
    dependent: dict[str, Monomial] = {}
    for c in (e.substituted(dependent) for e in equations):
        quantities = sorted(c.quantities)
        choice = [q for q in quantities if q not in named] + [q for q in reversed(minimise) if q in quantities]
        if not choice:
            raise UsageError(f"the constraint {c.text!r} leaves nothing to choose; minimise over one of its quantities")
        solution = {choice[0]: c.solved(choice[0])}
        dependent = {name: m.substituted(solution) for name, m in dependent.items()} | solution
    return dependent


def _constants(m: Monomial, fixed: Sequence[str]) -> Monomial:
    """Fixed quantities moved into the coefficient; logarithms left out."""
    factors = [parameter(name) ** e for name, e in m.powers if name in fixed]
    return Monomial.of({n: e for n, e in m.powers if n not in fixed}, sympy.Mul(m.coefficient, *factors))


def _check(
    labelled: Sequence[tuple[str, Monomial]], free: Sequence[str], growing: Sequence[str], total: Posynomial
) -> None:
    """Raises UsageError for strange quantities, for minima that determine products only, and for too many terms."""
    for label, row in labelled:
        if unknown := sorted({n for n, _ in row.powers} - {*free, *growing}):
            raise UsageError(f"{unknown[0]} in {label} is neither minimised over, nor growing, nor fixed, nor given "
                             "by a constraint; say which, or what it equals")  # fmt: skip
    rows = [row for _, row in labelled]
    for name in free:
        if all(row[name] == 0 for row in rows):
            raise UsageError(f"{name} is to be minimised over, but stands in no term of {total}")
    if len(rows) > MOST_TERMS or len(free) > MOST_FREE:
        raise UsageError(f"{len(rows)} terms over {len(free)} quantities; give at most {MOST_TERMS} and {MOST_FREE}")
    if len(rows) > MOST_OPEN and any(row.parameters for row in rows):
        raise UsageError(f"{len(rows)} terms with open parameters; give values of them (--at), or at most {MOST_OPEN}")
    if free and sympy.Matrix([[row[name] for name in free] for row in rows]).rank() < len(free):
        raise UsageError(f"only products of {', '.join(free)} stand in {total}; minimise over fewer of them")


def _joined(groups: Iterable[Sequence[Piece]]) -> list[Piece]:
    return [piece for group in groups for piece in ("; ", *group)][1:]


def _sized(m: Monomial) -> Text:
    return Text(str(m), f"${sympy.latex(m.expr)}$")


def _factor(e: Expr) -> Text:
    """A prefactor; a long number in decimals (JSON has it exactly)."""
    long = e.is_number and len(written(e)) > LONG
    return Text(f"{float(e):.6g}", f"{float(e):.6g}") if long else term(e)
