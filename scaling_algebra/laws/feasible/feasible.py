"""Assumptions between growing quantities, as ``d**(-1/2)*sigma <= sigma**(5/2)``: can they hold together, and where?

Law: every quantity is a power of one that grows, up to constants and powers of logarithms, which do not count. So each
relation between monomials is a linear inequality between exponents. ``a << b`` gives the same inequality as ``a <= b``,
with an open end: where both sides have one power, logarithms decide, if there are any. A logarithm is one of something
that grows, at least 1.
Read next: ``windows.py`` (solves them), ``onset.py`` (from which size on), ``files.py`` (how they are written).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

import sympy

from scaling_algebra.documents import Document, Rendered
from scaling_algebra.errors import UsageError, unknown_name

from ..monomials import Monomial, Relation, parameter
from .windows import Inequalities, Inequality, Window, contradiction, window

_LOG = " log "
"""Before the argument of a logarithm, where its size is an unknown; and the label of what holds of all of them."""


@dataclass(frozen=True)
class Assumption:
    """A relation between monomials, why it is needed, and where it stands."""

    name: str
    relation: Relation
    because: str = ""
    source: str = ""


@dataclass(frozen=True)
class Definition:
    """A quantity that is a monomial in others; ``printed`` is what a source says it comes to."""

    name: str
    value: Monomial
    about: str = ""
    printed: Monomial | None = None
    source: str = ""


@dataclass(frozen=True)
class System:
    """Assumptions between quantities that are powers of one that grows."""

    name: str
    title: str
    grows: str
    assumptions: tuple[Assumption, ...]
    definitions: tuple[Definition, ...] = ()

    def defined(self, values: Mapping[str, Monomial]) -> dict[str, Monomial]:
        """Every defined quantity in the quantities that are not, and in those that ``values`` has."""
        found: dict[str, Monomial] = {}
        for d in self.definitions:
            found[d.name] = d.value.substituted(found)
        return {name: m.substituted(values) for name, m in found.items()}

    @property
    def equal(self) -> dict[str, Monomial]:
        """What a quantity equals by assumption, where no logarithm stands there."""
        found: dict[str, Monomial] = {}
        for a in self.assumptions:
            left, right = a.relation.left.terms, a.relation.right.terms
            if a.relation.sign != "=" or len(left) != 1 or len(right) != 1 or right[0].logs:
                continue
            name = next(iter(left[0].quantities), "")
            if left[0] == Monomial.of({name: sympy.S.One}) and name not in right[0].quantities:
                found[name] = right[0].substituted(found)
        return found


@dataclass(frozen=True, repr=False)
class Feasible(Rendered):
    """Where assumptions hold together.

    Attributes:
        given: growth laws that were put in. dropped: assumptions that were left out.
        windows: of the exponent of every quantity and parameter; empty where there is no solution.
        defined: every defined quantity in the others, and the window of its exponent (None: no solution).
        core: names of a smallest contradictory set; empty if there is a solution.
        even: names of assumptions that hold together only where their sides have one power.
    """

    system: System
    given: Mapping[str, Monomial]
    dropped: tuple[str, ...]
    windows: Mapping[str, Window]
    defined: Mapping[str, tuple[Monomial, Window | None]]
    core: tuple[str, ...] = ()
    even: tuple[str, ...] = ()

    @property
    def about(self) -> str:
        return f"{self.system.name}, {'contradictory' if self.core else 'feasible'}"

    @property
    def assumed(self) -> tuple[Assumption, ...]:
        """The assumptions that were asked about."""
        return tuple(a for a in self.system.assumptions if a.name not in self.dropped)

    def document(self) -> Document:
        from .presentation import feasible

        return feasible(self)

    def window(self, m: Monomial) -> Window:
        """The window of a monomial's exponent; there must be a solution.

        Raises:
            UsageError: a quantity of which nothing is assumed.
        """
        put = self.system.defined(self.given) | dict(self.given)
        rows = [row for a in self.assumed for row in _rows(a, put, self.system.grows)]
        known = {name for r in rows for name, _ in r.coefficients}
        linear, constant = _exponents(m.substituted(put), self.system.grows, str(m))
        if unknown := linear.keys() - known:
            raise unknown_name("quantity", min(unknown), sorted(known))
        return window(rows, linear, constant)

    def misprints(self) -> tuple[Definition, ...]:
        """Definitions whose printed value is another one, in powers of every quantity."""
        found = self.system.defined(equal := self.system.equal)
        printed = {d.name: d.printed for d in self.system.definitions if d.printed is not None}
        wrong = {n for n, m in printed.items() if m.substituted(found | equal).powers != found[n].powers}
        return tuple(d for d in self.system.definitions if d.name in wrong)


def feasible(system: System, given: Mapping[str, Monomial] | None = None, drop: Iterable[str] = ()) -> Feasible:
    """The admissible window of every exponent, or a smallest set of assumptions that contradicts itself.

    Args:
        given: growth laws, by quantity: ``{"K": monomial("d**kappa")}``. A name in an exponent is one more unknown.
        drop: names of assumptions to leave out.

    Raises:
        UsageError: a name that the system does not have; relations that are not linear in the exponents.

    Examples:
        >>> from .files import shipped
        >>> f = feasible(shipped("switch-cluster"))
        >>> w = f.windows["sigma_0"]
        >>> print(w.low.value, w.high.value, [d.name for d in f.misprints()])
        -1/3 -1/100 ['expert_margin']
    """
    given, dropped = dict(given or {}), tuple(dict.fromkeys(drop))
    names = [a.name for a in system.assumptions]
    for name in dropped:
        if name not in names:
            raise unknown_name("assumption", name, names)
    kept = [a for a in system.assumptions if a.name not in dropped]
    defined = system.defined({})
    known = frozenset[str]().union(*(_quantities(a.relation, defined) for a in kept), {system.grows})
    for name, law in given.items():
        if name not in known or name == system.grows:
            raise unknown_name("quantity to set", name, sorted(known - {system.grows}))
        if name in law.quantities or law.quantities & given.keys():
            raise UsageError(f"{name} = {law} is given in what is given itself; write it in the others")
    values = defined | given
    put = {n: m.substituted(given) for n, m in defined.items()} | given
    rows = [row for a in kept for row in _rows(a, put, system.grows)]
    exact = [row for a in kept for row in _rows(a, put, system.grows, logs=True)]
    for law in given.values():
        if unknown := law.quantities - known:
            raise unknown_name("quantity", min(unknown), sorted(known))
    core = contradiction(rows) or contradiction([*exact, *_positive(exact)], strict=True)
    core = tuple(name for name in core if name != _LOG)
    known_rows, windows = Inequalities(rows), dict[str, Window]()
    results: dict[str, tuple[Monomial, Window | None]] = {}
    unknowns = dict.fromkeys(name for r in rows for name, _ in r.coefficients)
    if not core:
        windows = {name: known_rows.window({name: Fraction(1)}) for name in unknowns}
    for d in system.definitions:
        value = values[d.name].substituted(given)
        linear, constant = _exponents(value, system.grows, d.name)
        ok = not core and set(linear) <= set(unknowns)
        results[d.name] = (value, known_rows.window(linear, constant) if ok else None)
    even = () if core else contradiction(rows, strict=True)
    return Feasible(system, given, dropped, windows, results, core, even)


def _quantities(r: Relation, defined: Mapping[str, Monomial]) -> frozenset[str]:
    return r.left.substituted(defined).quantities | r.right.substituted(defined).quantities


def _rows(a: Assumption, values: Mapping[str, Monomial], grows: str, logs: bool = False) -> list[Inequality]:
    """One inequality for each monomial on the smaller side; an equation is two.

    Args:
        logs: the size of each logarithm is an unknown of its own.
    """
    left, sign, right = a.relation.left.substituted(values), a.relation.sign, a.relation.right.substituted(values)
    sides = {"<": [(left, right)], ">": [(right, left)], "=": [(left, right), (right, left)]}[sign[0]]
    rows = []
    for small, large in sides:
        if len(large.terms) != 1:
            raise UsageError(f"{a.name}: {a.relation.text!r} has a sum where it is larger; ask for each case by itself")
        for term in small.terms:
            ratio = term * large.terms[0] ** sympy.S.NegativeOne
            linear, constant = _exponents(ratio, grows, a.name)
            linear |= {f"{_LOG}{x}": Fraction(str(e)) for x, e in ratio.logs if logs and e.is_Rational}
            rows.append(Inequality(a.name, tuple(linear.items()), constant, sign in ("<<", ">>")))
    return rows


def _positive(rows: Iterable[Inequality]) -> list[Inequality]:
    """No logarithm is below 1."""
    names = dict.fromkeys(name for r in rows for name, _ in r.coefficients if name.startswith(_LOG))
    return [Inequality(_LOG, ((name, Fraction(-1)),), Fraction(0)) for name in names]


def _exponents(m: Monomial, grows: str, where: str) -> tuple[dict[str, Fraction], Fraction]:
    """The exponent of what grows in a monomial: coefficients of the exponents of quantities and of parameters."""
    found: dict[str, Fraction] = {}
    for name, e in m.powers:
        if name != grows:
            if not e.is_Rational:
                raise UsageError(f"{where}: {name} has the exponent {e}; only {grows} may have one with a name in it")
            found[name] = Fraction(str(e))
    e = m[grows]
    names = sorted(str(s) for s in e.free_symbols)
    symbols = [parameter(name) for name in names]
    if not e.is_polynomial(*symbols) or (names and sympy.Poly(e, *symbols).total_degree() > 1):
        raise UsageError(f"{where}: the exponent {e} of {grows} is not linear in {', '.join(names)}")
    for name, symbol in zip(names, symbols, strict=True):
        if name in found:
            raise UsageError(f"{where}: {name} is a quantity and stands in an exponent; give one another name")
        found[name] = Fraction(str(e.coeff(symbol)))
    return found, Fraction(str(e.xreplace(dict.fromkeys(symbols, sympy.S.Zero))))
