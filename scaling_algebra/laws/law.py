"""Answers questions about growing quantities: a sum to minimise, a published law, or a set of assumptions.

A law is a TOML file with ``sum``, ``minimise``, ``grows`` and so on, with several of these as ``axes``, or with
``assume``. To add one, add a file to ``given/``.
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

from .assumptions import Assumption, Definition, Windows, find_windows
from .balance import Balance, balance, format_power, format_term
from .entries import read_file
from .expressions import exponent, expression, monomial, relation
from .monomials import Expr, Monomial, Posynomial, Relation, parameter, read_exact, simplify_exponent


@dataclass(frozen=True)
class LawAxis:
    """One axis of a law, that is, one way in which a model can grow: a sum to minimise while some quantities grow.

    Attributes:
        sum: the sum.
        grows: quantities that grow.
        minimise: quantities to minimise over.
        constraints: equations and bounds.
        fixed: constants.
        exponent: name of the exponent with which the minimum falls as the first growing quantity grows; empty for none.
        ratios: by names of further exponents, monomials; such an exponent is the power of the first growing quantity
            that the monomial is at the optimum.
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
    """A law as written in a file.

    Attributes:
        axes: the axes (ways to grow), by name.
        name: name of the law.
        title: one line for reports.
        source: where it is published.
        identities: equations between the exponents of its axes, such as ``alpha_D = alpha_N/(1 + alpha_N)``.
        names: for each quantity and parameter, its meaning in words.
        at: default values of parameters, constants and quantities.
        assume: assumptions about powers of ``grows``.
        define: quantities that are defined by others.
        grows: the quantity of which all others are powers, for assumptions.
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
    """The minima of a law, their exponents and identities.

    Attributes:
        law: the law.
        at: values that the user gave.
        axes: the minimum for each way to grow.
        exponents: the exponents, by their names in the law. If different formulas are valid in different regions
            (cells), each is that in the first cell.
        identities: for each identity whether it holds for all parameters.
    """

    law: Law
    at: Mapping[str, Monomial]
    axes: Mapping[str, Balance]
    exponents: Mapping[str, Expr]
    identities: Mapping[str, bool]

    @property
    def about(self) -> str:
        """Title of the report."""
        values = ", ".join(f"{name} = {m}" for name, m in self.at.items())
        return self.law.title + (f" ({values})" if values else "")

    def document(self) -> Document:
        """Returns the report: every way to grow in short, or a single one in full; exponents and identities."""
        blocks: list[Block] = [Heading(literal(self.about), 2)]
        balances = {name: b.document() for name, b in self.axes.items()}
        if len(self.axes) == 1:
            blocks += next(iter(balances.values())).blocks
        else:
            rows = [
                (axis, name, format_power(m), literal(", ".join(map(str, cell.where))))
                for axis, b in self.axes.items()
                for cell in b.cells
                for name, m in b.sizes(cell).items()
            ]
            blocks.append(Grid.of(("axis", "of", "grows as", "where"), rows))
            numbers = [(n, format_term(e), f"{float(e):.5f}" if e.is_number else "") for n, e in self.exponents.items()]
            if numbers:
                blocks += [Heading("exponents", 3), Grid.of(("exponent", "is", "number"), numbers)]
                blocks += _list_lines(
                    f"{text}: {'holds' if x else 'does not hold'}" for text, x in self.identities.items()
                )
        names = frozenset(self.exponents if len(self.axes) > 1 else ()).union(*(b.names for b in self.axes.values()))
        blocks += _list_lines((f"{name}: {what}" for name, what in self.law.names.items() if name in names), "names")
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
    """Computes the powers of growing quantities: at the minimum of a sum, by a law, or under assumptions.

    Args:
        what: with ``grows`` a sum, such as ``"N**(-2*beta/d) + N/n"``; else the name of a shipped law or set of
            assumptions, or a TOML file with one.
        minimise: quantities to minimise over; if there are none, the largest term is found.
        grows: quantities that grow; the answer is in their powers.
        constraints: equations of monomials, each of which eliminates a quantity (one that is not named elsewhere, else
            the last one to minimise over), or bounds: ``sum <= monomial``, ``monomial >= sum``, also with ``<<`` and
            ``>>``.
        fixed: positive constants, which are kept in prefactors.
        at: exact positive values of parameters in exponents and of fixed constants. For a law also monomials in place
            of quantities; for assumptions growth laws, ``{"K": "d**kappa"}``, where a name in the exponent is one more
            unknown.
        reach: a monomial; the answer includes the size at which the minimum equals it.
        axis: for a law, the name of one of its ways to grow, which is then answered in full.
        drop: names of assumptions to leave out.

    Raises:
        UsageError: something is unknown, unreadable, or has no minimum.
        Infeasible: the constraints are contradictory.

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
        _refuse_unused("a sum", {"axis": axis, "drop": drop})
        relations = tuple(map(relation, constraints))
        of = LawAxis(expression(what), tuple(grows), tuple(minimise), relations, tuple(fixed))
        found = Law({"sum": of}, name="sum")
    elif found.assume:
        _refuse_unused("assumptions", of_sums | {"axis": axis, "reach": reach})
        given = _read_values(at)
        return find_windows(found.name, found.title, found.grows, found.assume, found.define, given, drop)
    else:
        _refuse_unused("a law", of_sums | {"drop": drop})
    if reach is not None:
        monomial(reach)  # refused before any work
    if reach is not None and axis is None and len(found.axes) > 1:
        raise UsageError(f"reach needs one axis; give axis, one of {', '.join(found.axes)}")
    a = answer_law(found, axis, at)
    a = a if reach is None else replace(a, axes={n: replace(b, reach=reach) for n, b in a.axes.items()})
    return a.axes["sum"] if grows else a


def _refuse_unused(kind: str, others: Mapping[str, Any]) -> None:
    """Raises UsageError if an argument of ``law`` is given that has no effect for this kind of question.

    Args:
        kind: what was asked about, in words: a sum, a law or a set of assumptions.
        others: the arguments without effect for it, by name; all must be empty.
    """
    if strange := [name for name, x in others.items() if x]:
        raise UsageError(f"{strange[0]} has no effect for {kind}; leave it out")


@cache
def load_laws() -> Mapping[str, Law]:
    """Returns every shipped law and set of assumptions, by name; each is one file."""
    return {path.stem: _read_law_file(path) for path in sorted((Path(__file__).parent / "given").glob("*.toml"))}


def read_law(name: str) -> Law:
    """Returns a shipped law or set of assumptions by name, or reads one from a TOML file."""
    return _read_law_file(Path(name)) if name.endswith(".toml") else find_entry("law", name, load_laws())


def answer_law(law: Law, axis: str | None = None, at: Mapping[str, Any] | None = None) -> LawAnswer:
    """Computes the minima, exponents and identities of a law.

    Args:
        law: the law.
        axis: one way to grow; None for all.
        at: values of parameters, constants and quantities.

    Raises:
        UsageError: an unknown axis, parameter, constant or quantity, or a value that is not positive.
    """
    asked, parts = _read_values(at), [x for a in law.axes.values() for x in a.parts]
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
    balances = {n: _balance_axis(a, put) for n, a in law.axes.items() if n in axes or a.exponent}
    exponents: dict[str, Expr] = {}
    for n, a in law.axes.items():
        if a.exponent:
            cell, grows = balances[n].cells[0], balances[n].growing[0]
            exponents[a.exponent] = simplify_exponent(-cell.minimum[grows])
            exponents |= {key: ratio.substitute(cell.optimum)[grows] for key, ratio in a.ratios.items()}
    identities = {text: _check_identity(text, exponents) for text in law.identities if axis is None}
    return LawAnswer(law, asked, {n: balances[n] for n in axes}, exponents, identities)


def invert_exponent(a: LawAnswer, name: str, value: Any) -> dict[str, Expr]:
    """Returns the value of the only parameter without a value for which a named exponent has a given value.

    Args:
        a: the answer of a law.
        name: the exponent.
        value: its value.

    Returns:
        ``{parameter: value}``.

    Raises:
        UsageError: there is no such exponent, not exactly one parameter is without a value, or there is no positive
            rational solution.
    """
    formula, value = find_entry("exponent", name, a.exponents), read_exact(value)
    open_ = sorted(formula.free_symbols, key=str)
    if len(open_) != 1:
        raise UsageError(
            f"{name} = {formula} has {len(open_)} parameters without a value; give values for all but one with --at"
        )
    roots = [x for x in sympy.solve(sympy.Eq(formula, value), open_[0]) if x.is_positive and x.is_Rational]
    if len(roots) != 1:
        raise UsageError(
            f"no positive {open_[0]} gives {name} = {value}, because {name} = {formula}; choose another value"
        )
    return {str(open_[0]): roots[0]}


# inside --------------------------------------------------------------------------------------------------------


def _read_values(at: Mapping[str, Any] | None) -> dict[str, Monomial]:
    """Reads values as monomials; numbers must be positive."""
    read = {name: monomial(x) if isinstance(x, str) else Monomial(read_exact(x)) for name, x in (at or {}).items()}
    for name, m in read.items():
        if not m.coefficient.is_positive:
            raise UsageError(f"{name} is {quote_value(m.coefficient)}; give a positive number")
    return read


def _read_law_file(path: Path) -> Law:
    """Reads a law from a TOML file."""
    return read_file(path, "a law", _build_law)


def _build_law(name: str, data: dict[str, Any]) -> Law:
    """Builds a law from the name and the tables of its file."""
    if "assume" in data and "sum" not in data:
        return _build_assumptions(name, data)
    flat = {key: value for key, value in data.items() if key in list_keys(LawAxis)}
    rest = {key: value for key, value in data.items() if key not in flat}
    check_names("key", rest, [*list_keys(LawAxis), *list_keys(Law)])
    if flat and "axes" in data:
        raise UsageError(f"{next(iter(flat))} is outside the axes; move it into one of the tables [axes.NAME]")
    if not flat and not data.get("axes"):
        raise UsageError(
            'the file has neither sum nor assume; give sum, minimise and grows, such as sum = "N**-alpha + N/n"'
        )
    law: Law = read_value(Law, {"name": name, "title": name} | rest)
    return replace(law, axes={"law": read_value(LawAxis, flat)}) if flat else law


def _build_assumptions(name: str, data: dict[str, Any]) -> Law:
    """Builds a set of assumptions from the name and the tables of its file."""
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
            raise UsageError(
                f"define {k + 1}: {d.name} uses a quantity that is defined only later, or defines the growing "
                "quantity; reorder or rename it"
            )
    names = [*(a.name for a in assume), *(d.name for d in law.define)]
    if twice := {n for n in names if names.count(n) > 1}:
        raise UsageError(f"the name {min(twice)!r} is used twice; give each assumption and definition its own name")
    return replace(law, assume=assume)


def _balance_axis(axis: LawAxis, put: Mapping[str, Any]) -> Balance:
    """Minimises the sum of one way to grow, after values are substituted for quantities and parameters.

    With ``n = C/N`` as a value, C takes the place of n as a quantity that grows.
    """
    before = {q for x in axis.parts for q in x.quantities}
    total, constraints = axis.sum.substitute(put), [c.substitute(put) for c in axis.constraints]
    after = total.quantities.union(*(c.quantities for c in constraints))
    fixed = [q for q in axis.fixed if q not in put]
    brought = sorted(after - before - {*axis.grows})
    grows = [q for q in axis.grows if q in after or (q not in before and q not in put)]
    return balance(total, axis.minimise, grows + brought, constraints, fixed)


def _check_identity(text: str, exponents: Mapping[str, Expr]) -> bool:
    """Tests whether ``name = function of other exponents`` holds for all parameters."""
    name, equals, right = (x.strip() for x in text.partition("="))
    if not equals or not name.isidentifier():
        raise UsageError(f"{text!r} is not an identity; write one such as alpha_D = alpha_N/(1 + alpha_N)")
    formula = exponent(right)
    check_names(f"exponent in {text!r}", [name, *sorted(map(str, formula.free_symbols))], exponents)
    put = {parameter(n): e for n, e in exponents.items()}
    return bool(simplify_exponent(exponents[name] - formula.xreplace(put)) == 0)


def _list_lines(lines: Iterable[str], title: str = "") -> list[Block]:
    """Makes a bullet list for a report, with an optional heading; returns no block if there are no lines."""
    pieces = [literal(line) for line in lines]
    heading: list[Block] = [Heading(title, 3)] if title else []
    return [*heading, Lines.of(*pieces, listed=True)] if pieces else []
