"""Minimises a sum of monomials under constraints, exactly: which terms balance, and where the optimum is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import sympy

from scaling_algebra.documents import Document, Rendered
from scaling_algebra.documents.blocks import Block, Grid, Heading, Lines, Piece, Text, literal
from scaling_algebra.errors import UsageError, check_names
from scaling_algebra.solver.demands import Infeasible

from .expressions import expression, monomial, relation
from .minima import Minimum, find_minima
from .monomials import Expr, Monomial, Posynomial, Relation, parameter, write_exponent
from .systems import GrowthSystem, have_gap

MOST_TERMS, MOST_OPEN, MOST_FREE = 12, 8, 4
"""Maximum number of terms, those of constraints included; of terms if parameters are open; of quantities to minimise
over."""
LONG = 12
"""Maximum number of characters of a number that is printed exactly."""


@dataclass(frozen=True, repr=False)
class Balance(Rendered):
    """The minimum of a sum, by cells.

    A cell is a region of parameters and growing quantities in which the same terms of the sum are the largest ones at
    the minimum.

    Attributes:
        total: the sum as written.
        reduced: the sum after the equations are substituted.
        bounds: the inequalities after the equations are substituted.
        constraints: all constraints as written.
        minimised: the quantities to minimise over.
        growing: the quantities that grow.
        fixed: the constants.
        cells: the minimum in each cell.
        irreducible: the constant term of the sum, which the minimum exceeds; 0 for none.
        notes: further facts, for reports.
        reach: a monomial; the size at which the minimum equals it is reported. None for none.
    """

    total: Posynomial
    reduced: Posynomial
    bounds: tuple[Relation, ...]
    constraints: tuple[Relation, ...]
    minimised: tuple[str, ...]
    growing: tuple[str, ...]
    fixed: tuple[str, ...]
    cells: tuple[Minimum, ...]
    irreducible: Expr = sympy.S.Zero
    notes: tuple[str, ...] = ()
    reach: str | None = None

    @property
    def cell(self) -> Minimum:
        """The minimum, if one formula is valid for all parameters and growing quantities.

        Raises:
            UsageError: different formulas are valid in different regions; ``cells`` has all of them.
        """
        if len(self.cells) > 1:
            raise UsageError(
                f"{self.about} has {len(self.cells)} cells, in each of which other terms balance; give values of "
                "parameters (at), or read .cells"
            )
        return self.cells[0]

    @property
    def about(self) -> str:
        """Title of the report."""
        over = f"minimum over {', '.join(self.minimised)}" if self.minimised else "largest term"
        return f"{over} of {self.total} for growing {', '.join(self.growing)}"

    @property
    def names(self) -> frozenset[str]:
        """Names of the quantities and parameters in the sum and its constraints."""
        return frozenset[str]().union(*(x.quantities | x.parameters for x in (self.total, *self.constraints)))

    def sizes(self, cell: Minimum) -> dict[str, Monomial]:
        """Returns the minimum and the optimal value of each minimised quantity in one cell, by name."""
        return {"minimum" if self.minimised else "largest": cell.minimum, **cell.optimum}

    def find_reach(self, cell: Minimum) -> dict[str, Monomial]:
        """Returns the value of the first growing quantity at which the minimum equals ``reach``, and the optimal
        values of the minimised quantities there, by name.

        The irreducible constant is part of this minimum. The result is empty if no ``reach`` was given.

        Raises:
            UsageError: the minimum equals ``reach`` at no value of this quantity.
        """
        if self.reach is None:
            return {}
        target, grows = monomial(self.reach), self.growing[0]
        if cell.minimum[grows] == 0:
            raise UsageError(
                f"the minimum does not depend on {grows}, so that no value of {grows} makes it {self.reach}; leave "
                "out reach"
            )
        if self.irreducible != 0:
            above = target.coefficient - self.irreducible
            if target.powers or not above.is_number or above <= 0:
                raise UsageError(
                    f"{self.reach} is not above the constant term {write_exponent(self.irreducible)}, which the "
                    "minimum exceeds; give a larger number"
                )  # fmt: skip
            target = Monomial(above)
        size = {grows: (cell.minimum / target).solve_for(grows)}
        return size | {name: m.substitute(size) for name, m in cell.optimum.items()}

    def document(self) -> Document:
        """Returns the report. For each cell: the minimum, the optimum, the share of each term, and the cell's
        conditions.
        """
        blocks: list[Block] = [Heading(Text(self.about, literal(self.about)), 2)]
        if self.constraints:
            blocks.append(Lines.of(("with ", literal(", ".join(c.text for c in self.constraints)))))
        for cell in self.cells:
            if cell.where:
                blocks.append(Heading(literal("where " + ", ".join(map(str, cell.where))), 3))
            blocks += self._cell(cell)
        if self.notes:
            blocks.append(Lines.of(*map(literal, self.notes), listed=True))
        record = {f.name: getattr(self, f.name) for f in fields(self)}
        if self.reach:
            record["reached"] = [{n: c.record_size(m) for n, m in self.find_reach(c).items()} for c in self.cells]
        return Document(tuple(blocks), record)

    def _cell(self, cell: Minimum) -> list[Block]:
        """Returns the part of the report about one cell."""
        shares = [(_format_size(t), ", share ", format_term(x)) for t, x in zip(cell.active, cell.shares, strict=True)]
        lines: list[list[Piece]] = [["terms that balance: ", *[p for s in shares for p in ("; ", *s)][1:]]]
        if cell.binding:
            lines.append(["held with equality: ", literal(", ".join(cell.binding))])
        if cell.window:
            lines.append(["left open: ", literal(", ".join(map(str, cell.window)))])
        blocks: list[Block] = [_make_grid("", self.sizes(cell), cell.exact), Lines.of(*lines, listed=True)]
        if sizes := self.find_reach(cell):
            blocks.append(_make_grid(f"minimum {self.reach} at", sizes, cell.exact))
        return blocks


def balance(
    total: str | Posynomial,
    minimise: Sequence[str] = (),
    growing: Sequence[str] = (),
    constraints: Iterable[str | Relation] = (),
    fixed: Sequence[str] = (),
) -> Balance:
    """Minimises a sum of monomials; ``law`` describes the arguments.

    Raises:
        UsageError: a quantity is unknown, the sum has no minimum, or its minimum does not determine the quantities.
        Infeasible: the constraints are contradictory.
    """
    problem = expression(total) if isinstance(total, str) else total
    relations = [relation(c) if isinstance(c, str) else c for c in constraints]
    named = [*minimise, *growing, *fixed]
    if twice := [name for name, count in Counter(named).items() if count > 1]:
        raise UsageError(f"{twice[0]} is named twice; name each quantity once, as minimised over, growing or fixed")
    if not growing:
        raise UsageError("no growing quantity is named; name the one of which the minimum is a power, such as n")
    check_names("quantity", (*growing, *fixed), sorted({q for x in (problem, *relations) for q in x.quantities}))
    dependent = _eliminate([c for c in relations if c.equation], minimise, named)
    constant = [t for t in problem.terms if t.quantities <= {*fixed}]
    constant = constant if len(constant) < len(problem.terms) else []
    reduced = Posynomial(tuple(t for t in problem.terms if t not in constant)).substitute(dependent)
    free = [name for name in minimise if name not in dependent]
    terms = [_absorb_fixed(t, fixed) for t in reduced.terms]
    left = (c.substitute(dependent) for c in dict.fromkeys(relations) if not c.equation)
    bounds = [replace(c, terms=tuple(_absorb_fixed(m, fixed) for m in c.terms)) for c in left]
    labels = [*map(str, reduced.terms), *(c.text for c in bounds for _ in c.terms)]
    _check_problem([*zip(labels, (*terms, *(m for c in bounds for m in c.terms)), strict=True)], free, growing, problem)
    if core := GrowthSystem(bounds, growing[0], growing[1:]).core(strict=True):
        listed = ", ".join(map(repr, core))
        raise Infeasible(f"the constraints contradict each other for large {', '.join(growing)}: {listed}")
    least = sympy.Add(*(_absorb_fixed(t, fixed).coefficient for t in constant))
    cells = tuple(find_minima(terms, bounds, free, growing, dependent))
    if not cells:
        low = f"as near to {write_exponent(least)}" if constant else "as small"
        raise UsageError(
            f"no minimum over {', '.join(free)}: {problem} can be made {low} one likes; add a constraint, or a term "
            "that grows where the others fall"
        )  # fmt: skip
    notes = []
    if constant:
        notes.append(f"above the irreducible {write_exponent(least)}, whose exponent is 0")
    if any(t.logs for t in reduced.terms):
        cells = tuple(replace(c, exact=False) for c in cells)
        notes.append("logarithms count as constants")
    if all(c.where for c in cells) and have_gap(((w.ratio for w in c.where) for c in cells), growing):
        notes.append(
            "outside these cells there is no minimum: the sum has no positive lower bound there, or the constraints "
            "are contradictory"
        )
    roles = (tuple(minimise), tuple(growing), tuple(fixed))
    return Balance(problem, reduced, tuple(bounds), tuple(relations), *roles, cells, least, tuple(notes))


def format_power(m: Monomial) -> Text:
    """Formats a monomial without its coefficient."""
    return _format_size(Monomial(powers=m.powers, logs=m.logs))


def format_term(e: Expr) -> Text:
    """Formats a sympy expression as text with its LaTeX."""
    return Text(write_exponent(e), f"${sympy.latex(e)}$")


# inside --------------------------------------------------------------------------------------------------------


def _eliminate(equations: Iterable[Relation], minimise: Sequence[str], named: Sequence[str]) -> dict[str, Monomial]:
    """Solves each equation for one of its quantities, so that this quantity can be substituted everywhere.

    Args:
        equations: the equations.
        minimise: quantities to minimise over. If an equation has no undeclared quantity, the last one of these that
            it contains is eliminated.
        named: all quantities that the user declared (to minimise over, growing or fixed). If an equation contains
            another one, that one is eliminated.

    Returns:
        The eliminated quantities as monomials in the others.
    """
    dependent: dict[str, Monomial] = {}
    for c in (e.substitute(dependent) for e in equations):
        quantities = sorted(c.terms[0].quantities)
        choice = [q for q in quantities if q not in named] + [q for q in reversed(minimise) if q in quantities]
        if not choice:
            raise UsageError(
                f"the constraint {c.text!r} contains no quantity that can be eliminated; minimise over one of its "
                "quantities"
            )
        solution = {choice[0]: c.solve_for(choice[0])}
        dependent = {name: m.substitute(solution) for name, m in dependent.items()} | solution
    return dependent


def _absorb_fixed(m: Monomial, fixed: Sequence[str]) -> Monomial:
    """Returns a monomial with the fixed (constant) quantities moved into its coefficient, and without logarithms."""
    factors = [parameter(name) ** e for name, e in m.powers if name in fixed]
    return Monomial.of({n: e for n, e in m.powers if n not in fixed}, sympy.Mul(m.coefficient, *factors))


def _check_problem(
    labelled: Sequence[tuple[str, Monomial]], free: Sequence[str], growing: Sequence[str], total: Posynomial
) -> None:
    """Checks that the sum has a minimum that determines every minimised quantity, and has not too many terms.

    Args:
        labelled: the terms, each with the text of the sum or constraint that contains it.
        free: quantities to minimise over.
        growing: quantities that grow.
        total: the sum, for messages.

    Raises:
        UsageError: a quantity is declared neither as growing nor as fixed nor to be minimised over, the minimum
            determines only products of quantities, or there are too many terms.
    """
    for label, row in labelled:
        if unknown := sorted({n for n, _ in row.powers} - {*free, *growing}):
            raise UsageError(
                f"{unknown[0]} in {label} is not declared; name it as minimised over, growing or fixed, or give an "
                "equation for it as a constraint"
            )  # fmt: skip
    rows = [row for _, row in labelled]
    for name in free:
        if all(row[name] == 0 for row in rows):
            raise UsageError(f"{name} is minimised over but occurs in no term of {total}; leave it out, or add a term")
    if len(rows) > MOST_TERMS or len(free) > MOST_FREE:
        raise UsageError(f"{len(rows)} terms over {len(free)} quantities; give at most {MOST_TERMS} and {MOST_FREE}")
    if len(rows) > MOST_OPEN and any(row.parameters for row in rows):
        raise UsageError(
            f"{len(rows)} terms with parameters without a value are too many; give at most {MOST_OPEN} terms, or "
            "values (--at)"
        )
    if free and sympy.Matrix([[row[name] for name in free] for row in rows]).rank() < len(free):
        raise UsageError(
            f"{total} depends only on products of {', '.join(free)}, which do not determine each of them; minimise "
            "over fewer"
        )


def _make_grid(title: str, sizes: Mapping[str, Monomial], times: bool) -> Grid:
    """Makes a table of quantities and their monomials; it has a column of prefactors if ``times`` is true."""
    header = (literal(title), "grows as", "times")[: 2 + times]
    return Grid.of(
        header, [(n, format_power(m), _format_factor(m.coefficient))[: len(header)] for n, m in sizes.items()]
    )


def _format_size(m: Monomial) -> Text:
    return Text(str(m), f"${sympy.latex(m.expr)}$")


def _format_factor(e: Expr) -> Text:
    """Formats a prefactor. Long numbers are rounded to six digits; the JSON record has them exactly."""
    long = e.is_number and len(write_exponent(e)) > LONG
    return Text(f"{float(e):.6g}", f"{float(e):.6g}") if long else format_term(e)
