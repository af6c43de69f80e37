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
from scaling_algebra.errors import UsageError, check_names, named

from .assumptions import Assumption, Definition, Windows, windows
from .balance import Balance, balance, power, term
from .entries import keys, read, read_file, shipped
from .expressions import exponent, monomial
from .monomials import Expr, Identity, Monomial, Posynomial, Relation, exact, parameter, simplified, written


@dataclass(frozen=True)
class LawAxis:
    """One way to grow: what is minimised over what.

    Attributes:
        exponent: name of that with which the minimum falls. ratios: names of exponents of quantities at the optimum.
    """

    sum: Posynomial
    grows: tuple[str, ...]
    minimise: tuple[str, ...] = ()
    constraints: tuple[Relation, ...] = ()
    fixed: tuple[str, ...] = ()
    exponent: str = ""
    ratios: Mapping[str, Monomial] = field(default_factory=dict)


@dataclass(frozen=True)
class Law:
    """A law as it is written down.

    Attributes:
        identities: equations between exponents of its axes. names: what its names are.
        options: what each choice of each option replaces. at: values of parameters.
        assume, define: assumptions between powers of what ``grows``, and quantities that are defined by others.
    """

    axes: Mapping[str, LawAxis] = field(default_factory=dict)
    name: str = ""
    title: str = ""
    source: str = ""
    identities: tuple[Identity, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Mapping[str, Mapping[str, str]]] = field(default_factory=dict)
    at: Mapping[str, Expr] = field(default_factory=dict)
    assume: tuple[Assumption, ...] = ()
    define: tuple[Definition, ...] = ()
    grows: str = "d"


@dataclass(frozen=True, repr=False)
class LawAnswer(Rendered):
    """The balances of a law, their exponents and identities.

    Attributes:
        choices: of its options. axes: the balance on each. values: of parameters.
        exponents: with which the first cell of an axis falls, by their names.
        identities: each with whether it holds for every parameter.
        inverted: an exponent, the value that it is given, and what a parameter must be.
        implied: the other exponents at that parameter, to hold beside fitted ones.
    """

    law: Law
    choices: Mapping[str, str]
    axes: Mapping[str, Balance]
    values: Mapping[str, Expr]
    exponents: Mapping[str, Expr]
    identities: Mapping[str, bool]
    inverted: tuple[str, str, Mapping[str, Expr]] | None = None

    @property
    def implied(self) -> dict[str, Expr]:
        of, _, solution = self.inverted or ("", "", {})
        put = {parameter(name): x for name, x in solution.items()}
        found = {name: e.xreplace(put) for name, e in self.exponents.items() if name != of and solution}
        return {name: e for name, e in found.items() if e.is_number}

    @property
    def agrees(self) -> bool:
        """Numbers do not contradict it."""
        return all(b.agrees for b in self.axes.values())

    @property
    def about(self) -> str:
        options = ", ".join(f"{k} {v}" for k, v in self.choices.items())
        return self.law.title + (f" ({options})" if options else "")

    def document(self) -> Document:
        """Every axis in lines, or one axis in full; exponents and identities."""
        blocks: list[Block] = [Heading(literal(self.about), 2)]
        if len(self.axes) == 1:
            blocks += next(iter(self.axes.values())).document().blocks
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
        if self.inverted is not None:
            of, number, solution = self.inverted
            solved = [f"{of} = {number} at {name} = {x} = {float(x):.4f}" for name, x in solution.items()]
            then = ", ".join(f"{name} = {float(e):.4f}" for name, e in self.implied.items())
            blocks.append(Lines.of(*map(literal, [*solved, *([f"there {then}"] if then else [])])))
        return Document(tuple(blocks), self.record())

    def record(self) -> dict[str, Any]:
        """The JSON contract."""
        solution = {} if self.inverted is None else self.inverted[2]
        record = {
            "law": self.law.name,
            "choices": dict(self.choices),
            "at": {name: written(x) for name, x in self.values.items()},
            "axes": {name: b.record() for name, b in self.axes.items()},
            "exponents": {name: written(e) for name, e in self.exponents.items()},
            "identities": dict(self.identities),
        }
        solved = {"inverted": solution, "implied": self.implied} if solution else {}
        return record | {key: {name: written(x) for name, x in found.items()} for key, found in solved.items()}


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
    choose: Mapping[str, str] | None = None,
    given: Mapping[str, str] | None = None,
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
        at: exact values of parameters in exponents, and of fixed constants.
        reach: a monomial; the size at which the minimum equals it is part of the answer.
        axis: one way to grow of a law, in full. choose: choices of its options.
        given: growth laws to put into assumptions, by quantity: ``{"K": "d**kappa"}``. A name in an exponent is one
            more unknown. drop: names of assumptions to leave out.

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
    constraints, drop = tuple(constraints), tuple(drop)
    of_sums = {"minimise": minimise, "grows": grows, "constraints": constraints, "fixed": fixed}
    of_laws = {"axis": axis, "choose": choose}
    of_assumptions = {"given": given, "drop": drop}
    if grows:
        _only("a sum", of_laws | of_assumptions)
        return replace(balance(what, minimise, grows, constraints, fixed, at), reach=reach)
    found = read_law(what)
    if found.assume:
        _only("assumptions", of_sums | of_laws | {"at": at, "reach": reach})
        laws = {name: monomial(text) for name, text in (given or {}).items()}
        return windows(found.name, found.title, found.grows, found.assume, found.define, laws, drop)
    _only("a law", of_sums | of_assumptions)
    if reach is not None and axis is None and len(found.axes) > 1:
        raise UsageError(f"reach is about one axis; give axis, one of {', '.join(found.axes)}")
    a = answer(found, axis, choose, at)
    return a if reach is None else replace(a, axes={n: replace(b, reach=reach) for n, b in a.axes.items()})


def _only(kind: str, others: Mapping[str, Any]) -> None:
    if strange := [name for name, x in others.items() if x]:
        raise UsageError(f"{kind} has no {strange[0]}; leave it out")


@cache
def laws() -> Mapping[str, Law]:
    """Every law, and every set of assumptions, that ships, by name."""
    return {name: _file(path) for name, path in shipped("given").items()}


def read_law(name: str) -> Law:
    """A law or assumptions that ship, or those in a TOML file."""
    return _file(Path(name)) if name.endswith(".toml") else named("law", name, laws())


def answer(
    law: Law,
    axis: str | None = None,
    choices: Mapping[str, str] | None = None,
    values: Mapping[str, Any] | None = None,
) -> LawAnswer:
    """The answer of a law on one axis, or on all.

    Raises:
        UsageError: no such axis, option, choice or parameter.
    """
    picked = _picked(law, choices or {})
    swaps = _swaps(law, picked)
    known = frozenset[str]().union(*(_known(a, swaps) for a in law.axes.values()))
    at = {**law.at, **{name: exact(value) for name, value in (values or {}).items()}}
    check_names("parameter of this law", sorted(at), sorted(known))
    axes = law.axes if axis is None else {axis: named("axis", axis, law.axes)}
    balances = {n: _balanced(a, swaps, at) for n, a in law.axes.items() if n in axes or a.exponent}
    exponents: dict[str, Expr] = {}
    for n, a in law.axes.items():
        if a.exponent:
            cell, grows = balances[n].cells[0], balances[n].growing[0]
            exponents[a.exponent] = simplified(-cell.minimum[grows])
            exponents |= {key: ratio.substituted(cell.optimum)[grows] for key, ratio in a.ratios.items()}
    identities = {i.text: _identical(i, exponents) for i in law.identities if axis is None}
    return LawAnswer(law, picked, {n: balances[n] for n in axes}, at, exponents, identities)


def inverted(a: LawAnswer, name: str, value: Any) -> dict[str, Expr]:
    """The parameter that gives an exponent a value, with what it must be.

    Raises:
        UsageError: no such exponent, not one open parameter, or no positive value.
    """
    formula, value = named("exponent", name, a.exponents), exact(value)
    open_ = sorted(formula.free_symbols, key=str)
    if len(open_) != 1:
        raise UsageError(f"{name} = {formula} has {len(open_)} open parameters; give all but one with --at")
    roots = [x for x in sympy.solve(sympy.Eq(formula, value), open_[0]) if x.is_positive]
    if len(roots) != 1:
        raise UsageError(f"no positive {open_[0]} gives {name} = {value}; it is {formula}")
    return {str(open_[0]): roots[0]}


# inside --------------------------------------------------------------------------------------------------------


def _file(path: Path) -> Law:
    return read_file(path, "a law", _law)


def _law(name: str, data: dict[str, Any]) -> Law:
    if "assume" in data and "sum" not in data:
        return _assumptions(name, data)
    flat = {key: value for key, value in data.items() if key in keys(LawAxis)}
    rest = {key: value for key, value in data.items() if key not in flat}
    check_names("key", rest, [*keys(LawAxis), *keys(Law)])
    if flat and "axes" in data:
        raise UsageError(f"{next(iter(flat))} stands beside axes; put it into one of them")
    if not flat and not data.get("axes"):
        raise UsageError('it says no law; give sum, minimise and grows, such as sum = "N**-alpha + N/n", or assume')
    law: Law = read(Law, {"name": name, "title": name} | rest)
    return replace(law, axes={"law": read(LawAxis, flat)}) if flat else law


def _assumptions(name: str, data: dict[str, Any]) -> Law:
    if isinstance(listed := data["assume"], list):
        data["assume"] = [x if isinstance(x, dict) else {"relation": x} for x in listed]
    law: Law = read(Law, {"name": name, "title": name} | data)
    assume = tuple(replace(a, name=a.name or str(a.relation)) for a in law.assume)
    if not assume:
        raise UsageError('assume is empty; write assume = ["n**(-1/2) << sigma", ...]')
    if not law.grows.isidentifier() or not law.grows.isascii():
        raise UsageError(f"grows is {law.grows!r}; write the name of the quantity that grows, as d")
    for k, d in enumerate(law.define):
        if d.name == law.grows or d.is_.quantities & {later.name for later in law.define[k:]}:
            raise UsageError(f"define {k + 1}: {d.name} needs what is defined at or after it, or is what grows")
    for kind, names in (("assumption", [a.name for a in assume]), ("definition", [d.name for d in law.define])):
        if twice := {n for n in names if names.count(n) > 1}:
            raise UsageError(f"the {kind} {min(twice)!r} is there twice; give each a name of its own")
    return replace(law, assume=assume)


def _picked(law: Law, choices: Mapping[str, str]) -> dict[str, str]:
    """A choice for every option."""
    if strange := [option for option in choices if option not in law.options]:
        raise UsageError(f"{law.name} has no option {strange[0]}; it has {', '.join(law.options) or 'none'}")
    if empty := [option for option in law.options if not law.options[option]]:
        raise UsageError(f"{empty[0]} has no choice; give it tables of what each choice replaces")
    picked = {option: choices.get(option, next(iter(law.options[option]))) for option in law.options}
    for option, choice in picked.items():
        named(option, choice, law.options[option])
    return picked


def _swaps(law: Law, picked: Mapping[str, str]) -> dict[str, Any]:
    """The replacements of the choices: exponents for parameters, monomials for quantities."""
    quantities = {q for a in law.axes.values() for q in a.sum.quantities}
    replaced = {name: text for option, choice in picked.items() for name, text in law.options[option][choice].items()}
    return {name: monomial(text) if name in quantities else exponent(text) for name, text in replaced.items()}


def _balanced(axis: LawAxis, swaps: Mapping[str, Any], at: Mapping[str, Expr]) -> Balance:
    """An axis; of what grows, only what is there."""
    total = axis.sum.substituted(swaps)
    present = {q for t in total.terms for q, _ in t.powers}.union(*(c.quantities for c in axis.constraints))
    grows = [q for q in axis.grows if q in present]
    values = {p: x for p, x in at.items() if p in _known(axis, swaps)}
    return balance(total, axis.minimise, grows or axis.grows[:1], axis.constraints, axis.fixed, values)


def _known(axis: LawAxis, swaps: Mapping[str, Any]) -> frozenset[str]:
    """The parameters and constants of an axis."""
    return axis.sum.substituted(swaps).parameters.union(axis.fixed, *(c.parameters for c in axis.constraints))


def _identical(i: Identity, exponents: Mapping[str, Expr]) -> bool:
    check_names(f"exponent in {i.text!r}", sorted({i.name} | i.needs), exponents)
    put = {parameter(n): e for n, e in exponents.items()}
    return bool(simplified(exponents[i.name] - i.right.xreplace(put)) == 0)


def _listed(lines: Iterable[str], title: str = "") -> list[Block]:
    pieces = [literal(line) for line in lines]
    heading: list[Block] = [Heading(title, 3)] if title else []
    return [*heading, Lines.of(*pieces, listed=True)] if pieces else []
