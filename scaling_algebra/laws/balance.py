"""The minimum of a sum of monomials, exactly: which terms balance, where, at which optimum.

With logarithms of the quantities this is a linear program: minimise over x the largest of ``a_i x + b_i``. By duality
the minimum is the maximum over the corners of ``{l >= 0, sum l = 1, sum l_i a_i = 0}``, and a corner is a *circuit*: a
smallest set of terms whose exponents cancel with positive shares. A circuit is a nullspace, so parameters may stay
symbols; at the optimum every term is its share of the minimum (the inequality of the means), hence the prefactors.
Read next: ``presentation.py`` (what a balance says), ``library.py`` (laws that are built of balances).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import sympy

from scaling_algebra.documents import Document, Rendered
from scaling_algebra.errors import UsageError, unknown_name
from scaling_algebra.solver.demands import Infeasible

from .conditions import Condition, condition, possible, sign
from .expressions import Expr, Monomial, Relation, Sum, expression, monomial, parameter, relation, simplified

MOST_TERMS, MOST_FREE = 12, 4
"""Terms with constraints, and quantities to minimise over."""


@dataclass(frozen=True)
class Cell:
    """Where one set of terms balances.

    Attributes:
        active: the terms that balance, as they are written; shares: of the minimum, by active term.
        binding: constraints that hold with equality.
        minimum: the least value; optimum: where it is reached, by quantity. Their coefficients are those of the leading
            order where ``exact``.
        window: what bounds quantities that the minimum leaves open.
        where: what must hold of the rest, up to constants.
    """

    active: tuple[Monomial, ...]
    shares: tuple[Expr, ...]
    binding: tuple[str, ...]
    minimum: Monomial
    optimum: Mapping[str, Monomial]
    exact: bool
    window: tuple[Condition, ...]
    where: tuple[Condition, ...]

    def reach(self, target: str, growing: str) -> dict[str, Monomial]:
        """The growing quantity, and the optimum, at which the minimum equals a monomial such as ``eps**2``.

        Raises:
            UsageError: the minimum does not depend on it.
        """
        if (e := self.minimum[growing]) == 0:
            raise UsageError(f"the minimum does not depend on {growing}; no size of it reaches {target}")
        rest = Monomial.of({n: x for n, x in self.minimum.powers if n != growing}, self.minimum.coefficient)
        size = (monomial(target) * rest**sympy.S.NegativeOne) ** (1 / e)
        return {growing: size, **{name: m.substituted({growing: size}) for name, m in self.optimum.items()}}


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


@dataclass(frozen=True)
class _Row:
    """A term (weight 1), or a constraint ``term <= 1`` (weight 0), of the linear program."""

    term: Monomial
    weight: int
    text: str


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
    if strange := sorted({*(values or {})} - known):
        raise unknown_name("parameter in an exponent", strange[0], sorted(known))
    at = values or {}
    problem = whole.with_parameters(at)
    relations = [Relation(c.left.with_parameters(at), c.sign, c.right.with_parameters(at), c.text) for c in given]
    reduced, dependent, bounds = _eliminated(problem, relations, list(minimise), named)
    free = [name for name in minimise if name not in dependent]
    rows = [_Row(_constants(t, fixed), 1, str(t)) for t in reduced.terms]
    rows += [_Row(_constants(m, fixed), 0, text) for m, text in bounds]
    _check(rows, free, growing, problem)
    cells = list(_cells(rows, free, growing, dependent, any(t.logs for t in reduced.terms)))
    if not cells:
        raise _none(rows, free, growing, problem)
    notes = ["up to logarithms, which count as constants"] * any(t.logs for t in reduced.terms)
    if all(c.where for c in cells) and possible([c.where for c in cells], growing, refused=True):
        notes.append(
            "elsewhere there is no minimum: nothing holds the sum up, or the constraints contradict each other"
        )
    made = (tuple(minimise), tuple(growing), tuple(fixed), tuple(cells), tuple(notes))
    return Balance(problem, reduced, tuple(m for m, _ in bounds), tuple(relations), *made)


def _eliminated(
    total: Sum, constraints: Iterable[Relation], minimise: list[str], named: Sequence[str]
) -> tuple[Sum, dict[str, Monomial], list[tuple[Monomial, str]]]:
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
        found += [(t.substituted(dependent) * inverse, c.text) for t in small.terms]
    return total.substituted(dependent), dependent, found


def _constants(m: Monomial, fixed: Sequence[str]) -> Monomial:
    """Fixed quantities moved into the coefficient; logarithms left out."""
    factors = [parameter(name) ** e for name, e in m.powers if name in fixed]
    return Monomial.of({n: e for n, e in m.powers if n not in fixed}, sympy.Mul(m.coefficient, *factors))


def _check(rows: Sequence[_Row], free: Sequence[str], growing: Sequence[str], total: Sum) -> None:
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
    if free and sympy.Matrix([[row.term[name] for name in free] for row in rows]).rank() < len(free):
        raise UsageError(f"only products of {', '.join(free)} stand in {total}; minimise over fewer of them")


def _circuits(rows: Sequence[_Row], free: Sequence[str]) -> Iterator[tuple[tuple[_Row, ...], list[Expr]]]:
    """Smallest sets of rows whose exponents cancel, with their shares; largest sets first."""
    for size in range(len(free) + 1, 0, -1):
        for chosen in combinations(rows, size):
            space = sympy.Matrix(len(free), size, lambda i, j, of=chosen: of[j].term[free[i]]).nullspace()
            if len(space) != 1:
                continue
            weights = [simplified(x) for x in space[0]]
            total = simplified(sum(w for w, row in zip(weights, chosen, strict=True) if row.weight))
            if all(w != 0 for w in weights) and total != 0:
                yield chosen, [simplified(w / total) for w in weights]


def _cells(
    rows: Sequence[_Row], free: Sequence[str], growing: Sequence[str], dependent: Mapping[str, Monomial], logs: bool
) -> Iterator[Cell]:
    seen = set()
    for chosen, shares in _circuits(rows, free):
        signs = [sign(x) for x in shares]
        if any(s is not None and s < 0 for s in signs):
            continue
        optimum = _optimum(chosen, shares, free)
        base, share = next((row, x) for row, x in zip(chosen, shares, strict=True) if row.weight)
        minimum = base.term.substituted(optimum) * Monomial(1 / share)
        found: list[Condition | bool] = [Condition(positive=x) for x, s in zip(shares, signs, strict=True) if s is None]
        tied = False
        for row in rows:
            if row not in chosen:
                ratio = row.term.substituted(optimum) * (minimum**sympy.S.NegativeOne if row.weight else Monomial())
                tied |= not ratio.powers
                found.append(condition(Monomial.of(dict(ratio.powers)), growing))
        if False in found:
            continue
        open_ = [c for c in dict.fromkeys(found) if isinstance(c, Condition)]
        window = [c for c in open_ if c.ratio is not None and set(dict(c.ratio.powers)) - {*growing}]
        where = _projected(open_, growing)
        if (
            where is None
            or (where and possible([where], growing) is False)
            or (frozenset(where), minimum.powers) in seen
        ):
            continue
        seen.add((frozenset(where), minimum.powers))
        terms = [(row.term, x) for row, x in zip(chosen, shares, strict=True) if row.weight]
        every = optimum | {name: m.substituted(optimum) for name, m in dependent.items()}
        yield Cell(
            tuple(t for t, _ in terms),
            tuple(x for _, x in terms),
            tuple(row.text for row in chosen if not row.weight),
            minimum,
            every,
            not (logs or tied),
            tuple(window),
            tuple(where),
        )


def _optimum(chosen: Sequence[_Row], shares: Sequence[Expr], free: Sequence[str]) -> dict[str, Monomial]:
    """Where every active term is its share of the sum, and every binding constraint an equality."""
    at = next(i for i, row in enumerate(chosen) if row.weight)
    base, inverse = chosen[at], Monomial(1 / shares[at])
    equations = []  # monomials that equal 1
    for row, share in zip(chosen, shares, strict=True):
        if row is not base:
            scale = (base.term * inverse * Monomial(share)) ** sympy.S.NegativeOne if row.weight else Monomial()
            equations.append(row.term * scale)
    matrix = sympy.Matrix(len(equations), len(free), lambda i, j: equations[i][free[j]])
    solved = list(matrix.rref()[1]) if equations else []
    inverted = matrix[:, solved].inv() if solved else matrix
    rests = [Monomial.of({n: e for n, e in m.powers if n not in [free[j] for j in solved]}, m.coefficient)
             for m in equations]  # fmt: skip
    found = {}
    for i, j in enumerate(solved):
        value = Monomial()
        for k, rest in enumerate(rests):
            value *= rest ** -inverted[i, k]
        found[free[j]] = Monomial(sympy.powsimp(value.coefficient), value.powers)
    return found


def _projected(conditions: Sequence[Condition], growing: Sequence[str]) -> list[Condition] | None:
    """What conditions say of growing quantities and parameters alone (Fourier-Motzkin); None if they cannot hold."""
    left = list(conditions)
    names = sorted({n for c in left if c.ratio is not None for n, _ in c.ratio.powers} - {*growing})
    for name in names:
        on = [c.ratio for c in left if c.ratio is not None and c.ratio[name] != 0]
        left = [c for c in left if c.ratio is None or c.ratio[name] == 0]
        above = [r ** (1 / r[name]) for r in on if sign(r[name]) == 1]
        below = [r ** (-1 / r[name]) for r in on if sign(r[name]) == -1]
        made = [condition(a * b, growing) for a in above for b in below]
        if False in made:
            return None
        left += [c for c in made if isinstance(c, Condition)]
    return list(dict.fromkeys(left))


def _none(rows: Sequence[_Row], free: Sequence[str], growing: Sequence[str], total: Sum) -> Exception:
    """Why there is no minimum."""
    bounds = [condition(Monomial.of(dict(row.term.powers)), growing) for row in rows if not row.weight]
    asked = [c for c in bounds if isinstance(c, Condition)]
    if False in bounds or (asked and possible([asked], growing) is False):
        said = ", ".join(dict.fromkeys(repr(row.text) for row in rows if not row.weight))
        return Infeasible(f"the constraints contradict each other for large {', '.join(growing)}: {said}")
    return UsageError(
        f"no minimum over {', '.join(free)}: {total} can be made as small as one likes; add a term that grows where "
        "the others fall, or a constraint"
    )
