"""The minimum of a sum of monomials, exactly: which terms balance, where, at which optimum.

With logarithms of the quantities this is a linear program: minimise over x the largest of ``a_i x + b_i``. By duality
the minimum is the maximum over the corners of ``{l >= 0, sum l = 1, sum l_i a_i = 0}``, and a corner is a *circuit*: a
smallest set of terms whose exponents cancel with positive shares. A circuit is a nullspace, so parameters may stay
symbols; at the optimum every term is its share of the minimum (the inequality of the means), hence the prefactors.
Read next: ``presentation.py`` (what a balance says), ``law/library.py`` (laws that are built of them).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import sympy

from scaling_algebra.documents import Document, Rendered
from scaling_algebra.errors import UsageError, unknown_name
from scaling_algebra.solver.demands import Infeasible

from ..expressions import Expr, Monomial, Relation, Sum, exact, expression, parameter, relation
from .circuits import Cell, Row, cells
from .conditions import Condition, condition, possible

MOST_TERMS, MOST_OPEN, MOST_FREE = 12, 8, 4
"""Terms with constraints, those with open parameters, and quantities to minimise over."""
_CONTRADICT = "the constraints contradict each other for large {}: {}"


@dataclass(frozen=True, repr=False)
class Balance(Rendered):
    """A minimum in cells.

    Attributes:
        total, constraints: as they are written. reduced: the sum with the equations put in; bounds: what is at most 1.
        minimised, growing, fixed: quantities by what becomes of them.
        cells: of terms that balance; one, unless parameters or several growing quantities decide.
        notes: what else is known.
    """

    total: Sum
    reduced: Sum
    bounds: tuple[Monomial, ...]
    constraints: tuple[Relation, ...]
    minimised: tuple[str, ...]
    growing: tuple[str, ...]
    fixed: tuple[str, ...]
    cells: tuple[Cell, ...]
    notes: tuple[str, ...] = ()

    @property
    def cell(self) -> Cell:
        """The only cell.

        Raises:
            UsageError: there are several.
        """
        if len(self.cells) > 1:
            raise UsageError(f"{self.about} has {len(self.cells)} cells; give values of parameters, or read all cells")
        return self.cells[0]

    @property
    def about(self) -> str:
        over = f"minimum over {', '.join(self.minimised)}" if self.minimised else "largest term"
        return f"{over} of {self.total}, {', '.join(self.growing)} growing"

    def document(self) -> Document:
        from .presentation import balance

        return balance(self)


def balance(
    total: str | Sum,
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
        >>> found = balance("N**(-2*beta/d) + N/n", ["N"], ["n"]).cell
        >>> str(found.optimum["N"]), found.minimum["n"]
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
    stand = {q for x in sums for q in x.quantities}
    if nowhere := [name for name in (*growing, *fixed) if name not in stand]:
        raise unknown_name("quantity", nowhere[0], sorted(stand))
    known = {p for x in sums for p in x.parameters}
    at = {name: exact(value) for name, value in (values or {}).items()}
    if strange := sorted({*at} - known):
        raise unknown_name("parameter in an exponent", strange[0], sorted(known))
    problem = whole.with_parameters(at)
    relations = [Relation(c.left.with_parameters(at), c.sign, c.right.with_parameters(at), c.text) for c in given]
    reduced, dependent, bounds = _eliminated(problem, relations, list(minimise), named)
    free = [name for name in minimise if name not in dependent]
    rows = [Row(_constants(t, fixed), 1, str(t)) for t in reduced.terms]
    bounds = [(_constants(m, fixed), c) for m, c in bounds]
    rows += [Row(m, 0, c.text) for m, c in bounds]
    _check(rows, free, growing, problem)
    if core := _contradictory(bounds, growing):
        raise Infeasible(_CONTRADICT.format(", ".join(growing), ", ".join(map(repr, core))))
    found = list(cells(rows, free, growing, dependent, any(t.logs for t in reduced.terms)))
    if not found:
        raise _none(rows, free, growing, problem)
    notes = ["up to logarithms, which count as constants"] * any(t.logs for t in reduced.terms)
    if all(c.where for c in found) and possible([c.where for c in found], growing, refused=True):
        notes.append(
            "elsewhere there is no minimum: nothing holds the sum up, or the constraints contradict each other"
        )
    made = (tuple(minimise), tuple(growing), tuple(fixed), tuple(found), tuple(notes))
    return Balance(problem, reduced, tuple(m for m, _ in bounds), tuple(relations), *made)


def _eliminated(
    total: Sum, constraints: Iterable[Relation], minimise: list[str], named: Sequence[str]
) -> tuple[Sum, dict[str, Monomial], list[tuple[Monomial, Relation]]]:
    """Equations put in: what is left of the sum, what the eliminated quantities are, and the bounds as ``m <= 1``."""
    dependent: dict[str, Monomial] = {}
    bounds: list[Relation] = []
    for c in constraints:
        if c.sign != "=":
            bounds.append(c)
            continue
        now = Relation(c.left.substituted(dependent), "=", c.right.substituted(dependent), c.text)
        there = sorted(now.left.quantities | now.right.quantities)
        open_ = [q for q in there if q not in named] + [q for q in reversed(minimise) if q in there]
        if not open_:
            raise UsageError(f"the constraint {c.text!r} leaves nothing to choose; minimise over one of its quantities")
        solution = {open_[0]: now.solved(open_[0])}
        dependent = {name: m.substituted(solution) for name, m in dependent.items()} | solution
    found = []
    for c in bounds:
        small, large = (c.left, c.right) if c.sign in ("<=", "<<") else (c.right, c.left)
        if len(large.terms) != 1:
            raise UsageError(f"the constraint {c.text!r} has a sum on its larger side; write one monomial there")
        inverse = large.terms[0].substituted(dependent) ** sympy.S.NegativeOne
        found += [(t.substituted(dependent) * inverse, c) for t in small.terms]
    return total.substituted(dependent), dependent, found


def _contradictory(bounds: Sequence[tuple[Monomial, Relation]], growing: Sequence[str]) -> list[str]:
    """A smallest set of bounds that cannot hold, where ``<<`` is strict; empty if they can."""

    def refuted(some: Sequence[tuple[Monomial, Relation]]) -> bool:
        strict = [Condition(Monomial.of(dict(m.powers))) for m, c in some if c.sign in ("<<", ">>")]
        loose = [Condition(Monomial.of(dict(m.powers))) for m, c in some if c.sign not in ("<<", ">>")]
        return bool(strict) and possible([strict], growing, loose=loose) is False

    texts = list(dict.fromkeys(c.text for _, c in bounds))
    if not refuted(bounds):
        return []
    for text in list(texts):
        if refuted([b for b in bounds if b[1].text in texts and b[1].text != text]):
            texts.remove(text)
    return texts


def _constants(m: Monomial, fixed: Sequence[str]) -> Monomial:
    """Fixed quantities moved into the coefficient; logarithms left out."""
    factors = [parameter(name) ** e for name, e in m.powers if name in fixed]
    return Monomial.of({n: e for n, e in m.powers if n not in fixed}, sympy.Mul(m.coefficient, *factors))


def _check(rows: Sequence[Row], free: Sequence[str], growing: Sequence[str], total: Sum) -> None:
    """Raises UsageError for quantities that nothing is said about, and for minima that determine products only."""
    for row in rows:
        if unknown := sorted({n for n, _ in row.term.powers} - {*free, *growing}):
            said = "is neither minimised over, nor growing, nor fixed, nor given by a constraint"
            raise UsageError(f"{unknown[0]} in {row.text} {said}; say which, or what it equals")
    for name in free:
        if all(row.term[name] == 0 for row in rows):
            raise UsageError(f"{name} is to be minimised over, but stands in no term of {total}")
    if len(rows) > MOST_TERMS or len(free) > MOST_FREE:
        raise UsageError(f"{len(rows)} terms over {len(free)} quantities; give at most {MOST_TERMS} and {MOST_FREE}")
    if len(rows) > MOST_OPEN and any(row.term.parameters for row in rows):
        raise UsageError(f"{len(rows)} terms with open parameters; give values of them (--at), or at most {MOST_OPEN}")
    if free and sympy.Matrix([[row.term[name] for name in free] for row in rows]).rank() < len(free):
        raise UsageError(f"only products of {', '.join(free)} stand in {total}; minimise over fewer of them")


def _none(rows: Sequence[Row], free: Sequence[str], growing: Sequence[str], total: Sum) -> Exception:
    """Why there is no minimum."""
    bounds = [condition(Monomial.of(dict(row.term.powers)), growing) for row in rows if not row.weight]
    asked = [c for c in bounds if isinstance(c, Condition)]
    if False in bounds or (asked and possible([asked], growing) is False):
        said = ", ".join(dict.fromkeys(repr(row.text) for row in rows if not row.weight))
        return Infeasible(_CONTRADICT.format(", ".join(growing), said))
    return UsageError(
        f"no minimum over {', '.join(free)}: {total} can be made as small as one likes; add a term that grows where "
        "the others fall, or a constraint"
    )
