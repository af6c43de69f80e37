"""The one question about growing quantities, ``law``: a sum to minimise, a law that is written down, or assumptions.

A law is a TOML file: ``sum``, ``minimise``, ``grows`` and so on, several ``axes`` of those, or ``assume``.
Adding one: one more file in ``given/``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import sympy

from scaling_algebra.documents import Document, Rendered
from scaling_algebra.documents.blocks import Block, Grid, Heading, Lines, literal
from scaling_algebra.errors import UsageError, check_names, find_entry, quote_value
from scaling_algebra.spec.entries import list_keys, read_value

from .assumptions import Assumption, Definition, Windows, windows
from .balance import Balance, balance, power, term
from .entries import read_file
from .expressions import exponent, expression, monomial, relation
from .monomials import Expr, Monomial, Posynomial, Relation, exact, parameter, simplified


@dataclass(frozen=True)
class LawAxis:
    """One way to grow: what is minimised over what.

    Attributes:
        exponent: the name of the exponent of the minimum. ratios: those of the exponents of quantities at the optimum.
    """

    sum: Posynomial
    grows: tuple[str, ...]
    minimise: tuple[str, ...] = ()
    constraints: tuple[Relation, ...] = ()
    fixed: tuple[str, ...] = ()
    exponent: str = ""
    ratios: Mapping[str, Monomial] = field(default_factory=dict)

    @property
    def parts(self) -> tuple[Posynomial, ...]:
        """The sum and its constraints."""
        return self.sum, *self.constraints


@dataclass(frozen=True)
class Law:
    """A law as it is written down.

    Attributes:
        identities: equations between exponents of its axes. names: what its names are.
        at: values of parameters, constants and quantities, which a question may replace.
        assume, define: assumptions between powers of what ``grows``, and quantities that are defined by others.
    """

    axes: Mapping[str, LawAxis] = field(default_factory=dict)
    name: str = ""
    title: str = ""
    source: str = ""
    identities: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    at: Mapping[str, Monomial] = field(default_factory=dict)
    assume: tuple[Assumption, ...] = ()
    define: tuple[Definition, ...] = ()
    grows: str = "d"


@dataclass(frozen=True, repr=False)
class LawAnswer(Rendered):
    """The balances of a law, their exponents and identities.

    Attributes:
        at: the values that were asked for. axes: the balance on each axis.
        exponents: by name, those of the minimum in the first cell of an axis.
        identities: each, and whether it holds for every parameter.
    """

    law: Law
    at: Mapping[str, Monomial]
    axes: Mapping[str, Balance]
    exponents: Mapping[str, Expr]
    identities: Mapping[str, bool]

    @property
    def about(self) -> str:
        values = ", ".join(f"{name} = {m}" for name, m in self.at.items())
        return self.law.title + (f" ({values})" if values else "")

    def document(self) -> Document:
        """Every axis in lines, or one axis in full; exponents and identities."""
        blocks: list[Block] = [Heading(literal(self.about), 2)]
        balances = {name: b.document() for name, b in self.axes.items()}
        if len(self.axes) == 1:
            blocks += next(iter(balances.values())).blocks
        else:
            rows = [(axis, name, power(m), literal(", ".join(map(str, cell.where)))) for axis, b in self.axes.items()
                    for cell in b.cells for name, m in b.sizes(cell).items()]  # fmt: skip
            blocks.append(Grid.of(("axis", "of", "grows as", "where"), rows))
            numbers = [(n, term(e), f"{float(e):.5f}" if e.is_number else "") for n, e in self.exponents.items()]
            if numbers:
                blocks += [Heading("exponents", 3), Grid.of(("exponent", "is", "number"), numbers)]
                blocks += _listed(f"{text}: {'holds' if x else 'does not hold'}" for text, x in self.identities.items())
        names = frozenset(self.exponents if len(self.axes) > 1 else ()).union(*(b.names for b in self.axes.values()))
        blocks += _listed((f"{name}: {what}" for name, what in self.law.names.items() if name in names), "names")
        record = {"law": self.law.name, "at": self.at, "axes": {name: d.record for name, d in balances.items()}}
        return Document(tuple(blocks), record | {"exponents": self.exponents, "identities": self.identities})


def law(
    what: str,
    minimise: Sequence[str] = (),
    grows: Sequence[str] = (),
    constraints: Iterable[str] = (),
    fixed: Sequence[str] = (),
    at: Mapping[str, Any] | None = None,
    *,
    reach: str | None = None,
    axis: str | None = None,
    drop: Iterable[str] = (),
) -> Balance | LawAnswer | Windows:
    """The powers that growing quantities have: at the minimum of a sum, by a law, or under assumptions.

    Args:
        what: with ``grows`` a sum, such as ``"N**(-2*beta/d) + N/n"``; else the name of a law or of assumptions that
            ship, or a TOML file with some.
        minimise: quantities to choose; with none, the largest term is looked for.
        grows: quantities that grow; the answer is in their powers.
        constraints: equations of monomials, which eliminate a quantity each (one that is not named elsewhere, else the
            last to be minimised over), or bounds: ``sum <= monomial``, ``monomial >= sum``, ``<<`` and ``>>`` as well.
        fixed: positive constants, kept in prefactors.
        at: exact positive values of parameters in exponents and of fixed constants; of a law also monomials in place
            of quantities, and of assumptions growth laws: ``{"K": "d**kappa"}``. A name in the exponent of a growth law
            is one more unknown.
        reach: a monomial; the size at which the minimum equals it is part of the answer.
        axis: one way to grow of a law, in full. drop: names of assumptions to leave out.

    Raises:
        UsageError: something is not known, cannot be read, or has no minimum.
        Infeasible: constraints that contradict each other.

    Examples:
        >>> cell = law("N**(-2*beta/d) + N/n", ["N"], ["n"]).cell
        >>> str(cell.optimum["N"]), cell.minimum["n"]
        ('(2*beta/d)^(d/(2*beta + d))*n^(d/(2*beta + d))', -2*beta/(2*beta + d))
        >>> law("moe-transformer").exponents["alpha_C"]
        beta/(beta + d)
        >>> w = law("switch-cluster").windows["sigma_0"]
        >>> print(w.low.value, w.high.value)
        -1/3 -1/100
    """
    constraints, drop, found = tuple(constraints), tuple(drop), None if grows else read_law(what)
    of_sums = {"minimise": minimise, "constraints": constraints, "fixed": fixed}
    if found is None:
        _only("a sum", {"axis": axis, "drop": drop})
        relations = tuple(map(relation, constraints))
        of = LawAxis(expression(what), tuple(grows), tuple(minimise), relations, tuple(fixed))
        found = Law({"sum": of}, name="sum")
    elif found.assume:
        _only("assumptions", of_sums | {"axis": axis, "reach": reach})
        given = _monomials(at)
        return windows(found.name, found.title, found.grows, found.assume, found.define, given, drop)
    else:
        _only("a law", of_sums | {"drop": drop})
    if reach is not None:
        monomial(reach)  # refused before any work
    if reach is not None and axis is None and len(found.axes) > 1:
        raise UsageError(f"reach is about one axis; give axis, one of {', '.join(found.axes)}")
    a = answer(found, axis, at)
    a = a if reach is None else replace(a, axes={n: replace(b, reach=reach) for n, b in a.axes.items()})
    return a.axes["sum"] if grows else a


def _only(kind: str, others: Mapping[str, Any]) -> None:
    if strange := [name for name, x in others.items() if x]:
        raise UsageError(f"{kind} has no {strange[0]}; leave it out")


@cache
def laws() -> Mapping[str, Law]:
    """Every law, and every set of assumptions, that ships, by name: one file is one."""
    return {path.stem: _file(path) for path in sorted((Path(__file__).parent / "given").glob("*.toml"))}


def read_law(name: str) -> Law:
    """A law or assumptions that ship, or those in a TOML file."""
    return _file(Path(name)) if name.endswith(".toml") else find_entry("law", name, laws())


def answer(law: Law, axis: str | None = None, at: Mapping[str, Any] | None = None) -> LawAnswer:
    """The answer of a law on one axis, or on all.

    Raises:
        UsageError: no such axis, or no such parameter, constant or quantity; a value that is not positive.
    """
    asked, parts = _monomials(at), [x for a in law.axes.values() for x in a.parts]
    quantities = {q for x in parts for q in x.quantities}
    constants = {name for a in law.axes.values() for name in a.fixed}
    values = {**law.at, **asked}
    check_names("parameter or quantity of this law", values, sorted(quantities.union(*(x.parameters for x in parts))))
    for name, m in values.items():
        number, rational = not (m.powers or m.logs), m.coefficient.is_Rational
        if not (number if name in constants else name in quantities or (number and rational)):
            raise UsageError(f"{name} is {m}; give a positive number")
    put = {name: m if name in quantities else m.coefficient for name, m in values.items()}
    axes = law.axes if axis is None else {axis: find_entry("axis", axis, law.axes)}
    balances = {n: _balanced(a, put) for n, a in law.axes.items() if n in axes or a.exponent}
    exponents: dict[str, Expr] = {}
    for n, a in law.axes.items():
        if a.exponent:
            cell, grows = balances[n].cells[0], balances[n].growing[0]
            exponents[a.exponent] = simplified(-cell.minimum[grows])
            exponents |= {key: ratio.substituted(cell.optimum)[grows] for key, ratio in a.ratios.items()}
    identities = {text: _identical(text, exponents) for text in law.identities if axis is None}
    return LawAnswer(law, asked, {n: balances[n] for n in axes}, exponents, identities)


def inverted(a: LawAnswer, name: str, value: Any) -> dict[str, Expr]:
    """The parameter that gives an exponent a value, with what it must be.

    Raises:
        UsageError: no such exponent, not one open parameter, or no positive rational value.
    """
    formula, value = find_entry("exponent", name, a.exponents), exact(value)
    open_ = sorted(formula.free_symbols, key=str)
    if len(open_) != 1:
        raise UsageError(f"{name} = {formula} has {len(open_)} open parameters; give all but one with --at")
    roots = [x for x in sympy.solve(sympy.Eq(formula, value), open_[0]) if x.is_positive and x.is_Rational]
    if len(roots) != 1:
        raise UsageError(f"no positive {open_[0]} gives {name} = {value}; it is {formula}")
    return {str(open_[0]): roots[0]}


# inside --------------------------------------------------------------------------------------------------------


def _monomials(at: Mapping[str, Any] | None) -> dict[str, Monomial]:
    """Values as monomials: a text is read as one, so that a number is a positive one."""
    read = {name: monomial(x) if isinstance(x, str) else Monomial(exact(x)) for name, x in (at or {}).items()}
    for name, m in read.items():
        if not m.coefficient.is_positive:
            raise UsageError(f"{name} is {quote_value(m.coefficient)}; give a positive number")
    return read


def _file(path: Path) -> Law:
    return read_file(path, "a law", _law)


def _law(name: str, data: dict[str, Any]) -> Law:
    if "assume" in data and "sum" not in data:
        return _assumptions(name, data)
    flat = {key: value for key, value in data.items() if key in list_keys(LawAxis)}
    rest = {key: value for key, value in data.items() if key not in flat}
    check_names("key", rest, [*list_keys(LawAxis), *list_keys(Law)])
    if flat and "axes" in data:
        raise UsageError(f"{next(iter(flat))} stands beside axes; put it into one of them")
    if not flat and not data.get("axes"):
        raise UsageError('it says no law; give sum, minimise and grows, such as sum = "N**-alpha + N/n", or assume')
    law: Law = read_value(Law, {"name": name, "title": name} | rest)
    return replace(law, axes={"law": read_value(LawAxis, flat)}) if flat else law


def _assumptions(name: str, data: dict[str, Any]) -> Law:
    if isinstance(listed := data["assume"], list):
        data["assume"] = [x if isinstance(x, dict) else {"relation": x} for x in listed]
    law: Law = read_value(Law, {"name": name, "title": name} | data)
    assume = tuple(replace(a, name=a.name or str(a.relation)) for a in law.assume)
    if not assume:
        raise UsageError('assume is empty; write assume = ["n**(-1/2) << sigma", ...]')
    if not law.grows.isidentifier() or not law.grows.isascii():
        raise UsageError(f"grows is {law.grows!r}; write the name of the quantity that grows, as d")
    for k, d in enumerate(law.define):
        if d.name == law.grows or d.is_.quantities & {later.name for later in law.define[k:]}:
            raise UsageError(f"define {k + 1}: {d.name} needs what is defined at or after it, or is what grows")
    names = [*(a.name for a in assume), *(d.name for d in law.define)]
    if twice := {n for n in names if names.count(n) > 1}:
        raise UsageError(f"the name {min(twice)!r} is there twice; give each assumption and definition one of its own")
    return replace(law, assume=assume)


def _balanced(axis: LawAxis, put: Mapping[str, Any]) -> Balance:
    """The balance on an axis with some values. A quantity that a value eliminates does not grow; one that it adds
    does."""
    before = {q for x in axis.parts for q in x.quantities}
    total, constraints = axis.sum.substituted(put), [c.substituted(put) for c in axis.constraints]
    after = total.quantities.union(*(c.quantities for c in constraints))
    fixed = [q for q in axis.fixed if q not in put]
    brought = sorted(after - before - {*axis.grows})
    grows = [q for q in axis.grows if q in after or (q not in before and q not in put)]
    return balance(total, axis.minimise, grows + brought, constraints, fixed)


def _identical(text: str, exponents: Mapping[str, Expr]) -> bool:
    """Does ``name = function of other names`` hold?"""
    name, equals, right = (x.strip() for x in text.partition("="))
    if not equals or not name.isidentifier():
        raise UsageError(f"{text!r} is no identity; write one such as alpha_D = alpha_N/(1 + alpha_N)")
    formula = exponent(right)
    check_names(f"exponent in {text!r}", [name, *sorted(map(str, formula.free_symbols))], exponents)
    put = {parameter(n): e for n, e in exponents.items()}
    return bool(simplified(exponents[name] - formula.xreplace(put)) == 0)


def _listed(lines: Iterable[str], title: str = "") -> list[Block]:
    pieces = [literal(line) for line in lines]
    heading: list[Block] = [Heading(title, 3)] if title else []
    return [*heading, Lines.of(*pieces, listed=True)] if pieces else []
